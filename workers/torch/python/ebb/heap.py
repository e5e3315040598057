"""What the C library does with memory that is freed: here it is kept for the next step, which wants as much again.

Otherwise each step gives its large gradients and activations back to the kernel and is given zeroed pages anew, a fault for every four
kilobytes: some 5 % of a step with gradients of 100 MB.
"""

from __future__ import annotations

import ctypes

#: Numbers of `mallopt`, as the GNU C library has them.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
#: A block from this size on still has pages of its own, and gives them back: it is no part of a step of a few seconds.
OWN_PAGES_FROM_BYTES = 1 << 30
#: So much may be free at the heap's end before it is given back; more than any step frees at once, as a C `int` can say it.
FREE_BYTES_MAX = (1 << 31) - 1


def keep_freed() -> None:
    """From now on, in this process; what is free already is given back, since building a model and its first step take more than
    other steps do. Bits do not depend on it. Another C library than GNU's has no such calls, and goes on as it is."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt") and hasattr(library, "malloc_trim"):
        library.malloc_trim(0)
        library.mallopt(M_MMAP_THRESHOLD, OWN_PAGES_FROM_BYTES)
        library.mallopt(M_TRIM_THRESHOLD, FREE_BYTES_MAX)
