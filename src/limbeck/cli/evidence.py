r"""`limbeck evidence`: a log density and draws of a posterior in; the log evidence out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typer import Argument, Option

import limbeck as lb
from limbeck.cli import files
from limbeck.cli.command import Outcome
from limbeck.cli.options import Common
from limbeck.errors import ArgumentError


def _supports(texts: Sequence[str] | None) -> dict[str, Any] | None:
    r"""Supports by name, of texts such as sigma=positive or p=0:1."""
    supports: dict[str, Any] = {}
    for text in texts or ():
        name, sign, support = text.rpartition("=")
        if not sign or not name or not support:
            expected = "a variable and its support, such as sigma=positive or p=0:1"
            raise ArgumentError("--support", repr(text), expected)
        low, colon, high = support.partition(":")
        supports[name] = (low, high) if colon else support
    return supports or None


def evidence(
    common: Common, training: dict[str, Any],
    log_density: str = Argument(help="module:name of a function of a draw: log p(data, draw)."),
    draws: list[str] = Argument(
        help="A netCDF, Zarr, npy, npz or CSV file (several: a chain each), or module:name."),
    support: list[str] | None = Option(
        None, help="The support of a variable: sigma=positive, p=0:1, w=simplex, c=ordered; of "
        "draws without names by position: 4=positive. Can be repeated."),
    student: str = Option(
        "auto", help="auto, gaussian, student_t, autoregressive, radial, mixture, flow."),
    sweeps: int = Option(10, help="Sweeps that check the draws.", min=0),
    probe: str | None = Option(
        None, help="Points where draws may have missed mass: an npy or npz file, or module:name."),
    std_error: float = Option(0.005, help="The error below which no further student is tried."),
    variables: list[str] | None = Option(
        None, "--var", help="A variable to use, or ~name to drop; can be repeated."),
    burn_in: int = Option(0, help="Draws to drop at the start of each chain.", min=0),
    thin: int = Option(1, help="Take every thin-th draw.", min=1),
    layout: str = Option("auto", help="The arrays' first axes: auto, chains, draws, emcee."),
) -> Outcome:  # fmt: skip
    r"""Estimate the evidence of a model from draws of its posterior.

    limbeck evidence model:log_density posterior.nc --support sigma=positive
    """
    function = files.load_object(log_density, "log_density")
    posterior: Any = draws if len(draws) > 1 else draws[0]
    if len(draws) == 1 and files.is_reference(posterior):
        posterior = files.load_object(posterior, "draws")
    else:
        for text in draws:
            files.require_path(Path(text), "draws", "existing files, or module:name")
    points: Any = None if probe is None else files.object_or_text(probe, "probe")
    if isinstance(points, str):
        points = files.read_data(Path(points), "probe")
    z = lb.log_evidence(
        function, posterior, support=_supports(support), student=student, sweeps=sweeps,
        std_error=std_error, var_names=variables or None, burn_in=burn_in, thin=thin,
        layout=layout, probe=points, seed=common.seed, progress=not common.quiet,
    )  # fmt: skip
    return Outcome(z, {}, str(z))
