r"""Content of a model in a few letters: equal for equal models, in every process."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import joblib
import torch
from torch import Tensor, nn

from limbeck.core.batch import map_tensors

__all__ = ["digest", "module_bytes", "object_bytes", "of_files", "of_module", "of_object"]

OWN = frozenset([*vars(nn.Module()), "_is_torch_compile"])
r"""What every module has: its tensors are in the state, the rest is torch's own business."""


def digest(*parts: str | bytes) -> str:
    r"""A hash of several parts, each with its length, so that they do not run into each other.

    >>> digest("ab", "c") == digest("a", "bc")
    False
    """
    found = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        found.update(f"{len(data)}:".encode())
        found.update(data)
    return found.hexdigest()


def of_object(value: Any) -> str | None:
    r"""A hash of all that pickle would write, or None where it cannot; nothing is read back.

    Pickles themselves differ with which equal strings are one object; joblib's hash does not.
    """
    try:
        return digest(_qualified(value), joblib.hash(value, hash_name="sha1"))
    except Exception:  # whatever the object's own code raises
        return None


def object_bytes(value: Any) -> int | None:
    r"""The size of a pickle, or None where it cannot be made."""
    try:
        return len(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))
    except Exception:  # whatever the object's own code raises
        return None


def of_module(module: nn.Module) -> str | None:
    r"""A hash of a module's classes, settings and tensors.

    None where it holds something without content, as a function defined on the spot.
    """
    module = getattr(module, "_orig_mod", module)  # inside what torch.compile gives
    parts: list[str | bytes] = [repr(module)]
    for name, part in module.named_modules():
        settings = {key: value for key, value in vars(part).items() if key not in OWN}
        found = of_object(map_tensors(_raw, settings))  # type: ignore[arg-type]
        if found is None or isinstance(part, torch.jit.ScriptModule):
            return None  # what is scripted keeps its code out of sight
        parts += [name, _qualified(part), found]
    for name, value in module.state_dict().items():
        if not isinstance(value, Tensor):
            return None
        parts += [name, str(value.dtype), str(tuple(value.shape)), _raw(value)]
    return digest(*parts)


def module_bytes(module: nn.Module) -> int:
    r"""The size of a module's tensors as a safetensors file."""
    from safetensors.torch import save

    tensors = {
        name: value.detach().cpu().contiguous().clone()  # tied tensors are written twice
        for name, value in module.state_dict().items()
        if isinstance(value, Tensor)
    }
    return len(save(tensors))


def of_files(paths: Iterable[Path]) -> str:
    r"""A hash of the content of files, whatever their names."""
    found = []
    for path in paths:
        with path.open("rb") as file:
            found.append(hashlib.file_digest(file, "sha256").hexdigest())
    return digest(*found)


def _raw(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _qualified(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
