"""Reads batches ahead in processes of torch's DataLoader: those that the executor says are next, and on along the same ranks.

Where another batch is asked for, reading begins anew there. What a batch holds never depends on it.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator

import torch

from ebb import numerics
from ebb.refuse import NonFinite, OutOfMemory, Refused, UserError, describe

Key = tuple[int, int]
ALLOWED = {"num_workers", "pin_memory", "prefetch_factor", "multiprocessing_context", "timeout"}
FAILURES = {"refused": Refused, "nonfinite": NonFinite, "memory": OutOfMemory}


class Plan:
    """The (rank, step) to come, without end: every rank of a step, then of the next."""

    def __init__(self) -> None:
        self.step, self.place, self.ranks = 0, 0, [0]

    def __iter__(self) -> Iterator[Key]:
        step, place, ranks = self.step, self.place, list(self.ranks)
        while True:
            yield ranks[place], step
            place += 1
            if place == len(ranks):
                step, place = step + 1, 0


class Failure:
    """What went wrong in a loader's process; raised there, it would arrive as another exception."""

    def __init__(self, error: BaseException) -> None:
        self.said = describe(error)

    def error(self) -> Exception:
        kind, what = self.said["kind"], self.said["what"]
        return FAILURES[kind](what) if kind in FAILURES else UserError(what, self.said.get("traceback", what))


class Batches:
    """A dataset whose rows are whole batches."""

    def __init__(self, fetch: Callable[[int, int], Any]) -> None:
        self.fetch = fetch

    def __getitem__(self, key: Key) -> Any:
        try:
            return self.fetch(*key)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told in its own words
            return Failure(error)


class ReadAhead:
    """`fetch(rank, step)`, from processes that have it already wherever it was foreseen."""

    def __init__(self, fetch: Callable[[int, int], Any], options: dict[str, Any]) -> None:
        self.plan = Plan()
        self.batches = Batches(fetch)
        self.chosen = {name: value for name, value in options.items() if name in ALLOWED and value is not None}
        self.loader: Any = None
        self.ahead: Iterator[Any] | None = None
        self.next: Iterator[Key] = iter(self.plan)
        self.expected: Key | None = None

    def expect(self, ranks: list[int], step: int) -> None:
        """These ranks are asked for next, in this order, from this step on: reading them begins."""
        if ranks and (self.expected != (ranks[0], step) or self.plan.ranks != ranks):
            self._begin(ranks, step, 0)

    def fetch(self, rank: int, step: int) -> Any:
        """The batch of this rank and step."""
        if self.expected != (rank, step):
            ranks = self.plan.ranks if rank in self.plan.ranks else [rank]
            self._begin(ranks, step, ranks.index(rank))
        assert self.ahead is not None
        try:
            found = next(self.ahead)
        except BaseException:
            self.expected = None
            raise
        self.expected = next(self.next)
        if isinstance(found, Failure):
            raise found.error()
        return found

    def _begin(self, ranks: list[int], step: int, place: int) -> None:
        self.plan.ranks, self.plan.step, self.plan.place = list(ranks), step, place
        self.expected = None
        if self.loader is None:
            self.loader = torch.utils.data.DataLoader(
                self.batches,  # type: ignore[arg-type]
                batch_size=None,
                sampler=self.plan,  # type: ignore[arg-type]
                collate_fn=as_it_is,
                persistent_workers=True,
                worker_init_fn=start,
                **self.chosen,
            )
        self.ahead = iter(self.loader)
        self.next = iter(self.plan)
        self.expected = next(self.next)


def as_it_is(batch: Any) -> Any:
    """A batch is one already."""
    return batch


def start(_worker: int) -> None:
    """What a loader's process does first; a function of a module, so that it can be sent to a process that is not forked."""
    from ebb.worker import die_with_parent

    die_with_parent()
    numerics.configure(1, "cpu")  # one that was not forked knows nothing of its parent's settings
