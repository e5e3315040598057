"""Reads batches ahead in processes of torch's DataLoader. Foresees only that the ranks asked for in one step are asked for in the next;
where it was wrong, a step's batches are fetched on the spot and it begins anew. What a batch holds never depends on it.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Iterator

import torch

Key = tuple[int, int]
ALLOWED = {"num_workers", "pin_memory", "prefetch_factor", "multiprocessing_context", "timeout"}


class Plan:
    """The (rank, step) to come, without end: every rank of a step, then of the next."""

    def __init__(self) -> None:
        self.step, self.ranks = 0, [0]

    def __iter__(self) -> Iterator[Key]:
        step = self.step
        while True:
            for rank in self.ranks:
                yield rank, step
            step += 1


class Batches:
    """A dataset whose rows are whole batches."""

    def __init__(self, fetch: Callable[[int, int], Any]) -> None:
        self.fetch = fetch

    def __getitem__(self, key: Key) -> Any:
        return self.fetch(*key)


class ReadAhead:
    """`fetch(rank, step)`, from processes that have it already wherever it was foreseen."""

    def __init__(self, fetch: Callable[[int, int], Any], options: dict[str, Any]) -> None:
        self.fetch_here, self.plan = fetch, Plan()
        chosen = {name: value for name, value in options.items() if name in ALLOWED and value is not None}
        # The workers compute with as many threads as this process, since that may decide bits of an augmentation.
        self.loader = torch.utils.data.DataLoader(
            Batches(fetch),
            batch_size=None,
            sampler=self.plan,  # type: ignore[arg-type]
            collate_fn=_as_it_is,
            persistent_workers=True,
            worker_init_fn=_Start(torch.get_num_threads()),
            **chosen,
        )
        self.ahead: Iterator[Any] | None = None
        self.expected: Key | None = None
        self.step: int | None = None
        self.ranks: list[int] = []

    def fetch(self, rank: int, step: int) -> Any:
        """The batch of this rank and step."""
        previous_step, previous_ranks = self.step, self.ranks
        if step != self.step:
            self.step, self.ranks = step, []
        self.ranks = [*self.ranks, rank]
        if self.ahead is None or self.expected != (rank, step):
            self.ahead = None
            if previous_step is None or step != previous_step + 1 or previous_ranks[:1] != [rank]:
                return self.fetch_here(rank, step)
            self.plan.step, self.plan.ranks = step, previous_ranks
            self.ahead = iter(self.loader)
        place = self.plan.ranks.index(rank) + 1
        self.expected = (self.plan.ranks[place], step) if place < len(self.plan.ranks) else (self.plan.ranks[0], step + 1)
        return next(self.ahead)


def _as_it_is(batch: Any) -> Any:
    return batch


class _Start:
    """What a loader's process does first; a class, so that it can be sent to a process that is not forked."""

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def __call__(self, _worker: int) -> None:
        from ebb.worker import die_with_parent

        die_with_parent()
        torch.set_num_threads(self.threads)
        socket = os.environ.get("EBB_TORCH_FD")
        if socket is not None:  # only the worker itself may keep the conversation open
            try:
                os.close(int(socket))
            except OSError:
                pass
