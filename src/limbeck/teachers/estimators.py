r"""scikit-learn's estimators, and all that follow its protocol, as teachers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from limbeck.errors import ArgumentError
from limbeck.teachers import fingerprints
from limbeck.teachers.boosters import objective
from limbeck.teachers.keys import count
from limbeck.teachers.predictor import Predictor, as_given, look
from limbeck.teachers.readings import Said, as_outputs

__all__ = ["Estimator", "is_estimator"]

OWN = ("__sklearn_tags__", "_estimator_type")
r"""What estimators of scikit-learn's family say their type by, in its newer and older versions."""


class Kind(NamedTuple):
    r"""What an estimator is for; its columns and their names, where it says so itself."""

    task: str
    columns: int | None = None
    own: np.ndarray | None = None


class Estimator(Predictor):
    r"""A fitted classifier with `predict_proba`, or a regressor; also in a Pipeline or a search.

    Arguments:
        estimator: The estimator.
        X: A few rows, where it does not say how many outputs it has.
        said: What the user said of it, which must agree with what it is.
    """

    def __init__(self, estimator: Any, X: Any, said: Said) -> None:
        self.estimator = estimator
        _check_fitted(estimator)
        kind = _kind(estimator, said.task)
        form = "values" if kind.task == "regression" else "probabilities"
        if said.output not in ("auto", form):
            received = f"{said.output!r} for {type(estimator).__name__}"
            raise ArgumentError("output", received, f"{form!r}, which is what it gives")
        self.task = kind.task
        columns = kind.columns
        if columns is None:
            columns = self.answers(look(X, "how many outputs the teacher has")).shape[1]
        super().__init__(_name(estimator), kind.task, columns, kind.own, said.classes)

    def answers(self, X: Any) -> np.ndarray:
        n, rows = count(X), _named(as_given(X), self.estimator)
        if self.task == "regression":
            found = as_outputs(self.estimator.predict(rows), n)
        else:
            raw = self.estimator.predict_proba(rows)
            listed = isinstance(raw, list) and self.task == "multilabel"
            found = _positive(raw, self.estimator.classes_) if listed else as_outputs(raw, n)
        return found.reshape(n, -1).astype(np.float64)

    def content(self) -> str | None:
        return fingerprints.of_object(self.estimator)

    def bytes(self) -> int | None:
        return super().bytes() or fingerprints.object_bytes(self.estimator)

    def refit(self, X: Any, y: Any) -> Predictor:
        from sklearn.base import clone

        try:
            fresh = clone(self.estimator)
        except (TypeError, RuntimeError) as error:
            raise ArgumentError(
                "teacher_folds",
                f"{self.name}, which cannot be cloned ({error})",
                "0 with this teacher, or one with get_params",
            ) from error
        fitted = Estimator(fresh.fit(X, y), X, Said(self.task))
        return fitted if self.classes is None else fitted.onto(self.classes)


def is_estimator(value: Any) -> bool:
    r"""Whether a value is to be asked by `predict_proba` or, a regressor, by `predict`."""
    return hasattr(value, "predict_proba") or _of_type(value) is not None


def _of_type(value: Any) -> str | None:
    if not any(hasattr(value, name) for name in OWN):  # others need no scikit-learn
        return None
    from sklearn.base import is_classifier, is_regressor

    try:
        if is_classifier(value):
            return "classifier"
        return "regressor" if is_regressor(value) else None
    except AttributeError:  # not one of scikit-learn's family
        return None


def _check_fitted(estimator: Any) -> None:
    from sklearn.base import BaseEstimator
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    if not isinstance(estimator, BaseEstimator):
        return
    try:
        check_is_fitted(estimator)
    except NotFittedError:
        name = type(estimator).__name__
        raise ArgumentError("teacher", f"a {name} that is not fitted", "a fitted one") from None


def _kind(estimator: Any, task: str) -> Kind:
    if not hasattr(estimator, "predict_proba"):
        if _of_type(estimator) == "classifier":
            raise ArgumentError(
                "teacher",
                f"a {type(estimator).__name__}, which has no predict_proba",
                "a classifier with probabilities: CalibratedClassifierCV(classifier).fit(X, y)",
            )
        found = Kind("regression")
    else:
        found = _classifier(estimator)
        if found.task == "classification" and task == "multilabel":
            found = Kind("multilabel")  # it does not say so of itself
    if task not in ("auto", found.task):
        received = f"{task!r} for {type(estimator).__name__}"
        raise ArgumentError("task", received, f"{found.task!r}, which is what it was fitted for")
    return found


def _classifier(estimator: Any) -> Kind:
    core = _core(estimator)
    own = getattr(estimator, "classes_", None)
    boosted = objective(core)
    if boosted is not None and boosted.task == "multilabel":
        return Kind("multilabel", boosted.labels)
    if isinstance(own, list):  # one list of classes for each label
        return Kind("multilabel", len(own))
    binarizer = getattr(core, "_label_binarizer", None)
    if getattr(core, "multilabel_", False) or (
        getattr(binarizer, "y_type_", "") == "multilabel-indicator"
    ):
        return Kind("multilabel", None if own is None else len(own))
    if own is None:
        return Kind("classification")
    return Kind("classification", len(own), np.asarray(own))


def _core(estimator: Any) -> Any:
    r"""What is inside pipelines and searches."""
    while True:
        if hasattr(estimator, "best_estimator_"):
            estimator = estimator.best_estimator_
        elif hasattr(estimator, "steps") and estimator.steps:
            estimator = estimator.steps[-1][1]
        else:
            return estimator


def _name(estimator: Any) -> str:
    core = _core(estimator)
    name = type(core).__name__
    return name if core is estimator else f"{name} in {type(estimator).__name__}"


def _positive(parts: list[np.ndarray], classes: list[np.ndarray]) -> np.ndarray:
    r"""Of (n, 2) for each label the second column; a label that was always the same is certain."""
    columns = []
    for part, known in zip(parts, classes, strict=True):
        if len(known) > 2:
            received = f"a label with {len(known)} classes, {np.asarray(known).tolist()}"
            raise ArgumentError("teacher", received, "labels that are there or not, of 2 classes")
        always = np.full(len(part), float(bool(known[0])))
        columns.append(part[:, 1] if len(known) == 2 else always)
    return np.stack(columns, axis=1)


def _named(X: Any, estimator: Any) -> Any:
    r"""An array as a frame, for an estimator that was fitted to one: it takes columns by name."""
    known = getattr(estimator, "feature_names_in_", None)
    if known is None or not isinstance(X, np.ndarray) or X.ndim != 2 or X.shape[1] != len(known):
        return X
    try:
        import pandas
    except ImportError:  # it was a frame of another kind
        return X
    return pandas.DataFrame(X, columns=np.asarray(known))
