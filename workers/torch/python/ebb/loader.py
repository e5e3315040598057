"""Reads batches ahead in processes of torch's DataLoader: those that the executor says are next, and on along the same turns.

Where another batch is asked for, reading begins anew there. What a batch holds never depends on it.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator

import torch

from ebb import numerics
from ebb.refuse import NonFinite, OutOfMemory, Refused, UserError, describe

#: The ranks whose rows are read together.
Turn = tuple[int, ...]
Key = tuple[Turn, int]
ALLOWED = {"num_workers", "pin_memory", "prefetch_factor", "multiprocessing_context", "timeout"}
FAILURES = {"refused": Refused, "nonfinite": NonFinite, "memory": OutOfMemory}


class Plan:
    """The (turn, step) to come, without end: every turn of a step, then of the next."""

    def __init__(self) -> None:
        self.step, self.place, self.turns = 0, 0, [(0,)]

    def __iter__(self) -> Iterator[Key]:
        step, place, turns = self.step, self.place, list(self.turns)
        while True:
            yield turns[place], step
            place += 1
            if place == len(turns):
                step, place = step + 1, 0


class Failure:
    """What went wrong in a loader's process; raised there, it would arrive as another exception."""

    def __init__(self, error: BaseException) -> None:
        self.said = describe(error)

    def error(self) -> Exception:
        kind, what = self.said["kind"], self.said["what"]
        return FAILURES[kind](what) if kind in FAILURES else UserError(what, self.said.get("traceback", what))


class Batches:
    """A dataset whose rows are all that is for one gradient."""

    def __init__(self, fetch: Callable[[Turn, int], Any]) -> None:
        self.fetch = fetch

    def __getitem__(self, key: Key) -> Any:
        try:
            return self.fetch(*key)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told in its own words
            return Failure(error)


class ReadAhead:
    """`fetch(turn, step)`, from processes that have it already wherever it was foreseen."""

    def __init__(self, fetch: Callable[[Turn, int], Any], options: dict[str, Any]) -> None:
        self.plan = Plan()
        self.batches = Batches(fetch)
        self.chosen = {name: value for name, value in options.items() if name in ALLOWED and value is not None}
        self.loader: Any = None
        self.ahead: Iterator[Any] | None = None
        self.next: Iterator[Key] = iter(self.plan)
        self.expected: Key | None = None

    def expect(self, turns: list[Turn], step: int) -> None:
        """These turns are asked for next, in this order, from this step on: reading them begins."""
        if turns and (self.expected != (turns[0], step) or self.plan.turns != turns):
            self._begin(turns, step, 0)

    def fetch(self, turn: Turn, step: int) -> Any:
        """What this turn reads in this step."""
        if self.expected != (turn, step):
            turns = self.plan.turns if turn in self.plan.turns else [turn]
            self._begin(turns, step, turns.index(turn))
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

    def _begin(self, turns: list[Turn], step: int, place: int) -> None:
        self.plan.turns, self.plan.step, self.plan.place = list(turns), step, place
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
