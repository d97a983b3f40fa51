r"""`limbeck logz`: log Z of an unnormalised density, with an error and a verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from limbeck.cli.options import Common, Target, Training

__all__ = ["logz"]


def logz(
    ctx: typer.Context,
    common: Common,
    training: Training,
    target: Target,
    proposal: Annotated[
        str | None,
        typer.Option(
            help="A result of limbeck normalize, or module:name; else one is distilled first."
        ),
    ] = None,
    method: Annotated[str, typer.Option(help="auto, bridge, importance, ais, exact.")] = "auto",
    samples: Annotated[int, typer.Option(help="Samples of each kind.", min=2)] = 10_000,
    burn_in: Annotated[
        int | None, typer.Option(help="Sweeps of the chains before use.", min=0)
    ] = None,
    chains: Annotated[int | None, typer.Option(help="Bridge: the number of chains.", min=1)] = None,
    thin: Annotated[int, typer.Option(help="Bridge: sweeps between draws.", min=1)] = 1,
    kernel: Annotated[
        str, typer.Option(help="Bridge: how chains move: target, metropolis, mixed.")
    ] = "target",
    start: Annotated[
        Path | None, typer.Option(help="Events that chains start from, such as data.")
    ] = None,
    temperatures: Annotated[
        int | None, typer.Option(help="AIS: how many temperatures; else 14,500.", min=2)
    ] = None,
    reverse: Annotated[
        bool, typer.Option("--reverse", help="AIS: anneal back too, for an upper bound.")
    ] = False,
    hidden: Annotated[
        int | None, typer.Option(help="Hidden units of a student that is distilled.", min=1)
    ] = None,
) -> None:
    r"""Estimate the log of a normaliser, and say whether to trust the number.

    limbeck logz rbm.npz --proposal limbeck-normalize
    """
    from limbeck.cli.running import Done, Job, carry_out

    def work(job: Job) -> Done:
        import limbeck as lb
        from limbeck.cli import targets
        from limbeck.cli.errors import say
        from limbeck.generative.log_partition import ENUMERABLE, METHODS, _events
        from limbeck.generative.pairing import check_target
        from limbeck.preparation import choose_device

        if method not in METHODS:
            raise lb.ArgumentError.unknown("--method", method, METHODS)
        place = choose_device(job.device)
        found = targets.target_of(target)
        check_target(found, chains=False)
        given = None if proposal is None else targets.proposal_of(proposal)
        if given is not None:
            targets.check_proposal(given, found)
        begin = targets.events(start, found, "--start")
        how = method
        if method == "auto":
            how = "exact" if _events(found) <= ENUMERABLE else "bridge"
        if given is not None and how == "exact" and job.progress:
            say("note: all events can be summed, and --proposal is not used (--method bridge does)")
        saved = None
        if given is None and how in ("bridge", "importance"):
            student = targets.student_for(found, None, hidden, job.seed)
            saved = lb.normalize(found, student, start=begin, **job.options(), **training.given())
            given = saved.student
        for model in (found, given):
            if callable(move := getattr(model, "to", None)):
                move(place)
        options: dict[str, Any] = {"burn_in": burn_in, "start": begin, "reverse": reverse}
        options |= {"chains": chains, "thin": thin, "kernel": kernel}
        if temperatures is not None:
            options["schedule"] = temperatures
        z = lb.log_partition(
            found, given, method=how, samples=samples, seed=job.seed, progress=job.progress,
            **options,
        )  # fmt: skip
        return Done(z, {"target": found, "proposal": given}, str(z), saved)

    carry_out(ctx, common, work)
