r"""Estimators in folders: a student, and JSON; nothing is pickled, no teacher is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from limbeck.compression.compressed import Compressed
from limbeck.core import checkpoint as files
from limbeck.errors import ArgumentError, CheckpointError

__all__ = ["load", "save"]

ABOUT = "estimator.json"
E = TypeVar("E")


def save(estimator: Any, folder: str | Path) -> Path:
    r"""Write a fitted estimator: its result, and those of its arguments that JSON can hold."""
    folder = Path(estimator.result_.save(folder))
    names = getattr(estimator, "feature_names_in_", None)
    about = {
        "type": type(estimator).__name__,
        "arguments": {
            name: value for name, value in estimator.get_params(deep=False).items() if _plain(value)
        },
        "features": estimator.n_features_in_,
        "names": None if names is None else names.tolist(),
        "framed": estimator._framed,
    }
    files.write_text(folder / ABOUT, json.dumps(about, indent=1) + "\n")
    return folder


def load(kind: type[E], folder: str | Path, student: Any = None) -> E:
    r"""Read an estimator back; it predicts, and has forgotten its teacher.

    Arguments:
        kind: The estimator's class.
        folder: What `save` wrote.
        student: An empty copy of a module of the user's own.
    """
    folder = Path(folder)
    if not (folder / ABOUT).exists():
        raise ArgumentError("folder", str(folder), f"a folder with {ABOUT}, as save writes it")
    result = Compressed.load(folder, student)
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        if about["type"] != kind.__name__:
            raise ArgumentError("folder", f"a {about['type']}", f"a saved {kind.__name__}")
        made: Any = kind(**{name: _tuple(value) for name, value in about["arguments"].items()})
        made.n_features_in_, made._framed = int(about["features"]), bool(about["framed"])
        if about["names"] is not None:
            made.feature_names_in_ = np.array(about["names"], dtype=object)
    except ArgumentError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise CheckpointError(f"folder: {folder / ABOUT} cannot be read ({error!r})") from error
    made._settle(result)
    return made


def _plain(value: Any) -> bool:
    r"""Whether JSON holds a value; sizes are tuples, which it has as lists."""
    if isinstance(value, tuple):
        return all(map(_plain, value))
    return value is None or type(value) in (bool, int, float, str)


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
