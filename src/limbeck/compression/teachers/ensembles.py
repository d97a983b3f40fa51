r"""Several teachers as one: averaged, weighted, or stacked under a further model."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from limbeck.compression.teachers.fingerprints import digest
from limbeck.compression.teachers.networks import Network
from limbeck.compression.teachers.predictors import Predictor
from limbeck.compression.teachers.readings import Said
from limbeck.errors import ArgumentError
from limbeck.models.ensemble import Ensemble

__all__ = ["Average", "Stack", "agreed", "averaged", "side_by_side"]


class Average(Predictor):
    r"""The mean of what its members say, over classes that all of them have.

    Arguments:
        members: Predictors of the same task and the same classes (see `agreed`).
        weights: One positive number for each member; None weighs all equally.
    """

    def __init__(self, members: Sequence[Predictor], weights: Any = None) -> None:
        self.members = list(members)
        self.weights = _normalised(weights, len(self.members))
        one = self.members[0]
        own = one.classes if any(member.named for member in self.members) else None
        super().__init__(f"ensemble of {len(self.members)}", one.task, one.outputs, own)

    def answers(self, X: Any) -> np.ndarray:
        total = 0.0
        for member, weight in zip(self.members, self.weights, strict=True):
            total = total + weight * member(X)
        return np.asarray(total)

    def content(self) -> str | None:
        return _content(self.members, self.weights.tobytes())

    def bytes(self) -> int | None:
        return super().bytes() or _bytes(self.members)

    def refit(self, X: Any, y: Any) -> Predictor:
        fitted = copy.copy(self)
        fitted.members = [member.refit(X, y) for member in self.members]
        return fitted


class Stack(Predictor):
    r"""A further model on what the members say, side by side.

    Arguments:
        members: Predictors of any task.
        final: The predictor that maps all their answers (n, M·K) to the final one.
    """

    def __init__(self, members: Sequence[Predictor], final: Predictor) -> None:
        self.members, self.final = list(members), final
        name = f"stack of {len(self.members)}"
        own = final.classes if final.named else None
        super().__init__(name, final.task, final.outputs, own)

    def answers(self, X: Any) -> np.ndarray:
        return self.final(side_by_side(self.members, X))

    def content(self) -> str | None:
        return _content([*self.members, self.final], b"stack")

    def bytes(self) -> int | None:
        return super().bytes() or _bytes([*self.members, self.final])


def side_by_side(members: Sequence[Predictor], X: Any) -> np.ndarray:
    r"""The answers (n, M·K) of several predictors."""
    return np.concatenate([member(X) for member in members], axis=1)


def agreed(members: Sequence[Predictor]) -> list[Predictor]:
    r"""The same members over the same classes; those that have not seen a class give it 0."""
    tasks = sorted({member.task for member in members})
    if len(tasks) > 1:
        received = f"members for {' and '.join(tasks)}"
        raise ArgumentError("teacher", received, "members of one task, or task= to say which")
    named = [member.classes for member in members if member.named and member.classes is not None]
    classes = _union(named)
    if classes is not None:
        return [member.onto(classes) for member in members]
    outputs = {member.outputs for member in members}
    if len(outputs) > 1:
        received = f"members with {' and '.join(map(str, sorted(outputs)))} outputs"
        accepted = "members with as many outputs, or with names for their classes"
        raise ArgumentError("teacher", received, accepted)
    return list(members)


def averaged(members: Sequence[Predictor], weights: Any, X: Any) -> Predictor:
    r"""The average; of torch modules alone, as one module that the loop can differentiate.

    Arguments:
        members: As of `agreed`.
        weights: As of `Average`.
        X: A few rows; None if there are none at hand.
    """
    average = Average(members, weights)
    nets = [member for member in members if isinstance(member, Network)]
    if X is None or len(nets) < len(members) or not _alike(nets):
        return average
    forms = [net.reading.form for net in nets]
    shares = None if weights is None else average.weights.tolist()
    whole = Ensemble([net.module for net in nets], shares, forms)
    classes = average.classes if average.named else None
    return Network(whole, X, Said(average.task, classes=classes), name=average.name)


def _alike(nets: Sequence[Network]) -> bool:
    r"""Whether torch can average the modules: equal shapes, places and types, forms it knows."""
    if len({net.raw_columns for net in nets}) > 1:
        return False
    if len({(p.device, p.dtype) for net in nets for p in net.module.parameters()}) > 1:
        return False
    for net in nets:
        form = net.reading.form
        if getattr(net.module, "output_form", None) not in (None, form):
            return False  # the user knows better than the module
        if net.task == "multilabel" and form != "probabilities":
            return False  # an ensemble's logits are those of classes
    return True


def _union(named: Sequence[np.ndarray]) -> np.ndarray | None:
    if not named:
        return None
    if all(classes.tolist() == named[0].tolist() for classes in named):
        return named[0]
    every = {label for classes in named for label in classes.tolist()}
    if len({isinstance(label, str) for label in every}) > 1:
        received = " and ".join(str(classes.tolist()) for classes in named[:3])
        accepted = "members with the same names for classes, or classes= with all of them"
        raise ArgumentError("teacher", f"members with the classes {received}", accepted)
    return np.array(sorted(every))


def _normalised(weights: Any, count: int) -> np.ndarray:
    if weights is None:
        return np.full(count, 1 / count)
    accepted = f"{count} positive finite numbers, one for each member"
    try:
        found = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError):
        raise ArgumentError("weights", repr(weights), accepted) from None
    if found.shape != (count,) or not (np.isfinite(found) & (found > 0)).all():
        raise ArgumentError("weights", found.tolist(), accepted)
    return found / found.sum()


def _content(members: Sequence[Predictor], rest: bytes) -> str | None:
    parts = [member.fingerprint() for member in members]
    known = [part for part in parts if part is not None]
    return digest(rest, *known) if len(known) == len(parts) else None


def _bytes(members: Sequence[Predictor]) -> int | None:
    sizes = [member.bytes() for member in members]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None
