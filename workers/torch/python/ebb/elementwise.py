"""Whether an optimizer changes each parameter by that one's own gradient and state alone: steps with some gradients, and with others for
every second parameter, must leave the rest with the same bits. Leaves parameters and state to who calls it."""

from __future__ import annotations

import hashlib
from typing import Any, Callable

import torch

from ebb import seeds
from ebb.refuse import Refused, user_code
from ebb.tensors import raw_bytes

# Steps of each trial: what is taken over from one step to the next, as the norm of all parameters is, shows in the second at the latest.
STEPS = 3

Named = list[tuple[str, torch.nn.Parameter]]


def check(optimizer: Any, name: str, parameters: Named, restore: Callable[[], None]) -> None:
    """Refuses one that looks across parameters; `restore` makes parameters and state what they were."""
    if len(parameters) < 2:
        return
    first = _trial(optimizer, name, parameters, restore, (0, 0))
    for kept in (0, 1):
        others = _trial(optimizer, name, parameters, restore, (kept, 1 - kept))
        for index, (parameter, _) in enumerate(parameters):
            if index % 2 == kept and others[index] != first[index]:
                raise Refused(
                    f"the optimizer {name} looks at all parameters together: what it makes of `{parameter}` depends on the gradients of "
                    "others; use one that updates each parameter from its own gradient (to clip by all of them, write `gradient_clip_norm:` "
                    "in the job file)"
                )


def _trial(optimizer: Any, name: str, parameters: Named, restore: Callable[[], None], variants: tuple[int, int]) -> list[bytes]:
    restore()
    for step in range(STEPS):
        for index, (_, p) in enumerate(parameters):
            generator = torch.Generator().manual_seed(seeds.key(step, "optimizer", index, variants[index % 2]))
            p.grad = torch.randn(p.shape, generator=generator).to(p.device, p.dtype)
        seeds.set_all(seeds.key(step, "update"), parameters[0][1].is_cuda)
        with user_code(f"the step of the optimizer {name}"):
            optimizer.step()
    return [hashlib.blake2b(raw_bytes(p)).digest() for _, p in parameters]
