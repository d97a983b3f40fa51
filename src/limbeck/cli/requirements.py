r"""`--require`: the figures of a result, and bounds on them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from limbeck.errors import ArgumentError
from limbeck.text import listed

FIGURES = {  # by verb; the measures of a `Fidelity` are added to the first
    "compress": ("retention", "average_precision_retention", "parameters", "bytes"),
    "condense": (
        "mean_error", "max_error", "kl", "log_prob", "parameters", "bytes", "r_hat", "ess",
    ),
    "normalize": ("std_error", "divergence", "log_prob", "parameters", "bytes"),
    **dict.fromkeys(("logz", "evidence"), ("std_error", "value", "lower", "upper")),
}  # fmt: skip
# of which more is better
RISING = ("retention", "average_precision_retention", "log_prob", "ess", "value", "lower")
CLASS_FIGURES = (  # of one class
    "average_precision", "rare_recall", "worst_recall", "rare_kl", "average_precision_retention",
)  # fmt: skip


class Requirement(NamedTuple):
    r"""A figure's name, the bound, and whether the bound is a maximum."""

    name: str
    bound: float
    maximum: bool


def _known_figures(verb: str) -> dict[str, bool]:
    r"""The figures of a verb, and whether more of them is better."""
    known = {name: name in RISING for name in FIGURES[verb]}
    if verb != "compress":
        return known
    from limbeck.compression.fidelity.measures import MEASURES

    return {name: measure.rises for name, measure in MEASURES.items()} | known


def parse_requirements(texts: Iterable[str] | None, verb: str) -> list[Requirement]:
    r"""Requirements of a verb's figures; `=` means "at least as good as"."""
    known, requirements = _known_figures(verb), []
    form = "a figure and a number, such as agreement=0.98, rare_recall=0.9 or bytes<=100000"
    for text in texts or ():
        match = re.fullmatch(r"\s*([\w.]+(?:\[.+\])?)\s*(>=|<=|=)\s*(\S+)\s*", text)
        if match is None:
            raise ArgumentError("--require", repr(text), form)
        name, sign, number = match.groups()
        recall = verb == "compress" and re.fullmatch(r"recall\[.+\]", name)  # of a class by name
        if name not in known and not recall:
            raise ArgumentError.unknown("--require", name, known)
        try:
            bound = float(number)
        except ValueError:
            raise ArgumentError("--require", repr(text), form) from None
        if not math.isfinite(bound):
            raise ArgumentError("--require", repr(text), "a finite number")
        maximum = sign == "<=" or (sign == "=" and not known.get(name, True))
        requirements.append(Requirement(name, bound, maximum))
    return requirements


def check_requirements(
    requirements: Sequence[Requirement], content: Mapping[str, Any]
) -> list[dict[str, Any]]:
    r"""The verdict on each requirement."""
    from limbeck.report.summary import verdict

    values, fidelity, verdicts = figures(content), content.get("fidelity") or {}, []
    names = [f"{row['title']} ({row['rows']})" for row in fidelity.get("unchecked") or []]
    small = listed(names)  # classes with too few rows to check
    for name, bound, most in requirements:
        title, value = name.replace("_", " "), values.get(name)
        counts = fidelity.get("worst" if name == "worst_recall" else "rarest")
        if name in CLASS_FIGURES and counts is not None:
            unchecked = f"; too few rows to check {small}" if small else ""
            title = f"{title} ({counts['title']}, {counts['rows']} rows{unchecked})"
        if value is None or not math.isfinite(value):
            reason = "it could not be computed"
            if fidelity and name.startswith("recall["):
                reason = "the test rows have no such class"
            elif fidelity and name in CLASS_FIGURES and fidelity.get("task") != "regression":
                reason = "no class but the most common has 30 test rows or more"
            elif fidelity:
                reason += " from these rows and labels"
            reason += f": {small}" if small and name in CLASS_FIGURES else ""
            words, held = f"is unchecked: {reason}; {bound:g} was required", False
        else:
            held = value <= bound if most else value >= bound
            shown = f"{value:.4g}"
            if float(shown) == bound != value:  # rounding must not hide a failure
                shown = repr(float(value))
            limit = f"at {'most' if most else 'least'} {bound:g} as required"
            if not held:
                limit = f"{'above' if most else 'below'} the {bound:g} that was required"
            words = f"is {shown}, {limit}"
        verdicts.append(verdict(f"required {name}", held, f"{title} {words}"))
    return verdicts


def figures(content: Mapping[str, Any]) -> dict[str, Any]:
    r"""The figures of a result, by name."""
    values, classes = dict[str, Any](), dict[str, Any]()  # recalls by class
    for model in (model for model in content["models"] if model["role"] == "student"):
        values |= {name: model.get(name) for name in ("parameters", "bytes")}
    if (fidelity := content.get("fidelity")) is not None:
        values |= {name: value for name, (value, _) in fidelity["measures"]["student"].items()}
        share = (fidelity.get("retention_by") or {}).get("average_precision") or [None]
        values |= {"retention": fidelity["retention"], "average_precision_retention": share[0]}
        classes = {
            f"recall[{name}]": part["measures"]["student"]["recall"][0]
            for name, part in (fidelity.get("by_class") or {}).items()
        }
    if (agreement := content.get("agreement")) is not None:
        values |= agreement  # pairs are those of the draws and of the student
        values["log_prob"] = (agreement.get("log_prob") or (None, None))[1]
        values["bytes"] = agreement["bytes"][1]
    for name, worst in {"r_hat": max, "ess": min}.items():
        numbers = (content.get("diagnostics") or {}).get(name, [])
        values[name] = worst((n for n in numbers if n is not None), default=None)
    for estimate in content.get("log_z", [])[:1]:
        values |= {name: estimate[name] for name in ("value", "std_error")}
        values |= {side: (estimate["bounds"][side] or [None])[0] for side in ("lower", "upper")}
    if (gap := content.get("divergence")) is not None:
        values["divergence"] = gap["value"]
    if (events := content.get("held_out")) is not None:
        values["log_prob"] = events["student"]
    return {name: values.get(name) for name in _known_figures(content["verb"])} | classes
