"""Speaks the worker's protocol to real worker processes, and trains with them as the service does: the contract for the executor."""

from __future__ import annotations

import array
import importlib.util
import json
import mmap
import os
import socket
import struct
import subprocess
import sys
from typing import Any

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.dirname(HERE)
JOBS = os.path.join(HERE, "jobs")
sys.path.insert(0, PACKAGE)

from ebb import check, numerics, run, schedule, tree, worker  # noqa: E402
from ebb.build import Settings  # noqa: E402
from ebb.program import Program  # noqa: E402

numerics.prepare_environment(1)
torch.set_num_threads(1)
worker.warm()


class Failed(Exception):
    """A worker's `!` reply."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['kind']}: {error['what']}\n{error.get('traceback', '')}")
        self.kind, self.what, self.traceback = error["kind"], error["what"], error.get("traceback", "")


def has(module: str) -> bool:
    """Whether a framework is there to be tried."""
    return importlib.util.find_spec(module) is not None


class Worker:
    """One worker process, as its executor sees it. Forked from this one, which has torch imported and started no threads of it, unless
    `fresh`: then begun by command, which takes seconds."""

    open: list[socket.socket] = []

    def __init__(self, fresh: bool = False, output: Any = None) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.socket, theirs = socket.socketpair()
        Worker.open.append(self.socket)
        if not fresh:
            sys.stdout.flush()
            self.pid = os.fork()
            if self.pid == 0:
                try:
                    for connection in Worker.open:  # a sibling's end, kept open here, would keep the sibling alive
                        connection.close()
                    worker.die_with_parent()
                    worker.serve(theirs)
                finally:
                    os._exit(4)
            theirs.close()
            return
        passed, self.life = os.pipe()
        environment = {
            **os.environ, "EBB_TORCH_FD": str(theirs.fileno()), "EBB_TORCH_LIFE": str(passed), "PYTHONPATH": PACKAGE,
        }  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ebb.worker"], env=environment, pass_fds=[theirs.fileno(), passed], stdout=output, stderr=output
        )
        theirs.close()
        os.close(passed)

    def ask(
        self, kind: bytes, payload: bytes = b"", descriptors: list[int] | None = None, before: Any = None
    ) -> tuple[bytes, list[int]]:
        """A request and its reply; frames of stretches that come `before` that go there."""
        frame = struct.pack("<I", len(payload) + 1) + kind + payload
        self.socket.sendall(frame[socket.send_fds(self.socket, [frame], descriptors) :] if descriptors else frame)
        while True:
            head, rights, _, _ = self.socket.recvmsg(4, socket.CMSG_SPACE(3 * 4))
            if not head:
                raise EOFError("the worker is gone")
            head += self._exactly(4 - len(head))
            body = self._exactly(struct.unpack("<I", head)[0])
            if before is None or body[:1] != b"r":
                break
            before(body[1:])
        received = array.array("i")
        for level, type_, data in rights:
            assert (level, type_) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
            received.frombytes(data)
        if body[:1] == b"!":
            raise Failed(json.loads(body[1:]))
        assert body[:1] == kind.lower(), body[:1]
        return body[1:], list(received)

    def _exactly(self, count: int) -> bytes:
        received = b""
        while len(received) < count:
            more = self.socket.recv(count - len(received))
            if not more:
                raise EOFError("the worker is gone")
            received += more
        return received

    def build(self, **message: Any) -> dict[str, Any]:
        """Builds a program and maps its segments."""
        defaults = {
            "code": JOBS, "spec": {}, "seed": 3, "workers": 4, "batch_size": 4, "threads": 1, "device": "cpu", "sample": None,
            "batch_bytes": 0, "rows": None, "parameters": {}, "initial": None, "check": True,
        }  # fmt: skip
        reply, descriptors = self.ask(b"B", json.dumps({**defaults, **message}).encode())
        self.info = json.loads(reply)
        self.replica, self.batch = (_mapped(descriptor) for descriptor in descriptors)
        # One place for gradients and means, as an executor gives several.
        place = os.memfd_create("place", os.MFD_CLOEXEC)
        os.ftruncate(place, 4 * (self.info["gradient_elements"] + self.info["extra_elements"]))
        self.gradient = _mapped(os.dup(place))
        self.ask(b"P", struct.pack("<Q", 1), [place])
        os.close(place)
        return self.info

    def expect(self, ranks: list[int], step: int) -> None:
        """Says which ranks come next."""
        self.ask(b"N", struct.pack(f"<Q{len(ranks)}H", step, *ranks))

    def compute(
        self, rank: int, step: int, rows: int = 0, start: int = 0, mean: bool = False, others: tuple[int, ...] = (), first: bool = True, last: bool = True
    ) -> tuple[torch.Tensor, float, float]:
        """A rank's gradient with what travels along, its weight and its loss; or that gradient divided by its weight; or that of others as well; or
        added to those since the first."""
        payload = struct.pack(f"<HQQIQ????H{len(others)}H", rank, step, start, rows, 1, False, mean, first, last, len(others), *others)
        weight, loss, _ = struct.unpack("<ddQ", self.ask(b"G", payload)[0])
        return self.gradient_view().clone(), weight, loss

    def compute_in_parts(
        self, rank: int, step: int, others: tuple[int, ...] = (), first: bool = True
    ) -> tuple[torch.Tensor, float, float, list[list[tuple[int, int]]]]:
        """The same, with the stretches of each message that came before. Asserts that what was final then is what it is at the end."""
        said, copies = [], []

        def heard(stretches: bytes) -> None:
            said.append(list(struct.iter_unpack("<QQ", stretches)))
            copies.extend((start, self.gradient_view()[start:end].clone()) for start, end in said[-1])

        payload = struct.pack(f"<HQQIQ????H{len(others)}H", rank, step, 0, 0, 1, True, False, first, True, len(others), *others)
        weight, loss, _ = struct.unpack("<ddQ", self.ask(b"G", payload, before=heard)[0])
        gradient = self.gradient_view().clone()
        for start, copy in copies:
            assert torch.equal(copy, gradient[start : start + copy.numel()]), "it changed after it was said to be final"
        return gradient, weight, loss, said

    def gradient_view(self) -> torch.Tensor:
        return self.gradient.view(torch.float32)[: self.info["gradient_elements"] + self.info["extra_elements"]]

    def apply(self, summed: torch.Tensor, step: int, factor: float, stride: int = 1, rate_factor: float = 1.0) -> None:
        self.gradient_view().copy_(summed)
        self.ask(b"A", struct.pack("<QdQHd", step, factor, 1, stride, rate_factor))

    def snapshot(self) -> torch.Tensor:
        self.ask(b"S")
        return self.replica[: self.info["replica_words"] * 4].clone()

    def hold(self, replica: torch.Tensor, part: int = 0) -> None:
        self.replica[: replica.numel()].copy_(replica)
        self.ask(b"H", bytes([part]))

    def evaluate(self, rank: int, part: int, rows: int = 0) -> dict[str, Any]:
        return json.loads(self.ask(b"E", struct.pack("<HQI", rank, part, rows))[0])

    def model(self) -> tuple[bytes, str]:
        """The model's file and the digest of its tensor data."""
        reply, (descriptor,) = self.ask(b"M", json.dumps({"metadata": [["step", "9"]]}).encode())
        found = json.loads(reply)
        with open(descriptor, "rb") as file:
            file.seek(0)
            content = file.read()
        assert len(content) == found["bytes"]
        return content, found["digest"]

    def close(self) -> int:
        """Ends the worker; its exit status."""
        Worker.open.remove(self.socket)
        self.socket.close()
        if self.process is not None:
            status = self.process.wait(30)
            os.close(self.life)
            return status
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _mapped(descriptor: int) -> torch.Tensor:
    try:
        return torch.frombuffer(mmap.mmap(descriptor, os.fstat(descriptor).st_size), dtype=torch.uint8)
    finally:
        os.close(descriptor)


def train(hosting: Any, steps: int, feed: Any = None, **message: Any) -> tuple[torch.Tensor, str, list[float]]:
    """Trains with ranks hosted as `hosting(step)` says, a list of lists of ranks; a changed number of hosts means new processes that
    are given a snapshot. Returns the replica, the model's digest and the losses."""
    spec = message.get("spec", {})
    workers: list[Worker] = []
    losses: list[float] = []
    try:
        before = None
        for step in range(steps):
            hosts = hosting(step)
            if hosts != before:
                workers = _hosted_anew(workers, len(hosts), message)
                before = hosts
                for host, ranks in zip(workers, hosts):
                    host.expect(ranks, step)
            parts: dict[int, tuple[torch.Tensor, float, float]] = {}
            for host, ranks in zip(workers, hosts):
                for rank in ranks:
                    rows = feed(host, rank, step) if feed else 0
                    parts[rank] = host.compute(rank, step, rows)
            summed, weight, loss = tree.tree(0, len(parts), parts.__getitem__, _join)
            mean = summed[: workers[0].info["gradient_elements"]]
            tree.divide(mean, weight)
            tree.clip(mean, spec.get("gradient_clip_norm"))
            for host in workers:
                host.apply(summed, step, schedule.factor(spec.get("schedule"), step, steps))
            losses.append(loss / weight)
        replicas = [host.snapshot() for host in workers]
        assert all(torch.equal(replica, replicas[0]) for replica in replicas), "replicas differ"
        return replicas[0], workers[0].model()[1], losses
    finally:
        for host in workers:
            host.close()


def _hosted_anew(workers: list[Worker], count: int, message: dict[str, Any]) -> list[Worker]:
    replica = workers[0].snapshot() if workers else None
    for host in workers:
        host.close()
    fresh = [Worker() for _ in range(count)]
    try:
        for host in fresh:
            host.build(**{"check": False, **message})
            if replica is not None:
                host.hold(replica)
    except BaseException:
        for host in fresh:
            host.close()
        raise
    return fresh


def _join(left: Any, right: Any) -> Any:
    left[0].add_(right[0])
    return left[0], left[1] + right[1], left[2] + right[2]


ONE = [[0, 1, 2, 3]]
TWO = [[0, 1], [2, 3]]
THREE = [[3], [1, 2], [0]]


def moving(step: int) -> list[list[int]]:
    """Hosted anew every 2 steps: on one process, on three, on two, in turns."""
    return [ONE, THREE, TWO][step // 2 % 3]


def here(steps: int, **message: Any) -> tuple[torch.Tensor, str, list[float], Any]:
    """The same training by `ebb.run` in this process; also the program."""
    program = program_here(**message)
    losses = [run.train_step(program, step, steps) for step in range(steps)]
    program.snapshot()
    return program.host_replica.clone(), run.write_model(program, None), losses, program


def program_here(**message: Any) -> Any:
    """A checked program in this process."""
    settings = Settings.parse({"code": JOBS, "spec": {}, "seed": 3, "workers": 4, "batch_size": 4, **message})
    program = Program(settings)
    check.run(program, thorough=True)
    return program
