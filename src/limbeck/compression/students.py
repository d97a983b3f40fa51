r"""Students by name or size: networks that are trained, trees that are fitted."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from limbeck.arguments import whole_number
from limbeck.arrays import X, map_tensors, part_of, rows
from limbeck.errors import ArgumentError
from limbeck.evaluation import evaluating
from limbeck.models.mlp import MLP, is_count
from limbeck.models.preprocessed import Preprocessed, standardising
from limbeck.models.tree import Trees, is_tree_estimator, read
from limbeck.models.tree_fit import TASKS, fit_boosted, fit_tree
from limbeck.outputs import values

__all__ = ["FITTED", "Fitted", "Size", "build_student", "encoded", "sizes"]

# what is fitted to labelled rows directly, by name
FITTED = {"tree": fit_tree, "boosted": fit_boosted}
LIKELY = 1e-5  # the probability from which a class of a row counts, for classifiers


@dataclass(frozen=True)
class Fitted:
    r"""A student that is fitted to labelled rows directly, instead of trained step by step."""

    kind: str = "tree"  # or "boosted", or "estimator"
    options: dict[str, Any] = field(default_factory=dict)  # of `fit_tree` or `fit_boosted`
    task: str = "classification"
    estimator: Any = None  # one of scikit-learn's trees or groups of trees, to be cloned
    encoder: nn.Module | None = None  # from raw inputs to columns; it is not trained

    def fit(self, x: X, targets: ArrayLike | Tensor) -> Trees | Preprocessed:
        r"""Trees on raw inputs, fitted to targets (n, K)."""
        table = encoded(x, self.encoder)
        if self.kind == "estimator":
            trees = _clone_fitted(self, table, np.asarray(targets))
        elif self.kind in FITTED:
            function: Any = FITTED[self.kind]
            parameters = inspect.signature(function).parameters
            for name in self.options.keys() - parameters.keys():
                raise ArgumentError.unknown("student", name, parameters)
            trees = function(table, targets, task=self.task, **self.options)
        else:
            raise ArgumentError.unknown("student", self.kind, FITTED)
        return trees if self.encoder is None else Preprocessed(trees, encoder=self.encoder)

    def __str__(self) -> str:
        name = self.kind if self.estimator is None else type(self.estimator).__name__
        options = ", ".join(f"{key}={value}" for key, value in self.options.items())
        return f"{name}({options})"


def encoded(x: X, encoder: nn.Module | None) -> Tensor:
    r"""The rows as a matrix, or as they are where they are a tensor."""
    if encoder is not None:
        with torch.no_grad():
            blocks = [encoder(part_of(x, at, 10_000)) for at in range(0, rows(x), 10_000)]
        return torch.cat(blocks)
    if not isinstance(x, Tensor):
        try:
            return torch.as_tensor(np.asarray(x), dtype=torch.float32)
        except (TypeError, ValueError):
            expected = "a tensor (n, D); for a table, its encoder too"
            raise ArgumentError("x", f"a {type(x).__name__}", expected) from None
    return x


def _clone_fitted(student: Fitted, table: Tensor, targets: np.ndarray) -> Trees:
    r"""A clone of a scikit-learn tree estimator, fitted to soft targets (n, K)."""
    from sklearn.base import clone, is_classifier

    x = table.flatten(1).cpu().numpy()
    y = targets.astype(np.float64).reshape(len(x), -1)
    model, name = clone(student.estimator), type(student.estimator).__name__
    if model.get_params().get("random_state", 0) is None:
        model.set_params(random_state=student.options.get("seed", 0))
    if is_classifier(model):
        if student.task != "classification":
            raise ArgumentError("student", f"a {name} for {student.task}", "a regressor")
        y = np.hstack([1 - y, y]) if y.shape[1] == 1 else y
        # every row once for each likely class, weighted by its probability; a class that is likely
        # nowhere has next to no weight everywhere
        weight = np.where(y < LIKELY, 0.0, y)
        weight[:, weight.sum(0) == 0] = LIKELY
        row, label = np.nonzero(weight)
        model.fit(x[row], label, sample_weight=weight[row, label])
        return Trees.from_sklearn(model)
    if "Boosting" in name and y.shape[1] > 1:
        received = f"a {name} for {y.shape[1]} outputs"
        raise ArgumentError("student", received, '"boosted", or a classifier; it has one output')
    model.fit(x, y[:, 0] if y.shape[1] == 1 else y)
    kinds = {"classification": "probabilities", "multilabel": "labels"}
    return Trees(**{**read(model), "kind": kinds.get(student.task, "values")})


# hidden sizes that student="auto" goes through
GROWING = (
    (8,), (16,), (32,), (32, 16), (50, 30), (100, 50), (200, 100), (400, 200), (800, 400),
)  # fmt: skip
EXAMPLES = 4  # rows at which a module of the user's own is tried


def build_student(
    spec: object,
    x: X,
    outputs: int,
    task: str,
    *,
    encoder: nn.Module | None = None,
    targets: ArrayLike | Tensor | None = None,
    seed: int = 0,
) -> nn.Module | Fitted:
    r"""A student of a spec (`compress`'s argument), ready to be trained or fitted.

    Networks take raw inputs, which they scale as x; in regression, outputs are scaled as targets.
    """
    if task not in TASKS:
        raise ArgumentError.unknown("task", task, TASKS)
    outputs = whole_number("outputs", outputs, "a whole number from 1", least=1)
    outputs = max(outputs, 2) if task == "classification" else outputs
    x = x if isinstance(x, Tensor | dict) else encoded(x, None)
    if isinstance(spec, nn.Module):
        return _user_module(spec, x, outputs, encoder)
    if isinstance(spec, Fitted):
        return replace(spec, options={"seed": seed} | spec.options, task=task, encoder=encoder)
    if isinstance(spec, str) and spec in FITTED:
        return Fitted(spec, {"seed": seed}, task, encoder=encoder)
    if is_tree_estimator(spec):
        return Fitted("estimator", {"seed": seed}, task, spec, encoder)
    hidden = _hidden(spec)
    table = encoded(part_of(x, 0, EXAMPLES) if encoder is not None else x, encoder)
    # an encoder scales by itself, and its outputs change as it is trained
    shift, scale = standardising(table) if encoder is None else (None, None)
    network = MLP(
        table[0].numel(), *hidden, outputs,
        output_form="logits" if task == "classification" else "values",
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip
    if task != "regression" or targets is None:
        return Preprocessed(network, shift, scale, encoder=encoder)
    return Preprocessed(network, shift, scale, *_units(targets, outputs), encoder)


class Size(NamedTuple):
    r"""Hidden sizes, and the bytes that the student's numbers will take."""

    hidden: tuple[int, ...]
    bytes: int


def sizes(
    x: X, outputs: int, task: str, *, encoder: nn.Module | None = None, max_bytes: int | None = None
) -> list[Size]:
    r"""Students of growing size, as student="auto" tries them, up to a number of bytes.

    >>> sizes(torch.zeros(1, 10), 3, "classification", max_bytes=1000)
    [Size(hidden=(8,), bytes=540), Size(hidden=(16,), bytes=988)]
    """
    inputs = encoded(part_of(x, 0, 1), encoder)[0].numel()
    outputs = max(outputs, 2) if task == "classification" else outputs
    fixed = 8 * outputs if task == "regression" else 0  # shifts and scales, of outputs and inputs
    if encoder is None:
        fixed += 8 * inputs
    else:
        fixed += sum(t.numel() * t.element_size() for t in encoder.state_dict().values())
    students = []
    for hidden in GROWING:
        weights = sum((a + 1) * b for a, b in pairwise((inputs, *hidden, outputs)))
        students.append(Size(hidden, fixed + 4 * weights))
    students.sort(key=lambda size: size.bytes)
    if max_bytes is None:
        return students
    if max_bytes < students[0].bytes:
        expected = f"{students[0].bytes:,} or more, which the smallest student takes"
        raise ArgumentError("max_bytes", f"{max_bytes:,}", expected)
    return [size for size in students if size.bytes <= max_bytes]


def _hidden(spec: object) -> tuple[int, ...]:
    if isinstance(spec, str):
        if spec != "linear":
            raise ArgumentError.unknown("student", spec, ["auto", "linear", *FITTED])
        return ()
    hidden = (spec,) if is_count(spec) else spec
    if not isinstance(hidden, Sequence) or not all(map(is_count, hidden)):
        expected = (
            'hidden sizes as in (50, 30), "linear", "tree", "boosted", a torch module, or one of '
            "scikit-learn's decision trees, forests and boosted models"
        )
        raise ArgumentError("student", repr(spec), expected)
    return tuple(map(int, hidden))


def _units(targets: ArrayLike | Tensor, outputs: int) -> tuple[Tensor, Tensor]:
    r"""What a network's outputs are shifted and multiplied by to be like the targets."""
    y = values(torch.as_tensor(np.asarray(targets)))
    if y.shape[1] != outputs:
        raise ArgumentError("targets", f"shape {tuple(y.shape)}", f"(n, {outputs})")
    shift, scale = standardising(y)
    return shift, torch.where(scale == 0, 0.0, 1 / torch.where(scale == 0, 1.0, scale))


def _user_module(module: nn.Module, x: X, outputs: int, encoder: nn.Module | None) -> nn.Module:
    r"""A module of the user's own, tried at a few rows; behind the encoder if it needs it."""
    wrapped = [] if encoder is None else [Preprocessed(module, encoder=encoder)]
    examples, failure = part_of(x, 0, EXAMPLES), None
    count = rows(examples)
    for student in [module, *wrapped]:
        try:
            y = _evaluate(student, examples)
        except Exception as error:  # whatever a module of the user's own may raise
            failure = failure or error
            continue
        tensor = isinstance(y, Tensor)
        if tensor and y.ndim and len(y) == count and y[0].numel() == outputs:
            return student
        shape = f"shape {tuple(y.shape)}" if tensor else f"type {type(y).__name__}"
        received = f"a module whose outputs for {count} rows have {shape}"
        expected = f"outputs ({count}, {outputs}), one for each class, label or value"
        raise ArgumentError("student", received, expected)
    received = f"a {type(module).__name__} that fails on the inputs: {failure}"
    raise ArgumentError("student", received, "a module that takes rows as they are") from failure


@torch.no_grad()
def _evaluate(module: nn.Module, x: X) -> Any:
    r"""A module's outputs in evaluation mode, on its device and in its precision."""
    like = next((p for p in module.parameters() if p.is_floating_point()), None)
    if like is not None:
        device, dtype = like.device, like.dtype
        x = map_tensors(lambda t: t.to(device, dtype if t.is_floating_point() else t.dtype), x)
    with evaluating(module):
        return module(x)
