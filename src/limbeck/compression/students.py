r"""Students by name or size: networks that are trained, trees that are fitted."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from limbeck.arguments import whole_number
from limbeck.arrays import X, map_tensors, part_of, rows
from limbeck.errors import ArgumentError
from limbeck.models.mlp import MLP, is_count
from limbeck.models.preprocessed import Preprocessed, standardising
from limbeck.models.tree import Trees, is_tree_estimator, read
from limbeck.models.tree_fit import TASKS, fit_boosted, fit_tree
from limbeck.outputs import values

__all__ = ["FITTED", "Fitted", "Size", "build_student", "encoded", "sizes"]

# what is fitted to labelled rows at once, by name
FITTED = {"tree": fit_tree, "boosted": fit_boosted}
LIKELY = 1e-5  # the probability from which a class of a row counts, for classifiers
BLOCK = 10_000  # rows that are encoded at once


@dataclass(frozen=True)
class Fitted:
    r"""A student that is fitted to labelled rows at once, instead of trained step by step.

    Arguments:
        kind: "tree", "boosted", or "estimator".
        options: What `fit_tree` or `fit_boosted` takes beside rows, targets and task.
        task: "classification", "multilabel" or "regression"; `build_student` says it.
        estimator: One of scikit-learn's trees, forests or boosted models, of which a clone is
            fitted. Regressors are fitted to probabilities as values; classifiers to every row
            once a class, weighted by its probability.
        encoder: From raw inputs to columns; it is not trained.
    """

    kind: str = "tree"
    options: dict[str, Any] = field(default_factory=dict)
    task: str = "classification"
    estimator: Any = None
    encoder: nn.Module | None = None

    def fit(self, x: X, targets: Any) -> Trees | Preprocessed:
        r"""Trees on raw inputs, fitted to targets (n, K)."""
        table = encoded(x, self.encoder)
        if self.kind == "estimator":
            found = _clone_fitted(self, table, np.asarray(targets))
        elif self.kind in FITTED:
            function: Any = FITTED[self.kind]
            for name in self.options.keys() - inspect.signature(function).parameters.keys():
                raise ArgumentError.unknown("student", name, inspect.signature(function).parameters)
            found = function(table, targets, task=self.task, **self.options)
        else:
            raise ArgumentError.unknown("student", self.kind, FITTED)
        return found if self.encoder is None else Preprocessed(found, encoder=self.encoder)

    def __str__(self) -> str:
        name = self.kind if self.estimator is None else type(self.estimator).__name__
        given = ", ".join(f"{key}={value}" for key, value in self.options.items())
        return f"{name}({given})"


def encoded(x: X, encoder: nn.Module | None) -> Tensor:
    r"""The rows as a matrix, or as they are where they are a tensor."""
    if encoder is not None:
        with torch.no_grad():
            blocks = [encoder(part_of(x, at, BLOCK)) for at in range(0, rows(x), BLOCK)]
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
    wanted = targets.astype(np.float64).reshape(len(x), -1)
    made, name = clone(student.estimator), type(student.estimator).__name__
    if made.get_params().get("random_state", 0) is None:
        made.set_params(random_state=student.options.get("seed", 0))
    if is_classifier(made):
        if student.task != "classification":
            raise ArgumentError("student", f"a {name} for {student.task}", "a regressor")
        wanted = np.hstack([1 - wanted, wanted]) if wanted.shape[1] == 1 else wanted
        # every row once a class, weighted, if it is likely at all; a class that nowhere is has
        # next to no weight everywhere
        weight = np.where(wanted < LIKELY, 0.0, wanted)
        weight[:, weight.sum(0) == 0] = LIKELY
        row, label = np.nonzero(weight)
        made.fit(x[row], label, sample_weight=weight[row, label])
        return Trees.from_sklearn(made)
    if "Boosting" in name and wanted.shape[1] > 1:
        received = f"a {name} for {wanted.shape[1]} outputs"
        raise ArgumentError("student", received, '"boosted", or a classifier; it has one output')
    made.fit(x, wanted[:, 0] if wanted.shape[1] == 1 else wanted)
    kinds = {"classification": "probabilities", "multilabel": "labels"}
    return Trees(**{**read(made), "kind": kinds.get(student.task, "values")})


# hidden sizes that student="auto" goes through
GROWING = (
    (8,), (16,), (32,), (32, 16), (50, 30), (100, 50), (200, 100), (400, 200), (800, 400),
)  # fmt: skip

LOOKED_AT = 4  # rows at which a module of the user's own is tried


def build_student(
    spec: Any,
    x: X,
    outputs: int,
    task: str,
    *,
    encoder: nn.Module | None = None,
    targets: Any = None,
    seed: int = 0,
) -> nn.Module | Fitted:
    r"""A student, ready to be trained or fitted.

    Networks come with the scaling of the rows inside, and take raw inputs. Classes have K logits
    (two classes have two), labels of which several may hold have K values, their logits.

    Arguments:
        spec: Sizes of hidden layers, as in (50, 30); "linear" for none; "tree", "boosted", a
            `Fitted` or a scikit-learn tree estimator; or any module, which is taken as it is.
        x: Rows that the student will see, from which columns are scaled.
        outputs: The number of outputs K.
        task: "classification", "multilabel" or "regression".
        encoder: From inputs that are not a matrix to columns; it is trained along.
        targets: In regression, values (n, K) that outputs are scaled by.
        seed: Seeds the first weights.
    """
    if task not in TASKS:
        raise ArgumentError.unknown("task", task, TASKS)
    outputs = whole_number("outputs", outputs, "a whole number from 1", least=1)
    outputs = max(outputs, 2) if task == "classification" else outputs
    x = x if isinstance(x, Tensor | dict) else encoded(x, None)
    if isinstance(spec, nn.Module):
        return _taken(spec, x, outputs, encoder)
    if isinstance(spec, Fitted):
        return replace(spec, options={"seed": seed} | spec.options, task=task, encoder=encoder)
    if isinstance(spec, str) and spec in FITTED:
        return Fitted(spec, {"seed": seed}, task, encoder=encoder)
    if is_tree_estimator(spec):
        return Fitted("estimator", {"seed": seed}, task, spec, encoder)
    hidden = _hidden(spec)
    table = encoded(part_of(x, 0, LOOKED_AT) if encoder is not None else x, encoder)
    # an encoder scales by itself, and what it gives changes as it is trained
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
    x: X,
    outputs: int,
    task: str,
    *,
    encoder: nn.Module | None = None,
    max_bytes: int | None = None,
) -> list[Size]:
    r"""Students of growing size, as student="auto" tries them, up to a number of bytes.

    Arguments:
        x: Rows, as of `build_student`, and so are outputs, task and encoder.
        max_bytes: The most that a student may take; None takes all.

    >>> sizes(torch.zeros(1, 10), 3, "classification", max_bytes=1000)
    [Size(hidden=(8,), bytes=540), Size(hidden=(16,), bytes=988)]
    """
    inputs = encoded(part_of(x, 0, 1), encoder)[0].numel()
    outputs = max(outputs, 2) if task == "classification" else outputs
    ends = 2 * outputs if task == "regression" else 0
    kept = 0 if encoder is None else _bytes(encoder)
    kept += 4 * (ends + (2 * inputs if encoder is None else 0))  # shifts and scales
    found = []
    for hidden in GROWING:
        layers = (inputs, *hidden, outputs)
        weights = sum((a + 1) * b for a, b in pairwise(layers))
        found.append(Size(hidden, kept + 4 * weights))
    found.sort(key=lambda size: size.bytes)
    if max_bytes is None:
        return found
    if max_bytes < found[0].bytes:
        expected = f"{found[0].bytes:,} or more, which the smallest student takes"
        raise ArgumentError("max_bytes", f"{max_bytes:,}", expected)
    return [size for size in found if size.bytes <= max_bytes]


def _bytes(module: nn.Module) -> int:
    return sum(t.numel() * t.element_size() for t in module.state_dict().values())


def _hidden(spec: Any) -> tuple[int, ...]:
    if isinstance(spec, str):
        if spec != "linear":
            raise ArgumentError.unknown("student", spec, ["auto", "linear", *FITTED])
        return ()
    found = (spec,) if is_count(spec) else spec
    if not isinstance(found, Sequence) or not all(map(is_count, found)):
        expected = (
            'hidden sizes as in (50, 30), "linear", "tree", "boosted", a torch module, or one of '
            "scikit-learn's decision trees, forests and boosted models"
        )
        raise ArgumentError("student", repr(spec), expected)
    return tuple(map(int, found))


def _units(targets: Any, outputs: int) -> tuple[Tensor, Tensor]:
    r"""What a network's outputs are shifted and multiplied by to be like the targets."""
    wanted = values(torch.as_tensor(np.asarray(targets)))
    if wanted.shape[1] != outputs:
        raise ArgumentError("targets", f"shape {tuple(wanted.shape)}", f"(n, {outputs})")
    shift, scale = standardising(wanted)
    return shift, torch.where(scale == 0, 0.0, 1 / torch.where(scale == 0, 1.0, scale))


def _taken(module: nn.Module, x: X, outputs: int, encoder: nn.Module | None) -> nn.Module:
    r"""A module of the user's own, tried at a few rows; behind the encoder if it needs it."""
    wrapped = [] if encoder is None else [Preprocessed(module, encoder=encoder)]
    few, failure = part_of(x, 0, LOOKED_AT), None
    count = rows(few)
    for student in [module, *wrapped]:
        try:
            found = _tried(student, few)
        except Exception as error:  # whatever a module of the user's own may raise
            failure = failure or error
            continue
        tensor = isinstance(found, Tensor)
        if tensor and found.ndim and len(found) == count and found[0].numel() == outputs:
            return student
        shape = f"shape {tuple(found.shape)}" if tensor else f"type {type(found).__name__}"
        received = f"a module whose outputs for {count} rows have {shape}"
        expected = f"outputs ({count}, {outputs}), one for each class, label or value"
        raise ArgumentError("student", received, expected)
    received = f"a {type(module).__name__} that fails on the inputs: {failure}"
    raise ArgumentError("student", received, "a module that takes rows as they are") from failure


@torch.no_grad()
def _tried(module: nn.Module, x: X) -> Any:
    r"""What a module gives in evaluation mode, on its own device and in its own precision."""
    like = next((p for p in module.parameters() if p.is_floating_point()), None)
    if like is not None:
        place, kind = like.device, like.dtype
        x = map_tensors(lambda t: t.to(place, kind if t.is_floating_point() else t.dtype), x)
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        return module(x)
    finally:
        for part in training:
            part.training = True
