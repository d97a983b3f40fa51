r"""Posteriors, the user's function of a draw, and inputs, as people name them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from limbeck.cli import reading, references
from limbeck.cli.paths import is_there
from limbeck.errors import ArgumentError

__all__ = ["FAMILIES", "Inputs", "agreement_of", "draws_of", "inputs_of", "online_of", "predict_of"]

FAMILIES = ("linear", "logistic", "poisson", "probit", "softmax")
r"""Functions of a draw that limbeck has."""

COMPARED = 1000
r"""Inputs that are drawn, to compare at, from a source that does not end."""


class Inputs(NamedTuple):
    r"""Inputs to condense at, inputs to compare at, and outcomes there."""

    x: Any = None
    test: Any = None
    y: Any = None

    def held(self, seed: int) -> Any:
        r"""What to compare at: rows set aside, or fresh ones of a source."""
        if self.x is None or self.test is not None:
            return self.test
        import torch

        from limbeck.inputs import as_inputs

        source = as_inputs(self.x)
        source.to(torch.device("cpu"), torch.float32, seed + 1)
        return source(COMPARED).x


def draws_of(given: Sequence[str]) -> Any:
    r"""Files of draws as they are, or the user's own object."""
    if len(given) == 1 and references.is_reference(given[0]):
        return references.load(given[0], "posterior")
    for each in given:
        is_there(Path(each), "posterior", "files that are there, or module:name")
    return given[0] if len(given) == 1 else list(given)


def predict_of(text: str) -> Callable[..., Any]:
    r"""The user's own function, or one of limbeck's by name."""
    if not references.is_reference(text):
        if text not in FAMILIES:
            raise ArgumentError.unknown("--predict", text, (*FAMILIES, "module:name"))
        from limbeck.predictive import models

        found: Callable[..., Any] = getattr(models, text)()
        return found
    found = references.load(text, "--predict")
    if not callable(found):
        received = f"{text!r}, a {type(found).__name__}"
        raise ArgumentError("--predict", received, "a function of (draw, x), or of a draw")
    return found


def inputs_of(
    text: str | None,
    test: Path | None,
    share: float,
    label: str | None,
    drop: Sequence[str] | None,
    seed: int,
) -> Inputs:
    r"""Inputs of a file, some of them set aside; or the user's own source.

    Arguments:
        text: A file or module:name; None for a density without inputs.
        test: A file of others to compare at.
        share: The share to set aside without one.
        label: The column with outcomes.
        drop: Columns to leave out.
        seed: Of the choice.
    """
    if text is None:
        if test is not None or label is not None:
            name = "--test" if test is not None else "--label"
            raise ArgumentError(name, test or label, "nothing, without --inputs")
        return Inputs()
    held = None if test is None else reading.rows(test, "--test", label, drop)
    if references.is_reference(text):
        given, ours = None, references.load(text, "--inputs")
    else:
        given = reading.rows(Path(text), "--inputs", label, drop)
        if held is None:
            given, held = reading.divided(given, share, seed, "--inputs")
        ours = reading.numbers(given.x, "--inputs")
    if held is None:
        return Inputs(ours)
    there = reading.numbers(held.x, "--inputs" if test is None else "--test")
    if given is not None and there.shape[1:] != ours.shape[1:]:
        received = f"{test}, with rows of shape {there.shape[1:]}"
        raise ArgumentError("--test", received, f"rows of shape {ours.shape[1:]}, as the inputs")
    return Inputs(ours, there, None if held.y is None else held.y)


def online_of(text: str) -> bool | str:
    r"""Whether to use one draw an input."""
    known: dict[str, bool | str] = {"auto": "auto", "yes": True, "no": False}
    if text not in known:
        raise ArgumentError.unknown("--online", text, known)
    return known[text]


def agreement_of(result: Any, x: Any, y: Any) -> Any:
    r"""The student beside the draws; None where a stream has none left to compare with."""
    from limbeck.draws.stream import StreamEnded

    try:
        return result.report(x, y)
    except StreamEnded:
        return None
