"""Says which stretches of a gradient are final while backward is still computing others, so that the executor can sum and send them.

Knows places, not values. A stretch that was said must not change any more; whether a parameter's gradient is final is known to who counts its
hooks (`program.py`).
"""

from __future__ import annotations

import struct
from typing import Callable

from ebb.layout import Slot
from ebb.segment import WORD_BYTES

#: Of one message at most so often in a gradient: more would only make a large model's executor look up more often.
MESSAGES_MAX = 16
#: A smaller stretch is summed and sent in less time than is won, and a model that has no more than this is told of nothing.
STRETCH_BYTES_MIN = 1 << 20


class Parts:
    """The stretches of one gradient."""

    def __init__(self, slots: list[Slot], elements: int) -> None:
        self.slots = slots
        self.enough = max(STRETCH_BYTES_MIN // WORD_BYTES, -(-elements // MESSAGES_MAX))
        self.say: Callable[[bytes], None] | None = None
        self.pending: list[Slot] = []
        self.elements = 0

    def begin(self, say: Callable[[bytes], None] | None) -> None:
        """A gradient begins, of which stretches are told to this one, or to nobody."""
        self.say, self.pending, self.elements = say, [], 0

    def end(self) -> None:
        """All of it is final, or void."""
        self.begin(None)

    def final(self, index: int) -> None:
        """The gradient of this parameter is final."""
        if self.say is None:
            return
        slot = self.slots[index]
        self.pending.append(slot)
        self.elements += slot.words
        if self.elements >= self.enough:
            stretches = joined(self.pending)
            self.pending, self.elements = [], 0
            self.say(b"".join(struct.pack("<QQ", start, end) for start, end in stretches))


def joined(slots: list[Slot]) -> list[tuple[int, int]]:
    """The beginning and end of each stretch that these are, neighbours made one."""
    found: list[tuple[int, int]] = []
    for slot in sorted(slots, key=lambda slot: slot.word):
        if slot.words == 0:
            continue
        if found and found[-1][1] == slot.word:
            found[-1] = (found[-1][0], slot.word + slot.words)
        else:
            found.append((slot.word, slot.word + slot.words))
    return found
