"""A batch in memory that two processes share: its tensors lie there, and everything else is pickled with their places in their stead.

What is unpacked is what was packed, also in strides and in where a tensor begins within a cache line, since kernels may add in another order for
another. What cannot be had so is refused.
"""

from __future__ import annotations

import ctypes
import io
import mmap
import pickle
from typing import Any, NamedTuple

import torch

#: Where a tensor begins is kept modulo this.
LINE_BYTES = 64


class Unpackable(Exception):
    """A batch holds what cannot be the same in another process."""


class TooLarge(Exception):
    """A batch needs so many bytes, and there are fewer."""

    def __init__(self, needed: int) -> None:
        super().__init__(f"a batch needs {needed} bytes")
        self.needed = needed


class Place(NamedTuple):
    """Where a tensor lies."""

    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class Arena:
    """Shared memory for so many batches of so many bytes beside each other."""

    def __init__(self, batches: int, batch_bytes: int) -> None:
        self.batch_bytes = batch_bytes
        self.map = mmap.mmap(-1, batches * batch_bytes)
        self.address = torch.frombuffer(self.map, dtype=torch.uint8).data_ptr()

    def pack(self, batch: Any, index: int) -> bytes:
        """Puts a batch there; gives what it is unpacked by."""
        start = index * self.batch_bytes
        packed, tensors, end = _packed(batch, start)
        if end - start > self.batch_bytes:
            raise TooLarge(end - start)
        for offset, tensor in tensors:
            ctypes.memmove(self.address + offset, tensor.data_ptr(), _bytes(tensor))
        return packed

    def unpack(self, packed: bytes) -> Any:
        """The batch, whose tensors are views of this memory."""
        return _Unpickler(packed, self.map).load()


def bytes_of(batch: Any) -> int:
    """How many bytes it takes there; refuses what cannot be packed."""
    return _packed(batch, 0)[2]


def _packed(batch: Any, start: int) -> tuple[bytes, list[tuple[int, torch.Tensor]], int]:
    file = io.BytesIO()
    pickler = _Pickler(file, start)
    try:
        pickler.dump(batch)
    except Unpackable:
        raise
    except Exception as error:  # whatever a class says that cannot be pickled
        raise Unpackable(f"what it returns cannot be pickled ({type(error).__name__}: {error})") from error
    tensors = [(place.offset, tensor) for place, tensor in pickler.places.values()]
    spans = sorted((tensor.data_ptr(), tensor.data_ptr() + _bytes(tensor)) for _, tensor in tensors if tensor.numel())
    if any(end > following for (_, end), (following, _) in zip(spans, spans[1:])):
        raise Unpackable("two of its tensors share memory")
    return file.getvalue(), tensors, pickler.end


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, start: int) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.places: dict[int, tuple[Place, torch.Tensor]] = {}
        self.end = start

    def persistent_id(self, thing: Any) -> Any:
        if not isinstance(thing, torch.Tensor):
            return None
        known = self.places.get(id(thing))
        if known is None:
            _refuse_special(thing)
            offset = self.end + (thing.data_ptr() - self.end) % LINE_BYTES
            self.end = offset + _bytes(thing)
            known = Place(offset, thing.dtype, tuple(thing.shape), tuple(thing.stride())), thing
            self.places[id(thing)] = known
        return tuple(known[0])


class _Unpickler(pickle.Unpickler):
    def __init__(self, packed: bytes, memory: mmap.mmap) -> None:
        super().__init__(io.BytesIO(packed))
        self.memory = memory
        self.made: dict[int, torch.Tensor] = {}

    def persistent_load(self, place: Any) -> torch.Tensor:
        offset, dtype, shape, stride = place
        elements = 1
        for size in shape:
            elements *= size
        if elements == 0:
            return torch.empty_strided(shape, stride, dtype=dtype)
        if offset not in self.made:  # the same object in two places of a batch stays one
            flat = torch.frombuffer(self.memory, dtype=dtype, offset=offset, count=elements)
            self.made[offset] = flat.as_strided(shape, stride)
        return self.made[offset]


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _refuse_special(tensor: torch.Tensor) -> None:
    plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
    if not plain or tensor.requires_grad or tensor.is_conj() or tensor.is_neg() or tensor.__dict__:
        raise Unpackable("one of its tensors is of a special kind")
    following = 1
    for stride, size in sorted((stride, size) for size, stride in zip(tensor.shape, tensor.stride()) if size != 1):
        if stride != following and tensor.numel():
            raise Unpackable("one of its tensors has gaps or overlaps itself")
        following *= size
