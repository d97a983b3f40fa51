r"""What a file can say of a condensed posterior: the model by name, the bag, the draws' worth."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from limbeck.condensation import models
from limbeck.condensation.outcomes import Head
from limbeck.condensation.sample_bag import SampleBag
from limbeck.errors import ArgumentError
from limbeck.posteriors.draws import Diagnostics
from limbeck.posteriors.structure import Structure

__all__ = [
    "bag_of",
    "check_bag",
    "diagnostics_of",
    "named",
    "remembered",
    "told_bag",
    "told_diagnostics",
]

SETTINGS = {
    **dict.fromkeys(("logistic", "probit", "poisson"), ("weights", "bias")),
    "linear": ("weights", "bias", "scale"),
    "softmax": ("weights", "bias", "classes"),
}
r"""What the ready-made regressions take, by their names."""


def named(predict: Any) -> dict[str, Any] | None:
    r"""A ready-made model by its name and settings; None of any other function.

    >>> named(models.logistic(bias="intercept"))
    {'model': 'logistic', 'weights': 'beta', 'bias': 'intercept'}
    """
    found: dict[str, Any]
    if type(predict) is models.Regression:
        taken = SETTINGS[predict.family]
        found = {"model": predict.family, **{name: getattr(predict, name) for name in taken}}
    elif type(predict) is models.MLPRegression:
        net = predict._net.spec()
        found = {"model": "mlp", "sizes": list(net["sizes"]), "hidden": net["hidden"]}
        found["scale"] = predict.scale
    else:
        return None
    scale = found.get("scale")
    if not (scale is None or isinstance(scale, str)):
        if getattr(scale, "ndim", 0):  # a scale for each input cannot be told in a word
            return None
        found["scale"] = float(scale)
    return found


def remembered(told: dict[str, Any] | None) -> Callable[..., Any] | None:
    r"""The model that `named` told of; nothing but limbeck's own is ever made."""
    if told is None:
        return None
    given = dict(told)
    model = given.pop("model", None)
    if model not in (*SETTINGS, "mlp"):
        raise ArgumentError.unknown("model", model, (*SETTINGS, "mlp"))
    sizes = given.pop("sizes", ())
    found: Callable[..., Any] = getattr(models, model)(*sizes, **given)
    return found


def told_bag(student: nn.Module) -> dict[str, Any] | None:
    r"""What a bag is made again from, beside its tensors; None of other students."""
    if not isinstance(student, SampleBag):
        return None
    shapes = [list(shape) for shape in student.structure.shapes]
    return {
        "names": list(student.structure.names),
        "shapes": shapes,
        "predict": named(student.predict),
    }


def bag_of(
    told: dict[str, Any], tensors: dict[str, Tensor], predict: Callable[..., Any]
) -> SampleBag:
    r"""A bag with the structure that `told_bag` told of, and room for the tensors."""
    structure = Structure(tuple(told["names"]), tuple(tuple(shape) for shape in told["shapes"]))
    free = tensors["free"]
    weighted = "logits" in tensors
    return SampleBag(predict, structure, len(free), weighted=weighted, dtype=free.dtype)


def check_bag(bag: SampleBag, head: Head | None, shapes: dict[str, Any]) -> None:
    r"""Refuse a function that does not fit the saved pseudo-draws, or predicts another kind.

    Arguments:
        bag: The bag, with the function that was given.
        head: What the saved one predicted.
        shapes: Shapes of a row of the inputs, by name.
    """
    if set(shapes) != {""} or head is None:
        return
    x = torch.randn(3, *shapes[""], generator=torch.Generator().manual_seed(0))
    expected = f"the function of (draw, x) that was condensed, which gave {head.kind}"
    try:
        with torch.no_grad():
            found = Head.of(bag(x)).kind
    except Exception as error:  # of the user's own function
        received = f"a function that fails at the saved draws ({error})"
        raise ArgumentError("predict", received, expected) from error
    if found != head.kind:
        raise ArgumentError("predict", f"a function that gives {found}", expected)


def told_diagnostics(found: Diagnostics | None) -> dict[str, Any] | None:
    r"""Diagnostics as lists; what is not finite is None."""
    if found is None:
        return None
    numbers = {
        name: [value if math.isfinite(value) else None for value in getattr(found, name).tolist()]
        for name in ("r_hat", "ess")
    }
    return {"names": list(found.names), **numbers, "reasons": list(found.reasons)}


def diagnostics_of(told: dict[str, Any] | None) -> Diagnostics | None:
    r"""The inverse of `told_diagnostics`."""
    if told is None:
        return None
    r_hat, ess = (
        torch.tensor([math.nan if v is None else v for v in told[name]], dtype=torch.float64)
        for name in ("r_hat", "ess")
    )
    return Diagnostics(list(told["names"]), r_hat, ess, list(told["reasons"]))
