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


def load(source: str, model: Any = None, strict: bool = True) -> Any:
    """The tensors by name of a safetensors file, of a Hugging Face folder, or of a model of Ebb (a job's id or the model's digest, from
    the service that EBB_URL names); or `model` with them loaded by their names: all of them, or what fits without `strict`."""
    from ebb.initial import load as read

    return read(source, model, strict)
