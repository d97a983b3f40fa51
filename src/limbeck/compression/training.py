r"""Students of a problem: trained by the loop, or fitted as trees."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

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
from limbeck.teachers.base import Opaque
from limbeck.teachers.query import ScaledTeacher, safe_scale
from limbeck.training.config import PRESETS
from limbeck.training.distill import distill
from limbeck.training.result import Result
from limbeck.training.settings import History

__all__ = [
    "Answering",
    "Recipe",
    "default_steps",
    "distill_options",
    "finish_student",
    "fit_trees",
    "make_student",
    "narrowed",
    "only_finite",
    "predictions",
    "student_inputs",
    "train",
]

BLOCK = 10_000
r"""Rows that a student sees at once, when it only predicts."""

RATE = 1e-2
r"""Adam's rate for nets of limbeck's own, whose inputs and outputs are scaled."""

FEW = 8
r"""Rows at which a module of the user's own is looked at."""

PASSES, FEWEST, MOST = 40, 1000, 20_000
r"""Steps by default: so many passes over the inputs, within these numbers."""


@dataclass(frozen=True)
class Recipe:
    r"""How a student is trained.

    Attributes:
        student: What `compress` was given: sizes, a name, a module.
        inputs: The name of a generator, or a source of the user's own.
        size: Inputs that the teacher is asked about, where it is asked beforehand.
        steps: Steps; None goes by the number of inputs.
        seed: Seeds everything.
        options: Further arguments of `limbeck.distill`.
    """

    student: Any
    inputs: Any
    size: int
    steps: int | None
    seed: int
    options: dict[str, Any]


def train(problem: Problem, recipe: Recipe) -> Result:
    r"""A student of the problem; its outputs are in the teacher's units."""
    predictor = problem.predictor
    student, origin = make_student(problem, recipe)
    if isinstance(student, Fitted):
        return fit_trees(problem, student, recipe, origin)
    ours = isinstance(student, Preprocessed)
    shift, scale = problem.unit()
    if not ours:  # a module of the user's own speaks in the teacher's units
        shift, scale = torch.zeros_like(shift), torch.ones_like(scale)
    live = problem.live and (ours or not _wide(problem))
    if live or not isinstance(recipe.inputs, str):
        teacher, source = _live(problem, recipe, student, shift, scale)
        count = max(rows(problem.x), recipe.size)
    else:
        pool = problem.pool(recipe.inputs, recipe.size, recipe.seed)
        inputs = student_inputs(student, pool.x)
        teacher, source = problem.stored(pool, shift, scale), Dataset(inputs)
        count = rows(pool.x)
    options = distill_options(recipe, predictor.task, student, problem.x)
    steps = recipe.steps or default_steps(count, options.get("batch_size", "auto"))
    if isinstance(recipe.inputs, str) and isinstance(source, Mix):
        options["batch_size"] = _batch_size(options, rows(problem.x))
    result = distill(teacher, student, source, problem.loss, steps=steps, **options)
    finish_student(student, shift, scale)
    return result


def make_student(problem: Problem, recipe: Recipe) -> tuple[Any, Tensor | None]:
    r"""A recipe's student, not trained yet, and what is subtracted from its inputs in float64."""
    origin = None
    if isinstance(problem.x, Tensor) and not isinstance(recipe.student, nn.Module):
        origin = origin_of(problem.x)
    predictor = problem.predictor
    student = build_student(
        copy.deepcopy(recipe.student), narrowed(problem.x, origin), predictor.outputs,
        predictor.task, encoder=problem.kind.encoder(), seed=recipe.seed,
    )  # fmt: skip
    if isinstance(student, Preprocessed) and origin is not None:
        student.set_origin(origin)
    return student, origin


def finish_student(student: nn.Module, shift: Tensor, scale: Tensor) -> None:
    r"""Let a trained student of limbeck's own give outputs in the teacher's units."""
    if isinstance(student, Preprocessed):
        student.set_outputs(shift, scale)  # a scale of 0 gives what a constant teacher says
        student.input_dtype = None if student.origin is None else torch.float64


def _wide(problem: Problem) -> bool:
    r"""Whether a torch teacher computes with more digits than float32 has, and the rows have them.

    Then the loop draws float64, of which a student of limbeck's own takes what it needs.
    """
    module, x = problem.predictor.module, problem.x
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


def distill_options(recipe: Recipe, task: str, student: nn.Module, x: X) -> dict[str, Any]:
    r"""Further arguments of `distill`: what the user said, and what goes without saying."""
    ours = isinstance(student, Preprocessed)
    settled: dict[str, Any] = {"seed": recipe.seed}
    if task != "classification":
        settled["student_output"] = "values"
    elif getattr(student, "output_form", None) is None:  # a module of the user's own
        with torch.no_grad():
            outputs = student(student_inputs(student, part_of(x, 0, FEW)))
            settled["student_output"] = forms.recognise(outputs) or "logits"
    if ours and not recipe.options.keys() & {"optimizer", "preset", "update"}:
        settled["lr"] = RATE
    return settled | recipe.options


def _batch_size(options: dict[str, Any], count: int) -> Any:
    r"""What a step takes where half of it are the user's rows, none of them twice."""
    given = options.get("batch_size", "auto")
    if given == "auto" and options.get("preset", "auto") in PRESETS:
        return min(PRESETS[options.get("preset", "auto")]["batch_size"], 2 * count)
    if is_count(given) and given > 2 * count:
        expected = f"at most {2 * count}, since one half of each batch are rows of X, of {count}"
        raise ArgumentError("batch_size", given, expected)
    return given


def default_steps(count: int, batch_size: int | str) -> int:
    r"""Steps, if nobody says how many."""
    each = min(count, 200 if isinstance(batch_size, str) else batch_size)
    return min(MOST, max(FEWEST, PASSES * count // each))


def _live(
    problem: Problem, recipe: Recipe, student: nn.Module, shift: Tensor, scale: Tensor
) -> tuple[Any, Inputs]:
    r"""The teacher itself, and fresh inputs at each step."""
    source = recipe.inputs
    exact = isinstance(problem.x, Tensor) and problem.x.dtype == torch.float64
    if not isinstance(source, str):
        source = as_inputs(source)
        if exact and isinstance(student, Preprocessed):
            student.input_dtype = float_type(source, recipe.seed)
    else:
        if isinstance(student, Preprocessed) and (student.origin is not None or _wide(problem)):
            student.input_dtype = torch.float64
        x = student_inputs(student, problem.x)
        new = generator(source, problem.kind, x, seed=recipe.seed, progress=problem.progress)
        source = new if source == "data" else Mix([Dataset(x), new])
    if problem.live:
        module = ScaledTeacher(problem.predictor, shift, scale)
        recipe.options.setdefault("teacher_output", module.output_form)
        return module, source

    def asked(arrays: Any) -> np.ndarray:
        x = map_tensors(torch.as_tensor, arrays) if isinstance(arrays, dict) else arrays
        x = torch.as_tensor(x) if not isinstance(x, dict) else x
        found = problem.ask(problem.kind.decode(x))
        return (found - shift.numpy()) / safe_scale(scale).numpy()

    form = "probabilities" if problem.predictor.task == "classification" else "values"
    return Opaque(asked, form), source


def fit_trees(
    problem: Problem, student: Fitted, recipe: Recipe, origin: Tensor | None = None
) -> Result:
    r"""Trees, fitted at once."""
    began = time.perf_counter()
    pool = problem.pool(recipe.inputs, recipe.size, recipe.seed)
    plain = problem.kind.encoder("one_hot")  # rules about indicators can be read
    model = replace(student, encoder=plain).fit(narrowed(pool.x, origin), pool.targets)
    if origin is not None:
        model = Preprocessed(model, origin=origin)
    seconds = time.perf_counter() - began
    settings = {
        "loss": f"{student.kind} fitted to {rows(pool.x):,} answers of the teacher",
        "input_shape": {name: list(part.shape[1:]) for name, part in floats(pool.x).items()},
    }
    return Result(model, History(), 1, "it is fitted at once", seconds, "scikit-learn", settings)


class Answering(nn.Module):
    r"""A student that answers in the teacher's way: probabilities, or values (n, K).

    A row with a number that is NaN or infinite has NaN for an answer: files cannot refuse it, as
    `Compressed.predict` does.

    Arguments:
        student: The student.
        task: "classification", "multilabel" or "regression".
        form: The form of the student's outputs; None asks it.
    """

    def __init__(self, student: nn.Module, task: str, form: str | None = None) -> None:
        super().__init__()
        self.student, self.task = student, task
        self.form = form or getattr(student, "output_form", None) or "logits"

    def forward(self, x: X) -> Tensor:
        return only_finite(self.student, x, _answers(self.student(x), self.task, self.form))


def only_finite(student: nn.Module, x: X, answers: Tensor) -> Tensor:
    r"""Answers (n, K), but NaN for rows with NaN or infinity, or missing where nothing was.

    Numbers of a table that are marked missing may be anything.
    """
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
    r"""What a student says of inputs, (n, K): probabilities, or values."""
    parameter = next(student.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    form = form or getattr(student, "output_form", None) or "logits"
    found = []
    with evaluating(student):
        for start in range(0, rows(x), BLOCK):
            part = student_inputs(student, part_of(x, start, BLOCK))
            part = map_tensors(lambda t: t.to(device), part)
            found.append(_answers(student(part), task, form).double().cpu().numpy())
    return found[0] if len(found) == 1 else np.concatenate(found)
