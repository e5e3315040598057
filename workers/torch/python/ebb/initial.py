"""What a training begins with instead of what `model()` made: a safetensors file, a Hugging Face folder, or a model of Ebb.

Names are those of PyTorch's `state_dict`. Where a wrapper has put something before or into them (peft, a head on a base model),
the file's own name is found again. Reads; trains nothing.
"""

from __future__ import annotations

import glob
import json
import os
import tempfile
import urllib.error
import urllib.request
from typing import Any, Iterator

import torch

from ebb import tensors
from ebb.refuse import Refused

INDEX = "model.safetensors.index.json"
WHOLE = ("model.safetensors", "adapter_model.safetensors")
NAMES_SHOWN = 4
SERVICE = "http://127.0.0.1:7878"
BLOCK_BYTES = 1 << 20
#: Longest silence of the service.
TIMEOUT_S = 60


def load(source: str, model: Any = None, strict: bool = True) -> Any:
    """See `ebb.load`."""
    found = read(source)
    if model is None:
        return found
    left_out = load_into(model, found, source, strict)
    if left_out:
        print(f"from {source}: {left_out}", flush=True)
    return model


def read(source: str) -> dict[str, torch.Tensor]:
    """The tensors of a file, of a folder or of a job."""
    if os.path.isdir(source):
        found: dict[str, torch.Tensor] = {}
        for path in _files(source):
            found.update(tensors.read(path))
        return found
    if os.path.exists(source) or not _is_job(source):
        return tensors.read(source)
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        _fetch(source, file)
        if not source.startswith("job-") and (found := tensors.digest_of(file.name)) != source:
            raise Refused(f"what the service gave as the model {source} has the digest {found}; the model there is damaged, or was not sent whole")
        return tensors.read(file.name)


def named(value: Any, beside: str) -> tuple[str, bool]:
    """What a job file's `from:` names, as `load` takes it, and whether all of it has to fit. Files are taken from where the job file is."""
    expected = "a file, a folder, a job's id, a model's digest, or an object such as {file: ./model.safetensors, strict: false}, {job: ID} or {path: …}"
    if isinstance(value, str):
        path = os.path.join(beside, value)
        if os.path.exists(path) or not _is_job(value):
            return path, True
        return value, True
    given = dict(value) if isinstance(value, dict) else {}
    strict = given.pop("strict", True)
    if not isinstance(strict, bool):
        raise Refused(f"`from.strict` is {strict!r}; it must be true or false")
    kind, source = next(iter(given.items()), (None, None))
    if len(given) != 1 or kind not in ("file", "path", "job", "digest") or not isinstance(source, str):
        raise Refused(f"`from` is {value!r}; it must be {expected}")
    return (os.path.join(beside, source) if kind == "file" else source), strict


def _files(folder: str) -> list[str]:
    index = os.path.join(folder, INDEX)
    if os.path.exists(index):
        with open(index, encoding="utf-8") as file:
            names = sorted(set(json.load(file)["weight_map"].values()))
        # An index is somebody else's text, so it may name only what lies beside it.
        return [os.path.join(folder, os.path.basename(name)) for name in names]
    for name in WHOLE:
        if os.path.exists(os.path.join(folder, name)):
            return [os.path.join(folder, name)]
    others = sorted(glob.glob(os.path.join(glob.escape(folder), "*.safetensors")))
    if len(others) == 1:
        return others
    has = f"{len(others)} others that end so" if others else "no other that ends so"
    pickled = " (its pytorch_model.bin may run code when it is read: save it with `save_pretrained(…)`, which writes safetensors)"
    raise Refused(
        f"the folder {folder} has no model.safetensors and {has}"
        f"{pickled if os.path.exists(os.path.join(folder, 'pytorch_model.bin')) else ''}; name the file, or a folder as `save_pretrained` writes it"
    )


def _is_job(source: str) -> bool:
    digest = len(source) == 64 and all(digit in "0123456789abcdef" for digit in source)
    return digest or source.startswith("job-") and os.sep not in source


def _fetch(source: str, file: Any) -> None:
    """The final model of a job, by its id or by the model's digest, from the service that EBB_URL names."""
    service = os.environ.get("EBB_URL", SERVICE).rstrip("/")
    try:
        job = source if source.startswith("job-") else _job_of(service, source)
        with urllib.request.urlopen(f"{service}/v1/jobs/{job}/model", timeout=TIMEOUT_S) as answer:
            while block := answer.read(BLOCK_BYTES):
                file.write(block)
        file.flush()
    except urllib.error.HTTPError as error:
        try:
            said = json.load(error).get("detail", str(error))
        except ValueError:
            said = str(error)
        raise Refused(f"{source} is neither a file here nor a model at {service}: {said}") from error
    except OSError as error:
        raise Refused(
            f"{source} is no file here, and Ebb at {service} cannot be asked for its model ({error}); EBB_URL says where it is"
        ) from error


def _job_of(service: str, digest: str) -> str:
    cursor = ""
    while True:
        with urllib.request.urlopen(f"{service}/v1/jobs?phase=finished{cursor}", timeout=TIMEOUT_S) as answer:
            page = json.load(answer)
        for job in page["jobs"]:
            if (job.get("outcome") or {}).get("model_digest") == digest:
                return str(job["id"])
        if not page.get("next_cursor"):
            raise Refused(f"{digest} is no file here, and no finished job at {service} has a model of this digest")
        cursor = f"&cursor={page['next_cursor']}"


def load_into(model: Any, given: dict[str, torch.Tensor], source: str, strict: bool) -> str:
    """Loads by name; without `strict`, what does not fit is left out, and said."""
    # What `get_extra_state()` gives need be no tensor; it stays as model() made it.
    own = {name: value for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    found, used = {}, set()
    for name, tensor in own.items():
        match = next((alias for alias in _aliases(model, name) if alias in given), None)
        if match is not None:
            found[name] = given[match]
            used.add(match)
    # A tied weight may be in the file under one of its names only.
    places = {own[name].data_ptr(): name for name in found if own[name].numel()}
    missing = []
    for name in own:
        twin = places.get(own[name].data_ptr())
        if name in found or twin is not None and own[twin].shape == own[name].shape:
            continue
        missing.append(name)
    unexpected = [name for name in given if name not in used]
    wrong = [name for name, tensor in found.items() if tensor.shape != own[name].shape]
    told = [
        _some("it lacks", [f"`{name}` {list(own[name].shape)}" for name in missing]),
        _some("the model has no", [f"`{name}` {list(given[name].shape)}" for name in unexpected]),
        _some("of another shape than the model's are", [f"`{n}` {list(found[n].shape)}, not {list(own[n].shape)}" for n in wrong]),
    ]
    problems = "; ".join(text for text in told if text)
    if problems and strict:
        raise Refused(
            f"{source} does not fit the model: {problems}; to take what fits and leave the rest as model() made it, say `strict: false`"
        )
    kept = {name: tensor for name, tensor in found.items() if name not in wrong}
    if not kept:
        raise Refused(f"nothing in {source} fits the model: {problems}")
    model.load_state_dict(kept, strict=False)
    return problems


def _aliases(model: Any, name: str) -> Iterator[str]:
    """The names that a tensor of the model may have in a file."""
    yield name
    bare = name.removeprefix("base_model.model.").replace(".base_layer.", ".")
    if bare != name:
        yield bare
    # An adapter's file leaves out the adapter's name.
    for adapter in getattr(model, "peft_config", None) or ():
        yield name.replace(f".{adapter}.", ".")
    prefix = getattr(model, "base_model_prefix", "")
    if isinstance(prefix, str) and prefix:
        yield bare.removeprefix(f"{prefix}.") if bare.startswith(f"{prefix}.") else f"{prefix}.{bare}"


def _some(what: str, names: list[str]) -> str:
    if not names:
        return ""
    return f"{what} " + ", ".join(names[:NAMES_SHOWN]) + (f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else "")
