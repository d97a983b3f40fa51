r"""Models kept in files with what they were made with, so that a run can go on where it ended."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from limbeck.errors import CheckpointError
from limbeck.models import from_spec
from limbeck.models.checks import count_numbers
from limbeck.records import of_file
from limbeck.storage import files
from limbeck.training.result import FORMAT, spec_of

__all__ = ["digest", "kept_or_made", "read", "write"]


def write(path: Path, model: nn.Module, made: dict[str, Any], seconds: float = 0.0) -> None:
    r"""One of limbeck's own models, what it was made with, and how long that took."""
    about = {"spec": spec_of(model), "made": made, "seconds": seconds}
    files.write(path, model.state_dict(), about, FORMAT)


def read(
    path: Path, device: torch.device | str, made: dict[str, Any] | None = None
) -> tuple[Any, float]:
    r"""The model of a file and the seconds it took; one that was made otherwise is refused."""
    tensors, about = files.read(path, FORMAT)
    if made is not None and (found := files.differences(about.get("made", {}), made)):
        raise CheckpointError(
            f"out: {path} was made otherwise: {'; '.join(found)}; expected: another folder"
        )
    with of_file(path):
        model = from_spec(about["spec"], count_numbers(tensors))
    files.copy_into(model.state_dict(), tensors, path)
    return model.to(device).eval(), about.get("seconds", 0.0)


def kept_or_made(
    path: Path,
    device: torch.device | str,
    made: dict[str, Any],
    make: Callable[[], tuple[nn.Module, float]],
) -> tuple[Any, float]:
    r"""The model of a file if there is one; else it is made, and kept there.

    Arguments:
        path: The file.
        device: Where the model is to live.
        made: What it is made with, as JSON can hold it.
        make: Gives the model and the seconds it took.
    """
    if path.exists():
        return read(path, device, made)
    model, seconds = make()
    write(path, model, made, seconds)
    return model.to(device).eval(), seconds


def digest(model: nn.Module) -> str:
    r"""Twelve digits by which a model's weights are known."""
    found = hashlib.sha256()
    for tensor in model.state_dict().values():
        found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:12]
