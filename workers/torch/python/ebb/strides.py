"""An update that takes several steps at once (`batch_range` of the job file): learning rates, Adam's averages and its count for that update alone. Knows
optimizers, nothing of what they update.

What is scaled is put back as it was, the same objects, so the replica holds what the job's optimizer and schedulers said, whatever updates led there.
"""

from __future__ import annotations

import contextlib
from typing import Any, Iterator

import torch

from ebb.refuse import Refused
from ebb.several import each

#: Those whose `betas` are of two averages and whose `step` corrects their bias, and nothing else. What a class of the user's own makes of either is not known.
ADAMS = (torch.optim.Adam, torch.optim.AdamW)


def check(optimizer: Any, spec: dict[str, Any]) -> None:
    """Refuses an optimizer without a rate to scale where the job file says a rule for it."""
    rule = (spec.get("batch_range") or {}).get("learning_rate_rule", "none")
    for one in each(optimizer):
        for group in one.param_groups:
            rate = group.get("lr")
            if rule != "none" and (isinstance(rate, bool) or not isinstance(rate, (int, float, torch.Tensor))):
                raise Refused(
                    f"`batch_range.learning_rate_rule` is `{rule}`, and the `lr` of the optimizer {type(one).__name__} is {rate!r}, which cannot be "
                    "scaled by it; give the optimizer a number as `lr`, or write `learning_rate_rule: none`"
                )


@contextlib.contextmanager
def taken(optimizer: Any, steps: int, rate_factor: float) -> Iterator[None]:
    """Within it the optimizer's step is that of an update of so many steps, with its rates multiplied by this.

    Adam's β are to the power of the steps, so that averages reach equally far back in samples, and its count is of steps: bias is corrected by the job's β to the
    power of all of them so far, whatever updates took them (decision 30).
    """
    if steps == 1:
        yield
        return
    held = [(group, {key: group[key] for key in ("lr", "betas") if key in group}) for group in optimizer.param_groups]
    if rate_factor != 1.0:
        for group, _ in held:
            group["lr"] = group["lr"] * rate_factor
    adams = [one for one in each(optimizer) if type(one) in ADAMS]
    counted = []
    for one in adams:
        for group in one.param_groups:
            group["betas"] = tuple(beta**steps for beta in group["betas"])
            for parameter in group["params"]:
                if parameter.grad is not None:  # others take no part in this update
                    count = one.state.get(parameter, {}).get("step")
                    counted.append((one.state, parameter, 0.0 if count is None else count.clone()))
                    if count is not None:
                        count.div_(steps)
    try:
        yield
    finally:
        for group, values in held:
            group.update(values)
    for state, parameter, before in counted:
        state[parameter]["step"].fill_(before + steps)
