"""A torch optimizer whose state lies in the replica. Knows tensors and keys, nothing of what they mean.

Most optimizers make a parameter's state at its first step with a gradient. A zero-gradient step on a copy shows which tensors
that will be; a parameter is *born* when its first real step has made them. Until then the optimizer sees no state for it, so
that first steps are exactly those of a plain loop.
"""

from __future__ import annotations

import copy
import inspect
import operator
from typing import Any

import torch

from ebb import attributes, elementwise, python_state
from ebb.layout import Layout, Slot
from ebb.refuse import Refused, user_code
from ebb.several import Several, each, name_of

REFUSED_CLASSES = {
    "LBFGS": "looks at all parameters together and evaluates the loss several times a step",
    "SparseAdam": "wants sparse gradients, and Ebb adds up dense ones",
}
IMMUTABLE = frozenset({bool, int, float, str, type(None)})
# Attributes that schedulers and torch itself keep on an optimizer.
ATTRIBUTES_OF_TORCH = frozenset({
    "param_groups",
    "state",
    "defaults",
    "_opt_called",
    "_step_count",
    "_zero_grad_profile_name",
    "_warned_capturable_if_run_uncaptured",
})


class OptimizerState:
    """Which tensors an optimizer keeps for which parameter, and where they are."""

    def __init__(self, optimizer: torch.optim.Optimizer | Several, parameters: list[tuple[str, torch.nn.Parameter]], thorough: bool) -> None:
        self.optimizer = optimizer
        self.name = name_of(optimizer)
        known = {id(p): i for i, (_, p) in enumerate(parameters)}
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        self._refuse_at_sight(known)
        self.parameters = [(name, p) for name, p in parameters if id(p) in held]
        self.tensors: list[dict[str, torch.Tensor]] = []
        self.before = [{k: _copied(v) for k, v in optimizer.state.get(p, {}).items()} for _, p in self.parameters]
        self.keys, self.samples = self._probe(thorough)
        self.born = [set(before) == set(keys) for before, keys in zip(self.before, self.keys)]
        #: What `plain` was made of, where that is immutable objects alone.
        self.told: list[Any] | None = None

    def _refuse_at_sight(self, known: dict[int, int]) -> None:
        for one in each(self.optimizer):
            name = type(one).__name__
            for base in type(one).__mro__:
                if base.__name__ in REFUSED_CLASSES:
                    raise Refused(
                        f"the optimizer {name} {REFUSED_CLASSES[base.__name__]}; use one that updates each parameter from its own gradient"
                    )
            closure = inspect.signature(type(one).step).parameters.get("closure")
            if closure is not None and closure.default is inspect.Parameter.empty:
                raise Refused(f"the optimizer {name} needs a closure for its step, which would evaluate the loss anew; use one that does not")
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                if id(p) not in known and p.requires_grad:
                    raise Refused(
                        f"the optimizer {self.name} holds a parameter of shape {tuple(p.shape)} that is none of the "
                        "model's; give it model.parameters()"
                    )

    def _probe(self, thorough: bool) -> tuple[list[list[str]], list[dict[str, Any]]]:
        """Two steps with zero gradients, undone: the keys and samples of what is kept for each parameter. PyTorch's own optimizers are known
        to look at each parameter alone."""
        optimizer = self.optimizer
        values = [p.detach().clone() for _, p in self.parameters]
        groups = [{k: copy.deepcopy(v) for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
        seen: list[list[list[str]]] = []
        for _ in range(2):
            remembered = self._remembered()  # after the first, in the end: what is made once, and not counted, is no state
            for _, p in self.parameters:
                p.grad = torch.zeros_like(p)
            with user_code(f"the step of the optimizer {self.name}"):
                optimizer.step()
            seen.append([sorted(optimizer.state.get(p, {})) for _, p in self.parameters])
        for (name, _), first, second in zip(self.parameters, *seen):
            if first != second:
                late = ", ".join(sorted(set(first) ^ set(second)))
                raise Refused(
                    f"the optimizer {self.name} makes its state {late} of `{name}` later than at the first step; it must be there after one"
                )
        changed = attributes.changed(remembered, self._remembered())
        if changed is not None:
            raise Refused(
                f"the optimizer {self.name} keeps state in its attribute `{changed}`, where it would be lost when "
                "training moves; keep it in `self.state`"
            )
        self._refuse_inner_state()
        samples = [{k: _copied(v) for k, v in optimizer.state.get(p, {}).items()} for _, p in self.parameters]

        def restore(born: bool = False) -> None:
            with torch.no_grad():
                for (_, p), value in zip(self.parameters, values):
                    p.copy_(value)
                    p.grad = None
            for group, scalars in zip(optimizer.param_groups, groups):
                group.update(scalars if not born else copy.deepcopy(scalars))
            optimizer.state.clear()
            if born:
                for (_, p), before in zip(self.parameters, self.before):
                    if before:
                        optimizer.state[p] = {k: _copied(v) for k, v in before.items()}

        if thorough and not all(type(one).__module__.startswith("torch.optim.") for one in each(optimizer)):
            elementwise.check(optimizer, self.name, self.parameters, lambda: restore(born=True))
        restore()
        return seen[0], samples

    def _remembered(self) -> dict[str, str]:
        """Attributes of the optimizers, by their names in the first one."""
        roots = [("" if index == 0 else f"{type(one).__name__}.", one) for index, one in enumerate(each(self.optimizer))]
        return attributes.snapshot(roots, (p for group in self.optimizer.param_groups for p in group["params"]), ATTRIBUTES_OF_TORCH)

    def _refuse_inner_state(self) -> None:
        for one in each(self.optimizer):
            for key, inner in vars(one).items():
                if isinstance(inner, torch.optim.Optimizer) and inner.state and inner.state is not one.state:
                    raise Refused(
                        f"the optimizer {type(one).__name__} keeps state in another one, its attribute `{key}`, where it would be lost when "
                        f"training moves; let both have one state (`{key}.state = self.state`)"
                    )

    def place(self, layout: Layout, apart: bool) -> list[list[tuple[str, Slot]]]:
        """Places of all tensors, in parameter order, keys sorted."""
        self.slots = []
        for (name, _), keys, sample in zip(self.parameters, self.keys, self.samples):
            found = []
            for key in keys:
                value = sample[key]
                if isinstance(value, torch.Tensor):
                    found.append((key, layout.place(f"{name}/{key}", value, on_host=apart and not value.is_cuda, dense_copy=True)))
            self.slots.append(found)
        return self.slots

    def bind(self, flat: torch.Tensor, host: torch.Tensor) -> None:
        """Puts the state into the replica: first values where there are some, zeros for who is not born yet."""
        self.views = [{key: slot.view(host if slot.on_host else flat) for key, slot in slots} for slots in self.slots]
        for (_, p), views, before, born in zip(self.parameters, self.views, self.before, self.born):
            for key, view in views.items():
                if born:
                    view.copy_(before[key])
            if born:
                self.optimizer.state[p] = {**before, **views}
            elif before:
                self.optimizer.state[p] = {k: _copied(v) for k, v in before.items()}
        self.samples.clear()

    def settle(self) -> None:
        """After a step: what the optimizer made or replaced goes into the replica."""
        state = self.optimizer.state
        for index, (name, p) in enumerate(self.parameters):
            found = state.get(p)
            if not found:
                continue
            views, keys = self.views[index], self.keys[index]
            if len(found) != len(keys) or any(key not in found for key in keys):
                if not self.born[index] and set(found) == set(self.before[index]):
                    continue
                raise Refused(f"the optimizer {self.name} changed which state it keeps for `{name}`: {sorted(found)} instead of {keys}")
            for key, view in views.items():
                value = found[key]
                if value is view:
                    continue
                if not isinstance(value, torch.Tensor) or value.shape != view.shape or value.dtype != view.dtype:
                    raise Refused(f"the optimizer {self.name} changed the kind or shape of its state `{key}` of `{name}`")
                if value.data_ptr() != view.data_ptr():
                    view.copy_(value)
                found[key] = view
            self.born[index] = True

    def is_as_told(self) -> bool:
        """Whether `plain` would give what it gave last: it is made of the same objects, and none of them can change."""
        return self.told is not None and (now := self._immutable()) is not None and _same(now, self.told)

    def _immutable(self) -> list[Any] | None:
        found: list[Any] = [len(self.optimizer.param_groups), sum(self.born)]
        for group in self.optimizer.param_groups:
            found.extend(value for key, value in group.items() if key not in ("params", "param_names"))
        for _, p in self.parameters:
            found.extend(value for value in self.optimizer.state.get(p, {}).values() if not isinstance(value, torch.Tensor))
        return found if all(_cannot_change(value) for value in found) else None

    def plain(self) -> dict[str, Any]:
        """What of it is no tensor, in JSON's types."""
        self.told = self._immutable()
        groups = [
            {k: python_state.encode(v, f"the optimizer's `{k}`") for k, v in group.items() if k not in ("params", "param_names")}
            for group in self.optimizer.param_groups
        ]
        scalars = {}
        for index, (name, p) in enumerate(self.parameters):
            found = {k: v for k, v in self.optimizer.state.get(p, {}).items() if not isinstance(v, torch.Tensor)}
            if found:
                scalars[str(index)] = python_state.encode(found, f"the optimizer's state of `{name}`")
        return {"groups": groups, "born": "".join("1" if born else "0" for born in self.born), "scalars": scalars}

    def load_plain(self, values: dict[str, Any]) -> None:
        """Takes over what `plain` gave elsewhere; the tensors are in the replica already."""
        for group, scalars in zip(self.optimizer.param_groups, values["groups"]):
            for key, value in scalars.items():
                group[key] = python_state.decode(value, group.get(key))
        self.born = [digit == "1" for digit in values["born"]]
        for index, ((_, p), born) in enumerate(zip(self.parameters, self.born)):
            self.optimizer.state.pop(p, None)
            if born:
                scalars = python_state.decode(values["scalars"].get(str(index), {}), None)
                self.optimizer.state[p] = {**scalars, **self.views[index]}
            elif self.before[index]:
                self.optimizer.state[p] = {k: _copied(v) for k, v in self.before[index].items()}


def _cannot_change(value: Any) -> bool:
    if type(value) is tuple:
        return all(type(item) in IMMUTABLE for item in value)
    return type(value) in IMMUTABLE


def _same(values: list[Any], others: list[Any]) -> bool:
    return len(values) == len(others) and all(map(operator.is_, values, others))


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)
