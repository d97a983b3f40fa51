r"""Content of a model in a few letters: equal for equal models, in every process."""

from __future__ import annotations

import functools
import hashlib
import pickle
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import joblib
import torch
from torch import Tensor, nn

from limbeck.arrays import map_tensors

__all__ = [
    "digest",
    "holds_other_model",
    "is_wrapper",
    "module_bytes",
    "object_bytes",
    "of_files",
    "of_module",
    "of_object",
]

# packages whose models are in their pickles
LIBRARIES = frozenset(
    ["catboost", "imblearn", "lightgbm", "limbeck", "sklearn", "torch", "xgboost"]
)

PREDICTS = ("predict", "predict_proba")  # methods by which a model is known
# what every module has: its tensors are in the state, the rest is torch's own business
OWN = frozenset([*vars(nn.Module()), "_is_torch_compile"])


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
    r"""The size of a model's pickle; None where it cannot be made, or would not hold the model.

    A class of the user's own that predicts may ask a service, a file or another model, which its
    pickle does not hold; so only models of known libraries have a size, with all models in them.
    """
    counter = _Counter()
    try:
        _Sizing(counter, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    except Exception:  # whatever the object's own code raises, and what `_Sizing` does
        return None
    return counter.written


def is_wrapper(value: Any) -> bool:
    r"""Whether an object predicts by code that is not a known library's."""
    if isinstance(value, type | nn.Module):
        return False
    methods = [name for name in PREDICTS if callable(getattr(value, name, None))]
    return any(_defined_in(value, name) not in LIBRARIES for name in methods)


def _defined_in(value: Any, method: str) -> str:
    r"""The package of the class that defines a method; nothing where no class does."""
    owners = (base for base in type(value).__mro__ if method in vars(base))
    return next((base.__module__.split(".")[0] for base in owners), "")


class _Sizing(pickle.Pickler):
    r"""A pickler that gives up at a model whose content it cannot see."""

    def reducer_override(self, value: Any) -> Any:
        if is_wrapper(value):
            raise pickle.PicklingError(f"{_qualified(value)} predicts by code of its own")
        return NotImplemented


class _Counter:
    r"""A file that keeps nothing but its length."""

    written = 0

    def write(self, part: Any) -> int:
        size = memoryview(part).nbytes
        self.written += size
        return size


def of_module(module: nn.Module) -> str | None:
    r"""A hash of a module's classes, settings and tensors.

    None where it holds something without content, as a function defined on the spot.
    """
    module = getattr(module, "_orig_mod", module)  # inside what torch.compile gives
    parts: list[str | bytes] = [repr(module)]
    for name, part in module.named_modules():
        found = of_object(map_tensors(_raw, _settings(part)))  # type: ignore[arg-type]
        if found is None or isinstance(part, torch.jit.ScriptModule):
            return None  # what is scripted keeps its code out of sight
        parts += [name, _qualified(part), found]
    for name, value in module.state_dict().items():
        if not isinstance(value, Tensor):
            return None
        parts += [name, str(value.dtype), str(tuple(value.shape)), _raw(value)]
    return digest(*parts)


def module_bytes(module: nn.Module) -> int | None:
    r"""The size of a module's tensors as a safetensors file; None where the model is not in them.

    That is a module without tensors, or one that asks a model of another kind.
    """
    from safetensors.torch import save

    tensors = {
        name: value.detach().cpu().contiguous().clone()  # tied tensors are written twice
        for name, value in module.state_dict().items()
        if isinstance(value, Tensor)
    }
    return len(save(tensors)) if tensors and not holds_other_model(module) else None


def holds_other_model(module: nn.Module) -> bool:
    r"""Whether a module holds, or its functions use, a model that is no module."""
    return any(
        _reaches_model(value)
        for part in module.modules()
        for value in [type(part).forward, *_settings(part).values()]
    )


def _settings(part: nn.Module) -> dict[str, Any]:
    return {key: value for key, value in vars(part).items() if key not in OWN}


def _reaches_model(value: Any, depth: int = 3) -> bool:
    if depth == 0 or isinstance(value, type | nn.Module | Tensor):
        return False
    if isinstance(value, types.FunctionType):
        if value.__module__.split(".")[0] in LIBRARIES:
            return False
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        used = (value.__globals__.get(name) for name in value.__code__.co_names)
        return any(_reaches_model(each, depth - 1) for each in [*cells, *used])
    if isinstance(value, types.MethodType | functools.partial):
        inner = [getattr(value, name, None) for name in ("__self__", "func", "args", "keywords")]
        return any(_reaches_model(each, depth - 1) for each in inner)
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return any(_reaches_model(each, depth - 1) for each in value)
    return any(callable(getattr(value, name, None)) for name in PREDICTS)


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


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
