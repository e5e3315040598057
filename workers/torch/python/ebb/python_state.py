"""Plain Python values (a scheduler's state, param groups) as canonical bytes in the replica, and back. Refuses what is not plain."""

from __future__ import annotations

import collections
import enum
import json
from typing import Any

import torch

from ebb.refuse import Refused

CAPACITY_MINIMUM_BYTES = 4096
CAPACITY_FACTOR = 4
LENGTH_BYTES = 4
_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def encode(value: Any, path: str) -> Any:
    """The value in JSON's types; what JSON has no type for is an object with one key that begins with `$`."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, enum.Enum):
        return {"$same": None}  # a constant of the program, not state
    if isinstance(value, (int, float)):
        return value if type(value) in (int, float) else (int(value) if isinstance(value, int) else float(value))
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            raise Refused(f"{path} is a tensor of {value.numel()} elements; Ebb keeps only plain values there")
        return {"$tensor": value.item()}
    if hasattr(value, "item") and hasattr(value, "dtype") and getattr(value, "ndim", 1) == 0:
        return value.item()  # a NumPy scalar
    if isinstance(value, tuple):
        return {"$tuple": [encode(v, f"{path}[{i}]") for i, v in enumerate(value)]}
    if isinstance(value, (list, collections.deque)):
        return [encode(v, f"{path}[{i}]") for i, v in enumerate(value)]
    if isinstance(value, dict):
        if all(isinstance(k, str) and not k.startswith("$") for k in value) and type(value) is dict:
            return {k: encode(v, f"{path}.{k}") for k, v in value.items()}
        tag = "$counter" if isinstance(value, collections.Counter) else "$dict"
        return {tag: [[encode(k, path), encode(v, f"{path}[{k!r}]")] for k, v in value.items()]}
    if callable(value):
        return {"$same": None}  # a function is part of the program, not of its state
    raise Refused(
        f"{path} is a {type(value).__name__}, and Ebb can carry only plain values (numbers, texts, lists, dicts) from "
        "one executor to another; "
        "keep the state in numbers"
    )


def decode(value: Any, present: Any = None) -> Any:
    """The value that was encoded; `present` is what stands in its place now, kept where the state does not hold it."""
    if isinstance(value, list):
        now = present if isinstance(present, (list, tuple, collections.deque)) and len(present) == len(value) else [None] * len(value)
        items = [decode(v, n) for v, n in zip(value, now)]
        return collections.deque(items, maxlen=present.maxlen) if isinstance(present, collections.deque) else items
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        (tag, inner), *_ = value.items()
        if tag == "$same":
            return present
        if tag == "$tensor":
            if isinstance(present, torch.Tensor):
                with torch.no_grad():
                    return present.fill_(inner)
            return torch.tensor(inner)
        if tag == "$tuple":
            return tuple(decode(inner, list(present) if isinstance(present, tuple) else None))
        if tag in ("$dict", "$counter"):
            now = present if isinstance(present, dict) else {}
            pairs = {decode(k): decode(v, now.get(decode(k))) for k, v in inner}
            return collections.Counter(pairs) if tag == "$counter" else pairs
    now = present if isinstance(present, dict) else {}
    return {k: decode(v, now.get(k)) for k, v in value.items()}


def to_bytes(value: Any) -> bytes:
    """Canonical JSON: sorted keys, floats by `repr`."""
    return _JSON.encode(value).encode()


def capacity(first: bytes) -> int:
    """How many bytes are set aside, given the first state."""
    return -(-max(CAPACITY_MINIMUM_BYTES, CAPACITY_FACTOR * len(first)) // 64) * 64


def write(raw: bytes, memory: memoryview) -> None:
    """Puts the bytes into their place, zeros behind them."""
    if len(raw) + LENGTH_BYTES > len(memory):
        raise Refused(
            f"the state of your optimizer and scheduler grew to {len(raw)} bytes of plain Python values, more than the "
            f"{len(memory)} set aside "
            "for it (four times its first size); keep lists that grow out of it"
        )
    memory[:LENGTH_BYTES] = len(raw).to_bytes(LENGTH_BYTES, "little")
    memory[LENGTH_BYTES : LENGTH_BYTES + len(raw)] = raw
    rest = len(memory) - LENGTH_BYTES - len(raw)
    memory[LENGTH_BYTES + len(raw) :] = bytes(rest)


def read(memory: memoryview) -> Any:
    """What `write` put there, in JSON's types."""
    length = int.from_bytes(memory[:LENGTH_BYTES], "little")
    return json.loads(bytes(memory[LENGTH_BYTES : LENGTH_BYTES + length]))
