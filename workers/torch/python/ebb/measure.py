"""`python -m ebb.measure ENTRY`: what a step of a job costs beside a plain PyTorch loop with the same model, batch and settings.

Both run in this process, in turns, on rows of chance in the shape of an Ebb dataset. The executor's own part (network, sums,
copies to and from the segments) is not in it: a job's record has the time of its steps.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable

from ebb import numerics

ROUNDS = 5


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    numerics.prepare_environment()
    parser = argparse.ArgumentParser(prog="python -m ebb.measure", description="Measures a job's step beside a plain loop.")
    parser.add_argument("entry", help="MODULE:NAME of the job")
    parser.add_argument("--code", default=".", help="folder of the module (here)")
    parser.add_argument("--shape", default="1,8,8", help="shape of a row, or tokens in it if --vocabulary is given (1,8,8)")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--vocabulary", type=int, help="rows are tokens of so many kinds")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20, help="steps of each of the five rounds (20)")
    options = parser.parse_args(arguments)
    print(json.dumps(measure(options)))
    return 0


def measure(options: argparse.Namespace) -> dict[str, object]:
    """Medians over the rounds, in milliseconds."""
    import torch

    from ebb.build import Settings
    from ebb.program import Program

    shape = [int(part) for part in options.shape.split(",")]
    rows = options.batch_size
    if options.vocabulary:
        sample = {"kind": "tokens", "length": shape[0], "vocabulary": options.vocabulary}
        batch_bytes = 8 * rows * shape[0]
    else:
        sample = {"kind": "classified", "shape": shape, "classes": options.classes}
        batch_bytes = rows * (8 + 4 * _product(shape))
    settings = Settings(
        entry=options.entry, code=os.path.abspath(options.code), spec={"steps": 10**6}, batch_size=rows, threads=options.threads,
        device=options.device, sample=sample, batch_bytes=batch_bytes, rows=rows * 100,
    )  # fmt: skip
    program, plain = Program(settings), Program(settings)
    generator = torch.Generator().manual_seed(1)
    if options.vocabulary:
        drawn = torch.randint(0, options.vocabulary, (rows, shape[0]), generator=generator).numpy().tobytes()
    else:
        labels = torch.randint(0, options.classes, (rows,), generator=generator)
        drawn = labels.numpy().tobytes() + torch.randn(rows, *shape, generator=generator).numpy().tobytes()
    for one in (program, plain):
        one.batch_segment.map[: len(drawn)] = drawn
    wait = torch.cuda.synchronize if options.device == "cuda" else _nothing
    counts = {"gradient": 0.0, "apply": 0.0}
    steps = {"program": 0, "plain": 0}

    def ours() -> None:
        begun = time.perf_counter()
        weight, _, _ = program.gradient(0, steps["program"], rows)
        wait()
        between = time.perf_counter()
        mean = program.gradient_segment.bytes.view(torch.float32)[: program.gradient_elements]
        mean.div_(weight)
        divided = time.perf_counter()
        program.apply(steps["program"], 1.0)
        wait()
        counts["gradient"] += between - begun
        counts["apply"] += time.perf_counter() - divided
        steps["program"] += 1

    plain_step = _plain(plain, rows, steps)
    times: dict[str, list[float]] = {"plain": [], "program": []}
    for round_number in range(ROUNDS + 1):  # the first warms up
        for name, step in (("plain", plain_step), ("program", ours)):
            if round_number == 1:
                counts.update(gradient=0.0, apply=0.0)
            begun = time.perf_counter()
            for _ in range(options.steps):
                step()
            wait()
            if round_number:
                times[name].append((time.perf_counter() - begun) * 1e3 / options.steps)
    plain_ms, program_ms = (statistics.median(times[name]) for name in ("plain", "program"))
    done = ROUNDS * options.steps / 1e3
    return {
        "torch": torch.__version__, "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu", "batch": rows,
        "gradient_mb": program.gradient_elements * 4 / 1e6, "replica_mb": program.replica_words * 4 / 1e6,
        "plain_ms": round(plain_ms, 3), "plain_range_ms": [round(min(times["plain"]), 3), round(max(times["plain"]), 3)],
        "program_ms": round(program_ms, 3), "program_range_ms": [round(min(times["program"]), 3), round(max(times["program"]), 3)],
        "ratio": round(program_ms / plain_ms, 3), "gradient_ms": round(counts["gradient"] / done, 3), "apply_ms": round(counts["apply"] / done, 3),
    }  # fmt: skip


def _plain(program: object, rows: int, steps: dict[str, int]) -> Callable[[], None]:
    """The loop that a person would write: the model's own parameters, gradients where autograd puts them."""
    import torch

    from ebb.data import moved

    fresh = program.job.model().to(program.device)  # type: ignore[attr-defined]
    optimizer = program.job.optimizer(fresh) or torch.optim.AdamW(fresh.parameters(), lr=1e-3)  # type: ignore[attr-defined]
    scheduler = program.job.scheduler(optimizer)  # type: ignore[attr-defined]
    fresh.train()

    def step() -> None:
        batch, _ = program.data.batch(0, steps["plain"], rows)  # type: ignore[attr-defined]
        if program.cuda:  # type: ignore[attr-defined]
            batch = moved(batch, program.device)  # type: ignore[attr-defined]
        optimizer.zero_grad()
        loss, weight = program.job.loss(fresh, batch)  # type: ignore[attr-defined]
        float(loss.detach())
        (loss / weight).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        steps["plain"] += 1

    return step


def _product(shape: list[int]) -> int:
    elements = 1
    for part in shape:
        elements *= part
    return elements


def _nothing() -> None:
    pass


if __name__ == "__main__":
    sys.exit(main())
