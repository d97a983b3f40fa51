r"""Teachers and students as people name them: `module:name`, files, hidden sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from limbeck.cli import references
from limbeck.cli.paths import state
from limbeck.errors import ArgumentError, LimbeckError

__all__ = ["as_rows", "loss_of", "note_file", "student_of", "teacher_of"]

MODELS = (".onnx", ".json", ".ubj", ".txt", ".cbm")
PICKLES = (".pkl", ".pickle", ".joblib")
ACCEPTED = (
    "module:name of your own code, a model's file (.onnx, .json, .ubj, .txt, .cbm), or a pickle "
    "with --trust-pickle"
)
WAYS = ("auto", "frame", "array")


def teacher_of(text: str, trust_pickle: bool) -> Any:
    r"""What a string stands for: the user's own object, a model's file, a trusted pickle."""
    if references.is_reference(text):
        return references.load(text, "teacher")
    path = Path(text)
    kind = path.suffix.lower()
    if kind not in (*MODELS, *PICKLES):
        raise ArgumentError("teacher", repr(text), ACCEPTED)
    if not path.is_file():
        raise ArgumentError("teacher", f"{path}, {state(path)}", ACCEPTED)
    return _unpickled(path, trust_pickle) if kind in PICKLES else str(path)


def _unpickled(path: Path, trusted: bool) -> Any:
    if not trusted:
        raise LimbeckError(
            f"teacher: {path} is a pickle, and reading a pickle runs whatever code is in it; if "
            "you made the file, or trust who did, add --trust-pickle"
        )
    try:
        import joblib

        return joblib.load(path)  # it reads plain pickles too
    except Exception as error:  # whatever a pickle may raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        received = f"{path}, unreadable: {reason}"
        accepted = "a pickle of the versions that are installed here"
        raise ArgumentError("teacher", received, accepted) from error


def note_file(problem: Any, text: str) -> None:
    r"""Note which pickle a teacher came from, whose size is then the teacher's.

    Arguments:
        problem: A result's problem, with the teacher as a predictor.
        text: What the user gave for the teacher.
    """
    from limbeck.compression.teachers.fingerprints import of_files
    from limbeck.compression.teachers.predictors import ModelFile

    path = Path(text)
    pickled = not references.is_reference(text) and path.suffix.lower() in PICKLES
    # a pickle that only refers to a model is not its size
    if pickled and problem is not None and problem.predictor.bytes() is not None:
        size = path.stat().st_size
        problem.predictor.file = ModelFile(path, of_files([path]), size)


def student_of(text: str) -> Any:
    r"""A student: hidden sizes, a name, or the user's own module.

    >>> student_of("50,30"), student_of("8"), student_of("tree")
    ((50, 30), (8,), 'tree')
    """
    if references.is_reference(text):
        return references.load(text, "student")
    parts = [part.strip() for part in text.replace("-", ",").split(",")]
    if all(part.isdigit() for part in parts):
        return tuple(map(int, parts))
    if any(part[:1].isdigit() for part in parts):
        accepted = "hidden sizes such as 50,30; auto, linear, tree, boosted; or module:name"
        raise ArgumentError("--student", repr(text), accepted)
    return text


def loss_of(text: str, derivatives: float | None, task: str) -> Any:
    r"""A loss by name or of the user's own; with a weight, derivatives are matched beside."""
    if references.is_reference(text):
        found = references.load(text, "loss")
    elif derivatives is None:
        return text
    else:
        from limbeck.preparation import as_loss

        usual = "square_error" if task == "regression" else "cross_entropy"
        name: Any = usual if text == "auto" else text
        found = as_loss(name, None, None, "", None)  # type: ignore[arg-type]
    if derivatives is None:
        return found
    from limbeck.losses import derivative_error

    domain = "plain" if task == "regression" else "log"
    return found + derivatives * derivative_error(domain=domain)


def as_rows(x: Any, teacher: Any, way: str) -> Any:
    r"""Rows as the teacher takes them: a frame stays one, unless the teacher wants numbers alone.

    Arguments:
        x: A frame or an array.
        teacher: The teacher.
        way: "frame", "array" or "auto".
    """
    if way not in WAYS:
        raise ArgumentError.unknown("--rows", way, WAYS)
    if not hasattr(x, "columns"):
        if way == "frame":
            raise ArgumentError("--rows", "'frame' for an array", "a CSV or Parquet file")
        return x
    if way == "array" or (way == "auto" and _wants_numbers(teacher)):
        from limbeck.cli.reading import numbers

        return numbers(x, "data", None)
    return x


def _wants_numbers(teacher: Any) -> bool:
    r"""Whether a teacher was made for arrays: a net, or an estimator that saw no names."""
    members = teacher if isinstance(teacher, list | tuple) else [teacher]
    if all(map(_is_module, members)):
        return True
    if isinstance(teacher, str):
        return False if not teacher.endswith(".onnx") else _inputs(teacher) == 1
    fitted = all(hasattr(member, "n_features_in_") for member in members)
    return fitted and not any(hasattr(member, "feature_names_in_") for member in members)


def _is_module(teacher: Any) -> bool:
    from torch import nn

    return isinstance(teacher, nn.Module)


def _inputs(path: str) -> int:
    from limbeck.compression.teachers.files import open_model

    return len(open_model(path)[0].get_inputs())
