"""Calls a user's collate() before its batch is asked for, in a process of its own that is forked from this one, while this one computes a gradient.

Bits do not depend on it: it is called with the same rows and the same seeds, and in that process there is nothing else that it could be a function of:
parameters, buffers and state are out of reach there, as is the step. Whatever does not work so is done in the step, as it is without this: where
collate() is quick, where that process fails or ends, where what it returns cannot be carried over, or is not what it is here.
"""

from __future__ import annotations

import collections
import ctypes
import multiprocessing
import os
import signal
import statistics
import struct
import sys
import time
import warnings
from typing import Any, Callable, NamedTuple

import torch

from ebb import attributes
from ebb.arena import Arena, TooLarge, Unpackable, bytes_of
from ebb.refuse import describe

#: Handing a batch over costs about a tenth of this.
WORTH_SECONDS = 1e-3
#: Of so many calls the middle one is to take that long.
CALLS = 5
#: So many batches are made both here and there, and have to be the same.
TRIALS = 4
#: Longest wait for a batch that was begun, beyond what the step took: then that process hangs, in a lock that was held when it was forked.
WAIT_SECONDS = 10.0
#: One is computed with while the next is made.
BATCHES = 2
#: Room beyond twice what the first batch needed.
SPARE_BYTES = 1 << 20
PROT_NONE = 0
MADE, LARGE, FAILED = b"m", b"l", b"f"


class Rows(NamedTuple):
    """A batch's rows in the memory that the executor writes: whose turn they are, in which step, how many, and from which byte on. The number is of
    what was written there, and no other: without one nobody says how long it stays."""

    rank: int
    step: int
    start: int
    count: int
    number: int


class Collator:
    """`collated(rows, apart)` is what it does ahead: calls collate(), for rows that are copied first where it is `apart`."""

    def __init__(self, collated: Callable[[Rows, bool], Any], job: Any, wanted: int | None) -> None:
        self.collated, self.job = collated, job
        #: What the job's `loader` says: always, never, or where it is worth it.
        self.always, self.off = bool(wanted), wanted == 0
        self.times: collections.deque[float] = collections.deque(maxlen=CALLS)
        self.hidden: list[tuple[int, int]] = []
        self.bytes = 0
        self.arena: Arena | None = None
        self.pid = 0
        self.connection: Any = None
        self.asked: Rows | None = None
        self.index = 0
        self.trials = TRIALS
        #: How many batches came from there, and how long they were waited for.
        self.made, self.waited = 0, 0.0

    def hide(self, tensor: torch.Tensor) -> None:
        """Puts memory out of reach there; it must be mapped for itself alone."""
        self.hidden.append((tensor.data_ptr(), tensor.numel() * tensor.element_size()))

    def batch(self, rows: Rows) -> Any:
        """The batch of these rows."""
        made = self._take(rows)
        if made is not None and self.trials == 0:
            self.made += 1
            return made[0]
        begun = time.perf_counter()
        batch = self.collated(rows, False)
        self.times.append(time.perf_counter() - begun)
        if made is not None:
            self.trials -= 1
            if attributes.contents(made[0]) != attributes.contents(batch):
                self._give_up("it returned something else there, so it depends on more than its rows")
        elif not self.off and self.bytes == 0 and self._is_worth_it():
            try:
                self.bytes = 2 * bytes_of(batch) + SPARE_BYTES
            except Unpackable as error:
                self._give_up(str(error))
        return batch

    def begin(self, rows: Rows) -> None:
        """These rows lie there, and are asked for next."""
        if self.off or self.bytes == 0 or rows.count == 0 or not self._is_worth_it():
            return
        try:
            if self.asked is not None and not self._is_answered():
                return  # busy with something that is not wanted any more
            if self.pid == 0:
                self._start()
            self.index = (self.index + 1) % BATCHES
            self.connection.send_bytes(struct.pack("<6Q", *rows, self.index))
            self.asked = rows
        except (OSError, EOFError):
            self._give_up("its process ended")

    def waited_us(self) -> int:
        """Microseconds that were waited since this was asked last."""
        waited, self.waited = self.waited, 0.0
        return int(waited * 1e6)

    def _is_worth_it(self) -> bool:
        return self.always or len(self.times) == CALLS and statistics.median(self.times) >= WORTH_SECONDS

    def _is_answered(self) -> bool:
        """Whether the answer to what was asked last has come; then it is read, for nobody."""
        if not self.connection.poll(0):
            return False
        self.connection.recv_bytes()
        self.asked = None
        return True

    def _take(self, rows: Rows) -> tuple[Any] | None:
        if self.asked is None or self.asked != rows:
            return None
        self.asked = None
        begun = time.perf_counter()
        try:
            if not self.connection.poll(WAIT_SECONDS):
                return self._give_up(f"there it took more than {WAIT_SECONDS:.0f} seconds")
            answer = self.connection.recv_bytes()
        except (OSError, EOFError):
            return self._give_up("its process ended, as it does where it reads parameters or state")
        finally:
            self.waited += time.perf_counter() - begun
        kind, said = answer[:1], answer[1:]
        if kind == LARGE:
            self._end()
            self.bytes = 2 * struct.unpack("<Q", said)[0]
            return None
        if kind == FAILED:
            return self._give_up(said.decode(errors="replace"))
        try:
            assert self.arena is not None
            return (self.arena.unpack(said),)
        except Exception as error:  # noqa: BLE001 - a class of the user's that cannot be unpickled says anything
            return self._give_up(f"what it returns cannot be unpickled ({type(error).__name__}: {error})")

    def _give_up(self, why: str) -> None:
        """From now on everything is done in the step."""
        self.off = True
        self._end()
        print(f"ebb: collate() is called in the step, and not ahead of it: {why}", file=sys.stderr)

    def _end(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.connection.close()
        self.pid, self.connection, self.asked, self.arena = 0, None, None, None

    def _start(self) -> None:
        self.arena = Arena(BATCHES, self.bytes)
        ours, theirs = multiprocessing.Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads, as torch's DataLoader does too
            pid = os.fork()
        if pid == 0:
            try:
                ours.close()
                self._serve(theirs)
            finally:
                os._exit(1)
        theirs.close()
        self.pid, self.connection = pid, ours

    def _serve(self, connection: Any) -> None:
        from ebb.worker import die_with_parent

        die_with_parent()
        torch.set_num_threads(1)
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        for address, size in self.hidden:
            protect(ctypes.c_void_p(address), ctypes.c_size_t(size), PROT_NONE)
        self.job.__dict__.pop("step", None)
        arena = self.arena
        assert arena is not None
        while True:
            try:
                *rows, index = struct.unpack("<6Q", connection.recv_bytes())
            except EOFError:
                return
            try:
                answer = MADE + arena.pack(self.collated(Rows(*rows), True), index)
            except TooLarge as error:
                answer = LARGE + struct.pack("<Q", error.needed)
            except BaseException as error:  # noqa: BLE001 - whatever it is: called in the step it is met again, and told
                answer = FAILED + describe(error)["what"].encode()
            connection.send_bytes(answer)
