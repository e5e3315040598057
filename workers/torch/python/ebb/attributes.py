"""What modules, jobs, datasets and the code's own modules remember in Python, where Ebb cannot carry it along: compared before and after
user code ran. Looks into objects of the user's and of libraries that compute nothing here; changes nothing, and reads no file."""

from __future__ import annotations

import argparse
import collections
import functools
import hashlib
import itertools
import os
import random
import sys
import types
from typing import Any, Iterable, Iterator

import torch

from ebb.tensors import raw_bytes

REGISTERED = frozenset({"_parameters", "_buffers", "_modules", "training", "_non_persistent_buffers_set"})
EBBS_OWN = {"spec", "parameters", "step", "update_steps"}
# What is looked into at most, so that a graph of a million objects costs a second and not a minute: items of one container, things one
# within the other, and things in all.
PARTS_BOUND = 10_000
DEPTH_BOUND = 12
THINGS_BOUND = 200_000
# Of larger tensors and arrays it is asked whether they were written, instead of reading all of them each time.
READ_WHOLE_BYTES = 16 << 20
# Objects of these libraries are what they are: their state is in the replica, seeded, or of no meaning to bits.
FRAMEWORKS = {
    "torch", "numpy", "transformers", "tokenizers", "accelerate", "lightning", "lightning_fabric", "pytorch_lightning", "datasets", "pyarrow",
    "ebb",
}  # fmt: skip
HOLDERS = (types.SimpleNamespace, argparse.Namespace, torch.nn.Module)

Root = tuple[str, Any]


def of_model(job: Any, model: torch.nn.Module) -> list[Root]:
    """The job and each module, by what a name in them begins with."""
    modules = [(f"{name}." if name else "", module) for name, module in model.named_modules()]
    return [*modules, *of_job(job)]


def of_job(job: Any) -> list[Root]:
    """The job alone, and the Trainer of the user's that it stands for."""
    trainer = vars(job).get("_trainer")
    return [*([(f"{type(trainer).__name__}.", trainer)] if _is_open(type(trainer).__module__) else []), (f"{type(job).__name__}.", job)]


def of_code(folder: str | None) -> list[Root]:
    """The modules that were imported from the job's code, and the classes in them."""
    if not folder:
        return []
    inside = os.path.join(os.path.abspath(folder), "")
    found: list[Root] = []
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__dict__", {}).get("__file__")
        if not isinstance(file, str) or not file.startswith(inside) or "-packages" in file or name.partition(".")[0] in FRAMEWORKS:
            continue
        found.append((f"{name}.", module))
        found += [
            (f"{name}.{key}.", kind) for key, kind in sorted(vars(module).items()) if isinstance(kind, type) and kind.__module__ == name
        ]
    return found


def snapshot(roots: Iterable[Root], known: Iterable[Any] = (), leave_out: frozenset[str] = frozenset()) -> dict[str, str]:
    """What each attribute that could remember something holds, as text by its name; `known` are objects that are kept otherwise, and
    attributes of the roots to `leave_out` too."""
    walk = Walk([*known, *_seeded()])
    roots = list(roots)
    walk.seen.update(id(holder) for _, holder in roots)
    for prefix, holder in roots:
        # What is registered in a module of the model is in the replica.
        left_out = REGISTERED if isinstance(holder, torch.nn.Module) else leave_out
        for key, value in _attributes(holder):
            if key not in left_out:
                walk.look(f"{prefix}{key}", value, 0)
    return walk.found


def contents(value: Any) -> dict[str, str]:
    """What a batch holds, all of it, as text by its place."""
    walk = Walk((), whole=True)
    walk.look("batch", value, 0)
    return walk.found


def changed(before: dict[str, str], after: dict[str, str]) -> str | None:
    """The first attribute that is not as it was."""
    return next((name for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name)), None)


class Walk:
    """Goes through values and what they hold, each thing once. `whole` reads everything, whatever library it is of and however large."""

    def __init__(self, known: Iterable[Any], whole: bool = False) -> None:
        self.found: dict[str, str] = {}
        self.kept = list(known)  # alive, so that no other thing gets its id
        self.seen = {id(thing) for thing in self.kept}
        self.whole, self.left = whole, THINGS_BOUND

    def look(self, path: str, value: Any, depth: int) -> None:
        """Notes what the value is, or looks into it."""
        text = plain(value)
        if text is not None:
            self.found[path] = text
            return
        if depth >= DEPTH_BOUND or self.left <= 0 or id(value) in self.seen:
            return
        self.left -= 1
        self.seen.add(id(value))
        text = chance(value) or memory(value, self.whole)
        if text is not None:
            self.found[path] = text
            return
        for name, item in self._parts(value):
            self.look(f"{path}{name}", item, depth + 1)

    def _parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, (list, tuple, collections.deque)):
            if len(value) <= PARTS_BOUND:
                yield ".length", len(value)
                yield from ((f"[{index}]", item) for index, item in enumerate(value))
        elif isinstance(value, dict):
            if len(value) <= PARTS_BOUND:
                yield ".length", len(value)
                yield from ((f"[{key!r}]", item) for key, item in list(value.items()) if isinstance(key, (str, int, float, bool, tuple)))
        elif isinstance(value, (set, frozenset)):
            if len(value) <= PARTS_BOUND:
                yield "", "{" + ",".join(sorted(plain(item) or "?" for item in value)) + "}"
        elif isinstance(value, functools.partial):
            yield from ((f".{name}", part) for name, part in (("func", value.func), ("args", value.args), ("keywords", value.keywords)))
        elif isinstance(value, types.MethodType):
            yield "", value.__self__
        elif isinstance(value, types.FunctionType):
            yield from _of_function(value) if _is_open(value.__module__) else ()
        elif isinstance(value, HOLDERS) or self.whole or _is_open(type(value).__module__) and not isinstance(value, (type, types.ModuleType)):
            yield from ((f".{key}", item) for key, item in _attributes(value))


def plain(value: Any) -> str | None:
    """A value of Python's own as text."""
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, itertools.count)):
        return repr(value)
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () and hasattr(value, "item"):
        return repr(value.item())
    return None


def chance(value: Any) -> str | None:
    """Where a generator of chance stands, as text."""
    if isinstance(value, torch.Generator):
        return hashlib.blake2b(raw_bytes(value.get_state())).hexdigest()
    if isinstance(value, random.Random):
        return None if isinstance(value, random.SystemRandom) else hashlib.blake2b(repr(value.getstate()).encode()).hexdigest()
    if type(value).__module__.startswith("numpy.random"):
        state = getattr(value, "bit_generator", value)
        return repr(getattr(state, "state", None) or (value.get_state() if hasattr(value, "get_state") else None))
    return None


def memory(value: Any, whole: bool = False) -> str | None:
    """A tensor's or an array's elements as text; of a large one, unless the `whole` is wanted, where they are and how often they were
    written."""
    numpy = sys.modules.get("numpy")
    try:
        if isinstance(value, torch.Tensor):
            if value.nbytes > READ_WHOLE_BYTES and not whole:
                return f"{value.data_ptr()} {0 if value.is_inference() else value._version}"
            return f"{value.dtype}{tuple(value.shape)}{hashlib.blake2b(raw_bytes(value)).hexdigest()}"
        if numpy is not None and isinstance(value, numpy.ndarray) and not value.dtype.hasobject:
            if value.nbytes > READ_WHOLE_BYTES and not whole:
                return f"{value.ctypes.data}"
            return f"{value.dtype}{value.shape}{hashlib.blake2b(value.tobytes()).hexdigest()}"
    except (RuntimeError, NotImplementedError):  # of a kind that has no elements to read: meta, nested, quantized
        pass
    return None


def _seeded() -> list[Any]:
    """The generators that are seeded before each call."""
    numpy = sys.modules.get("numpy")
    return [torch.default_generator, random._inst, *([numpy.random.mtrand._rand] if numpy is not None else [])]  # type: ignore[attr-defined]


def _attributes(holder: Any) -> Iterator[tuple[str, Any]]:
    is_code = isinstance(holder, (type, types.ModuleType))
    named = dict(getattr(holder, "__dict__", {}))
    if not is_code:
        for kind in type(holder).__mro__:
            slots = vars(kind).get("__slots__", ())
            for slot in [slots] if isinstance(slots, str) else slots:
                if slot not in named and not slot.startswith("__") and hasattr(holder, slot):
                    named[slot] = getattr(holder, slot)
    ours = any(kind.__module__ == "ebb.job" for kind in type(holder).__mro__)
    for key, value in named.items():
        if not isinstance(key, str) or key.startswith("__") or key.endswith("_hooks") or ours and key in EBBS_OWN:
            continue
        if is_code and isinstance(value, (type, types.ModuleType, property, classmethod, staticmethod)):
            continue
        yield key, value


def _of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            yield f".{name}", cell.cell_contents
        except ValueError:  # a cell that nothing was put into yet
            continue
    yield ".defaults", function.__defaults__
    yield ".keyword_defaults", function.__kwdefaults__
    yield from ((f".{name}", value) for name, value in function.__dict__.items())


def _is_open(module: Any) -> bool:
    """Whether objects of classes of this module are looked into."""
    if not isinstance(module, str):
        return False
    if module.startswith("torch.utils.data"):
        return True
    first = module.partition(".")[0]
    return first not in FRAMEWORKS and (first not in sys.stdlib_module_names or first == "__main__")
