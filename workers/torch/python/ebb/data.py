"""Batches: of an Ebb dataset from the shared segment, of a user's own dataset by the sampler. Whatever of the user's runs here
finds its generators seeded, so that a batch is the same wherever it is made."""

from __future__ import annotations

import time
from typing import Any

import torch

from ebb import seeds
from ebb.collator import Collator, Rows
from ebb.job import Job
from ebb.loader import ALLOWED, ReadAhead, Turn
from ebb.refuse import Refused, user_code
from ebb.sampler import Sampler
from ebb.segment import Segment

# Processes that read for one executor: a server runs one executor a slot, and each has as many.
WORKERS_MAX = 64
# Places in the segment times counts of rows: few of each, and what is forgotten is only made again.
VIEWS_MAX = 64

#: Batches that make one gradient, in their order, each with its rows.
Batches = list[tuple[Any, int]]


def cut(rows: int, most: int | None) -> list[tuple[int, int]]:
    """The beginning and end of each batch of so many rows at `most`: few, and as long as each other but for a row, since normalisation of a batch of one
    or two rows that are left over would be refused or noise."""
    count = -(-rows // (most or max(rows, 1)))
    return [(rows * part // count, rows * (part + 1) // count) for part in range(count)]


def moved(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on the device; other things stay as they are."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(moved(item, device) for item in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(moved(item, device) for item in batch)
    if isinstance(batch, dict):
        return {name: moved(item, device) for name, item in batch.items()}
    if hasattr(batch, "to"):
        return batch.to(device)
    return batch


class SharedBatches:
    """An Ebb dataset: the executor puts a batch into the segment, labels first, so that everything is aligned. What is for one gradient is cut into
    batches of no more than `most` rows, where that is said."""

    steps_per_epoch: int | None = None

    def __init__(self, sample: dict[str, Any], segment: Segment, job: Job, seed: int, cuda: bool, most: int | None = None) -> None:
        self.sample, self.segment, self.seed, self.cuda, self.job, self.most = sample, segment, seed, cuda, job, most
        # Tensors are a batch already; only a collate() that the user wrote has something to say.
        own = type(job).collate is not Job.collate and not type(job).__module__.startswith("ebb.")
        self.collate = job.collate if own else job.__dict__.get("_collate")
        self.ahead: Collator | None = None
        self.viewed: dict[tuple[int, int], tuple[torch.Tensor, ...]] = {}

    def call_ahead(self, threads: int, hidden: list[torch.Tensor]) -> None:
        """From now on collate() is called ahead where that can be done: by one thread, since another number of them may decide bits and a forked
        process can have no more. Memory that is `hidden` is out of reach for it then."""
        if self.collate is None or threads > 1:
            return
        loader = self.job.loader
        self.ahead = Collator(self._all_made, self.job, loader.get("num_workers") if isinstance(loader, dict) else None)
        for tensor in hidden:
            self.ahead.hide(tensor)

    def batch(self, rank: int, step: int, rows: int) -> tuple[Any, int]:
        """The batch that is in the segment from its beginning on, as views of it, or what collate() makes of it."""
        if rows == 0:
            return None, 0
        return self._made(Rows(rank, step, 0, rows, 0), 0, (0, rows), False), rows

    def batches(self, ranks: Turn, step: int, rows: int, start: int = 0, number: int = 0) -> Batches:
        """What is in the segment from this byte on: the rows of these ranks, one after the other."""
        asked = Rows(ranks[0], step, start, rows, number)
        found = self.ahead.batch(asked) if self.ahead is not None and number and rows else self._all_made(asked, False)
        return [(batch, end - begin) for batch, (begin, end) in zip(found, cut(rows, self.most))]

    def begin(self, following: Rows | None) -> None:
        """What is asked for next lies there already."""
        if self.ahead is not None and following is not None:
            self.ahead.begin(following)

    def waited_us(self) -> int:
        """For how long batches that were begun ahead were waited for since this was asked last."""
        return self.ahead.waited_us() if self.ahead is not None else 0

    def _all_made(self, rows: Rows, apart: bool) -> list[Any]:
        return [self._made(rows, part, place, apart) for part, place in enumerate(cut(rows.count, self.most))]

    def _made(self, rows: Rows, part: int, place: tuple[int, int], apart: bool) -> Any:
        """The batch of the rows at this place among them, which is this part of them."""
        batch, _ = self.tensors(rows.count, rows.start)
        begin, end = place
        if end - begin < rows.count:
            batch = batch[begin:end] if isinstance(batch, torch.Tensor) else tuple(tensor[begin:end] for tensor in batch)
        if self.collate is None:
            return batch
        if apart:  # collate() may write into it, and there has to be another try
            batch = batch.clone() if isinstance(batch, torch.Tensor) else _copied(*batch)
        seeds.set_all(seeds.key_of_part(self.seed, "collate", rows.step, rows.rank, part), self.cuda and not apart)
        with user_code("collate()"):
            return self.collate(batch)

    def tensors(self, rows: int, start: int = 0) -> tuple[Any, int]:
        """The segment's tensors, which are the caller's to keep and to mark."""
        found = self.viewed.get((rows, start))
        if found is None:
            if len(self.viewed) >= VIEWS_MAX:
                self.viewed.clear()
            found = self.viewed[rows, start] = self._views(rows, start)
        views = [view.detach() for view in found]
        return (views[0] if len(views) == 1 else tuple(views)), rows

    def _views(self, rows: int, start: int) -> tuple[torch.Tensor, ...]:
        if self.sample["kind"] == "tokens":
            return (self._view(start, torch.int64, (rows, self.sample["length"])),)
        shape = tuple(self.sample["shape"])
        return self._view(start + rows * 8, torch.float32, (rows, *shape)), self._view(start, torch.int64, (rows,))

    def _view(self, start: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        count = 1
        for size in shape:
            count *= size
        end = start + count * dtype.itemsize
        if end > self.segment.size:
            raise ValueError(f"a batch of {shape} needs {end} bytes, and the segment has {self.segment.size}")
        return self.segment.bytes[start:end].view(dtype).view(shape)

    def invent(self, rows: int, seed: int) -> None:
        """A batch for the self-check: values of no meaning, the same everywhere."""
        generator = torch.Generator().manual_seed(seeds.key(seed, "invent"))
        if self.sample["kind"] == "tokens":
            tokens = self._view(0, torch.int64, (rows, self.sample["length"]))
            tokens.random_(0, max(1, self.sample["vocabulary"]), generator=generator)
            return
        (features, labels), _ = self.tensors(rows)
        features.normal_(generator=generator)
        labels.random_(0, max(1, self.sample["classes"]), generator=generator)


def _copied(features: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies that begin where those do within a cache line: labels first, then features, as in the segment."""
    label_bytes = labels.numel() * labels.element_size()
    memory = torch.empty(label_bytes + features.numel() * features.element_size(), dtype=torch.uint8)
    made = memory[label_bytes:].view(features.dtype).view(features.shape), memory[:label_bytes].view(labels.dtype)
    made[0].copy_(features)
    made[1].copy_(labels)
    return made


class OwnBatches:
    """A user's map-style dataset: each sample's fetch is seeded by (epoch, row), the collator by (step, rank). `purpose` tells the
    chance of held-out rows from that of others; they are read when they are asked for, since nobody says which come next. What is for one gradient is
    cut into batches of no more than `most` rows, where that is said; where it is of all the ranks that are hosted, these are one turn (`together`)."""

    def __init__(
        self, job: Any, dataset: Any, sampler: Sampler, seed: int, purpose: str = "", together: bool = False, most: int | None = None
    ) -> None:
        self.job, self.dataset, self.sampler, self.seed, self.purpose = job, dataset, sampler, seed, purpose
        self.together, self.most = together, most
        self.steps_per_epoch = sampler.steps_per_epoch
        options = _options(job.loader)
        if job.device != "cuda":
            options.pop("pin_memory", None)  # there is nothing to copy to
        self.ahead = ReadAhead(self.fetch, options) if options.get("num_workers") and not purpose else None

    def __getstate__(self) -> dict[str, Any]:
        """For a loader's process that is not forked: it fetches, and has no loader of its own."""
        return {**self.__dict__, "ahead": None}

    def expect(self, ranks: list[int], step: int) -> None:
        """These ranks are asked for next, from this step on."""
        if self.ahead is not None:
            with user_code("the dataset's loader"):
                self.ahead.expect([tuple(ranks)] if self.together and ranks else [(rank,) for rank in ranks], step)

    def batch(self, rank: int, step: int) -> tuple[Any, int]:
        """One rank's batch, and its rows."""
        found = self.batches((rank,), step)
        return found[0] if found else (None, 0)

    def batches(self, ranks: Turn, step: int) -> Batches:
        """The rows of these ranks, one after the other; read ahead where the job asks for that."""
        if self.ahead is None:
            return self.fetch(ranks, step)
        with user_code("the dataset's loader"):
            return self.ahead.fetch(ranks, step)

    def fetch(self, ranks: Turn, step: int) -> Batches:
        """Fetches and collates."""
        found = [self.sampler.rows_of(step, rank) for rank in ranks]
        epoch, rows = found[0][0], [row for _, of_rank in found for row in of_rank]
        places = enumerate(cut(len(rows), self.most))
        return [(self.made(epoch, rows[begin:end], ranks[0], step, part), end - begin) for part, (begin, end) in places]

    def made(self, epoch: int, rows: list[int], rank: int, step: int, part: int = 0) -> Any:
        """The batch of these rows, as this rank, or the first of several, reads them in this step. With one thread: a loader's process can have no
        more, and their number may decide bits."""
        threads = torch.get_num_threads()
        if threads > 1:
            torch.set_num_threads(1)
        try:
            samples = []
            with user_code("the dataset's `__getitem__`"):
                for row in rows:
                    seeds.set_all(seeds.key(self.seed, f"{self.purpose}sample", epoch, row))
                    samples.append(self.dataset[row])
            seeds.set_all(seeds.key_of_part(self.seed, f"{self.purpose}collate", step, rank, part))
            with user_code("collate()"):
                return self.job.collate(samples)
        finally:
            if threads > 1:
                torch.set_num_threads(threads)


def _options(given: Any) -> dict[str, Any]:
    """What `loader` says, or a refusal."""
    if given is not None and not isinstance(given, dict):
        raise Refused(f"`loader` is a {type(given).__name__}; it must be a dict of DataLoader's arguments, such as {{'num_workers': 2}}")
    options = dict(given or {})
    unknown = sorted(set(options) - ALLOWED)
    if unknown:
        why = "no process of it runs code of yours before the dataset's" if unknown[0] == "worker_init_fn" else "Ebb chooses which rows make a batch"
        raise Refused(
            f"`loader` gives `{unknown[0]}` to the DataLoader, and {why}; it may say {', '.join(sorted(ALLOWED))}"
        )
    workers = options.get("num_workers") or 0
    if not isinstance(workers, int) or not 0 <= workers <= WORKERS_MAX:
        raise Refused(f"`loader` asks for num_workers={workers!r}; it must be a whole number from 0 to {WORKERS_MAX}, of each executor")
    return options


def rows_of(dataset: Any) -> int:
    """The length of a map-style dataset, or a refusal."""
    if isinstance(dataset, torch.utils.data.IterableDataset) or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise Refused(
            f"the dataset {type(dataset).__name__} can only be iterated; Ebb reads rows by number, so that any executor can read any: "
            "give it `__len__` and `__getitem__`"
        )
    with user_code("the dataset's `__len__`"):
        rows = len(dataset)
    if rows == 0:
        raise Refused(f"the dataset {type(dataset).__name__} has no rows")
    return rows


class Stopwatch:
    """Microseconds since it was made."""

    def __init__(self) -> None:
        self.start = time.perf_counter()

    def elapsed_us(self) -> int:
        return int((time.perf_counter() - self.start) * 1e6)
