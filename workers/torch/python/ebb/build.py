"""From settings to the parts of a program: job, data, model, optimizer, scheduler, further state. Computes no gradient."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from ebb import entry, guard, initial, job as jobs, numerics, seeds
from ebb.data import OwnBatches, SharedBatches, rows_of
from ebb.job import Job
from ebb.refuse import Refused, user_code
from ebb.sampler import Sampler
from ebb.segment import Segment
from ebb.several import Several


@dataclasses.dataclass
class Settings:
    """What decides a program: the protocol's build message, or what `ebb.run` was told."""

    entry: str = ""
    code: str | None = None
    spec: dict[str, Any] = dataclasses.field(default_factory=dict)
    seed: int = 0
    workers: int = 1
    batch_size: int = 1
    threads: int = 1
    device: str = "cpu"
    sample: dict[str, Any] | None = None
    #: Of the dataset that `evaluation:` names.
    held_out_sample: dict[str, Any] | None = None
    #: Of one batch, and how many there is room for beside each other: the executor makes the next while this process works.
    batch_bytes: int = 0
    batch_places: int = 1
    #: Where an executor computes one gradient of all the logical workers that it hosts (`determinism: none`): how many these are at most.
    hosted_max: int | None = None
    rows: int | None = None
    parameters: dict[str, Any] = dataclasses.field(default_factory=dict)
    #: A file or a folder to begin with instead of what `model()` made, and whether all of both has to fit.
    initial: str | None = None
    initial_strict: bool = True
    check: bool = True
    #: Keep the replica apart from the segment, as on a device; for tests of that path without one.
    apart: bool = False
    #: A job made already (`ebb.fit` in a script run by hand); otherwise `entry` is imported.
    job: Job | None = None

    @classmethod
    def parse(cls, message: dict[str, Any]) -> Settings:
        """Of a message; keys this version does not know are ignored, so that the executor may say more."""
        known = {field.name for field in dataclasses.fields(cls)} - {"job"}
        return cls(**{name: value for name, value in message.items() if name in known and value is not None})


@dataclasses.dataclass
class Parts:
    """What was built."""

    job: Job
    data: SharedBatches | OwnBatches
    own_rows: int | None
    held_out: OwnBatches | None
    model: torch.nn.Module
    state: list[tuple[str, torch.Tensor]]
    state_modules: list[torch.nn.Module]
    optimizer: torch.optim.Optimizer | Several
    built_in_rates: list[float] | None


def build(settings: Settings, batch_segment: Segment) -> Parts:
    """Builds everything but the scheduler, which must see the optimizer after it was probed."""
    cuda = settings.device == "cuda"
    numerics.configure(settings.threads, settings.device)
    seeds.set_all(seeds.key(settings.seed, "build"), cuda)
    context = {name: getattr(settings, name) for name in ("spec", "seed", "workers", "batch_size", "parameters", "device", "sample")}
    jobs.set_context(context)
    guard.forbid_loss_scales()
    job = settings.job or entry.load(settings.entry, settings.code)
    job.__dict__.update(context)
    most = _rows_at_once(settings, job)
    data, own_rows = _data(settings, job, batch_segment, cuda, most)
    job.steps_per_epoch = data.steps_per_epoch or _steps_per_epoch(settings)
    job.steps = steps_total(settings.spec, job.steps_per_epoch)
    held_out = _held_out(settings, job)
    seeds.set_all(seeds.key(settings.seed, "model"), cuda)
    model = _model(settings, job, cuda)
    state, state_modules = _state(job, model)
    optimizer, rates = _optimizer(settings, job, model)
    return Parts(job, data, own_rows, held_out, model, state, state_modules, optimizer, rates)


def _rows_at_once(settings: Settings, job: Job) -> int | None:
    """How many rows loss() is given at most, if that is bounded by more than the batch of a logical worker."""
    most = job.micro_batch_rows
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        raise Refused(f"`micro_batch_rows` is {most!r}; it must be a whole number from 1, of the rows that loss() is given at most")
    if settings.hosted_max is not None:
        return most
    if most is not None and most < settings.batch_size:
        raise Refused(
            f"`micro_batch_rows` is {most}, and is for `determinism: none`; here loss() is given the {settings.batch_size} rows of a logical worker: "
            "write a smaller `batch_size:` and more `workers:` in the job file"
        )
    return None


def length_of(spec: dict[str, Any]) -> dict[str, Any]:
    """Where `steps` or `epochs` stands."""
    return spec["length"] if isinstance(spec.get("length"), dict) else spec


def steps_total(spec: dict[str, Any], steps_per_epoch: int | None) -> int | None:
    """How many steps the training has, where that is known."""
    length = length_of(spec)
    if length.get("steps") is not None:
        return int(length["steps"])
    if length.get("epochs") is not None and steps_per_epoch:
        return int(length["epochs"]) * steps_per_epoch
    return None


def _steps_per_epoch(settings: Settings) -> int | None:
    if not settings.rows:
        return None
    step_rows = settings.workers * settings.batch_size
    return settings.rows // step_rows if settings.spec.get("tail") == "drop" else -(-settings.rows // step_rows)


def _data(settings: Settings, job: Job, segment: Segment, cuda: bool, most: int | None) -> tuple[SharedBatches | OwnBatches, int | None]:
    with user_code("dataset()"):
        dataset = job.dataset()
    if dataset is None:
        if settings.sample is None:
            raise Refused("the job names no `dataset:`, and the program has no `dataset(self)`; one of the two must say what to train on")
        return SharedBatches(settings.sample, segment, job, settings.seed, cuda, most), None
    rows = rows_of(dataset)
    if settings.sample is not None and rows != settings.rows and length_of(settings.spec).get("steps") is None:
        raise Refused(
            f"dataset() has {rows} rows, and the job file's `epochs:` counts the {settings.rows} of its `dataset:`; "
            "say the length as `steps:`"
        )
    drop = settings.spec.get("tail") == "drop"
    sampler = Sampler(rows, settings.workers, settings.batch_size, settings.seed, settings.spec.get("shuffle") != "none", drop)
    if sampler.steps_per_epoch == 0:
        raise Refused(
            f"the dataset has {rows} rows, fewer than one step's {settings.workers} × {settings.batch_size}, and `tail: "
            "drop` leaves them all out"
        )
    return OwnBatches(job, dataset, sampler, settings.seed, together=settings.hosted_max is not None, most=most), rows


def _held_out(settings: Settings, job: Job) -> OwnBatches | None:
    """The program's own rows to evaluate on, in their order, each once; cut over ranks like those to train on."""
    evaluation = settings.spec.get("evaluation")
    if not evaluation or evaluation.get("dataset"):
        return None
    with user_code("held_out()"):
        dataset = job.held_out()
    if dataset is None:
        raise Refused(
            "the job file's `evaluation:` names no `dataset:`, and the program has no `held_out(self)`; one of the two must say what to "
            "evaluate on"
        )
    sampler = Sampler(rows_of(dataset), settings.workers, settings.batch_size, settings.seed, shuffle=False, drop_tail=False)
    return OwnBatches(job, dataset, sampler, settings.seed, "held-out ")


def _model(settings: Settings, job: Job, cuda: bool) -> torch.nn.Module:
    with user_code("model()"):
        model = job.model()
    guard.check_model(model)
    if cuda:
        model = model.to("cuda")
        for module in model.modules():
            if isinstance(module, torch.nn.RNNBase):
                module.flatten_parameters = lambda: None  # would move the weights out of the replica
    if settings.initial:
        initial.load(settings.initial, model, settings.initial_strict)
    model.train()
    return model


def _state(job: Job, model: torch.nn.Module) -> tuple[list[tuple[str, torch.Tensor]], list[torch.nn.Module]]:
    with user_code("state()"):
        given = job.state(model) or {}
    if not isinstance(given, dict):
        raise Refused(f"state() returned a {type(given).__name__}; it must return a dict of modules and tensors by name")
    own = {id(tensor) for tensor in [*model.parameters(), *model.buffers()]}
    found: list[tuple[str, torch.Tensor]] = []
    for name, value in sorted(given.items()):
        if isinstance(value, torch.nn.Module):
            inner = [*value.named_parameters(), *value.named_buffers()]
        elif isinstance(value, torch.Tensor):
            inner = [("", value)]
        elif isinstance(value, (list, tuple)) and all(isinstance(item, torch.Tensor) for item in value):
            inner = [(str(index), item) for index, item in enumerate(value)]
        else:
            raise Refused(
                f"state() gives a {type(value).__name__} as `{name}`; only modules, tensors and lists of tensors can be carried along"
            )
        found += [(f"{name}.{inner_name}".rstrip("."), tensor) for inner_name, tensor in inner if id(tensor) not in own]
        own.update(id(tensor) for _, tensor in inner)
    return found, [value for value in given.values() if isinstance(value, torch.nn.Module)]


def _optimizer(settings: Settings, job: Job, model: torch.nn.Module) -> tuple[torch.optim.Optimizer | Several, list[float] | None]:
    with user_code("optimizer()"):
        optimizer = job.optimizer(model)
    if optimizer is None:
        optimizer = _built_in(settings.spec.get("optimizer") or {}, model)
        return optimizer, [float(group["lr"]) for group in optimizer.param_groups]
    given = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    wrong = next((one for one in given if not isinstance(one, torch.optim.Optimizer)), None)
    if wrong is not None or not given:
        what = f"a {type(optimizer).__name__}" if wrong is optimizer or not given else f"a list with a {type(wrong).__name__}"
        raise Refused(f"optimizer() returned {what}; it must return a torch.optim.Optimizer, or a list of them")
    return (given[0] if len(given) == 1 else Several(given)), None


def _built_in(spec: dict[str, Any], model: torch.nn.Module) -> torch.optim.Optimizer:
    """The job file's optimizer. Weight decay leaves out parameters with fewer than two dimensions, as the native engine's does."""
    kind = spec.get("kind", "adamw")
    decay = float(spec.get("weight_decay", 0.01 if kind == "adamw" else 0.0))
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if kind == "adamw":
        betas = (float(spec.get("beta1", 0.9)), float(spec.get("beta2", 0.999)))
        return torch.optim.AdamW(groups, lr=float(spec.get("learning_rate", 1e-3)), betas=betas, eps=float(spec.get("epsilon", 1e-8)))
    if kind == "sgd":
        momentum, nesterov = float(spec.get("momentum", 0.9)), bool(spec.get("nesterov", False))
        return torch.optim.SGD(groups, lr=float(spec.get("learning_rate", 0.1)), momentum=momentum, nesterov=nesterov and momentum > 0)
    raise Refused(f"`optimizer: {{kind: {kind}}}` is none that Ebb builds (adamw, sgd); write `optimizer(self, model)`")
