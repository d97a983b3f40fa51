r"""Teachers fitted by scikit-learn, XGBoost, LightGBM or CatBoost: estimators and boosters."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np

from limbeck.errors import ArgumentError
from limbeck.teachers import fingerprints
from limbeck.teachers.keys import count
from limbeck.teachers.output_spec import (
    OutputKind,
    OutputSpec,
    as_outputs,
    infer_output,
    to_targets,
)
from limbeck.teachers.row_teacher import RawTeacher, RowTeacher, as_given, first_rows

__all__ = ["BoosterTeacher", "EstimatorTeacher", "is_booster", "is_estimator"]

# what estimators of scikit-learn's family say their type by, in its newer and older versions
OWN = ("__sklearn_tags__", "_estimator_type")


class Fitted(NamedTuple):
    r"""What an estimator is for; its columns and their names, where it says so itself."""

    task: str
    columns: int | None = None
    own: np.ndarray | None = None


class EstimatorTeacher(RowTeacher):
    r"""A fitted classifier with `predict_proba`, or a regressor; also in a Pipeline or a search."""

    def __init__(self, estimator: Any, X: Any, spec: OutputSpec) -> None:
        self.estimator = estimator
        _check_fitted(estimator)
        kind = _kind(estimator, spec.task)
        form = "values" if kind.task == "regression" else "probabilities"
        if spec.output not in ("auto", form):
            received = f"{spec.output!r} for {type(estimator).__name__}"
            raise ArgumentError("output", received, f"{form!r}, which is what it gives")
        self.task = kind.task
        columns = kind.columns
        if columns is None:
            columns = self.answers(first_rows(X, "how many outputs the teacher has")).shape[1]
        super().__init__(_name(estimator), kind.task, columns, kind.own, spec.classes)

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

    def refit(self, X: Any, y: Any) -> RowTeacher:
        from sklearn.base import clone

        try:
            fresh = clone(self.estimator)
        except (TypeError, RuntimeError) as error:
            raise ArgumentError(
                "teacher_folds",
                f"{self.name}, which cannot be cloned ({error})",
                "0 with this teacher, or one with get_params",
            ) from error
        fitted = EstimatorTeacher(fresh.fit(X, y), X, OutputSpec(self.task))
        return fitted if self.classes is None else fitted.with_classes(self.classes)


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


def _kind(estimator: Any, task: str) -> Fitted:
    if not hasattr(estimator, "predict_proba"):
        if _of_type(estimator) == "classifier":
            raise ArgumentError(
                "teacher",
                f"a {type(estimator).__name__}, which has no predict_proba",
                "a classifier with probabilities: CalibratedClassifierCV(classifier).fit(X, y)",
            )
        found = Fitted("regression")
    else:
        found = _classifier(estimator)
        if found.task == "classification" and task == "multilabel":
            found = Fitted("multilabel")  # it does not say so of itself
    if task not in ("auto", found.task):
        received = f"{task!r} for {type(estimator).__name__}"
        raise ArgumentError("task", received, f"{found.task!r}, which is what it was fitted for")
    return found


def _classifier(estimator: Any) -> Fitted:
    core = _core(estimator)
    own = getattr(estimator, "classes_", None)
    boosted = objective(core)
    if boosted is not None and boosted.task == "multilabel":
        return Fitted("multilabel", boosted.labels)
    if isinstance(own, list):  # one list of classes for each label
        return Fitted("multilabel", len(own))
    binarizer = getattr(core, "_label_binarizer", None)
    if getattr(core, "multilabel_", False) or (
        getattr(binarizer, "y_type_", "") == "multilabel-indicator"
    ):
        return Fitted("multilabel", None if own is None else len(own))
    if own is None:
        return Fitted("classification")
    return Fitted("classification", len(own), np.asarray(own))


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


# objectives of which it is known what they predict
BOOSTER_TASKS = {
    "xgboost": {
        "classification": {"binary:logistic", "binary:logitraw", "multi:softprob", "multi:softmax"},
        "regression": {"reg", "count", "survival"},  # families
    },
    "lightgbm": {
        "classification": {"binary", "multiclass"},
        "regression": {
            "regression", "regression_l1", "huber", "fair", "poisson", "quantile", "mape", "gamma",
            "tweedie",
        },
    },
    "catboost": {
        "classification": {"Logloss", "CrossEntropy", "MultiClass"},
        "multilabel": {"MultiLogloss", "MultiCrossEntropy"},
        "regression": {
            "RMSE", "MAE", "Quantile", "LogLinQuantile", "MAPE", "Poisson", "Tweedie", "Huber",
            "Expectile", "Lq", "MultiRMSE", "MultiRMSEWithMissingValues", "LogCosh",
        },
    },
}  # fmt: skip


class Objective(NamedTuple):
    r"""What a boosted model was fitted for."""

    name: str
    task: str | None
    labels: int | None = None


class BoosterTeacher(RawTeacher):
    r"""A `xgboost.Booster`, a `lightgbm.Booster` or a `catboost.CatBoost`."""

    def __init__(self, model: Any, X: Any, spec: OutputSpec) -> None:
        self.model, self.library = model, _library(model)
        if self.library == "catboost" and not model.is_fitted():
            raise ArgumentError("teacher", "a CatBoost that is not fitted", "a fitted model")
        self.objective = objective(model)
        assert self.objective is not None
        self.known = self.objective.task is not None and spec.task in ("auto", self.objective.task)
        if not self.known and spec.task == "auto":
            received = f"'auto', for a model of the objective {self.objective.name!r}"
            raise ArgumentError("task", received, '"classification", "multilabel" or "regression"')
        raw = self.raw(first_rows(X, "what the model gives"))
        self.kind = (
            OutputKind(str(self.objective.task), self._form(str(self.objective.task)))
            if self.known
            else infer_output(raw, spec, network=True)
        )
        columns = to_targets(raw, self.kind).shape[1]
        own = getattr(model, "classes_", None) if self.kind.task == "classification" else None
        own = own if own is not None and len(own) == columns else None
        name = type(model).__name__
        name = name if self.library == "catboost" else f"{self.library}.{name}"
        super().__init__(name, self.kind.task, columns, own, spec.classes)

    def content(self) -> str | None:
        return fingerprints.of_object(self.model)

    def bytes(self) -> int | None:
        return super().bytes() or fingerprints.object_bytes(self.model)

    def _form(self, task: str) -> str:
        if task == "regression":
            return "values"
        return "logits" if self.library == "xgboost" else "probabilities"

    def raw(self, X: Any) -> np.ndarray:
        assert self.objective is not None
        probable = self.known and self.objective.task != "regression"
        return as_outputs(self._predict(as_given(X), probable), count(X))

    def _predict(self, X: Any, probable: bool) -> object:
        if self.library == "xgboost":
            import xgboost

            named = {} if hasattr(X, "columns") else {"feature_names": self.model.feature_names}
            matrix = xgboost.DMatrix(X, enable_categorical=True, **named)
            return self.model.predict(matrix, output_margin=probable)
        if self.library == "lightgbm":
            return self.model.predict(X)
        assert self.objective is not None
        logarithm = self.objective.name in ("Poisson", "Tweedie")
        plain = "Exponent" if logarithm else "RawFormulaVal"
        return self.model.predict(X, prediction_type="Probability" if probable else plain)


def is_booster(model: Any) -> bool:
    r"""Whether a model is one of the libraries' own, rather than their scikit-learn estimators."""
    name = type(model).__name__
    return name == {"xgboost": "Booster", "lightgbm": "Booster", "catboost": "CatBoost"}.get(
        _library(model)
    )


def objective(model: object) -> Objective | None:
    r"""What a boosted model, or the scikit-learn estimator of one, was fitted for."""
    functions = {
        "xgboost": _xgboost_objective,
        "lightgbm": _lightgbm_objective,
        "catboost": _catboost_objective,
    }
    function = functions.get(_library(model))
    return None if function is None else function(model)


def _library(model: Any) -> str:
    roots = (base.__module__.split(".")[0] for base in type(model).__mro__)
    return next((root for root in roots if root in BOOSTER_TASKS), "")


def _task(library: str, name: str) -> str | None:
    return next((task for task, known in BOOSTER_TASKS[library].items() if name in known), None)


def _xgboost_objective(model: Any) -> Objective:
    booster = model.get_booster() if hasattr(model, "get_booster") else model
    learner = json.loads(booster.save_config())["learner"]
    name = learner["objective"]["name"]
    task = _task("xgboost", name) or _task("xgboost", name.split(":")[0])
    targets = int(learner["learner_model_param"].get("num_target", 1))
    several = targets > 1 and task == "classification"
    return Objective(name, "multilabel" if several else task, targets if several else None)


def _lightgbm_objective(model: Any) -> Objective:
    booster = getattr(model, "booster_", model)
    header = booster.model_to_string(num_iteration=1).splitlines()
    names = (line.removeprefix("objective=") for line in header if line.startswith("objective="))
    name = next(names, "custom").split(" ")[0]
    return Objective(name, _task("lightgbm", name))


def _catboost_objective(model: Any) -> Objective:
    name = str(model.get_all_params().get("loss_function", "custom")).split(":")[0]
    task = _task("catboost", name)
    return Objective(name, task, len(model.classes_) if task == "multilabel" else None)
