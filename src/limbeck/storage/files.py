r"""Tensors and values as files: written completely or not at all, checked when they are read."""

from __future__ import annotations

import hashlib
import json
import math
import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from limbeck import records
from limbeck.errors import ArgumentError, CheckpointError
from limbeck.storage import disk

# safetensors' names of types; tensors are stored from the widest type on, so that all are aligned
TYPES = {
    torch.float64: "F64", torch.int64: "I64", torch.uint64: "U64", torch.complex64: "C64",
    torch.float32: "F32", torch.int32: "I32", torch.uint32: "U32", torch.float16: "F16",
    torch.bfloat16: "BF16", torch.int16: "I16", torch.uint16: "U16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
DTYPES = {name: dtype for dtype, name in TYPES.items()}
PARSING_ERRORS = (ValueError, LookupError, TypeError, AttributeError, RecursionError, RuntimeError)


def encode(tensors: Mapping[str, Tensor], about: object, kind: str, digest: bool = False) -> bytes:
    r"""Tensors and a description that JSON can hold, as the content of a safetensors file.

    Arguments:
        tensors: The tensors by name.
        about: The description.
        kind: The format's name, which `decode` expects.
        digest: Whether to store a SHA-256 digest, for a file without a manifest. Default: False.
    """
    plain = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    metadata = {"format": kind, "about": json.dumps(about)}
    if digest:
        metadata["sha256"] = digest_of(metadata["about"], plain)
    header: dict[str, Any] = {"__metadata__": metadata}
    order, start = sorted(plain, key=lambda name: (-plain[name].element_size(), name)), 0
    for name in order:
        tensor = plain[name]
        if tensor.dtype not in TYPES:
            raise ArgumentError(name, f"a tensor of {tensor.dtype}", "a type of safetensors")
        stop = start + tensor.nbytes
        entry = {"dtype": TYPES[tensor.dtype], "shape": list(tensor.shape)}
        header[name], start = entry | {"data_offsets": [start, stop]}, stop
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 16)
    return b"".join([len(text).to_bytes(8, "little"), text, *(_bytes(plain[n]) for n in order)])


def _bytes(tensor: Tensor) -> Any:
    flat = tensor.reshape(-1)
    if flat.stride() != (1,):  # of one number, which counts as contiguous all the same
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8).numpy()


def digest_of(about: str, tensors: Mapping[str, Tensor]) -> str:
    r"""The SHA-256 digest of a description and of tensors with their names, types and shapes."""
    digest = hashlib.sha256(about.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def decode(
    content: bytearray, path: Path, kind: str, digest: bool = False
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    r"""The tensors and the description of a file that `encode` made; arguments as there."""
    tensors, metadata = parse(content, path)
    if metadata.get("format") != kind:
        received = f"is not limbeck's (format {metadata.get('format')!r})"
        raise CheckpointError(f"checkpoint: {path} {received}; expected the format {kind!r}")
    if digest and metadata.get("sha256") != digest_of(metadata.get("about", ""), tensors):
        raise records.damaged(path, "has another content than its SHA-256 digest says")
    about = records.decode(metadata.get("about", "").encode(), path)
    if not isinstance(about, dict):
        raise records.damaged(path, "has no readable description")
    return tensors, about


def parse(content: bytearray, path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    r"""The tensors and the metadata of a safetensors file; the tensors are views of `content`."""
    try:
        end = 8 + int.from_bytes(content[:8], "little")
        if not 8 < end <= min(len(content), 100_000_000):  # as safetensors has it
            raise ValueError(f"its header ends at byte {end:,} of {len(content):,}")
        header = json.loads(content[8:end], object_pairs_hook=_no_name_twice)
        metadata = header.pop("__metadata__", None) or {}
        "".join(metadata.values()).encode()  # a half of a character has none
        tensors, position = {}, end
        entries = ((entry["data_offsets"], name, entry) for name, entry in header.items())
        for (start, stop), name, entry in sorted(entries, key=operator.itemgetter(0)):
            dtype, shape = DTYPES[entry["dtype"]], entry["shape"]
            sizes = [start, stop, *shape]
            if not all(type(size) is int and size >= 0 for size in sizes):
                raise ValueError(f"{name} has sizes other than whole numbers")
            if end + start != position or stop - start != math.prod(shape) * dtype.itemsize:
                raise ValueError(f"{name} has other bytes than its shape")
            position = end + stop
            if position > len(content):
                raise ValueError(f"{name} ends after the file")
            tensors[name] = _view(content, end + start, dtype, shape)
        if position != len(content):
            raise ValueError("it has bytes that belong to no tensor")
        return tensors, metadata
    except PARSING_ERRORS as error:
        raise records.damaged(path, f"is not a readable safetensors file ({error})") from error


def _view(content: bytearray, start: int, dtype: torch.dtype, shape: list[int]) -> Tensor:
    if not (count := math.prod(shape)):
        return torch.empty(shape, dtype=dtype)
    flat = torch.frombuffer(content, dtype=torch.uint8, offset=start, count=count * dtype.itemsize)
    if flat.data_ptr() % dtype.itemsize:  # another writer's
        flat = flat.clone()
    return flat.view(dtype).reshape(shape)


def _no_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(fields := dict(pairs)) < len(pairs):
        raise ValueError("a name comes twice in its header")
    return fields


def write(path: str | Path, tensors: Mapping[str, Tensor], about: object, kind: str) -> Path:
    r"""Write tensors and a description as one safetensors file, with a digest."""
    return write_bytes(path, encode(tensors, about, kind, digest=True))


def read(path: str | Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    r"""The tensors and the description of a file that `write` wrote."""
    return decode(read_bytes(path), Path(path), kind, digest=True)


def read_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    r"""The tensors and the metadata of any safetensors file."""
    return parse(read_bytes(path), Path(path))


def read_bytes(path: str | Path) -> bytearray:
    r"""The content of a file."""
    try:
        return disk.read(Path(path).resolve())  # a single file may be a link
    except OSError as error:
        raise CheckpointError(f"path: {path} cannot be read ({error})") from error


def write_bytes(path: str | Path, content: bytes) -> Path:
    r"""Write one file, completely or not at all; leftovers of killed writers are removed."""
    path = Path(path)
    try:
        disk.make_folder(path.parent)
        with disk.lock(path):
            disk.remove_pending(path.parent, "tmp", path.name)
            disk.write_file(path, content)
    except OSError as error:
        reason = f"failed ({error}); what was saved before is untouched"
        raise CheckpointError(f"path: writing {path} {reason}") from error
    return path


def differences(saved: dict[str, Any], present: dict[str, Any]) -> list[str]:
    r"""Differences between the settings of a checkpoint and those of this run, a text each."""
    return [
        f"{key} was {saved.get(key)!r} and is {present.get(key)!r}"
        for key in sorted(saved.keys() | present.keys())
        if saved.get(key) != present.get(key)
    ]


def copy_into(places: dict[str, Tensor], tensors: dict[str, Tensor], path: Path) -> None:
    r"""Copy saved tensors into the tensors of the same names."""
    if missing := places.keys() - tensors.keys():
        raise CheckpointError(f"checkpoint: {path} lacks {', '.join(sorted(missing)[:3])}")
    if unknown := tensors.keys() - places.keys():
        names = ", ".join(sorted(unknown)[:3])
        raise CheckpointError(f"checkpoint: {path} holds {names}, for which there is no place here")
    with torch.no_grad():
        for name, place in places.items():
            if place.shape != tensors[name].shape or place.dtype != tensors[name].dtype:
                saved = f"{tuple(tensors[name].shape)} of {tensors[name].dtype}"
                here = f"{tuple(place.shape)} of {place.dtype}"
                raise CheckpointError(f"checkpoint: {name} in {path} is {saved}, and here {here}")
            place.copy_(tensors[name])


def load_weights(student: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    r"""Copy a file's weights into a module; refuse parameters that are not finite."""
    parameters = {name for name, _ in student.named_parameters()}
    for name, tensor in tensors.items():
        # buffers may be infinite, as thresholds and masks are, but not NaN
        wrong = torch.isnan if name not in parameters else lambda x: ~x.isfinite()
        ends = tensor
        if tensor.is_floating_point() and tensor.numel():  # they are NaN if any number is
            ends = torch.stack(tensor.aminmax())
        if wrong(ends).any() and (count := int(wrong(tensor).sum())):
            raise CheckpointError(
                f"checkpoint: {path} holds weights that are not finite ({count:,} of "
                f"{tensor.numel():,} numbers of {name}); the file is damaged or was written by a "
                "training that diverged: restore it from a copy, or train the student again"
            )
    copy_into(student.state_dict(), tensors, path)


def plain(value: object, text: Callable[[str], str] = str) -> Any:
    r"""A value as JSON can hold it: lists, dicts, numbers; None for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {text(str(name)): plain(item, text) for name, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(item, text) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, int | float | None) else text(str(value))
