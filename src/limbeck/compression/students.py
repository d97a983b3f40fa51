r"""Students by name or size, networks to train and trees to fit; and their predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from limbeck import outputs as forms
from limbeck.arrays import X, float_tensor, input_dtype, map_tensors, part_of, rows
from limbeck.compression.rows import RowFormat
from limbeck.errors import ArgumentError, shown
from limbeck.evaluation import evaluating
from limbeck.models.checks import is_count
from limbeck.models.mlp import MLP
from limbeck.models.preprocessed import Preprocessed, origin_of, standardising
from limbeck.models.tree import Trees, is_tree_estimator
from limbeck.models.tree_fit import fit_boosted, fit_tree

# what is fitted to labelled rows directly, by name
FITTED: dict[str, Any] = {"tree": fit_tree, "boosted": fit_boosted}
LIKELY = 1e-5  # the probability from which a class of a row counts, for classifiers
PLACES = 3  # numbers at most that stand for a category of many, in boosted trees
FEW_ROWS = 5.0  # of a category: its mean is half of what so many rows say
EXAMPLES = 4  # rows at which a module of the user's own is tried


@dataclass(frozen=True)
class Forest:
    r"""A boosted forest of a given size, as a student."""

    trees: int
    leaves: int

    def __str__(self) -> str:
        return f"{self.trees} boosted trees of {self.leaves} leaves"

    def bytes(self, outputs: int) -> int:
        r"""The bytes of its tensors, at most."""
        nodes = self.trees * (2 * self.leaves - 1)
        return 4 * (nodes * (4 + outputs) + self.trees + outputs)


# sizes that student="auto" goes through: hidden ones of nets, and forests
GROWING = ((8,), (16,), (32,), (32, 16), (50, 30), (100, 50), (200, 100), (400, 200), (800, 400))
FORESTS = (Forest(30, 8), Forest(100, 16), Forest(200, 31), Forest(400, 63))
Size = tuple[int, ...] | Forest


@dataclass(frozen=True)
class Fitted:
    r"""A student that is fitted to labelled rows directly, instead of trained step by step."""

    kind: str  # "tree", "boosted" or "estimator"
    task: str = "classification"
    encoder: nn.Module | None = None  # from raw inputs to columns; it is not trained
    seed: int = 0
    estimator: Any = None  # one of scikit-learn's trees or forests, to be cloned
    options: dict[str, Any] = field(default_factory=dict)  # of `fit_tree` or `fit_boosted`
    origin: Tensor | None = None  # subtracted from inputs in float64

    def fit(
        self, x: X, targets: np.ndarray, weight: np.ndarray | None = None
    ) -> Trees | Preprocessed:
        r"""Trees on raw inputs, fitted to targets (n, K), perhaps with weights (n,) of rows."""
        table = encoded(narrowed(x, self.origin), self.encoder)
        if self.estimator is not None:
            columns = table.flatten(1).cpu().numpy()
            trees = self._fit_estimator(columns, targets.astype(np.float64), weight)
        else:
            options = {"task": self.task, "seed": self.seed, **self.options}
            trees = FITTED[self.kind](table, targets, sample_weight=weight, **options)
        bare = self.encoder is None and self.origin is None
        return trees if bare else Preprocessed(trees, encoder=self.encoder, origin=self.origin)

    def _fit_estimator(self, x: np.ndarray, y: np.ndarray, rows: np.ndarray | None) -> Trees:
        r"""A clone of the scikit-learn estimator, fitted to soft targets (n, K)."""
        from sklearn.base import clone, is_classifier

        model = clone(self.estimator)
        if model.get_params().get("random_state", 0) is None:
            model.set_params(random_state=self.seed)
        if is_classifier(model):
            if self.task != "classification":
                received = f"a {type(model).__name__} for {self.task}"
                raise ArgumentError("student", received, "a regressor")
            # every row once for each likely class, weighted by its probability; a class that is
            # likely nowhere has next to no weight everywhere
            weight = np.where(y < LIKELY, 0.0, y)
            weight[:, weight.sum(0) == 0] = LIKELY
            row, label = np.nonzero(weight)
            weight = weight if rows is None else weight * rows[:, None]
            model.fit(x[row], label, sample_weight=weight[row, label])
        else:
            model.fit(x, y[:, 0] if y.shape[1] == 1 else y, sample_weight=rows)
        kinds = {"classification": "probabilities", "multilabel": "labels"}
        trees = Trees.from_sklearn(model)
        trees.kind = kinds.get(self.task, "values")
        return trees


def encoded(x: X, encoder: Callable[[X], Tensor] | None) -> Tensor:
    r"""The rows as a matrix; without an encoder, the tensor that they are."""
    if encoder is None:
        assert isinstance(x, Tensor)
        return x
    with torch.no_grad():
        return torch.cat([encoder(part_of(x, at, 10_000)) for at in range(0, rows(x), 10_000)])


def is_net(spec: object) -> bool:
    r"""Whether a student is a net of limbeck's own; not a module, nor a tree or forest."""
    named = isinstance(spec, str) and spec in FITTED
    return not (named or is_tree_estimator(spec) or isinstance(spec, nn.Module))


def hidden_sizes(spec: object) -> tuple[int, ...]:
    r"""The widths of the hidden layers of a net; what is no student is refused."""
    if isinstance(spec, str) and spec != "linear":
        raise ArgumentError.unknown("student", spec, ["auto", "linear", *FITTED])
    hidden: Any = () if isinstance(spec, str) else (spec,) if is_count(spec) else spec
    if not isinstance(hidden, Sequence) or not all(map(is_count, hidden)):
        expected = (
            'hidden sizes as in (50, 30), "linear", "tree", "boosted", a torch module, or one of '
            "scikit-learn's decision trees and forests"
        )
        raise ArgumentError("student", shown(spec), expected)
    return tuple(map(int, hidden))


def build_student(
    spec: object, x: X, outputs: int, task: str, *, encoder: nn.Module | None = None, seed: int = 0
) -> nn.Module | Fitted:
    r"""A student of a spec (`compress`'s argument), ready to be trained or fitted."""
    if isinstance(spec, nn.Module):
        return _user_module(spec, x, outputs, encoder)
    origin = origin_of(x) if isinstance(x, Tensor) else None
    fitted = partial(Fitted, task=task, encoder=encoder, seed=seed, origin=origin)
    if is_tree_estimator(spec):
        return fitted("estimator", estimator=spec)
    if isinstance(spec, str) and spec in FITTED:
        return fitted(spec)
    if isinstance(spec, Forest):
        options: dict[str, Any] = {"trees": spec.trees, "max_leaf_nodes": spec.leaves}
        options["learning_rate"] = 0.2 if spec.trees > 100 else 0.3  # few trees take long steps
        return fitted("boosted", options=options)
    x = narrowed(x, origin)
    table = encoded(part_of(x, 0, EXAMPLES) if encoder is not None else x, encoder)
    # an encoder scales by itself, and its outputs change as it is trained
    shift, scale = standardising(table) if encoder is None else (None, None)
    form, start = "logits" if task == "classification" else "values", torch.Generator()
    widths = (table[0].numel(), *hidden_sizes(spec), outputs)
    network = MLP(*widths, output_form=form, generator=start.manual_seed(seed))
    return Preprocessed(network, shift, scale, encoder=encoder, origin=origin)


def tree_encoder(
    layout: RowFormat, kind: str, x: X, targets: np.ndarray, task: str
) -> nn.Module | None:
    r"""The encoder of trees: indicators of categories, whose rules can be read.

    In boosted trees, of a column of many categories each one has up to three numbers: where its
    mean target lies along the main directions of all categories' means. A threshold then parts
    categories of low and high targets, as LightGBM's own sets of categories do, but every export
    knows thresholds, and the numbers take 12 bytes a category where a set takes them at each split.
    """
    if kind != "boosted" or isinstance(x, Tensor):
        return layout.encoder("one_hot")
    encoder: Any = layout.encoder(min(PLACES, max(1, targets.shape[1] - (task != "regression"))))
    t = targets
    if task != "regression":
        t = np.log(targets.clip(LIKELY)) - np.log((1 - targets).clip(LIKELY))
    t = (t - t.mean(0)) / max(t.std(), np.finfo(float).tiny)
    for key, layer in zip(encoder.embedded, encoder.embeddings, strict=True):
        codes, count = x[key].numpy(), len(layer.weight)
        sums = np.stack([np.bincount(codes, column, count) for column in t.T], 1)
        means = sums / (np.bincount(codes, minlength=count)[:, None] + FEW_ROWS)
        u, spread, _ = np.linalg.svd(means, full_matrices=False)  # rows without data stay at 0
        places = np.zeros(tuple(layer.weight.shape))
        places[:, : len(spread)] = (u * spread)[:, : places.shape[1]]
        with torch.no_grad():
            layer.weight.copy_(torch.as_tensor(places))
    return encoder


def sizes(
    x: X, outputs: int, task: str, encoder: nn.Module | None = None, max_bytes: int | None = None,
    forests: bool = False,
) -> dict[Size, int]:  # fmt: skip
    r"""Sizes that student="auto" tries, the smallest first, with their bytes; forests at most."""
    inputs = encoded(part_of(x, 0, 1), encoder)[0].numel()
    # shifts and scales, of inputs and outputs
    fixed = 8 * inputs if encoder is None else tensor_bytes(encoder)
    fixed += 8 * outputs if task == "regression" else 0
    students: dict[Size, int] = {}
    for hidden in GROWING:
        layers = pairwise((inputs, *hidden, outputs))
        students[hidden] = fixed + 4 * sum((a + 1) * b for a, b in layers)
    for forest in FORESTS if forests else ():
        students[forest] = fixed + forest.bytes(outputs)
    smallest = min(students.values())
    if max_bytes is not None and max_bytes < smallest:
        expected = f"{smallest:,} or more, which the smallest student takes"
        raise ArgumentError("max_bytes", f"{max_bytes:,}", expected)
    growing = sorted(students.items(), key=lambda student: student[1])
    return {hidden: size for hidden, size in growing if max_bytes is None or size <= max_bytes}


def tensor_bytes(module: nn.Module) -> int:
    r"""The bytes of a module's parameters and buffers."""
    return sum(t.nbytes for t in module.state_dict().values())


@torch.no_grad()
def _user_module(module: nn.Module, x: X, outputs: int, encoder: nn.Module | None) -> nn.Module:
    r"""A module of the user's own, tried at a few rows; behind the encoder if it needs it."""
    wrapped = [] if encoder is None else [Preprocessed(module, encoder=encoder)]
    failure, count = None, min(EXAMPLES, rows(x))
    like = next((p for p in module.parameters() if p.is_floating_point()), torch.empty(0))
    examples = narrowed(part_of(x, 0, EXAMPLES), None, like.dtype)
    examples = map_tensors(lambda t: t.to(like.device), examples)
    for student in [module, *wrapped]:
        try:
            with evaluating(student):
                y: Any = student(examples)
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


def output_form(student: nn.Module, form: str | None) -> str:
    r"""The form of a student's outputs: as recorded, or its own."""
    return form or getattr(student, "output_form", None) or "logits"


def answers(outputs: Tensor, task: str, form: str) -> Tensor:
    r"""Raw outputs as probabilities, or values, (n, K)."""
    y = forms.values(outputs)
    if task == "classification":
        return forms.log_probabilities(y, form).exp()
    return y.sigmoid() if task == "multilabel" and form != "probabilities" else y


@torch.no_grad()
def predictions(student: nn.Module, x: X, task: str, form: str | None = None) -> np.ndarray:
    r"""A student's predictions (n, K): probabilities, or values."""
    device = float_tensor(student, torch.empty(0)).device
    form = output_form(student, form)
    blocks = []
    with evaluating(student):
        for start in range(0, rows(x), 10_000):
            part = student_inputs(student, part_of(x, start, 10_000))
            part = map_tensors(lambda t: t.to(device), part)
            blocks.append(answers(student(part), task, form).double().cpu().numpy())
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
