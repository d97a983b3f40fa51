r"""`limbeck compress`: a teacher and rows in; a small student and its report out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from limbeck.cli.options import Common, Training

__all__ = ["compress"]


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
        from limbeck.cli import reading, references, teachers

        found = teachers.teacher_of(teacher, trust_pickle)
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
            "task": task, "loss": teachers.loss_of(loss, derivatives, task), "output": output,
            "cache": cache, "teacher_folds": folds, "keep": keep, "max_bytes": max_bytes,
        }  # fmt: skip
        result = lb.compress(
            found, teachers.as_rows(given.x, found, rows), teachers.student_of(student),
            inputs=asked, **options, **training.given(),
        )  # fmt: skip
        teachers.note_file(result.problem, teacher)
        x = teachers.as_rows(held.x, found, rows)
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
        accepted = f"the columns of the data: {', '.join(map(str, given.x.columns))}"
        raise ArgumentError("--test", received, accepted)
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
