"""What the user's loss() and evaluate() returned: taken apart, or refused with what they must return. Computes nothing."""

from __future__ import annotations

from typing import Any

import torch

from ebb import guard
from ebb.refuse import Refused

# As many as travel with each logical worker's result, and stand in the log.
NAMES_MAX, NAME_BYTES_MAX, COUNT_MAX = 16, 48, 1 << 40


def number(weight: Any) -> float:
    """A weight as a number of this process."""
    return float(weight.detach() if isinstance(weight, torch.Tensor) else weight)


def pair(returned: Any) -> tuple[torch.Tensor, Any]:
    """The loss, without dimensions, and its weight."""
    guard.check_no_group()
    if not (isinstance(returned, (tuple, list)) and len(returned) == 2):
        raise Refused(
            f"loss() returned a {type(returned).__name__}; it must return two things: the loss summed over the rows, and their weight"
        )
    loss, weight = returned
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise Refused("loss() must return the summed loss as a tensor of one element")
    if not loss.requires_grad:
        raise Refused("the loss that loss() returned depends on no trainable parameter (was it detached, or computed under no_grad?)")
    if not isinstance(weight, (int, float)) and not (hasattr(weight, "numel") and weight.numel() == 1):
        raise Refused(f"loss() returned a {type(weight).__name__} as the weight; it must be a number, usually the count of rows")
    return loss if loss.ndim == 0 else loss.reshape(()), weight


def sums(returned: Any) -> tuple[dict[str, float], int]:
    """Sums by name, and what to divide them by."""
    if not (isinstance(returned, (tuple, list)) and len(returned) == 2 and isinstance(returned[0], dict)):
        raise Refused("evaluate() must return two things: a dict of sums by name, and the count to divide them by")
    named, count = returned
    if len(named) > NAMES_MAX:
        raise Refused(f"evaluate() returned {len(named)} names; {NAMES_MAX} at most are kept")
    for name in named:
        if not isinstance(name, str) or not 1 <= len(name.encode()) <= NAME_BYTES_MAX or not name.isprintable():
            raise Refused(f"evaluate() returned a sum by the name {name!r}; names are printable texts of 1 to {NAME_BYTES_MAX} bytes")
    found = {}
    for name, value in named.items():
        if not isinstance(value, (int, float)) and not (hasattr(value, "numel") and value.numel() == 1):
            raise Refused(f"evaluate() returned a {type(value).__name__} as `{name}`; it must be a number, summed over the rows")
        found[name] = float(value)
    if not 0 <= int(count) <= COUNT_MAX:
        raise Refused(f"evaluate() returned the count {count}; it must be what the sums are divided by, from 0")
    return found, int(count)
