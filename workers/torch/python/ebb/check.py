"""The self-check: is a gradient a function of (replica, batch, rank, step) alone? Run once per program, before the first step.

Gradients of rank 0 and 1 of one batch are computed in the order 0, 1, 1, 0. Whatever remembers shows: as a difference, or as
an attribute of a module that differs after two equal forwards.
"""

from __future__ import annotations

import copy
import hashlib
from typing import Any

from ebb.attributes import changed, snapshot
from ebb.program import Program
from ebb.refuse import Refused
from ebb.tensors import raw_bytes

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
    held = snapshot(program.job, program.model) if thorough else {}
    second = _gradient(program, 1, batch, rows)
    program.gradient_digest = hashlib.sha256(first + second).hexdigest()
    if thorough:
        second_again = _gradient(program, 1, batch, rows)
        first_again = _gradient(program, 0, batch, rows)
        name = changed(held, snapshot(program.job, program.model))
        if name is not None:
            raise Refused(
                f"`{name}` changed by computing a gradient, and would be different on each executor; keep what must be "
                "remembered in a buffer "
                "(register_buffer) or compute it from the step"
            )
        written = [name for name, digest in _slot_digests(program).items() if replica[name] != digest]
        if written:
            raise Refused(
                f"`{written[0]}` changed while a gradient was computed; parameters and state() may change in the "
                "optimizer and in on_step() only"
            )
        _evaluation(program)
        for now, before in ((second_again, second), (first_again, first)):
            if now != before:
                raise Refused(
                    f"your model's gradient is not a function of the model, the batch and the seed: computed twice it differs; {ADVICE}"
                )
    program.gradient_segment.bytes.zero_()


def _batch(program: Program) -> tuple[Any, int]:
    settings = program.settings
    if program.data.steps_per_epoch is None:
        rows = settings.batch_size if not settings.rows else min(settings.batch_size, settings.rows)
        program.data.invent(rows, program.seed)
        batch, rows = program.data.batch(0, 0, rows)
        return copy.deepcopy(batch), rows
    return program.data.batch(0, 0)


def _evaluation(program: Program) -> None:
    """Tries an evaluation, so that its mistakes show before the first step; each executor evaluates other rows, so it may leave nothing."""
    settings = program.settings
    own = program.parts.held_out
    if own is None and settings.sample is None and settings.held_out_sample is None or not settings.spec.get("evaluation"):
        return
    replica, held = _slot_digests(program), snapshot(program.job, program.model)
    rows = min(settings.batch_size, settings.rows or settings.batch_size)
    if own is None:
        program.shared_batches().invent(rows, program.seed)
    program.evaluate(0, 0, rows)
    now = _slot_digests(program)
    written = [name for name, digest in now.items() if replica[name] != digest]
    name = written[0] if written else changed(held, snapshot(program.job, program.model))
    if name is not None:
        raise Refused(
            f"`{name}` changed in an evaluation, and would be different on each executor, since each evaluates other rows; "
            "evaluate() may only compute"
        )


def _gradient(program: Program, rank: int, batch: Any, rows: int) -> bytes:
    # A copy, because user code may change its batch in place.
    weight, loss = program.compute(rank, 0, copy.deepcopy(batch), rows, allow_nonfinite=True)
    digest = hashlib.sha256(raw_bytes(program.gradient_segment.bytes))
    digest.update(f"{weight.hex()} {loss.hex()}".encode())
    return digest.digest()


def _slot_digests(program: Program) -> dict[str, bytes]:
    slots = [*program.trainable_slots, *program.frozen_slots, *program.state_slots]
    return {slot.name: hashlib.blake2b(raw_bytes(slot.view(program.replica))).digest() for slot in slots}
