"""Memory shared with the executor: an anonymous file mapped by both. Who owns which bytes when is the protocol's business."""

from __future__ import annotations

import mmap
import os
import sys
from typing import Callable

import torch

ALIGN_WORDS = 16
WORD_BYTES = 4
MADV_POPULATE_READ = 22  # in Linux; Python has no name for it


class Segment:
    """A shared, zeroed run of bytes. `bytes` is a tensor over it; `map` the same for `struct`. With `theirs` it is one that the executor made."""

    def __init__(self, name: str, size: int, theirs: int | None = None) -> None:
        if theirs is None:
            size = max(size, ALIGN_WORDS * WORD_BYTES)
            self.fd = os.memfd_create(f"ebb-{name}", os.MFD_CLOEXEC)
            os.posix_fallocate(self.fd, 0, size)  # pages are touched now: a first touch later costs 4 ms a megabyte
        else:
            self.fd = theirs
        # A mapping needs no descriptor; Python's has one all the same where it cannot be told otherwise.
        untracked = {"trackfd": False} if sys.version_info >= (3, 13) else {}
        populate = getattr(mmap, "MAP_POPULATE", 0) if theirs is None else 0
        self.map = mmap.mmap(self.fd, size, flags=mmap.MAP_SHARED | populate, **untracked)
        if theirs is not None:
            self._map_pages()
        self.bytes = torch.frombuffer(self.map, dtype=torch.uint8)
        self.size = size

    def _map_pages(self) -> None:
        """Of memory whose pages are there: for reading, which takes half of what it takes for writing, and a page that several processes may write is mapped for
        both at once."""
        try:
            self.map.madvise(MADV_POPULATE_READ)
        except OSError:  # kernels before 5.14: pages are mapped when they are touched
            pass

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


def apart(like: torch.Tensor) -> tuple[torch.Tensor, Callable[[int, int], torch.Tensor]]:
    """Zeroed bytes as many as these, and a function that gives a stretch of them as a tensor of a storage of its own: on a device, where
    torch makes no tensor of memory that is there, one of the common storage."""
    if like.is_cuda or like.numel() == 0:
        flat = torch.zeros_like(like)
        return flat, lambda start, size: flat[start : start + size]
    memory = mmap.mmap(-1, like.numel())
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    return whole, lambda start, size: torch.frombuffer(memory, dtype=torch.uint8, offset=start, count=size) if size else whole[:0]
