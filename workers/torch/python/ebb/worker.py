"""`python -m ebb.worker`: the executor's Python child. One request, one reply, over the socket in EBB_TORCH_FD; knows no network. Before the reply
to a request for a gradient there may be frames of kind `r`: stretches of it that are final, each by its first element and the one after its last.

A frame is: u32 length of what follows, u8 kind, payload; integers little-endian. The user's prints go to stdout and stderr,
which are never used here. Where the executor goes away, so does this process: EBB_TORCH_LIFE is a pipe whose other end only the
executor holds.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from typing import Any, Callable

from ebb import heap, numerics
from ebb.refuse import Refused, describe

FRAME_LIMIT_BYTES = 64 << 20
# What one read asks for at least, and the descriptors that come with it at most: those of a request to fork.
READ_BYTES, DESCRIPTORS_MAX = 4096, 5
ANCILLARY_BYTES = socket.CMSG_SPACE(DESCRIPTORS_MAX * array.array("i").itemsize)
# A request for a gradient: rank, step, the batch's first byte and its rows, the memory's number, whether stretches are told, whether it is divided by
# its weight, whether it is the first and the last of those that are added up, and how many other ranks' rows it is of as well. Then these ranks; then, where there is one, the batch's number; then, where it lies there
# already, rank, step, first byte, rows and number of the batch that is asked for next.
GRADIENT, NUMBER, FOLLOWING = struct.Struct("<HQQIQ????H"), struct.Struct("<Q"), struct.Struct("<HQQIQ")
# A request for an update: step, the schedule's factor, the memory's number, how many steps it takes, the factor on its rates.
UPDATE = struct.Struct("<QdQHd")
PR_SET_PDEATHSIG = 1


class Channel:
    """This end of a conversation."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.heard = b""
        self.descriptors: list[int] = []

    def receive(self) -> tuple[bytes, bytes]:
        """The next request: kind and payload. Ends the process where there is nobody any more."""
        (length,) = struct.unpack("<I", self._exactly(4))
        if not 1 <= length <= FRAME_LIMIT_BYTES:
            os._exit(3)
        body = self._exactly(length)
        return body[:1], body[1:]

    def receive_with(self) -> tuple[bytes, bytes, list[int]]:
        """The same, and the descriptors that came until it was there."""
        kind, payload = self.receive()
        descriptors, self.descriptors = self.descriptors, []
        return kind, payload, descriptors

    def send(self, kind: bytes, payload: bytes, descriptors: list[int] | None = None) -> None:
        """A reply; descriptors travel with its first byte."""
        frame = struct.pack("<I", len(payload) + 1) + kind + payload
        sent = 0
        if descriptors:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
            sent = self.connection.sendmsg([frame], rights)
        if sent < len(frame):  # nothing more to a peer that has heard it and is gone would be an error
            self.connection.sendall(memoryview(frame)[sent:])

    def _exactly(self, count: int) -> bytes:
        while len(self.heard) < count:
            # All that is there at once: a step's two small requests cost a call, not four. What is after a frame with descriptors is never
            # read with it (unix(7): they are a barrier in the stream), so a server that polls has nothing left over.
            try:
                missing = count - len(self.heard)
                flags = socket.MSG_WAITALL if missing > READ_BYTES else 0  # a long frame comes whole, not in pieces that are copied again and again
                more, ancillary, _, _ = self.connection.recvmsg(max(READ_BYTES, missing), ANCILLARY_BYTES, flags)
            except ConnectionError:  # gone, with something unread
                os._exit(0)
            if not more:
                os._exit(0)
            self.heard += more
            for level, kind, data in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    self._take(array.array("i", data))
        taken, self.heard = self.heard[:count], self.heard[count:]
        return taken

    def _take(self, descriptors: array.array[int]) -> None:
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        self.descriptors.extend(descriptors)


#: Where the compiler of `torch.compile` keeps what it made.
COMPILER_CACHE = "TORCHINDUCTOR_CACHE_DIR"


def warm() -> None:
    """Imports what every program needs, for a process that forks workers: torch, and the compiler's front end that the first optimizer
    step would import (900 modules, more seconds than torch itself). Computes nothing, so that no thread is started."""
    numerics.prepare_environment()
    try:
        import numpy  # noqa: F401
    except ImportError:
        pass
    import torch  # noqa: F401

    asked = os.environ.get(COMPILER_CACHE)
    import torch._dynamo  # noqa: F401
    import torch.utils.data  # noqa: F401

    import ebb.twin  # noqa: F401

    if asked is None:  # the import says there what this process's temporary folder is, and a forked one has a folder of its own
        os.environ.pop(COMPILER_CACHE, None)


def main() -> None:
    """Serves the socket until it ends."""
    die_with(int(os.environ["EBB_TORCH_LIFE"]))
    serve(socket.socket(fileno=int(os.environ["EBB_TORCH_FD"])))


def die_with(life: int) -> None:
    """Asks the kernel to kill this process as soon as nobody holds the other end of this pipe, also where it is stuck in a kernel of the
    user's. Unlike the parent-death signal this is about a process, not about the thread that happened to start this one, and it is
    about the one that holds the other end, which need not be the parent."""
    os.set_inheritable(life, False)
    fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | fcntl.FASYNC)
    gone = select.poll()
    gone.register(life, 0)
    if gone.poll(0):  # since before anybody asked
        os._exit(0)


def die_with_parent() -> None:
    """The same of the parent, for processes that this one's thread starts: those that read data."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def serve(connection: socket.socket) -> None:
    """Answers requests one after the other, for as long as there is who asks."""
    # Only this process may keep the conversation open: none that the user's code forks or starts, such as a loader's.
    connection.set_inheritable(False)
    os.register_at_fork(after_in_child=connection.close)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)
    channel = Channel(connection)
    server = Server(lambda stretches: channel.send(b"r", stretches))
    while True:
        kind, payload, server.received = channel.receive_with()
        if kind == b"X":
            sys.stdout.flush()
            os._exit(0)
        try:
            reply, descriptors = server.answer(kind, payload)
        except BaseException as error:  # whatever it is, the executor must hear of it
            kind, reply, descriptors = b"!", json.dumps(describe(error)).encode(), []
        try:
            channel.send(kind.lower(), reply, descriptors)
        except ConnectionError:  # nobody waits for it any more
            os._exit(0)
        for descriptor in server.spent:
            os.close(descriptor)
        server.spent.clear()


class Server:
    """A program and what may be asked of it."""

    def __init__(self, say_part: Callable[[bytes], None] | None = None) -> None:
        self.program: Any = None
        self.rows: Any = None
        self.say_part = say_part
        self.keeps_freed = False
        self.spent: list[int] = []
        self.received: list[int] = []

    def answer(self, kind: bytes, payload: bytes) -> tuple[bytes, list[int]]:
        """The reply to a request, and descriptors to send along."""
        if kind == b"B":
            return self._build(json.loads(payload))
        if self.program is None:
            raise RuntimeError(f"{kind!r} before a program was built")
        if kind == b"G":
            return self._gradient(payload), []
        if kind == b"N":
            (step,), ranks = struct.unpack_from("<Q", payload), payload[8:]
            self.program.expect([rank for (rank,) in struct.iter_unpack("<H", ranks)], step)
            return b"", []
        if kind == b"A":
            self.program.apply(*UPDATE.unpack(payload))
            if not self.keeps_freed:  # the first update makes what later ones find
                self.keeps_freed = True
                heap.keep_freed()
            return b"", []
        if kind == b"P":
            (descriptor,) = self.received
            self.program.add_place(*struct.unpack("<Q", payload), descriptor)
            return b"", []
        if kind == b"H":
            self.program.hold(compute_only=payload[0] == 1)
            return b"", []
        if kind == b"S":
            self.program.snapshot()
            return b"", []
        if kind == b"E":
            return self._evaluate(*struct.unpack("<HQI", payload)), []
        if kind == b"M":
            return self._model(json.loads(payload))
        raise RuntimeError(f"{kind!r} is no request of this protocol")

    def _gradient(self, payload: bytes) -> bytes:
        rank, step, start, rows, place, wanted, mean, first, last, count = GRADIENT.unpack_from(payload)
        others = struct.unpack_from(f"<{count}H", payload, GRADIENT.size)
        end = GRADIENT.size + 2 * count
        (number,) = NUMBER.unpack_from(payload, end) if len(payload) > end else (0,)
        following = payload[end + NUMBER.size :]
        after = self.rows(*FOLLOWING.unpack(following)) if following else None
        say = self.say_part if wanted else None
        weight, loss, waited_us = self.program.gradient(rank, step, rows, place, say, start, number, after, mean, others, first, last)
        return struct.pack("<ddQ", weight, loss, waited_us)

    def _build(self, message: dict[str, Any]) -> tuple[bytes, list[int]]:
        begun = time.perf_counter()
        numerics.prepare_environment(message.get("threads"))
        try:
            import torch  # noqa: F401
        except ImportError as error:
            raise Refused(
                f"the Python `{sys.executable}` cannot import torch ({error}); name one that can, as `python:` in the job file or "
                "on the servers with `ebb up --python` or `ebb agent --python`"
            ) from error
        from ebb import check, twin
        from ebb.build import Settings
        from ebb.collator import Rows
        from ebb.program import Program

        imported = time.perf_counter()
        settings = Settings.parse(message)
        other = twin.ask(settings) if settings.check else None
        asked = time.perf_counter()
        program = Program(settings)
        built = time.perf_counter()
        check.run(program, thorough=settings.check)
        twin.compare(program, other)
        # What the other process took is part of the check.
        marks = (begun, imported, imported + built - asked, time.perf_counter())
        names = ("import_us", "build_us", "check_us")
        times = {name: round((after - before) * 1e6) for name, before, after in zip(names, marks, marks[1:])}
        self.program, self.rows = program, Rows
        segments = [program.replica_segment.fd, program.batch_segment.fd]
        return json.dumps({**program.describe(), "times": times}).encode(), segments

    def _evaluate(self, rank: int, part: int, rows: int) -> bytes:
        sums, count = self.program.evaluate(rank, part, rows)
        return json.dumps({"sums": {name: bits(value) for name, value in sums.items()}, "count": count}).encode()

    def _model(self, message: dict[str, Any]) -> tuple[bytes, list[int]]:
        from ebb import tensors

        descriptor = os.memfd_create("ebb-model", os.MFD_CLOEXEC)
        self.spent.append(descriptor)
        with open(descriptor, "wb", closefd=False) as file:
            size, digest = tensors.write(file, self.program.export(), [(name, value) for name, value in message["metadata"]])
        return json.dumps({"bytes": size, "digest": digest}).encode(), [descriptor]


def bits(value: float) -> str:
    """The 64 bits of a float as hexadecimal digits: JSON's numbers would not be the same on the other side."""
    return struct.pack(">d", value).hex()


if __name__ == "__main__":
    main()
