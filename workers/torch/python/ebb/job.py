"""The class that a user writes. Documentation by signatures: nothing here computes, and torch is imported only when called.

What is in it when its methods run: `self.spec` (the job file, defaults filled in), `self.seed`, `self.workers` (logical
workers), `self.batch_size` (rows of one logical worker and step), `self.parameters` (the job file's `parameters:`),
`self.device`, `self.sample` (a row of the job's Ebb dataset: `{kind: tokens, length, vocabulary}` or `{kind: classified, shape,
classes}`; None where there is no such dataset, as at home), and from `model()` on `self.steps` (of the whole training, where
known) and `self.steps_per_epoch`.
"""

from __future__ import annotations

from typing import Any

# What the next `Job()` finds in itself, so that `__init__` may use it already.
_context: dict[str, Any] = {}


def set_context(values: dict[str, Any]) -> None:
    """Says what the jobs made from now on find in themselves."""
    _context.clear()
    _context.update(values)


class Job:
    """A training: `model` and `loss` must be given, everything else may be."""

    spec: dict[str, Any] = {}
    seed: int = 0
    workers: int = 1
    batch_size: int = 1
    parameters: dict[str, Any] = {}
    device: str = "cpu"
    sample: dict[str, Any] | None = None
    steps: int | None = None
    steps_per_epoch: int | None = None
    #: In `on_step`: how many steps the update took, more than one only where the job file has a `batch_range`.
    update_steps: int = 1
    #: Arguments for `torch.utils.data.DataLoader` where the job has a dataset of its own: `num_workers` (of each executor; without any,
    #: rows are read in the step; of an Ebb dataset, whether collate() is called ahead however quick it is, and with 0 never), `prefetch_factor`, `pin_memory`, `timeout`, `multiprocessing_context`.
    loader: dict[str, Any] = {}
    #: Rows that loss() is given at most where the job file says `determinism: none`; without it, all those of the logical workers that an executor
    #: hosts.
    micro_batch_rows: int | None = None

    def __new__(cls, *_args: Any, **_named: Any) -> Job:
        job = super().__new__(cls)
        job.__dict__.update(_context)
        return job

    def model(self) -> Any:
        """The model, a `torch.nn.Module`."""
        raise NotImplementedError(f"{type(self).__name__} has no `model(self)`: it returns the torch.nn.Module to train")

    def loss(self, model: Any, batch: Any) -> Any:
        """`(loss summed over the rows, weight)`; the weight is usually the number of rows. Steps divide by the sum of weights."""
        raise NotImplementedError(
            f"{type(self).__name__} has no `loss(self, model, batch)`: it returns (the loss summed over the rows, their weight)"
        )

    def optimizer(self, model: Any) -> Any:
        """A torch optimizer over the model's parameters; without one, that of the job file's `optimizer:`."""
        return None

    def scheduler(self, optimizer: Any) -> Any:
        """A torch learning-rate scheduler, stepped once for each step that an update took."""
        return None

    def dataset(self) -> Any:
        """A map-style dataset (`__len__` and `__getitem__`); without one, the job's Ebb dataset."""
        return None

    def held_out(self) -> Any:
        """A map-style dataset to evaluate on, where the job file's `evaluation:` names none."""
        return None

    def collate(self, rows: Any) -> Any:
        """Makes a batch of a list of samples of `dataset()`. An Ebb dataset's batch is tensors already; it is called ahead of the step."""
        from torch.utils.data import default_collate

        return default_collate(rows)

    def evaluate(self, model: Any, batch: Any) -> Any:
        """`({"loss": sum, "correct": sum, …}, count)`, with the model in eval mode; each name's mean is shown. Without it, the loss."""
        return None

    def state(self, model: Any) -> Any:
        """Further modules or tensors by name that belong to the replica, such as a moving average; changed in `on_step` only."""
        return {}

    def on_step(self, model: Any, step: int) -> None:
        """After each update, with the last step that it took, on every executor: must do the same everywhere."""

    def scheduler_due(self, step: int) -> bool:
        """Whether the scheduler is stepped after this step; adapters for frameworks that step it by epochs say so here."""
        return True
