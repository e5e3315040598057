"""Whether a program runs compiled, and what its compilers may not do. Finds models and functions that `torch.compile` made; compiles nothing."""

from __future__ import annotations

import types
from typing import Any, Iterator

import torch

from ebb import attributes
from ebb.refuse import Refused

# Switches by which a compiler measures several kernels and takes the fastest: another one on another machine, or another day.
SEARCHES = ("max_autotune", "max_autotune_gemm", "max_autotune_pointwise", "coordinate_descent_tuning")


def execution(job: Any, model: torch.nn.Module, code: str | None) -> str:
    """`compiled` or `eager`; refuses what is compiled by trying out."""
    found = "eager"
    for name, config in _compiled(job, model, code):
        found = "compiled"
        search = next((switch for switch in SEARCHES if config.get(switch)), None)
        if search is not None:
            raise Refused(
                f"{name} is compiled with {search}, by which the compiler takes the kernels that are fastest when it tries: other ones on another "
                "executor, with other bits; leave it out, as `mode` max-autotune that sets it"
            )
    return found


def _compiled(job: Any, model: torch.nn.Module, code: str | None) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, module in model.named_modules():
        where = f"the module `{name}`" if name else "the model"
        if type(module).__name__ == "OptimizedModule":
            yield where, getattr(module.dynamo_ctx, "compiler_config", None) or {}
        if getattr(module, "_compiled_call_impl", None) is not None:
            yield where, _config(module._compiled_call_impl)
    for prefix, holder in [*attributes.of_job(job), *attributes.of_code(code)]:
        for key, value in vars(holder).items():
            if isinstance(value, types.FunctionType) and hasattr(value, "_torchdynamo_orig_callable"):
                yield f"the function `{prefix}{key}`", _config(value)


def _config(function: Any) -> dict[str, Any]:
    return function.get_compiler_config() or {} if hasattr(function, "get_compiler_config") else {}
