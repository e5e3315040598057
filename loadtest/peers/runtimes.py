"""Ebb, torchrun elastic and torchft behind one face: a worker comes, is killed, is asked to leave; which steps were done when."""

from __future__ import annotations

import itertools
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
#: Logical workers of Ebb's job; the peers' workers share as many rows.
WORKERS = 6
#: Rows of the dataset that a logical worker has in a step. They only say how many workers one gradient is of: what is trained on is drawn.
BATCH_ROWS = 32
#: What tells `model.py` of its size.
SIZES = ("PEERS_HIDDEN", "PEERS_ROWS")
#: Most workers at once.
SLOTS = 3
#: Longest wait for a program that is to say or do one thing at once, on a machine that is busy.
ANSWER_S = 60


class Done(NamedTuple):
    """A step that one worker has done."""

    at: float
    step: int
    worker: str


def port() -> int:
    """A port of loopback that is probably free."""
    return 20_000 + secrets.randbelow(10_000)


def family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    found = [pid]
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for task in tasks:
        try:
            children = Path(f"/proc/{pid}/task/{task}/children").read_text().split()
        except OSError:
            continue
        for child in children:
            found += family(int(child))
    return found


def kill(pids: list[int]) -> None:
    """SIGKILL, to who still lives."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


class Peer:
    """A runtime of which each worker is a process tree of its own, that writes a log into the folder."""

    replaces = False

    def __init__(self, folder: Path, steps: int = 0) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.folder, self.steps = folder, steps
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        #: Asked to leave; when they do is theirs, at most until the end.
        self.leaving: list[subprocess.Popen[bytes]] = []

    def begin(self) -> None:
        """What must run before the first worker."""

    def command(self, name: str) -> list[str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return {}

    def grow(self, name: str) -> None:
        """Starts a worker."""
        environment = {
            **os.environ, **self.environment(), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo",
            "PEERS_FOLDER": str(self.folder), "PEERS_NODE": name, "PEERS_WORKERS": str(WORKERS), "PEERS_STEPS": str(self.steps),
        }  # fmt: skip
        output = open(self.folder / f"{name}.out", "w")
        self.workers[name] = subprocess.Popen(
            self.command(name), env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, cwd=HERE
        )

    def kill(self, name: str) -> None:
        """Its server is gone."""
        worker = self.workers.pop(name)
        kill(family(worker.pid))
        worker.wait()

    def stop(self, name: str) -> None:
        """Its slot is wanted back."""
        worker = self.workers.pop(name)
        worker.terminate()
        self.leaving.append(worker)

    def log_lines(self) -> list[tuple[str, list[str]]]:
        """Each whole line of each worker's log, with the worker's name."""
        lines = []
        for log in self.folder.glob("*.log"):
            text = log.read_text()
            lines += [(log.name.split(".")[0], line.split()) for line in text[: text.rfind("\n") + 1].splitlines()]
        return lines

    def done(self) -> list[Done]:
        """Every step that was done, in order of time."""
        return sorted(Done(float(line[1]), int(line[2]), name) for name, line in self.log_lines() if line[0] == "step")

    def discarded(self) -> int | None:
        """Steps computed and thrown away; None where nobody counts them."""
        return sum(line[0] == "discarded" for _, line in self.log_lines())

    def digest(self) -> str:
        """Of the model, once all steps are done."""
        found = {line[1] for _, line in self.log_lines() if line[0] == "digest"}
        return " ".join(sorted(found))

    def over(self) -> bool:
        return bool(self.digest())

    def end(self) -> None:
        for worker in [*self.workers.values(), *self.leaving]:
            kill(family(worker.pid))
            worker.wait()


class Torchrun(Peer):
    """`torchrun` with a rendezvous of its own; every change restarts all workers from the last checkpoint."""

    name = "torchrun"
    #: What its documentation leaves as it is, and what makes it faster.
    settings = {"default": "", "tuned": "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"}

    def __init__(self, folder: Path, mode: str, steps: int = 0) -> None:
        super().__init__(folder, steps)
        self.endpoint, self.conf, self.run = f"127.0.0.1:{port()}", self.settings[mode], secrets.token_hex(4)
        self.addresses = itertools.count(1)

    def environment(self) -> dict[str, str]:
        return {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

    def command(self, name: str) -> list[str]:
        command = [
            sys.executable, "-m", "torch.distributed.run", f"--nnodes=1:{SLOTS}", "--nproc-per-node=1", "--rdzv-backend=c10d",
            f"--rdzv-endpoint={self.endpoint}", f"--rdzv-id={self.run}", f"--local-addr=127.0.0.{next(self.addresses)}",
            "--max-restarts=100",
        ]  # fmt: skip
        return [*command, *([f"--rdzv-conf={self.conf}"] if self.conf else []), str(HERE / "torchrun_worker.py")]


class Torchft(Peer):
    """torchft: one replica group a worker, and a lighthouse."""

    name = "torchft"
    settings = {
        "default": ([], "60"),
        "tuned": (["--heartbeat_timeout_ms", "1000", "--join_timeout_ms", "1000", "--quorum_tick_ms", "20"], "5"),
    }

    def __init__(self, folder: Path, mode: str, steps: int = 0) -> None:
        super().__init__(folder, steps)
        self.flags, self.timeout = self.settings[mode]
        self.address = f"127.0.0.1:{port()}"

    def begin(self) -> None:
        program = Path(sys.executable).parent / "torchft_lighthouse"
        command = [str(program), "--min_replicas", "1", "--bind", self.address, *self.flags]
        output = open(self.folder / "lighthouse.out", "w")
        self.workers["lighthouse"] = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        time.sleep(1)

    def environment(self) -> dict[str, str]:
        return {"PEERS_LIGHTHOUSE": f"http://{self.address}", "PEERS_TIMEOUT_S": self.timeout, "MASTER_ADDR": "127.0.0.1"}

    def command(self, name: str) -> list[str]:
        return [sys.executable, str(HERE / "torchft_worker.py")]


class Ebb:
    """A service with all slots, whose fleet lends as many as there are to be workers. `determinism` is the job's: with `none` an executor computes one gradient
    of all its rows, as a worker of the peers does; with `d1` one of each logical worker's, and the model is the same whatever happens."""

    #: Whether who was killed is replaced without anybody's doing.
    replaces = True

    def __init__(self, folder: Path, program: str, steps: int = 0, determinism: str = "d1") -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.determinism, self.name = determinism, "ebb" if determinism == "d1" else f"ebb-{determinism}"
        self.folder, self.program, self.steps, self.lent, self.lines = folder, program, steps or 1_000_000, 0, []
        self.service: subprocess.Popen[bytes] | None = None
        self.follower: subprocess.Popen[str] | None = None

    def begin(self) -> None:
        arguments = ["up", "--output", "json", "--listen", "127.0.0.1:0", "--slots", str(SLOTS), "--python", sys.executable]
        # How many workers there are is said from outside here; else it has no more than it has measured to be faster.
        arguments += ["--data", str(self.folder / "data"), "--until-input-ends", "--speeds", "assumed"]
        errors = open(self.folder / "service.out", "w")
        self.service = subprocess.Popen([self.program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        self.url = json.loads(self.first_line())["url"]
        self.demand()
        project = self.folder / "project"
        project.mkdir()
        for source in (HERE / "ebb_job" / "train.py", HERE / "model.py"):
            shutil.copy(source, project)
        document = {
            "name": "peers", "engine": "torch", "entry": "train:Job", "dataset": "digits", "steps": self.steps,
            "workers": {"min": 1, "max": WORKERS}, "batch_size": BATCH_ROWS, "determinism": self.determinism, "checkpoint": {"every_steps": 1_000_000_000},
            "environment": {name: os.environ[name] for name in SIZES if name in os.environ},
        }  # fmt: skip
        (project / "job.json").write_text(json.dumps(document))
        self.job = json.loads(self.ebb("submit", str(project / "job.json"), "--output", "json"))["id"]
        command = [self.program, "--url", self.url, "logs", self.job, "-f"]
        self.follower = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        threading.Thread(target=self.follow, daemon=True).start()

    def first_line(self) -> bytes:
        """What the service says when it listens. One that says nothing is killed, which ends the line as well."""
        late = threading.Timer(ANSWER_S, lambda: kill(family(self.service.pid)))
        late.start()
        try:
            line = self.service.stdout.readline()
        finally:
            late.cancel()
        if not line.endswith(b"\n"):
            raise TimeoutError(f"the service ended, or did not listen within {ANSWER_S} s; {self.folder / 'service.out'} says more")
        return line

    def follow(self) -> None:
        for line in self.follower.stdout:
            if found := re.match(r"(e\d+) \| step ([0-9.]+) (\d+)$", line):
                self.lines.append(Done(float(found[2]), int(found[3]), found[1]))

    def ebb(self, *arguments: str) -> str:
        command = [self.program, "--url", self.url, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=ANSWER_S).stdout

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return json.load(answer)

    def demand(self) -> None:
        self.ebb("demand", "local", "--needed", str(SLOTS - self.lent))

    def grow(self, _: str) -> None:
        self.lent += 1
        self.demand()

    def kill(self, _: str) -> None:
        """An executor's whole group. Its slot stays lent, so the service starts another there."""
        groups = [pid for pid in family(self.service.pid) if self.is_executor(pid)]
        os.killpg(groups[-1], signal.SIGKILL)

    @staticmethod
    def is_executor(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:2] == [b"executor"] and os.getpgid(pid) == pid
        except OSError:
            return False

    def stop(self, _: str) -> None:
        self.lent -= 1
        self.demand()

    def done(self) -> list[Done]:
        return sorted(self.lines)

    def discarded(self) -> int | None:
        """Not counted: an executor prints a step when it is applied, and nothing of one that it throws away."""
        return None

    def record(self) -> dict[str, Any]:
        return self.get(f"/v1/jobs/{self.job}")

    def over(self) -> bool:
        return self.record()["phase"] in ("finished", "failed", "cancelled")

    def digest(self) -> str:
        return self.record()["outcome"]["model_digest"][:16]

    def end(self) -> None:
        if self.follower:
            self.follower.kill()
            self.follower.wait()
        if self.service:
            self.service.stdin.close()
            try:
                self.service.wait(ANSWER_S)
            except subprocess.TimeoutExpired:
                kill(family(self.service.pid))
                self.service.wait()
