r"""`limbeck normalize`: an unnormalised density in; one that can be evaluated and sampled out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from limbeck.cli.options import Common, Target, Training

__all__ = ["normalize"]


def normalize(
    ctx: typer.Context,
    common: Common,
    training: Training,
    target: Target,
    student: Annotated[
        str | None, typer.Option(help="nade, deep-nade, made, or module:name.")
    ] = None,
    hidden: Annotated[int | None, typer.Option(help="Its hidden units.", min=1)] = None,
    loss: Annotated[
        str,
        typer.Option(help="kl, square_error, square_error_then_kl, reverse_kl, score_matching."),
    ] = "kl",
    chains: Annotated[int, typer.Option(help="Chains of the target.", min=1)] = 2000,
    burn_in: Annotated[int, typer.Option(help="Sweeps before the first step.", min=0)] = 2000,
    sweeps: Annotated[int | None, typer.Option(help="Sweeps between uses.", min=1)] = None,
    scheme: Annotated[
        str, typer.Option(help="Which chains advance at a step: auto, all, block.")
    ] = "auto",
    start: Annotated[
        Path | None, typer.Option(help="Events that chains start from: an npy, npz or CSV file.")
    ] = None,
    init: Annotated[
        str, typer.Option(help="Where the student starts: auto, teacher, none.")
    ] = "auto",
    preset: Annotated[
        str, typer.Option(help="auto, or thesis for the source text's settings.")
    ] = "auto",
    test: Annotated[
        Path | None, typer.Option(help="Events to compare both at; else samples of the target.")
    ] = None,
    log_z: Annotated[
        str, typer.Option(help="Estimate log Z with the student: none, bridge, importance.")
    ] = "none",
    samples: Annotated[int, typer.Option(help="Samples of each kind for log Z.", min=2)] = 2000,
    export: Annotated[Path | None, typer.Option(help="Write the student to a file too.")] = None,
) -> None:
    r"""Distil an RBM or any energy into a model with exact probabilities.

    limbeck normalize rbm.npz --hidden 500 --steps 20000
    """
    from limbeck.cli.running import Done, Job, carry_out

    def work(job: Job) -> Done:
        import limbeck as lb
        from limbeck.cli import targets
        from limbeck.errors import ArgumentError

        if log_z not in ("none", "bridge", "importance"):
            raise ArgumentError.unknown("--log-z", log_z, ("none", "bridge", "importance"))
        found = targets.target_of(target)
        begin = targets.events(start, found, "--start")
        held = targets.events(test, found, "--test")
        result = lb.normalize(
            found, targets.student_for(found, student, hidden, job.seed), loss, chains=chains,
            burn_in=burn_in, sweeps=sweeps, scheme=scheme, start=begin, init=init, preset=preset,
            **job.options(), **training.given(),
        )  # fmt: skip
        evidence: dict[str, Any] = {"target": found, "data": held}
        shown = str(result)
        if log_z != "none":
            z = lb.log_partition(
                found, result.student, method=log_z, samples=samples, burn_in=burn_in,
                seed=job.seed, start=begin, progress=job.progress,
            )  # fmt: skip
            evidence["log_z"] = z
            shown = f"{shown}\n\n{z}"
        return Done(result, evidence, shown, result)

    carry_out(ctx, common, work, export)
