r"""scikit-learn's protocol: estimators that learn from a teacher."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_array, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data
from torch import nn

from limbeck import arguments as arg
from limbeck.arrays import as_plain_array, as_weights
from limbeck.compression import dispatch
from limbeck.compression.compress import compress
from limbeck.compression.compressed import Compressed
from limbeck.compression.fidelity.report import Fidelity
from limbeck.compression.rows import read_rows
from limbeck.compression.training import is_auto
from limbeck.errors import ArgumentError, LimbeckError, rename_argument
from limbeck.inputs.base import Inputs
from limbeck.losses.base import Loss
from limbeck.tables.table import as_frame, check_names
from limbeck.teachers.keys import count, first_rows
from limbeck.teachers.row_teacher import RowTeacher
from limbeck.training.result import spec_of


class RefusedArgumentError(ArgumentError, TypeError):
    r"""An argument that scikit-learn refuses, by a ValueError or a TypeError."""


@contextmanager
def as_argument_error(argument: str) -> Iterator[None]:
    r"""Within, errors of scikit-learn's checks are also limbeck's."""
    try:
        yield
    except LimbeckError:
        raise
    except (TypeError, ValueError) as error:
        received = f"what it refuses ({error})"
        raise RefusedArgumentError(argument, received, "what scikit-learn accepts") from error


class LeftOut(str):
    r"""What a pickled estimator has in place of its fitted teacher: words."""


def bare(result: Compressed) -> Compressed:
    r"""A result without its teacher and rows."""
    return replace(result, problem=None, recipe=None, labels=None)


class Distilled(BaseEstimator):
    r"""What comes before scikit-learn's mixins in the classifier and the regressor."""

    regression = False

    def __init__(
        self,
        teacher: arg.UserObject[object] = None,
        student: arg.UserObject[object] = None,
        *,
        loss: arg.UserObject[str | Loss] = "auto",
        inputs: arg.UserObject[str | Inputs] = "auto",
        pool: arg.Count | None = None,
        steps: arg.Count | None = None,
        label_weight: arg.Fraction = 0.0,
        teacher_folds: Annotated[int, arg.Whole(2)] | None = None,
        keep: arg.Share = 0.99,
        max_bytes: arg.Count | None = None,
        max_latency: arg.Positive | None = None,
        random_state: arg.Seed | np.random.RandomState | None = 0,
        device: arg.Device | arg.Auto = "auto",
        progress: arg.Flag = False,
        options: arg.UserObject[dict[str, Any] | None] = None,
    ) -> None:
        arguments = dict(locals())  # which scikit-learn asks to be attributes of the same names
        del arguments["self"]
        self.__dict__.update(arguments)

    def fit(
        self, X: arg.UserObject[object], y: arg.UserObject[ArrayLike | None] = None,
        sample_weight: arg.UserObject[ArrayLike | None] = None,
    ) -> Self:  # fmt: skip
        r"""Fit the teacher to the labels, unless it is fitted, and the student to the teacher.

        Arguments:
            X: Rows: an array, a sparse matrix, a data frame with columns of any kind.
            y: Labels; with a fitted teacher they are mixed in by `label_weight`. Default: None.
            sample_weight: Weights of the rows, from 0, for a teacher that is fitted here and for
                the student, as in `limbeck.compress`. Default: None, equal ones.
        """
        converters = arg.declared(Distilled)
        for name, value in self.get_params(deep=False).items():
            (converters[name] or arg.AS_GIVEN)(name, value)
        if isinstance(self.teacher, LeftOut):
            raise ArgumentError("teacher", repr(self.teacher), "set_params(teacher=...) before fit")
        # the forest needs no columns by name; any other teacher may
        frame, by_user = dispatch.is_frame(X), self.teacher is not None
        if frame:
            with rename_argument("df", "X"):
                check_names(as_frame(X))
        self._framed = frame and (by_user or bool(dispatch.other_columns(X, "f")))
        rows = self._rows(X, reset=True)
        with as_argument_error("y"):
            labels = self._labels(y, strict=not dispatch.is_fitted(self.teacher))
            if labels is not None:
                check_consistent_length(rows, labels)
        if self._framed and "table" not in (self.options or {}):
            read_rows(rows)  # which refuses columns that the student could not take
        weight = as_weights(sample_weight, count(rows))
        seed: Any = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = int(check_random_state(seed).randint(2**31))
        regression, seed = self.regression, int(seed)
        self.teacher_ = dispatch.fit_teacher(self.teacher, rows, labels, regression, seed, weight)
        options = dict(self.options or {})
        names = ("teacher_output", "weights", "stack", "classes", "task")
        about = {name: options.pop(name) for name in names if name in options}
        with as_argument_error("X"):
            teacher = self._row_teacher(first_rows(rows, "what the teacher gives"), about)
        arguments = self._arguments(count(rows)) | {"seed": seed, "sample_weight": weight}
        for name in options.keys() & (arguments.keys() - {"lr"}):
            raise ArgumentError("options", f"{name!r}", f"the estimator's own argument for {name}")
        self.result_ = compress(teacher, rows, labels=labels, **arguments | options)
        if self.result_.classes is not None:
            self.classes_ = self.result_.classes
        student = self.result_.student
        # in double precision, where outputs for a row do not depend on other rows
        exact = copy.deepcopy(student).double() if spec_of(student) is not None else student
        self._exact = replace(bare(self.result_), student=exact)
        return self

    def predict(self, X: arg.UserObject[object]) -> np.ndarray:
        r"""Classes (n,), indicators (n, K) of several labels, or values (n,) or (n, K)."""
        check_is_fitted(self)
        return self._exact.predict(self._rows(X))

    def score(
        self, X: arg.UserObject[object], y: arg.UserObject[ArrayLike | None] = None,
        sample_weight: arg.UserObject[ArrayLike | None] = None,
    ) -> float:  # fmt: skip
        r"""The accuracy or R²; without labels, in relation to the teacher's predictions."""
        if y is None:
            check_is_fitted(self)
            if self.result_.problem is None:
                expected = "labels: pickled estimators have no teacher to compare with"
                raise ArgumentError("y", None, expected)
            y = self.result_.problem.teacher.predict(self._rows(X))
        with as_argument_error("sample_weight"):
            return float(super().score(X, y, sample_weight))

    def report(
        self, X: arg.UserObject[object], y: arg.UserObject[ArrayLike | None] = None, **options: Any
    ) -> Fidelity:
        r"""Compare teacher and student on other rows, as `Compressed.report` does."""
        check_is_fitted(self)
        return self.result_.report(self._rows(X), y, **options)

    def set_params(self, **params: Any) -> Self:
        inside = [name for name in params if name.startswith("teacher__")]
        if inside and "teacher" not in params and dispatch.is_fitted(self.teacher):
            expected = "a teacher that is not fitted, sklearn.clone(teacher), to be fitted with it"
            raise ArgumentError(inside[0], "a setting of a fitted teacher", expected)
        super().set_params(**params)
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = find_spec("pandas") is not None  # rows with gaps are tables
        tags.target_tags.required = not dispatch.is_fitted(self.teacher)
        tags.target_tags.multi_output = self.regression
        if not self.regression:
            tags.classifier_tags.multi_label = True
        return tags

    def __sklearn_clone__(self) -> Self:
        without = copy.copy(self)
        without.teacher = None
        fresh: Self = super(Distilled, without).__sklearn_clone__()
        fresh.teacher = dispatch.clone_teacher(self.teacher)
        return fresh

    def __getstate__(self) -> dict[str, Any]:
        r"""What a pickle holds: of a fitted estimator, neither its teacher nor the rows."""
        state: dict[str, Any] = super().__getstate__()
        result = state.get("result_")
        if result is None:
            return state
        state = state | {"result_": bare(result)}
        state.pop("teacher_", None)
        if dispatch.is_fitted(self.teacher):
            name = result.problem.teacher.name if result.problem else type(self.teacher).__name__
            state["teacher"] = LeftOut(f"{name}, left out of the pickle")
        return state

    def __copy__(self) -> Self:  # with the teacher, unlike a pickle
        copied = type(self).__new__(type(self))
        copied.__dict__.update(vars(self))
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        copied = type(self).__new__(type(self))
        copied.__dict__.update(copy.deepcopy(vars(self), memo))
        return copied

    def __getattr__(self, name: str) -> Any:
        if name == "teacher_" and "result_" in vars(self):
            raise AttributeError("teacher_: pickled estimators have no teacher")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _rows(self, X: object, reset: bool = False) -> Any:
        checks = {"accept_sparse": "csr", "allow_nd": True, "ensure_all_finite": "allow-nan"}
        with as_argument_error("X"):
            checked = validate_data(self, X, reset=reset, skip_check_array=self._framed, **checks)
        if not self._framed or dispatch.is_frame(X):
            return checked
        import pandas

        return pandas.DataFrame(np.asarray(X), columns=self.feature_names_in_).infer_objects()

    def _labels(self, y: ArrayLike | None, strict: bool) -> np.ndarray | None:
        r"""Labels as an array; checked as scikit-learn does if the teacher is fitted to them."""
        if y is None:
            return None
        labels = as_plain_array(y, "y")
        if labels.ndim == 2 and labels.shape[1] == 1:
            labels = column_or_1d(labels, warn=True)
        if not strict:
            return labels
        if self.regression:
            return np.asarray(check_array(labels, ensure_2d=False, dtype=float, input_name="y"))
        check_classification_targets(labels)
        if type_of_target(labels) == "multiclass-multioutput":
            expected = "classes (n,), or zeros and ones (n, K) for labels of which several may hold"
            raise ArgumentError("y", f"several columns of classes, shape {labels.shape}", expected)
        if labels.ndim == 1 and len(np.unique(labels)) < 2:
            raise ArgumentError("y", "labels of one class only", "two classes or more")
        return labels

    def _row_teacher(self, X: object, about: dict[str, Any]) -> RowTeacher:
        r"""The fitted teacher, for the estimator's task."""
        if self.regression:
            return dispatch.as_row_teacher(self.teacher_, X, **{"task": "regression"} | about)
        try:
            model = dispatch.as_row_teacher(self.teacher_, X, **about)
        except ArgumentError as error:
            if error.argument not in ("task", "teacher_output") or "task" in about:
                raise
            model = dispatch.as_row_teacher(self.teacher_, X, task="classification", **about)
        if model.task == "regression":
            raise ArgumentError("teacher", f"{model.name}, which gives values", "a classifier")
        return model

    def _arguments(self, n: int) -> dict[str, Any]:
        r"""Arguments of `compress`; a fit to few rows is quick, without choices by trial."""
        arguments: dict[str, Any] = self.get_params(deep=False)
        for name in ("teacher", "random_state", "options"):
            del arguments[name]
        arguments["student"] = copy.deepcopy(self.student)  # an estimator keeps its arguments
        if n < 1000:
            if is_auto(self.inputs):
                arguments["inputs"] = "munge" if n > 1 else "data"
            if self.pool is None:
                arguments["pool"] = min(10_000, 20 * n)
            if self.steps is None:
                arguments["steps"] = max(100, 2 * n)
        rates = {"lr", "optimizer", "update", "preset"} & set(self.options or {})
        by_user = isinstance(self.student, nn.Module) or rates
        if arguments["steps"] is not None and arguments["steps"] < 500 and not by_user:
            arguments["lr"] = 0.02  # a higher rate for few steps
        return arguments


class DistilledClassifier(Distilled, ClassifierMixin, BaseEstimator):
    r"""A small classifier that predicts like a cumbersome one.

    Arguments are as of `limbeck.compress`; fewer than 1,000 rows are fitted quickly.

    Arguments:
        teacher: A fitted one stays as it is, also in clones; a clone of one that is not is fitted
            first. Default: None, a random forest of 100 trees.
        student: Hidden sizes, a name, a tree or forest of scikit-learn, or a torch module.
            Default: None, a net (50, 30) or, of 1,000 rows or more, as of `limbeck.compress`.
        loss: From `limbeck.losses`, or a name. Default: cross entropy, or square error.
        inputs: The source of inputs. Default: "auto"; of fewer than 1,000 rows, "munge".
        pool: Number of inputs that the teacher labels. Default: as of `limbeck.compress`; of fewer
            than 1,000 rows, 20 for each row, up to 10,000.
        steps: Steps of the training. Default: by the number of inputs; of fewer than 1,000 rows, 2
            for each row, 100 or more.
        label_weight: The share of the labels that `fit` gets in the targets. Default: 0, none.
        teacher_folds: Folds in which the teacher is fitted anew to label the others. Default: None.
        keep: For student="auto": the fraction of the teacher's measure to keep. Default: 0.99.
        max_bytes: For student="auto": the largest student. Default: None.
        max_latency: For student="auto": microseconds for one row in `predict`. Default: None.
        random_state: Seeds everything; None takes another seed each time. Default: 0.
        device: Where the student is trained. Default: "auto".
        progress: Whether to show bars, if a terminal is there. Default: False.
        options: Further arguments of `limbeck.compress` and `limbeck.distill`, by name.

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

    def predict_proba(self, X: arg.UserObject[object]) -> np.ndarray:
        r"""Probabilities (n, K) of the classes, or of each label."""
        check_is_fitted(self)
        return self._exact.predict_proba(self._rows(X))


class DistilledRegressor(Distilled, RegressorMixin, BaseEstimator):
    r"""A small regressor that predicts like a cumbersome one.

    Arguments and attributes are those of `DistilledClassifier`, but for classes.

    >>> from sklearn.datasets import make_friedman1
    >>> X, y = make_friedman1(200, random_state=0)
    >>> small = DistilledRegressor(student=(16,)).fit(X, y)
    >>> small.predict(X[:2]).shape, small.score(X) > 0.7  # R² to the teacher
    ((2,), True)
    """

    regression = True
