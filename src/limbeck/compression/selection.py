r"""Which inputs, columns and student: those nearest to the teacher at rows held out."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from limbeck.arrays import part_of, rows
from limbeck.compression import training as trainer
from limbeck.compression.compressed import Compressed
from limbeck.compression.fidelity.cost import bytes_on_disk, latencies
from limbeck.compression.fidelity.measures import MEASURES, average_precision
from limbeck.compression.generators import candidates
from limbeck.compression.rows import Rows, TableFormat
from limbeck.compression.students import (
    Forest,
    Size,
    encoded,
    is_net,
    predictions,
    sizes,
    tensor_bytes,
)
from limbeck.compression.training import Problem, Recipe, train
from limbeck.errors import ArgumentError
from limbeck.models.tree_fit import lightgbm
from limbeck.progress import tracked
from limbeck.tables.reading import repeated_numbers
from limbeck.tables.table import Table
from limbeck.teachers.keys import select
from limbeck.text import listed
from limbeck.training.result import Result

DEFAULT, LARGER, LARGEST = (50, 30), (100, 50), (200, 100)  # nets
PROBE, FOREST, LARGER_FOREST = Forest(50, 31), Forest(100, 31), Forest(300, 63)
ENOUGH = 0.9  # agreement or R², and the share of a rare class's average precision: less is poor
NEAR = 0.002  # of the teacher's variation: what a larger student is not trained for
# of a larger net, steps times weights: ten seconds of one core; and what a step takes besides
MOST_WORK, STEP_WORK = 8e8, 25_000
MOST_CELLS = 1_500_000  # inputs times columns up to which a large forest takes a few seconds
FEW_ROWS = 200  # of fewer, none are held out by default
MIN_COMPARED = 50  # held-out rows by which another student than the default is taken
MIN_GAIN = 0.9  # of the divergence: another student has less
FOREST_GAIN = 0.5  # a forest in place of a net: it takes more bytes and follows the teacher's noise
MOST_OF_TEACHER = 0.5  # of its bytes: a student that takes more is not tried
# of the net's divergence: a probe has less if a forest, or a large one, is worth a try
PROBE_RATIO, LARGER_RATIO = 1.2, 2.0
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
    unexplained: float  # the divergence, by that of a student that gives the mean everywhere


@dataclass(frozen=True)
class Attempt:
    r"""A trained student and, once asked, how near it is to its teacher at held-out rows."""

    problem: Problem
    recipe: Recipe
    result: Result

    def compared(self) -> list[tuple[np.ndarray, np.ndarray]]:
        r"""Predictions of teacher and student at held-out rows, and perhaps at mixtures of these.

        A teacher that has memorised the rows is easier to follow at mixtures, as at new rows. Where
        no rows are held out, predictions are compared at rows of the training.
        """
        problem = self.problem
        if n := len(problem.held_out):
            x, t = problem.compared, problem.compared_targets
        else:
            x, t, n = part_of(problem.x, 0, MAX_ROWS), problem.targets[:MAX_ROWS], MAX_ROWS
        form = self.result.settings.get("student_output")
        p = predictions(self.result.student, x, problem.teacher.task, form)
        return [(t[:n], p[:n])] + ([(t[n:], p[n:])] if len(t) > n else [])

    @cached_property
    def parts(self) -> list[Scores]:
        r"""The scores at these rows, and perhaps mixtures."""
        return [_scores(self.problem.teacher.task, *part) for part in self.compared()]

    @property
    def divergence(self) -> float:
        r"""The geometric mean of divergences at rows and at mixtures."""
        divergences = np.maximum([part.divergence for part in self.parts], TINY)
        return float(np.exp(np.log(divergences).mean()))

    @property
    def fidelity(self) -> float:
        r"""The agreement or R², at rows or at mixtures, of which the higher one counts."""
        return max(part.fidelity for part in self.parts)

    @property
    def least(self) -> float:
        r"""The lower of the two."""
        return min(part.fidelity for part in self.parts)

    @property
    def near(self) -> bool:
        r"""Whether next to nothing is left to learn of the teacher's variation."""
        return min(part.unexplained for part in self.parts) < NEAR

    def trial(self) -> dict[str, Any]:
        r"""Its entry among those tried."""
        spec = self.recipe.student
        name = str(spec) if isinstance(spec, Forest) else spec
        scores = {"retention": self.fidelity, "divergence": self.divergence}
        return {"student": name, **scores, "bytes": bytes_on_disk(self.result.student)}


def attempt(problem: Problem, recipe: Recipe, module: object = None) -> Attempt:
    r"""A student of a recipe, or a module, trained to be compared."""
    return Attempt(problem, recipe, train(problem, recipe, module))


def _scores(task: str, t: np.ndarray, p: np.ndarray) -> Scores:
    r"""The scores of predictions p by a teacher's t."""
    if task == "regression":
        error = float((((t - p) ** 2).mean(0) / np.maximum(t.var(0), TINY)).mean())
        return Scores(error, 1 - error, error)
    kl, agreement = (MEASURES[name].rows[task] for name in ("kl", "agreement"))
    divergence, most = (float(kl(t, q).mean()) for q in (p, np.tile(t.mean(0), (len(t), 1))))
    return Scores(divergence, float(agreement(t, p).mean()), divergence / max(most, TINY))


def search(
    problem: Problem, recipe: Recipe, *, student: object, columns: bool, default: bool,
    **limits: Any,
) -> tuple[Attempt, Trials, list[str]]:  # fmt: skip
    r"""The trained student after the choices that are left to limbeck, what was tried, and notes.

    Kinds of `columns` are compared, and the `default` student with others; sizes within limits, the
    arguments of `grow_student`, for student="auto". Each choice adds to what was tried.
    """
    tried, notes, probe = Trials(), list[str](), None
    net = is_net(student)
    if trainer.is_auto(recipe.inputs):
        names = candidates(problem.format, problem.x, problem.live, recipe.pool)
        forests = net and student != "linear" and _forests(problem)
        recipe, probe = best_inputs(problem, recipe, names, forests, tried)
    plain = problem
    if columns and net and not problem.query.limited:
        problem, notes = best_columns(problem, recipe, tried)
    if trainer.is_auto(student):
        return grow_student(problem, recipe, tried, **limits), tried, notes
    best = first = attempt(problem, recipe, student)
    if default and recipe.training.seconds is None:
        best = nearer_student(first, plain, probe, tried)
    notes = notes if best.problem is problem else []
    if best is not first:
        spec = best.recipe.student
        name = str(spec) if isinstance(spec, Forest) else f"a net {spec}"
        measure = "R²" if problem.teacher.task == "regression" else "agreement"
        notes.append(
            f"Note: the student is {name}, nearer to the teacher at held-out rows ({measure} "
            f"{best.fidelity:.3f}) than the default net {DEFAULT} ({first.fidelity:.3f}); "
            f"student={DEFAULT} takes the net."
        )
    return best, tried, notes


def best_inputs(
    problem: Problem, recipe: Recipe, names: list[str], forests: bool, tried: Trials
) -> tuple[Recipe, Attempt | None]:
    r"""The recipe with the best inputs, and the best of small forests.

    A forest is fitted in a second, and mostly ranks inputs as nets do that are trained to the end.
    Others than "munge" have to be clearly nearer, and in a net's short run, too. Where there are no
    forests, short runs of nets are compared.
    """
    # with limits, each comparison would need queries of its own
    if not len(problem.held_out) or len(names) == 1 or problem.query.limited:
        return replace(recipe, inputs="munge" if "munge" in names else names[0]), None
    pilots, own = {}, replace(recipe, student=PROBE) if forests else recipe
    for name in tracked(names, "trying inputs", problem.query.progress):
        pilots[name] = _pilot(problem, replace(own, inputs=name), f"inputs-{name}")
    best = min(pilots, key=lambda name: pilots[name].divergence)
    if forests and pilots[best].divergence > MIN_GAIN * pilots["munge"].divergence:
        best = "munge"
    elif forests:
        pair = [replace(recipe, inputs=name) for name in ("munge", best)]
        runs = [_pilot(problem, each, f"net-{each.inputs}").divergence for each in pair]
        best = best if runs[1] < runs[0] else "munge"
    tried += [{"inputs": name, "divergence": pilot.divergence} for name, pilot in pilots.items()]
    recipe = in_folder(recipe, "student", inputs=best)  # not among those of the short runs
    return recipe, pilots[best] if forests else None


def best_columns(problem: Problem, recipe: Recipe, tried: Trials) -> tuple[Problem, list[str]]:
    r"""The problem with repeated numbers as categories, if short runs say so; with a note on it."""
    layout, names = problem.format, list[Any]()
    if isinstance(layout, TableFormat) and layout.array is None and len(problem.held_out):
        names = repeated_numbers(layout.table.numbers, problem.x)  # type: ignore[arg-type]
    if not names:
        return problem, []
    given = problem.data.given
    coded = TableFormat(Table(given, categories=names), dtypes=layout.dtypes)  # type: ignore[union-attr]
    as_codes = replace(problem, data=Rows(coded, coded.encode(given), given))
    as_codes.targets = problem.targets
    short = replace(recipe, training=replace(recipe.training, checkpoint=None))
    choices = tracked([problem, as_codes], "trying columns", problem.query.progress)
    numbers, codes = (_pilot(each, short, "columns").parts[0].divergence for each in choices)
    shown = listed(map(repr, names))
    tried.append({"columns": f"{shown} as numbers", "divergence": numbers})
    tried.append({"columns": f"{shown} as categories", "divergence": codes})
    if numbers - codes < LEAST_GAIN or codes > MOST_RATIO * numbers:
        return problem, []
    text = f"Note: numbers of {shown} are treated as categories, which is nearer to the teacher"
    return as_codes, [f"{text}; table=limbeck.Table(X) keeps them as numbers."]


def _pilot(problem: Problem, recipe: Recipe, name: str) -> Attempt:
    r"""A student after a short run with fewer inputs."""
    student = DEFAULT if trainer.is_auto(recipe.student) else recipe.student
    pool = min(recipe.pool, max(MIN_POOL, 2 * rows(problem.x)))
    steps = min(PILOT_STEPS, recipe.steps or PILOT_STEPS)
    short = in_folder(recipe, name, student=student, pool=pool, steps=steps)
    quiet = replace(short.training, progress=False, callbacks=None)
    return attempt(problem, replace(short, training=quiet))


def _forests(problem: Problem) -> bool:
    r"""Whether boosted forests are among the students: LightGBM is fast enough to try them."""
    if problem.live or lightgbm() is None:
        return False
    encoder = problem.format.encoder("one_hot")
    first = encoded(part_of(problem.x, 0, 1), encoder)
    flat = not isinstance(problem.x, Tensor) or problem.x.ndim == 2
    return flat and first.shape[1] <= MAX_WIDTH


def nearer_student(first: Attempt, plain: Problem, probe: Attempt | None, tried: Trials) -> Attempt:
    r"""The default student or, where it is nearer to the teacher, a forest or a larger student.

    A small forest, the probe, is fitted in a second; only if it is nearly as near as the net, a
    larger one is. Only if the nearest is not near, students are larger still. Trees split numbers
    as they are: forests are fitted to the `plain` problem, without categories made of numbers.
    None of them takes more than half of the teacher's bytes.
    """
    problem, recipe, best, others = first.problem, first.recipe, first, list[Attempt]()
    if len(problem.held_out) < MIN_COMPARED:
        return first
    teacher, limit = problem.teacher, problem.teacher.bytes()
    known = sizes(problem.x, teacher.outputs, teacher.task, problem.encoder)

    def compare(problem: Problem, student: Size, steps: int | None = None) -> None:
        nonlocal best
        forest = isinstance(student, Forest)
        size = student.bytes(teacher.outputs) if forest else known[student]  # type: ignore[union-attr]
        if limit is not None and size > MOST_OF_TEACHER * limit:
            return
        own = in_folder(recipe, str(student), student=student, steps=steps)
        others.append(other := attempt(problem, own))
        # clearly nearer, and not at mixtures alone, which may be unlike rows
        good_net = best.least >= ENOUGH and not isinstance(best.recipe.student, Forest)
        gain = FOREST_GAIN if forest and good_net else MIN_GAIN
        nearer = other.parts[0].divergence <= best.parts[0].divergence  # at rows alone
        nearer = nearer and other.divergence < gain * best.divergence
        best = other if nearer else best

    if probe is None and _forests(plain):
        probe = _pilot(plain, replace(recipe, student=PROBE), "probe")
    ratio = math.inf if probe is None else probe.divergence / first.divergence
    if ratio < PROBE_RATIO:
        compare(plain, FOREST)
    cells = recipe.pool * (plain.x.shape[1] if isinstance(plain.x, Tensor) else len(plain.x))
    if not best.near and ratio < LARGER_RATIO and (cells < MOST_CELLS or best.fidelity < ENOUGH):
        compare(plain, LARGER_FOREST)
    # a larger net has half of the divergence at best
    if not best.near and best.divergence > first.divergence / 2:
        steps, work = 2 * first.result.steps, known[LARGER] / 4 + STEP_WORK  # 4 bytes a weight
        if best.fidelity < ENOUGH:
            compare(problem, LARGEST)
        elif not problem.live and steps * work < MOST_WORK:
            compare(problem, LARGER, steps)
    tried += [part.trial() for part in [first, *others]] if others else []
    return best


def grow_student(
    problem: Problem, recipe: Recipe, tried: Trials, *, keep: float, max_bytes: int | None,
    max_latency: float | None,
) -> Attempt:  # fmt: skip
    r"""The smallest net or forest within limits that retains enough; else the nearest."""
    if not len(problem.held_out):
        count, least = rows(problem.x), trainer.MIN_HELD_OUT
        expected = f"for student='auto' so many that held_out_fraction takes {least} or more"
        if count >= 2 * least:
            expected += f", as held_out_fraction={math.ceil(100 * least / count) / 100:g} does"
        raise ArgumentError("X", f"{count} rows, too few to hold some out", expected)
    within = partial(sizes, problem.x, problem.teacher.outputs, problem.teacher.task)
    if max_bytes is not None and max_bytes < min(within(problem.encoder).values()):
        problem = copy.copy(problem)
        problem.encoder = problem.format.encoder()  # without knots, which take too much
    nearest: Attempt | None = None
    latest: dict[bool, float] = {}  # divergences of nets and of forests
    ended: set[bool] = set()  # kinds whose larger students are no nearer, or too slow
    for size in within(problem.encoder, max_bytes, _forests(problem)):
        kind = isinstance(size, Forest)
        if kind in ended:
            continue
        candidate = attempt(problem, in_folder(recipe, str(size), student=size))
        tried.append(entry := candidate.trial())
        if candidate.divergence > 0.95 * latest.get(kind, math.inf):
            ended.add(kind)
        latest[kind] = candidate.divergence
        if max_latency is not None:
            entry["latency"] = one_row(candidate)
            if entry["latency"] > max_latency:
                ended.add(kind)
                continue
        if max_bytes is not None and kind and tensor_bytes(candidate.result.student) > max_bytes:
            continue
        if nearest is None or candidate.divergence < nearest.divergence:
            nearest = candidate
        if candidate.parts[0].fidelity >= keep:
            return candidate
    if nearest is None:
        assert max_latency is not None
        least = math.ceil(min(entry["latency"] for entry in tried if "latency" in entry))
        fastest = "what one row takes the fastest student that max_bytes allows, on this machine"
        expected = f"{least} or more microseconds: {fastest}"
        raise ArgumentError("max_latency", f"{max_latency:g}", expected)
    return nearest


def one_row(candidate: Attempt) -> float:
    r"""Microseconds of one row in `Compressed.predict`."""
    problem = candidate.problem
    small = Compressed.of(candidate.result, problem, candidate.recipe)
    calls, given = {"student": small._predictions}, select(problem.data.given, problem.held_out)
    return 1e6 * latencies(calls, given, (1,), seconds=0.05)["student"][1]


def in_folder(recipe: Recipe, name: str, **changes: Any) -> Recipe:
    r"""A changed recipe with a separate folder for checkpoints, if these are written."""
    if (folder := recipe.training.checkpoint) is not None:
        changes["training"] = replace(recipe.training, checkpoint=Path(folder) / name)
    return replace(recipe, **changes)


def verdict(best: Attempt) -> list[str]:
    r"""Sentences on a student that is far from its teacher, as far as rows are there to tell."""
    problem, classes = best.problem, best.problem.teacher.classes
    size, notes, doubts = rows(problem.x), list[str](), list[str]()
    if not len(problem.held_out) and size < FEW_ROWS:
        number = "one row" if size == 1 else f"{size} rows"
        notes = [f"Unchecked: {number} cannot show what the student does at others; see report(X)."]
    unmixed = problem.labels is None and "targets" in vars(problem)
    if not len(problem.held_out) and not unmixed:
        return notes  # no rows have the teacher's own targets, and none are labelled only for this
    task, (t, p) = problem.teacher.task, best.compared()[0]
    n, fidelity = len(t), best.fidelity
    where = f"{n:,} {'training' if not len(problem.held_out) else 'held-out'} rows"
    most = "" if len(best.parts) == 1 else "at most "  # the higher of two is reported
    measure = "an R² of {}{:.3f} to" if task == "regression" else "an agreement of {}{:.1%} with"
    advice = 'try student="auto", a larger student such as (200, 100), or more rows'
    varies = task != "regression" or t.var() > 0
    if fidelity < ENOUGH and varies:
        doubts.append(f"has {measure.format(most, fidelity)} its teacher, below {ENOUGH}")
    elif best.least < ENOUGH and varies:
        shown = [measure.format("", part.fidelity) for part in best.parts]
        notes.append(
            f"Unchecked: the student has {shown[0]} its teacher at {where}, which the teacher may "
            f"have memorised, but {shown[1]} it at mixtures of them, which may be unlike other "
            "rows; report(X) at rows that are new to both tells more."
        )
    if fidelity >= ENOUGH and task == "regression" and t.shape[1] > 1:
        # the mean over targets hides one that is lost
        each = [_scores(task, t[:, [k]], p[:, [k]]).fidelity for k in range(t.shape[1])]
        worst = min(range(len(each)), key=lambda k: each[k])
        if each[worst] < ENOUGH and t[:, worst].var() > 0:
            about = f"an R² of {each[worst]:.3f} to output {worst} of its teacher"
            doubts.append(f"has {about}, below {ENOUGH}")
    if task != "regression" and (len(problem.held_out) or size >= FEW_ROWS):
        names = [str(k) for k in (range(t.shape[1]) if classes is None else classes)]
        _check_rare_classes(t, p, names, where, notes, doubts)
    return notes + [f"Doubtful: at {where} the student {doubt}; {advice}." for doubt in doubts]


def _check_rare_classes(
    t: np.ndarray, p: np.ndarray, names: list[str], where: str, notes: list[str], doubts: list[str]
) -> None:
    r"""Note classes too rare to tell, and doubt a student that loses a rare class."""
    share, n = t.mean(0), len(t)
    rare = [k for k in np.argsort(share, kind="stable") if share[k] <= RARE]
    if unsure := [
        f"{names[k]!r} ({n * share[k]:.2g})" for k in rare if n * share[k] < MIN_EXPECTED
    ]:
        notes.append(
            f"Unchecked: at {where} the teacher expects fewer than {MIN_EXPECTED} rows of "
            f"{listed(unsure)}, too few to tell whether the student detects them; "
            "report(X, y) at more rows does."
        )
    if len(unsure) < len(rare):
        k = rare[len(unsure)]
        student, teacher = (average_precision(q[:, k], t[:, k]).mean() for q in (p, t))
        if student < ENOUGH * teacher:
            retained = f"{student / teacher:.0%} of its teacher's average precision"
            doubts.append(f"retains {retained} for the rare class {names[k]!r}, below 90%")
