r"""Any teacher as a predictor on arrays and frames; unfitted ones are fitted first."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from torch import nn

from limbeck.errors import ArgumentError, rename_argument, shown
from limbeck.models.ensemble import Ensemble
from limbeck.tables.columns import measured
from limbeck.teachers import estimators
from limbeck.teachers.fingerprints import digest
from limbeck.teachers.keys import first_rows
from limbeck.teachers.networks import NetworkTeacher, OnnxTeacher, open_model
from limbeck.teachers.row_teacher import FunctionTeacher, Names, OutputSpec, RowTeacher


class CombinedTeacher(RowTeacher):
    r"""Several teachers in one: their weighted average or, with a final model, a stack of them."""

    def __init__(
        self, members: Sequence[RowTeacher], weights: np.ndarray, final: RowTeacher | None = None
    ) -> None:
        self.members, self.weights, self.final = list(members), weights, final
        first, kind = (members[0], "ensemble") if final is None else (final, "stack")
        names = first.classes if first.named else None  # members agree on them
        super().__init__(f"{kind} of {len(members)}", first.task, first.outputs, names, None)

    @property
    def parts(self) -> list[RowTeacher]:
        return self.members if self.final is None else [*self.members, self.final]

    def answers(self, X: object) -> np.ndarray:
        if self.final is not None:
            return self.final(np.hstack([member(X) for member in self.members]))
        pairs = zip(self.members, self.weights, strict=True)
        return np.asarray(sum(weight * member(X) for member, weight in pairs))

    def refit(self, X: object, y: np.ndarray) -> RowTeacher:
        if self.final is not None:
            return super().refit(X, y)
        fitted = copy.copy(self)
        fitted.members = [member.refit(X, y) for member in self.members]
        return fitted

    def content(self) -> str | None:
        rule = self.weights.tobytes() if self.final is None else b"stack"
        codes = [part.fingerprint() for part in self.parts]
        return None if None in codes else digest(rule, *codes)  # type: ignore[arg-type]

    def bytes(self) -> int | None:
        sizes = [part.bytes() for part in self.parts]
        return None if None in sizes else sum(sizes)  # type: ignore[arg-type]


def agreed(members: list[RowTeacher]) -> list[RowTeacher]:
    r"""The same members over the same classes; those that have not seen a class give it 0."""
    tasks = sorted({member.task for member in members})
    if len(tasks) > 1:
        received = f"members for {' and '.join(tasks)}"
        raise ArgumentError("teacher", received, "members of one task, or task= to say which")
    named = [member.classes for member in members if member.named and member.classes is not None]
    if not named:
        outputs = sorted({member.outputs for member in members})
        if len(outputs) > 1:
            received = f"members with {' and '.join(map(str, outputs))} outputs"
            expected = "members with as many outputs, or with names for their classes"
            raise ArgumentError("teacher", received, expected)
        return members
    lists, classes = [names.tolist() for names in named], named[0]
    if any(names != lists[0] for names in lists):
        labels = {label for names in lists for label in names}
        if len({isinstance(label, str) for label in labels}) > 1:
            received = f"members with the classes {' and '.join(map(str, lists[:3]))}"
            expected = "members with the same names for classes, or classes= with all of them"
            raise ArgumentError("teacher", received, expected)
        classes = np.array(sorted(labels))
    return [member.with_classes(classes) for member in members]


def average_teachers(
    members: Sequence[RowTeacher], weights: ArrayLike | None, X: object
) -> RowTeacher:
    r"""The average; of torch modules alone, as one module that the loop can differentiate."""
    expected = f"{len(members)} positive finite numbers, one for each member"
    try:
        shares = np.asarray([1] * len(members) if weights is None else weights, dtype=np.float64)
    except (TypeError, ValueError):
        raise ArgumentError("weights", shown(weights), expected) from None
    if shares.shape != (len(members),) or not (np.isfinite(shares) & (shares > 0)).all():
        raise ArgumentError("weights", shares.tolist(), expected)
    average = CombinedTeacher(members, shares / shares.sum())
    nets = [member for member in members if isinstance(member, NetworkTeacher)]
    places = {(p.device, p.dtype) for net in nets for p in net.module.parameters()}
    one_kind = len({net.raw_columns for net in nets}) == 1 and len(places) <= 1
    # the user's setting takes precedence; an ensemble's logits are those of classes
    averages = all(
        getattr(net.module, "output_form", None) in (None, net.kind.form)
        and (net.task != "multilabel" or net.kind.form == "probabilities")
        for net in nets
    )
    if X is None or len(nets) < len(members) or not one_kind or not averages:
        return average
    normalised = None if weights is None else average.weights.tolist()
    ensemble = Ensemble([net.module for net in nets], normalised, [net.kind.form for net in nets])
    spec = OutputSpec(average.task, classes=average.classes if average.named else None)
    return NetworkTeacher(ensemble, X, spec, name=average.name)


ACCEPTED = (
    "a torch module, a fitted scikit-learn estimator, an AutoGluon predictor, a model of XGBoost, "
    "LightGBM or CatBoost or the file of one, an ONNX file, a callable, or a list of these"
)
LISTS = (list, tuple, nn.ModuleList)


def as_row_teacher(
    teacher: object, X: object = None, *, task: str = "auto", teacher_output: str = "auto",
    onnx_output: str | None = None, weights: ArrayLike | None = None, stack: object = None,
    classes: Names | None = None,
) -> RowTeacher:  # fmt: skip
    r"""A teacher of any kind, as a function from rows to probabilities or values (n, K).

    The arguments are those of `limbeck.compress`; X is a few rows, from which outputs are inferred.
    """
    spec = OutputSpec(task, teacher_output, classes, onnx_output).checked()
    if onnx_output is not None and not str(teacher).lower().endswith(".onnx"):
        received = f"{onnx_output!r} for a teacher that is not an ONNX file"
        raise ArgumentError("onnx_output", received, "None, or the path of an ONNX file as teacher")
    if isinstance(teacher, LISTS):
        model = _several(list(teacher), X, spec, weights, stack)
    elif weights is not None or stack is not None:
        argument = "stack" if weights is None else "weights"
        raise ArgumentError(argument, "one for a single teacher", "None, or a list of teachers")
    else:
        model = _single(teacher, X, spec)
    if model.task == "classification" and model.outputs < 2:
        raise ArgumentError("teacher", "a classifier of one class", "two classes or more")
    return model


def _single(teacher: object, X: object, spec: OutputSpec) -> RowTeacher:
    if isinstance(teacher, RowTeacher):
        return teacher if spec.classes is None else teacher.with_classes(spec.classes)
    if isinstance(teacher, type):
        raise ArgumentError("teacher", f"the class {teacher.__name__}", "an object of the class")
    if isinstance(teacher, str | Path):
        model, file = open_model(teacher)
        if not estimators.is_booster(model):
            return OnnxTeacher(model, file, X, spec)
        booster = estimators.BoosterTeacher(model, X, spec)
        booster.file, booster.name = file, file.path.name
        return booster
    if isinstance(teacher, nn.Module):
        return NetworkTeacher(teacher, X, spec)
    if estimators.is_booster(teacher):
        return estimators.BoosterTeacher(teacher, X, spec)
    if estimators.is_estimator(teacher):
        return estimators.EstimatorTeacher(teacher, X, spec)
    if callable(predict := getattr(teacher, "predict", None)):
        return FunctionTeacher(predict, X, spec, name=type(teacher).__name__)
    if callable(teacher):
        return FunctionTeacher(teacher, X, spec)
    raise ArgumentError("teacher", f"an object of type {type(teacher).__name__}", ACCEPTED)


def _several(
    teachers: list[Any], X: object, spec: OutputSpec, weights: ArrayLike | None, stack: object
) -> RowTeacher:
    if not teachers:
        raise ArgumentError("teacher", "an empty list", ACCEPTED)
    members = []
    for number, teacher in enumerate(teachers):
        several, inner = isinstance(teacher, LISTS), spec
        if stack is not None:  # whose members keep their classes in the order that it knows
            knows = several or estimators.is_estimator(teacher) or estimators.is_booster(teacher)
            inner = OutputSpec() if knows else OutputSpec(spec.task, spec.output)
        with rename_argument("teacher", f"teacher[{number}]"):
            if several:
                members.append(_several(list(teacher), X, inner, None, None))
            else:
                members.append(_single(teacher, X, inner))
    if stack is None:
        return average_teachers(agreed(members), weights, X)
    if weights is not None:
        raise ArgumentError("weights", "weights beside a stack", "one of the two")
    width = sum(member.outputs for member in members)
    if (columns := getattr(stack, "n_features_in_", width)) != width:
        received = f"a model of {columns} columns"
        raise ArgumentError("stack", received, f"one of {width}, all outputs of the members")
    first = None if X is None else first_rows(X, "what members give")
    rows = None if first is None else np.hstack([member(first) for member in members])
    with rename_argument("teacher", "stack"):
        final = _single(stack, rows, spec._replace(output="auto"))
    return CombinedTeacher(members, np.ones(len(members)), final)


def is_frame(X: object) -> bool:
    r"""Whether rows come as a data frame, whose columns have types of their own."""
    return hasattr(X, "columns") and hasattr(X, "dtypes")


def is_fitted(teacher: object) -> bool:
    r"""Whether a teacher is fitted; for a list, whether all members are."""
    if isinstance(teacher, list | tuple):
        return all(map(is_fitted, teacher))
    if callable(method := getattr(teacher, "is_fitted", None)):  # CatBoost's
        return bool(method())
    return teacher is not None and estimators.is_fitted(teacher)


def clone_teacher(teacher: object) -> Any:
    r"""The teacher of a clone: the same one if it is fitted, else an unfitted copy."""
    if teacher is None or is_fitted(teacher):
        return teacher
    if isinstance(teacher, list | tuple):
        return type(teacher)(map(clone_teacher, teacher))
    return estimators.cloned(teacher)


def fit_teacher(
    teacher: object, X: object, y: np.ndarray | None, regression: bool, seed: int,
    weight: np.ndarray | None = None,
) -> Any:  # fmt: skip
    r"""A fitted teacher: a clone of an unfitted one, or a forest for None, fitted to labels."""
    if is_fitted(teacher):
        return teacher
    if y is None:
        name = "None" if teacher is None else f"an unfitted {type(teacher).__name__}"
        received = f"None, with {name} for a teacher, which requires y to be passed, but the target"
        raise ArgumentError("y", f"{received} y is None", "fit(X, y), or a fitted teacher")
    if isinstance(teacher, list | tuple):
        return [fit_teacher(member, X, y, regression, seed, weight) for member in teacher]
    model = forest(X, regression, seed) if teacher is None else estimators.cloned(teacher)
    return model.fit(X, y, **_weight_argument(model, weight))


def _weight_argument(model: Any, weight: np.ndarray | None) -> dict[str, Any]:
    r"""The argument of a model's `fit` for weights of rows; of a pipeline, of its last step."""
    from sklearn.utils.validation import has_fit_parameter

    if weight is None:
        return {}
    last, prefix = model, ""
    while isinstance(steps := getattr(last, "steps", None), list):
        prefix, last = f"{prefix}{steps[-1][0]}__", steps[-1][1]
    if not has_fit_parameter(last, "sample_weight"):
        received = f"weights for a teacher, {type(last).__name__}, whose fit takes none"
        raise ArgumentError("sample_weight", received, "a teacher that takes them, or a fitted one")
    return {f"{prefix}sample_weight": weight}


def forest(X: Any, regression: bool, seed: int) -> Any:
    r"""A random forest for rows of this kind; all columns of a frame become numbers first."""
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    kind = RandomForestRegressor if regression else RandomForestClassifier
    trees = kind(100, random_state=seed)
    if not is_frame(X):
        return trees
    words = other_columns(X, "biufM")
    types = {name: X[name].dtype for name in X.columns if name not in words}
    # dates; and pandas' own numbers and flags, whose gaps are of another kind than NaN
    numbers = [n for n, t in types.items() if not isinstance(t, np.dtype) or t.kind == "M"]
    if not words and not numbers:
        return trees
    from sklearn.compose import make_column_transformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, OrdinalEncoder

    unknown = {"handle_unknown": "use_encoded_value", "unknown_value": -1}
    codes = OrdinalEncoder(**unknown, encoded_missing_value=-2)
    parts = [(codes, words), (FunctionTransformer(in_numbers), numbers)]
    return make_pipeline(make_column_transformer(*parts, remainder="passthrough"), trees)


def in_numbers(frame: Any) -> np.ndarray:
    r"""Columns of numbers, flags and dates as numbers (n, D); NaN where values are missing."""
    columns = [(frame[name], frame[name].dtype.kind == "M", f"X[{name!r}]") for name in frame]
    return np.stack([measured(*column) for column in columns], axis=1)


def other_columns(X: Any, kinds: str) -> list[Any]:
    r"""Names of a frame's columns whose types are none of NumPy's kinds, such as "f"."""
    return [name for name in X.columns if getattr(X[name].dtype, "kind", "O") not in kinds]
