"""Whether batches are a function of (rows, epoch, step, rank, seed) alone: some are made, others between them, and the first ones again.

Looks where rows are read: in a process of the loader if the job has those, so that what a dataset opens when it is first asked is opened
there and nowhere else.
"""

from __future__ import annotations

import functools
import hashlib
import types
from typing import Any, Callable

import torch

from ebb import attributes
from ebb.data import OwnBatches, SharedBatches
from ebb.loader import Failure, as_it_is, start
from ebb.refuse import Refused, user_code

# Rows of a batch that is made for this: what remembers shows on few, and a batch may be thousands of them.
ROWS_MAX = 8
ADVICE = (
    "torch's, NumPy's and Python's own generators are seeded before each row and each batch, so draw from those, and keep nothing from "
    "one row to the next"
)

Batch = Callable[[], Any]


def look(program: Any, again: bool) -> dict[str, str]:
    """The digests of some batches by what they are of; refuses those that are not what they were when they are made `again`. Without that
    they are made in the opposite order."""
    found = {}
    code = program.settings.code
    for name, batches in (("dataset()", program.data), ("held_out()", program.parts.held_out)):
        if isinstance(batches, OwnBatches):
            found.update(_where_rows_are_read(batches, Look(batches, name, code, again)))
        elif isinstance(batches, SharedBatches) and batches.collate is not None:
            rows = min(program.settings.batch_size, program.settings.rows or ROWS_MAX, ROWS_MAX)
            made = [_of_ebb_dataset(batches, program.seed, rank, rows) for rank in (0, 1)]
            found.update(_look(made, "collate()", _roots(program.job, None, code), again))
    return found


class Look:
    """What is done for rows of the job's own; goes to a loader's process where those are read there."""

    def __init__(self, batches: OwnBatches, name: str, code: str | None, again: bool) -> None:
        self.batches, self.name, self.code, self.again = batches, name, code, again

    def __getitem__(self, _: int) -> Any:
        try:
            return self()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told in its own words
            return Failure(error)

    def __call__(self) -> dict[str, str]:
        batches, sampler = self.batches, self.batches.sampler
        epoch, rows = sampler.rows_of(0, 0)
        rows = rows[:ROWS_MAX]
        others = [(rank, step) for rank, step in ((1, 0), (0, 1)) if rank < sampler.workers and step < sampler.steps_per_epoch]
        keys = [(epoch, rows, 0, 0)]
        for rank, step in others:
            keys.append((epoch, sampler.rows_of(step, rank)[1][:ROWS_MAX], rank, step))
        keys.append((epoch + 1, rows, 0, sampler.steps_per_epoch))  # the same rows, of another epoch
        made = [_own(batches, key) for key in keys if key[1]]
        return _look(made, self.name, _roots(batches.job, batches.dataset, self.code), self.again)


def _own(batches: OwnBatches, key: tuple[int, list[int], int, int]) -> Batch:
    return lambda: batches.made(*key)


def _of_ebb_dataset(batches: SharedBatches, seed: int, rank: int, rows: int) -> Batch:
    def made() -> Any:
        batches.invent(rows, seed)  # collate() may have written into the last one
        return batches.batch(rank, 0, rows)[0]

    return made


def _where_rows_are_read(batches: OwnBatches, task: Look) -> dict[str, str]:
    if batches.ahead is None:
        return task()
    context = batches.ahead.chosen.get("multiprocessing_context")
    with user_code("the dataset's loader"):
        loader = torch.utils.data.DataLoader(
            task,  # type: ignore[arg-type]
            batch_size=None,
            sampler=[0],
            num_workers=1,
            collate_fn=as_it_is,
            worker_init_fn=start,
            multiprocessing_context=context,
        )
        (found,) = loader
    if isinstance(found, Failure):
        raise found.error()
    return found


def _roots(job: Any, dataset: Any, code: str | None) -> list[attributes.Root]:
    roots = attributes.of_job(job)
    trainer = job.__dict__.get("_trainer")
    collators = [job.__dict__.get("_collate_rows"), job.__dict__.get("_collate"), getattr(trainer, "data_collator", None)]
    for name, holder in (("dataset", dataset), *(("collate", collator) for collator in collators)):
        if isinstance(holder, (types.FunctionType, types.MethodType, functools.partial)) or not hasattr(holder, "__dict__"):
            roots.append(("", types.SimpleNamespace(**{name: holder})))
        else:
            roots.append((f"{type(holder).__name__}.", holder))
    return [*roots, *attributes.of_code(code)]


def _look(made: list[Batch], name: str, roots: list[attributes.Root], again: bool) -> dict[str, str]:
    keys = [f"{name} {index}" for index in range(len(made))]
    if not again:
        return {key: _digest(batch()) for key, batch in reversed(list(zip(keys, made)))}
    first = {key: _digest(batch()) for key, batch in zip(keys, made)}
    # Caches are filled and files open by now, and the last thing that was read is the same: what still changes is no memory of rows.
    held = attributes.snapshot(roots)
    second = {key: _digest(batch()) for key, batch in zip(keys, made)}
    changed = attributes.changed(held, attributes.snapshot(roots))
    if changed is not None:
        raise Refused(f"`{changed}` changed by making a batch a second time, and would be different on each executor; {ADVICE}")
    if first != second:
        raise Refused(f"the batches of {name} depend on what was read before: made twice, one differs; {ADVICE}")
    return first


def _digest(batch: Any) -> str:
    found = attributes.contents(batch)
    return hashlib.blake2b(repr(sorted(found.items())).encode(), digest_size=16).hexdigest()
