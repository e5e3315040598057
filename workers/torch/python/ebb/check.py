"""The self-check: is a gradient a function of (replica, batch, rank, step) alone? Run once per program, before the first step.

Gradients of rank 0 and 1 of one batch are computed in the order 0, 1, 1, 0. Whatever remembers shows: as a difference, or as
an attribute of a module that differs after two equal forwards.
"""

from __future__ import annotations

import collections
import copy
import hashlib
import random
from typing import Any

import torch

from ebb.program import Program
from ebb.refuse import Refused
from ebb.tensors import raw_bytes

NOT_ATTRIBUTES = {"_parameters", "_buffers", "_modules", "training", "_non_persistent_buffers_set"}
PARTS_BOUND = 10_000
ADVICE = "look for a random generator of its own, a counter, a cache or a running value kept in an attribute; keep such values in buffers"


def run(program: Program, thorough: bool) -> None:
    """Refuses what is not repeatable, and gives the program the digest of its gradients for its numeric class."""
    batch, rows = _batch(program)
    prepare = getattr(program.job, "prepare", None)
    if prepare is not None:
        prepare(program, copy.deepcopy(batch))
    replica = _slot_digests(program) if thorough else {}
    first = _gradient(program, 0, batch, rows)
    program.expected_counts = list(program.counts)
    held = attributes(program) if thorough else {}
    second = _gradient(program, 1, batch, rows)
    program.gradient_digest = hashlib.sha256(first + second).hexdigest()
    if thorough:
        second_again = _gradient(program, 1, batch, rows)
        first_again = _gradient(program, 0, batch, rows)
        _compare_attributes(held, attributes(program))
        changed = [name for name, digest in _slot_digests(program).items() if replica[name] != digest]
        if changed:
            raise Refused(
                f"`{changed[0]}` changed while a gradient was computed; parameters and state() may change in the optimizer and in on_step() only"
            )
        for now, before in ((second_again, second), (first_again, first)):
            if now != before:
                raise Refused(f"your model's gradient is not a function of the model, the batch and the seed: computed twice it differs; {ADVICE}")
    program.gradient_segment.bytes.zero_()


def _batch(program: Program) -> tuple[Any, int]:
    settings = program.settings
    if program.data.steps_per_epoch is None:
        rows = settings.batch_size if not settings.rows else min(settings.batch_size, settings.rows)
        program.data.invent(rows, program.seed)
        batch, rows = program.data.batch(0, 0, rows)
        return copy.deepcopy(batch), rows
    return program.data.fetch(0, 0)


def _gradient(program: Program, rank: int, batch: Any, rows: int) -> bytes:
    # A copy, because user code may change its batch in place.
    weight, loss = program.compute(rank, 0, copy.deepcopy(batch), rows, allow_nonfinite=True)
    digest = hashlib.sha256(raw_bytes(program.gradient_segment.bytes))
    digest.update(f"{weight.hex()} {loss.hex()}".encode())
    return digest.digest()


def _slot_digests(program: Program) -> dict[str, bytes]:
    slots = [*program.trainable_slots, *program.frozen_slots, *program.state_slots]
    return {slot.name: hashlib.blake2b(raw_bytes(slot.view(program.replica))).digest() for slot in slots}


def attributes(program: Program) -> dict[str, str]:
    """A digest of each attribute of the modules and of the job that could remember something."""
    holders = [(f"{name}." if name else "", module) for name, module in program.model.named_modules()]
    found = {}
    for prefix, holder in [*holders, (f"{type(program.job).__name__} ", program.job)]:
        for key, value in vars(holder).items():
            if key in NOT_ATTRIBUTES or key.endswith("_hooks") or key in ("spec", "parameters"):
                continue
            text = fingerprint(value)
            if text is not None:
                found[f"{prefix}{key}".replace(" ", ".")] = text
    return found


def fingerprint(value: Any, depth: int = 0) -> str | None:
    """What a value is, as text; None for what is no plain value and no generator."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return repr(value)
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_meta:
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
        return "[" + ",".join(fingerprint(item, depth + 1) or "?" for item in value) + "]"
    if depth < 4 and isinstance(value, (set, frozenset)) and len(value) <= PARTS_BOUND:
        return "{" + ",".join(sorted(fingerprint(item, depth + 1) or "?" for item in value)) + "}"
    if depth < 4 and isinstance(value, dict) and len(value) <= PARTS_BOUND:
        return "{" + ",".join(f"{key!r}:{fingerprint(item, depth + 1) or '?'}" for key, item in value.items()) + "}"
    return None


def _compare_attributes(before: dict[str, str], after: dict[str, str]) -> None:
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            raise Refused(
                f"`{name}` changed by computing a gradient, and would be different on each executor; keep what must be remembered in a buffer "
                "(register_buffer) or compute it from the step"
            )
