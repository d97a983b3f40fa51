r"""What all commands that make a result do: folder, checkpoint, verdicts, output, exit code."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import typer

from limbeck.cli import config
from limbeck.cli.errors import INTERRUPTED, UNMET, say
from limbeck.cli.folder import CONFIG, STUDENT, Folder, alone, free, refuse_foreign
from limbeck.cli.options import Common
from limbeck.errors import ArgumentError, LimbeckError

__all__ = [
    "Done",
    "Job",
    "Requirement",
    "at_a_whole_step",
    "carry_out",
    "figures",
    "held",
    "parsed",
]

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def at_a_whole_step() -> Iterator[None]:
    r"""Within, an interruption waits for the end of the loop's step, which can then be saved.

    Outside the loop it is immediate, and so is a second one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked: list[Any] = []

    def handle(number: int, frame: FrameType | None) -> None:
        run = _run(frame)
        if run is None or asked:
            raise KeyboardInterrupt
        asked.append(run)
        run.stop("interrupted", KeyboardInterrupt())

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield
        if asked:  # it came within the last step
            raise KeyboardInterrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(frame: FrameType | None) -> Any:
    r"""The run that is under way, if there is one that keeps checkpoints."""
    from limbeck.training.loop import Run

    while frame is not None:
        found = frame.f_locals.get("self")
        if isinstance(found, Run) and found.settings.checkpoint is not None:
            return found if found.stop_reason is None else None
        frame = frame.f_back
    return None


FORM = re.compile(r"\s*([\w.]+)\s*(>=|<=|=)\s*(\S+)\s*")
ACCEPTED = "a figure and a number, such as agreement=0.98, rare_recall=0.9 or bytes<=100000"

RISES = {
    "compress": {"kept": True, "parameters": False, "bytes": False},
    "condense": {
        "mean_error": False, "max_error": False, "kl": False, "log_prob": True,
        "parameters": False, "bytes": False, "r_hat": False, "ess": True,
    },
    "normalize": {
        "std_error": False, "divergence": False, "log_prob": True, "parameters": False,
        "bytes": False,
    },
    "logz": {"std_error": False, "value": True, "lower": True, "upper": False},
}  # fmt: skip
r"""Figures by verb, and whether more is better; those of `Fidelity` come to the first."""


RARE = ("average_precision", "rare_recall", "worst_recall")
r"""Figures of one class."""

OF_LABELS = {
    "classification": ("accuracy", "subset_accuracy", "log_probability", "brier", "ece"),
    "regression": ("r2", "rmse", "absolute_error"),
}
r"""Figures that need labels, for classes and for values."""


class Requirement(NamedTuple):
    r"""A figure's name, the bound, and whether it is the most that it may be."""

    name: str
    bound: float
    most: bool


def _known(verb: str) -> dict[str, bool]:
    if verb != "compress":
        return RISES[verb]
    from limbeck.compression.fidelity.measures import MEASURES

    return {name: measure.rises for name, measure in MEASURES.items()} | RISES[verb]


def parsed(given: Iterable[str] | None, verb: str) -> list[Requirement]:
    r"""What was required; `=` stands for "at least as good as".

    >>> parsed(["std_error=0.1", "value>=450"], "logz")
    [Requirement(name='std_error', bound=0.1, most=True), ...]
    """
    known, found = _known(verb), []
    for text in given or ():
        match = FORM.fullmatch(text)
        if match is None:
            raise ArgumentError("--require", repr(text), ACCEPTED)
        name, sign, number = match.groups()
        if name not in known:
            raise ArgumentError.unknown("--require", name, known)
        try:
            bound = float(number)
        except ValueError:
            raise ArgumentError("--require", repr(text), ACCEPTED) from None
        if not math.isfinite(bound):
            raise ArgumentError("--require", repr(text), "a finite number")
        found.append(Requirement(name, bound, sign == "<=" or (sign == "=" and not known[name])))
    return found


def held(wanted: Sequence[Requirement], content: Mapping[str, Any]) -> list[dict[str, Any]]:
    r"""The verdict on each requirement."""
    from limbeck.report.summary import required

    found = figures(content)
    return [
        required(f"required {each.name}", found.get(each.name), each.bound, most=each.most,
                 title=_title(each.name, content), reason=_reason(each.name, content))
        for each in wanted
    ]  # fmt: skip


def _title(name: str, content: Mapping[str, Any]) -> str:
    r"""What a figure is called; that of a rare class, with the class and those not checked."""
    title, fidelity = name.replace("_", " "), content.get("fidelity") or {}
    count = fidelity.get("worst" if name == "worst_recall" else "rarest")
    if name not in RARE or count is None:
        return title
    few = [f"{c['title']} ({c['rows']})" for c in fidelity.get("unchecked") or []]
    aside = f"; too few rows to check {', '.join(few[:5])}{' …' * (len(few) > 5)}" if few else ""
    return f"{title} ({count['title']}, {count['rows']} rows{aside})"


def _reason(name: str, content: Mapping[str, Any]) -> str:
    r"""Why a figure could not be computed."""
    fidelity = content.get("fidelity")
    if content["verb"] != "compress":
        return "it could not be computed"
    if fidelity is None:
        return "there were no rows to compare teacher and student on"
    if name in ("parameters", "bytes"):
        return "the size of the student is unknown"
    if name in fidelity["measures"]["student"] or name == "kept":
        return "it is not defined for these rows and this teacher"
    regression = fidelity.get("task") == "regression"
    if name in RARE and not regression:
        few = ", ".join(f"{c['title']} ({c['rows']})" for c in fidelity.get("unchecked") or [])
        return f"no class but the most common has 30 test rows or more{f': {few}' if few else ''}"
    unlabelled = not fidelity.get("differences", {}).get("teacher")
    if unlabelled and name in OF_LABELS["regression" if regression else "classification"]:
        return "there were no labels to compare with"
    return f"it is not measured for {fidelity.get('task') or 'this task'}"


def figures(content: Mapping[str, Any]) -> dict[str, Any]:
    r"""The figures of a result, by name."""
    known = _known(content["verb"])
    found: dict[str, Any] = {}
    for model in content["models"]:
        if model["role"] == "student":
            found |= {name: model.get(name) for name in ("parameters", "bytes")}
    if (fidelity := content.get("fidelity")) is not None:
        measures = fidelity["measures"]["student"]
        found |= {name: figure[0] for name, figure in measures.items()}
        found["kept"] = fidelity["kept"]
    if (agreement := content.get("agreement")) is not None:
        found |= agreement
        pair = agreement.get("log_prob")
        found["log_prob"] = pair[1] if pair else None
        found["bytes"] = agreement["bytes"][1]
    if (diagnostics := content.get("diagnostics")) is not None:
        numbers = {
            name: [n for n in diagnostics[name] if n is not None] for name in ("r_hat", "ess")
        }
        found["r_hat"] = max(numbers["r_hat"], default=None)
        found["ess"] = min(numbers["ess"], default=None)
    for estimate in content.get("log_z", [])[:1]:
        bounds = estimate["bounds"]
        found |= {name: estimate[name] for name in ("value", "std_error")}
        found |= {side: (bounds[side] or [None])[0] for side in ("lower", "upper")}
    if (gap := content.get("divergence")) is not None:
        found["divergence"] = gap["value"]
    if (events := content.get("held_out")) is not None:
        found["log_prob"] = events["student"]
    return {name: found.get(name) for name in known}


LOOP = "loop"
r"""The part of the checkpoint that is the loop's own."""


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
        evidence: What `limbeck.report.records.described` wants beside.
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
    wanted = parsed(common.require, verb)
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
    from limbeck import storage
    from limbeck.report import records

    content, arrays = records.described(
        done.result, verb=verb, command=config.line(ctx), seed=ctx.params["seed"], **done.evidence
    )
    content["verdicts"] = [*content["verdicts"], *held(wanted, content)]
    if done.saved is not None:
        done.saved.save(folder.work / STUDENT)
    storage.write(folder.work, content, arrays)
    return storage.read(folder.work).content


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
