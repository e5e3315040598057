"""What is refused on sight of a model, before anything is computed. Each refusal names the module or parameter and says what to do."""

from __future__ import annotations

from typing import Any

import torch

from ebb.layout import is_dense
from ebb.refuse import Refused

WRAPPERS = {"DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "FSDPModule", "DeepSpeedEngine", "PipelineModule"}
PIPELINES = {"_PipelineStageBase", "_PipelineSchedule", "Pipe"}
TRAINABLE = (torch.float32, torch.bfloat16, torch.float16)


def check_model(model: torch.nn.Module) -> None:
    """Refuses what Ebb cannot train bit-equally."""
    if PIPELINES & {base.__name__ for base in type(model).__mro__} and type(model).__module__.startswith("torch.distributed"):
        raise Refused(
            f"model() returned a {type(model).__name__}, which is one process's part of a pipeline over several; give the whole module, Ebb "
            "does the data parallelism"
        )
    if not isinstance(model, torch.nn.Module):
        raise Refused(f"model() returned a {type(model).__name__}; it must return a torch.nn.Module")
    for name, module in model.named_modules():
        where = f"the module `{name}` ({type(module).__name__})" if name else f"the model ({type(module).__name__})"
        bases = {base.__name__ for base in type(module).__mro__}
        if "SyncBatchNorm" in bases:
            raise Refused(
                f"{where} talks to other processes in its forward; use BatchNorm (all logical workers start from the "
                "same statistics) or GroupNorm"
            )
        if bases & WRAPPERS:
            raise Refused(f"{where} distributes the training itself; give the bare module, Ebb does the data parallelism")
    for name, parameter in model.named_parameters():
        _check_parameter(name, parameter)
    check_no_group()  # after those whose names say why there is one
    for name, buffer in model.named_buffers():
        if torch.nn.parameter.is_lazy(buffer):
            raise Refused(f"the buffer `{name}` belongs to a lazy module and has no shape yet; give its sizes when the model is made")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise Refused("the model has no parameter to train: none requires a gradient")


def forbid_loss_scales() -> None:
    """From now on a GradScaler refuses to scale a loss: by how much depends on the steps before, and nobody would undo it. One that is not enabled
    does nothing, as ever."""
    kind = torch.amp.GradScaler
    unscaled = kind.scale
    if unscaled.__module__ == __name__:
        return

    def scale(scaler: Any, outputs: Any) -> Any:
        if not scaler.is_enabled():
            return unscaled(scaler, outputs)
        raise Refused(
            f"the loss is scaled by a {type(scaler).__name__}, whose scale depends on the steps before and would not be undone; leave it out, "
            "and compute in bfloat16 (`torch.autocast(…, dtype=torch.bfloat16)`), which needs none"
        )

    kind.scale = scale


def check_no_group() -> None:
    """Refuses a process group of the user's."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        raise Refused(
            "torch.distributed is initialised, and executors come and go during a job, so its collectives would hang; leave it out "
            "(a job of `command:` runs a fixed gang)"
        )


def _check_parameter(name: str, parameter: torch.nn.Parameter) -> None:
    if torch.nn.parameter.is_lazy(parameter):
        raise Refused(f"the parameter `{name}` belongs to a lazy module and has no shape yet; give its sizes when the model is made")
    if type(parameter).__name__ == "DTensor" or hasattr(parameter, "device_mesh") or type(parameter.data).__name__ == "DTensor":
        raise Refused(f"the parameter `{name}` is sharded over devices (a DTensor), and Ebb keeps whole replicas; do not shard the model")
    if parameter.layout is torch.strided and not is_dense(tuple(parameter.shape), tuple(parameter.stride())):
        raise Refused(
            f"the parameter `{name}` is a view that skips or repeats elements; give it memory of its own (`.clone()`, `.contiguous()`)"
        )
    if parameter.is_meta:
        raise Refused(f"the parameter `{name}` is on the meta device and has no values; make the model with values")
    if not parameter.requires_grad:
        return
    if parameter.dtype.is_complex:
        raise Refused(f"the parameter `{name}` is complex; keep it as two real ones and join them with torch.complex in forward")
    if parameter.dtype not in TRAINABLE:
        raise Refused(
            f"the parameter `{name}` has type {parameter.dtype}, and gradients travel as float32; make the model "
            "float32 (`model.float()`), bfloat16 or float16"
        )
