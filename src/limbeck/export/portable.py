r"""A student to export: a module from raw inputs to outputs, and how its files are checked."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from limbeck.arguments import UserObject, integer
from limbeck.arrays import map_tensors, part_of
from limbeck.condensation.predict_function import Means, OutputFamily
from limbeck.condensation.sample_bag import SampleBag
from limbeck.errors import ArgumentError, LimbeckError, first_line, shown
from limbeck.evaluation import evaluating
from limbeck.models.preprocessed import Preprocessed
from limbeck.models.table_encoder import TableEncoder
from limbeck.models.tree import Trees
from limbeck.tables.columns import Category, Number
from limbeck.tables.table import Table

CHECK_ROWS = 64  # random rows at which a file is compared with torch
TOLERANCE = 1e-5  # largest difference from torch, relative to the largest answer and one
CHECKS = {  # by format: what is written, what it is run with, and its tolerance
    "onnx": ("ONNX file", "onnxruntime", TOLERANCE),
    "pt2": ("program", "torch.export.load", TOLERANCE),
    "c": ("C header", "a C compiler", TOLERANCE),
    "numpy": ("NumPy predictor", "NumPy in double precision", 1e-6),
}
FREE = "the number of rows must stay free: x.shape[0] does, len(x) does not"
MARK = "limbeck wrote this file"  # the mark of text files that may be replaced


@dataclass(frozen=True)
class Portable:
    r"""A student that is ready for export."""

    module: nn.Module  # from rows (n, *shape), or a dict of a table's tensors, to answers
    shape: tuple[int, ...] | None  # of one row; None for a table, or where it is not known
    form: str = "values"  # of the answers: one of `limbeck.outputs.FORMS`, "means" or "outputs"
    classes: list[Any] | None = None
    task: str | None = None
    table: Table | None = None
    student: nn.Module | None = None  # as it was trained
    about: dict[str, Any] = field(default_factory=dict)  # how it was made, by name
    columns: str = "named"  # how an ONNX file takes a table: "named" or "encoded"

    @property
    def name(self) -> str:
        r"""The kind of the student."""
        student = self.student or self.module
        inner = student.network if isinstance(student, Preprocessed) else student
        return type(inner).__name__

    def like(self) -> Tensor:
        r"""A tensor of the module's floating type, where it lives."""
        tensors = (*self.module.parameters(), *self.module.buffers())
        return next(filter(torch.is_floating_point, tensors), torch.empty(0))

    @property
    def dtype(self) -> torch.dtype:
        r"""The floating type of its inputs: float64 if float32 cannot distinguish rows."""
        dtypes = (getattr(module, "input_dtype", None) for module in self.module.modules())
        return next(filter(None, dtypes), self.like().dtype)

    def rows(self, n: UserObject[int] = CHECK_ROWS) -> Any:
        r"""Random inputs of the student's kind with a fixed seed: (n, *shape), or a dict."""
        if self.table is not None:
            device = self.like().device
            return map_tensors(lambda part: part.to(device), random_rows(self.table, n))
        if self.shape is None:
            expected = "a student of one tensor whose shape is known, or input_shape="
            raise ArgumentError("student", f"a {self.name} of unknown inputs", expected)
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(n, *self.shape, generator=generator)
        for module in self.module.modules():
            support: Any = getattr(module, "support", None)
            if callable(getattr(support, "start", None)):
                x = support.start(n, generator)
            elif isinstance(module, Preprocessed) and module.shift is not None:
                if module.encoder is None and module.scale is not None:
                    wide = torch.where(module.scale == 0, 1.0, 1 / module.scale)
                    x = (module.shift + x.to(wide) * wide).cpu()
                break
            elif isinstance(module, TableEncoder) and module.columns:
                around = module.mean + x[:, module.place].to(module.scale) * module.scale
                x[:, module.place] = around.cpu()
                break
            elif isinstance(module, Trees):
                flat = x.view(n, -1)
                for column in range(module.inputs):  # on either side of the thresholds
                    tests = ~module.is_leaf & (module.feature % module.inputs == column)
                    if len(cuts := module.threshold[tests].cpu()):
                        width = (cuts.max() - cuts.min()).item() or 1.0
                        middle = cuts[torch.arange(n) % len(cuts)]
                        flat[:, column] = middle + width * flat[:, column] / 3
                break
        for module in self.module.modules():
            if isinstance(module, Preprocessed) and module.origin is not None:
                x = x.double() + module.origin.cpu()
        return x.to(self.like().device, self.dtype)


def random_rows(table: Table, rows: int = CHECK_ROWS) -> dict[str, Tensor]:
    r"""Rows as the table may have them, also missing and unknown ones."""
    generator = torch.Generator().manual_seed(0)
    batch: dict[str, Tensor] = {}
    for column in table.varying:
        if isinstance(column, Number):
            batch[column.key] = column.mean + column.scale * torch.randn(rows, generator=generator)
            if column.mask:
                batch[column.mask] = torch.rand(rows, generator=generator) < 0.3
        elif isinstance(column, Category):
            # booleans without gaps stay booleans in a file, where nothing is unknown
            known_only = not column.missing and isinstance(column.categories[0], bool)
            codes = column.unknown + (not known_only) + bool(column.missing)
            batch[column.key] = torch.randint(codes, (rows,), generator=generator)
    return table.rounded(batch)


def portable(
    thing: UserObject[object],
    input_shape: UserObject[int | Sequence[int] | None] = None,
    predict: UserObject[Callable[..., object] | None] = None,
) -> Portable:
    r"""The exportable form of a result, the folder of one, an estimator or a module."""
    if isinstance(thing, str | Path):
        from limbeck.loading import load

        thing = load(thing, predict=predict)
    elif predict is not None:
        raise ArgumentError("predict", "a function", "None, but for the folder of a saved bag")
    thing = getattr(thing, "result_", thing)
    if callable(method := getattr(thing, "portable", None)):
        return method()
    if not isinstance(thing, nn.Module):
        expected = "a result of distill, compress, condense or normalize, or a torch module"
        raise ArgumentError("student", f"a {type(thing).__name__}", expected)
    module, form = _tensors(thing, None)
    result = Portable(module, shape_of(thing), form, student=thing)
    if input_shape is None:
        return result
    try:
        sizes: Any = (input_shape,) if isinstance(input_shape, int) else input_shape
        shape = tuple(integer("input_shape", n, "a whole number", least=1) for n in sizes)
        result = replace(result, shape=shape)
        with evaluating(module), torch.no_grad():
            module(result.rows(2))
    except Exception as error:  # of the module's own, too
        received = f"{shown(input_shape)} ({first_line(error)})"
        expected = "the shape of one row, such as (784,)"
        raise ArgumentError("input_shape", received, expected) from error
    return result


def _tensors(student: nn.Module, form: str | None) -> tuple[nn.Module, str]:
    r"""A student that gives tensors, and their form: of a bag of distributions, their means."""
    if isinstance(student, SampleBag):
        return Means(student, OutputFamily("")), "means"
    return student, form or getattr(student, "output_form", None) or "outputs"


def shape_of(module: object) -> tuple[int, ...] | None:
    r"""The shape of one row that a module of limbeck's own takes; None of any other."""
    if isinstance(module, Preprocessed):
        if module.encoder is not None:
            columns = getattr(module.encoder, "columns", 0)
            return (columns,) if isinstance(columns, int) and columns else None
        return shape_of(module.network) if module.shift is None else tuple(module.shift.shape)
    support = getattr(module, "support", None)
    if support is not None and hasattr(support, "shape"):
        return tuple(support.shape)
    sizes = getattr(module, "sizes", None)
    if isinstance(sizes, tuple) and sizes:
        return (int(sizes[0]),)
    if isinstance(module, Trees):
        return (module.inputs,)
    members = getattr(module, "models", None)
    if isinstance(members, nn.ModuleList) and len(members):
        return shape_of(members[0])
    return None if members is None else shape_of(members)


def of_result(
    result: UserObject[Any], module: UserObject[nn.Module | None] = None,
    form: UserObject[str | None] = None, *, verb: UserObject[str] = "distill",
    doubts: UserObject[tuple[str, ...]] = (), **more: Any,
) -> Portable:  # fmt: skip
    r"""The exportable form of a result, by default of its student as it is.

    `more` are further fields of `Portable`; `about` among them adds lines to the card.
    """
    student, settings = result.student, result.settings
    shape, shapes = shape_of(student), settings.get("input_shape") or {}
    if shape is None and set(shapes) == {""}:
        shape = tuple(shapes[""])
    settings_shown = ("loss", "update", "schedule", "batch_size", "inputs", "seed", "device")
    chains = (settings.get("normalization") or {}).get("doubt")
    failure = None if result.failure is None else str(result.failure)
    about = {
        "verb": "normalize" if "normalization" in settings else verb,
        "doubts": [*doubts, *filter(None, (chains, failure))],
        **{name: settings[name] for name in settings_shown if settings.get(name) not in (None, "")},
        "steps": f"{result.steps:,}; {result.stop_reason}",
        "seconds": f"{result.seconds:.1f} ({result.ran_by})",
        **more.pop("about", {}),
    }
    if module is None:
        module, form = _tensors(student, form or settings.get("student_output"))
    fields = {"shape": shape, "form": form or "outputs", "student": student, **more}
    return Portable(module, about=about, **fields)


def not_foreign(path: Path) -> None:
    r"""Refuse to write over a text file that is not limbeck's."""
    if path.exists() and MARK not in path.read_text(encoding="utf-8", errors="replace"):
        received = f"a place where {path} is, which limbeck did not write"
        raise ArgumentError("path", received, "another folder or name")


def relative_difference(answers: Tensor, expected: Tensor) -> float:
    r"""The largest difference, relative to the largest output and one; ∞ if shapes differ."""
    if answers.shape != expected.shape:
        return float("inf")
    if not answers.numel():
        return 0.0
    worst = (answers.double() - expected.double()).abs().max().item()
    return worst / (1 + expected.abs().max().item())


def largest_difference(run: Callable[[Any], Tensor], module: nn.Module, x: Any) -> float:
    r"""The `relative_difference` of a file from its module, at all rows and at one alone."""
    both = (x, part_of(x, 0, 1))
    return max(0.0, *(relative_difference(run(rows).cpu(), module(rows).cpu()) for rows in both))


@contextmanager
def exporting(name: str, what: str) -> Iterator[None]:
    r"""Without the exporter's warnings and log; its error is one line about a named student."""
    disabled = logging.root.manager.disable
    logging.disable(max(disabled, logging.WARNING))
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    except Exception as error:  # of the exporter's many kinds
        reason = first_line(error.__cause__ or error)
        advice = f"; {FREE}" if "(batch)" in reason else ""
        message = f"export: torch cannot write {name} as {what} ({reason}){advice}"
        raise LimbeckError(message) from error
    finally:
        logging.disable(disabled)
