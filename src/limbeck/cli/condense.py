r"""`limbeck condense` and `limbeck evidence`, on draws of a posterior."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

import limbeck as lb
from limbeck.cli import files
from limbeck.cli.command import Outcome
from limbeck.cli.options import Common, Drop, Preset
from limbeck.errors import ArgumentError, choice, rename_argument

Draws = Annotated[
    list[str],
    Argument(
        help="The draws: a netCDF, Zarr, npy, npz or CSV file (or several, one per chain), or "
        "module:name."
    ),
]
Variables = Annotated[
    list[str] | None,
    Option("--var", help="A variable to use, or ~name to drop; can be repeated."),
]
BurnIn = Annotated[int, Option(help="Draws to drop at the start of each chain.", min=0)]
Thin = Annotated[int, Option(help="Take every thin-th draw.", min=1)]
Layout = Annotated[str, Option(help="What the arrays' first axes are: auto, chains, draws, emcee.")]


def predict_function(text: str) -> Callable[..., Any]:
    r"""The user's own function of a draw, or one of limbeck's by name."""
    if not files.is_reference(text):
        from limbeck.condensation.models import FAMILIES, Regression

        choice("--predict", text, (*FAMILIES, "module:name"))
        return Regression(text)
    function = files.load_object(text, "--predict")
    if not callable(function):
        received = f"{text!r}, a {type(function).__name__}"
        raise ArgumentError("--predict", received, "a function of (draw, x), or of a draw")
    return function


def _load_draws(texts: list[str], argument: str) -> Any:
    r"""The user's own object, or paths of files."""
    if len(texts) == 1 and files.is_reference(texts[0]):
        return files.load_object(texts[0], argument)
    return texts if len(texts) > 1 else texts[0]


def _load_inputs(
    text: str | None, test: Path | None, share: float, label: str | None,
    drop: Sequence[str] | None, seed: int,
) -> tuple[Any, Any, Any]:  # fmt: skip
    r"""Inputs of a file or of the user's own; `held_out` of `limbeck.condense`; outcomes there."""
    if text is None:
        if test is not None or label is not None:
            name = "--test" if test is not None else "--label"
            raise ArgumentError(name, test or label, "nothing, without --inputs")
        return None, None, None
    held_out = None if test is None else files.read_rows(test, "--test", label, drop)
    if files.is_reference(text):
        x, y = files.load_object(text, "--inputs"), None
    else:
        rows = files.read_rows(Path(text), "--inputs", label, drop)
        x, y = files.as_numbers(rows.x, "--inputs"), rows.y
    if held_out is not None:
        test_x = files.as_numbers(held_out.x, "--test")
        if not files.is_reference(text) and test_x.shape[1:] != x.shape[1:]:
            received = f"{test}, with rows of shape {test_x.shape[1:]}"
            raise ArgumentError("--test", received, f"rows of shape {x.shape[1:]}, as the inputs")
        return x, test_x, held_out.y
    from limbeck.condensation.held_out import split_rows
    from limbeck.inputs import Dataset, as_inputs

    source = as_inputs(x, "--inputs")
    if share == 0 or not isinstance(source, Dataset):
        return x, None, None
    with rename_argument(None, "--test-fraction"):
        index = split_rows(source.x, share, seed)
    assert index is not None
    train, aside = map(source.take, index)
    return train, aside.x, None if y is None else y[index[1].numpy()]


def _new_inputs(x: Any, seed: int) -> Any:
    r"""A thousand new inputs of a source; none of rows that the student was trained on."""
    import torch

    from limbeck.inputs import Dataset, as_inputs

    source = as_inputs(x)
    if isinstance(source, Dataset):
        return None
    source.to(torch.device("cpu"), torch.float32, seed + 1)
    return source(1000).x


def condense(
    common: Common, training: dict[str, Any],
    posterior: Draws,
    predict: str = Option(
        help="module:name of a function of (draw, x), or of a draw for a density; or "
        "logistic, probit, linear, poisson, softmax."),
    inputs: str | None = Option(
        None, help="Inputs x: a CSV, Parquet, npy or npz file, or module:name. Default: none."),
    test: Path | None = Option(
        None, help="Inputs for the comparison. Default: held-out inputs."),
    test_fraction: float = Option(
        0.2, help="Fraction of rows held out without --test; with 0 the student is not checked at "
        "new inputs.", min=0, max=1),
    label: str | None = Option(None, help="The column with outcomes y, for the comparison."),
    drop: Drop = None,
    components: int = Option(10, help="Pseudo-draws, or components of a density.", min=1),
    student: str | None = Option(None, help="A module of your own, as module:name."),
    weighted: bool = Option(False, "--weighted", help="Train the weights of the pseudo-draws."),
    loss: str = Option("auto", help="auto, cross_entropy, derivative_error, or module:name."),
    online: str = Option("auto", help="One draw per input: auto, yes or no."),
    variables: Variables = None, burn_in: BurnIn = 0, thin: Thin = 1, layout: Layout = "auto",
    covariance: str = Option("full", help="Without inputs: full, diagonal or spherical."),
    preset: Preset = "auto",
) -> Outcome:  # fmt: skip
    r"""Condense posterior draws into a compact predictive distribution.

    limbeck condense posterior.nc --predict logistic --inputs x.csv --components 10
    """
    module = None if student is None else files.load_object(student, "student")
    draws = _load_draws(posterior, "posterior")
    x, held_out, y = _load_inputs(inputs, test, test_fraction, label, drop, common.seed)
    criterion = files.object_or_text(loss, "loss")
    function = predict_function(predict)
    one_draw: dict[str, bool | str] = {"auto": "auto", "yes": True, "no": False}
    choice("--online", online, one_draw)
    result = lb.condense(
        draws, function, x, components=components, student=module, loss=criterion,
        online=one_draw[online], weighted=weighted, var_names=variables or None, burn_in=burn_in,
        thin=thin, layout=layout, covariance=covariance, preset=preset, held_out=held_out,
        held_out_fraction="auto" if test_fraction else 0, **training,
    )  # fmt: skip
    if held_out is None:
        held_out = None if x is None else _new_inputs(x, common.seed)
    text, evidence = str(result), {"x": held_out, "y": y}
    if held_out is not None or result.head is None:
        with suppress(lb.StreamEnded):  # no further draws to compare with
            evidence["agreement"] = result.report(**evidence)
            text = f"{text}\n\n{evidence['agreement']}"
    return Outcome(result, evidence, text, result)


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
    log_density: Annotated[
        str, Argument(help="module:name of a function of a draw: log p(data, draw).")
    ],
    draws: Draws,
    support: list[str] | None = Option(
        None, help="The support of a variable: sigma=positive, p=0:1, w=simplex, c=ordered; for "
        "draws without names, its position: 4=positive. Can be repeated."),
    student: str = Option(
        "auto", help="auto, gaussian, student_t, autoregressive, radial, mixture, flow."),
    sweeps: int = Option(10, help="Number of sweeps that check the draws.", min=0),
    probe: str | None = Option(
        None, help="Points where draws may have missed mass: an npy or npz file, or module:name."),
    std_error: float = Option(0.005, help="Standard error at which no further student is tried."),
    variables: Variables = None, burn_in: BurnIn = 0, thin: Thin = 1, layout: Layout = "auto",
) -> Outcome:  # fmt: skip
    r"""Estimate the evidence of a model from draws of its posterior.

    limbeck evidence model:log_density posterior.nc --support sigma=positive
    """
    function = files.load_object(log_density, "log_density")
    posterior = _load_draws(draws, "draws")
    points: Any = None if probe is None else files.object_or_text(probe, "probe")
    if isinstance(points, str):
        points = files.read_data(Path(points), "probe")
    z = lb.log_evidence(
        function, posterior, support=_supports(support), student=student, sweeps=sweeps,
        std_error=std_error, var_names=variables or None, burn_in=burn_in, thin=thin,
        layout=layout, probe=points, seed=common.seed, progress=not common.quiet,
    )  # fmt: skip
    return Outcome(z, {}, str(z))
