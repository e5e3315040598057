"""Runs Ebb, torchrun elastic and torchft one after the other on this machine and says how they stood what was done to them.

    python compare.py --ebb PROGRAM [--runtimes ebb,ebb-none,torchrun,torchft] [--mode default] [--parts changes,bits,tide] [--rounds 3] [--tide-minutes 10]
                      [--hidden 1024] [--rows 256]

One line of JSON for each finding, then tables. See README.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runtimes import SLOTS, Done, Ebb, Peer, Torchft, Torchrun

#: Steps that must be seen after a change before the next. A large model's can be fewer: its steps take seconds.
SETTLED = int(os.environ.get("PEERS_SETTLED", "15"))
#: Longest wait for training to go on: torchrun's own defaults take 45 s to notice a loss. Large models need more.
WAIT_S = float(os.environ.get("PEERS_WAIT_S", "120"))
#: Steps of the runs whose models are compared.
BIT_STEPS = 60
#: Ebb by the determinism of its job.
EBB = {"ebb": "d1", "ebb-none": "none"}
#: Workers during the tide, for equal times.
TIDE = (3, 2, 1, 2, 3, 1)


def said(**finding: Any) -> dict[str, Any]:
    """A finding, printed."""
    finding["load"] = round(os.getloadavg()[0], 1)
    print(json.dumps(finding), flush=True)
    return finding


def until(what: str, there: Callable[[], bool], times: int = 1) -> None:
    """Waits until something is seen."""
    seconds = times * WAIT_S
    end = time.time() + seconds
    while time.time() < end:
        if there():
            return
        time.sleep(0.2)
    raise TimeoutError(f"waited {seconds:.0f} s for {what}, in vain")


def steps_of(done: list[Done]) -> list[tuple[float, int]]:
    """When each step was done first; a step done again counts again."""
    seen, newest = [], None
    for one in done:
        if newest is None or one.step != newest:
            # Of several workers the first says it; an older one's word comes late, and is no step done again.
            if newest is not None and one.step == newest - 1 and seen[-1][0] - one.at > -0.5:
                continue
            seen.append((one.at, one.step))
            newest = one.step
    return seen


def trained_since(runtime: Peer | Ebb, moment: float, workers: int) -> bool:
    """Whether so many workers have each done enough steps since."""
    counts: dict[str, int] = {}
    for one in runtime.done():
        if one.at > moment:
            counts[one.worker] = counts.get(one.worker, 0) + 1
    return sum(count >= SETTLED for count in counts.values()) >= workers


def change(runtime: Peer | Ebb, event: str, act: Callable[[], None], workers: int) -> dict[str, Any]:
    """Does something to a runtime that trains, and says what came of it."""
    moment, discarded = time.time(), runtime.discarded()
    act()
    try:
        until(f"{workers} workers to train after {event}", lambda: trained_since(runtime, moment, workers))
    except TimeoutError as error:
        return said(runtime=runtime.name, event=event, failed=str(error))
    steps = steps_of(runtime.done())
    gaps = [(after[0] - before[0], before[1], after[1]) for before, after in itertools.pairwise(steps) if after[0] > moment - 1]
    usual = statistics.median(after[0] - before[0] for before, after in itertools.pairwise(steps[-40:]))
    longest = max(gap for gap, _, _ in gaps)
    repeated = sum(max(0, before - after + 1) for _, before, after in gaps)
    return said(
        runtime=runtime.name, event=event, pause_s=round(longest - usual, 3), repeated=repeated,
        discarded=None if discarded is None else runtime.discarded() - discarded, step_s=round(usual, 3),
    )  # fmt: skip


def changes(make: Callable[[int], Peer | Ebb], rounds: int) -> list[dict[str, Any]]:
    """Workers come, are killed, are asked to leave."""
    runtime, found, names = make(0), [], (f"w{chr(97 + n % 26)}" for n in itertools.count())
    try:
        runtime.begin()
        here: list[str] = []

        def grow() -> None:
            here.append(next(names))
            runtime.grow(here[-1])

        grow()
        until("the first steps", lambda: trained_since(runtime, 0, 1))
        found.append(change(runtime, "join 1 → 2", grow, 2))
        for _ in range(rounds):
            found.append(change(runtime, "join 2 → 3", grow, 3))
            victim = here[-1]
            if runtime.replaces:
                found.append(change(runtime, "SIGKILL 3 → 2", lambda: runtime.kill(victim), 2))
                until("the lost one's successor", lambda moment=time.time(): trained_since(runtime, moment, 3))
            else:
                here.remove(victim)
                found.append(change(runtime, "SIGKILL 3 → 2", lambda: runtime.kill(victim), 2))
                grow()
                until("three workers", lambda moment=time.time(): trained_since(runtime, moment, 3))
            leaver = here.pop()
            found.append(change(runtime, "asked to leave 3 → 2", lambda: runtime.stop(leaver), 2))
    finally:
        runtime.end()
    return found


def bits(make: Callable[[int], Peer | Ebb]) -> list[dict[str, Any]]:
    """The same steps with one worker twice, with two, and with a second one that comes in the middle."""
    digests = {}
    for name, first, later in (("1 worker", 1, 0), ("1 worker again", 1, 0), ("2 workers", 2, 0), ("1, then 2", 1, 1)):
        runtime = make(BIT_STEPS)
        try:
            runtime.begin()
            for number in range(first):
                runtime.grow(f"w{chr(97 + number)}")
            if later:
                until("the middle", lambda: any(one.step >= BIT_STEPS // 6 for one in runtime.done()))
                runtime.grow("wz")
            until("the end", runtime.over, times=4)
            digests[name] = runtime.digest()
        except TimeoutError as error:
            digests[name] = str(error)
        finally:
            runtime.end()
    return [said(runtime=runtime.name, event="bits", digests=digests, equal=len(set(digests.values())) == 1)]


def tide(make: Callable[[int], Peer | Ebb], minutes: float) -> list[dict[str, Any]]:
    """Workers come and go for some minutes; every second departure is a kill where the runtime does not replace who was killed."""
    runtime, names = make(0), (f"t{chr(97 + n % 26)}" for n in itertools.count())
    here: list[str] = []
    phase_s, phases = minutes * 60 / len(TIDE), []
    try:
        runtime.begin()
        for target in TIDE:
            begun = time.time()
            while len(here) < target:
                here.append(next(names))
                runtime.grow(here[-1])
            while len(here) > target:
                runtime.stop(here.pop())
            if not phases:  # the tide begins when there is training to be disturbed
                until("all workers", lambda: trained_since(runtime, begun, target))
                begun = time.time()
            time.sleep(max(0.0, begun + phase_s - time.time()))
            phases.append((target, begun, time.time()))
        steps = steps_of(runtime.done())
    finally:
        runtime.end()
    newest, ideal, useful = 0, 0.0, 0
    rates: dict[int, list[float]] = {}
    for target, begun, ended in phases:
        within = [at for at, _ in steps if (begun + ended) / 2 < at <= ended]
        if len(within) > 2:
            rates.setdefault(target, []).append((len(within) - 1) / (within[-1] - within[0]))
    # Without the rate of a size there is nothing to compare with.
    known = all(target in rates for target, _, _ in phases)
    for target, begun, ended in phases:
        ideal += max(rates.get(target, [0.0])) * (ended - begun)
    inside = [step for at, step in steps if phases[0][1] < at <= phases[-1][2]]
    if inside:
        newest, useful = max(inside), max(inside) - inside[0] + 1
    rate = {workers: round(max(found), 2) for workers, found in sorted(rates.items())}
    return [
        said(
            runtime=runtime.name, event="tide", minutes=minutes, steps=useful, last=newest, repeated=len(inside) - useful,
            discarded=runtime.discarded(), steps_per_s_at=rate, of_ideal=round(useful / ideal, 3) if known and ideal else None,
        )
    ]  # fmt: skip


def table(found: list[dict[str, Any]]) -> None:
    """Medians over the rounds."""
    keys = dict.fromkeys((one["event"], one["runtime"]) for one in found if "pause_s" in one or "failed" in one)
    for event, name in keys:
        of = [one for one in found if (one["event"], one["runtime"]) == (event, name)]
        pauses = [one["pause_s"] for one in of if "pause_s" in one]
        if not pauses:
            print(f"{event:22} {name:9} failed {len(of)} of {len(of)}")
            continue
        spread = f"{statistics.median(pauses):.2f} [{min(pauses):.2f}, {max(pauses):.2f}] s"
        again = statistics.median(one["repeated"] for one in of if "pause_s" in one)
        print(f"{event:22} {name:9} pause {spread}, repeated {again:g}, failed {len(of) - len(pauses)} of {len(of)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ebb", help="the `ebb` program; needed for Ebb")
    parser.add_argument("--runtimes", default="ebb,torchrun,torchft")
    parser.add_argument("--mode", choices=["default", "tuned"], default="default", help="settings of the peers")
    parser.add_argument("--parts", default="changes,bits,tide")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tide-minutes", type=float, default=10.0)
    parser.add_argument("--hidden", type=int, default=1024, help="width of the model: 1024 is 6.3 MB of gradient, 4736 is 100 MB")
    parser.add_argument("--rows", type=int, default=256, help="of one of six logical workers and step")
    parser.add_argument("--folder", type=Path, default=Path("peers-runs"))
    options = parser.parse_args()
    folder = options.folder.absolute()
    os.environ.update(PEERS_HIDDEN=str(options.hidden), PEERS_ROWS=str(options.rows))

    def maker(name: str, part: str) -> Callable[[int], Peer | Ebb]:
        numbers = itertools.count()

        def make(steps: int) -> Peer | Ebb:
            place = folder / f"{name}-{part}-{next(numbers)}"
            if name in EBB:
                return Ebb(place, os.path.abspath(options.ebb), steps, EBB[name])
            return {"torchrun": Torchrun, "torchft": Torchft}[name](place, options.mode, steps)

        return make

    runtimes, parts = options.runtimes.split(","), options.parts.split(",")
    if EBB.keys() & set(runtimes) and not options.ebb:
        sys.exit("say with --ebb where the `ebb` program is, or leave Ebb out with --runtimes torchrun,torchft")
    found: list[dict[str, Any]] = []
    for part, name in itertools.product(parts, runtimes):
        make = maker(name, part)
        try:
            if part == "changes":
                found += changes(make, options.rounds)
            elif part == "bits":
                found += bits(make)
            elif part == "tide":
                found += tide(make, options.tide_minutes)
            else:
                sys.exit(f"no part is called `{part}`; there are changes, bits and tide")
        except (TimeoutError, subprocess.TimeoutExpired) as error:
            found.append(said(runtime=name, event=part, failed=str(error)))
    table(found)


if __name__ == "__main__":
    main()
