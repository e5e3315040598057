"""Memory shared with the executor: an anonymous file mapped by both. Who owns which bytes when is the protocol's business.

In large pages where the kernel gives them, as the executor has it (`workers/memory/src/mapping.rs`): parameters, the optimizer's state and gradients are
passed over from end to end in each step.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Callable

import torch

ALIGN_WORDS = 16
WORD_BYTES = 4
LARGE_BYTES = 2 << 20
# Of the kernel's interface; Python has no names for them.
MAP_FIXED, MAP_NORESERVE, MADV_POPULATE_READ, MADV_COLLAPSE = 0x10, 0x4000, 22, 25


class Segment:
    """A shared, zeroed run of bytes. `bytes` is a tensor over it; `map` the same for `struct`. With `theirs` it is one that the executor made."""

    def __init__(self, name: str, size: int, theirs: int | None = None) -> None:
        if theirs is None:
            size = max(size, ALIGN_WORDS * WORD_BYTES)
            self.fd = os.memfd_create(f"ebb-{name}", os.MFD_CLOEXEC)
            os.ftruncate(self.fd, size)
            # Pages are made now: a first touch later costs 4 ms a megabyte.
            self.map = _mapped(self.fd, size)
            _make_large_pages(self.map)
            os.posix_fallocate(self.fd, 0, size)
        else:
            self.fd = theirs
            self.map = _mapped(self.fd, size)
            # Its pages are there. They are mapped for reading, which takes half of what it takes for writing: a page that several processes may write is
            # mapped for both at once. Kernels before 5.14 map them when they are touched.
            _advise(self.map, size, MADV_POPULATE_READ)
        self.bytes = torch.frombuffer(self.map, dtype=torch.uint8)
        self.size = size

    def pin(self) -> None:
        """Lets the device copy straight from and to it, where CUDA allows; without it copies only take longer."""
        try:
            torch.cuda.cudart().cudaHostRegister(self.bytes.data_ptr(), self.size, 0)
        except Exception:  # noqa: BLE001 - an optimization, and every CUDA version says no in its own way
            pass

    def unpin(self) -> None:
        """Before memory that the device may copy from and to is given up."""
        try:
            torch.cuda.cudart().cudaHostUnregister(self.bytes.data_ptr())
        except Exception:  # noqa: BLE001 - it was never pinned
            pass

    def close_descriptor(self) -> None:
        """For memory that is given to nobody else: the mapping alone keeps it from now on."""
        os.close(self.fd)
        self.fd = -1


def _mapped(descriptor: int, size: int) -> memoryview:
    """A file's first bytes, where a large page may begin. Python maps at no address that one says, so the file takes the place of a part of a
    mapping of Python's, with which it goes."""
    around = mmap.mmap(-1, size + LARGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(around))
    before = -begin % LARGE_BYTES
    call = ctypes.CDLL(None, use_errno=True).mmap
    call.restype, call.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    if call(begin + before, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | MAP_FIXED, descriptor, 0) != begin + before:
        error = ctypes.get_errno()
        raise OSError(error, f"memory to share cannot be mapped: {os.strerror(error)}")
    return memoryview(around)[before : before + size]


def _make_large_pages(memory: memoryview) -> None:
    """As far as the kernel gives any (Linux 6.1 and later). It makes one of what is there of it, so each has to have begun."""
    whole = len(memory) // LARGE_BYTES * LARGE_BYTES
    for start in range(0, whole, LARGE_BYTES):
        memory[start] = 0
    if whole:
        _advise(memory, whole, MADV_COLLAPSE)


def _advise(memory: memoryview, size: int, advice: int) -> None:
    """Asks the kernel for something about the first bytes that it need not grant."""
    call = ctypes.CDLL(None).madvise
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    call(ctypes.addressof(ctypes.c_char.from_buffer(memory)), size, advice)


def apart(like: torch.Tensor) -> tuple[torch.Tensor, Callable[[int, int], torch.Tensor]]:
    """Zeroed bytes as many as these, and a function that gives a stretch of them as a tensor of a storage of its own: on a device, where
    torch makes no tensor of memory that is there, one of the common storage."""
    if like.is_cuda or like.numel() == 0:
        flat = torch.zeros_like(like)
        return flat, lambda start, size: flat[start : start + size]
    memory = mmap.mmap(-1, like.numel())
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    return whole, lambda start, size: torch.frombuffer(memory, dtype=torch.uint8, offset=start, count=size) if size else whole[:0]
