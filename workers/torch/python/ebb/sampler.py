"""Which rows of a user's own dataset which logical worker reads in which step: arithmetic on (seed, epoch), nothing is stored.

The epoch's order: rows sorted by the 64-bit key `mix(base + (row + 1) · 0x9E3779B97F4A7C15)`, then by row, where `base` is
BLAKE2b-64 of `ebb:SEED:order:EPOCH` shifted right by one and `mix` the finalizer of SplitMix64. NumPy only makes it faster.
"""

from __future__ import annotations

import array
import sys

from ebb import seeds

MASK = (1 << 64) - 1
GAMMA, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _key(value: int) -> int:
    value = ((value ^ (value >> 30)) * FIRST) & MASK
    value = ((value ^ (value >> 27)) * SECOND) & MASK
    return value ^ (value >> 31)


def order_in_python(rows: int, base: int) -> list[int]:
    """The definition."""
    return sorted(range(rows), key=lambda row: (_key((base + (row + 1) * GAMMA) & MASK), row))


def order_by_numpy(rows: int, base: int) -> list[int]:
    """The same, some fifty times faster."""
    import numpy

    value = numpy.uint64(base) + numpy.arange(1, rows + 1, dtype=numpy.uint64) * numpy.uint64(GAMMA)
    value = (value ^ (value >> numpy.uint64(30))) * numpy.uint64(FIRST)
    value = (value ^ (value >> numpy.uint64(27))) * numpy.uint64(SECOND)
    return numpy.argsort(value ^ (value >> numpy.uint64(31)), kind="stable").tolist()


class Sampler:
    """Steps of `workers · batch_size` rows; the tail is shorter or left out."""

    def __init__(self, rows: int, workers: int, batch_size: int, seed: int, shuffle: bool, drop_tail: bool) -> None:
        self.rows, self.workers, self.batch_size, self.seed, self.shuffle = rows, workers, batch_size, seed, shuffle
        step_rows = workers * batch_size
        self.steps_per_epoch = rows // step_rows if drop_tail else -(-rows // step_rows)
        self._epoch: int | None = None
        self._order: array.array[int] = array.array("q")

    def order(self, epoch: int) -> array.array[int]:
        """The epoch's order of rows; the last one is kept."""
        if epoch != self._epoch:
            base = seeds.key(self.seed, "order", epoch)
            if not self.shuffle:
                found = list(range(self.rows))
            elif "numpy" in sys.modules:
                found = order_by_numpy(self.rows, base)
            else:
                found = order_in_python(self.rows, base)
            self._epoch, self._order = epoch, array.array("q", found)
        return self._order

    def rows_of(self, step: int, rank: int) -> tuple[int, list[int]]:
        """The epoch of a step, and the rows that this rank reads in it."""
        epoch, within = divmod(step, self.steps_per_epoch)
        start = (within * self.workers + rank) * self.batch_size
        return epoch, list(self.order(epoch)[start : start + self.batch_size])
