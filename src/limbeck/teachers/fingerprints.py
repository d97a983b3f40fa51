r"""Hashes of models by content: equal for equal models, in every process."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import pickle
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import joblib
import torch
from torch import Tensor, nn

from limbeck.arrays import map_tensors

# packages whose models are in their pickles
LIBRARIES = {"catboost", "imblearn", "lightgbm", "limbeck", "sklearn", "torch", "xgboost"}
KNOWN = LIBRARIES | {"abc", "builtins", "numpy", "pandas", "scipy", "typing"}
PREDICTS = ("predict", "predict_proba")  # methods by which a model is known
# what every module has: its tensors are in the state, the rest is torch's own business
OWN = frozenset([*vars(nn.Module()), "_is_torch_compile"])


def digest(*parts: str | bytes) -> str:
    r"""A hash of several parts, each preceded by its length."""
    code = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        code.update(f"{len(data)}:".encode())
        code.update(data)
    return code.hexdigest()


def of_object(value: object) -> str | None:
    r"""A hash of an object's pickle, or None if it cannot be pickled or has code of its own."""
    with contextlib.suppress(Exception):  # whatever the object's own code raises
        if object_bytes(value, own_code=False) is not None:
            # joblib's hash, since pickles differ with which equal strings are one object
            return digest(_qualified(value), joblib.hash(value, hash_name="sha1"))
    return None


def object_bytes(value: object, own_code: bool = True) -> int | None:
    r"""The size of a model's pickle; None where it cannot be made, or would not hold the model."""
    content = io.BytesIO()
    try:
        _Pickler(content, own_code).dump(value)
    except Exception:  # whatever the object's own code raises, and what `_Pickler` does
        return None
    return content.tell()


def is_wrapper(value: object) -> bool:
    r"""Whether an object predicts by code of no known library, which may query another model."""
    if isinstance(value, type | nn.Module):
        return False
    for name in PREDICTS:
        owner = next((base for base in type(value).__mro__ if name in vars(base)), None)
        known = owner is not None and owner.__module__.split(".")[0] in LIBRARIES
        if callable(getattr(value, name, None)) and not known:
            return True
    return False


class _Pickler(pickle.Pickler):
    r"""A pickler that gives up at a model whose content it cannot see.

    Without `own_code` also at functions and models of the user's own, whose code may change.
    """

    def __init__(self, file: io.BytesIO, own_code: bool) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.own_code = own_code

    def reducer_override(self, value: object) -> Any:
        hidden = is_wrapper(value)
        if not self.own_code and isinstance(value, types.FunctionType):
            hidden = _is_own(value)
        elif not self.own_code and any(callable(getattr(value, name, None)) for name in PREDICTS):
            hidden = hidden or bool(_own_classes(type(value)))
        if hidden:
            raise pickle.PicklingError(f"{_qualified(value)} has code of its own")
        return NotImplemented


def _own_classes(kind: type) -> list[type]:
    r"""The classes of a type that are of no known library."""
    return [base for base in kind.__mro__ if _is_own(base)]


def _is_own(value: type | types.FunctionType) -> bool:
    r"""Whether a class or function is of no known library."""
    return value.__module__.split(".")[0] not in KNOWN


def of_module(module: nn.Module) -> str | None:
    r"""A hash of a module's classes, settings and tensors; None where some cannot be pickled."""
    module = getattr(module, "_orig_mod", module)  # inside what torch.compile gives
    named = list(module.named_modules())
    if any(isinstance(part, torch.jit.ScriptModule) for _, part in named):
        return None  # what is scripted keeps its code out of sight
    parts = [(name, _qualified(part), _code(type(part)), _settings(part)) for name, part in named]
    return of_object(map_tensors(_raw, [repr(module), parts, dict(module.state_dict())]))


def _code(kind: type) -> list[Any]:
    r"""The code of a class of the user's own, and of the functions, numbers and texts it uses."""
    return [
        (name, _function_code(value))
        for base in _own_classes(kind)
        for name, value in sorted(vars(base).items())
        if isinstance(value, types.FunctionType)
    ]


def _function_code(function: types.FunctionType, depth: int = 3) -> list[Any]:
    names, used, waiting = set[str](), list[Any](), [function.__code__]
    while waiting:  # with the functions inside
        part = waiting.pop()
        names.update(part.co_names)
        waiting += [value for value in part.co_consts if isinstance(value, types.CodeType)]
        plain = [value for value in part.co_consts if not isinstance(value, types.CodeType)]
        plain = [sorted(map(repr, v)) if isinstance(v, frozenset) else repr(v) for v in plain]
        used.append((part.co_code, part.co_names, plain))
    for name in sorted(names):
        value = function.__globals__.get(name)
        if isinstance(value, int | float | str):
            used.append((name, value))
        elif isinstance(value, types.FunctionType) and depth and _is_own(value):
            used.append((name, _function_code(value, depth - 1)))
    return used


def module_bytes(module: nn.Module) -> int | None:
    r"""The size of a module's safetensors file; None without tensors or with another model."""
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


def _reaches_model(value: object, depth: int = 3) -> bool:
    if depth == 0 or isinstance(value, type | nn.Module | Tensor):
        return False
    parts: list[object]
    if isinstance(value, types.FunctionType):
        if value.__module__.split(".")[0] in LIBRARIES:
            return False
        parts = [value.__globals__.get(name) for name in value.__code__.co_names]
        for cell in value.__closure__ or ():
            with contextlib.suppress(ValueError):  # an empty cell
                parts.append(cell.cell_contents)
    elif isinstance(value, types.MethodType | functools.partial):
        parts = [getattr(value, name, None) for name in ("__self__", "func", "args", "keywords")]
    elif isinstance(value, Mapping | list | tuple):
        parts = list(value.values() if isinstance(value, Mapping) else value)
    else:
        return any(callable(getattr(value, name, None)) for name in PREDICTS)
    return any(_reaches_model(part, depth - 1) for part in parts)


def of_files(paths: Iterable[Path]) -> str:
    r"""A hash of the content of files, whatever their names."""
    codes = []
    for path in paths:
        with path.open("rb") as file:
            codes.append(hashlib.file_digest(file, "sha256").hexdigest())
    return digest(*codes)


def _raw(tensor: Tensor) -> Any:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return str(tensor.dtype), tuple(tensor.shape), flat.view(torch.uint8).numpy().tobytes()


def _qualified(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
