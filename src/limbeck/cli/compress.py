r"""`limbeck compress`: a teacher and rows in; a small student and its report out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Exit, Option

import limbeck as lb
from limbeck.cli import files
from limbeck.cli.command import USER, Outcome, interrupt_after_step, say, show
from limbeck.cli.options import Common, Debug, TeacherOptions
from limbeck.errors import (
    ArgumentError,
    LimbeckError,
    choice,
    refuse_unreadable,
    rename_argument,
    require_path,
)

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from limbeck.losses.base import Loss


def _load_teacher(text: str, trust_pickle: bool) -> object:
    r"""The user's own object, the path of a model's file, or the content of a trusted pickle."""
    if files.is_reference(text):
        return files.load_object(text, "teacher")
    path, endings = Path(text), (*files.MODEL_SUFFIXES, *files.PICKLE_SUFFIXES)
    expected = "module:name of your own code, or a model's file, if a pickle with --trust-pickle"
    if require_path(path, "teacher", expected, "file", endings) in files.MODEL_SUFFIXES:
        return text
    if not trust_pickle:
        raise LimbeckError(
            f"teacher: {path} is a pickle, and reading a pickle runs any code in it; add "
            "--trust-pickle if you trust its source"
        )
    import joblib

    with refuse_unreadable("teacher", path, "a pickle of the versions that are installed here"):
        return joblib.load(path)  # it reads plain pickles too


def student_of(text: str) -> Any:
    r"""A student: hidden sizes, a name, or the user's own module."""
    if files.is_reference(text):
        return files.load_object(text, "student")
    parts = [part.strip() for part in text.replace("-", ",").split(",")]
    if all(part.isdigit() for part in parts):
        return tuple(map(int, parts))
    if any(part[:1].isdigit() for part in parts):
        expected = "hidden sizes such as 50,30; auto, linear, tree, boosted; or module:name"
        raise ArgumentError("--student", repr(text), expected)
    return text


def _loss(text: str, derivatives: float | None, task: str) -> Loss | str:
    r"""A loss by name or of the user's own; with a weight, derivatives are matched too."""
    loss = files.object_or_text(text, "loss")
    if derivatives is None:
        return loss
    from limbeck.losses import derivative_error
    from limbeck.training.distill import as_loss

    regression = task == "regression"
    if loss == "auto":
        loss = "square_error" if regression else "cross_entropy"
    if isinstance(loss, str):
        loss = as_loss(loss, None, None, "", None)  # type: ignore[arg-type]
    return loss + derivatives * derivative_error(domain="plain" if regression else "log")


def _teacher_rows(
    x: np.ndarray | pd.DataFrame, teacher: object, rows: str
) -> np.ndarray | pd.DataFrame:
    r"""Rows as the teacher takes them: a frame, unless `rows` or the teacher asks for an array."""
    choice("--rows", rows, ("auto", "frame", "array"))
    is_frame = hasattr(x, "columns")
    if rows == "frame" and not is_frame:
        raise ArgumentError("--rows", "'frame' for an array", "a CSV or Parquet file")
    if is_frame and (rows == "array" or (rows == "auto" and _takes_arrays(teacher))):
        return files.as_numbers(x, "data", None)
    return x


def _class_names(text: str | None, labels: np.ndarray | None = None) -> list[Any] | None:
    r"""Names of classes that commas separate: whole numbers, unless labels are texts."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    whole = all(re.fullmatch(r"-?\d+", name) for name in names)
    if not whole or (labels is not None and labels.dtype.kind not in "biuf"):
        return names
    return [int(name) for name in names]


def _takes_arrays(teacher: object) -> bool:
    r"""Whether a teacher was made for arrays: a net, or an estimator that saw no column names."""
    from torch import nn

    from limbeck.teachers.networks import open_model

    if isinstance(teacher, str):
        return teacher.endswith(".onnx") and len(open_model(teacher)[0].get_inputs()) == 1
    members = teacher if isinstance(teacher, list | tuple) else [teacher]
    if all(isinstance(member, nn.Module) for member in members):
        return True
    fitted = all(hasattr(member, "n_features_in_") for member in members)
    return fitted and not any(hasattr(member, "feature_names_in_") for member in members)


def compress(
    common: Common, training: dict[str, Any], given: TeacherOptions,
    test: Path | None = Option(None, help="Rows for the comparison. Default: held-out rows."),
    test_fraction: float = Option(
        0.2, help="Fraction of rows held out without --test.", min=0, max=1),
    label: str | None = Option(None, help="The column with true labels."),
    label_weight: float = Option(0.0, help="Weight of the labels in the targets.", min=0, max=1),
    sample_weight: str | None = Option(None, help="The column with weights of the rows."),
    student: str | None = Option(
        None, help="Hidden sizes such as 50,30; auto, linear, tree or boosted; module:name. "
        "Default: 50,30, or another if that is too far from the teacher."),
    keep: float = Option(0.99, help="For --student auto: the fraction of quality to retain."),
    max_bytes: int | None = Option(None, help="For --student auto: the largest size.", min=1),
    max_latency: float | None = Option(
        None, help="For --student auto: the most microseconds for one row in predict.", min=0),
    inputs: str = Option(
        "auto", help="Inputs that the teacher labels: auto, data, munge, noise, columns, nade, "
        "mixture; or module:name."),
    pool: int | None = Option(None, help="Number of inputs to label.", min=1),
    loss: str = Option("auto", help="auto, the name of a loss, or module:name."),
    derivatives: float | None = Option(
        None, help="Also match input derivatives, with this weight (torch teachers)."),
    folds: int | None = Option(None, help="Folds for labels by refitted teachers.", min=2),
    group: list[str] | None = Option(
        None, help="A column whose groups are compared separately; can be repeated."),
    timing: bool = Option(True, help="Whether to time predictions."),
) -> Outcome:  # fmt: skip
    r"""Compress a model into a small one that predicts the same.

    limbeck compress models:teacher train.parquet --test test.parquet --label y --export small.onnx
    """
    from limbeck.arrays import as_weights
    from limbeck.teachers.query import TeacherError

    model = _load_teacher(given.teacher, given.trust_pickle)
    drop, max_queries = given.drop, given.max_queries
    train_rows = files.read_rows(given.data, "data", label, drop, sample_weight, given.dates)
    if test is None:
        train_rows, test_rows = files.split_rows(train_rows, test_fraction, common.seed, "data")
    else:
        test_rows = files.read_rows(test, "--test", label, drop, sample_weight, given.dates)
        if hasattr(train_rows.x, "columns") and hasattr(test_rows.x, "columns"):
            columns = list(train_rows.x.columns)
            if missing := [str(name) for name in columns if name not in test_rows.x.columns]:
                received = f"{test}, without {', '.join(missing[:5])}"
                expected = f"the columns of the data: {', '.join(map(str, columns))}"
                raise ArgumentError("--test", received, expected)
            test_rows = test_rows._replace(x=test_rows.x[columns])
    if max_queries is not None:  # a part of them is for the report
        aside = min(len(test_rows.x), max(1, round(test_fraction * max_queries)))
        if aside >= max_queries:
            received = f"{max_queries}, of which {aside} are for the report"
            raise ArgumentError("--max-queries", received, "more, or a smaller --test-fraction")
        if aside < len(test_rows.x):
            share = aside / len(test_rows.x)
            test_rows = files.split_rows(test_rows, share, common.seed, "data")[1]
        max_queries -= len(test_rows.x)
    known = list(map(str, getattr(test_rows.x, "columns", ())))
    for name in group or ():
        choice("--group", name, known)
    frame: Any = test_rows.x
    groups = {name: frame[name].to_numpy() for name in group} if group else None
    with rename_argument("sample_weight", "--sample-weight"):
        for part in (train_rows, test_rows):  # before the training
            as_weights(part.weight, len(part.x))
    result = lb.compress(
        model, _teacher_rows(train_rows.x, model, given.rows),
        None if student is None else student_of(student),
        inputs=files.object_or_text(inputs, "inputs"), labels=train_rows.y,
        label_weight=label_weight, sample_weight=train_rows.weight,
        classes=_class_names(given.classes, train_rows.y), pool=pool, teacher_folds=folds,
        loss=_loss(loss, derivatives, given.task), keep=keep, max_bytes=max_bytes,
        max_latency=max_latency, **training, **given.passed() | {"max_queries": max_queries},
    )  # fmt: skip
    x = _teacher_rows(test_rows.x, model, given.rows)
    try:
        report = result.report(
            x, test_rows.y, groups=groups, time=timing, sample_weight=test_rows.weight
        )
    except TeacherError as error:
        if result.problem is None or result.problem.query.usage.stop_reason is None:
            raise
        say(f"there is no report: {error}")  # the student is complete, and is saved
        return Outcome(result, {}, str(result), result)
    return Outcome(result, {"report": report, "X": x}, str(report), result)


def label(
    given: TeacherOptions,
    out: Path = Option(
        Path("labels.csv"), "--out", "-o", help="A CSV file for the predictions, a line per row."),
    quiet: bool = Option(False, "--quiet", "-q", help="Print errors only."),
    debug: Debug = False,
) -> None:  # fmt: skip
    r"""Label rows with a teacher's predictions, within limits, and cache them.

    limbeck label models:teacher train.parquet --cache answers --max-queries 1000
    """
    import pandas as pd

    from limbeck.compression.dispatch import as_row_teacher
    from limbeck.storage.disk import write_file
    from limbeck.teachers.query import Query

    if out.suffix.lower() != ".csv":
        raise ArgumentError("--out", str(out), "a name that ends in .csv")
    loaded, options = _load_teacher(given.teacher, given.trust_pickle), given.passed()
    read = files.read_rows(given.data, "data", None, given.drop, dates=given.dates)
    x = _teacher_rows(read.x, loaded, given.rows)
    about = {name: options.pop(name) for name in ("task", "teacher_output", "onnx_output")}
    query, names = Query(**options, progress=not quiet), _class_names(given.classes)
    with interrupt_after_step():
        model = query.open(lambda: as_row_teacher(loaded, x, classes=names, **about), x)
        targets, known, error = query.label_some(model, x)
    targets[~known] = float("nan")
    columns = [f"value {k}" for k in range(model.outputs)] if model.outputs > 1 else ["value"]
    columns = columns if model.classes is None else list(map(str, model.classes))
    text = pd.DataFrame(targets, columns=columns).to_csv(index=False)
    write_file(out, text.encode())
    if not quiet:
        show(f"{int(known.sum()):,} of {len(known):,} rows are labelled, in {out}.")
    if error is not None:
        say(str(error))
        raise Exit(USER if error.__cause__ is not None else 0)
