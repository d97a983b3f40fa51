r"""scikit-learn's protocol: estimators that learn from a teacher."""

from __future__ import annotations

import copy
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_array, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from limbeck.compression import estimator_files
from limbeck.compression.compress import compress
from limbeck.compression.compressed import Compressed
from limbeck.compression.estimator_teachers import carried, is_fitted, is_frame, settled
from limbeck.compression.keys import count
from limbeck.compression.teachers.dispatch import as_predictor
from limbeck.compression.teachers.predictors import Predictor, look
from limbeck.errors import ArgumentError

__all__ = ["DistilledClassifier", "DistilledRegressor"]

FEW = 1000
r"""Rows below which a fit is quick: inputs are not chosen by trying, and are fewer."""

INPUTS_EACH, STEPS_EACH, FEWEST_STEPS = 20, 3, 200
r"""For each of few rows: inputs that the teacher is asked about, and steps."""

SETTINGS = (
    "student", "loss", "inputs", "size", "steps", "label_weight", "teacher_folds", "keep",
    "max_bytes", "device", "progress",
)  # fmt: skip
r"""Arguments that `compress` takes too."""

RATES = {"lr", "optimizer", "schedule", "update", "preset"}
r"""Options of the training that settle the rate."""

OUTPUT = ("output", "weights", "stack", "classes", "task")
r"""What `as_predictor` may be told of a teacher."""


class Distilled(BaseEstimator):
    r"""What the classifier and the regressor share."""

    regression = False

    def __init__(
        self,
        teacher: Any = None,
        student: Any = (50, 30),
        *,
        loss: Any = "auto",
        inputs: Any = "auto",
        size: int | None = None,
        steps: int | None = None,
        label_weight: float = 0.0,
        teacher_folds: int | None = None,
        keep: float = 0.99,
        max_bytes: int | None = None,
        random_state: Any = 0,
        device: Any = "auto",
        progress: bool = False,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.teacher, self.student, self.loss, self.inputs = teacher, student, loss, inputs
        self.size, self.steps, self.label_weight = size, steps, label_weight
        self.teacher_folds, self.keep, self.max_bytes = teacher_folds, keep, max_bytes
        self.random_state, self.device, self.progress = random_state, device, progress
        self.options = options

    def fit(self, X: Any, y: Any = None) -> Self:
        r"""Fit the teacher to the labels, unless it is fitted, and the student to the teacher.

        Arguments:
            X: Rows: an array, a sparse matrix, a data frame with columns of any kind.
            y: Labels. A fitted teacher needs none; those it gets are mixed in with `label_weight`.
        """
        learns = not is_fitted(self.teacher)
        self._framed = is_frame(X)
        X = self._rows(X, reset=True)
        y = self._labels(y, strict=learns)
        if y is not None:
            check_consistent_length(X, y)
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = int(check_random_state(seed).randint(2**31))
        self.teacher_ = settled(self.teacher, X, y, self.regression, int(seed))
        given = dict(self.options or {})
        told = {name: given.pop(name) for name in OUTPUT if name in given}
        predictor = self._predictor(self.teacher_, X, told)
        chosen = self._settings(count(X)) | {"seed": int(seed)}
        for name in given.keys() & (chosen.keys() - {"held_out", "lr"}):
            raise ArgumentError("options", f"{name!r}", f"the estimator's own argument for {name}")
        self.result_: Compressed = compress(predictor, X, labels=y, **chosen | given)
        if self.result_.classes is not None:
            self.classes_ = self.result_.classes
        return self

    def predict(self, X: Any) -> np.ndarray:
        r"""Classes (n,), indicators (n, K) of several labels, or values (n,) or (n, K)."""
        check_is_fitted(self)
        return self.result_.predict(self._rows(X))

    def report(self, X: Any, y: Any = None, **options: Any) -> Any:
        r"""Teacher and student side by side on other rows, as `Compressed.report`."""
        check_is_fitted(self)
        return self.result_.report(self._rows(X), y, **options)

    def save(self, folder: str | Path) -> Path:
        r"""Write the student (safetensors) and the rest (JSON) into a folder; no teacher."""
        check_is_fitted(self)
        return estimator_files.save(self, folder)

    @classmethod
    def load(cls, folder: str | Path, student: Any = None) -> Self:
        r"""Read an estimator back; it predicts, and has forgotten its teacher.

        Arguments:
            folder: What `save` wrote.
            student: An empty copy of a module of the user's own; limbeck's models need none.
        """
        return estimator_files.load(cls, folder, student)

    def set_params(self, **params: Any) -> Self:
        inside = [name for name in params if name.startswith("teacher__")]
        if inside and "teacher" not in params and is_fitted(self.teacher):
            accepted = "a teacher that is not fitted, sklearn.clone(teacher), to be fitted with it"
            raise ArgumentError(inside[0], "a setting of a fitted teacher", accepted)
        found: Self = super().set_params(**params)
        return found

    def __sklearn_clone__(self) -> Self:
        bare = copy.copy(self)
        bare.teacher = None
        made: Self = super(Distilled, bare).__sklearn_clone__()
        made.teacher = carried(self.teacher)
        return made

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = find_spec("pandas") is not None  # rows with gaps are tables
        return tags

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        result = state.get("result_")
        if result is not None and result.problem is not None:
            # what the teacher said is not needed again, and what says it may be a local function
            bare = replace(result.problem, own=None, _kept={})
            state = state | {"result_": replace(result, problem=bare)}
        return state

    def _rows(self, X: Any, reset: bool = False) -> Any:
        if self._framed and is_frame(X):
            validate_data(self, X, reset=reset, skip_check_array=True)
            return X
        X = validate_data(
            self, X, reset=reset, accept_sparse="csr", allow_nd=True, ensure_all_finite="allow-nan"
        )
        if not self._framed:
            return X
        import pandas

        return pandas.DataFrame(X, columns=self.feature_names_in_)

    def _labels(self, y: Any, strict: bool) -> np.ndarray | None:
        r"""Labels as an array; checked as scikit-learn does if the teacher is fitted to them."""
        if y is None:
            return None
        y = np.asarray(y.detach().cpu() if hasattr(y, "detach") else y)
        if y.ndim == 2 and y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        return self._checked(y) if strict else y

    def _checked(self, y: np.ndarray) -> np.ndarray:
        r"""Labels that a teacher can be fitted to."""
        raise NotImplementedError

    def _predictor(self, teacher: Any, X: Any, told: dict[str, Any]) -> Predictor:
        r"""The teacher as a predictor for the estimator's task."""
        raise NotImplementedError

    def _taught(self, X: Any) -> np.ndarray:
        r"""What the teacher predicts."""
        check_is_fitted(self)
        if self.result_.problem is None:
            raise ArgumentError("y", None, "labels: an estimator that was read back has no teacher")
        found: np.ndarray = self.result_.problem.predictor.predict(self._rows(X))
        return found

    def _settings(self, n: int) -> dict[str, Any]:
        r"""Arguments of `compress`, with modest ones in place of "auto" where rows are few."""
        found = {name: getattr(self, name) for name in SETTINGS}
        grows = isinstance(self.student, str) and self.student == "auto"
        if not RATES & set(self.options or {}):
            found["lr"] = 0.01
        if n >= FEW:
            return found
        if isinstance(self.inputs, str) and self.inputs == "auto":
            found["inputs"] = "munge" if n > 1 else "data"
        if not grows:
            found["held_out"] = 0.0
        if self.size is None:
            found["size"] = min(10_000, INPUTS_EACH * n)
        if self.steps is None:
            found["steps"] = max(FEWEST_STEPS, STEPS_EACH * n)
        return found


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
        steps: Steps of the training. None goes by the number of inputs; below 1,000 rows it is 3
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
        return self.result_.predict_proba(self._rows(X))

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
            accepted = "classes (n,), or zeros and ones (n, K) for labels of which several may hold"
            raise ArgumentError("y", f"several columns of classes, shape {y.shape}", accepted)
        if y.ndim == 1 and len(np.unique(y)) < 2:
            raise ArgumentError("y", "labels of one class only", "two classes or more")
        return y

    def _predictor(self, teacher: Any, X: Any, told: dict[str, Any]) -> Predictor:
        some = look(X, "what the teacher gives")
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

    def _predictor(self, teacher: Any, X: Any, told: dict[str, Any]) -> Predictor:
        some = look(X, "what the teacher gives")
        return as_predictor(teacher, some, **{"task": "regression"} | told)
