"""Elastic, bit-equal training of PyTorch models with Ebb.

`import ebb` is cheap: torch is imported when something needs it. What a user writes is a subclass of `ebb.Job`
(see `job.py`) or one call of `ebb.fit` (see `script.py`); `ebb.load` reads a model that Ebb has trained.
"""

from __future__ import annotations

from typing import Any

from ebb.job import Job
from ebb.refuse import Refused

__all__ = ["Job", "Refused", "fit", "load"]


def fit(*args: Any, **named: Any) -> Any:
    """Declares a training in a short script; see `ebb.script.fit` for the arguments."""
    from ebb.script import fit as declare

    return declare(*args, **named)


def load(path: str, model: Any = None) -> Any:
    """The tensors of a safetensors file by name, or `model` with them loaded (by their names, all of them)."""
    from ebb.tensors import load as read

    return read(path, model)
