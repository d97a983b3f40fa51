r"""Files that are written completely or not at all, and checked when they are read."""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from limbeck.errors import CheckpointError

FILE, FORMAT = "checkpoint.safetensors", "limbeck-checkpoint-1"


def check_folder(folder: Path) -> None:
    r"""Refuse a folder that cannot be written to, or that holds other files than checkpoints."""
    if folder.exists() and not (folder / FILE).exists():
        # a process that was killed while it wrote may have left its temporary file
        unfinished = f".{FILE}."
        if not folder.is_dir() or not all(e.name.startswith(unfinished) for e in folder.iterdir()):
            raise CheckpointError(
                f"checkpoint: {folder} holds something else than limbeck's checkpoints; "
                "expected a new or empty folder, or one that limbeck wrote"
            )
    _unlink(_temporary(folder / FILE))


def write(
    path: Path, tensors: dict[str, Tensor], about: dict[str, Any], kind: str = FORMAT
) -> None:
    r"""Write tensors and a description that JSON can hold as one safetensors file."""
    copies = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
    with replacing(path) as temporary:
        save_file(copies, temporary, metadata={"format": kind, "about": json.dumps(about)})


def write_text(path: Path, text: str) -> None:
    r"""Write a text file."""
    with replacing(path) as temporary:
        Path(temporary).write_text(text, encoding="utf-8")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[str]:
    r"""A temporary file's name; it replaces `path` once it is complete and on the disk."""
    temporary = _temporary(path)
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, SafetensorError) as error:
        reason = f"failed ({error}); what was saved before is untouched"
        raise CheckpointError(f"checkpoint: writing {path} {reason}") from error
    finally:
        _unlink(temporary)


def _temporary(path: Path) -> str:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # tempfile would deny all other users the temporary file, and the file that it becomes
        temporary = str(path.parent / f".{path.name}.{secrets.token_hex(6)}.tmp")
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except OSError as error:
        raise CheckpointError(f"checkpoint: cannot write into {path.parent} ({error})") from error
    return temporary


def _unlink(temporary: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(temporary)


def read(path: Path, kind: str = FORMAT) -> tuple[dict[str, Tensor], dict[str, Any]]:
    r"""The tensors and the description of a file that `write` wrote."""
    tensors, metadata = read_tensors(path)
    if metadata.get("format") != kind:
        raise CheckpointError(
            f"checkpoint: {path} is not limbeck's (format {metadata.get('format')!r}); expected a "
            f"folder that limbeck wrote ({kind!r}), or an empty or new one"
        )
    try:
        return tensors, json.loads(metadata["about"])
    except (KeyError, ValueError) as error:
        reason = f"has no readable description ({error})"
        raise CheckpointError(f"checkpoint: {path} {reason}") from error


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    r"""The tensors and metadata of a safetensors file."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError) as error:
        reason = f"is not a readable safetensors file ({error}); delete it to start anew"
        raise CheckpointError(f"checkpoint: {path} {reason}") from error


def differences(saved: dict[str, Any], present: dict[str, Any]) -> list[str]:
    r"""Differences between the settings of a checkpoint and those of this run, a text each."""
    return [
        f"{key} was {saved.get(key)!r} and is {present.get(key)!r}"
        for key in sorted(saved.keys() | present.keys())
        if saved.get(key) != present.get(key)
    ]


def strip_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    r"""The tensors whose names begin with a prefix, without that prefix."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


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
        if not (tensor.is_floating_point() or tensor.is_complex()):
            continue
        # buffers may be infinite, as thresholds and masks are, but not NaN
        bad = ~tensor.isfinite() if name in parameters else tensor.isnan()
        if count := int(bad.sum()):
            raise CheckpointError(
                f"checkpoint: {path} holds weights that are not finite ({count:,} of "
                f"{tensor.numel():,} numbers of {name}); the file is damaged or was written by a "
                "training that diverged: restore it from a copy, or train the student again"
            )
    copy_into(student.state_dict(), tensors, path)


def plain(value: object) -> Any:
    r"""A value as JSON can hold it: lists, dicts, numbers; None for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | None) else str(value)
