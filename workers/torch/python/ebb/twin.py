"""The same program in a second process: built anew there before anything of the user's code was imported here, and its gradients computed in
the opposite order. What differs between the two would differ between executors.

One after the other, so that a model needs its memory once. As `python -m ebb.twin`, the process of a Python that cannot fork.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import json
import os
import signal
import subprocess
import sys
from typing import Any, NoReturn

from ebb import check
from ebb.build import Settings
from ebb.forkserver import rehearse
from ebb.program import Program
from ebb.refuse import DeviceFailed, OutOfMemory, Refused, describe
from ebb.worker import die_with_parent

PARTS = ("values", "batches", "gradients", "class")
FAILURES = {"memory": OutOfMemory, "device": DeviceFailed}


def ask(settings: Settings) -> dict[str, Any] | None:
    """What a second process finds; None where the job is an object of this one already. Ends as that one ends, where it does not answer."""
    if settings.job is not None:
        return None
    read, write = os.pipe()
    rehearse()  # libraries that know of forks end their threads
    if len(os.listdir("/proc/self/task")) == 1:
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            os.close(read)
            _answer(settings, write)
    else:
        given = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings) if field.name != "job"}
        folders = os.pathsep.join([os.path.dirname(os.path.dirname(os.path.abspath(__file__))), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "ebb.twin", json.dumps(given), str(write)]
        other = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": folders.rstrip(os.pathsep)}, pass_fds=[write])
        pid, other.returncode = other.pid, 0  # it is waited for below
    os.close(write)
    with open(read, encoding="utf-8") as file:
        said = file.readline()
    _, status = os.waitpid(pid, 0)
    if not said.endswith("\n"):
        _end_as(os.waitstatus_to_exitcode(status))
    return json.loads(said)


def _answer(settings: Settings, write: int) -> NoReturn:
    """In the second process."""
    status = 4
    try:
        os.register_at_fork(after_in_child=lambda: os.close(write))
        os.set_inheritable(write, False)
        die_with_parent()
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)  # what the code prints is printed once
        try:
            program = Program(settings)
            said = check.observed(program)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the first process hears of it
            said = {"failed": describe(error)}
        with open(write, "w", encoding="utf-8", closefd=False) as file:
            file.write(json.dumps(said) + "\n")
        status = 0
    finally:
        os._exit(status)


def _end_as(status: int) -> NoReturn:
    """Ends this process like the other one: what befell it there would befall it here."""
    faulthandler.disable()
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if -status not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -status)
    os._exit(status)


def compare(program: Program, other: dict[str, Any] | None) -> None:
    """Refuses by name what a second process found otherwise; `program` was checked here."""
    if other is None:
        return
    if "failed" in other:
        kind, what = other["failed"]["kind"], other["failed"]["what"]
        if kind in FAILURES:
            raise FAILURES[kind](what)
        raise Refused(f"the program differs between two processes: in one it can be trained, and in the other not ({what})")
    values, batches, gradients, numeric_class = (_differing(program.observed[part], other[part]) for part in PARTS)
    if values is not None:
        raise Refused(
            f"`{values}` has other values in another process, so it differs between two processes; model() and state() find torch's, NumPy's "
            "and Python's generators seeded, so draw from those, and from nothing that belongs to a process"
        )
    if batches is not None:
        raise Refused(
            f"the batches of {batches.rpartition(' ')[0]} differ between two processes, of which the second made them in the opposite order; "
            f"{check.ROWS_ADVICE}"
        )
    if gradients is not None:
        raise Refused(
            f"the gradient of `{gradients}` differs between two processes, of which the second computed the logical workers in the opposite "
            f"order; {check.ADVICE}"
        )
    if numeric_class is not None:
        raise Refused(
            f"`{numeric_class}` of the numeric class differs between two processes; set nothing by chance or by process that decides how "
            "numbers are computed"
        )


def _differing(mine: dict[str, Any], theirs: dict[str, Any]) -> str | None:
    return next((name for name in [*mine, *theirs] if mine.get(name) != theirs.get(name)), None)


if __name__ == "__main__":
    _answer(Settings(**json.loads(sys.argv[1])), int(sys.argv[2]))
