"""Settings that decide bits: made once before torch is imported (environment) and once after (flags), and told as the numeric class."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

from ebb.refuse import Refused

# Must be in the environment before torch is imported.
ENVIRONMENT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
# Libraries' own switches that change bits; they belong to the class as they are.
SWITCHES = ("ATEN_CPU_CAPABILITY", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA")


def prepare_environment(threads: int | None = None) -> None:
    """Before `import torch`."""
    os.environ.update(ENVIRONMENT)
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)


def configure(threads: int, device: str) -> None:
    """After `import torch`, before anything is computed."""
    import torch

    torch.set_num_threads(threads)
    try:
        torch.set_num_interop_threads(1)
    except RuntimeError:  # it was set already, or work has begun: `run` may follow other torch code of the same process
        pass
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    if device == "cuda":
        if torch.version.cuda is None:
            raise Refused(
                f"`device: cuda` needs a PyTorch that is built with CUDA, and {sys.executable} has torch {torch.__version__}; "
                "name another Python (`python:`), or leave out `device:`"
            )
        torch.cuda.init()


def describe(device: str, threads: int, optimizer: Any) -> dict[str, Any]:
    """The numeric class, less the digest of the job's own gradients."""
    import torch

    try:
        import numpy

        numpy_version = numpy.__version__
    except ImportError:
        numpy_version = None
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy_version,
        "machine": platform.machine(),
        "device": "cpu",
        "threads": threads,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "flags": "deterministic",
        "optimizer": variant(optimizer),
    }
    for switch in SWITCHES:
        found[switch.lower()] = os.environ.get(switch)
    if device == "cuda":
        capability = torch.cuda.get_device_capability()
        found.update(
            device=torch.cuda.get_device_name(),
            capability=f"{capability[0]}.{capability[1]}",
            cuda=torch.version.cuda,
            cudnn=torch.backends.cudnn.version(),
        )
    return found


def variant(optimizer: Any) -> str:
    """The optimizer's class and which of its kernels it uses: they differ in bits."""
    from ebb.several import each

    return ", ".join(_variant(one) for one in each(optimizer))


def _variant(optimizer: Any) -> str:
    groups = [
        "/".join(f"{name}={group.get(name)}" for name in ("foreach", "fused", "capturable") if name in group)
        for group in optimizer.param_groups
    ]
    kind = type(optimizer)
    return f"{kind.__module__}.{kind.__qualname__} {' '.join(dict.fromkeys(groups))}".strip()
