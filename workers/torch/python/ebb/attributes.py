"""What modules and jobs remember in plain Python attributes, where Ebb cannot carry it along: compared before and after user code ran."""

from __future__ import annotations

import collections
import hashlib
import random
from typing import Any

import torch

from ebb.tensors import raw_bytes

NOT_ATTRIBUTES = {"_parameters", "_buffers", "_modules", "training", "_non_persistent_buffers_set"}
EBBS_OWN = {"spec", "parameters", "step"}
PARTS_BOUND = 10_000


def snapshot(job: Any, model: torch.nn.Module, known: frozenset[int] = frozenset()) -> dict[str, str]:
    """A digest of each attribute of the modules and of the job that could remember something; `known` are the ids of tensors that are
    kept otherwise."""
    holders = [(f"{name}." if name else "", module) for name, module in model.named_modules()]
    found = {}
    for prefix, holder in [*holders, (f"{type(job).__name__}.", job)]:
        for key, value in vars(holder).items():
            if key in NOT_ATTRIBUTES or key.endswith("_hooks") or holder is job and key in EBBS_OWN:
                continue
            text = fingerprint(value, known)
            if text is not None:
                found[prefix + key] = text
    return found


def changed(before: dict[str, str], after: dict[str, str]) -> str | None:
    """The first attribute that is not as it was."""
    return next((name for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name)), None)


def fingerprint(value: Any, known: frozenset[int] = frozenset(), depth: int = 0) -> str | None:
    """What a value is, as text; None for what is no plain value and no generator."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return repr(value)
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_meta or id(value) in known:
            return None
        return f"{value.dtype}{tuple(value.shape)}{hashlib.blake2b(raw_bytes(value)).hexdigest()}"
    if isinstance(value, torch.Generator):
        return hashlib.blake2b(raw_bytes(value.get_state())).hexdigest()
    if isinstance(value, random.Random):
        return repr(value.getstate())
    if type(value).__module__.startswith("numpy.random"):
        state = getattr(value, "bit_generator", value)
        return repr(getattr(state, "state", None) or (value.get_state() if hasattr(value, "get_state") else None))
    if depth < 4 and isinstance(value, (list, tuple, collections.deque)) and len(value) <= PARTS_BOUND:
        return "[" + ",".join(fingerprint(item, known, depth + 1) or "?" for item in value) + "]"
    if depth < 4 and isinstance(value, (set, frozenset)) and len(value) <= PARTS_BOUND:
        return "{" + ",".join(sorted(fingerprint(item, known, depth + 1) or "?" for item in value)) + "}"
    if depth < 4 and isinstance(value, dict) and len(value) <= PARTS_BOUND:
        return "{" + ",".join(f"{key!r}:{fingerprint(item, known, depth + 1) or '?'}" for key, item in value.items()) + "}"
    return None
