r"""`--require`: figures that a result must reach, so that a command can stand in a pipeline."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from limbeck.errors import ArgumentError

__all__ = ["Requirement", "figures", "held", "parsed"]

FORM = re.compile(r"\s*([\w.]+)\s*(>=|<=|=)\s*(\S+)\s*")
ACCEPTED = "a figure and a number, such as agreement=0.98, rare_recall=0.9 or bytes<=100000"

RISES = {
    "compress": {"kept": True, "parameters": False, "bytes": False},
    "condense": {
        "mean_error": False, "max_error": False, "kl": False, "log_prob": True,
        "parameters": False, "bytes": False, "r_hat": False, "ess": True,
    },
    "normalize": {
        "std_error": False, "divergence": False, "log_prob": True, "parameters": False,
        "bytes": False,
    },
    "logz": {"std_error": False, "value": True, "lower": True, "upper": False},
}  # fmt: skip
r"""Figures by verb, and whether more is better; those of `Fidelity` come to the first."""


RARE = ("average_precision", "rare_recall", "worst_recall")
r"""Figures of one class."""

OF_LABELS = {
    "classification": ("accuracy", "subset_accuracy", "log_probability", "brier", "ece"),
    "regression": ("r2", "rmse", "absolute_error"),
}
r"""Figures that need labels, for classes and for values."""


class Requirement(NamedTuple):
    r"""A figure's name, the bound, and whether it is the most that it may be."""

    name: str
    bound: float
    most: bool


def _known(verb: str) -> dict[str, bool]:
    if verb != "compress":
        return RISES[verb]
    from limbeck.compression.fidelity.measures import MEASURES

    return {name: measure.rises for name, measure in MEASURES.items()} | RISES[verb]


def parsed(given: Iterable[str] | None, verb: str) -> list[Requirement]:
    r"""What was required; `=` stands for "at least as good as".

    >>> parsed(["std_error=0.1", "value>=450"], "logz")
    [Requirement(name='std_error', bound=0.1, most=True), ...]
    """
    known, found = _known(verb), []
    for text in given or ():
        match = FORM.fullmatch(text)
        if match is None:
            raise ArgumentError("--require", repr(text), ACCEPTED)
        name, sign, number = match.groups()
        if name not in known:
            raise ArgumentError.unknown("--require", name, known)
        try:
            bound = float(number)
        except ValueError:
            raise ArgumentError("--require", repr(text), ACCEPTED) from None
        if not math.isfinite(bound):
            raise ArgumentError("--require", repr(text), "a finite number")
        found.append(Requirement(name, bound, sign == "<=" or (sign == "=" and not known[name])))
    return found


def held(wanted: Sequence[Requirement], content: Mapping[str, Any]) -> list[dict[str, Any]]:
    r"""The verdict on each requirement."""
    from limbeck.results import required

    found = figures(content)
    return [
        required(f"required {each.name}", found.get(each.name), each.bound, most=each.most,
                 title=_title(each.name, content), reason=_reason(each.name, content))
        for each in wanted
    ]  # fmt: skip


def _title(name: str, content: Mapping[str, Any]) -> str:
    r"""What a figure is called; that of a rare class, with the class and those not checked."""
    title, fidelity = name.replace("_", " "), content.get("fidelity") or {}
    count = fidelity.get("worst" if name == "worst_recall" else "rarest")
    if name not in RARE or count is None:
        return title
    few = [f"{c['title']} ({c['rows']})" for c in fidelity.get("unchecked") or []]
    aside = f"; too few rows to check {', '.join(few[:5])}{' …' * (len(few) > 5)}" if few else ""
    return f"{title} ({count['title']}, {count['rows']} rows{aside})"


def _reason(name: str, content: Mapping[str, Any]) -> str:
    r"""Why a figure could not be computed."""
    fidelity = content.get("fidelity")
    if content["verb"] != "compress":
        return "it could not be computed"
    if fidelity is None:
        return "there were no rows to compare teacher and student on"
    if name in ("parameters", "bytes"):
        return "the size of the student is unknown"
    if name in fidelity["measures"]["student"] or name == "kept":
        return "it is not defined for these rows and this teacher"
    regression = fidelity.get("task") == "regression"
    if name in RARE and not regression:
        few = ", ".join(f"{c['title']} ({c['rows']})" for c in fidelity.get("unchecked") or [])
        return f"no class but the most common has 30 test rows or more{f': {few}' if few else ''}"
    unlabelled = not fidelity.get("differences", {}).get("teacher")
    if unlabelled and name in OF_LABELS["regression" if regression else "classification"]:
        return "there were no labels to compare with"
    return f"it is not measured for {fidelity.get('task') or 'this task'}"


def figures(content: Mapping[str, Any]) -> dict[str, Any]:
    r"""The figures of a result, by name."""
    known = _known(content["verb"])
    found: dict[str, Any] = {}
    for model in content["models"]:
        if model["role"] == "student":
            found |= {name: model.get(name) for name in ("parameters", "bytes")}
    if (fidelity := content.get("fidelity")) is not None:
        measures = fidelity["measures"]["student"]
        found |= {name: figure[0] for name, figure in measures.items()}
        found["kept"] = fidelity["kept"]
    if (agreement := content.get("agreement")) is not None:
        found |= agreement
        pair = agreement.get("log_prob")
        found["log_prob"] = pair[1] if pair else None
        found["bytes"] = agreement["bytes"][1]
    if (diagnostics := content.get("diagnostics")) is not None:
        numbers = {
            name: [n for n in diagnostics[name] if n is not None] for name in ("r_hat", "ess")
        }
        found["r_hat"] = max(numbers["r_hat"], default=None)
        found["ess"] = min(numbers["ess"], default=None)
    for estimate in content.get("log_z", [])[:1]:
        bounds = estimate["bounds"]
        found |= {name: estimate[name] for name in ("value", "std_error")}
        found |= {side: (bounds[side] or [None])[0] for side in ("lower", "upper")}
    if (gap := content.get("divergence")) is not None:
        found["divergence"] = gap["value"]
    if (events := content.get("held_out")) is not None:
        found["log_prob"] = events["student"]
    return {name: found.get(name) for name in known}
