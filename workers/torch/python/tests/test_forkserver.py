"""The fork-server against real processes: what a forked child is, what it holds open, and who dies with whom."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

from harness import PACKAGE, Failed, Worker

from ebb.forkserver import stamps
from ebb.worker import Channel

#: Longest wait for one thing: an import of torch on a busy machine.
WAIT_S = 180

#: What a model may leave behind about the process it is built in.
LOOK = """
import json, os, sys
import ebb
from torch import nn
from torch._inductor.runtime.cache_dir_utils import cache_dir

class Job(ebb.Job):
    def model(self):
        described = {int(name): os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")}
        apart, told = os.pipe()
        if os.fork() == 0:  # as a loader's process of the code's own
            sockets = sum(os.readlink(f"/proc/self/fd/{n}").startswith("socket:") for n in described if os.path.exists(f"/proc/self/fd/{n}"))
            os.write(told, str(sockets).encode())
            os._exit(0)
        os.wait()
        json.dump({
            "forked": int(os.read(apart, 9)),
            "group": os.getpgrp(), "nice": os.nice(0), "compiled": cache_dir(), "environment": dict(os.environ), "hash": hash("text"),
            "sockets": sum(target.startswith("socket:") for target in described.values()),
            "handles": sum("pidfd" in target for target in described.values()), "standard": [described[n] for n in range(3)],
        }, open(os.environ["LOOK_INTO"], "w"))
        print("the code prints")
        return nn.Linear(64, 10)

    def loss(self, model, batch):
        return model(batch[0]).square().sum(), len(batch[0])
"""


class Server:
    """A fork-server, as its agent sees it."""

    def __init__(self, **variables: str) -> None:
        ours, theirs = socket.socketpair()
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": PACKAGE, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", **variables}
        self.process = subprocess.Popen([sys.executable, "-m", "ebb.forkserver"], env=environment, stdin=theirs, start_new_session=False)
        theirs.close()
        ours.settimeout(WAIT_S)
        self.agent = Channel(ours)
        read, self.life = os.pipe()
        self.agent.send(b"L", b"", [read])
        os.close(read)
        self.said = self.agent.receive()

    def fork(self, group: int, folder: str | None = None, **variables: str) -> Forked:
        """A child of it, in a folder of its own if there is one."""
        return Forked(self, group, folder, variables)

    def end(self) -> int:
        """The agent's end."""
        os.close(self.life)
        return self.process.wait(WAIT_S)


class Forked(Worker):
    """A forked child, as its executor sees it."""

    def __init__(self, server: Server, group: int, folder: str | None, variables: dict[str, str]) -> None:
        self.socket, theirs = socket.socketpair()
        connection, handed = socket.socketpair()
        connection.settimeout(WAIT_S)
        self.connection = Channel(connection)
        read, self.life = os.pipe()
        self.output = tempfile.TemporaryFile()
        given = [theirs.fileno(), self.output.fileno(), read, handed.fileno()]
        server.agent.send(b"F", json.dumps({"group": group, "environment": variables, "folder": folder}).encode(), given)
        for end in (theirs, handed):
            end.close()
        os.close(read)
        kind, pid, (self.handle,) = self.connection.receive_with()
        assert kind == b"f", pid
        while (told := server.agent.receive()[0]) != b"f":
            assert told == b"x", told  # of an earlier child
        self.pid = int(pid)

    def wait(self) -> bytes:
        """Waits for its end; what its server says of it."""
        ended = select.poll()
        ended.register(self.handle, select.POLLIN)
        assert ended.poll(WAIT_S * 1000), "the child lives on"
        return self.connection.receive()[1]


class ForkServer(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.server = Server()
        kind, memory = cls.server.said
        assert kind == b"w" and int(memory) > 0, cls.server.said
        cls.leader = subprocess.Popen(["sleep", "600"], process_group=0) if sys.version_info >= (3, 11) else None
        cls.group = cls.leader.pid if cls.leader else os.getpgrp()
        if cls.leader:
            os.setpriority(os.PRIO_PROCESS, cls.group, os.nice(0) + 3)  # as of a guest

    @classmethod
    def tearDownClass(cls) -> None:
        assert cls.server.end() == -signal.SIGKILL
        if cls.leader:
            cls.leader.kill()
            cls.leader.wait()

    def test_a_child_is_what_a_fresh_python_is(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "look.py"), "w") as file:
                file.write(LOOK)
            found = []
            sibling = self.server.fork(self.group)
            for number in range(2):
                into = os.path.join(folder, f"found-{number}")
                if number == 0:
                    os.environ.update(LOOK_INTO=into, PYTHONHASHSEED="0")
                    worker = Worker(fresh=True)
                    expected_group = os.getpgrp()
                else:
                    worker = self.server.fork(self.group, folder, LOOK_INTO=into, TMPDIR=folder)
                    expected_group = self.group
                worker.build(entry="look:Job", code=folder, sample={"kind": "classified", "shape": [64], "classes": 10}, batch_bytes=4096, rows=64)
                with open(into) as file:
                    found.append(json.load(file))
                self.assertEqual(expected_group, found[-1]["group"])
            fresh, forked = found
            self.assertEqual(fresh["hash"], forked["hash"])
            self.assertEqual(os.getpriority(os.PRIO_PROCESS, self.group), forked["nice"], "the priority of its executor")
            self.assertEqual(into, forked["environment"]["LOOK_INTO"])
            self.assertEqual(folder, os.path.dirname(forked["compiled"]), "it may write nowhere else")
            self.assertEqual((0, 0), (fresh["forked"], forked["forked"]), "what the code forks keeps the conversation open")
            self.assertEqual((1, 0, "/dev/null"), (forked["sockets"], forked["handles"], forked["standard"][0]), "nothing of its server or its siblings")
            worker.output.seek(0)
            self.assertIn(b"the code prints", worker.output.read())
            worker.socket.close()
            ended = worker.wait()
            worker.output.seek(0)
            self.assertEqual(b"exit status: 0", ended, worker.output.read())
            os.kill(sibling.pid, signal.SIGKILL)
            self.assertEqual(b"signal: 9", sibling.wait())

    def test_the_same_bits_as_a_fresh_python(self) -> None:
        def digest(worker: Worker) -> str:
            worker.build(entry="vision:Everything", workers=2)
            return json.dumps([worker.info["class"], worker.info["parameters"]], sort_keys=True)

        fresh = Worker(fresh=True)
        self.assertEqual(digest(fresh), digest(self.server.fork(self.group)), "class, with the gradients of a fixed batch in it")
        fresh.close()

    def test_a_child_dies_with_its_executor_in_the_midst_of_anything(self) -> None:
        child = self.server.fork(self.group)
        with self.assertRaisesRegex(Failed, "before a program was built"):  # it is what it is to be
            child.ask(b"S")
        os.kill(child.pid, signal.SIGSTOP)  # it runs nothing of its own any more
        os.close(child.life)
        self.assertEqual(b"signal: 9", child.wait())

    def test_a_child_of_an_executor_that_is_gone_does_nothing(self) -> None:
        gone = subprocess.Popen(["true"])
        gone.wait()
        self.assertEqual(b"exit status: 0", self.server.fork(gone.pid).wait())


class Unfit(unittest.TestCase):
    def test_files_made_where_the_agent_was_started_are_no_packages(self) -> None:
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as packages:
            self.addCleanup(os.chdir, os.getcwd())
            os.chdir(folder)
            path, sys.path = sys.path, [folder, packages]
            try:
                before = stamps()
            finally:
                sys.path = path
            self.assertEqual([packages], list(before))

    def test_a_python_without_torch_says_so(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "torch.py"), "w") as file:
                file.write("raise ImportError('no such thing')\n")
            server = Server(PYTHONPATH=f"{folder}:{PACKAGE}")
            self.assertEqual(b"!", server.said[0])
            self.assertIn(b"no such thing", server.said[1])
            self.assertEqual(1, server.process.wait(WAIT_S))
            os.close(server.life)

    def test_a_server_dies_with_its_agent_while_it_imports(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "torch.py"), "w") as file:
                file.write("print('importing', flush=True)\nwhile True: pass\n")
            ours, theirs = socket.socketpair()
            variables = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{folder}:{PACKAGE}"}
            process = subprocess.Popen([sys.executable, "-m", "ebb.forkserver"], env=variables, stdin=theirs, stdout=subprocess.PIPE)
            read, life = os.pipe()
            Channel(ours).send(b"L", b"", [read])
            os.close(read)
            self.assertEqual(b"importing\n", process.stdout.readline())
            os.close(life)
            self.assertEqual(-signal.SIGKILL, process.wait(WAIT_S))
            process.stdout.close()


if __name__ == "__main__":
    unittest.main()
