r"""Which axes are chains and which are draws."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from limbeck.draws.arrays import Array, as_array, part_name
from limbeck.errors import ArgumentError

__all__ = ["LAYOUTS", "arrange", "check_alike", "check_layout", "doubt"]

LAYOUTS = {"chains": "(chain, draw, ...)", "draws": "(draw, ...)", "emcee": "(step, walker, ...)"}
VECTORS = "(draw, dim) or (chain, draw, dim); draws of another shape by name: {'name': array}"


def check_layout(layout: str) -> None:
    r"""Refuse a layout that there is not."""
    if layout not in (*LAYOUTS, "auto"):
        raise ArgumentError.unknown("layout", layout, (*LAYOUTS, "auto"))


def arrange(variable: Any, name: str, layout: str, time: slice) -> Array:
    r"""One variable as (chain, draw, ...), without copies.

    An xarray variable's own dimensions say which axes are which; otherwise the layout does. If
    that is "auto", then a bare array with two axes is (draw, dim), and all else (chain, draw, ...).

    Arguments:
        variable: An array.
        name: Its name; '' for a bare array, whose draws are vectors.
        layout: One of `LAYOUTS`, or "auto".
        time: Which draws of each chain to keep.
    """
    dims = getattr(variable, "dims", ())
    if "draw" in dims or "sample" in dims:
        array = _by_dimensions(variable, name, dims, time)
    else:
        array = _by_layout(as_array(variable, part_name(name)), name, layout)[:, time]
    if not name and array.ndim != 3:
        raise ArgumentError("posterior", f"draws of shape {tuple(array.shape[2:])}", VECTORS)
    return array


def check_alike(arrays: dict[str, Array], layout: str) -> None:
    r"""Refuse variables (chain, draw, ...) that differ in chains or draws."""
    first, *others = arrays
    chains, draws = arrays[first].shape[:2]
    for name in others:
        if tuple(arrays[name].shape[:2]) != (chains, draws):
            received = "{} chains of {} draws".format(*arrays[name].shape[:2])
            accepted = f"{chains} chains of {draws} draws, as {part_name(first)} has"
            hint = '; layout="draws" reads (draw, ...)' if layout == "auto" else ""
            raise ArgumentError(part_name(name), received, accepted + hint)


def doubt(variables: Mapping[str, Any], layout: str) -> None:
    r"""Warn where axes that were read as (chain, draw, ...) seem to be something else."""
    name, variable = next(iter(variables.items()))
    shape = tuple(getattr(variable, "shape", None) or np.shape(variable))
    if layout != "auto" or hasattr(variable, "dims") or len(shape) < (2 if name else 3):
        return
    if shape[0] > shape[1] > 0:
        warnings.warn(
            f"posterior: {shape[0]:,} chains of {shape[1]:,} draws, with axes read as (chain, "
            'draw, ...). layout="draws" reads (draw, ...), layout="emcee" (step, walker, ...); '
            'layout="chains" says that this is right',
            stacklevel=3,
        )


def _by_layout(array: Array, name: str, layout: str) -> Array:
    if layout == "auto":
        layout = "draws" if not name and array.ndim == 2 else "chains"
    if array.ndim < (1 if layout == "draws" else 2):
        shape = f"shape {tuple(array.shape)}"
        accepted = LAYOUTS[layout] + '; layout="draws" reads (draw, ...)' if name else VECTORS
        raise ArgumentError(part_name(name), shape, accepted)
    if layout == "draws":
        return array[None]
    return array.swapaxes(0, 1) if layout == "emcee" else array


def _by_dimensions(variable: Any, name: str, dims: tuple[Any, ...], time: slice) -> Array:
    r"""An xarray variable: (chain, draw, ...), (draw, ...), or `arviz.extract`'s (..., sample)."""
    along = "draw" if "draw" in dims else "sample"
    if along == "sample" and time.start:
        received = f"{time.start} with draws of all chains in one dimension, 'sample'"
        raise ArgumentError("burn_in", received, "0, or draws by chain")
    leading = [dim for dim in ("chain", along) if dim in dims]
    ordered = variable.isel({along: time}).transpose(*leading, ...)
    array = as_array(ordered.values, part_name(name))
    return array if len(leading) == 2 else array[None]
