r"""What a distillation gives back: the student, why it stopped, how long it took."""

from __future__ import annotations

import importlib
import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from torch import nn

from limbeck.errors import ArgumentError, CheckpointError
from limbeck.storage import files
from limbeck.training.loop import Failure
from limbeck.training.settings import History

__all__ = ["Result", "from_spec", "load", "spec_of"]

STUDENT, ABOUT = "student.safetensors", "result.json"
FORMAT = "limbeck-student-1"


@dataclass(repr=False)
class Result:
    r"""A distilled student and its story.

    Attributes:
        student: The trained module.
        history: Lists by name: "step", "loss", loss terms, metrics.
        steps: How many steps changed the student.
        stop_reason: Why it stopped, in words.
        seconds: Wall-clock seconds.
        engine: Which engine ran the steps.
        settings: What was asked for, in words and numbers.
        failure: Where a loss was not finite, if one was.
        processes: How many processes took each step together.
        compile_seconds: How many of the seconds went into compilation.
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

    def save(self, folder: str | Path) -> Path:
        r"""Write the student (safetensors) and its story (JSON) into a folder."""
        folder = Path(folder)
        spec = spec_of(self.student)
        files.write(folder / STUDENT, self.student.state_dict(), {"spec": spec}, FORMAT)
        about = {
            "steps": self.steps,
            "stop_reason": self.stop_reason,
            "seconds": self.seconds,
            "engine": self.engine,
            "processes": self.processes,
            "compile_seconds": self.compile_seconds,
            "settings": self.settings,
            "history": dict(self.history),
        }
        files.write_text(folder / ABOUT, json.dumps(about, indent=1) + "\n")
        return folder

    def export(self, path: str | Path, format: str = "auto", **options: Any) -> Path:
        r"""Write the student for use without limbeck, checked, with a model card beside it.

        Arguments:
            path: A name that ends in .onnx, .pt2 or .npz, or a folder for plain NumPy.
            format: As of `limbeck.export.export`.
            options: Likewise: report, title, card.
        """
        import limbeck  # exporting stands above training, and is called by the front door

        return limbeck.export.export(self, path, format, **options)

    def portable(self) -> Any:
        r"""What leaves when it is exported: see `limbeck.export.portable`."""
        import limbeck

        return limbeck.export.of_result(self)

    @property
    def ran_by(self) -> str:
        r"""The engine in words, with the number of processes of one that is for several."""
        if self.engine != "accelerate":
            return self.engine
        return f"{self.engine}, {self.processes} process{'es' if self.processes > 1 else ''}"

    @property
    def _compilation(self) -> str:
        return f" ({self.compile_seconds:.1f} of them compilation)" if self.compile_seconds else ""

    def table(self) -> Table:
        r"""The result as a table."""
        table = Table(title="distillation", title_justify="left", show_header=False)
        count = sum(p.numel() for p in self.student.parameters())
        rows = {
            "student": f"{type(self.student).__name__}, {count:,} parameters",
            "objective": str(self.settings.get("loss", "")),
            "steps": f"{self.steps:,} ({self.ran_by})",
            "seconds": f"{self.seconds:.1f}{self._compilation}",
            "stopped": self.stop_reason,
        }
        for name, values in self.history.items():
            if name != "step" and values:
                rows[name] = f"{values[0]:.4g} → {values[-1]:.4g}"
        for name, value in rows.items():
            table.add_row(name, value)
        return table

    def __str__(self) -> str:
        console = Console(width=100, record=True, file=io.StringIO())
        console.print(self.table())
        loss = self.history.get("loss", [])
        fell = (
            f"the loss went from {loss[0]:.4g} to {loss[-1]:.4g}"
            if loss
            else "nothing was measured"
        )
        return console.export_text() + f"In {self.steps:,} steps and {self.seconds:.1f} s {fell}."

    __repr__ = __str__


def load(folder: str | Path, student: nn.Module | None = None) -> Result:
    r"""Read a result back.

    Arguments:
        folder: What `Result.save` wrote.
        student: An empty copy of a module of the user's own; limbeck's models need none.
    """
    folder = Path(folder)
    if not (folder / STUDENT).exists():
        raise ArgumentError(
            "folder", str(folder), f"a folder with {STUDENT}, as Result.save writes it"
        )
    tensors, about = files.read(folder / STUDENT, FORMAT)
    if student is None:
        student = from_spec(about["spec"], folder)
    if callable(room := getattr(student, "make_room", None)):
        room(tensors)
    files.load_weights(student, tensors, folder / STUDENT)
    try:
        story = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        return Result(student, History(story.pop("history")), **story)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise CheckpointError(f"folder: {folder / ABOUT} cannot be read ({error!r})") from error


def spec_of(student: nn.Module) -> dict[str, Any] | None:
    r"""The description of one of limbeck's own models; None of any other module."""
    models = importlib.import_module("limbeck.models")
    name = type(student).__name__
    if name not in models.__all__ or type(student) is not getattr(models, name):
        return None
    own: Any = student
    try:
        return own.spec()
    except ArgumentError:  # such as an ensemble of the user's own modules
        return None


def from_spec(spec: dict[str, Any] | None, folder: Path) -> nn.Module:
    r"""One of limbeck's own models, from its description; nothing else is ever constructed."""
    models = importlib.import_module("limbeck.models")
    kind = str((spec or {}).get("type"))
    if spec is None or kind not in models.__all__:
        raise ArgumentError(
            "student",
            f"None, and {folder} holds a module of the user's own",
            "student=, an empty copy of it",
        )
    return getattr(models, kind).from_spec(spec)
