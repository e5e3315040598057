"""A `LightningModule` as a job: its training_step, optimizer, scheduler and data, its own or a `LightningDataModule`'s, without a Trainer. Never
imports lightning.

The loss of `training_step` is a mean over rows: (loss · rows, rows), unless it returns a dict with "weight" beside "loss".
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from ebb.job import Job
from ebb.refuse import Refused

# Hooks of a Trainer's loop: overridden, they are refused, since nobody would call them.
LOOP_HOOKS = (
    "optimizer_step", "optimizer_zero_grad", "backward", "manual_backward", "configure_gradient_clipping", "clip_gradients",
    "lr_scheduler_step", "on_before_optimizer_step", "on_before_zero_grad", "on_before_backward", "on_after_backward", "on_train_start",
    "on_train_end", "on_train_batch_start", "on_train_batch_end", "on_train_epoch_start", "on_train_epoch_end", "on_fit_start",
    "on_fit_end", "on_before_batch_transfer", "on_after_batch_transfer", "transfer_batch_to_device", "configure_callbacks",
    "configure_sharded_model", "teardown", "on_save_checkpoint", "on_load_checkpoint", "on_validation_start", "on_validation_end",
    "on_validation_epoch_start", "on_validation_epoch_end", "on_validation_batch_start", "on_validation_batch_end",
    "on_validation_model_eval", "on_validation_model_train", "on_validation_model_zero_grad", "training_epoch_end", "validation_epoch_end",
    "training_step_end", "validation_step_end",
)  # fmt: skip
# What a module may ask of itself where a Trainer stands behind it.
OF_TRAINER = {
    "optimizers": "Ebb steps the optimizer",
    "lr_schedulers": "Ebb steps the scheduler",
    "all_gather": "executors come and go, and Ebb adds up what training_step and validation_step return over all of them",
    "manual_backward": "Ebb runs the backward",
    "clip_gradients": "write `gradient_clip_norm:` in the job file",
}


# Who draws rows as the job file's `shuffle:` says.
SAMPLERS = {"RandomSampler", "SequentialSampler"}
BATCH_SAMPLERS = {"BatchSampler"}


class StubTrainer:
    """Stands where a module expects its Trainer: tells the step, and refuses everything else by name."""

    def __init__(self, job: Any) -> None:
        object.__setattr__(self, "_job", job)

    @property
    def global_step(self) -> int:
        return int(self._job.__dict__.get("step", 0))

    @property
    def current_epoch(self) -> int:
        return self.global_step // (self._job.steps_per_epoch or 1 << 62)

    @property
    def max_steps(self) -> int:
        return self._job.steps if self._job.steps is not None else -1

    @property
    def estimated_stepping_batches(self) -> int:
        if self._job.steps is None:
            raise Refused("`trainer.estimated_stepping_batches` needs `steps:` or `epochs:` in the job file")
        return int(self._job.steps)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Refused(
            f"the LightningModule asks its Trainer for `{name}`, and there is none here: Ebb runs the steps; "
            "of `self.trainer` only global_step, current_epoch, max_steps and estimated_stepping_batches are known"
        )


class LightningJob(Job):
    """The job of a LightningModule; its loaders are those of the data module, if there is one."""

    def __init__(self, module: Any, data: Any = None) -> None:
        self._module, self._logged = module, None
        self._data = data if data is not None else module
        self._scheduler: Any = None
        self._is_set_up = False
        self._by_epoch, self._every = False, 1
        self._dataset, self._collate_rows = None, None
        self.micro_batch_rows = getattr(module, "micro_batch_rows", None)
        self._refuse()
        module.trainer = self._data.trainer = StubTrainer(self)
        module.log, module.log_dict = self._log, self._log_dict
        for name, why in OF_TRAINER.items():
            setattr(module, name, _refused(name, why))

    def _refuse(self) -> None:
        module = self._module
        if not module.automatic_optimization:
            raise Refused(
                f"{type(module).__name__} optimizes manually (automatic_optimization is False), which is a loop of its "
                "own; return the loss from "
                "training_step, or write an ebb.Job"
            )
        for given in (module, self._data):
            name = next((name for name in LOOP_HOOKS if _is_users(given, name)), None)
            if name is not None:
                raise Refused(
                    f"{type(given).__name__} overrides `{name}`, which belongs to a Trainer's loop and is not called here; "
                    "write it into training_step, or write an ebb.Job"
                )

    def model(self) -> Any:
        self._set_up()
        self._module.configure_model()
        return self._module

    def _set_up(self) -> None:
        if not self._is_set_up:
            self._is_set_up = True
            for module in [self._module] if self._data is self._module else [self._data, self._module]:
                module.prepare_data()
                module.setup("fit")

    def _loader(self, name: str) -> Any:
        """What the method of this name gives; None where there is none of the user's."""
        if not _is_users(self._data, name):
            return None
        self._set_up()
        loader = getattr(self._data, name)()
        if not isinstance(loader, torch.utils.data.DataLoader):
            raise Refused(f"{name}() returned a {type(loader).__name__}; Ebb takes the dataset and collate_fn of one torch DataLoader")
        return loader

    def dataset(self) -> Any:
        loader = self._loader("train_dataloader")
        if loader is None:
            return None
        _refuse_sampling(loader)
        self._dataset, self._collate_rows = loader.dataset, loader.collate_fn
        self.loader = {"num_workers": loader.num_workers}
        return loader.dataset

    def held_out(self) -> Any:
        loader = self._loader("val_dataloader")
        if loader is None:
            return None
        if self._collate_rows is not None and loader.collate_fn != self._collate_rows:
            raise Refused(
                f"val_dataloader() makes batches by the collate_fn {_name(loader.collate_fn)} and train_dataloader() by "
                f"{_name(self._collate_rows)}; Ebb makes both by one, so give both loaders the same function"
            )
        self._collate_rows = loader.collate_fn
        return loader.dataset

    def collate(self, rows: Any) -> Any:
        return self._collate_rows(rows) if self._collate_rows else super().collate(rows)

    def optimizer(self, model: Any) -> Any:
        found = self._module.configure_optimizers()
        schedulers: list[Any] = []
        if isinstance(found, dict):
            schedulers = [found["lr_scheduler"]] if found.get("lr_scheduler") is not None else []
            found = found["optimizer"]
        elif isinstance(found, (list, tuple)) and len(found) == 2 and isinstance(found[0], (list, tuple)):
            found, schedulers = found[0], list(found[1]) if isinstance(found[1], (list, tuple)) else [found[1]]
        if isinstance(found, (list, tuple)):
            if len(found) != 1 or len(schedulers) > 1:
                raise Refused(
                    f"configure_optimizers() returned {len(found)} optimizers and {len(schedulers)} schedulers; Ebb takes one of each"
                )
            found = found[0]
        if schedulers:
            self._take_scheduler(schedulers[0])
        return found

    def _take_scheduler(self, given: Any) -> None:
        # Lightning steps a scheduler once an epoch unless told otherwise.
        self._by_epoch = True
        if isinstance(given, dict):
            self._by_epoch, self._every = given.get("interval", "epoch") == "epoch", int(given.get("frequency", 1) or 1)
            if given.get("reduce_on_plateau") or given.get("monitor") and type(given["scheduler"]).__name__ == "ReduceLROnPlateau":
                raise Refused("the scheduler ReduceLROnPlateau looks at a measured loss, which executors do not share; use one of steps")
            given = given["scheduler"]
        self._scheduler = given

    def scheduler(self, optimizer: Any) -> Any:
        return self._scheduler

    def scheduler_due(self, step: int) -> bool:
        if not self._by_epoch:
            return (step + 1) % self._every == 0
        if not self.steps_per_epoch:
            raise Refused(
                "configure_optimizers() gives a scheduler that is stepped by epochs, and this job has none; use {'interval': 'step'}"
            )
        return (step + 1) % (self.steps_per_epoch * self._every) == 0

    def loss(self, model: Any, batch: Any) -> Any:
        step = int(self.__dict__.get("step", 0))
        named = inspect.signature(model.training_step).parameters
        if "dataloader_iter" in named:
            raise Refused("training_step takes a `dataloader_iter`, and Ebb gives it batches; take (self, batch, batch_idx)")
        index = step % self.steps_per_epoch if self.steps_per_epoch else step
        returned = model.training_step(batch, index) if len(named) > 1 else model.training_step(batch)
        if isinstance(returned, dict):
            loss, weight = returned["loss"], returned.get("weight")
        else:
            loss, weight = returned, None
        if loss is None:
            raise Refused(
                "training_step returned None, which skips a batch for a Trainer; return a loss (times zero where it shall not count)"
            )
        if weight is None:
            weight = _rows(batch)
        return loss * weight, weight

    def evaluate(self, model: Any, batch: Any) -> Any:
        if not _is_users(model, "validation_step"):
            return None
        rows, self._logged = _rows(batch), {}
        try:
            indexed = len(inspect.signature(model.validation_step).parameters) > 1
            returned = model.validation_step(batch, 0) if indexed else model.validation_step(batch)
            sums = {name: float(value) * rows for name, value in self._logged.items()}
        finally:
            self._logged = None
        loss = returned.get("loss") if isinstance(returned, dict) else returned
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            sums["loss"] = float(loss) * rows
        elif "loss" not in sums:
            named = [name for name in sums if "loss" in name]
            if named:
                sums["loss"] = sums[named[0]]
        return sums, rows

    def _log(self, name: str, value: Any, *_args: Any, **_named: Any) -> None:
        if self._logged is not None and (isinstance(value, (int, float)) or isinstance(value, torch.Tensor) and value.numel() == 1):
            self._logged[name] = value.detach() if isinstance(value, torch.Tensor) else value

    def _log_dict(self, values: Any, *_args: Any, **_named: Any) -> None:
        for name, value in values.items():
            self._log(name, value)


def _is_users(module: Any, name: str) -> bool:
    """Whether the user wrote this method of a module, in its class or for it alone."""
    defining = next((kind for kind in type(module).__mro__ if name in vars(kind)), None)
    return name in vars(module) or defining is not None and not defining.__module__.startswith(("lightning.", "pytorch_lightning."))


def _refuse_sampling(loader: Any) -> None:
    """Refuses what a loader says about which rows make a batch, beside their number and whether they are shuffled, which the job file says."""
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    for what, known in ((loader.batch_sampler, BATCH_SAMPLERS), (sampler, SAMPLERS)):
        replacing = " with replacement" if getattr(what, "replacement", False) else ""
        if replacing or what is not None and type(what).__name__ not in known:
            raise Refused(
                f"train_dataloader() draws its rows by a {type(what).__name__}{replacing}, and Ebb chooses which rows make a batch: each row once in an epoch; "
                "leave it out, and weigh the rows in the loss, or repeat them in the dataset"
            )
    if loader.worker_init_fn is not None:
        raise Refused(
            "train_dataloader() gives the DataLoader a worker_init_fn, which would not be called: torch's, NumPy's and Python's generators are "
            "seeded before each row; leave it out, and do what else it does in the dataset"
        )


def _refused(name: str, why: str) -> Any:
    def refuse(*_args: Any, **_named: Any) -> Any:
        raise Refused(f"the LightningModule calls `self.{name}()`, which needs a Trainer, and there is none here: {why}; leave it out")

    return refuse


def _name(function: Any) -> str:
    return f"`{getattr(function, '__qualname__', type(function).__name__)}`"


def _rows(batch: Any) -> int:
    """The rows of a batch: the first dimension of its first tensor."""
    if isinstance(batch, torch.Tensor):
        return int(batch.shape[0])
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        for item in batch:
            if isinstance(item, (torch.Tensor, dict, list, tuple)):
                return _rows(item)
    raise Refused('training_step\'s batch holds no tensor to count rows by; return {"loss": …, "weight": …} from training_step')
