"""`ebb.fit`: the job of a short script as one call instead of a class. Under a worker it declares; in a script run by hand it trains."""

from __future__ import annotations

from typing import Any, Callable

from ebb.job import Job

# The jobs declared while an entry is imported; None where a script runs by hand.
_declared: list[Job] | None = None


def declare_only() -> list[Job]:
    """From now on `ebb.fit` only declares, into this list."""
    global _declared
    _declared = []
    return _declared


def fit(
    model: Any,
    loss: Callable[[Any, Any], Any],
    optimizer: Any = None,
    dataset: Any = None,
    *,
    scheduler: Any = None,
    collate: Callable[[Any], Any] | None = None,
    evaluate: Callable[[Any, Any], Any] | None = None,
    held_out: Any = None,
    state: Any = None,
    on_step: Callable[[Any, int], None] | None = None,
    loader: dict[str, Any] | None = None,
    micro_batch_rows: int | None = None,
    steps: int | None = None,
    epochs: int | None = None,
    batch_size: int = 32,
    seed: int = 0,
    out: str | None = None,
) -> Any:
    """Declares a training. Each argument is the object, or a function that makes it as the method of `ebb.Job` would.

    `steps`, `epochs`, `batch_size`, `seed` and `out` count only where the script is run by hand, without a service.
    """
    job = ScriptJob(model, loss, optimizer, dataset, scheduler, collate, evaluate, state, on_step)
    job._held_out = held_out
    job.loader, job.micro_batch_rows = loader or {}, micro_batch_rows
    if _declared is not None:
        _declared.append(job)
        return None
    from ebb.run import train_here

    return train_here(job, steps=steps, epochs=epochs, batch_size=batch_size, seed=seed, out=out)


class ScriptJob(Job):
    """A job made of arguments."""

    _held_out: Any = None

    def __init__(
        self, model: Any, loss: Any, optimizer: Any, dataset: Any, scheduler: Any, collate: Any, evaluate: Any, state: Any, on_step: Any
    ) -> None:
        self._model, self._loss, self._optimizer, self._dataset = model, loss, optimizer, dataset
        self._scheduler, self._collate, self._evaluate, self._state, self._on_step = scheduler, collate, evaluate, state, on_step

    def model(self) -> Any:
        import torch

        return self._model if isinstance(self._model, torch.nn.Module) else self._model()

    def loss(self, model: Any, batch: Any) -> Any:
        return self._loss(model, batch)

    def optimizer(self, model: Any) -> Any:
        import torch

        given = self._optimizer
        return given(model) if callable(given) and not isinstance(given, torch.optim.Optimizer) else given

    def scheduler(self, optimizer: Any) -> Any:
        given = self._scheduler
        return given(optimizer) if callable(given) and not hasattr(given, "step") else given

    def dataset(self) -> Any:
        given = self._dataset
        return given() if callable(given) and not hasattr(given, "__getitem__") else given

    def held_out(self) -> Any:
        given = self._held_out
        return given() if callable(given) and not hasattr(given, "__getitem__") else given

    def collate(self, rows: Any) -> Any:
        return self._collate(rows) if self._collate else super().collate(rows)

    def evaluate(self, model: Any, batch: Any) -> Any:
        return self._evaluate(model, batch) if self._evaluate else None

    def state(self, model: Any) -> Any:
        return (self._state(model) if callable(self._state) and not hasattr(self._state, "parameters") else self._state) or {}

    def on_step(self, model: Any, step: int) -> None:
        if self._on_step:
            self._on_step(model, step)
