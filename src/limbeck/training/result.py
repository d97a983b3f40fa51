r"""What a distillation returns: the student, its history, why it stopped, how long it took."""

from __future__ import annotations

import importlib
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import nn
from torch.overrides import TorchFunctionMode

from limbeck.arguments import PathLike, Text, checked_arguments
from limbeck.arrays import Batch
from limbeck.errors import ArgumentError
from limbeck.records import AnyNumber, encode, of_file
from limbeck.storage import STUDENT_FILES, files, folders
from limbeck.storage.folders import Files
from limbeck.text import PlainTable, listed, table_text

STUDENT, ABOUT = "student.safetensors", "training.json"
FORMAT = "limbeck-student-1"
FIELDS = {  # of training.json
    "steps": int, "stop_reason": str, "seconds": float, "engine": str, "processes": int,
    "compile_seconds": float, "settings": dict[str, Any], "history": dict[str, list[AnyNumber]],
}  # fmt: skip


class History(dict[str, list[float]]):
    r"""Columns by name: "step", "gradient_norm", "held_out", metrics; "loss" and its terms.

    Losses are means over the steps since the evaluation before.
    """

    def append(self, **entry: float) -> None:
        r"""Add one evaluation."""
        for name, value in entry.items():
            self.setdefault(name, []).append(value)

    def __repr__(self) -> str:
        return f"History({len(next(iter(self.values()), []))} evaluations of {', '.join(self)})"


@dataclass(frozen=True)
class Failure:
    r"""A loss or gradient that was not finite; the student is as before that step, or the best."""

    step: int
    terms: list[str]  # that were not finite, or whose gradients were not
    examples: list[int]  # positions in the batch
    batch: Batch

    def __str__(self) -> str:
        at = f"inputs {listed(self.examples)} of the batch" if self.examples else "the whole batch"
        if self.examples and self.batch.index is not None:
            at += f" (rows {listed(self.batch.index[self.examples].tolist())} of the data)"
        return f"non-finite {', '.join(self.terms)} at step {self.step}, at {at}"


@dataclass(repr=False)
class Result:
    r"""A distilled student and how it was trained.

    Attributes:
        student: The trained module.
        history: Lists by name: "step", "loss", loss terms, metrics.
        steps: The number of steps that changed the student.
        stop_reason: Why it stopped, in words.
        seconds: Wall-clock seconds.
        engine: The engine that ran the steps.
        settings: The settings of the run, in words and numbers.
        failure: Where a loss was not finite, if one was.
        processes: The number of processes that took each step together.
        compile_seconds: How many of the seconds were compilation.
    """

    student: nn.Module
    history: History
    steps: int
    stop_reason: str
    seconds: float
    engine: str = "eager"
    settings: dict[str, Any] = field(default_factory=dict)
    failure: Failure | None = None
    processes: int = 1
    compile_seconds: float = 0.0

    @checked_arguments
    def save(self, folder: PathLike) -> Path:
        r"""Write the student (safetensors) and the rest (JSON) into a folder."""
        return folders.write(folder, "result", self.to_files())

    def to_files(self) -> dict[str, bytes]:
        r"""The files that `save` writes, by name."""
        about = {name: getattr(self, name) for name in FIELDS}
        tensors = files.encode(self.student.state_dict(), {"spec": spec_of(self.student)}, FORMAT)
        return {STUDENT: tensors, ABOUT: encode(about)}

    @checked_arguments
    def export(self, path: PathLike, format: Text = "auto", **options: Any) -> Path:
        r"""Write the student for use without limbeck: see `limbeck.export.export`."""
        import limbeck  # export stands above training in the order of imports

        return limbeck.export.export(self, path, format, **options)

    def portable(self) -> Any:
        r"""What is exported: see `limbeck.export.portable`."""
        import limbeck

        return limbeck.export.of_result(self)

    @property
    def ran_by(self) -> str:
        r"""The engine in words, with the number of processes of one that is for several."""
        processes = f", {self.processes} process{'es' if self.processes > 1 else ''}"
        return self.engine + (processes if self.engine == "accelerate" else "")

    def table(self) -> Table:
        r"""The result as a table."""
        table: Table = PlainTable(title="distillation", show_header=False)
        count = sum(p.numel() for p in self.student.parameters())
        table.add_row("student", f"{type(self.student).__name__}, {count:,} parameters")
        table.add_row("objective", str(self.settings.get("loss", "")))
        table.add_row("steps", f"{self.steps:,} ({self.ran_by})")
        part = f" ({self.compile_seconds:.1f} of them compilation)" if self.compile_seconds else ""
        table.add_row("seconds", f"{self.seconds:.1f}{part}")
        table.add_row("stopped", self.stop_reason)
        for name, values in self.history.items():
            if name != "step" and values:
                table.add_row(name, f"{values[0]:.4g} → {values[-1]:.4g}")
        return table

    def __str__(self) -> str:
        loss, change = self.history.get("loss"), "nothing was measured"
        if loss:
            change = f"the loss went from {loss[0]:.4g} to {loss[-1]:.4g}"
        sentence = f"In {self.steps:,} steps and {self.seconds:.1f} s {change}."
        return table_text(self.table()) + sentence

    __repr__ = __str__


def read_files(folder: str | Path) -> Files:
    r"""The files of a saved student."""
    saved = folders.read(folder, "result", STUDENT_FILES)
    if not saved.names.issuperset({STUDENT, ABOUT}):
        received, expected = f"{folder}, which holds no student", "a folder that `save` wrote"
        raise ArgumentError("folder", received, expected)
    return saved


class _NoDraws(TorchFunctionMode):
    r"""Within, no first weights are drawn: those of the file replace them."""

    def __torch_function__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", None) in ("normal_", "uniform_"):
            return args[0] if args else kwargs["tensor"]
        return function(*args, **(kwargs or {}))


def from_files(saved: Files, student: nn.Module | None = None) -> Result:
    r"""The result of the files of a saved student; a module of the user's own needs a copy."""
    tensors, about = saved.tensors(STUDENT, FORMAT)
    spec, models = about.get("spec"), importlib.import_module("limbeck.models")
    known = isinstance(spec, dict) and str(spec.get("type")) in models.BY_NAME
    if student is None and not known:
        received = f"None, and {saved.folder} holds a module of the user's own"
        raise ArgumentError("student", received, "student=, an empty copy of it")
    most = importlib.import_module("limbeck.models.checks").count_numbers(tensors)
    first = _NoDraws() if most > 2**24 else nullcontext()  # small ones take less than the mode
    with of_file(saved.path(STUDENT)), torch.random.fork_rng(devices=[]), first:
        student = models.from_spec(spec, most) if student is None else student
        if callable(make_room := getattr(student, "make_room", None)):
            make_room(tensors)
    files.load_weights(student, tensors, saved.path(STUDENT))
    record = saved.fields(ABOUT, FIELDS)
    return Result(student, History(record.pop("history")), **record)


def spec_of(student: nn.Module) -> dict[str, Any] | None:
    r"""The description of one of limbeck's own models; None of any other module."""
    model: Any = student
    known = importlib.import_module("limbeck.models").BY_NAME
    with suppress(ArgumentError):  # such as an ensemble of the user's modules
        return dict(model.spec()) if type(model) is known.get(type(model).__name__) else None
    return None
