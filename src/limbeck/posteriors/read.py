r"""Anything that holds draws of a posterior, as draws."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from limbeck import arguments as arg
from limbeck.arrays import Array, as_array, as_dict, label
from limbeck.errors import ArgumentError, shown, warn
from limbeck.posteriors.draws import Draws, bad_rows, choose, group, whole_notes
from limbeck.posteriors.files import Choose, Variables, from_columns, open_files
from limbeck.posteriors.stream import Stream

LAYOUTS = {"chains": "(chain, draw, ...)", "draws": "(draw, ...)", "emcee": "(step, walker, ...)"}
VECTORS = "(draw, dim) or (chain, draw, dim); draws of another shape by name: {'name': array}"
ACCEPTED = (
    "an array (draw, dim), a dict of arrays (chain, draw, ...), an ArviZ object, an xarray data "
    "set, a data frame, an emcee sampler, a file (netCDF, Zarr, npz, npy, CSV), a list of chains, "
    "or an iterator of batches of draws"
)


@arg.checked_arguments
def as_draws(
    posterior: arg.UserObject[Any],
    *,
    var_names: arg.Text | arg.Items[Sequence[str]] | None = None,
    burn_in: arg.CountFromZero = 0,
    thin: arg.Count = 1,
    dtype: torch.dtype | None = None,
    layout: Annotated[str, arg.Choice(*LAYOUTS, "auto")] = "auto",
) -> Draws | Stream:
    r"""The draws of a posterior, stored or streamed.

    | posterior | is read as |
    |---|---|
    | array or tensor (draw, dim), or (chain, draw, dim) | vectors |
    | dict of arrays (chain, draw, ...) | variables by name |
    | anything with `posterior["posterior"]`: ArviZ, DataTree; an xarray data set | variables |
    | data frame, or CSV files (a file a chain), with columns as alpha.1, alpha[1] | variables |
    | path of a netCDF, Zarr, npz or npy file | as what is in there |
    | emcee's sampler, or its array with `layout="emcee"` | vectors, a walker being a chain |
    | list of arrays (draw, dim) | a chain each |
    | iterator of batches, or an object with `step()` | a `Stream` |

    Arguments:
        posterior: The draws.
        var_names: Variables to use, or, as "~name", to drop. Default: all.
        burn_in: Number of draws to drop at the start of each chain. Default: 0.
        thin: Take every `thin`-th draw of each chain. Default: 1.
        dtype: The floating type of draws. Default: that of the posterior.
        layout: What the first axes are: "chains" (chain, draw, ...), "draws" (draw, ...), "emcee"
            (step, walker, ...). "auto" reads a bare array with two axes as (draw, dim), and all
            else as (chain, draw, ...), with a warning if that gives more chains than draws. Of a
            stream: whether the draws of a batch are of parallel chains ("auto"), or, with "draws",
            follow each other in time. Default: "auto".

    >>> as_draws({"alpha": np.zeros((4, 100, 2)), "sigma": np.ones((4, 100))}, burn_in=50)
    Draws(4 chains of 50: alpha (2,), sigma ())
    """
    if dtype is not None and not dtype.is_floating_point:
        raise ArgumentError("dtype", shown(dtype), "a floating type of torch, or None")
    if isinstance(posterior, type):
        raise ArgumentError("posterior", f"the class {posterior.__name__}", ACCEPTED)
    if isinstance(posterior, Stream):
        if var_names is not None or dtype is not None or (burn_in, thin, layout) != (0, 1, "auto"):
            raise ArgumentError("posterior", "a Stream with further options", "options in Stream()")
        return posterior
    with contextlib.ExitStack() as stack:
        variables = _stored(posterior, partial(choose, var_names=var_names), layout, stack)
        if variables is not None:
            time = slice(burn_in, None, thin)
            known, axes = variables.by_name.items(), variables.layout
            parts = {name: _arrange(variable, name, axes, time) for name, variable in known}
            _check_layout(parts, variables)
            draws = Draws(parts, dtype)
            draws.notes = (*variables.notes, *whole_notes(parts, draws.dtype))
            return check(draws, burn_in)
    if not (callable(getattr(posterior, "step", None)) or hasattr(posterior, "__iter__")):
        raise ArgumentError("posterior", f"a {type(posterior).__name__}", ACCEPTED)
    options: dict[str, Any] = {"burn_in": burn_in, "thin": thin, "dtype": dtype}
    return Stream(posterior, var_names=var_names, in_time=layout == "draws", **options)


def _stored(
    posterior: Any, choose: Choose, layout: str, stack: contextlib.ExitStack
) -> Variables | None:
    r"""The selected variables of a stored posterior; None for anything else."""
    files = posterior if isinstance(posterior, list | tuple) else [posterior]
    if files and all(isinstance(file, str | os.PathLike) for file in files):
        return open_files([Path(file) for file in files], choose, layout, stack)
    if hasattr(posterior, "columns") and hasattr(posterior, "to_numpy"):
        table: Any = as_array(posterior.to_numpy(), "posterior")
        return from_columns(list(posterior.columns), [table], choose)
    notes: Sequence[str] = ()
    variables: Mapping[str, Any] | None = {"": posterior}
    if isinstance(posterior, Draws):
        variables, layout, notes = posterior.parts, "chains", posterior.notes
    elif callable(getattr(posterior, "get_chain", None)):
        layout = "emcee"
        try:
            variables = {"": posterior.get_chain()}
        except Exception as error:  # emcee's backends raise what they like
            received = f"a {type(posterior).__name__} without a chain ({error})"
            raise ArgumentError("posterior", received, "a sampler that has run") from error
    elif isinstance(posterior, list | tuple):
        variables = _stacked(posterior, layout)
    elif not isinstance(posterior, Tensor | np.ndarray):
        variables = group(posterior)
        if variables is None and hasattr(posterior, "__array__"):
            variables = {"": posterior}
    if variables is None:
        return None
    return Variables({name: variables[name] for name in choose(list(variables))}, layout, notes)


def _stacked(items: Sequence[Any], layout: str) -> dict[str, Array]:
    r"""Chains or draws of a list, under a new first axis."""
    if not all(isinstance(item, Mapping) for item in items):
        items = [{"": item} for item in items]
    elif not items or layout == "auto":
        received = "an empty list" if not items else 'a list of dicts with layout="auto"'
        expected = 'layout="chains" if each dict is a chain, layout="draws" if each is a draw'
        raise ArgumentError("posterior", received, expected)
    arrays: dict[str, list[Any]] = {name: [] for name in items[0]}
    for number, item in enumerate(items):
        if item.keys() != arrays.keys():
            received = f"the variables {', '.join(item)}"
            raise ArgumentError(f"posterior[{number}]", received, ", ".join(arrays))
        for name, values in arrays.items():
            argument = label(f"posterior[{number}]", name)
            values.append(as_array(item[name], argument))
            if values[-1].shape != values[0].shape:
                expected = f"shape {tuple(values[0].shape)}, as {label('posterior[0]', name)} has"
                raise ArgumentError(argument, f"shape {tuple(values[-1].shape)}", expected)
    of_torch = {name: all(isinstance(v, Tensor) for v in arrays[name]) for name in arrays}
    return {k: torch.stack(v) if of_torch[k] else np.stack(v) for k, v in arrays.items()}


def _arrange(variable: Any, name: str, layout: str, time: slice) -> Array:
    r"""One variable as (chain, draw, ...), by the dimensions of xarray, or else by the layout."""
    dims, argument = getattr(variable, "dims", ()), label("posterior", name)
    if "draw" in dims or "sample" in dims:  # arviz.extract gives (..., sample)
        along = "draw" if "draw" in dims else "sample"
        if along == "sample" and time.start:
            received = f"{time.start} with draws of all chains in one dimension, 'sample'"
            raise ArgumentError("burn_in", received, "0, or draws by chain")
        leading = [dim for dim in ("chain", along) if dim in dims]
        try:
            values = variable.isel({along: time}).transpose(*leading, ...).values
        except Exception as error:  # a file's reader has its own
            received = f"values that cannot be read ({' '.join(str(error).split())[:200]})"
            raise ArgumentError(argument, received, "a file that is not damaged") from error
        array = as_array(values, argument)
        array = array if len(leading) == 2 else array[None]
    else:
        array = as_array(variable, argument)
        if layout == "auto":
            layout = "draws" if not name and array.ndim == 2 else "chains"
        if array.ndim < (1 if layout == "draws" else 2):
            expected = LAYOUTS[layout] + '; layout="draws" reads (draw, ...)' if name else VECTORS
            raise ArgumentError(argument, f"shape {tuple(array.shape)}", expected)
        array = array.swapaxes(0, 1) if layout == "emcee" else array
        array = (array[None] if layout == "draws" else array)[:, time]
    if not name and array.ndim != 3:
        raise ArgumentError("posterior", f"draws of shape {tuple(array.shape[2:])}", VECTORS)
    return array


def _check_layout(arrays: dict[str, Array], variables: Variables) -> None:
    r"""Refuse variables that differ in chains or draws; warn of axes that seem to be others."""
    first, *others = arrays
    automatic = variables.layout == "auto"
    chains, draws = arrays[first].shape[:2]
    for name in others:
        if tuple(arrays[name].shape[:2]) != (chains, draws):
            received = "{} chains of {} draws".format(*arrays[name].shape[:2])
            expected = f"{chains} chains of {draws} draws, as {label('posterior', first)} has"
            hint = '; layout="draws" reads (draw, ...)' if automatic else ""
            raise ArgumentError(label("posterior", name), received, expected + hint)
    variable = variables.by_name[first]
    shape = tuple(getattr(variable, "shape", None) or np.shape(variable))
    unclear = automatic and not hasattr(variable, "dims") and len(shape) >= (2 if first else 3)
    if unclear and shape[0] > shape[1] > 0:
        warn(
            f"posterior: {shape[0]:,} chains of {shape[1]:,} draws, with axes read as (chain, "
            'draw, ...). layout="draws" reads (draw, ...), layout="emcee" (step, walker, ...); '
            'layout="chains" says that this is right'
        )


def check(draws: Draws, burn_in: int = 0) -> Draws:
    r"""The same draws, unless they are too few or not finite."""
    if draws.structure.dim == 0:
        raise ArgumentError("posterior", f"draws of no numbers: {draws.structure}", "numbers")
    if draws.count == 0:
        after = f" after burn_in={burn_in}" if burn_in else ""
        raise ArgumentError("posterior", f"no draws{after}", "two draws or more")
    if draws.count == 1:
        expected = "two or more: a posterior of one draw has nothing to condense"
        raise ArgumentError("posterior", "a single draw", expected)
    blocks = draws.blocks(max(1, 2**20 // draws.structure.dim))  # of about a million numbers
    masks = [bad_rows(as_dict(block)) for block in blocks]
    for name in draws.parts:
        bad = torch.cat([mask[name] for mask in masks])
        if not bad.any():
            continue
        first = int(bad.nonzero()[0])
        kind, expected = "NaN or infinite numbers", "finite draws"
        original = Draws({name: draws.parts[name]}, torch.float64).take([first])
        if as_dict(original)[name].isfinite().all():
            kind, expected = f"numbers beyond {draws.dtype}", "another dtype"
        expected += f"; var_names=['~{name}'] leaves the variable out" if name else ""
        chain, draw = divmod(first, draws.per_chain)
        where = f"in {int(bad.sum()):,} of {draws.count:,} draws"
        received = f"{kind} {where}, the first is {draw} of chain {chain}"
        raise ArgumentError(label("posterior", name), received, expected)
    return draws
