"""Schedulers of learning rates: which are taken, and whether what one remembers can be carried along. Steps them, and computes nothing."""

from __future__ import annotations

import re
from typing import Any

from ebb import attributes
from ebb.job import Job
from ebb.refuse import Refused, user_code
from ebb.several import Several, SeveralSchedulers, each

# What torch keeps on a scheduler and makes anew: the optimizer, which is in the replica, what is in its groups, and notes of calls.
ATTRIBUTES_OF_TORCH = frozenset({"optimizer", "_last_lr", "_step_count", "_get_lr_called_within_step", "_initial_step", "_is_initial"})


def make(job: Job, optimizer: Any, built_in_rates: list[float] | None) -> Any:
    """The scheduler that the job gives, or None."""
    optimizers = list(each(optimizer))
    with user_code("scheduler()"):
        given = job.scheduler(optimizers if isinstance(optimizer, Several) else optimizer)
    if given is None:
        return None
    schedulers = list(given) if isinstance(given, (list, tuple)) else [given]
    for scheduler in schedulers:
        if type(scheduler).__name__ == "ReduceLROnPlateau":
            raise Refused("the scheduler ReduceLROnPlateau looks at a measured loss, which executors do not share; use one of steps")
        if not hasattr(scheduler, "step") or not hasattr(scheduler, "state_dict"):
            raise Refused(f"scheduler() returned a {type(scheduler).__name__}; it must return a torch learning-rate scheduler")
        inner = getattr(scheduler, "optimizer", optimizers[0])
        if not any(getattr(inner, "optimizer", inner) is one for one in optimizers):
            raise Refused("scheduler() returned one of another optimizer than optimizer() did; make it of the optimizer that it is given")
    if built_in_rates is not None:
        raise Refused(
            "a scheduler of your own needs an optimizer of your own: write `optimizer(self, model)`, or use the job file's `schedule:`"
        )
    return schedulers[0] if len(schedulers) == 1 else SeveralSchedulers(schedulers)


def step(scheduler: Any, look: bool) -> None:
    """Steps it; who is to `look` refuses one that remembers what it does not tell."""
    each_scheduler = scheduler.schedulers if isinstance(scheduler, SeveralSchedulers) else [scheduler]
    before = [_remembered(one) for one in each_scheduler] if look else []
    with user_code("the scheduler's step"):
        scheduler.step()
    for one, held in zip(each_scheduler, before):
        now = _remembered(one)
        told = set(one.state_dict())
        for name in sorted(held.keys() | now.keys()):
            if held.get(name) != now.get(name) and re.split(r"[.\[]", name)[0] not in told:
                raise Refused(
                    f"the scheduler {type(one).__name__} changed its attribute `{name}`, which its state_dict() does not tell, so it would be "
                    "lost when training moves; add it to state_dict() and load_state_dict()"
                )


def _remembered(scheduler: Any) -> dict[str, str]:
    return attributes.snapshot([("", scheduler)], leave_out=ATTRIBUTES_OF_TORCH)
