r"""Any teacher as a predictor on arrays and frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from limbeck.compression.naming import called
from limbeck.compression.teachers.boosters import Booster, is_booster
from limbeck.compression.teachers.ensembles import Stack, agreed, averaged, side_by_side
from limbeck.compression.teachers.estimators import Estimator, is_estimator
from limbeck.compression.teachers.files import open_model
from limbeck.compression.teachers.functions import Function
from limbeck.compression.teachers.networks import Network
from limbeck.compression.teachers.onnx import Onnx
from limbeck.compression.teachers.predictors import Predictor, look
from limbeck.compression.teachers.readings import Said
from limbeck.errors import ArgumentError

__all__ = ["Predictor", "as_predictor"]

ACCEPTED = (
    "a torch module, a fitted scikit-learn estimator, a model of XGBoost, LightGBM or CatBoost or "
    "the file of one, an ONNX file, a callable on arrays, or a list of these"
)
LISTS = (list, tuple, nn.ModuleList)


def as_predictor(
    teacher: Any,
    X: Any = None,
    *,
    task: str = "auto",
    output: str = "auto",
    weights: Any = None,
    stack: Any = None,
    classes: Any = None,
) -> Predictor:
    r"""A teacher of any kind, as a function from rows to probabilities or values (n, K).

    Arguments:
        teacher: A torch module; a fitted scikit-learn classifier with `predict_proba`, regressor
            or Pipeline; XGBoost, LightGBM or CatBoost, as estimators, as their own models or
            as model files (.json, .ubj, .txt, .cbm); the name of an .onnx file; any callable on
            arrays; or a list of these, which is averaged.
        X: A few rows, where the teacher has to be asked what it gives.
        task: "classification", "multilabel" (each label is there or not) or "regression"; "auto"
            finds out, or says what it needs to know.
        output: What a module, a callable or an ONNX file gives: "logits", "probabilities",
            "log_probabilities" or "values"; "auto" finds out likewise.
        weights: For a list, one positive number for each member.
        stack: For a list, a fitted model or a callable on all members' answers side by side,
            (n, M·K), that gives the final answer. `output` is then that of the members, `classes`
            are those of the answer.
        classes: Names of the classes in the order of the outputs. For teachers whose classes have
            names, all of them in the order wanted.

    >>> import numpy as np
    >>> thirds = as_predictor(lambda x: np.full((len(x), 3), 1 / 3), np.zeros((4, 2)))
    >>> thirds.task, thirds(np.zeros((1, 2))).round(2)
    ('classification', array([[0.33, 0.33, 0.33]]))

    Members that know other classes are matched by name:

    >>> from sklearn.dummy import DummyClassifier
    >>> X = np.zeros((4, 1))
    >>> two = DummyClassifier().fit(X, ["cat", "cat", "dog", "dog"])
    >>> three = DummyClassifier().fit(X, ["ant", "cat", "dog", "dog"])
    >>> both = as_predictor([two, three])
    >>> both.classes.tolist(), both(X[:1])
    (['ant', 'cat', 'dog'], array([[0.125, 0.375, 0.5  ]]))
    """
    said = Said(task, output, classes).checked()
    if isinstance(teacher, LISTS):
        found = _several(list(teacher), X, said, weights, stack)
    elif weights is not None or stack is not None:
        argument = "stack" if weights is None else "weights"
        raise ArgumentError(argument, "one for a single teacher", "None, or a list of teachers")
    else:
        found = _single(teacher, X, said)
    if found.task == "classification" and found.outputs < 2:
        raise ArgumentError("teacher", "a classifier of one class", "two classes or more")
    return found


def _single(teacher: Any, X: Any, said: Said) -> Predictor:
    if isinstance(teacher, Predictor):
        return teacher if said.classes is None else teacher.onto(said.classes)
    if isinstance(teacher, type):
        raise ArgumentError("teacher", f"the class {teacher.__name__}", "an object of the class")
    if isinstance(teacher, str | Path):
        model, file = open_model(teacher)
        if not is_booster(model):
            return Onnx(model, file, X, said)
        found = Booster(model, X, said)
        found.file, found.name = file, file.path.name
        return found
    if isinstance(teacher, nn.Module):
        return Network(teacher, X, said)
    if is_booster(teacher):
        return Booster(teacher, X, said)
    if is_estimator(teacher):
        return Estimator(teacher, X, said)
    if callable(getattr(teacher, "predict", None)):
        return Function(teacher.predict, X, said, name=type(teacher).__name__)
    if callable(teacher):
        return Function(teacher, X, said)
    raise ArgumentError("teacher", f"an object of type {type(teacher).__name__}", ACCEPTED)


def _several(teachers: list[Any], X: Any, said: Said, weights: Any, stack: Any) -> Predictor:
    if not teachers:
        raise ArgumentError("teacher", "an empty list", ACCEPTED)
    members = []
    for number, teacher in enumerate(teachers):
        own = said if stack is None else _below(teacher, said)
        several = isinstance(teacher, LISTS)
        with called("teacher", f"teacher[{number}]"):
            members.append(
                _several(list(teacher), X, own, None, None) if several else _single(teacher, X, own)
            )
    if stack is None:
        return averaged(agreed(members), weights, X)
    if weights is not None:
        raise ArgumentError("weights", "weights beside a stack", "one of the two")
    width = sum(member.outputs for member in members)
    if getattr(stack, "n_features_in_", width) != width:
        received = f"a model of {stack.n_features_in_} columns"
        raise ArgumentError("stack", received, f"one of {width}, all outputs of the members")
    rows = None if X is None else side_by_side(members, look(X, "what members give"))
    with called("teacher", "stack"):
        return Stack(members, _single(stack, rows, said._replace(output="auto")))


def _below(member: Any, said: Said) -> Said:
    r"""What is said of a member of a stack: its classes stay in the order that the stack knows."""
    knows = isinstance(member, LISTS) or is_estimator(member) or is_booster(member)
    return Said("auto" if knows else said.task, said.output if not knows else "auto")
