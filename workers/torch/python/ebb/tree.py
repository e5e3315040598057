"""The canonical sum over ranks, the mean and the clip, as the service computes them; only `ebb.run` needs it."""

from __future__ import annotations

import math
from typing import Callable, TypeVar

import torch

BLOCK_ELEMENTS = 4096
LANES = 16
T = TypeVar("T")


def split(count: int) -> int:
    """Where a tree over `count` leaves is cut: the largest power of two below the count."""
    return 1 << (count - 1).bit_length() - 1


def tree(low: int, high: int, leaf: Callable[[int], T], join: Callable[[T, T], T]) -> T:
    """Folds the leaves `low..high` along the tree, left to right, holding at most one value per level."""
    if high - low == 1:
        return leaf(low)
    middle = low + split(high - low)
    left = tree(low, middle, leaf, join)
    return join(left, tree(middle, high, leaf, join))


def sum_of(values: list[float]) -> float:
    """The tree sum of numbers."""
    return tree(0, len(values), values.__getitem__, lambda left, right: left + right) if values else 0.0


def norm(gradient: torch.Tensor) -> float:
    """The L2 norm of a flat f32 tensor: squares in f64, 16 lanes within a block of 4096, then trees."""
    blocks = -(-gradient.numel() // BLOCK_ELEMENTS)
    if blocks == 0:
        return 0.0
    padded = torch.zeros(blocks * BLOCK_ELEMENTS, dtype=torch.float64)
    padded[: gradient.numel()] = gradient.double()
    squares = padded.square_().view(blocks, BLOCK_ELEMENTS // LANES, LANES)
    lanes = torch.zeros(blocks, LANES, dtype=torch.float64)
    for chunk in range(BLOCK_ELEMENTS // LANES):  # in order: a library's sum would choose its own
        lanes += squares[:, chunk]
    while lanes.shape[1] > 1:  # 16 is a power of two, so the tree pairs neighbours at its lowest level
        lanes = lanes[:, 0::2] + lanes[:, 1::2]
    return math.sqrt(sum_of(lanes[:, 0].tolist()))


def divide(gradient: torch.Tensor, weight: float) -> None:
    """The mean; without any weight, zeros."""
    if weight == 0.0:
        gradient.zero_()
    else:
        gradient.div_(torch.tensor(weight, dtype=torch.float32))


def clip(gradient: torch.Tensor, bound: float | None) -> float | None:
    """Keeps the norm within the bound; returns the norm before."""
    if bound is None:
        return None
    found = norm(gradient)
    if found > bound:
        gradient.mul_(torch.tensor(bound / found, dtype=torch.float32))
    return found
