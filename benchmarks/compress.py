r"""Forests and boosted models compressed into a small net and into one tree, on five data sets.

Repeated cross-validation measures the teacher, the student, and the same student trained on labels
alone or by hand (a plain PyTorch loop over the rows with the teacher's soft labels and early
stopping), and how much faster and smaller the student is. With `--autogluon PYTHON`, an interpreter
with AutoGluon, it also measures AutoGluon's distillation of the same teacher in the first three
folds. All data sets come with scikit-learn, and all are compressed with the same options. One JSON
line per figure is written to standard output, and a table to standard error.

    python benchmarks/compress.py [--quick] [--only NAME] > benchmarks/results/compress-cpu.jsonl
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import statistics
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from compress_others import HIDDEN, RATE, STEPS, Fold, by_autogluon, by_hand
from rich.console import Console
from rich.table import Table
from sklearn import datasets
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import RepeatedKFold, RepeatedStratifiedKFold
from timing import machine, report

from limbeck.compression.compress import compress
from limbeck.compression.compressed import Compressed
from limbeck.compression.dispatch import as_row_teacher
from limbeck.compression.fidelity.cost import bytes_on_disk, latencies
from limbeck.models import Preprocessed

OPTIONS = {
    "inputs": "munge", "pool": 20_000, "steps": STEPS, "lr": RATE, "held_out_fraction": 0.0,
    "engine": "compiled", "device": "cpu", "progress": False,
}  # fmt: skip
STUDENTS = {"net": HIDDEN, "tree": "tree", "small boosted forest": "boosted"}
SPLITS = 3
WIDTH = 24  # of AutoGluon's net: two such layers are about (32, 16)
TEACHERS = {
    ("forest", False): lambda: RandomForestClassifier(300, random_state=0),
    ("forest", True): lambda: RandomForestRegressor(300, random_state=0),
    ("boosted", False): lambda: HistGradientBoostingClassifier(max_iter=300, random_state=0),
    ("boosted", True): lambda: HistGradientBoostingRegressor(max_iter=300, random_state=0),
}
KEPT, FASTER, SMALLER = 0.98, 20, 50  # what must be shown, the first in four of five data sets

DATA = {
    "digits": lambda: datasets.load_digits(return_X_y=True),
    "breast cancer": lambda: datasets.load_breast_cancer(return_X_y=True),
    "four classes": lambda: datasets.make_classification(
        2000, 20, n_informative=8, n_redundant=4, n_classes=4, class_sep=1.5, random_state=0
    ),
    "Friedman 1": lambda: datasets.make_friedman1(1500, noise=1.0, random_state=0),
    "diabetes": lambda: datasets.load_diabetes(return_X_y=True),
}
VALUES = {"Friedman 1", "diabetes"}


def folds(name: str, repeats: int) -> Iterator[Fold]:
    X, y = DATA[name]()
    kind = RepeatedKFold if name in VALUES else RepeatedStratifiedKFold
    splits = kind(n_splits=SPLITS, n_repeats=repeats, random_state=0).split(X, y)
    for seed, (a, b) in enumerate(splits):
        yield Fold(X[a], y[a], X[b], y[b], seed)


def seconds(predictor: Any, student: Compressed, X: np.ndarray) -> dict[str, dict[int, float]]:
    r"""Times of teacher and student, and of a net as an ONNX file, at batch 1 and 1,000."""
    calls = {
        "teacher": predictor,
        "student": student.predict if student.task == "regression" else student.predict_proba,
    }
    if isinstance(student.student, Preprocessed) and find_spec("onnxruntime"):
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = 1
        with tempfile.TemporaryDirectory() as folder:
            path = str(student.export(Path(folder) / "student.onnx"))
            session = onnxruntime.InferenceSession(path, settings)
        name = session.get_inputs()[0].name
        calls["exported"] = lambda X: session.run(None, {name: X.astype(np.float32)})
    return latencies(calls, X, seconds=0.3)


class Scores(dict[str, list[float]]):
    r"""Measures by name, one number for each fold."""

    def add(self, **values: float) -> None:
        for name, value in values.items():
            self.setdefault(name, []).append(value)

    def mean(self, name: str) -> float:
        return statistics.mean(self[name])

    def error(self, name: str) -> float:
        return statistics.stdev(self[name]) / math.sqrt(len(self[name]))

    def kept(self, name: str) -> tuple[float, float]:
        r"""The ratio of means to the teacher's, and its standard error over folds."""
        ratio = self.mean(name) / self.mean("teacher")
        pairs = zip(self[name], self["teacher"], strict=True)
        left = [(one - ratio * other) / self.mean("teacher") for one, other in pairs]
        return ratio, statistics.stdev(left) / math.sqrt(len(left))


def compare(
    name: str, repeats: int, autogluon: str | None = None
) -> dict[tuple[str, str], tuple[Scores, dict[str, float]]]:
    r"""All teachers and students on one data set; the costs are those of the first fold."""
    regression = name in VALUES
    measure = r2_score if regression else accuracy_score
    scores: dict[tuple[str, str], Scores] = {}
    costs: dict[tuple[str, str], dict[str, float]] = {}
    for fold in folds(name, repeats):
        labels = fold.y[:, None] if regression else np.eye(1 + fold.y.max())[fold.y]
        alone = {"net": measure(fold.y_test, by_hand(fold, labels, regression)(fold.X_test))}
        for kind in ("forest", "boosted"):
            teacher = TEACHERS[kind, regression]().fit(fold.X, fold.y)
            predictor = as_row_teacher(teacher, fold.X[:1])
            said = predictor.predict(fold.X_test)
            hand = by_hand(fold, predictor(fold.X), regression)(fold.X_test)
            for student, spec in STUDENTS.items():
                made = compress(teacher, fold.X, spec, seed=fold.seed, **OPTIONS)
                if student not in alone:  # the same beside all teachers
                    direct = made.on_labels(fold.y)
                    alone[student] = measure(fold.y_test, direct.predict(fold.X_test))
                found = made.predict(fold.X_test)
                own = scores.setdefault((kind, student), Scores())
                own.add(
                    teacher=measure(fold.y_test, said),
                    student=measure(fold.y_test, found),
                    labels=alone[student],
                    agreement=measure(said, found),
                )
                if student == "net":
                    own.add(by_hand=measure(fold.y_test, hand))
                    own.add(agreement_by_hand=measure(said, hand))
                    if autogluon is not None and fold.seed < SPLITS:
                        X, X_test = (pd.DataFrame(x).add_prefix("x") for x in (fold.X, fold.X_test))
                        theirs = by_autogluon(
                            teacher, X, fold.y, X_test, regression=regression, width=WIDTH,
                            seed=fold.seed, python=autogluon, arrays=True,
                        )  # fmt: skip
                        theirs = theirs[:, 0] if regression else theirs.argmax(1)
                        own.add(autogluon=measure(fold.y_test, theirs))
                        own.add(agreement_autogluon=measure(said, theirs))
                if (kind, student) not in costs:
                    costs[kind, student] = cost(predictor, made, fold.X_test)
    return {key: (scores[key], costs[key]) for key in scores}


def cost(predictor: Any, made: Compressed, X: np.ndarray) -> dict[str, float]:
    took = seconds(predictor, made, X)
    smaller = predictor.bytes() / bytes_on_disk(made.student)
    ratios = {
        f"{who}_{size}": took["teacher"][size] / took[who][size]
        for who in ("student", "exported") if who in took
        for size in (1, 1000)
    }  # fmt: skip
    milliseconds = {f"milliseconds_{who}": 1e3 * took[who][1] for who in took}
    return {"smaller": smaller, **{f"faster_{k}": v for k, v in ratios.items()}, **milliseconds}


HEADS = (
    "data", "teacher", "student", "teacher's", "student's", "kept", "on labels", "by hand",
    "AutoGluon", "agreement", "by hand", "faster at 1", "at 1,000", "as ONNX at 1", "smaller",
)  # fmt: skip
MEASURES = ("labels", "by_hand", "autogluon", "agreement", "agreement_by_hand")
DEMANDED = ("faster_student_1", "faster_exported_1", "smaller")
COSTS = ("faster_student_1", "faster_student_1000", "faster_exported_1", "smaller")


def beside(own: Scores) -> dict[str, float]:
    r"""The measures of other students in the folds in which AutoGluon was run."""
    count = len(own.get("autogluon", ()))
    others = [name for name in own if "autogluon" not in name and count]
    return {f"{name}_beside": statistics.mean(own[name][:count]) for name in others}


def row(name: str, key: tuple[str, str], own: Scores, costs: dict[str, float]) -> list[str]:
    ratio, error = own.kept("student")
    measured = [f"{own.mean(n):.3f}" for n in ("teacher", "student")]
    beside = [f"{own.mean(n):.3f}" if n in own else "–" for n in MEASURES]
    times = [f"{costs[n]:.0f}×" if n in costs else "–" for n in COSTS]
    return [name, *key, *measured, f"{100 * ratio:.1f} ± {100 * error:.1f}%", *beside, *times]


def demands(figures: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    r"""The targets for all data sets together, and the values reached."""
    pairs: dict[str, list[dict[str, Any]]] = {}
    for each in figures:
        pairs.setdefault(each["figure"].split(": ")[1], []).append(each)
    for pair, found in pairs.items():
        wanted = f"98% of the teacher's measure in {len(DATA) - 1} of {len(DATA)}"
        count = sum(each["kept"] >= KEPT for each in found)
        yield {"figure": f"{pair}: data sets with 98% kept", "count": count, "must": wanted}
    for pair, found in pairs.items():
        for what in DEMANDED:
            if values := [each[what] for each in found if what in each]:
                yield {
                    "figure": f"{pair}: {what}, the least and the median", "least": min(values),
                    "median": statistics.median(values),
                    "must": f"at least {SMALLER if what == 'smaller' else FASTER}",
                }  # fmt: skip


def measured(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    r"""A line for each data set, teacher and student; and a table of them."""
    table = Table(*HEADS, title="compressed; accuracy or R², mean over folds")
    for name in [options.only] if options.only else DATA:
        for key, (own, costs) in compare(
            name, 1 if options.quick else 2, options.autogluon
        ).items():
            ratio, error = own.kept("student")
            yield {
                "figure": f"{name}: {key[0]} into a {key[1]}",
                "measure": "R²" if name in VALUES else "accuracy",
                "folds": len(own["teacher"]), "kept": ratio, "kept_error": error,
                **{n: own.mean(n) for n in own}, **{f"{n}_error": own.error(n) for n in own},
                **beside(own), **costs,
            }  # fmt: skip
            table.add_row(*row(name, key, own, costs))
    Console(stderr=True, width=200).print(table)


def joined(paths: list[Path]) -> Iterator[dict[str, Any]]:
    r"""The lines of earlier runs, each of some data sets."""
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            if "kept" in (found := json.loads(line)):
                yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three folds, once")
    parser.add_argument("--only", choices=DATA, help="one data set")
    parser.add_argument("--autogluon", metavar="PYTHON", help="a Python that has AutoGluon")
    parser.add_argument("--join", nargs="+", type=Path, help="runs of single data sets, as one")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    began, figures = time.perf_counter(), []
    report("machine", **machine())
    for line in joined(options.join) if options.join else measured(options):
        figures.append(line)
        report(**line)
    for line in demands(figures):
        report(**line)
    if not options.join:
        report("whole run", seconds=time.perf_counter() - began)


if __name__ == "__main__":
    main()
