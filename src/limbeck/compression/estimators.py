r"""scikit-learn's protocol: estimators that learn from a teacher."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import check_array
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted

from limbeck.compression.dispatch import as_predictor
from limbeck.compression.estimator_base import Distilled, is_fitted
from limbeck.errors import ArgumentError
from limbeck.teachers.row_teacher import RowTeacher, first_rows

__all__ = ["DistilledClassifier", "DistilledRegressor"]


class DistilledClassifier(ClassifierMixin, Distilled):
    r"""A small classifier that predicts like a cumbersome one; see `limbeck.compress`.

    Arguments:
        teacher: Any that `limbeck.compress` takes. A fitted one stays as it is, also in clones; a
            clone of one that is not is fitted first; None is a random forest of 100 trees.
        student: Hidden sizes, "auto", "linear", "tree", "boosted", a tree of scikit-learn, or a
            torch module.
        loss: From `limbeck.losses`, or a name; "auto" is cross entropy, or square error.
        inputs: Where inputs come from. "auto" tries a few from 1,000 rows on; fewer rows are mixed
            with their neighbours.
        size: How many inputs a teacher that is not of torch is asked about. None is 10,000 to
            50,000; below 500 rows, 20 for each.
        steps: Steps of the training. None goes by the number of inputs; below 1,000 rows it is 2
            for each.
        label_weight: The share of true labels, where `fit` gets them, in what the student learns.
        teacher_folds: In how many folds a teacher that has seen the rows is fitted anew to label
            those that it has not.
        keep: For student="auto": the fraction of the teacher's measure that is enough.
        max_bytes: For student="auto": the largest student.
        random_state: Seeds everything; None takes another seed each time.
        device: Where the student is trained.
        progress: Whether to show bars, if a terminal is there.
        options: Further arguments of `limbeck.compress` and `limbeck.distill`, by name: cache,
            output, classes, batch_size, ….

    Attributes:
        classes_: Names of the classes.
        teacher_: The teacher, fitted.
        result_: What `limbeck.compress` gave: student, history, report.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> small = DistilledClassifier(student=(8,)).fit(X, y)
    >>> small.score(X, y) > 0.9, small.score(X) > 0.9  # accuracy, and agreement with the teacher
    (True, True)
    """

    classes_: np.ndarray

    def predict_proba(self, X: Any) -> np.ndarray:
        r"""Probabilities (n, K) of the classes, or of each label."""
        check_is_fitted(self)
        return self._exact.predict_proba(self._rows(X))

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        r"""The accuracy; without labels, the agreement with the teacher."""
        y = self._taught(X) if y is None else y
        return float(super().score(X, y, sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = not is_fitted(self.teacher)
        tags.classifier_tags.multi_label = True
        return tags

    def _checked(self, y: np.ndarray) -> np.ndarray:
        check_classification_targets(y)
        if type_of_target(y) == "multiclass-multioutput":
            expected = "classes (n,), or zeros and ones (n, K) for labels of which several may hold"
            raise ArgumentError("y", f"several columns of classes, shape {y.shape}", expected)
        if y.ndim == 1 and len(np.unique(y)) < 2:
            raise ArgumentError("y", "labels of one class only", "two classes or more")
        return y

    def _predictor(self, teacher: Any, X: Any, told: dict[str, Any]) -> RowTeacher:
        some = first_rows(X, "what the teacher gives")
        try:
            found = as_predictor(teacher, some, **told)
        except ArgumentError as error:
            if error.argument not in ("task", "output") or "task" in told:
                raise
            found = as_predictor(teacher, some, task="classification", **told)
        if found.task == "regression":
            raise ArgumentError("teacher", f"{found.name}, which gives values", "a classifier")
        return found


class DistilledRegressor(RegressorMixin, Distilled):
    r"""A small regressor that predicts like a cumbersome one; see `limbeck.compress`.

    Arguments and attributes are those of `DistilledClassifier`, but for classes.

    >>> from sklearn.datasets import make_friedman1
    >>> X, y = make_friedman1(200, random_state=0)
    >>> small = DistilledRegressor(student=(16,)).fit(X, y)
    >>> small.predict(X[:2]).shape, small.score(X) > 0.7  # R² to the teacher
    ((2,), True)
    """

    regression = True

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        r"""R²; without labels, R² to the teacher's values."""
        y = self._taught(X) if y is None else y
        return float(super().score(X, y, sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = not is_fitted(self.teacher)
        tags.target_tags.multi_output = True
        return tags

    def _checked(self, y: np.ndarray) -> np.ndarray:
        found: np.ndarray = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")
        return found

    def _predictor(self, teacher: Any, X: Any, told: dict[str, Any]) -> RowTeacher:
        some = first_rows(X, "what the teacher gives")
        return as_predictor(teacher, some, **{"task": "regression"} | told)
