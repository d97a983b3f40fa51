r"""How a command makes a result: folder, checkpoint, requirements, output, exit code."""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

import typer

from limbeck.cli.options import ONE_CALL, Common
from limbeck.cli.requirements import Requirement, check_requirements, parse_requirements
from limbeck.errors import ArgumentError, LimbeckError
from limbeck.text import visible

if TYPE_CHECKING:
    from limbeck.cli.folder import Folder

# exit codes: a bug in limbeck, the user's error, a requirement that is not met, Ctrl-C, no reader
FAULT, USER, UNMET, INTERRUPTED, BROKEN_PIPE = 1, 2, 3, 130, 141


def show(text: str) -> None:
    r"""Print results to standard output; names cannot steer the terminal."""
    typer.echo(visible(text))


def say(message: str) -> None:
    r"""Print a line to standard error, beside the results."""
    typer.echo(visible(f"limbeck: {message}"), err=True)


class Outcome(NamedTuple):
    r"""A verb's result."""

    result: Any
    evidence: dict[str, Any]  # further arguments of `limbeck.report.records.to_record`
    text: str  # the tables for the terminal
    saved: Any = None  # what is saved and exported: a result with a student


def as_command(function: Callable[..., Any], without: Sequence[str] = ()) -> Callable[..., None]:
    r"""A command for typer, whose options are parameters of a function and fields of dataclasses.

    A verb, whose first parameters are `common` and `training`, writes a result.
    """
    keyword, kinds = inspect.Parameter.KEYWORD_ONLY, dict[str, Any]()
    parameters = [inspect.Parameter("ctx", keyword, annotation=typer.Context)]
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        if is_dataclass(parameter.annotation):
            kinds[name] = parameter.annotation
            hints = get_type_hints(parameter.annotation, include_extras=True)
            parameters += [
                inspect.Parameter(f.name, keyword, default=f.default, annotation=hints[f.name])
                for f in fields(parameter.annotation) if f.name not in without
            ]  # fmt: skip
        elif name != "training":
            parameters.append(parameter.replace(kind=keyword))

    def command(ctx: typer.Context, **values: Any) -> None:
        for name, kind in kinds.items():
            values[name] = kind(**{f.name: values.pop(f.name, None) for f in fields(kind)})
        run = partial(function, **values)
        _run(ctx, values["common"], run) if "common" in values else run()

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__name__, command.__doc__ = function.__name__, function.__doc__
    return command


def _run(ctx: typer.Context, common: Common, verb: Callable[..., Outcome]) -> None:
    r"""Run a verb, write its result folder, print the result, and exit."""
    from limbeck.cli import folder as folders

    name, export = str(ctx.info_name), common.export
    params = [param.name for param in ctx.command.params if param.name not in ONE_CALL]
    values = {param: ctx.params[param] for param in params if param in ctx.params}
    options = json.loads(json.dumps(values, default=str))  # paths as strings, for TOML
    for option, value in options.items():
        if re.search("[\ud800-\udfff]", str(value)):  # what the system's bytes become in Python
            raise ArgumentError(f"--{option}".replace("_", "-"), ascii(value), "text in UTF-8")
    requirements = parse_requirements(common.require, name)
    if export is not None:  # say before the run that its student could not be exported
        from limbeck.export import kind_of

        kind_of(export, argument="--export")
        if export.suffix == ".onnx" and importlib.util.find_spec("onnxscript") is None:
            raise LimbeckError("--export: ONNX needs the extra: pip install 'limbeck[onnx]'")
        if export.parent.exists() and not export.parent.is_dir():
            raise LimbeckError(f"--export: {export.parent} is a file; {export} cannot be under it")
    out = common.out or Path(f"limbeck-{name}")
    folders.refuse_other_content(out)
    with folders.folder_lock(out):
        folder = folders.Folder(out, name, {**options, "out": str(out)}, common.overwrite)
        text, content = _make_result(folder, common, verb, requirements)
    if common.json:
        show(json.dumps({"folder": str(out), **content}, indent=1, ensure_ascii=False))
    elif not common.quiet:
        show(text)
        also = "" if export is None else f" The student is in {export}."
        show(f"The result is in {out}; `limbeck report {out}` writes a report page.{also}")
    failed = [verdict for verdict in content["verdicts"] if not verdict["held"]]
    if not common.verdicts:
        failed = [verdict for verdict in failed if verdict["name"].startswith("required ")]
    for verdict in failed:
        say(f"{verdict['name']}: {verdict['words']}")
    if failed:
        raise typer.Exit(UNMET)


def _make_result(
    folder: Folder, common: Common, verb: Callable[..., Outcome], requirements: list[Requirement]
) -> tuple[str, dict[str, Any]]:
    r"""Finish the folder; return the tables for the terminal and the folder's content."""
    failure = None
    try:
        with interrupt_after_step():
            from limbeck import storage
            from limbeck.report import records

            if folder.resumes and folder.saved_steps and not common.quiet:
                say(f"continuing after step {folder.saved_steps:,}, from {folder.checkpoint}")
            elif folder.resumes and not common.quiet:
                say(f"{folder.work} holds no checkpoint yet; the run starts again")
            outcome = verb(training=common.training(folder.checkpoint / "loop"))
            try:  # before the result is written, which tells the size of the file
                outcome = _export(outcome, common.export)
            except Exception as error:  # the result itself is complete, and is saved
                failure = error
            words = shlex.join(["limbeck", *sys.argv[1:]])
            content, arrays = records.to_record(
                outcome.result, verb=folder.command, command=visible(words), seed=common.seed,
                **outcome.evidence,
            )  # fmt: skip
            content["verdicts"] += check_requirements(requirements, content)
            written = storage.to_files(content, arrays, folder.path)
            if outcome.saved is not None:
                written |= outcome.saved.to_files()
        folder.finish(written)
    except KeyboardInterrupt as error:
        if folder.saved_steps:
            from limbeck.cli.folder import resume_command

            say(
                f"stopped after step {folder.saved_steps:,}, which is saved; run the same command "
                f"again to continue, or: {resume_command(folder.work)}"
            )
        else:
            folder.abandon()
            say(f"stopped; {error}" if str(error) else "stopped before anything could be saved; "
                "nothing was written")  # fmt: skip
        raise typer.Exit(INTERRUPTED) from None
    except BaseException:
        folder.abandon()
        raise
    if failure is not None:
        raise failure
    return outcome.text, storage.read(folder.path).content


def _export(outcome: Outcome, path: Path | None) -> Outcome:
    r"""Write the student to a file; a report on it then shows the size of that file."""
    if path is None or outcome.saved is None:
        return outcome
    from limbeck.export import export

    report = outcome.evidence.get("report", outcome.evidence.get("agreement"))
    export(outcome.saved, path, report=report)
    if report is None or not hasattr(report, "shipped"):
        return outcome
    report = report.shipped({file.name: file.stat().st_size for file in outcome.saved.exported})
    return outcome._replace(evidence=outcome.evidence | {"report": report}, text=str(report))


@contextmanager
def interrupt_after_step() -> Iterator[None]:
    r"""Context in which the first Ctrl-C waits for the end of the step and saves it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupted = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        from limbeck.training.loop import Run

        run = None  # the training run that is active, if it writes checkpoints
        while frame is not None and run is None:
            owner, frame = frame.f_locals.get("self"), frame.f_back
            if isinstance(owner, Run) and owner.settings.checkpoint is not None:
                run = owner
        if run is None or run.stop_reason is not None or interrupted:
            raise KeyboardInterrupt
        interrupted = True
        run.stop("interrupted", KeyboardInterrupt())

    names = ("SIGINT", "SIGTERM", "SIGHUP")  # the last one not on Windows, nor under nohup
    signals = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {n: signal.signal(n, handle) for n in signals if signal.getsignal(n) != signal.SIG_IGN}
    try:
        yield
        if interrupted:  # within the last step
            raise KeyboardInterrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
