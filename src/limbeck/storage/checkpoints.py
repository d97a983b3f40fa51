r"""Checkpoint folders: they hold the last two checkpoints, each named by its step."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from limbeck.errors import CheckpointError, warn
from limbeck.records import damaged
from limbeck.storage import files, folders

FORMAT = "limbeck-checkpoint-1"
NAME = re.compile(r"checkpoint-(\d{1,18})\.safetensors")


class Checkpoint(NamedTuple):
    r"""A checkpoint that was read."""

    path: Path
    tensors: dict[str, Tensor]
    about: dict[str, Any]


def prepare(folder: Path) -> None:
    r"""Make a folder for checkpoints; refuse one that has other files or cannot be written to."""
    manifest = None
    try:
        if folder.is_dir() or not folder.exists():
            manifest = folders.settle(folder)
            if manifest is None and not folders.entries(folder):
                return
    except OSError as error:
        raise CheckpointError(f"checkpoint: cannot write into {folder} ({error})") from error
    if manifest is None or manifest.kind != "checkpoint":
        raise CheckpointError(
            f"checkpoint: {folder} holds something else than limbeck's checkpoints; "
            "expected a new or empty folder, or one that limbeck wrote"
        )


def write(
    folder: Path, step: int, tensors: Mapping[str, Tensor], about: object, before: Path | None
) -> Path:
    r"""Write the checkpoint of a step, and keep the one before it."""
    name = f"checkpoint-{step}.safetensors"
    keep = () if before is None else (before.name,)
    folders.write(folder, "checkpoint", {name: files.encode(tensors, about, FORMAT)}, keep)
    return folder / name


def steps(folder: Path) -> list[int]:
    r"""The steps of a folder's checkpoints, the last one first."""
    manifest = folders.read_manifest(folder)
    numbers = []
    for name in () if manifest is None else manifest.files:
        if (match := NAME.fullmatch(name)) is None:
            raise damaged(folder / folders.MANIFEST, f"names a file {name!r}")
        numbers.append(int(match[1]))
    return sorted(numbers, reverse=True)


def read(folder: Path) -> Checkpoint | None:
    r"""The last checkpoint of a folder; if it is damaged, the one before it, with a warning."""
    errors: list[CheckpointError] = []
    for step in steps(folder):
        name = f"checkpoint-{step}.safetensors"
        try:
            saved = folders.read(folder, "checkpoint", (name,), "checkpoint", every=False)
            tensors, about = saved.tensors(name, FORMAT)
        except CheckpointError as error:
            errors.append(error)
            continue
        if errors:
            warn(f"{errors[0]}. The run continues from the checkpoint before it, of step {step:,}")
        return Checkpoint(folder / name, tensors, about)
    if errors:
        raise errors[0]
    return None
