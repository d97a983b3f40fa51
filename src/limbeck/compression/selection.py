r"""Which inputs, columns and student: those nearest to the teacher at rows held out."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from limbeck.arrays import join, part_of, rows
from limbeck.compression import training as trainer
from limbeck.compression.compressed import Compressed
from limbeck.compression.fidelity.cost import bytes_on_disk, latencies
from limbeck.compression.fidelity.measures import MEASURES, average_precision
from limbeck.compression.generators import fresh
from limbeck.compression.rows import Rows, TableFormat
from limbeck.compression.students import Forest, encoded, predictions, sizes, tensor_bytes
from limbeck.compression.training import Problem, Recipe, train
from limbeck.errors import ArgumentError
from limbeck.models.tree_fit import LightGBMGrower, tree_grower
from limbeck.progress import tracked
from limbeck.tables.reading import repeated_numbers
from limbeck.tables.table import Table
from limbeck.training.config import Training
from limbeck.training.result import Result

DEFAULT, LARGER = (50, 30), (200, 100)  # nets
PROBE, FOREST, LARGER_FOREST = Forest(50, 31), Forest(100, 31), Forest(300, 63)
ENOUGH = 0.9  # agreement or R², and the share of a rare class's average precision: less is poor
MIN_COMPARED = 50  # held-out rows by which another student than the default is taken
MIN_GAIN = 0.9  # of the divergence: another student must have less
PROBE_GAIN = 1.2  # of the divergence of a forest of few inputs: one of all comes nearer
TINY = np.finfo(float).tiny
MAX_WIDTH = 1000  # features up to which forests are tried
RARE, MIN_EXPECTED = 0.2, 10  # a rare class: its share at most, and its expected rows at least
MIN_POOL, PILOT_STEPS = 10_000, 400  # inputs and steps of the short runs
# categories take more bytes and know no other values: the most of a divergence and the least gain
MOST_RATIO, LEAST_GAIN = 0.75, 0.005
MAX_ROWS = 2000  # of the training, that a student is compared on where none were held out
Trials = list[dict[str, Any]]  # candidates, with their measures on held-out rows


class Scores(NamedTuple):
    r"""How near a student's predictions are to its teacher's."""

    divergence: float  # KL, or 1 − R²
    fidelity: float  # agreement, or R²


@dataclass(frozen=True)
class Attempt:
    r"""A trained student and how near it is to its teacher at held-out rows."""

    problem: Problem
    recipe: Recipe
    result: Result
    at_rows: Scores  # at held-out rows
    divergence: float  # the geometric mean of that and of the same at mixtures of these rows
    fidelity: float  # the higher of the two

    def trial(self) -> dict[str, Any]:
        r"""Its entry among those tried."""
        spec = self.recipe.student
        name = str(spec) if isinstance(spec, Forest) else spec
        scores = {"retention": self.fidelity, "divergence": self.divergence}
        return {"student": name, **scores, "bytes": bytes_on_disk(self.result.student)}


def attempt(problem: Problem, recipe: Recipe, result: Result | None = None) -> Attempt:
    r"""A student of a recipe, trained unless its result is given, and compared."""
    result = train(problem, recipe) if result is None else result
    scores = [_scores(problem.teacher.task, *part) for part in _compared(problem, result)]
    divergences = np.maximum([score.divergence for score in scores], TINY)
    divergence = float(np.exp(np.log(divergences).mean()))
    fidelity = max(score.fidelity for score in scores)
    return Attempt(problem, recipe, result, scores[0], divergence, fidelity)


def _scores(task: str, t: np.ndarray, p: np.ndarray) -> Scores:
    r"""The scores of predictions p by a teacher's t."""
    if task == "regression":
        error = ((t - p) ** 2).mean(0) / np.maximum(t.var(0), TINY)
        return Scores(float(error.mean()), 1 - float(error.mean()))
    kl, agreement = (MEASURES[name].rows[task](t, p).mean() for name in ("kl", "agreement"))
    return Scores(float(kl), float(agreement))


def _compared(problem: Problem, result: Result) -> list[tuple[np.ndarray, np.ndarray]]:
    r"""The teacher's and the student's predictions at held-out rows, and at mixtures of them.

    A teacher that has memorised the rows is easier to follow at mixtures, as at new rows. Where no
    rows are held out, predictions are compared at rows of the training.
    """
    if problem.held_out is None:
        x, t, n = part_of(problem.x, 0, MAX_ROWS), problem.targets[:MAX_ROWS], MAX_ROWS
    else:
        x, t, n = problem.held_out, problem.held_out_targets, problem.held_out_count
    form = result.settings.get("student_output")
    p = predictions(result.student, x, problem.teacher.task, form)
    return [(t[:n], p[:n])] + ([(t[n:], p[n:])] if len(t) > n else [])


def best_inputs(problem: Problem, recipe: Recipe, names: list[str]) -> tuple[Recipe, Trials]:
    r"""The recipe with the best inputs of short runs, and the measures of all candidates."""
    if problem.held_out is None or len(names) == 1:
        return replace(recipe, inputs="munge" if "munge" in names else names[0]), []
    scores = {}
    for name in tracked(names, "trying inputs", problem.query.progress):
        scores[name] = _pilot(problem, replace(recipe, inputs=name), f"inputs-{name}", mixed=True)
    training = in_folder(recipe.training, "student")  # not among those of the short runs
    best = min(scores, key=lambda name: scores[name])
    tried = [{"inputs": name, "divergence": score} for name, score in scores.items()]
    return replace(recipe, inputs=best, training=training), tried


def best_columns(
    problem: Problem, recipe: Recipe, data: Rows
) -> tuple[Problem, Trials, str | None]:
    r"""The problem with repeated numbers as categories, if short runs say so; and a note on it."""
    layout, x = problem.format, problem.held_out
    names: list[Any] = []
    if isinstance(layout, TableFormat) and layout.array is None and isinstance(x, dict):
        names = repeated_numbers(layout.table.numbers, problem.x)  # type: ignore[arg-type]
    if not names:
        return problem, [], None
    table = Table(data.given, categories=names)
    coded = TableFormat(table, dtypes=layout.dtypes)  # type: ignore[union-attr]
    held_out = coded.encode(problem.held_out_given)
    mixed = fresh("munge", coded, held_out, rows(held_out), problem.seed)
    as_codes = replace(
        problem, format=coded, x=coded.encode(problem.given), held_out=join([held_out, mixed])
    )
    as_codes.targets = problem.targets
    shown = ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if names[3:] else "")
    scores = {}
    short = replace(recipe, training=replace(recipe.training, checkpoint=None))
    choices = {"numbers": problem, "categories": as_codes}
    for kind in tracked(list(choices), "trying columns", problem.query.progress):
        scores[kind] = _pilot(choices[kind], short, kind)
    tried = [{"columns": f"{shown} as {k}", "divergence": score} for k, score in scores.items()]
    gain = scores["numbers"] - scores["categories"]
    if gain < LEAST_GAIN or scores["categories"] > MOST_RATIO * scores["numbers"]:
        return problem, tried, None
    text = f"Note: numbers of {shown} are treated as categories, which is nearer to the teacher"
    return as_codes, tried, f"{text}; table=limbeck.Table(X) keeps them as numbers."


def _pilot(problem: Problem, recipe: Recipe, name: str, mixed: bool = False) -> float:
    r"""The divergence of a student after a short run with fewer inputs."""
    student = DEFAULT if trainer.is_auto(recipe.student) else recipe.student
    training = replace(in_folder(recipe.training, name), progress=False, callbacks=None)
    pool = min(recipe.pool, max(MIN_POOL, 2 * rows(problem.x)))
    steps = min(PILOT_STEPS, recipe.steps or PILOT_STEPS)
    short = replace(recipe, student=student, pool=pool, steps=steps, training=training)
    parts = _compared(problem, train(problem, short))[: None if mixed else 1]
    t, p = (np.concatenate(part) for part in zip(*parts, strict=True))
    return _scores(problem.teacher.task, t, p).divergence


def _forests(problem: Problem) -> bool:
    r"""Whether boosted forests are among the students: LightGBM is fast enough to try them."""
    if problem.live or tree_grower() is not LightGBMGrower:
        return False
    encoder = problem.format.encoder("one_hot")
    first = encoded(part_of(problem.x, 0, 1), encoder)
    flat = not isinstance(problem.x, Tensor) or problem.x.ndim == 2
    return flat and first.shape[1] <= MAX_WIDTH


def nearer_student(
    problem: Problem, plain: Problem, recipe: Recipe, result: Result
) -> tuple[Attempt, Trials, str | None]:
    r"""The default student or, where it is nearer to the teacher, a forest or a larger student.

    A small forest is fitted to few inputs, in a second; only if it is nearly as near as the net,
    one is fitted to all inputs. Only if the nearest is poor, larger ones are tried. Trees split
    numbers as they are: forests are fitted to the `plain` problem, without categories made of
    numbers.
    """
    first = best = attempt(problem, recipe, result)
    if problem.held_out is None or problem.held_out_count < MIN_COMPARED:
        return first, [], None
    others, forests = list[Attempt](), _forests(plain)

    def compare(problem: Problem, recipe: Recipe) -> None:
        nonlocal best
        others.append(other := attempt(problem, recipe))
        # clearly nearer, and not at mixtures alone, which may be unlike rows
        at_rows = other.at_rows.divergence <= best.at_rows.divergence
        best = other if at_rows and other.divergence < MIN_GAIN * best.divergence else best

    if forests:
        pool = min(recipe.pool, 2 * rows(plain.x))
        probe = attempt(plain, replace(recipe, student=PROBE, pool=pool))
        if probe.divergence < PROBE_GAIN * best.divergence:
            compare(plain, replace(recipe, student=FOREST))
    if forests and best.fidelity < ENOUGH:
        compare(plain, replace(recipe, student=LARGER_FOREST))
    if best.fidelity < ENOUGH:
        training = in_folder(recipe.training, "larger")
        compare(problem, replace(recipe, student=LARGER, training=training))
    tried = [part.trial() for part in [first, *others]] if others else []
    if best is first:
        return best, tried, None
    spec = best.recipe.student
    name = str(spec) if isinstance(spec, Forest) else f"a net {spec}"
    measure = "R²" if problem.teacher.task == "regression" else "agreement"
    return best, tried, (
        f"Note: the student is {name}, nearer to the teacher at held-out rows ({measure} "
        f"{best.fidelity:.3f}) than the default net {DEFAULT} ({first.fidelity:.3f}); "
        f"student={DEFAULT} takes the net."
    )  # fmt: skip


def grow_student(
    problem: Problem, recipe: Recipe, *, keep: float, max_bytes: int | None,
    max_latency: float | None,
) -> tuple[Attempt, Trials]:  # fmt: skip
    r"""The smallest net or forest within limits that retains enough; else the nearest."""
    if problem.held_out is None:
        count, least = rows(problem.x), trainer.MIN_HELD_OUT
        expected = f"for student='auto' so many that held_out_fraction takes {least} or more"
        if count >= 2 * least:
            expected += f", as held_out_fraction={math.ceil(100 * least / count) / 100:g} does"
        raise ArgumentError("X", f"{count} rows, too few to hold some out", expected)
    outputs, task = problem.teacher.outputs, problem.teacher.task
    encoder = problem.format.encoder(data=problem.x)
    forests = _forests(problem)
    if max_bytes is not None and max_bytes < min(sizes(problem.x, outputs, task, encoder).values()):
        problem, encoder = copy.copy(problem), problem.format.encoder()  # knots take too much
        problem.encoder = encoder
    tried: Trials = []
    nearest: Attempt | None = None
    latest: dict[bool, float] = {}  # divergences of nets and of forests
    ended: set[bool] = set()  # kinds whose larger students are no nearer, or too slow
    for size in sizes(problem.x, outputs, task, encoder, max_bytes, forests):
        kind = isinstance(size, Forest)
        if kind in ended:
            continue
        name = str(size) if kind else "-".join(map(str, size))  # type: ignore[arg-type]
        own = replace(recipe, student=size, training=in_folder(recipe.training, name))
        candidate = attempt(problem, own)
        result, entry = candidate.result, candidate.trial()
        tried.append(entry)
        if candidate.divergence > 0.95 * latest.get(kind, math.inf):
            ended.add(kind)
        latest[kind] = candidate.divergence
        if max_latency is not None:
            entry["latency"] = one_row(Compressed.of(result, problem, own))
            if entry["latency"] > max_latency:
                ended.add(kind)
                continue
        if max_bytes is not None and kind and tensor_bytes(result.student) > max_bytes:
            continue
        if nearest is None or candidate.divergence < nearest.divergence:
            nearest = candidate
        if candidate.at_rows.fidelity >= keep:
            nearest = candidate
            break
    if nearest is None:
        assert max_latency is not None
        least = math.ceil(min(entry["latency"] for entry in tried))
        expected = f"{least} or more microseconds: what one row takes the fastest student that "
        expected += "max_bytes allows, in `predict` on this machine"
        raise ArgumentError("max_latency", f"{max_latency:g}", expected)
    return nearest, tried


def one_row(small: Compressed) -> float:
    r"""Microseconds of one row in `Compressed.predict`."""
    assert small.problem is not None
    calls, given = {"student": small._predictions}, small.problem.held_out_given
    return 1e6 * latencies(calls, given, (1,), seconds=0.05)["student"][1]


def in_folder(training: Training, name: str) -> Training:
    r"""The settings with a separate folder for checkpoints, if these are written."""
    if training.checkpoint is None:
        return training
    return replace(training, checkpoint=Path(training.checkpoint) / name)


def verdict(problem: Problem, result: Result, classes: np.ndarray | None) -> list[str]:
    r"""Sentences on a student that is far from its teacher, as far as rows are there to tell."""
    size, notes = rows(problem.x), list[str]()
    if problem.held_out is None and size < trainer.MIN_HELD_OUT:
        number = "one row" if size == 1 else f"{size} rows"
        notes = [f"Unchecked: {number} cannot show what the student does at others; see report(X)."]
    unmixed = problem.labels is None and "targets" in vars(problem)
    if problem.held_out is None and not unmixed:
        return notes  # no rows have the teacher's own targets, and none are labelled only for this
    parts, task = _compared(problem, result), problem.teacher.task
    (t, p), n = parts[0], len(parts[0][0])
    where = f"{n:,} {'training' if problem.held_out is None else 'held-out'} rows"
    most = "" if len(parts) == 1 else " at most"  # the higher of two is reported
    advice = 'try student="auto", a larger student such as (200, 100), or more rows'
    fidelity = max(_scores(task, *part).fidelity for part in parts)
    if fidelity < ENOUGH and (task != "regression" or t.var() > 0):
        about = f"an R² of{most} {fidelity:.3f} to" if task == "regression" else ""
        about = about or f"an agreement of{most} {fidelity:.1%} with"
        notes.append(
            f"Doubtful: at {where} the student has {about} its teacher, below {ENOUGH}; {advice}."
        )
    share = t.mean(0)
    rare = [k for k in range(t.shape[1]) if MIN_EXPECTED / n <= share[k] <= RARE]
    if task != "regression" and rare:
        k = min(rare, key=lambda k: share[k])
        student, teacher = (average_precision(q[:, k], t[:, k]).mean() for q in (p, t))
        if student < ENOUGH * teacher:
            name = k if classes is None else classes[k]
            retained = f"{student / teacher:.0%} of its teacher's average precision"
            notes.append(
                f"Doubtful: at {where} the student retains {retained} for the rare class "
                f"{str(name)!r}, below 90%; {advice}."
            )
    return notes
