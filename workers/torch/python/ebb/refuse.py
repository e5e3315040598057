"""The kinds of failure, each saying who has to change something. No torch here, no I/O."""

from __future__ import annotations

import os
import re
import sys
import traceback
from typing import Any

TRACEBACK_LINES = 20
OWN_FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep


class Refused(Exception):
    """Something in the user's program that Ebb cannot keep its promises for; the text names it and says what to do."""


class NonFinite(Exception):
    """The loss is infinite or not a number."""


class OutOfMemory(Exception):
    """The machine or the device has no memory left for the user's program."""


class DeviceFailed(Exception):
    """The device or its driver failed; another device may do it."""


class UserError(Exception):
    """An exception of the user's code, with the last lines of its traceback."""

    def __init__(self, what: str, lines: str) -> None:
        super().__init__(what)
        self.lines = lines


def last_lines(error: BaseException) -> str:
    """The last lines of an exception's traceback, from where the user's code begins."""
    begin = error.__traceback__
    while begin is not None and begin.tb_frame.f_code.co_filename.startswith(OWN_FOLDER):
        begin = begin.tb_next
    lines = "".join(traceback.format_exception(type(error), error, begin or error.__traceback__)).rstrip().splitlines()
    return "\n".join(lines[-TRACEBACK_LINES:])


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory is short, of the machine or of the device."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and ("can't allocate memory" in str(error) or "out of memory" in str(error))


# What CUDA says where hardware, driver or another process is at fault, and no kernel of the user's.
DEVICE_FAILED = re.compile(
    r"CUDA (driver )?error.*(uncorrectable (NVLink |ECC )?error|hardware stack error|unknown error|device(\(s\))? (is|is/are) busy or unavailable"
    r"|no CUDA-capable device|invalid device ordinal|GPU is lost|driver shutting down|unspecified launch failure|external device)|No CUDA GPUs are available",
    re.DOTALL,
)


def is_device_failed(error: BaseException) -> bool:
    """Whether an exception says that the device is gone or broken, which is no fault of the program."""
    return isinstance(error, RuntimeError) and DEVICE_FAILED.search(str(error)) is not None


class user_code:
    """Around every call of user code: says what failed there and whose it is. `where` completes "… failed in"."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is None or isinstance(error, (Refused, NonFinite, OutOfMemory, DeviceFailed, UserError, KeyboardInterrupt)):
            return
        # Also SystemExit: a script that calls sys.exit() must not end the worker.
        raise _translated(error, self.where) from error


def _translated(error: BaseException, where: str) -> Exception:
    text = str(error)
    found = re.search(r"(\S+) does not have a deterministic implementation", text)
    if found:
        return Refused(
            f"the operator {found.group(1)}, used in {where}, has no deterministic kernel on this device, so a model that uses it "
            "would differ from run to run; use another operator for it"
        )
    if "process group has not been initialized" in text:
        return Refused(
            f"{where} calls torch.distributed, and executors come and go during a job, so its collectives would hang; leave it out, Ebb adds up "
            "the gradients of all logical workers (a job of `command:` runs a fixed gang)"
        )
    if "CuBLAS" in text and "CUBLAS_WORKSPACE_CONFIG" in text:
        return Refused(f"{where} uses CUDA before Ebb could make it deterministic; do not import torch before the worker does")
    if "Accessing" in text and "is forbidden in this process" in text:
        return Refused(text)
    if "UninitializedParameter" in text or "uninitialized parameter" in text:
        return Refused(f"{where} uses a lazy module whose parameters have no shape yet; give its sizes when the model is made")
    if re.search(r"DataLoader worker .*(killed by signal|exited unexpectedly)", text):
        return OutOfMemory(f"a process that reads rows for {where} died, probably for want of memory: {first_line(text)}")
    if is_out_of_memory(error):
        return OutOfMemory(f"out of memory in {where}: {first_line(text)}")
    if is_device_failed(error):
        return DeviceFailed(f"the device failed in {where}: {first_line(text)}")
    return UserError(f"{type(error).__name__} in {where}: {first_line(text)}{_about_files(error)}", last_lines(error))


def _about_files(error: BaseException) -> str:
    """What a file that is not there, or is closed, has to do with where code runs; nothing of other errors."""
    name = getattr(error, "filename", None)
    if isinstance(error, PermissionError) and name is not None and "EBB_TORCH_LIFE" in os.environ:
        return " (a job's code may write to its working directory, HOME and TMPDIR, and read what its operator opens: `--readable`)"
    if isinstance(error, FileNotFoundError) and isinstance(name, str) and not os.path.isabs(name) and sys.path:
        if os.path.exists(os.path.join(sys.path[0], name)):  # entry.load() put the code there
            return f" (it is in the code folder, which is not the working directory; write Path(__file__).parent / {name!r})"
    return ""


def first_line(text: str) -> str:
    """The first line of a text, bounded."""
    return (text.strip().splitlines() or [""])[0][:400]


def describe(error: BaseException) -> dict[str, Any]:
    """An exception as the protocol's error."""
    if isinstance(error, Refused):
        return {"kind": "refused", "what": str(error)}
    if isinstance(error, NonFinite):
        return {"kind": "nonfinite", "what": str(error)}
    if isinstance(error, UserError):
        return {"kind": "user", "what": str(error), "traceback": error.lines}
    if isinstance(error, OutOfMemory) or is_out_of_memory(error):
        return {"kind": "memory", "what": first_line(str(error)) or "out of memory"}
    if isinstance(error, DeviceFailed) or is_device_failed(error):
        return {"kind": "device", "what": first_line(str(error))}
    return {"kind": "internal", "what": f"{type(error).__name__}: {first_line(str(error))}", "traceback": last_lines(error)}
