r"""What a result of `log_partition` holds: estimates of log Z, each with its verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from limbeck.errors import ArgumentError
from limbeck.generative.estimate import NAMES, LogPartition
from limbeck.results.story import device_of, model
from limbeck.results.verdicts import verdict

__all__ = ["by_name", "estimated", "estimates"]

Several = LogPartition | Mapping[str, LogPartition]


def estimated(
    result: Several, *, target: Any = None, proposal: Any = None, exact: float | None = None
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    r"""Content of one or several estimates of log Z.

    Arguments:
        result: An estimate, or several by name.
        target: What was normalised.
        proposal: The student that it was estimated with, if there was one.
        exact: The true value, where it is known, drawn beside.
    """
    found = by_name(result)
    first = next(iter(found.values()))
    name = "the target" if target is None else type(target).__name__
    models = [model(name, "teacher", target)]
    if proposal is not None:
        models.append(model(type(proposal).__name__, "student", proposal))
    summary = " ".join(z.sentence() for z in found.values())
    own: dict[str, Any] = {
        "title": f"log Z of {name}",
        "summary": summary,
        "seconds": sum(z.seconds for z in found.values()),
        "device": device_of(target),
        "models": models,
        "settings": {"samples": first.samples, "seed": first.seed, "methods": ", ".join(found)},
    }
    entries, verdicts = estimates(found)
    own |= {"log_z": entries, "verdicts": verdicts}
    if exact is not None:
        own["exact"] = float(exact)
    return own, {}


def estimates(found: Mapping[str, LogPartition]) -> tuple[list[Any], list[Any]]:
    r"""Estimates as results keep them, and the verdicts on them."""
    entries, verdicts = [], []
    for name, z in found.items():
        known = z.to_dict()
        low, high = known["interval_95"]
        entries.append({"name": name, "low": low, "high": high, **known})
        reasons = "; ".join(z.verdict.reasons)
        how = NAMES.get(z.method, z.method)
        words = f"No check speaks against log Z by {how}."
        if not z.verdict:
            words = f"{z.verdict.state.capitalize()}: {reasons}."
        verdicts.append(verdict(f"log Z, {name}", z.verdict.trustworthy, words))
    return entries, verdicts


def by_name(result: Any) -> dict[str, LogPartition]:
    r"""Estimates by name; several without names are called by their methods."""
    if isinstance(result, LogPartition):
        return {result.method: result}
    if isinstance(result, Mapping):
        found = {str(name): z for name, z in result.items()}
    else:
        several, found = list(result or ()), dict[str, LogPartition]()
        for z in several:
            name = getattr(z, "method", "?")
            found[f"{name} {len(found) + 1}" if name in found else name] = z
    for z in found.values():
        if not isinstance(z, LogPartition):
            accepted = "what log_partition gives back, or several of these by name"
            raise ArgumentError("log_z", f"a {type(z).__name__}", accepted)
    if not found:
        raise ArgumentError("log_z", "no estimate", "one or more")
    return found
