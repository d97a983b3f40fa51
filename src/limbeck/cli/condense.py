r"""`limbeck condense`: draws of a posterior in; a small predictive model out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from limbeck.cli.options import Common, Training

__all__ = ["condense"]


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
        from limbeck.cli import posteriors, references

        own = None if student is None else references.load(student, "student")
        draws = posteriors.draws_of(posterior)
        taken = posteriors.inputs_of(inputs, test, test_share, label, drop, job.seed)
        criterion = references.load(loss, "loss") if references.is_reference(loss) else loss
        result = lb.condense(
            draws, posteriors.predict_of(predict), taken.x, components=components, student=own,
            loss=criterion, online=posteriors.online_of(online), weighted=weighted,
            var_names=variables or None, burn_in=burn_in, thin=thin, layout=layout,
            covariance=covariance, preset=preset,
            held_out=taken.held_out if taken.test is None else taken.test,
            **job.options(), **training.given(),
        )  # fmt: skip
        shown = str(result)
        evidence: dict[str, Any] = {"x": taken.compared(job.seed), "y": taken.y}
        agreement = posteriors.agreement_of(result, evidence["x"], taken.y)
        if agreement is not None:
            evidence["agreement"] = agreement
            shown = f"{shown}\n\n{agreement}"
        return Done(result, evidence, shown, result)

    carry_out(ctx, common, work, export)
