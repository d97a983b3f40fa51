r"""`limbeck normalize` and `limbeck logz`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from limbeck.cli import references
from limbeck.cli.errors import is_there
from limbeck.cli.options import Common, Target, Training
from limbeck.errors import ArgumentError

__all__ = [
    "STUDENTS",
    "check_proposal",
    "events",
    "logz",
    "normalize",
    "proposal_of",
    "student_for",
    "target_of",
]

FILES = (".npz", ".mat", ".safetensors")
STUDENTS = ("nade", "deep-nade", "made")


def target_of(text: str) -> Any:
    r"""The user's own energy, or the RBM of a file."""
    if references.is_reference(text):
        return references.load(text, "target")
    if Path(text).suffix.lower() not in FILES:
        expected = f"module:name of your own code, or an RBM's file: {', '.join(FILES)}"
        raise ArgumentError("target", repr(text), expected)
    from limbeck.cli.reading import MAGIC
    from limbeck.models.rbm import RBM

    path = Path(text)
    is_there(path, "target", f"an RBM's file: {', '.join(FILES)}")
    if path.suffix.lower() == ".npz" and path.is_file():
        with open(path, "rb") as file:
            if not file.read(len(MAGIC[0])).startswith(MAGIC):
                expected = "an RBM's file, with W, a and b"
                raise ArgumentError("target", f"{path}, which is no npz file", expected)
    try:
        return RBM.load(text)
    except ArgumentError as error:
        if error.argument != "path":
            raise
        raise ArgumentError("target", error.received, error.expected) from error


def proposal_of(text: str) -> Any:
    r"""A density to estimate with: a result's student, or the user's own object."""
    if references.is_reference(text):
        return references.load(text, "--proposal")
    from limbeck.cli.export import restored
    from limbeck.cli.folder import result_folder

    try:
        return restored(result_folder(Path(text))).student
    except ArgumentError as error:
        if error.argument != "result":
            raise
        expected = f"{error.expected}, or module:name"
        raise ArgumentError("--proposal", error.received, expected) from error


def check_proposal(proposal: Any, target: Any) -> None:
    r"""Refuse a proposal that is no density over the target's support."""
    from limbeck.normalization.densities import check_student

    try:
        check_student(proposal, target, samples=True)
    except ArgumentError as error:
        raise ArgumentError("--proposal", error.received, error.expected) from error


def student_for(target: Any, kind: str | None, hidden: int | None, seed: int) -> Any:
    r"""A student of a target: by name, of the user's own, or None for limbeck's choice.

    Arguments:
        target: What it is to be like.
        kind: "nade", "deep-nade", "made", or module:name.
        hidden: Hidden units; None is as many as limbeck takes by itself.
        seed: Seeds the first weights.
    """
    if kind is not None and references.is_reference(kind):
        if hidden is not None:
            raise ArgumentError("--hidden", hidden, "nothing, for a student of your own")
        return references.load(kind, "student")
    if kind is None and hidden is None:
        return None
    kind = kind or "nade"
    if kind not in STUDENTS:
        raise ArgumentError.unknown("--student", kind, (*STUDENTS, "module:name"))
    import torch

    import limbeck as lb
    from limbeck.normalization.densities import default_student

    usual = default_student(target, seed)
    units = usual.hidden if hidden is None else hidden
    make: Any = {"nade": lb.NADE, "deep-nade": lb.DeepNADE, "made": lb.MADE}[kind]
    generator = torch.Generator().manual_seed(seed)
    like = next(usual.parameters())
    return make(
        target.support.size, units, support=target.support, dtype=like.dtype, generator=generator
    )


def events(path: Path | None, target: Any, argument: str) -> Any:
    r"""Events of a file (n, *shape), on the support of the target; None of no file."""
    if path is None:
        return None
    import torch

    from limbeck.cli.reading import array

    found = torch.as_tensor(array(path, argument))
    support = getattr(target, "support", None)
    if support is None:
        return found
    if found[0].numel() != support.size:
        received = f"{path}, with rows of {found[0].numel()} numbers"
        raise ArgumentError(argument, received, f"rows of {support.size}, as the target has them")
    return support.check(found.reshape(len(found), *support.shape), argument)


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
        from limbeck.errors import ArgumentError

        if log_z not in ("none", "bridge", "importance"):
            raise ArgumentError.unknown("--log-z", log_z, ("none", "bridge", "importance"))
        found = target_of(target)
        begin = events(start, found, "--start")
        held = events(test, found, "--test")
        result = lb.normalize(
            found, student_for(found, student, hidden, job.seed), loss, chains=chains,
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
        from limbeck.cli.errors import say
        from limbeck.normalization.densities import check_target
        from limbeck.normalization.log_partition import ENUMERABLE, METHODS, _events
        from limbeck.training.config import choose_device

        if method not in METHODS:
            raise lb.ArgumentError.unknown("--method", method, METHODS)
        place = choose_device(job.device)
        found = target_of(target)
        check_target(found, chains=False)
        given = None if proposal is None else proposal_of(proposal)
        if given is not None:
            check_proposal(given, found)
        begin = events(start, found, "--start")
        how = method
        if method == "auto":
            how = "exact" if _events(found) <= ENUMERABLE else "bridge"
        if given is not None and how == "exact" and job.progress:
            say("note: all events can be summed, and --proposal is not used (--method bridge does)")
        saved = None
        if given is None and how in ("bridge", "importance"):
            student = student_for(found, None, hidden, job.seed)
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
