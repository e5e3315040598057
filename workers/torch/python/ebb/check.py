"""The self-check: is a gradient a function of (replica, batch, rank, step) alone? Run once per program, before the first step.

Gradients of rank 0 and 1 of one batch are computed in the order 0, 1, 1, 0. Whatever remembers shows: as a difference, or as
an attribute that differs after two equal forwards. A second process (`twin`) computes them in the order 1, 0, and says what it `observed`.
"""

from __future__ import annotations

import copy
import hashlib
from typing import Any

from ebb import repeats
from ebb.attributes import changed
from ebb.data import Batches, SharedBatches
from ebb.program import Program
from ebb.refuse import Refused
from ebb.tensors import raw_bytes

ADVICE = "look for a random generator of its own, a counter, a cache or a running value kept in an attribute; keep such values in buffers"
ROWS_ADVICE = repeats.ADVICE


def run(program: Program, thorough: bool) -> None:
    """Refuses what is not repeatable, and gives the program the digest of its gradients for its numeric class."""
    batches = repeats.look(program, again=True) if thorough else {}
    batch = _batch(program)
    _prepare(program, batch[0][0])
    replica = _slot_digests(program) if thorough else {}
    first = _gradient(program, 0, batch)
    program.gradients.seen()
    named = _gradient_digests(program) if thorough else {}
    held = program.remembered() if thorough else {}
    second = _gradient(program, 1, batch)
    program.gradient_digest = hashlib.sha256(first + second).hexdigest()
    if thorough:
        program.observed = _observed(program, replica, batches, named)
        second_again = _gradient(program, 1, batch)
        first_again = _gradient(program, 0, batch)
        name = changed(held, program.remembered())
        if name is not None:
            raise Refused(
                f"`{name}` changed by computing a gradient, and would be different on each executor; "
                f"{_of_metric(program, name) or 'keep what must be remembered in a buffer (register_buffer) or compute it from the step'}"
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


def observed(program: Program) -> dict[str, Any]:
    """What a second process finds, by everything in the opposite order."""
    batches = repeats.look(program, again=False)
    batch = _batch(program)
    _prepare(program, batch[0][0])
    replica = _slot_digests(program)
    second = _gradient(program, 1, batch)
    first = _gradient(program, 0, batch)
    program.gradient_digest = hashlib.sha256(first + second).hexdigest()
    return _observed(program, replica, batches, _gradient_digests(program))


def _observed(program: Program, replica: dict[str, bytes], batches: dict[str, str], gradients: dict[str, str]) -> dict[str, Any]:
    numeric_class = program.numeric_class()
    # Last, for where only other gradients say that something differs: those of rank 1, and loss and weight.
    gradients = {**gradients, "loss()": numeric_class.pop("gradient")}
    return {"values": {name: digest.hex() for name, digest in replica.items()}, "batches": batches, "gradients": gradients, "class": numeric_class}


def _gradient_digests(program: Program) -> dict[str, str]:
    return {name: hashlib.blake2b(raw_bytes(view)).hexdigest() for (name, _), view in zip(program.trainable, program.place.views)}


def _prepare(program: Program, batch: Any) -> None:
    prepare = getattr(program.job, "prepare", None)
    if prepare is not None:
        prepare(program, copy.deepcopy(batch))


def _batch(program: Program) -> Batches:
    """What one logical worker computes a gradient of; where that is of several, what two do: their batch is of another size."""
    settings = program.settings
    ranks = tuple(range(min(2, settings.hosted_max or 1)))
    if isinstance(program.data, SharedBatches):
        rows = min(settings.batch_size * len(ranks), settings.rows or settings.batch_size * len(ranks))
        program.data.invent(rows, program.seed)
        return copy.deepcopy(program.data.batches(ranks, 0, rows))
    return program.data.batches(ranks, 0)


def _evaluation(program: Program) -> None:
    """Tries an evaluation, so that its mistakes show before the first step; each executor evaluates other rows, so it may leave nothing."""
    settings = program.settings
    own = program.parts.held_out
    if own is None and settings.sample is None and settings.held_out_sample is None or not settings.spec.get("evaluation"):
        return
    replica, held = _slot_digests(program), program.remembered()
    rows = min(settings.batch_size, settings.rows or settings.batch_size)
    if own is None:
        program.shared_batches().invent(rows, program.seed)
    program.evaluate(0, 0, rows)
    now = _slot_digests(program)
    written = [name for name, digest in now.items() if replica[name] != digest]
    name = written[0] if written else changed(held, program.remembered())
    if name is not None:
        raise Refused(
            f"`{name}` changed in an evaluation, and would be different on each executor, since each evaluates other rows; "
            f"{_of_metric(program, name) or 'an evaluation may only compute'}"
        )


def _of_metric(program: Program, name: str) -> str | None:
    """What to do where a metric object of torchmetrics is what remembers; none where something else does."""
    named = [(f"{path}.", module) for path, module in program.model.named_modules() if path]
    named += [(f"{type(program.job).__name__}.{key}.", value) for key, value in vars(program.job).items()]
    held = any(name.startswith(path) and any(kind.__module__.startswith("torchmetrics.") for kind in type(value).__mro__) for path, value in named)
    return "a metric object adds up what it has seen; compute the batch's own by torchmetrics.functional, and Ebb adds it up over rows" if held else None


def _gradient(program: Program, rank: int, batch: Batches) -> bytes:
    # A copy, because user code may change its batch in place.
    weight, loss = program.compute((rank,), 0, copy.deepcopy(batch), allow_nonfinite=True)
    digest = hashlib.sha256(raw_bytes(program.gradient_segment.bytes))
    digest.update(f"{weight.hex()} {loss.hex()}".encode())
    return digest.digest()


def _slot_digests(program: Program) -> dict[str, bytes]:
    slots = [*program.trainable_slots, *program.frozen_slots, *program.state_slots]
    return {slot.name: hashlib.blake2b(raw_bytes(slot.view(program.replica))).digest() for slot in slots}
