"""`python -m ebb.forkserver`: imports torch once, and forks the Python child of each executor from then on: milliseconds, not seconds.

Its agent is at the other end of the socket that is its standard input; frames are those of `ebb.worker`. The agent says `L` with the end of a
pipe whose other end only it holds, and is told `w` when torch is imported, or `!` and why it cannot be forked. Each `F` brings an executor's
request: its process group, the variables of its job, and four descriptors: the child's end of the executor's socket, where it may
print, the pipe that ends with the executor, and the connection on which the executor hears `f` with a pidfd, and in the end `x` with the child's status.
The agent hears `f` and `x` as well.

One thread, because only that one lives on in a child. The user's code is never imported here, nothing is computed and no device is
touched: a child finds what it would have found after an import of its own.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import json
import os
import select
import signal
import socket
import sys
import tempfile
from typing import Any

from ebb.worker import Channel, die_with, serve, warm

CONTROL = 0
#: Of prctl(2).
PR_SET_NO_NEW_PRIVS = 38
#: The same number on every machine.
LANDLOCK_RESTRICT_SELF = 446


class Unfit(Exception):
    """Why no child may be forked from this process."""


def main() -> None:
    """Serves the agent; returns never, in a child neither."""
    agent = Channel(socket.socket(fileno=CONTROL))
    _, _, (life,) = agent.receive_with()
    die_with(life)
    try:
        before = stamps()
        warm()
        rehearse()
        check(before)
    except Exception as error:  # noqa: BLE001 - whatever it is, the agent has to know that executors start Python themselves
        agent.send(b"!", f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    gc.collect()
    gc.freeze()  # a collection in a child would write to every page
    agent.send(b"w", str(private_bytes()).encode())
    request = forks(agent, before)
    # From here on this is a child. The agent's socket is its standard input, and goes with that.
    os.close(life)
    agent.connection.detach()
    serve(become(request))


@dataclasses.dataclass
class Request:
    """What one executor asked for."""

    group: int
    environment: dict[str, str]
    socket: int
    output: int
    life: int
    connection: int
    rules: int | None = None
    folder: str | None = None

    @classmethod
    def parse(cls, payload: bytes, descriptors: list[int]) -> Request:
        """Of a frame."""
        message: dict[str, Any] = json.loads(payload)
        job_socket, output, life, *rules, connection = descriptors
        given = (message["group"], message["environment"], job_socket, output, life, connection)
        return cls(*given, rules[0] if rules else None, message.get("folder"))

    def close(self) -> None:
        """What the server has no more use for, once the child has it."""
        for descriptor in (self.socket, self.output, self.life, self.rules):
            if descriptor is not None:
                os.close(descriptor)


def forks(agent: Channel, before: dict[str, int]) -> Request:
    """Forks and reaps for as long as the agent lives. Returns in children only, with what they were forked for."""
    living: dict[int, tuple[int, socket.socket]] = {}
    waiting = select.poll()
    waiting.register(CONTROL, select.POLLIN)
    while True:
        for ready, _ in waiting.poll():
            if ready != CONTROL:
                pid, connection = living.pop(ready)
                waiting.unregister(ready)
                reap(ready, pid, connection)
                agent.send(b"x", b"")
                continue
            _, payload, descriptors = agent.receive_with()
            try:
                check(before)
            except Unfit as why:  # its environment is another one now: the next server imports that
                agent.send(b"!", str(why).encode())
                os._exit(1)
            request = Request.parse(payload, descriptors)
            pid = os.fork()
            if pid == 0:
                for sibling, (_, connection) in living.items():
                    os.close(sibling)
                    connection.close()
                os.close(request.connection)
                return request
            handle = os.pidfd_open(pid)
            request.close()
            living[handle] = (pid, tell(request.connection, pid, handle))
            waiting.register(handle, select.POLLIN)
            agent.send(b"f", b"")


def tell(descriptor: int, pid: int, handle: int) -> socket.socket:
    """Gives an executor its child."""
    connection = socket.socket(fileno=descriptor)
    connection.setblocking(False)  # it is asked for two small answers; one that takes none is no reason to wait
    try:
        Channel(connection).send(b"f", str(pid).encode(), [handle])
    except OSError:
        pass  # gone, and its child goes with it
    return connection


def reap(handle: int, pid: int, connection: socket.socket) -> None:
    """Says how a child ended."""
    _, status = os.waitpid(pid, 0)
    os.close(handle)
    code = os.waitstatus_to_exitcode(status)
    try:
        Channel(connection).send(b"x", (f"signal: {-code}" if code < 0 else f"exit status: {code}").encode())
    except OSError:
        pass  # nobody wants to know any more
    connection.close()


def become(request: Request) -> socket.socket:
    """Makes this child what a Python of the executor's own would be; its end of the executor's socket."""
    try:
        os.setpgid(0, request.group)
        os.nice(max(0, os.getpriority(os.PRIO_PROCESS, request.group) - os.nice(0)))  # a guest has a lower priority than its server
    except OSError:  # there is no such group any more, so its executor is gone
        os._exit(0)
    die_with(request.life)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for given, standard in ((nothing, 0), (request.output, 1), (request.output, 2)):
        os.dup2(given, standard)
    os.close(nothing)
    os.close(request.output)
    os.environ.update(request.environment, EBB_TORCH_FD=str(request.socket), EBB_TORCH_LIFE=str(request.life))
    if request.folder is not None:
        os.chdir(request.folder)
        tempfile.tempdir = None  # where it is, may have been asked before
    if request.rules is not None:
        restrict(request.rules)
    return socket.socket(fileno=request.socket)


def restrict(rules: int) -> None:
    """Takes on rules for files, for this process and all that it starts. Without them nothing of a job's may run."""
    kernel = ctypes.CDLL(None, use_errno=True)
    if kernel.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or kernel.syscall(LANDLOCK_RESTRICT_SELF, rules, 0):
        print(f"the rules for its files are refused: {os.strerror(ctypes.get_errno())}", file=sys.stderr, flush=True)
        os._exit(1)
    os.close(rules)


def rehearse() -> None:
    """Forks once for nothing: libraries with threads that know of forks (OpenBLAS) end them before one, and begin them anew when needed."""
    pid = os.fork()
    if pid == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)


def check(before: dict[str, int]) -> None:
    """Whether a child of this process would be what a fresh Python is."""
    threads = os.listdir("/proc/self/task")
    if len(threads) > 1:
        raise Unfit(f"importing what every program needs started {len(threads) - 1} threads, which a forked process would not have")
    torch = sys.modules["torch"]
    if torch.cuda.is_initialized():
        raise Unfit("CUDA is initialized, which a forked process could not use")
    if stamps() != before:
        raise Unfit("packages were installed or removed since they were imported")


def stamps() -> dict[str, int]:
    """When the folders that modules come from were changed last. The one that the agent was started in, which `-m` puts first, is no place of
    packages: people make files there."""
    return {folder: os.stat(folder).st_mtime_ns for folder in sys.path if os.path.isdir(folder) and not os.path.samefile(folder, os.curdir)}


def private_bytes() -> int:
    """Memory that is this process's alone."""
    resident, shared = (int(pages) for pages in open("/proc/self/statm", encoding="ascii").read().split()[1:3])
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
