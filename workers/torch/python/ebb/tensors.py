"""Safetensors files: written deterministically, read without further libraries. Knows names and bytes, nothing of training."""

from __future__ import annotations

import hashlib
import json
import math
import mmap
from typing import Any, BinaryIO

import torch

from ebb.refuse import Refused

HEADER_LIMIT_BYTES = 100_000_000
NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
for _name, _attribute in (
    ("U16", "uint16"), ("U32", "uint32"), ("U64", "uint64"), ("F8_E4M3", "float8_e4m3fn"), ("F8_E5M2", "float8_e5m2"), ("C64", "complex64"),
):  # fmt: skip
    if hasattr(torch, _attribute):
        NAMES[getattr(torch, _attribute)] = _name
TYPES = {name: dtype for dtype, name in NAMES.items()}


def header(tensors: dict[str, torch.Tensor], metadata: list[tuple[str, str]]) -> bytes:
    """Length and JSON: the metadata first, then the tensors in their order; spaces align what follows to 8 bytes."""
    entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    start = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in NAMES:
            raise Refused(f"`{name}` has the type {tensor.dtype}, which a safetensors file cannot hold")
        end = start + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write(file: BinaryIO, tensors: dict[str, torch.Tensor], metadata: list[tuple[str, str]]) -> tuple[int, str]:
    """Writes the file; its length, and the SHA-256 of its tensor data."""
    head = header(tensors, metadata)
    file.write(head)
    size, digest = len(head), hashlib.sha256()
    for tensor in tensors.values():
        raw = raw_bytes(tensor)
        digest.update(raw)
        file.write(raw)
        size += len(raw)
    return size, digest.hexdigest()


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """A tensor's elements in order, as little-endian bytes."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    if flat.numel() == 0:
        return memoryview(b"")
    flat = flat.view(torch.uint8)
    try:
        return memoryview(flat.numpy())
    except RuntimeError:  # torch without NumPy
        return memoryview(bytes(flat.untyped_storage())[flat.storage_offset() : flat.storage_offset() + flat.numel()])


def read(path: str) -> dict[str, torch.Tensor]:
    """The file's tensors by name, each a copy of its own."""
    try:
        opened = open(path, "rb")
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from error
    with opened as file:
        entries, start = _read_header(file, path)
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        tensors = {}
        for name, entry in entries.items():
            dtype, shape, begin, end = _checked_entry(entry, len(data) - start, f"{path}: `{name}`")
            raw = bytearray(data[start + begin : start + end])
            tensor = torch.frombuffer(raw, dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)
            tensors[name] = tensor.view(dtype).reshape(shape)
        return tensors


def _checked_entry(entry: Any, length: int, where: str) -> tuple[torch.dtype, list[int], int, int]:
    """A tensor's type, shape, begin and end: files come from elsewhere, and over networks."""
    entry = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in TYPES:
        raise Refused(f"{where} has the type {dtype}, which cannot be read; known are {', '.join(TYPES)}")
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise Refused(f"{where} has the shape {shape} and the place {offsets}, which are no sizes; the file is damaged")
    begin, end = offsets
    bytes_needed = math.prod(shape) * TYPES[dtype].itemsize
    if end - begin != bytes_needed:
        raise Refused(f"{where} needs {bytes_needed} bytes as {dtype} of shape {shape}, and has those from {begin} to {end}; the file is damaged")
    if end > length:
        raise Refused(f"{where} ends after {end} bytes of tensors, and the file has {length}; it is damaged, or was not copied whole")
    return TYPES[dtype], shape, begin, end


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def digest_of(path: str) -> str:
    """The SHA-256 of a file's tensor data."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        _read_header(file, path)
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _read_header(file: BinaryIO, path: str) -> tuple[dict[str, Any], int]:
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= HEADER_LIMIT_BYTES:
        raise Refused(f"{path} is no safetensors file: its header would be {length} bytes long")
    try:
        entries = json.loads(file.read(length))
    except (ValueError, RecursionError) as error:
        raise Refused(f"{path} is no safetensors file: {error}") from error
    if not isinstance(entries, dict):
        raise Refused(f"{path} is no safetensors file: its header is a {type(entries).__name__}")
    entries.pop("__metadata__", None)
    return entries, 8 + length
