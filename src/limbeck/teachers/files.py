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
    r"""The model in a file, and what the file is.

    Arguments:
        path: An .onnx file, XGBoost's .json or .ubj, LightGBM's .txt or CatBoost's .cbm.
    """
    path = Path(path)
    if path.suffix.lower() not in _READERS:
        expected = f"a file that ends in {', '.join(_READERS)}, or the model itself, loaded"
        raise ArgumentError("teacher", repr(str(path)), expected)
    if not path.is_file():
        raise ArgumentError("teacher", f"{str(path)!r}, which is no file", "a file that is there")
    read = _READERS[path.suffix.lower()]
    try:
        model = read(str(path))
    except LimbeckError:
        raise
    except Exception as error:  # each library has its own
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        expected = f"a model as {read.__doc__} writes it"
        raise ArgumentError("teacher", f"{str(path)!r}, unreadable: {reason}", expected) from error
    files = [path, *_beside(path)]
    return model, ModelFile(path, of_files(files), sum(file.stat().st_size for file in files))


def _beside(path: Path) -> list[Path]:
    r"""Files in the same folder that an ONNX file refers to: large weights are kept in such."""
    if path.suffix.lower() != ".onnx":
        return []
    content = path.read_bytes()
    others = (other for other in sorted(path.parent.iterdir()) if other.is_file() and other != path)
    return [other for other in others if other.name.encode() in content]


def _library(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise LimbeckError(
            f"teacher: this file needs {name}: pip install 'limbeck[{extra}]'"
        ) from error


def _onnx(path: str) -> Any:
    r"""ONNX"""
    runtime = _library("onnxruntime", "onnx")
    return runtime.InferenceSession(path, providers=["CPUExecutionProvider"])


def _xgboost(path: str) -> Any:
    r"""XGBoost"""
    return _library("xgboost", "boosting").Booster(model_file=path)


def _lightgbm(path: str) -> Any:
    r"""LightGBM"""
    return _library("lightgbm", "boosting").Booster(model_file=path)


def _catboost(path: str) -> Any:
    r"""CatBoost"""
    return _library("catboost", "boosting").CatBoost().load_model(path)


_READERS: dict[str, Callable[[str], Any]] = {
    ".onnx": _onnx,
    ".json": _xgboost,
    ".ubj": _xgboost,
    ".txt": _lightgbm,
    ".cbm": _catboost,
}
