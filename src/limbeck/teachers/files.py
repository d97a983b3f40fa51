r"""Files of models, by their endings: ONNX, and the boosting libraries' own."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from limbeck.errors import ArgumentError, LimbeckError
from limbeck.teachers.fingerprints import of_files
from limbeck.teachers.row_teacher import ModelFile

__all__ = ["open_model"]


def open_model(path: str | Path) -> tuple[Any, ModelFile]:
    r"""The model in an .onnx, .json or .ubj (XGBoost), .txt (LightGBM) or .cbm (CatBoost) file."""
    path = Path(path)
    if path.suffix.lower() not in _READERS:
        expected = f"a file that ends in {', '.join(_READERS)}, or the model itself, loaded"
        raise ArgumentError("teacher", repr(str(path)), expected)
    if not path.is_file():
        raise ArgumentError("teacher", f"{str(path)!r}, which is no file", "a file that is there")
    name, read = _READERS[path.suffix.lower()]
    try:
        model = read(str(path))
    except LimbeckError:
        raise
    except Exception as error:  # each library has its own
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        expected = f"a model as {name} writes it"
        raise ArgumentError("teacher", f"{str(path)!r}, unreadable: {reason}", expected) from error
    files = [path]
    if name == "ONNX":  # files beside it, to which it refers, may hold large weights
        content = path.read_bytes()
        others = [f for f in sorted(path.parent.iterdir()) if f.is_file() and f != path]
        files += [other for other in others if other.name.encode() in content]
    return model, ModelFile(path, of_files(files), sum(file.stat().st_size for file in files))


def _library(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        message = f"teacher: this file needs {name}: pip install 'limbeck[{extra}]'"
        raise LimbeckError(message) from error


def _onnx(path: str) -> Any:
    runtime = _library("onnxruntime", "onnx")
    return runtime.InferenceSession(path, providers=["CPUExecutionProvider"])


def _xgboost(path: str) -> Any:
    return _library("xgboost", "boosting").Booster(model_file=path)


_READERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    ".onnx": ("ONNX", _onnx),
    ".json": ("XGBoost", _xgboost),
    ".ubj": ("XGBoost", _xgboost),
    ".txt": ("LightGBM", lambda path: _library("lightgbm", "boosting").Booster(model_file=path)),
    ".cbm": ("CatBoost", lambda path: _library("catboost", "boosting").CatBoost().load_model(path)),
}
