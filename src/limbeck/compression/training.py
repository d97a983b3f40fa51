r"""The problem of a compression (a teacher and its rows), and students trained on it."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from limbeck import losses
from limbeck import outputs as forms
from limbeck.arrays import X, as_dict, floats, join, part_of, rows, safe_scale
from limbeck.compression import students
from limbeck.compression.generators import drawn, float_type, fresh, generator, prepared
from limbeck.compression.rows import RowFormat, Rows
from limbeck.compression.students import Fitted, output_form, student_inputs
from limbeck.errors import ArgumentError, LimbeckError
from limbeck.inputs import Dataset, Mix, as_inputs
from limbeck.inputs.base import Inputs
from limbeck.losses.base import Loss
from limbeck.models import Preprocessed
from limbeck.models.table_encoder import TableEncoder
from limbeck.models.tree_fit import lightgbm
from limbeck.teachers.base import Opaque, Teacher
from limbeck.teachers.folds import mix_labels, out_of_fold
from limbeck.teachers.keys import select
from limbeck.teachers.networks import Derivatives, NetworkTeacher, ScaledTeacher
from limbeck.teachers.query import Query
from limbeck.teachers.row_teacher import RowTeacher
from limbeck.teachers.stored import Stored
from limbeck.training import distill as loop
from limbeck.training.config import PRESETS, Training
from limbeck.training.result import History, Result
from limbeck.training.schedules import Cosine

MIN_HELD_OUT, MAX_HELD_OUT = 20, 10_000  # rows to compare students on; fewer are not held out
WARMUP = 0.05  # of the steps; without it the first ones, at that rate, are never made good for
OUTSIDE, FLAT = 64, 0.8  # rows beyond a number's range, and the share of equal answers of trees
RATE = 1e-2  # Adam's, for nets of limbeck's own, whose inputs and outputs are scaled


@dataclass
class Pool:
    r"""Inputs, the user's rows first, with the teacher's targets (n, K) and derivatives there."""

    x: X
    targets: np.ndarray
    weight: np.ndarray | None = None  # (n,), of mean 1 at the user's rows
    derivatives: dict[str, Tensor] = field(default_factory=dict)
    source: Inputs | None = None  # of further inputs


@dataclass
class Problem:
    r"""A teacher and the rows that it labels."""

    teacher: RowTeacher
    data: Rows  # all rows of the user
    index: np.ndarray  # the numbers of those to learn from
    held_out: np.ndarray  # and of those to compare students on; none of few rows
    loss: Loss  # of students
    query: Query
    labels: np.ndarray | None = None  # of all rows, where they are used
    label_weight: float = 0.0
    row_weights: np.ndarray | None = None  # of all rows, of mean 1
    folds: int | None = None  # for targets out of fold
    seed: int = 0  # decides which rows are together in a fold
    caches: bool = False  # predictions on disk: a torch teacher, too, is queried before training
    generates: bool = False  # the teacher may be queried at other rows than the user's, and often
    pools: dict[tuple[str | Inputs, int], Pool] = field(default_factory=dict, init=False)

    @property
    def format(self) -> RowFormat:
        r"""The format of the rows."""
        return self.data.format

    @cached_property
    def x(self) -> X:
        r"""The rows to learn from."""
        x: X = select(self.data.x, self.index)
        return x

    @property
    def weight(self) -> np.ndarray | None:
        r"""The weights (n,) of the rows to learn from."""
        return None if self.row_weights is None else self.row_weights[self.index]

    @cached_property
    def compared(self) -> X:
        r"""The rows held out and, unless queries are limited, as many mixed with neighbours."""
        x: X = select(self.data.x, self.held_out)
        if self.query.limited:
            return x
        return join([x, fresh("munge", self.format, x, len(self.held_out), self.seed)])

    @property
    def live(self) -> bool:
        r"""Whether the loop can query the teacher itself, at fresh inputs each step."""
        return self.differentiable and not self.caches

    @property
    def differentiable(self) -> bool:
        r"""Whether the targets are a torch module's alone, which looks up no whole numbers."""
        codes = self.format.whole and getattr(self.teacher, "looks_up", False)
        pure = self.teacher.module is not None and self.labels is None
        return pure and isinstance(self.x, Tensor) and not codes

    @property
    def form(self) -> str:
        r"""The form of the targets, as losses see them."""
        return "probabilities" if self.teacher.task == "classification" else "values"

    @cached_property
    def encoder(self) -> nn.Module | None:
        r"""Of students' inputs, untrained: each student gets a copy."""
        encoder = self.format.encoder(data=self.x)
        if isinstance(encoder, TableEncoder) and self._flat_outside(encoder):
            encoder.set_clip(True)
        return encoder

    def _flat_outside(self, encoder: TableEncoder) -> bool:
        r"""Whether the teacher's answers stay the same beyond the range of a number, as trees' do.

        In random rows one number each is set to an end of its range, and to twice as far. A few
        answers may differ, of a teacher that knows a wider range. One that refuses such rows is
        queried about them once, which does not count as a lost connection.
        """
        numbers = [n for n, knots in zip(encoder.numbers, encoder.knots, strict=True) if knots]
        if not numbers or not self.generates or self.teacher.module is not None:
            return False
        x, every = self.data.x, 2 * len(numbers)
        picked = np.random.default_rng(self.seed).integers(rows(x), size=max(OUTSIDE, every))
        edge, beyond = (select(x, picked) for _ in range(2))
        for k, (key, mask, *_) in enumerate(numbers):
            values, near, far = (
                t[:, int(key)] if isinstance(t, Tensor) else t[key] for t in (x, edge, beyond)
            )
            low, high = values.aminmax()
            for at, end, step in ((2 * k, low, low - high), (2 * k + 1, high, high - low)):
                near[at::every], far[at::every] = end, end + step
                if mask is not None:
                    edge[mask][at::every] = beyond[mask][at::every] = False
        try:
            decoded, query = map(self.format.decode, (edge, beyond)), replace(self.query, retries=0)
            answer, other = (query.label(self.teacher, part) for part in decoded)
        except (LimbeckError, ValueError, OverflowError):  # it takes no such numbers, or dates
            return False
        same = np.isclose(answer, other, rtol=1e-9, atol=1e-12).all(1)
        return bool(same.mean() >= FLAT)

    @cached_property
    def targets(self) -> np.ndarray:
        r"""The targets (n, K) at the rows to learn from."""
        given = select(self.data.given, self.index)
        labels = None if self.labels is None else self.labels[self.index]
        if self.folds is None:
            targets = self.query.label(self.teacher, given)
        else:
            options = (self.folds, self.seed, self.query.progress)
            targets = out_of_fold(self.teacher, given, labels, *options)
        if labels is not None and self.label_weight > 0:
            targets = mix_labels(targets, labels, self.label_weight, self.teacher.classes)
        return targets

    @cached_property
    def compared_targets(self) -> np.ndarray:
        r"""The teacher's targets at the inputs that students are compared on."""
        n, parts = len(self.held_out), [select(self.data.given, self.held_out)]
        if rows(self.compared) > n:  # mixtures of them
            parts.append(self.format.decode(part_of(self.compared, n, rows(self.compared))))
        return np.concatenate([self.query.label(self.teacher, part) for part in parts])

    def pool(self, source: str | Inputs, size: int, seed: int) -> Pool:
        r"""The user's rows, and generated ones to make up the size, with their targets."""
        n = rows(self.x)
        size, weight = n if source == "data" else max(n, size), self.weight
        pool = self.pools.get((source, seed), Pool(self.x, self.targets, weight))
        if missing := max(0, size - rows(pool.x)):  # a larger pool has the inputs of a smaller one
            inputs = pool.source
            if inputs is None:
                inputs = prepared(source, self.format, self.x, seed, self.query.progress, weight)
            more, more_weight = drawn(inputs, missing, n)
            new = self.query.label_some(self.teacher, self.format.decode(more))
            known = new.known  # those that the teacher has labelled
            targets = np.concatenate([pool.targets, new.targets[known]])
            if weight is not None:
                weight = np.concatenate([pool.weight, more_weight[known]])
            pool = Pool(join([pool.x, select(more, known)]), targets, weight, source=inputs)
        self.pools[source, seed] = pool
        if size >= rows(pool.x):
            return pool
        weight = None if pool.weight is None else pool.weight[:size]
        return Pool(part_of(pool.x, 0, size), pool.targets[:size], weight)

    def stored(self, pool: Pool, shift: Tensor, scale: Tensor) -> Stored:
        r"""The pool's targets t as a teacher that looks up (t − shift) / scale."""
        for domain in {term.domain for _, term in self.loss if "derivatives" in term.requires}:
            assert isinstance(self.teacher, NetworkTeacher)
            assert isinstance(pool.x, Tensor)
            teacher = Derivatives(self.teacher, domain, pool.x[0].numel())
            teacher.check_size(len(pool.x))
            if domain not in pool.derivatives:
                slopes = self.query.label(teacher, self.format.decode(pool.x))
                tensor = torch.as_tensor(slopes, dtype=torch.float32)
                pool.derivatives[domain] = tensor.reshape(len(pool.x), self.teacher.outputs, -1)
        derivatives = {d: t / safe_scale(scale)[:, None] for d, t in pool.derivatives.items()}
        return Stored(scaled(pool.targets, shift, scale), self.form, derivatives=derivatives)

    def unit(self, student: nn.Module) -> tuple[Tensor, Tensor]:
        r"""Mean and deviation (K,) of a regression's targets, for limbeck's own students."""
        targets = torch.as_tensor(self.targets, dtype=torch.float32)
        if self.teacher.task != "regression" or not isinstance(student, Preprocessed):
            return torch.zeros(targets.shape[1]), torch.ones(targets.shape[1])
        return targets.mean(0), targets.std(0, unbiased=False)


def scaled(targets: np.ndarray, shift: Tensor, scale: Tensor) -> Tensor:
    r"""Targets (n, K) in the units that a student is trained in."""
    return (torch.as_tensor(targets, dtype=torch.float32) - shift) / safe_scale(scale)


def default_loss(task: str) -> Loss:
    r"""The loss of students by default."""
    if task == "classification":
        return losses.cross_entropy()
    return losses.multilabel_cross_entropy() if task == "multilabel" else losses.square_error()


@dataclass(frozen=True)
class Recipe:
    r"""How a student is trained."""

    student: object  # the argument of `compress`: sizes, a name, a module
    inputs: str | Inputs  # the name of a generator, or a source of the user's own
    pool: int  # inputs that the teacher labels before training, where it does
    steps: int | None  # None goes by the number of inputs
    training: Training  # the other settings of the loop


def train(problem: Problem, recipe: Recipe, module: object = None) -> Result:
    r"""A student of the problem, or a torch `module` trained in place, in the teacher's units."""
    student = make_student(problem, recipe, module)
    if isinstance(student, Fitted):
        return fit_trees(problem, student, recipe)
    shift, scale = problem.unit(student)
    training = with_defaults(recipe.training, problem.teacher.task, student, problem.x)
    teacher: Teacher | nn.Module
    exact = not isinstance(student, Preprocessed) and _wide(problem)
    if (problem.live and not exact) or not isinstance(recipe.inputs, str):
        source = _live_inputs(problem, recipe, student)
        if problem.live:
            teacher = ScaledTeacher(problem.teacher, shift, scale)
            training = replace(training, teacher_output=teacher.output_form)
        else:
            teacher = Opaque(partial(_targets_at, problem, shift, scale), problem.form)
        size = max(rows(problem.x), recipe.pool)
    else:
        pool = problem.pool(recipe.inputs, recipe.pool, recipe.training.seed)
        source = Dataset(student_inputs(student, pool.x), weight=pool.weight)
        teacher = problem.stored(pool, shift, scale)
        size = rows(pool.x)
    steps = recipe.steps or default_steps(size, training.batch_size)
    if isinstance(recipe.inputs, str) and isinstance(source, Mix):
        training = replace(training, batch_size=_batch_size(training, rows(problem.x)))
    result = loop.train(teacher, student, source, problem.loss, replace(training, steps=steps))
    finish_student(student, shift, scale)
    return result


def make_student(problem: Problem, recipe: Recipe, module: object = None) -> nn.Module | Fitted:
    r"""A recipe's student, or the module itself."""
    spec = module if isinstance(module, nn.Module) else copy.deepcopy(recipe.student)
    # a module takes the features of `Table.encoder()`; a function of an array's columns is linear
    plain = isinstance(spec, nn.Module) or (isinstance(problem.x, Tensor) and spec == "linear")
    return students.build_student(
        spec, problem.x, problem.teacher.outputs, problem.teacher.task,
        encoder=problem.format.encoder() if plain else copy.deepcopy(problem.encoder),
        seed=recipe.training.seed,
    )  # fmt: skip


def finish_student(student: nn.Module, shift: Tensor, scale: Tensor) -> None:
    r"""Let a trained student of limbeck's own give outputs in the teacher's units."""
    if isinstance(student, Preprocessed):
        student.set_outputs(shift, scale)  # a scale of 0 gives a constant teacher's value
        student.input_dtype = None if student.origin is None else torch.float64


def _wide(problem: Problem) -> bool:
    r"""Whether both a torch teacher and its rows have more digits than float32."""
    module, x = problem.teacher.module, problem.x
    if module is None or not isinstance(x, Tensor) or x.dtype != torch.float64:
        return False
    return any(t.dtype == torch.float64 for t in module.state_dict().values())


def with_defaults(training: Training, task: str, student: nn.Module, x: X) -> Training:
    r"""The user's settings, and those that follow from the student."""
    form, rate = training.student_output, training.lr
    if form == "auto" and task != "classification":
        form = "values"
    elif form == "auto" and getattr(student, "output_form", None) is None:  # the user's own module
        with torch.no_grad():
            form = forms.recognise(student(student_inputs(student, part_of(x, 0, 8)))) or "logits"
    schedule = training.schedule
    if isinstance(student, Preprocessed) and has_default_update(training):
        rate, schedule = RATE, Cosine(WARMUP) if is_auto(schedule) else schedule
    return replace(training, student_output=form, lr=rate, schedule=schedule)


def is_auto(choice: object) -> bool:
    r"""Whether a setting has its default."""
    return isinstance(choice, str) and choice == "auto"


def has_default_update(training: Training) -> bool:
    r"""Whether the user leaves the optimizer and its rate to limbeck."""
    automatic = is_auto(training.optimizer) and is_auto(training.preset)
    return automatic and training.update is None and training.lr is None


def _batch_size(training: Training, n: int) -> int | str:
    r"""The size of batches of which one half are the user's rows, none of them twice."""
    size = training.batch_size
    if size == "auto" and training.preset in PRESETS:
        return min(int(PRESETS[training.preset]["batch_size"]), 2 * n)
    if isinstance(size, int) and size > 2 * n:
        expected = f"at most {2 * n}, since one half of each batch are rows of X, of {n}"
        raise ArgumentError("batch_size", size, expected)
    return size


def default_steps(size: int, batch_size: int | str) -> int:
    r"""Steps by default: 20 passes over the inputs, from 1,000 to 20,000."""
    batch = min(size, batch_size if isinstance(batch_size, int) else 200)
    return min(20_000, max(1000, 20 * size // batch))


def _live_inputs(problem: Problem, recipe: Recipe, student: nn.Module) -> Inputs:
    r"""Fresh inputs at each step."""
    seed = recipe.training.seed
    if not isinstance(recipe.inputs, str):
        source = as_inputs(recipe.inputs)
        exact = isinstance(problem.x, Tensor) and problem.x.dtype == torch.float64
        if exact and isinstance(student, Preprocessed):
            student.input_dtype = float_type(source, seed)
        return source
    if isinstance(student, Preprocessed) and (student.origin is not None or _wide(problem)):
        student.input_dtype = torch.float64
    x, weight = student_inputs(student, problem.x), problem.weight
    new = generator(recipe.inputs, problem.format, x, seed, problem.query.progress, weight)
    return new if recipe.inputs == "data" else Mix([Dataset(x, weight=weight), new])


def _targets_at(problem: Problem, shift: Tensor, scale: Tensor, x: Any) -> np.ndarray:
    r"""The teacher's targets at arrays of the loop, in the student's units."""
    table = isinstance(x, dict)
    tensors = {k: torch.as_tensor(v) for k, v in x.items()} if table else torch.as_tensor(x)
    targets = problem.query.label(problem.teacher, problem.format.decode(tensors))
    return (targets - shift.numpy()) / safe_scale(scale).numpy()


def fit_trees(problem: Problem, student: Fitted, recipe: Recipe) -> Result:
    r"""Trees, fitted directly."""
    began = time.perf_counter()
    pool = problem.pool(recipe.inputs, recipe.pool, recipe.training.seed)
    about = (student.kind, pool.x, pool.targets, problem.teacher.task)
    encoder = students.tree_encoder(problem.format, *about)
    model = replace(student, encoder=encoder).fit(pool.x, pool.targets, pool.weight)
    seconds = time.perf_counter() - began
    settings = {
        "loss": f"{student.kind} fitted to {rows(pool.x):,} predictions of the teacher",
        "input_shape": {name: list(part.shape[1:]) for name, part in floats(pool.x).items()},
    }
    library = "LightGBM" if student.kind == "boosted" and lightgbm() else "scikit-learn"
    return Result(model, History(), 1, "it is fitted directly", seconds, library, settings)


class Answering(nn.Module):
    r"""Probabilities or values (n, K); NaN for rows not finite, where they are not missing."""

    def __init__(self, student: nn.Module, task: str, form: str | None = None) -> None:
        super().__init__()
        self.student, self.task = student, task
        self.form = output_form(student, form)

    def forward(self, x: X) -> Tensor:
        y = students.answers(self.student(x), self.task, self.form)
        encoder = next((m for m in self.student.modules() if isinstance(m, TableEncoder)), None)
        numbers, categories = ([], []) if encoder is None else (encoder.numbers, encoder.categories)
        marked, columns = {n.key: n.mask for n in numbers if n.mask}, as_dict(x)
        good = []
        for name, part in floats(x).items():
            finite = part.reshape(part.shape[0], -1).isfinite().all(1)
            good.append(finite | columns[marked[name]] if name in marked else finite)
        good += [columns[c.key] != c.size + 1 for c in categories if not c.missing]
        return torch.where(torch.stack(good, 1).all(1).unsqueeze(1), y, torch.nan) if good else y
