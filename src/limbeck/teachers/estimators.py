r"""Teachers fitted by scikit-learn, XGBoost, LightGBM or CatBoost: estimators and boosters."""

from __future__ import annotations

import contextlib
import copy
import json
import re
from typing import Any

import numpy as np

from limbeck.errors import ArgumentError
from limbeck.teachers.base import as_outputs
from limbeck.teachers.keys import as_given, count, first_rows
from limbeck.teachers.row_teacher import OutputKind, OutputSpec, RawTeacher, RowTeacher


class EstimatorTeacher(RowTeacher):
    r"""A fitted classifier with `predict_proba`, or a regressor; also in a Pipeline or a search."""

    model: Any

    def __init__(self, estimator: object, X: object, spec: OutputSpec) -> None:
        self.model, core, outer = estimator, _core(estimator), type(estimator).__name__
        if not is_fitted(estimator):
            raise ArgumentError("teacher", f"a {outer} that is not fitted", "a fitted one")
        self.task, columns, classes = _fitted(estimator, spec.task)
        spec.expect(self.task, outer)
        if columns is None:
            columns = self.answers(first_rows(X, "how many outputs the teacher has")).shape[1]
        name = outer if core is estimator else f"{type(core).__name__} in {outer}"
        super().__init__(name, self.task, columns, classes, spec.classes)

    def answers(self, X: object) -> np.ndarray:
        n, rows, model = count(X), as_given(X), self.model
        frames = is_predictor(model)
        names = model.features() if frames else getattr(model, "feature_names_in_", ())
        # one that was fitted to a frame takes columns by name
        if isinstance(rows, np.ndarray) and len(names) and rows.shape[1:] == (len(names),):
            with contextlib.suppress(ImportError):  # it was a frame of another kind
                import pandas

                rows = pandas.DataFrame(rows, columns=np.asarray(names))
        predict = "predict" if self.task == "regression" else "predict_proba"
        raw = getattr(model, predict)(rows)
        if frames and self.task == "classification":
            raw = raw[list(model.class_labels)]
        listed = isinstance(raw, list) and self.task == "multilabel"
        outputs = _positive(raw, model.classes_) if listed else as_outputs(raw, n)
        return outputs.reshape(n, -1).astype(np.float64)

    def refit(self, X: object, y: np.ndarray) -> RowTeacher:
        try:
            fresh = cloned(self.model)
        except TypeError as error:
            received = f"{self.name}, which cannot be cloned ({error})"
            expected = "0 with this teacher, or one with get_params"
            raise ArgumentError("teacher_folds", received, expected) from error
        fitted = EstimatorTeacher(fresh.fit(X, y), X, OutputSpec(self.task))
        return fitted if self.classes is None else fitted.with_classes(self.classes)


def cloned(estimator: Any) -> Any:
    r"""An estimator to be fitted anew; a copy of one that scikit-learn does not clone.

    These change their arguments, as CatBoost does; their `fit` starts from nothing, as any does.
    """
    from sklearn.base import clone

    try:
        return clone(estimator)
    except RuntimeError:
        return copy.deepcopy(estimator)


def is_predictor(value: object) -> bool:
    r"""Whether a value is a `TabularPredictor` of AutoGluon, whose models are in a folder."""
    methods = all(callable(getattr(value, name, None)) for name in ("predict_proba", "features"))
    return methods and hasattr(value, "problem_type") and hasattr(value, "class_labels")


def is_estimator(value: object) -> bool:
    r"""Whether a value is queried by `predict_proba` or, a regressor, by `predict`."""
    return hasattr(value, "predict_proba") or _estimator_type(value) is not None


def _estimator_type(value: Any) -> str | None:
    try:
        kind = value.__sklearn_tags__().estimator_type
    except AttributeError:  # of another library, or before scikit-learn 1.6
        kind = getattr(value, "_estimator_type", None)
    return kind if kind in ("classifier", "regressor") else None


def is_fitted(estimator: object) -> bool:
    r"""Whether scikit-learn would let an estimator predict; True for what is none of its own."""
    from sklearn.base import BaseEstimator
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    try:
        if isinstance(estimator, BaseEstimator):
            check_is_fitted(estimator)
    except NotFittedError:
        return False
    return True


def _fitted(estimator: Any, task: str) -> tuple[str, int | None, np.ndarray | None]:
    r"""The task, columns and classes of an estimator."""
    fitted, columns, classes = "regression", None, None
    if is_predictor(estimator):
        if estimator.problem_type in ("binary", "multiclass"):
            fitted, classes = "classification", np.asarray(estimator.class_labels)
            columns = len(classes)
    elif hasattr(estimator, "predict_proba"):
        core, names = _core(estimator), getattr(estimator, "classes_", None)
        columns = None if names is None else len(names)
        _, boosted, labels = objective(core)
        kind = getattr(getattr(core, "_label_binarizer", None), "y_type_", "")
        indicators = getattr(core, "multilabel_", False) or kind == "multilabel-indicator"
        if boosted == "multilabel":
            fitted, columns = "multilabel", labels
        elif isinstance(names, list) or indicators:  # one list of classes for each label
            fitted = "multilabel"
        elif task == "multilabel":  # it does not say so of itself
            fitted, columns = "multilabel", None
        else:
            fitted, classes = "classification", None if names is None else np.asarray(names)
    elif _estimator_type(estimator) == "classifier":
        expected = "a classifier with probabilities: CalibratedClassifierCV(classifier).fit(X, y)"
        name = type(estimator).__name__
        raise ArgumentError("teacher", f"a {name}, which has no predict_proba", expected)
    return fitted, columns, classes


def _core(estimator: object) -> object:
    r"""What is inside pipelines and searches."""
    if hasattr(estimator, "best_estimator_"):
        return _core(estimator.best_estimator_)
    steps = getattr(estimator, "steps", None)
    return _core(steps[-1][1]) if steps else estimator


def _positive(parts: list[np.ndarray], classes: list[np.ndarray]) -> np.ndarray:
    r"""Of (n, 2) for each label the second column; a label that was always the same is certain."""
    columns = []
    for part, known in zip(parts, classes, strict=True):
        if len(known) > 2:
            received = f"a label with {len(known)} classes, {np.asarray(known).tolist()}"
            raise ArgumentError("teacher", received, "labels that are there or not, of 2 classes")
        constant = np.full(len(part), float(bool(known[0])))
        columns.append(part[:, 1] if len(known) == 2 else constant)
    return np.stack(columns, axis=1)


# objectives, or families of them, of which it is known what they predict
BOOSTER_TASKS = {
    "xgboost": {
        "classification": "binary:logistic binary:logitraw multi:softprob multi:softmax",
        "regression": "reg count survival",
    },
    "lightgbm": {
        "classification": "binary multiclass",
        "regression": "regression regression_l1 huber fair poisson quantile mape gamma tweedie",
    },
    "catboost": {
        "classification": "Logloss CrossEntropy MultiClass",
        "multilabel": "MultiLogloss MultiCrossEntropy",
        "regression": "RMSE MAE Quantile LogLinQuantile MAPE Poisson Tweedie Huber Expectile Lq "
        "MultiRMSE MultiRMSEWithMissingValues LogCosh MultiQuantile",
    },
}


class BoosterTeacher(RawTeacher):
    r"""A `xgboost.Booster`, a `lightgbm.Booster` or a `catboost.CatBoost`."""

    model: Any

    def __init__(self, model: object, X: object, spec: OutputSpec) -> None:
        self.model, self.library = model, _library(model)
        if self.library == "catboost" and not self.model.is_fitted():
            raise ArgumentError("teacher", "a CatBoost that is not fitted", "a fitted model")
        self.objective, task, _ = objective(model)
        known = task is not None and spec.task in ("auto", task)
        if not known and spec.task == "auto":
            received = f"'auto', for a model of the objective {self.objective!r}"
            raise ArgumentError("task", received, '"classification", "multilabel" or "regression"')
        self.probable = known and task != "regression"  # whether it predicts probabilities
        raw = self.raw(first_rows(X, "what the model gives"))
        form = "logits" if self.library == "xgboost" else "probabilities"
        self.kind = OutputKind(str(task), form if self.probable else "values")
        if not known:
            self.kind = spec.infer(raw, network=True)
        classes = getattr(model, "classes_", None) if self.kind.task == "classification" else None
        if classes is not None and len(classes) != self.targets(raw).shape[1]:
            classes = None
        library = "" if self.library == "catboost" else f"{self.library}."
        super().__init__(library + type(model).__name__, raw, spec, classes)

    def raw(self, X: object) -> np.ndarray:
        rows, options = as_given(X), dict[str, Any]()
        if self.library == "xgboost":
            import xgboost

            names = {} if hasattr(rows, "columns") else {"feature_names": self.model.feature_names}
            rows = xgboost.DMatrix(rows, enable_categorical=True, **names)
            options = {"output_margin": self.probable}
        elif self.library == "catboost":
            kind = "Exponent" if self.objective in ("Poisson", "Tweedie") else "RawFormulaVal"
            options = {"prediction_type": "Probability" if self.probable else kind}
        return as_outputs(self.model.predict(rows, **options), count(X))


def is_booster(model: object) -> bool:
    r"""Whether a model is one of the libraries' own, rather than their scikit-learn estimators."""
    names = {"xgboost": "Booster", "lightgbm": "Booster", "catboost": "CatBoost"}
    return type(model).__name__ == names.get(_library(model))


def objective(model: Any) -> tuple[str, str | None, int | None]:
    r"""What a boosted model was fitted for: the objective's name, the task, how many labels."""
    library = _library(model)
    labels = None
    if library == "xgboost":
        booster = model.get_booster() if hasattr(model, "get_booster") else model
        learner = json.loads(booster.save_config())["learner"]
        name = learner["objective"]["name"]
        labels = int(learner["learner_model_param"].get("num_target", 1))
    elif library == "lightgbm":
        header = getattr(model, "booster_", model).model_to_string(num_iteration=1)
        match = re.search(r"^objective=([^ \n]*)", header, re.MULTILINE)
        name = match[1] if match else "custom"
    elif library == "catboost":
        name = str(model.get_all_params().get("loss_function", "custom")).split(":")[0]
    else:
        return "", None, None
    families, tasks = (name, name.split(":")[0]), BOOSTER_TASKS[library].items()
    task = next((t for family in families for t, known in tasks if family in known.split()), None)
    if task == "multilabel":
        labels = len(model.classes_)
    several = task == "classification" and labels is not None and labels > 1
    return name, "multilabel" if several else task, labels


def _library(model: object) -> str:
    roots = (base.__module__.split(".")[0] for base in type(model).__mro__)
    return next((root for root in roots if root in BOOSTER_TASKS), "")
