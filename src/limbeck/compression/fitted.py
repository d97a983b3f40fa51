r"""Students that are fitted to labelled rows at once: trees, forests, boosted models."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from limbeck.core.batch import X, part_of, rows
from limbeck.errors import ArgumentError
from limbeck.models.preprocessed import Preprocessed
from limbeck.models.tree import Trees
from limbeck.models.tree_fit import fit_boosted, fit_tree
from limbeck.models.tree_sklearn import read

__all__ = ["FITTED", "Fitted", "encoded"]

FITTED = {"tree": fit_tree, "boosted": fit_boosted}
r"""What is fitted to labelled rows at once, by name."""

LIKELY = 1e-5
r"""The probability from which a class of a row counts, for classifiers."""

BLOCK = 10_000
r"""Rows that are encoded at once."""


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
            accepted = "a tensor (n, D); for a table, its encoder too"
            raise ArgumentError("x", f"a {type(x).__name__}", accepted) from None
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
