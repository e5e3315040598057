"""What every runtime trains: a perceptron on rows of chance, SGD with momentum, one thread. Knows no runtime."""

from __future__ import annotations

import hashlib
import os

import torch
from torch import nn

#: Of one logical worker and step.
ROWS = int(os.environ.get("PEERS_ROWS", "256"))
#: Of the size of the model: 6.3 MB, or as `compare.py` is told.
HIDDEN = int(os.environ.get("PEERS_HIDDEN", "1024"))
FEATURES, CLASSES = 512, 10


def build() -> nn.Module:
    """The same parameters in every process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES)
    )  # fmt: skip


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """As large a state as the model."""
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def batch(seed: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows that depend on the seed alone."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, FEATURES, generator=generator), torch.randint(0, CLASSES, (rows,), generator=generator)


def digest(model: nn.Module) -> str:
    """Of the parameters, to compare runs by."""
    whole = hashlib.sha256()
    for parameter in model.parameters():
        whole.update(parameter.detach().contiguous().numpy().tobytes())
    return whole.hexdigest()[:16]
