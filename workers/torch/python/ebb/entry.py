"""From the job file's `entry:` to a `Job`: imports the user's module and wraps what other frameworks' users have. Trains nothing."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from typing import Any

from ebb import script
from ebb.job import Job
from ebb.refuse import Refused, user_code

# Enough to see what was meant.
FILES_SHOWN = 5


def load(entry: str, code: str | None) -> Job:
    """The job that `MODULE:NAME` or, where `ebb.fit` is called, `MODULE` names."""
    module_name, _, name = entry.partition(":")
    if code:
        sys.path.insert(0, os.path.abspath(code))
    _ensure_there(entry, module_name, code)
    declared = script.declare_only()
    with user_code(f"the import of `{module_name}`"):
        module = importlib.import_module(module_name)
    if not name:
        if len(declared) != 1:
            raise Refused(
                f"`entry: {module_name}` names no class, and the module calls ebb.fit {len(declared)} times; "
                f"write `entry: {module_name}:Job`, or call ebb.fit once"
            )
        return declared[0]
    if not hasattr(module, name):
        raise Refused(f"`entry: {entry}`: the module `{module_name}` has no `{name}`")
    found = getattr(module, name)
    if inspect.isclass(found) or (callable(found) and not _is_framework_object(found)):
        with user_code(f"`{name}()`"):
            found = found()
    return adapt(found, entry)


def _ensure_there(entry: str, module: str, code: str | None) -> None:
    """Refuses a name that is no module's, before Python says so in its own many words."""
    if module.endswith(".py"):
        raise Refused(f"`entry: {entry}` names a file; write the module's name: `entry: {module[:-3]}:Job`")
    first = module.split(".")[0]
    if first in sys.modules or importlib.util.find_spec(first) is not None:
        return
    files = sorted(name for name in os.listdir(code or ".") if name.endswith(".py"))
    there = f"; it holds {', '.join(files[:FILES_SHOWN])}" if files else ", nor any other"
    raise Refused(f"`entry: {entry}`: the module `{first}` is not in the code folder{there}")


def adapt(found: Any, entry: str) -> Job:
    """A `Job` around a Trainer or a LightningModule; frameworks are never imported unless the user's code did."""
    if isinstance(found, Job):
        return found
    if _is_instance(found, "transformers", "Trainer"):
        from ebb.huggingface import TrainerJob

        return TrainerJob(found)
    module, data = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
    if _is_lightning(module) and (data is None or _is_lightning(data, "LightningDataModule")):
        from ebb.lightning import LightningJob

        return LightningJob(module, data)
    raise Refused(
        f"`entry: {entry}` gives a {type(found).__name__}; Ebb trains a subclass of ebb.Job, a transformers.Trainer or a LightningModule "
        "(with a LightningDataModule: the two as a tuple), or what a function without arguments returns of these"
    )


def _is_instance(found: Any, module: str, name: str) -> bool:
    kind = getattr(sys.modules.get(module), name, None) if module in sys.modules else None
    return kind is not None and isinstance(found, kind)


def _is_lightning(found: Any, name: str = "LightningModule") -> bool:
    return any(_is_instance(found, module, name) for module in ("lightning.pytorch", "pytorch_lightning", "lightning"))


def _is_framework_object(found: Any) -> bool:
    return isinstance(found, Job) or _is_instance(found, "transformers", "Trainer") or _is_lightning(found)
