"""Where each tensor of the replica and of the gradient lies. Positions only: nothing here reads or writes a tensor's values.

The replica: trainable parameters, frozen parameters, buffers, further state (all that computing a gradient may read), then the
optimizer's tensors, then the Python state. Each tensor begins at a multiple of 16 words of 4 bytes; padding is zero.
"""

from __future__ import annotations

import dataclasses

import torch

from ebb.refuse import Refused
from ebb.segment import ALIGN_WORDS, WORD_BYTES


def aligned(words: int) -> int:
    """The next multiple of a tensor's alignment."""
    return -(-words // ALIGN_WORDS) * ALIGN_WORDS


def is_dense(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether these strides reach each of as many elements as the shape has exactly once."""
    expected = 1
    for step, size in sorted((s, n) for n, s in zip(shape, stride) if n != 1):
        if step != expected:
            return False
        expected *= size
    return True


@dataclasses.dataclass(frozen=True)
class Slot:
    """One tensor's place. `on_host`: it stays in the segment even where the replica is on a device (an optimizer's step counts)."""

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    word: int
    on_host: bool = False

    @property
    def elements(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def words(self) -> int:
        return aligned(-(-self.elements * self.dtype.itemsize // WORD_BYTES))

    def view(self, flat: torch.Tensor) -> torch.Tensor:
        """This tensor over a flat tensor of bytes."""
        start = self.word * WORD_BYTES
        raw = flat[start : start + self.elements * self.dtype.itemsize].view(self.dtype)
        return raw.as_strided(self.shape, self.stride, raw.storage_offset())


class Layout:
    """Gives out places one after the other."""

    def __init__(self) -> None:
        self.words = 0

    def place(self, name: str, tensor: torch.Tensor, *, on_host: bool = False, dense_copy: bool = False) -> Slot:
        """The next place, for a tensor like this one. With `dense_copy`, strides that cannot be kept become contiguous ones."""
        shape, stride = tuple(tensor.shape), tuple(tensor.stride()) if tensor.layout is torch.strided else ()
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise Refused(f"`{name}` is a sparse or quantized tensor, which a replica cannot hold; make it a dense one")
        if not is_dense(shape, stride):
            if not dense_copy:
                raise Refused(f"`{name}` is a view that skips or repeats elements; give it memory of its own (`.clone()`, `.contiguous()`)")
            stride = tuple(torch.empty(shape, device="meta").stride())
        slot = Slot(name, shape, stride, tensor.dtype, self.words, on_host)
        self.words += slot.words
        return slot


def gradient_slots(parameters: list[Slot]) -> tuple[list[Slot], int]:
    """The places of the gradient (f32, the parameters' strides), and its elements."""
    slots, word = [], 0
    for parameter in parameters:
        slot = Slot(parameter.name, parameter.shape, parameter.stride, torch.float32, word)
        slots.append(slot)
        word += slot.words
    return slots, word
