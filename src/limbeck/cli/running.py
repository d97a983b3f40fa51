r"""What all commands that make a result do: folder, checkpoint, verdicts, output, exit code."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import typer

from limbeck.cli import config, requirements
from limbeck.cli.errors import INTERRUPTED, UNMET, say
from limbeck.cli.folder import CONFIG, STUDENT, Folder, free, refuse_foreign
from limbeck.cli.interruption import at_a_whole_step
from limbeck.cli.lock import alone
from limbeck.cli.options import Common
from limbeck.errors import LimbeckError

LOOP = "loop"
r"""The part of the checkpoint that is the loop's own."""

__all__ = ["Done", "Job", "carry_out"]


class Job(NamedTuple):
    r"""What a verb needs to know beside its own options.

    Attributes:
        checkpoint: Where the loop keeps its checkpoints.
        seed: Seeds everything.
        device: Where to run.
        progress: Whether to show bars.
    """

    checkpoint: Path
    seed: int
    device: str
    progress: bool

    def options(self) -> dict[str, Any]:
        r"""Arguments that every verb takes."""
        return self._asdict()


class Done(NamedTuple):
    r"""What a verb has made.

    Attributes:
        result: What it gave back.
        evidence: What `limbeck.results.described` wants beside.
        shown: The tables for the terminal.
        saved: What is saved and exported, if anything: a result with a student.
    """

    result: Any
    evidence: dict[str, Any]
    shown: str
    saved: Any = None


def carry_out(
    ctx: typer.Context,
    common: Common,
    work: Callable[[Job], Done],
    export: Path | None = None,
) -> None:
    r"""Run a verb, write its result folder, print what came out, and exit.

    Arguments:
        ctx: The call.
        common: The options that all share.
        work: The verb.
        export: A file for the student.
    """
    verb, options = str(ctx.info_name), config.asked(ctx)
    wanted = requirements.parsed(common.require, verb)
    _check_export(export)
    out = free(verb, options) if common.out is None else common.out
    refuse_foreign(out)
    with alone(out):
        folder = Folder(out, verb, {**options, "out": str(out)}, common.overwrite)
        done, content = _made(folder, common, work, ctx, wanted, export)
    _show(out, content, done.shown, export, common)
    failed = [
        each
        for each in content["verdicts"]
        if not each["held"] and (common.verdicts or each["name"].startswith("required "))
    ]
    for each in failed:
        say(f"{each['name']}: {each['words']}")
    if failed:
        raise typer.Exit(UNMET)


def _made(
    folder: Folder,
    common: Common,
    work: Callable[[Job], Done],
    ctx: typer.Context,
    wanted: list[Any],
    export: Path | None,
) -> tuple[Done, dict[str, Any]]:
    r"""What the verb has made, and the content of its folder, which is finished."""
    failure = None
    try:
        with at_a_whole_step():
            if folder.resumes and not common.quiet:
                say(_resuming(folder))
            job = Job(folder.checkpoint / LOOP, common.seed, common.device, not common.quiet)
            done = work(job)
            try:  # before the result is written, which tells the size of the file
                done = done if export is None else _exported(done, export)
            except Exception as error:  # the result itself is there, and is kept
                failure = error
            content = _written(folder, done, folder.command, ctx, wanted)
    except KeyboardInterrupt:
        _stopped(folder)
        raise typer.Exit(INTERRUPTED) from None
    except BaseException:
        folder.abandon()
        raise
    folder.finish()
    if failure is not None:
        raise failure
    return done, content


def _exported(done: Done, path: Path) -> Done:
    r"""Write the student to a file; a report on it then tells the size of that file."""
    if done.saved is None:
        return done
    from limbeck.export import export as exported

    report = done.evidence.get("report", done.evidence.get("agreement"))
    exported(done.saved, path, report=report)
    files = getattr(done.saved, "exported", ())
    if not files or report is None or not hasattr(report, "shipped"):
        return done
    report = report.shipped(files)
    return done._replace(evidence=done.evidence | {"report": report}, shown=str(report))


def _written(
    folder: Folder, done: Done, verb: str, ctx: typer.Context, wanted: list[Any]
) -> dict[str, Any]:
    r"""The content of the folder, once it is there."""
    from limbeck import results

    content, arrays = results.described(
        done.result, verb=verb, command=config.line(ctx), seed=ctx.params["seed"], **done.evidence
    )
    content["verdicts"] = [*content["verdicts"], *requirements.held(wanted, content)]
    if done.saved is not None:
        done.saved.save(folder.work / STUDENT)
    results.write(folder.work, content, arrays)
    return results.read(folder.work).content


def _check_export(path: Path | None) -> None:
    r"""Say before the run that its student could not be exported."""
    if path is None:
        return
    from limbeck.export.writing import kind_of

    kind_of(path, argument="--export")
    if path.suffix == ".onnx" and importlib.util.find_spec("onnxscript") is None:
        raise LimbeckError("--export: ONNX needs the extra: pip install 'limbeck[onnx]'")
    if path.parent.exists() and not path.parent.is_dir():
        raise LimbeckError(f"--export: {path.parent} is a file, and {path} cannot be under it")


def _resuming(folder: Folder) -> str:
    if not folder.kept:
        return f"{folder.work} holds no checkpoint yet; the run begins anew"
    return f"going on after step {folder.saved_steps:,}, from {folder.checkpoint}"


def _stopped(folder: Folder) -> None:
    r"""Say what an interrupted run has left, and how to go on."""
    if not folder.kept:
        folder.abandon()
        say("stopped before there was anything to keep; nothing was written")
        return
    again = f"limbeck {folder.command} --config {folder.work / CONFIG}"
    done = f"stopped after step {folder.saved_steps:,}, which is saved"
    say(f"{done}; the same command goes on, or: {again}")


def _show(
    out: Path, content: dict[str, Any], shown: str, export: Path | None, common: Common
) -> None:
    if common.json:
        typer.echo(json.dumps({"folder": str(out), **content}, indent=1, ensure_ascii=False))
    elif not common.quiet:
        typer.echo(shown)
        also = "" if export is None else f" The student is in {export}."
        typer.echo(f"The result is in {out}; `limbeck report {out}` makes a page of it.{also}")
