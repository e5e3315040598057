"""Several optimizers, or several schedulers, as one: people give matrices to Muon and the rest to AdamW. Each keeps what is its own."""

from __future__ import annotations

from typing import Any, Iterator

from ebb.refuse import Refused


class Several:
    """What the rest of this package asks of an optimizer, asked of each of them in their order."""

    def __init__(self, optimizers: list[Any]) -> None:
        self.optimizers = optimizers
        owners: dict[int, Any] = {}
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if owners.setdefault(id(parameter), optimizer) is not optimizer:
                        raise Refused(
                            f"a parameter of shape {tuple(parameter.shape)} is in two of the optimizers that optimizer() returned; "
                            "give each parameter to one"
                        )
        self.state = _States(owners, optimizers)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()


class _States:
    """The state of each parameter, where its optimizer keeps it."""

    def __init__(self, owners: dict[int, Any], optimizers: list[Any]) -> None:
        self.owners, self.optimizers = owners, optimizers

    def get(self, parameter: Any, otherwise: Any = None) -> Any:
        return self.owners[id(parameter)].state.get(parameter, otherwise)

    def __setitem__(self, parameter: Any, value: Any) -> None:
        self.owners[id(parameter)].state[parameter] = value

    def pop(self, parameter: Any, otherwise: Any = None) -> Any:
        return self.owners[id(parameter)].state.pop(parameter, otherwise)

    def clear(self) -> None:
        for optimizer in self.optimizers:
            optimizer.state.clear()


class SeveralSchedulers:
    """Stepped one after the other."""

    def __init__(self, schedulers: list[Any]) -> None:
        self.schedulers = schedulers

    def step(self) -> None:
        for scheduler in self.schedulers:
            scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        return {str(index): scheduler.state_dict() for index, scheduler in enumerate(self.schedulers)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for index, scheduler in enumerate(self.schedulers):
            scheduler.load_state_dict(state[str(index)])


def each(optimizer: Any) -> Iterator[Any]:
    """The optimizers that there are."""
    yield from optimizer.optimizers if isinstance(optimizer, Several) else [optimizer]


def name_of(optimizer: Any) -> str:
    """What a text calls it."""
    return " and ".join(type(one).__name__ for one in each(optimizer))
