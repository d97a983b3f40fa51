r"""XGBoost's, LightGBM's and CatBoost's own models as teachers; what they predict, they say."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from limbeck.errors import ArgumentError
from limbeck.teachers import fingerprints
from limbeck.teachers.keys import count
from limbeck.teachers.predictor import RawPredictor, as_given, look
from limbeck.teachers.readings import Reading, Said, as_outputs, read, settle

__all__ = ["Booster", "Objective", "is_booster", "objective"]

TASKS = {
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
r"""Objectives of which it is known what they predict."""

EXPONENTIAL = {"Poisson", "Tweedie"}  # CatBoost's losses of a logarithm


class Objective(NamedTuple):
    r"""What a boosted model was fitted for.

    Attributes:
        name: As its library has it.
        task: One of `readings.TASKS`; None if it is not known.
        labels: The number of labels in "multilabel", where the model says it.
    """

    name: str
    task: str | None
    labels: int | None = None


class Booster(RawPredictor):
    r"""A `xgboost.Booster`, a `lightgbm.Booster` or a `catboost.CatBoost`.

    Arguments:
        model: The model.
        X: A few rows, at which its answers are looked at.
        said: What the user said of them; the model's objective says it too, if it is known.
    """

    def __init__(self, model: Any, X: Any, said: Said) -> None:
        self.model, self.library = model, _library(model)
        if self.library == "catboost" and not model.is_fitted():
            raise ArgumentError("teacher", "a CatBoost that is not fitted", "a fitted model")
        self.objective = objective(model)
        assert self.objective is not None
        self.known = self.objective.task is not None and said.task in ("auto", self.objective.task)
        if not self.known and said.task == "auto":
            received = f"'auto', for a model of the objective {self.objective.name!r}"
            raise ArgumentError("task", received, '"classification", "multilabel" or "regression"')
        raw = self.raw(look(X, "what the model gives"))
        self.reading = (
            Reading(str(self.objective.task), self._form(str(self.objective.task)))
            if self.known
            else settle(raw, said, network=True)
        )
        columns = read(raw, self.reading).shape[1]
        own = getattr(model, "classes_", None) if self.reading.task == "classification" else None
        own = own if own is not None and len(own) == columns else None
        name = type(model).__name__
        name = name if self.library == "catboost" else f"{self.library}.{name}"
        super().__init__(name, self.reading.task, columns, own, said.classes)

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
        return as_outputs(
            _PREDICT[self.library](self.model, as_given(X), self.objective.name, probable), count(X)
        )


def is_booster(model: Any) -> bool:
    r"""Whether a model is one of the libraries' own, rather than their scikit-learn estimators."""
    name = type(model).__name__
    return name == {"xgboost": "Booster", "lightgbm": "Booster", "catboost": "CatBoost"}.get(
        _library(model)
    )


def objective(model: Any) -> Objective | None:
    r"""What a boosted model, or the scikit-learn estimator of one, was fitted for."""
    library = _library(model)
    return _OBJECTIVES[library](model) if library in _OBJECTIVES else None


def _library(model: Any) -> str:
    roots = (base.__module__.split(".")[0] for base in type(model).__mro__)
    return next((root for root in roots if root in TASKS), "")


def _task(library: str, name: str) -> str | None:
    return next((task for task, known in TASKS[library].items() if name in known), None)


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
    said = (line.removeprefix("objective=") for line in header if line.startswith("objective="))
    name = next(said, "custom").split(" ")[0]
    return Objective(name, _task("lightgbm", name))


def _catboost_objective(model: Any) -> Objective:
    name = str(model.get_all_params().get("loss_function", "custom")).split(":")[0]
    task = _task("catboost", name)
    return Objective(name, task, len(model.classes_) if task == "multilabel" else None)


def _xgboost_predict(model: Any, X: Any, objective: str, probable: bool) -> Any:
    import xgboost

    options = {} if hasattr(X, "columns") else {"feature_names": model.feature_names}
    rows = xgboost.DMatrix(X, enable_categorical=True, **options)
    return model.predict(rows, output_margin=probable)


def _lightgbm_predict(model: Any, X: Any, objective: str, probable: bool) -> Any:
    return model.predict(X)


def _catboost_predict(model: Any, X: Any, objective: str, probable: bool) -> Any:
    kind = "Exponent" if objective in EXPONENTIAL else "RawFormulaVal"
    return model.predict(X, prediction_type="Probability" if probable else kind)


_OBJECTIVES: dict[str, Callable[[Any], Objective]] = {
    "xgboost": _xgboost_objective,
    "lightgbm": _lightgbm_objective,
    "catboost": _catboost_objective,
}
_PREDICT: dict[str, Callable[[Any, Any, str, bool], Any]] = {
    "xgboost": _xgboost_predict,
    "lightgbm": _lightgbm_predict,
    "catboost": _catboost_predict,
}
