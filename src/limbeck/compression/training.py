r"""Students of a problem: trained by the loop, or fitted as trees; and their predictions."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import numpy as np
import torch
from torch import Tensor, nn

from limbeck import outputs as forms
from limbeck.arrays import X, floats, input_dtype, map_tensors, part_of, rows
from limbeck.compression.generators import float_type, generator
from limbeck.compression.problem import Problem
from limbeck.compression.students import Fitted, build_student
from limbeck.errors import ArgumentError
from limbeck.evaluation import evaluating
from limbeck.inputs import Dataset, Mix, as_inputs
from limbeck.inputs.base import Inputs
from limbeck.models import Preprocessed
from limbeck.models.mlp import is_count
from limbeck.models.preprocessed import origin_of
from limbeck.models.table_encoder import TableEncoder
from limbeck.teachers.base import Opaque, Teacher
from limbeck.teachers.query import ScaledTeacher, safe_scale
from limbeck.training import distill as loop
from limbeck.training.config import PRESETS, Training
from limbeck.training.result import History, Result

__all__ = ["Answering", "Recipe", "only_finite", "predictions", "train"]

RATE = 1e-2  # Adam's, for nets of limbeck's own, whose inputs and outputs are scaled


@dataclass(frozen=True)
class Recipe:
    r"""How a student is trained."""

    student: object  # the argument of `compress`: sizes, a name, a module
    inputs: str | Inputs  # the name of a generator, or a source of the user's own
    size: int  # inputs that the teacher labels before training, where it does
    steps: int | None  # None goes by the number of inputs
    training: Training  # the other settings of the loop


def train(problem: Problem, recipe: Recipe) -> Result:
    r"""A student of the problem; its outputs are in the teacher's units."""
    student, origin = make_student(problem, recipe)
    if isinstance(student, Fitted):
        return fit_trees(problem, student, recipe, origin)
    scaled = isinstance(student, Preprocessed)
    shift, scale = problem.unit()
    if not scaled:  # a module of the user's own gives outputs in the teacher's units
        shift, scale = torch.zeros_like(shift), torch.ones_like(scale)
    training = with_defaults(recipe.training, problem.teacher.task, student, problem.x)
    teacher: Teacher | nn.Module
    if (problem.live and (scaled or not _wide(problem))) or not isinstance(recipe.inputs, str):
        source = _live_inputs(problem, recipe, student)
        if problem.live:
            teacher = ScaledTeacher(problem.teacher, shift, scale)
            training = replace(training, teacher_output=teacher.output_form)
        else:
            function = partial(_scaled_targets, problem, shift.numpy(), safe_scale(scale).numpy())
            teacher = Opaque(function, problem.form)
        count = max(rows(problem.x), recipe.size)
    else:
        pool = problem.pool(recipe.inputs, recipe.size, recipe.training.seed)
        source = Dataset(student_inputs(student, pool.x))
        teacher = problem.stored(pool, shift, scale)
        count = rows(pool.x)
    steps = recipe.steps or default_steps(count, training.batch_size)
    if isinstance(recipe.inputs, str) and isinstance(source, Mix):
        training = replace(training, batch_size=_batch_size(training, rows(problem.x)))
    training = replace(training, steps=steps)
    result = loop.train(teacher, student, source, problem.loss, training)
    finish_student(student, shift, scale)
    return result


def make_student(problem: Problem, recipe: Recipe) -> tuple[nn.Module | Fitted, Tensor | None]:
    r"""A recipe's student, not trained yet, and what is subtracted from its inputs in float64."""
    origin = None
    if isinstance(problem.x, Tensor) and not isinstance(recipe.student, nn.Module):
        origin = origin_of(problem.x)
    student = build_student(
        copy.deepcopy(recipe.student), narrowed(problem.x, origin), problem.teacher.outputs,
        problem.teacher.task, encoder=problem.format.encoder(), seed=recipe.training.seed,
    )  # fmt: skip
    if isinstance(student, Preprocessed) and origin is not None:
        student.set_origin(origin)
    return student, origin


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
    return any(t.dtype == torch.float64 for t in chain(module.parameters(), module.buffers()))


def narrowed(x: X, origin: Tensor | None, dtype: torch.dtype = torch.float32) -> X:
    r"""Rows in a student's own precision, less what is subtracted in theirs."""
    if origin is not None:
        assert isinstance(x, Tensor)
        x = x - origin
    narrow: X = map_tensors(lambda t: t.to(dtype) if t.is_floating_point() else t, x)
    return narrow


def student_inputs(student: nn.Module, x: X) -> X:
    r"""Rows as a student takes them: raw, in its own precision or, if it says so, in float64."""
    return narrowed(x, None, input_dtype(student) or torch.float32)


def with_defaults(training: Training, task: str, student: nn.Module, x: X) -> Training:
    r"""The user's settings, and those that follow from the student."""
    form, rate = training.student_output, training.lr
    if form == "auto" and task != "classification":
        form = "values"
    elif form == "auto" and getattr(student, "output_form", None) is None:  # the user's own module
        with torch.no_grad():
            outputs = student(student_inputs(student, part_of(x, 0, 8)))
            form = forms.recognise(outputs) or "logits"
    if isinstance(student, Preprocessed) and rate is None and has_default_update(training):
        rate = RATE
    return replace(training, student_output=form, lr=rate)


def has_default_update(training: Training) -> bool:
    r"""Whether the user leaves the optimizer to limbeck."""
    names = [training.optimizer, training.preset]
    return training.update is None and all(isinstance(n, str) and n == "auto" for n in names)


def _batch_size(training: Training, count: int) -> int | str | None:
    r"""The size of batches of which one half are the user's rows, none of them twice."""
    size = training.batch_size
    if size == "auto" and training.preset in PRESETS:
        return min(int(PRESETS[training.preset]["batch_size"]), 2 * count)
    if isinstance(size, int) and is_count(size) and size > 2 * count:
        expected = f"at most {2 * count}, since one half of each batch are rows of X, of {count}"
        raise ArgumentError("batch_size", size, expected)
    return size


def default_steps(count: int, batch_size: int | str | None) -> int:
    r"""Steps by default: 40 passes over the inputs, from 1,000 to 20,000."""
    batch = min(count, batch_size if isinstance(batch_size, int) else 200)
    return min(20_000, max(1000, 40 * count // batch))


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
    x, progress = student_inputs(student, problem.x), problem.query.progress
    new = generator(recipe.inputs, problem.format, x, seed=seed, progress=progress)
    return new if recipe.inputs == "data" else Mix([Dataset(x), new])


def _scaled_targets(
    problem: Problem, shift: np.ndarray, scale: np.ndarray, x: np.ndarray | dict[str, np.ndarray]
) -> np.ndarray:
    r"""The teacher's targets at arrays of the loop, in the student's units."""
    parts = x if isinstance(x, dict) else {"": x}
    tensors = {name: torch.as_tensor(part) for name, part in parts.items()}
    targets: np.ndarray = problem.ask(problem.format.decode(tensors.get("", tensors)))
    return (targets - shift) / scale


def fit_trees(
    problem: Problem, student: Fitted, recipe: Recipe, origin: Tensor | None = None
) -> Result:
    r"""Trees, fitted directly."""
    began = time.perf_counter()
    pool = problem.pool(recipe.inputs, recipe.size, recipe.training.seed)
    plain = problem.format.encoder("one_hot")  # rules about indicators can be read
    model: nn.Module = replace(student, encoder=plain).fit(narrowed(pool.x, origin), pool.targets)
    if origin is not None:
        model = Preprocessed(model, origin=origin)
    seconds = time.perf_counter() - began
    settings = {
        "loss": f"{student.kind} fitted to {rows(pool.x):,} answers of the teacher",
        "input_shape": {name: list(part.shape[1:]) for name, part in floats(pool.x).items()},
    }
    return Result(model, History(), 1, "it is fitted at once", seconds, "scikit-learn", settings)


class Answering(nn.Module):
    r"""A student that gives probabilities or values (n, K); NaN for rows that are not finite."""

    def __init__(self, student: nn.Module, task: str, form: str | None = None) -> None:
        super().__init__()
        self.student, self.task = student, task
        self.form = form or getattr(student, "output_form", None) or "logits"

    def forward(self, x: X) -> Tensor:
        return only_finite(self.student, x, _answers(self.student(x), self.task, self.form))


def only_finite(student: nn.Module, x: X, answers: Tensor) -> Tensor:
    r"""Answers (n, K), but NaN for rows with NaN or infinity that are not marked as missing."""
    encoder = next((m for m in student.modules() if isinstance(m, TableEncoder)), None)
    marked = {} if encoder is None else {n.key: n.mask for n in encoder.numbers if n.mask}
    good = []
    for name, part in floats(x).items():
        finite = part.reshape(part.shape[0], -1).isfinite().all(1)
        good.append(finite | x[marked[name]] if name in marked else finite)  # type: ignore[index]
    for coded in () if encoder is None else encoder.categories:
        if not coded.missing:
            good.append(x[coded.key] != coded.size + 1)  # type: ignore[index]
    if not good:
        return answers
    return torch.where(torch.stack(good, 1).all(1).unsqueeze(1), answers, torch.nan)


def _answers(outputs: Tensor, task: str, form: str) -> Tensor:
    y = forms.values(outputs)
    if task == "classification":
        return forms.log_probabilities(y, form).exp()
    if task == "multilabel" and form != "probabilities":
        return y.sigmoid()
    return y


@torch.no_grad()
def predictions(student: nn.Module, x: X, task: str, form: str | None = None) -> np.ndarray:
    r"""A student's predictions (n, K): probabilities, or values."""
    parameter = next(student.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    form = form or getattr(student, "output_form", None) or "logits"
    blocks = []
    with evaluating(student):
        for start in range(0, rows(x), 10_000):
            part = student_inputs(student, part_of(x, start, 10_000))
            part = map_tensors(lambda t: t.to(device), part)
            blocks.append(_answers(student(part), task, form).double().cpu().numpy())
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
