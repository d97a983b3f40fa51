r"""`limbeck condense`: draws of a posterior in; a small predictive model out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from limbeck.cli import references
from limbeck.cli.errors import is_there
from limbeck.cli.options import Common, Training
from limbeck.errors import ArgumentError

__all__ = [
    "FAMILIES",
    "Inputs",
    "agreement_of",
    "condense",
    "draws_of",
    "inputs_of",
    "online_of",
    "predict_of",
]

FAMILIES = ("linear", "logistic", "poisson", "probit", "softmax")
r"""Functions of a draw that limbeck has."""

COMPARED = 1000
r"""Inputs that are drawn, to compare at, from a source that does not end."""


class Inputs(NamedTuple):
    r"""Inputs to condense at, held-out inputs to compare at, and outcomes there.

    Without held-out inputs `held_out` says what else to measure at; see `limbeck.condense`.
    """

    x: Any = None
    test: Any = None
    y: Any = None
    held_out: Any = "auto"

    def compared(self, seed: int) -> Any:
        r"""What to compare at: rows set aside, or fresh ones of a source; or None."""
        if self.x is None or self.test is not None:
            return self.test
        import torch

        from limbeck.inputs import Dataset, as_inputs

        source = as_inputs(self.x)
        if isinstance(source, Dataset):  # all of whose rows were trained on
            return None
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
        from limbeck.condensation import models

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
    from limbeck.cli import reading  # which needs NumPy, and --help must not wait for it

    held = None if test is None else reading.rows(test, "--test", label, drop)
    if references.is_reference(text):
        ours = references.load(text, "--inputs")
        if held is None:
            return _divided(ours, share, seed)[0]
        return Inputs(ours, reading.numbers(held.x, "--test"), held.y)
    given = reading.rows(Path(text), "--inputs", label, drop)
    ours = reading.numbers(given.x, "--inputs")
    if held is None:
        found, aside = _divided(ours, share, seed)
        return found if aside is None else found._replace(y=given.at(aside.numpy()).y)
    there = reading.numbers(held.x, "--test")
    if there.shape[1:] != ours.shape[1:]:
        received = f"{test}, with rows of shape {there.shape[1:]}"
        raise ArgumentError("--test", received, f"rows of shape {ours.shape[1:]}, as the inputs")
    return Inputs(ours, there, held.y)


def _divided(given: Any, share: float, seed: int) -> tuple[Inputs, Any]:
    r"""Inputs, of which a share is set aside if they are rows, and the numbers of these."""
    from limbeck.condensation.held_out import split_rows
    from limbeck.inputs import Dataset, as_inputs

    source = as_inputs(given, "--inputs")
    if share == 0 or not isinstance(source, Dataset):
        return Inputs(given, held_out="auto" if share else None), None
    try:
        index = split_rows(source.x, share, seed)
    except ArgumentError as error:
        raise ArgumentError("--test-share", error.received, error.expected) from None
    assert index is not None
    train, test = (_taken(given, each) for each in index)
    return Inputs(train, test.x if isinstance(test, Dataset) else test), index[1]


def _taken(given: Any, index: Any) -> Any:
    r"""Rows of what the user gave as inputs, of the same kind."""
    import numpy as np
    from torch import Tensor

    from limbeck.inputs import Dataset, as_inputs

    if isinstance(given, dict):
        return {name: _taken(part, index) for name, part in given.items()}
    if isinstance(given, np.ndarray):
        return given[index.numpy()]
    if isinstance(given, Tensor):
        return given[index.to(given.device)]
    source = as_inputs(given)
    assert isinstance(source, Dataset)
    return source.take(index)


def online_of(text: str) -> bool | str:
    r"""Whether to use one draw an input."""
    known: dict[str, bool | str] = {"auto": "auto", "yes": True, "no": False}
    if text not in known:
        raise ArgumentError.unknown("--online", text, known)
    return known[text]


def agreement_of(result: Any, x: Any, y: Any) -> Any:
    r"""The student beside the draws; None without inputs or further draws to compare at."""
    from limbeck.posteriors.stream import StreamEnded

    if x is None and result.head is not None:
        return None
    try:
        return result.report(x, y)
    except StreamEnded:
        return None


def condense(
    ctx: typer.Context,
    common: Common,
    training: Training,
    posterior: Annotated[
        list[str],
        typer.Argument(
            help="The draws: a netCDF, Zarr, npy, npz or CSV file (several: a chain each), or "
            "module:name."
        ),
    ],
    predict: Annotated[
        str,
        typer.Option(
            help="module:name of a function of (draw, x), or of a draw for a density; or "
            "logistic, probit, linear, poisson, softmax."
        ),
    ],
    inputs: Annotated[
        str | None,
        typer.Option(help="Inputs x: a CSV, Parquet, npy or npz file, or module:name; else none."),
    ] = None,
    test: Annotated[
        Path | None, typer.Option(help="Held-out inputs to compare at; else some are set aside.")
    ] = None,
    test_share: Annotated[
        float,
        typer.Option(
            help="The share of the rows that is held out without --test; 0 leaves the student "
            "unchecked at new inputs.",
            min=0,
            max=1,
        ),
    ] = 0.2,
    label: Annotated[
        str | None, typer.Option(help="The column with outcomes y, to compare at.")
    ] = None,
    drop: Annotated[
        list[str] | None, typer.Option(help="A column of the inputs to leave out.")
    ] = None,
    components: Annotated[
        int, typer.Option(help="Pseudo-draws, or components of a density.", min=1)
    ] = 10,
    student: Annotated[
        str | None, typer.Option(help="A module of your own, as module:name.")
    ] = None,
    weighted: Annotated[
        bool, typer.Option("--weighted", help="Give pseudo-draws trained weights.")
    ] = False,
    loss: Annotated[
        str, typer.Option(help="auto, cross_entropy, derivative_error, or module:name.")
    ] = "auto",
    online: Annotated[str, typer.Option(help="One draw an input: auto, yes or no.")] = "auto",
    variables: Annotated[
        list[str] | None,
        typer.Option("--var", help="A variable to take, or ~name to leave out; again for more."),
    ] = None,
    burn_in: Annotated[
        int, typer.Option(help="Draws of each chain to leave out first.", min=0)
    ] = 0,
    thin: Annotated[int, typer.Option(help="Take every so manieth draw.", min=1)] = 1,
    layout: Annotated[
        str, typer.Option(help="The arrays' first axes: auto, chains, draws, emcee.")
    ] = "auto",
    covariance: Annotated[
        str, typer.Option(help="Without inputs: full, diagonal or spherical.")
    ] = "full",
    preset: Annotated[
        str, typer.Option(help="auto, or thesis for the source text's settings.")
    ] = "auto",
    export: Annotated[
        Path | None, typer.Option(help="Write the student to a file too, such as bag.onnx.")
    ] = None,
) -> None:
    r"""Condense posterior draws into a compact predictive distribution.

    limbeck condense posterior.nc --predict logistic --inputs x.csv --components 10
    """
    from limbeck.cli.running import Done, Job, carry_out

    def work(job: Job) -> Done:
        import limbeck as lb
        from limbeck.cli import references

        own = None if student is None else references.load(student, "student")
        draws = draws_of(posterior)
        taken = inputs_of(inputs, test, test_share, label, drop, job.seed)
        criterion = references.load(loss, "loss") if references.is_reference(loss) else loss
        result = lb.condense(
            draws, predict_of(predict), taken.x, components=components, student=own,
            loss=criterion, online=online_of(online), weighted=weighted,
            var_names=variables or None, burn_in=burn_in, thin=thin, layout=layout,
            covariance=covariance, preset=preset,
            held_out=taken.held_out if taken.test is None else taken.test,
            **job.options(), **training.given(),
        )  # fmt: skip
        shown = str(result)
        evidence: dict[str, Any] = {"x": taken.compared(job.seed), "y": taken.y}
        agreement = agreement_of(result, evidence["x"], taken.y)
        if agreement is not None:
            evidence["agreement"] = agreement
            shown = f"{shown}\n\n{agreement}"
        return Done(result, evidence, shown, result)

    carry_out(ctx, common, work, export)
