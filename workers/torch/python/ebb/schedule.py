"""The learning rate's factor of a step, as the service computes it; only `ebb.run` needs it, a worker is told."""

from __future__ import annotations

import math
from typing import Any

from ebb.libm import cos, pow_whole


def factor(schedule: dict[str, Any] | None, step: int, steps_total: int) -> float:
    """Linear warm-up to 1, then the shape from 1 at its first step to its end at the last."""
    schedule = schedule or {}
    warmup, kind = int(schedule.get("warmup_steps", 0)), schedule.get("kind", "constant")
    if step < warmup:
        return (step + 1) / warmup
    after = step - warmup
    last = max(0, max(0, steps_total - warmup) - 1)
    progress = 0.0 if last == 0 else min(after / last, 1.0)
    floor = float(schedule.get("floor", 0.0))
    if kind == "step":
        return pow_whole(float(schedule.get("factor", 0.1)), after // max(1, int(schedule.get("every_steps", 1))))
    if kind == "cosine":
        return floor + (1.0 - floor) * 0.5 * (1.0 + cos(math.pi * progress))
    if kind == "linear":
        return 1.0 + (floor - 1.0) * progress
    return 1.0
