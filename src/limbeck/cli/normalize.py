r"""`limbeck normalize` and `limbeck logz`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Option

import limbeck as lb
from limbeck.cli import files
from limbeck.cli.command import Outcome, say
from limbeck.cli.options import Common, Preset, Target
from limbeck.cli.results import load_result
from limbeck.errors import ArgumentError, choice, rename_argument

if TYPE_CHECKING:
    from torch import Tensor


def _load_target(text: str) -> Any:
    r"""The user's own energy, or the RBM of a file."""
    if files.is_reference(text):
        return files.load_object(text, "target")
    with rename_argument("path", "target", ", or module:name of your own code"):
        return lb.RBM.load(text)


def _make_student(target: Any, kind: str | None, hidden: int | None, seed: int) -> Any:
    r"""A student of a target: by name, of the user's own, or None for limbeck's choice."""
    if kind is None and hidden is None:
        return None
    kind = kind or "nade"
    if files.is_reference(kind):
        if hidden is not None:
            raise ArgumentError("--hidden", hidden, "nothing, for a student of your own")
        return files.load_object(kind, "student")
    import torch

    from limbeck.normalization.densities import default_student

    students: dict[str, Any] = {"nade": lb.NADE, "deep-nade": lb.DeepNADE, "made": lb.MADE}
    choice("--student", kind, (*students, "module:name"))
    default = default_student(target, seed)
    return students[kind](
        target.support.size, default.hidden if hidden is None else hidden, support=target.support,
        dtype=next(default.parameters()).dtype, generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip


def _read_events(path: Path | None, target: Any, argument: str) -> Tensor | None:
    r"""Events of a file (n, *shape), on the support of the target; None without a file."""
    if path is None:
        return None
    import torch

    events = torch.as_tensor(files.as_numbers(files.read_rows(path, argument).x, argument))
    support = getattr(target, "support", None)
    if support is None:
        return events
    if events[0].numel() != support.size:
        received = f"{path}, with rows of {events[0].numel()} numbers"
        raise ArgumentError(argument, received, f"rows of {support.size}, as the target has them")
    return support.check(events.reshape(len(events), *support.shape), argument)


def normalize(
    common: Common,
    training: dict[str, Any],
    target: Target,
    student: str | None = Option(None, help="nade, deep-nade, made, or module:name."),
    hidden: int | None = Option(None, help="Hidden units of the student.", min=1),
    loss: str = Option("kl", help="kl, square_error, reverse_kl, score_matching."),
    chains: int = Option(2000, help="Chains of the target.", min=1),
    burn_in: int = Option(2000, help="Sweeps before the first step.", min=0),
    sweeps: int | None = Option(None, help="Sweeps between two uses of a chain.", min=1),
    scheme: str = Option("auto", help="Which chains advance at a step: auto, all, block."),
    start: Path | None = Option(None, help="Events that chains start from: npy, npz or CSV."),
    init: str = Option("auto", help="Initial weights of the student: auto, teacher, none."),
    preset: Preset = "auto",
    test: Path | None = Option(None, help="Events for the comparison. Default: target samples."),
    log_z: str = Option("none", help="Estimate log Z with the student: none, bridge, importance."),
    samples: int = Option(2000, help="Samples of each kind for log Z.", min=2),
) -> Outcome:
    r"""Distil an RBM or any energy into a model with exact probabilities.

    limbeck normalize rbm.npz --hidden 500 --steps 20000
    """
    choice("--log-z", log_z, ("none", "bridge", "importance"))
    model = _load_target(target)
    events = _read_events(start, model, "--start")
    evidence: dict[str, Any] = {"target": model, "data": _read_events(test, model, "--test")}
    result = lb.normalize(
        model, _make_student(model, student, hidden, common.seed), loss, chains=chains,
        burn_in=burn_in, sweeps=sweeps, scheme=scheme, start=events, init=init, preset=preset,
        **training,
    )  # fmt: skip
    text = str(result)
    if log_z != "none":
        evidence["log_z"] = lb.log_partition(
            model, result.student, method=log_z, samples=samples, burn_in=burn_in, start=events,
            seed=common.seed, progress=not common.quiet,
        )  # fmt: skip
        text = f"{text}\n\n{evidence['log_z']}"
    return Outcome(result, evidence, text, result)


def logz(
    common: Common, training: dict[str, Any],
    target: Target,
    proposal: str | None = Option(
        None, help="A result of limbeck normalize, or module:name. Default: distil one if needed."),
    method: str = Option("auto", help="auto, ais, tempering, bridge, importance, exact."),
    std_error: float | None = Option(None, help="Standard error to reach, within --seconds."),
    samples: int | None = Option(None, help="Samples of each kind. Default: 10,000.", min=2),
    burn_in: int | None = Option(None, help="Sweeps of the chains before use.", min=0),
    chains: int | None = Option(None, help="Bridge: the number of chains.", min=1),
    thin: int = Option(1, help="Bridge: sweeps between draws.", min=1),
    kernel: str = Option("target", help="Bridge: how chains move: target, metropolis, mixed."),
    start: Path | None = Option(None, help="Events that chains start from, such as data."),
    temperatures: int | None = Option(None, help="AIS: temperatures. Default: 14,500.", min=2),
    hidden: int | None = Option(None, help="Hidden units, if a student is distilled.", min=1),
) -> Outcome:  # fmt: skip
    r"""Estimate log Z of a target, and check whether the estimate can be trusted.

    limbeck logz rbm.npz --std-error 0.05 --seconds 60
    """
    began, seconds = time.monotonic(), training.pop("seconds", None)
    from limbeck.cli.folder import result_folder
    from limbeck.normalization.densities import check_student
    from limbeck.normalization.log_partition import METHODS
    from limbeck.training.config import choose_device

    choice("--method", method, METHODS)
    device = choose_device(common.device)
    model = _load_target(target)
    density = None
    if proposal is not None:
        if files.is_reference(proposal):
            density = files.load_object(proposal, "--proposal")
        else:
            with rename_argument("result", "--proposal", ", or module:name"):
                density = load_result(result_folder(Path(proposal))).student
        with rename_argument(None, "--proposal"):
            check_student(density, model, samples=True)
    events = _read_events(start, model, "--start")
    saved = None
    if density is None and method in ("bridge", "importance"):
        student = _make_student(model, None, hidden, common.seed)
        limit = None if seconds is None else 0.4 * seconds
        saved = lb.normalize(model, student, start=events, seconds=limit, **training)
        density = saved.student
    for density_model in (model, density):
        if callable(move := getattr(density_model, "to", None)):
            move(device)
    if seconds is not None:
        seconds = max(seconds - (time.monotonic() - began), 0.1 * seconds)
    z = lb.log_partition(
        model, density, method=method, std_error=std_error, seconds=seconds, samples=samples,
        burn_in=burn_in, start=events, chains=chains, thin=thin, kernel=kernel,
        schedule=temperatures, seed=common.seed, progress=not common.quiet,
    )  # fmt: skip
    if proposal is not None and z.method == "exact" and not common.quiet:
        say("note: log Z is an exact sum; --proposal was not used (--method bridge uses it)")
    return Outcome(z, {"target": model, "proposal": density}, str(z), saved)
