r"""The result of `compress`: a student that predicts the user's class names, and its report."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from numpy.typing import ArrayLike
from rich.table import Table
from torch import nn

from limbeck.arguments import Dict, Flag, Items, PathLike, Text, UserObject, checked_arguments
from limbeck.arrays import as_plain_array, rows
from limbeck.compression.baseline import LabelTrees, fit_label_trees, train_on_labels
from limbeck.compression.fast_path import NumpyFastPath
from limbeck.compression.fidelity.comparison import align
from limbeck.compression.fidelity.cost import Cost, bytes_on_disk, latencies, parameters
from limbeck.compression.fidelity.cost import cost as teacher_cost
from limbeck.compression.fidelity.report import Fidelity, fidelity
from limbeck.compression.rows import RowFormat, TableFormat, format_from_spec
from limbeck.compression.students import predictions
from limbeck.compression.training import Answering, Problem, Recipe
from limbeck.errors import ArgumentError, LimbeckError
from limbeck.models.preprocessed import Preprocessed
from limbeck.models.table_encoder import TableEncoder
from limbeck.models.tree import Trees
from limbeck.progress import announce
from limbeck.records import damaged, encode
from limbeck.storage.folders import Files
from limbeck.tables import table as schema
from limbeck.tables.columns import pandas
from limbeck.teachers.folds import as_labels
from limbeck.teachers.row_teacher import predicted_labels
from limbeck.text import compared, table_text, visible
from limbeck.training.result import STUDENT, Result, from_files, read_files


def _in_own_units(
    encoder: TableEncoder, table: schema.Table
) -> tuple[list[str], list[Callable[[float], str]]]:
    r"""The names of a tree's features, and how thresholds are written in the columns' own units."""
    columns: dict[str, Any] = {column.key: column for column in table.varying}
    numbers = encoder.numbers
    writers: list[Any] = [partial(_written, columns[n.key], n.mean, n.scale) for n in numbers]
    names = [n.key for n in numbers] + [f"{n.key} is missing" for n in numbers if n.mask]
    for which, code in zip(encoder.which.tolist(), encoder.slots.tolist(), strict=True):
        column = columns[encoder.indicated[which].key]
        known = code < len(column.categories)
        names.append(f"{column.key} is {column.categories[code] if known else 'missing'}")
    for key, embedding in zip(encoder.embedded, encoder.embeddings, strict=True):
        names += [f"{key}[{k}]" for k in range(embedding.embedding_dim)]  # type: ignore[arg-type]
    return names, writers + ["{:.6g}".format] * (len(names) - len(writers))


def _written(column: Any, mean: float, scale: float, threshold: float) -> str:
    r"""A standardised threshold as people write it: a number, or a date."""
    value = threshold * scale + mean + column.origin
    if column.kind != "date":
        return f"{value:.6g}"
    zone = column.dtype.partition(", ")[2].rstrip("]") or None
    date = pandas().Timestamp(math.floor(value), unit="s", tz=zone)
    day = 86_400  # seconds
    whole_days = column.step and not column.step % day and not column.origin % day and zone is None
    return str(date.date() if whole_days else date)


ABOUT = "compression.json"
FIELDS = {
    "task": str, "classes": list[Any] | None, "format": dict[str, Any], "inputs": str,
    "tried": list[dict[str, Any]], "notes": list[str],
}  # fmt: skip


@dataclass(repr=False)
class Compressed(Result):
    r"""A compressed teacher.

    Attributes:
        task: "classification", "multilabel" or "regression".
        classes: Names of the classes, or of the labels; None for regression.
        row_format: The format of the rows.
        inputs: The source of inputs.
        tried: The candidates that were tried, with their measures on held-out rows.
        problem: The teacher and its rows; None in a loaded result.
        recipe: How the student was trained; None in a loaded result.
        labels: The labels that were passed.
        notes: Remarks on the rows, such as columns that look like codes.
        exported: The files that `export` wrote last.
    """

    task: str = "classification"
    classes: Any = None
    row_format: RowFormat | None = None
    inputs: str = ""
    tried: list[dict[str, Any]] = field(default_factory=list)
    problem: Problem | None = None
    recipe: Recipe | None = None
    labels: Any = None
    notes: list[str] = field(default_factory=list)
    exported: tuple[Path, ...] = field(default=(), compare=False)
    _fast: NumpyFastPath | None = field(default=None, init=False, compare=False)
    _baseline: tuple[Any, ...] | None = field(default=None, init=False, compare=False)

    @classmethod
    def of(cls, result: Result, problem: Problem, recipe: Recipe, **fields: Any) -> Compressed:
        r"""The result of a problem's training."""
        teacher = problem.teacher
        inputs = recipe.inputs if isinstance(recipe.inputs, str) else repr(recipe.inputs)
        return cls(
            **vars(result), task=teacher.task, classes=teacher.classes, row_format=problem.format,
            inputs=inputs, problem=problem, recipe=recipe, **fields,
        )  # fmt: skip

    def predict_proba(self, X: UserObject[object]) -> np.ndarray:
        r"""Probabilities (n, K) of the classes, or of each label."""
        if self.task == "regression":
            raise ArgumentError("task", "'regression'", "a classifier; use predict")
        return self._predictions(X)

    def predict(self, X: UserObject[object]) -> np.ndarray:
        r"""Class names (n,), label indicators (n, K), or values (n,) or (n, K)."""
        outputs = self._predictions(X)
        if self.task != "regression" and len(rows := np.argwhere(np.isnan(outputs))):
            received = f"a row ({rows[0, 0]}) so far from the data that its probabilities are NaN"
            raise ArgumentError("X", received, "rows like those of the training")
        return predicted_labels(outputs, self.task, self.classes)

    def _predictions(self, X: object) -> np.ndarray:
        assert self.row_format is not None
        form = self.settings.get("student_output")
        if self._fast is None or not self._fast.current(self.student):
            self._fast = NumpyFastPath(self.student, self.row_format, self.task, form)
        if (outputs := self._fast(X)) is not None:
            return outputs
        return predictions(self.student, self.row_format.encode(X), self.task, form)

    @checked_arguments
    def report(
        self, X: UserObject[object], y: UserObject[ArrayLike | None] = None, *,
        groups: Text | Dict[dict[str, Any]] | Items[Iterable[str]] | None = None,
        labels: UserObject[object] = None, time: Flag = True,
        sample_weight: UserObject[ArrayLike | None] = None,
    ) -> Fidelity:  # fmt: skip
        r"""Compare teacher and student on rows that neither was trained on.

        Arguments:
            X: The rows.
            y: Their true labels, if known. Default: None.
            groups: Columns that divide the rows into groups, each (n,), by name; or columns of a
                data frame. Default: None.
            labels: True labels of the rows passed to `compress`: the same student, and boosted
                trees of LightGBM (or else scikit-learn) that are no larger, are trained on them
                alone, once, and compared too. Default: the labels passed to `compress`.
            time: Whether to measure how long predictions take; a teacher whose queries are limited
                is not timed. Default: True.
            sample_weight: Weights of the rows of X, from 0, in all measures. Default: None.
        """
        if self.problem is None or self.row_format is None:
            received = "a result without its teacher, as saved and pickled ones are"
            raise ArgumentError("report", received, "one made by compress")
        teacher, columns = self.problem.teacher, _groups(groups, X)
        given = self.row_format.as_given(X)
        labels = self.labels if labels is None else labels
        on_labels: dict[str, Any] = {}
        names = {"teacher": teacher.name}
        query, calls = self.problem.query, {"student": self._predictions}
        if not query.limited and query.queries_per_second is None:  # timing repeats queries
            calls = {"teacher": teacher, **calls}
        unlimited = replace(query, max_queries=None, query_seconds=None)
        if labels is not None:  # refused before the teacher is queried
            labels = as_labels(labels, rows(self.problem.data.x))
        targets, own = unlimited.label(teacher, given), self._predictions(X)
        both = {"teacher": targets, "student": own}
        align(self.task, both, y, self.classes, sample_weight)  # before others are trained
        if labels is not None:
            baseline, trees = self._trained_on(labels)
            on_labels["baseline"] = baseline._predictions(X)
            if trees is not None:
                on_labels["trees"] = trees(self.row_format.encode(X))
                on_labels["trees_cost"] = Cost(bytes=trees.bytes, files="nodes, 16 bytes each")
                names["trees"] = f"{trees.library} on labels"
        timed = latencies(calls, given) if time else {}
        return fidelity(
            self.task, targets, own, y,
            classes=self.classes, groups=columns, names=names,
            teacher_cost=teacher_cost(teacher, timed.get("teacher")),
            student_cost=self.cost(timed.get("student")), notes=self.notes, **on_labels,
            sample_weight=sample_weight,
        )  # fmt: skip

    @checked_arguments
    def cost(self, latency: Dict[Mapping[int, float]] | None = None) -> Cost:
        r"""The student's cost: size of exported or saved files, and seconds by batch size."""
        sizes: dict[str, int] = {}
        if self.exported and all(path.is_file() for path in self.exported):
            sizes = {path.name: path.stat().st_size for path in self.exported}
        else:
            with suppress(LimbeckError, TypeError, ValueError, RuntimeError):  # it cannot be saved
                content = self.to_files()
                sizes = {name: len(content[name]) for name in (STUDENT, ABOUT)}
        size = sum(sizes.values()) if sizes else None
        return Cost(parameters(self.student), size, dict(latency or {}), " and ".join(sizes))

    def _trained_on(self, labels: object) -> tuple[Compressed, LabelTrees | None]:
        r"""`on_labels` and trees on labels, announced, and trained once for the same labels."""
        key = joblib.hash(as_plain_array(labels, "labels"))
        if self._baseline is None or self._baseline[0] != key:
            assert self.problem is not None
            text = "report: training the same student on the labels alone, and trees, to compare"
            announce(text, self.problem.query.progress)
            baseline = self.on_labels(labels)
            size = self.cost().bytes or 4 * (parameters(self.student) or 0)
            assert baseline.problem is not None
            trees = fit_label_trees(baseline.problem, size, self.problem.seed)
            self._baseline = key, baseline, trees
        return self._baseline[1], self._baseline[2]

    def on_labels(self, labels: UserObject[object]) -> Compressed:
        r"""The same student, trained on true labels alone and stopped by the held-out loss.

        Arguments:
            labels: True labels of the rows passed to `compress`; rows whose label is None or NaN
                are dropped.
        """
        if self.problem is None or self.recipe is None:
            raise ArgumentError("labels", "a result without its rows", "one made by compress")
        recipe = replace(self.recipe, inputs="data")
        result, problem = train_on_labels(self.problem, recipe, labels)
        return Compressed.of(result, problem, recipe, labels=labels)

    @checked_arguments
    def rules(self, feature_names: UserObject[Sequence[str] | None] = None) -> str:
        r"""The rules of a single tree as text, with the column names of a table."""
        student = self.student
        tree = student.network if isinstance(student, Preprocessed) else student
        if not isinstance(tree, Trees):
            received = f"a {type(tree).__name__}"
            raise ArgumentError("student", received, "a tree, as student='tree' makes one")
        encoder, origin = getattr(student, "encoder", None), getattr(student, "origin", None)
        if isinstance(self.row_format, TableFormat) and isinstance(encoder, TableEncoder):
            features, writers = _in_own_units(encoder, self.row_format.table)
            text = tree.text(features, self.classes, writers)
            for name in features:  # indicators are 0 or 1
                no = f"if {name.replace(' is ', ' is not ', 1)}:"
                text = text.replace(f"if {name} <= 0.5:", no)
            return visible(text)
        origins = [] if origin is None else origin.flatten().tolist()

        def writer(x: float) -> Callable[[float], str]:  # all digits, far from zero
            return lambda threshold: f"{x + threshold:.{15 if x else 6}g}"

        return visible(tree.text(feature_names, self.classes, list(map(writer, origins))))

    def table(self) -> Table:
        table = super().table()
        if self.problem is not None:
            table.add_row("teacher", f"{self.problem.teacher.name}, {self.task}")
        tried = f", of {len(self.tried)} tried" if self.tried else ""
        table.add_row("inputs", self.inputs + tried)
        return table

    def __str__(self) -> str:
        size = self.cost().bytes
        before = None if self.problem is None else bytes_on_disk(self.problem.teacher)
        ratio = compared(before, size, "smaller", "larger", "as large as its teacher", " times")
        summary = f"A student of {'unknown size' if size is None else f'{size:,} bytes'}"
        summary += f", {ratio}" if ratio else ""
        notes = "".join(f"{note}\n" for note in self.notes)
        text = f"{notes}{summary}; compare it with the teacher: report(X, y)."
        return table_text(self.table()) + visible(text)

    __repr__ = __str__

    def to_files(self) -> dict[str, bytes]:
        assert self.row_format is not None
        about: dict[str, Any] = {"task": self.task, "classes": self._class_names()}
        about |= {"format": self.row_format.spec(), "inputs": self.inputs, "tried": self.tried}
        return super().to_files() | {ABOUT: encode(about | {"notes": self.notes})}

    def _class_names(self) -> list[Any] | None:
        return None if self.classes is None else np.asarray(self.classes).tolist()

    def portable(self) -> Any:
        r"""The exportable form: probabilities or values, from raw rows or columns."""
        import limbeck  # exporting stands above the verbs, and is called by the front door

        form = "values" if self.task == "regression" else "probabilities"
        whole = Answering(self.student, self.task, self.settings.get("student_output"))
        about = {} if self.problem is None else {"teacher": self.problem.teacher.name}
        about["generator"] = self.inputs
        rows: dict[str, Any] = {"shape": getattr(self.row_format, "shape", None)}
        if isinstance(self.row_format, TableFormat):
            rows["table"] = self.row_format.table
        return limbeck.export.of_result(
            self, whole, form, verb="compress", task=self.task,
            classes=self._class_names(), about=about, doubts=tuple(self.notes), **rows,
        )  # fmt: skip

    @classmethod
    @checked_arguments
    def load(cls, folder: PathLike, student: nn.Module | None = None) -> Compressed:
        r"""Load a saved result; it can predict, but has no teacher."""
        return cls.from_files(read_files(folder), student)

    @classmethod
    def from_files(cls, saved: Files, student: nn.Module | None = None) -> Compressed:
        r"""A result of the files of a saved one."""
        record = saved.fields(ABOUT, FIELDS)
        try:
            row_format = format_from_spec(record.pop("format"))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise damaged(saved.path(ABOUT), f"has no format of rows ({error!r})") from error
        if record["classes"] is not None:
            record["classes"] = np.asarray(record["classes"])
        return cls(**vars(from_files(saved, student)), **record, row_format=row_format)


def _groups(groups: dict[str, Any] | Iterable[str] | None, X: Any) -> dict[str, Any] | None:
    if groups is None or isinstance(groups, dict):
        return groups
    names = [groups] if isinstance(groups, str) else list(groups)
    if not hasattr(X, "columns"):
        raise ArgumentError("groups", names, "a dict of arrays, where X is no data frame")
    columns = {}
    for name in names:
        if not isinstance(name, Hashable) or name not in X.columns:
            raise ArgumentError.unknown("groups", name, map(str, X.columns))
        zoned = getattr(X[name].dtype, "tz", None) is not None  # dates, which become local time
        columns[str(name)] = np.asarray(X[name].dt.tz_localize(None) if zoned else X[name])
    return columns
