r"""How faithful a student is to its teacher, how good both are, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
from rich.table import Table

from limbeck.arguments import Dict, PathLike, checked_arguments, choice
from limbeck.compression.fidelity import comparison, measures, tables
from limbeck.compression.fidelity.comparison import MIN_CLASS_ROWS, Comparison, Predictions
from limbeck.compression.fidelity.cost import Cost
from limbeck.compression.fidelity.measures import Figure, mean, ratio, weighted
from limbeck.errors import ArgumentError
from limbeck.records import decode, encode, of_file, read_fields
from limbeck.storage import files
from limbeck.storage.files import plain
from limbeck.text import table_text, visible

FORMAT = "limbeck-fidelity-1"
LEAST_ROWS = 5  # of a class, that can show a clear loss of recall
NAMES = {
    "teacher": "teacher",
    "student": "student",
    "baseline": "labels alone",  # the same student
    "trees": "trees on labels",
}


@dataclass(frozen=True)
class ClassCount:
    r"""A class or label, and its number of test rows."""

    name: Any
    title: str  # in tables and sentences, such as "class fraud"
    rows: int


@dataclass(repr=False)
class Fidelity(Comparison):
    r"""A report on a student. It prints as tables and a one-sentence summary.

    Attributes:
        rows: The number of examples.
        measures: By model ("teacher", "student"; on labels alone "baseline", the same student, and
            "trees") and name, value and standard error.
        differences: Student minus another model, with the paired standard error.
        task: "classification", "multilabel" or "regression".
        classes: Names of the classes, labels or targets.
        names: Headings of the table's columns, by model.
        main: The measure that `retention` is about: the least of those in `retention_by`.
        retention: The fraction of the teacher's main measure that the student keeps; NaN if a ratio
            has no meaning, such as of an R² below zero.
        retention_error: Its standard error.
        retention_by: The same by measure: one of all rows, "accuracy", "r2",
            "agreement" or "teacher_r2"; and those of rare classes that have 30 test rows or more.
        rarest: The class of "average_precision" and "rare_recall", with its number of test rows.
        worst: The class of "worst_recall".
        unchecked: Classes with too few test rows.
        costs: Parameters, bytes, latency, by model.
        by_group: The same measures by column and group.
        by_class: The recall of each class or label, and the student's KL among its rows.
        worse: Columns and groups where the student is worse by more than three standard errors.
        calibration: By model, columns "confidence", "frequency", "std_error" and "count" by bin.
        disagreements: The rows on which both differ most: "row", "size", predictions, "label".
        pairs: Joint predictions of both: counts of classes, shares of labels, or values.
        notes: Further sentences on the student.
    """

    task: str = ""
    classes: list[Any] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=lambda: dict(NAMES))
    main: str = ""
    retention: float = math.nan
    retention_error: float = math.nan
    retention_by: dict[str, Figure] = field(default_factory=dict)
    rarest: ClassCount | None = None
    worst: ClassCount | None = None
    unchecked: list[ClassCount] = field(default_factory=list)
    worse: list[tuple[str, str]] = field(default_factory=list)
    calibration: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    disagreements: list[dict[str, Any]] = field(default_factory=list)
    pairs: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    costs: dict[str, Cost] = field(default_factory=dict)
    by_group: dict[str, dict[str, Comparison]] = field(default_factory=dict)
    by_class: dict[str, Comparison] = field(default_factory=dict)

    @property
    def labelled(self) -> bool:
        r"""Whether there were labels to compare with."""
        return bool(self.differences["teacher"])

    def table(self) -> Table:
        r"""The comparison as tables."""
        return tables.table(self)

    def sentence(self) -> str:
        r"""The result in one sentence."""
        return tables.sentence(self)

    def need(self) -> str:
        r"""A sentence: did you need the teacher? Empty where nothing was trained on labels."""
        return tables.need(self)

    def __str__(self) -> str:
        further = [tables.class_table(self)] if self.by_class else []
        further += [tables.group_table(self)] if self.by_group else []
        text = table_text(self.table(), *further).rstrip()
        files = [f"{self.names[model]}: {c.files}" for model, c in self.costs.items() if c.files]
        notes = [f"Bytes are those of {', '.join(files)}."] if files else []
        lines = [text, *notes, tables.remark(self), *self.notes, self.sentence(), self.need()]
        return visible("\n".join(filter(None, lines)))

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        r"""Everything in plain numbers, words and lists, as JSON takes it; None for no number."""
        words = {"sentence": self.sentence(), "need": self.need()}
        return plain({"format": FORMAT, **words, **asdict(self)})

    @classmethod
    @checked_arguments
    def from_dict(cls, saved: Dict[Mapping[str, Any]]) -> Fidelity:
        r"""A report of what `to_dict` gave."""
        if saved.get("format") != FORMAT:
            received = f"format {saved.get('format')!r}"
            raise ArgumentError("saved", received, f"{FORMAT!r}, as Fidelity.to_dict gives it")
        others = ("format", "sentence", "need", "retention", "retention_error")
        known = {name: value for name, value in saved.items() if name not in others}
        hints = {name: kind for name, kind in get_type_hints(cls).items() if name not in others}
        values = read_fields(known, hints, "saved")
        choice("saved.main", values["main"], values["retention_by"])
        share, error = values["retention_by"][values["main"]]
        return cls(**values, retention=share, retention_error=error)

    @checked_arguments
    def shipped(self, sizes: Dict[Mapping[str, int]]) -> Fidelity:
        r"""The same report, with the sizes of the files that the student was exported to."""
        size, names = sum(sizes.values()), " and ".join(sizes)
        costs = self.costs | {"student": replace(self.costs["student"], bytes=size, files=names)}
        return replace(self, costs=costs)

    @checked_arguments
    def save(self, path: PathLike) -> Path:
        r"""Write the report as a JSON file."""
        return files.write_bytes(path, encode(self.to_dict()))

    @classmethod
    @checked_arguments
    def load(cls, path: PathLike) -> Fidelity:
        r"""Read what `save` wrote."""
        path = Path(path)
        with of_file(path):
            return cls.from_dict(decode(files.read_bytes(path), path))


def fidelity(
    task: str, teacher: object, student: object, y: object = None, *, baseline: object = None,
    classes: Sequence[Hashable] | None = None, groups: Mapping[str, object] | None = None,
    teacher_cost: Cost | None = None, student_cost: Cost | None = None,
    names: Mapping[str, str] | None = None, notes: Sequence[str] = (),
    sample_weight: object = None, trees: object = None, trees_cost: Cost | None = None,
) -> Fidelity:  # fmt: skip
    r"""Compare predictions (n, K) of a student with its teacher's, and both with labels if given.

    They are probabilities, of several labels independent ones, or values. `y` has names in
    `classes` (n,), 0 and 1 (n, K), or values; `groups` columns (n,) by name;
    `sample_weight` (n,) are weights of the rows in all measures.

    >>> teacher = [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]]
    >>> report = fidelity("classification", teacher, teacher[::-1], [0, 1, 1, 1])
    >>> report.measures["teacher"]["accuracy"], report.retention
    (Figure(value=0.75, std_error=0.25), 0.333...)
    """
    by_model = {"teacher": teacher, "student": student, "baseline": baseline, "trees": trees}
    data = comparison.align(task, by_model, y, classes, sample_weight)
    rare = rare_classes(data)
    parts = comparison.by_column(data) | comparison.by_group(data, groups or {})
    main, shares = retention(data, rare)
    if not math.isnan(shares[main].value):  # others do not stand in for one without a meaning
        main = min(shares, key=lambda name: (math.isnan(shares[name].value), shares[name].value))
    costs = (teacher_cost, student_cost, None, trees_cost)
    curves = {}
    if data.y is not None and task != "regression":
        results = {m: measures.outcomes(task, p, data.y) for m, p in data.by_model.items()}
        curves = {model: measures.curve(result) for model, result in results.items()}
    return Fidelity(
        **vars(comparison.compare(data, rare.rows)),
        task=task, classes=data.classes, names=NAMES | dict(names or {}),
        main=main, retention=shares[main].value, retention_error=shares[main].std_error,
        retention_by=shares,
        rarest=rare.rarest, worst=rare.worst, unchecked=rare.unchecked,
        costs={model: cost or Cost() for model, cost in zip(NAMES, costs, strict=True)},
        by_class=comparison.by_class(data), by_group=parts,
        worse=[
            (column, group) for column, groups in parts.items() for group, part in groups.items()
            if part.rows >= comparison.SMALL
            and comparison.advantage(task, data.y is not None, part) < -comparison.ERRORS
        ],
        calibration=curves, disagreements=_disagreements(data), pairs=_pairs(data),
        notes=list(notes),
    )  # fmt: skip


def _disagreements(data: Predictions) -> list[dict[str, Any]]:
    r"""The 20 rows on which predictions differ most, with both predictions and the label."""
    teacher, student = (data.by_model[model] for model in ("teacher", "student"))
    gap = np.abs(teacher - student)
    size = gap.sum(1) / 2 if data.task == "classification" else gap.mean(1)  # ½Σ: 0 to 1
    rows = np.argsort(-size, kind="stable")[: min(20, np.count_nonzero(size > 0))].tolist()
    columns = {"size": size, "teacher": teacher, "student": student}
    if data.y is not None:
        names = [data.classes[k] for k in data.y.argmax(1)]
        columns["label"] = names if data.task == "classification" else data.y
    return plain([{"row": row} | {name: c[row] for name, c in columns.items()} for row in rows])


def _pairs(data: Predictions) -> dict[str, Any]:
    r"""Joint predictions for pictures: counts of classes, shares of labels, or values."""
    teacher, student = (data.by_model[model] for model in ("teacher", "student"))
    if data.task == "regression":
        size = min(len(teacher), max(1000 // teacher.shape[1], 100))
        rows = np.sort(np.random.default_rng(0).choice(len(teacher), size, replace=False))
        return plain({"teacher": teacher[rows], "student": student[rows]})
    if data.task == "multilabel":
        one, two = teacher > 0.5, student > 0.5
        return plain({"teacher": (one & ~two).mean(0), "student": (two & ~one).mean(0)})
    k, shown = len(data.classes), 20
    names, place = list(map(str, data.classes)), np.arange(k)
    one, two = teacher.argmax(1), student.argmax(1)
    if k > shown:  # the classes with most disagreements, and one for all others
        apart = sum(np.bincount(part[one != two], minlength=k) for part in (one, two))
        first = np.sort(np.argsort(-apart, kind="stable")[: shown - 1])
        place = np.full(k, shown - 1)
        place[first] = np.arange(shown - 1)
        names = [*(names[c] for c in first), f"other ({k - shown + 1})"]
    counts = np.zeros((len(names), len(names)), dtype=int)
    np.add.at(counts, (place[one], place[two]), 1)
    return plain({"classes": names, "counts": counts, "differ": np.count_nonzero(one != two)})


@dataclass(frozen=True)
class RareClasses:
    r"""Results of the check of rare classes; without labels the teacher's classes are the truth."""

    rarest: ClassCount | None = None  # of those with enough rows
    worst: ClassCount | None = None  # it loses the largest part of its recall
    unchecked: list[ClassCount] = field(default_factory=list)  # too few rows
    rows: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)  # (n,), by model and name
    lost: bool = False  # the worst is clearly below all rows: chance alone makes one the worst


def rare_classes(data: Predictions) -> RareClasses:
    r"""Check the rarest class, or side of a label, with enough rows; list those with too few."""
    if data.task == "regression":
        return RareClasses()
    single = data.task == "classification"

    def sides(p: np.ndarray) -> np.ndarray:
        r"""Columns of classes; or of labels, and then of the rows without each."""
        return p if single else np.hstack([p, 1 - p])

    truth = sides(data.decisions(data.truth).astype(float))
    used = np.broadcast_to(data.weight, len(truth)) > 0
    counts = truth[used].sum(0).astype(int)
    kind = ("" if data.y is not None else "the teacher's ") + ("class" if single else "label")
    short = [str(n) if len(str(n)) <= 16 else f"{str(n)[:15]}…" for n in data.classes]
    titles = [f"{kind} {name}" for name in short]
    titles += [] if single else [f"rows without {title}" for title in titles]
    names = data.classes if single else data.classes * 2
    tallies = list(map(ClassCount, names, titles, counts.tolist()))
    # the most common class, or the larger side of a label, is not a rare one
    common = np.arange(len(counts)) == counts.argmax()
    if not single:
        more = 2 * counts[: len(data.classes)] > used.sum()
        common = np.concatenate([more, ~more])
    detected = {m: sides(data.decisions(p).astype(float)) for m, p in data.by_model.items()}
    worst, lost = _worst(data, counts, truth, detected)
    enough = counts >= MIN_CLASS_ROWS
    enough[worst] |= lost  # fewer rows can show a large loss
    unchecked = [tallies[k] for k in np.flatnonzero(~enough) if single or not common[k]]
    rare = np.flatnonzero(enough & ~common).tolist()
    if not rare:
        return RareClasses(unchecked=unchecked)
    rarest = min(rare, key=lambda k: counts[k])
    rows, w, teacher = {}, data.weight, data.by_model["teacher"]
    in_rarest, weights = truth[:, rarest] > 0, (w * truth[:, k] for k in (rarest, worst))
    of_rarest, of_worst = (weight / weight.mean() for weight in weights)
    column = slice(None) if single else [rarest % len(data.classes)]
    divergence = measures.MEASURES["kl"].rows[data.task]
    for model, p in data.by_model.items():
        if data.y is None and model == "teacher":  # which is the truth
            continue
        rows[model] = {
            "average_precision": measures.average_precision(sides(p)[:, rarest], in_rarest, w),
            "rare_recall": weighted(detected[model][:, rarest], of_rarest),
            "worst_recall": weighted(detected[model][:, worst], of_worst),
        }
        if model != "teacher":
            kl = divergence(teacher[:, column], p[:, column])
            rows[model]["rare_kl"] = weighted(kl, of_rarest)
    return RareClasses(tallies[rarest], tallies[worst], unchecked, rows, lost)


def _worst(
    data: Predictions, counts: np.ndarray, truth: np.ndarray, detected: Mapping[str, np.ndarray]
) -> tuple[int, bool]:
    r"""The class with the least retention of recall, clear cases first, and whether it is clear.

    Classes of too few rows for a figure take part if they clearly lost recall.
    """
    if data.y is None:
        overall = data.rows["student"]["agreement"].mean()
    else:  # the retention of right answers over all rows; 1 at most
        right, teacher_right = (data.rows[m]["accuracy"] for m in ("student", "teacher"))
        overall = min(1.0, right.mean() / teacher_right.mean()) if teacher_right.any() else math.nan

    def rank(k: int) -> tuple[bool, float, int, int]:
        members = truth[:, k] > 0
        # without labels the teacher is the truth, and so detects every member
        w = data.weights(members)
        hits, teacher_hits = (detected[m][members, k] for m in ("student", "teacher"))
        gap = mean(weighted(hits - overall * teacher_hits, w))
        clear = gap.value < 0 and -gap.value > 3 * gap.std_error
        most = (w * teacher_hits).mean()
        share = (w * hits).mean() / most if most > 0 else math.inf
        return not clear, share, int(members.sum()), k

    large = np.flatnonzero(counts >= LEAST_ROWS).tolist()
    classes = [k for k in large if counts[k] >= MIN_CLASS_ROWS or not rank(k)[0]]
    if not classes:
        return int(counts.argmax()), False
    worst = min(classes, key=rank)
    return worst, not rank(worst)[0]


def retention(data: Predictions, rare: RareClasses) -> tuple[str, dict[str, Figure]]:
    r"""The measure over all rows, and the fraction of the teacher's that is left, by measure."""
    regression = data.task == "regression"
    overall = "r2" if regression else "accuracy"
    teacher, student = (data.rows[m] | rare.rows.get(m, {}) for m in ("teacher", "student"))
    if overall not in teacher or np.isnan(teacher[overall]).any():  # no labels, or no variation
        overall = "teacher_r2" if regression else "agreement"
    names = [overall, *(name for name in rare.rows.get("student", {}) if name != "rare_kl")]
    if "worst_recall" in names and (not rare.lost or rare.worst == rare.rarest):
        names.remove("worst_recall")
    return overall, {name: ratio(student[name], teacher.get(name)) for name in names}
