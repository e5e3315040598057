"""`python -m ebb.run ENTRY --workers W …`: a training in one process, without a service, with the bits that the service gives.

The same program computes each logical worker's gradient in turn; the canonical sum, mean and clip are those of the service.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any

from ebb import numerics

REPORT_SECONDS = 5.0
DEVICES = ("cpu", "cuda")


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    numerics.prepare_environment()
    parser = argparse.ArgumentParser(
        prog="python -m ebb.run", description="Trains an ebb.Job in this process, bit for bit as the service does."
    )
    parser.add_argument("entry", nargs="?", help="MODULE:NAME of the job, or MODULE where it calls ebb.fit (the spec's `entry:`)")
    parser.add_argument("--code", help="folder of the module (the job file's `code:`, or here)")
    parser.add_argument("--spec", help="a job file, or the job as JSON; options given here go before it")
    parser.add_argument("--workers", type=int, help="logical workers (1)")
    parser.add_argument("--steps", type=int, help="steps; without it the spec's `steps:` or `epochs:`")
    parser.add_argument("--batch-size", type=int, help="rows of a logical worker and step (32)")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--threads", type=int, help="threads of a logical worker (1)")
    parser.add_argument("--device", choices=DEVICES, help="(cpu)")
    parser.add_argument(
        "--from", dest="initial", help="what to begin with: a safetensors file, a Hugging Face folder, a job of Ebb or its model's digest"
    )
    parser.add_argument("--no-strict", action="store_true", help="of --from take what fits, and leave the rest as model() made it")
    parser.add_argument("--out", help="where the model is written")
    parser.add_argument("--no-check", action="store_true", help="leave out the self-check")
    options = parser.parse_args(arguments)
    from ebb.refuse import NonFinite, OutOfMemory, Refused, UserError

    try:
        settings = _settings(options)
        train(settings, options.out, thorough=not options.no_check)
    except UserError as error:
        print(error.lines, error, sep="\n", file=sys.stderr)
        return 1
    except (Refused, NonFinite, OutOfMemory, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _settings(options: argparse.Namespace) -> Any:
    from ebb import initial
    from ebb.build import Settings
    from ebb.refuse import Refused

    spec = read_spec(options.spec) if options.spec else {}
    entry = options.entry or spec.get("entry")
    if not isinstance(entry, str):
        raise Refused("say what to train: MODULE:NAME, or a spec with `entry:`")
    code = options.code
    if code is None:
        # A job file says it from where it is.
        code = os.path.join(os.path.dirname(options.spec), str(spec.get("code") or ".")) if "engine" in spec else "."
    if options.steps is not None:
        spec.pop("epochs", None)
        spec.pop("length", None)
        spec["steps"] = options.steps
    workers = spec.get("workers")
    most = workers.get("max") if isinstance(workers, dict) else workers

    def chosen(option: Any, name: str, default: int) -> int:
        return int(option if option is not None else spec.get(name) if spec.get(name) is not None else default)

    workers_max = int(options.workers or most or 1)
    device = options.device or spec.get("device") or "cpu"
    if device not in DEVICES:
        raise Refused(f"the spec's `device` is {device!r}; it must be {' or '.join(DEVICES)}")
    source, strict = options.initial, True
    if source is None and spec.get("from") is not None:
        source, strict = initial.named(spec["from"], os.path.dirname(os.path.abspath(options.spec)))
    return Settings(
        entry=entry,
        code=os.path.abspath(code),
        spec=spec,
        seed=chosen(options.seed, "seed", 0),
        workers=workers_max,
        hosted_max=workers_max if spec.get("determinism") == "none" else None,
        batch_size=chosen(options.batch_size, "batch_size", 32),
        threads=chosen(options.threads, "threads", 1),
        device=device,
        parameters=spec.get("parameters") or {},
        initial=source,
        initial_strict=strict and not options.no_strict,
    )


def read_spec(path: str) -> dict[str, Any]:
    """A job file, or a job as the service or `ebb submit --dry-run` shows it."""
    from ebb.refuse import Refused

    with open(path, encoding="utf-8") as file:
        text = file.read()
    if path.endswith((".yaml", ".yml")):
        try:
            import yaml
        except ImportError as error:
            raise Refused(
                f"`{path}` is YAML, and this Python has no PyYAML; install it, or give what `ebb submit {path} --dry-run --output json` says"
            ) from error
        spec = yaml.safe_load(text)
    else:
        spec = json.loads(text)
    if not isinstance(spec, dict):
        raise Refused(f"`{path}` is no job: it holds a {type(spec).__name__}")
    if isinstance(spec.get("spec"), dict):
        spec = spec["spec"]
    # As the service shows a job, what belongs to its code stands together.
    model = spec.get("model")
    if isinstance(model, dict):
        spec = {**{name: model[name] for name in ("entry", "parameters", "threads", "device") if name in model}, **spec}
    return spec


def train_here(job: Any, *, steps: int | None, epochs: int | None, batch_size: int, seed: int, out: str | None) -> str:
    """What `ebb.fit` does in a script that is run by hand: one logical worker, in this process."""
    numerics.prepare_environment()
    from ebb.build import Settings

    length = {"steps": steps} if steps is not None else {"epochs": epochs if epochs is not None else 1}
    return train(Settings(spec=length, seed=seed, batch_size=batch_size, job=job), out, thorough=True)


def train(settings: Any, out: str | None, thorough: bool) -> str:
    """Trains to the end; prints losses now and then, and the digest of the model, which it returns."""
    from ebb import check, twin
    from ebb.program import Program
    from ebb.refuse import Refused

    other = twin.ask(settings) if thorough else None
    program = Program(settings)
    check.run(program, thorough)
    twin.compare(program, other)
    if program.data.steps_per_epoch is None:
        raise Refused("this program trains on an Ebb dataset, which only the service has; give it a `dataset(self)` to train without one")
    if program.job.steps is None:
        raise Refused("say how long: --steps N, or `steps:` or `epochs:` in the spec")
    steps, reported = program.job.steps, 0.0
    program.expect(list(range(settings.workers)), 0)
    for step in range(steps):
        evaluate_if_due(program, step, steps)
        loss = train_step(program, step, steps)
        if step + 1 == steps or time.monotonic() - reported >= REPORT_SECONDS:
            reported = time.monotonic()
            print(f"step {step + 1}/{steps} loss {loss:.6g}", flush=True)
    evaluate_if_due(program, steps, steps)
    digest = write_model(program, out)
    print(f"digest {digest}", flush=True)
    return digest


def train_step(program: Any, step: int, steps: int) -> float:
    """One step of all logical workers; returns the mean loss."""
    from ebb import schedule, tree

    flat = program.gradient_segment.bytes.view(_float32())

    # Without determinism, as an executor that hosts them all.
    others = tuple(range(1, program.settings.workers)) if program.settings.hosted_max is not None else ()

    def leaf(rank: int) -> tuple[Any, float, float]:
        weight, loss, _ = program.gradient(rank, step, others=others)
        return flat.clone(), weight, loss

    def join(left: tuple[Any, float, float], right: tuple[Any, float, float]) -> tuple[Any, float, float]:
        left[0].add_(right[0])
        return left[0], left[1] + right[1], left[2] + right[2]

    gradient, weight, loss = tree.tree(0, program.settings.workers - len(others), leaf, join)
    mean = gradient[: program.gradient_elements]
    tree.divide(mean, weight)
    tree.clip(mean, program.settings.spec.get("gradient_clip_norm"))
    flat.copy_(gradient)
    program.apply(step, schedule.factor(program.settings.spec.get("schedule"), step, steps))
    return loss / weight if weight else 0.0


def evaluate_if_due(program: Any, step: int, steps: int) -> None:
    """Prints what the program measures on held-out rows of its own, when the spec's `evaluation:` says so."""
    from ebb import tree

    held_out, every = program.parts.held_out, int((program.settings.spec.get("evaluation") or {}).get("every_steps") or 100)
    if held_out is None or step == 0 or step % every and step != steps:
        return
    sums: list[dict[str, float]] = []
    count = 0
    for rank in range(program.settings.workers):
        of_rank: dict[str, float] = {}
        for part in range(held_out.steps_per_epoch):
            found, rows = program.evaluate(rank, part, 0)
            count += rows
            for name, value in found.items():
                of_rank[name] = of_rank.get(name, 0.0) + value
        sums.append(of_rank)
    names = sorted({name for of_rank in sums for name in of_rank})
    means = {name: tree.sum_of([of_rank.get(name, 0.0) for of_rank in sums]) / max(count, 1) for name in names}
    print(f"step {step}/{steps} evaluation: {', '.join(f'{name} {mean:.6g}' for name, mean in means.items())}", flush=True)


def write_model(program: Any, out: str | None) -> str:
    """Writes the model where it is wanted; the digest of its tensor data."""
    from ebb import tensors

    with open(out or os.devnull, "wb") as file:
        return tensors.write(file, program.export(), [])[1]


def _float32() -> Any:
    import torch

    return torch.float32


if __name__ == "__main__":
    sys.exit(main())
