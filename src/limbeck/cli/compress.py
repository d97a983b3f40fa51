r"""`limbeck compress`: a teacher and rows in; a small student and its report out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from limbeck.cli import references
from limbeck.cli.errors import state
from limbeck.cli.options import Common, Training
from limbeck.errors import ArgumentError, LimbeckError

__all__ = ["as_rows", "compress", "loss_of", "note_file", "student_of", "teacher_of"]

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
        expected = "a pickle of the versions that are installed here"
        raise ArgumentError("teacher", received, expected) from error


def note_file(problem: Any, text: str) -> None:
    r"""Note which pickle a teacher came from, whose size is then the teacher's.

    Arguments:
        problem: A result's problem, with the teacher as a predictor.
        text: What the user gave for the teacher.
    """
    from limbeck.teachers.fingerprints import of_files
    from limbeck.teachers.row_teacher import ModelFile

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
        expected = "hidden sizes such as 50,30; auto, linear, tree, boosted; or module:name"
        raise ArgumentError("--student", repr(text), expected)
    return text


def loss_of(text: str, derivatives: float | None, task: str) -> Any:
    r"""A loss by name or of the user's own; with a weight, derivatives are matched beside."""
    if references.is_reference(text):
        found = references.load(text, "loss")
    elif derivatives is None:
        return text
    else:
        from limbeck.training.distill import as_loss

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
    from limbeck.teachers.files import open_model

    return len(open_model(path)[0].get_inputs())


def compress(
    ctx: typer.Context,
    common: Common,
    training: Training,
    teacher: Annotated[
        str,
        typer.Argument(help="module:name of your own code, or a model's file, such as .onnx."),
    ],
    data: Annotated[Path, typer.Argument(help="Rows: a CSV, Parquet, npy or npz file.")],
    test: Annotated[
        Path | None, typer.Option(help="Rows to compare both on; else some are set aside.")
    ] = None,
    test_share: Annotated[
        float, typer.Option(help="The share that is set aside without --test.", min=0, max=1)
    ] = 0.2,
    label: Annotated[
        str | None, typer.Option(help="The column with true labels, if there is one.")
    ] = None,
    label_weight: Annotated[
        float, typer.Option(help="Their share in what the student learns.", min=0, max=1)
    ] = 0.5,
    drop: Annotated[
        list[str] | None, typer.Option(help="A column to leave out; again for more.")
    ] = None,
    rows: Annotated[
        str, typer.Option(help="What the teacher takes: frame, array, or auto.")
    ] = "auto",
    student: Annotated[
        str,
        typer.Option(
            help="Hidden sizes such as 50,30; auto, linear, tree or boosted; or module:name."
        ),
    ] = "50,30",
    keep: Annotated[
        float, typer.Option(help="For --student auto: the share of agreement that is enough.")
    ] = 0.99,
    max_bytes: Annotated[
        int | None, typer.Option(help="For --student auto: the largest student.", min=1)
    ] = None,
    inputs: Annotated[
        str,
        typer.Option(
            help="What the teacher is asked about: auto, data, munge, noise, columns, nade, "
            "mixture; or module:name."
        ),
    ] = "auto",
    size: Annotated[
        int | None, typer.Option(help="How many inputs it is asked about.", min=1)
    ] = None,
    loss: Annotated[str, typer.Option(help="auto, a name, or module:name.")] = "auto",
    derivatives: Annotated[
        float | None, typer.Option(help="Match derivatives too, with this weight (torch only).")
    ] = None,
    task: Annotated[
        str, typer.Option(help="auto, classification, multilabel or regression.")
    ] = "auto",
    output: Annotated[
        str, typer.Option(help="What the teacher gives: auto, logits, probabilities, values.")
    ] = "auto",
    folds: Annotated[
        int | None, typer.Option(help="Fit copies of the teacher in so many folds.", min=2)
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="A folder to keep the teacher's answers in.")
    ] = None,
    group: Annotated[
        list[str] | None, typer.Option(help="A column whose groups are compared; again for more.")
    ] = None,
    timing: Annotated[bool, typer.Option(help="Whether to time predictions.")] = True,
    trust_pickle: Annotated[
        bool, typer.Option("--trust-pickle", help="Read a pickle: it may run any code.")
    ] = False,
    export: Annotated[
        Path | None, typer.Option(help="Write the student to a file too, such as student.onnx.")
    ] = None,
) -> None:
    r"""Compress a model into a small one that predicts the same.

    limbeck compress models:teacher train.parquet --test test.parquet --label y --export small.onnx
    """
    from limbeck.cli.running import Done, Job, carry_out

    def work(job: Job) -> Done:
        from limbeck.cli import reading, references

        found = teacher_of(teacher, trust_pickle)
        given = reading.rows(data, "data", label, drop)
        held = None
        if test is not None:
            held = _aligned(reading.rows(test, "--test", label, drop), given, test)
        if held is None:
            given, held = reading.divided(given, test_share, job.seed, "data")
        groups = _groups(group, held)
        asked: Any = (
            references.load(inputs, "inputs") if references.is_reference(inputs) else inputs
        )
        import limbeck as lb

        options = {
            **job.options(), "labels": given.y, "label_weight": label_weight, "size": size,
            "task": task, "loss": loss_of(loss, derivatives, task), "output": output,
            "cache": cache, "teacher_folds": folds, "keep": keep, "max_bytes": max_bytes,
        }  # fmt: skip
        result = lb.compress(
            found, as_rows(given.x, found, rows), student_of(student),
            inputs=asked, **options, **training.given(),
        )  # fmt: skip
        note_file(result.problem, teacher)
        x = as_rows(held.x, found, rows)
        report = result.report(x, held.y, groups=groups, time=timing)
        return Done(result, {"report": report, "X": x}, str(report), result)

    carry_out(ctx, common, work, export)


def _aligned(held: Any, given: Any, path: Path) -> Any:
    r"""Rows to compare on, with the columns of the others in their order."""
    from limbeck.errors import ArgumentError

    if not hasattr(given.x, "columns") or not hasattr(held.x, "columns"):
        return held
    missing = [str(name) for name in given.x.columns if name not in held.x.columns]
    if missing:
        received = f"{path}, without {', '.join(missing[:5])}"
        expected = f"the columns of the data: {', '.join(map(str, given.x.columns))}"
        raise ArgumentError("--test", received, expected)
    return held._replace(x=held.x[list(given.x.columns)])


def _groups(names: list[str] | None, held: Any) -> dict[str, Any] | None:
    from limbeck.errors import ArgumentError

    if not names:
        return None
    known = list(map(str, getattr(held.x, "columns", ())))
    for name in names:
        if name not in known:
            raise ArgumentError.unknown("--group", name, known)
    return {name: held.x[name].to_numpy() for name in names}
