"""Where chance comes from: every generator is set from (seed, purpose, numbers), so that nothing remembers what was drawn before."""

from __future__ import annotations

import hashlib
import random
import sys

import torch


def key(seed: int, purpose: str, *numbers: int) -> int:
    """63 bits that depend on all of these: BLAKE2b of the text `ebb:SEED:PURPOSE:NUMBER:NUMBER…`."""
    text = ":".join(["ebb", str(seed), purpose, *map(str, numbers)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def key_of_part(seed: int, purpose: str, first: int, second: int, part: int) -> int:
    """The same of one part of several; the first has the chance of what is whole."""
    return key(seed, purpose, first, second, *([part] if part else []))


def set_all(value: int, cuda: bool = False) -> None:
    """Sets torch's, Python's and, where it is loaded, NumPy's generators."""
    torch.default_generator.manual_seed(value)  # a hundredth of the cost of torch.manual_seed, which visits every device type
    random.seed(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(value & 0xFFFF_FFFF)  # an array of both halves would take four times as long
    if cuda:
        torch.cuda.default_generators[torch.cuda.current_device()].manual_seed(value)
