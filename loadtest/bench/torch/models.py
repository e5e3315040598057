"""The models that `ebb bench --engine torch` trains. Knows nothing of Ebb: `train.py` makes a job of them, `plain.py` a loop by hand."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


def build(kind: str, width: int) -> nn.Module:
    """`cnn`: two convolutions with BatchNorm, `width` channels. `mlp`: three square layers, so that a gradient has 12 · width² bytes."""
    if kind == "cnn":
        return nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.Flatten(), nn.Linear(64 * width, 10),
        )  # fmt: skip
    square = [layer for _ in range(3) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), *square, nn.Linear(width, 10))


def summed_loss(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Summed over the rows."""
    return F.cross_entropy(model(images.reshape(len(labels), 64)), labels, reduction="sum")


def optimizer(model: nn.Module, momentum: float) -> torch.optim.Optimizer:
    """SGD: with momentum its state is as large as the parameters, without there is none."""
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=momentum)
