r"""NADE on a CPU by the C++ kernels: as `nade_blocks`, several times faster."""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import Any

import torch
from torch import Tensor

from limbeck.models.kernels import nade_blocks
from limbeck.models.kernels.native import library, log

__all__ = ["available", "logits", "pull", "sample"]

NAMES = {torch.float32: "float", torch.float64: "double"}
GROUP = 64
r"""Rows that pass over a tile of hidden units before the next tile is taken."""

CHUNK = 256
r"""Rows whose lists of changes are kept at a time."""

ROWS = 8
r"""Rows that are sampled in step, as in the source."""

KEPT = 2**25
r"""Bytes of working memory up to which it is kept for the next call.

To ask the system for it again takes longer than all the arithmetic of a small batch.
"""


@functools.cache
def available() -> bool:
    r"""Whether the kernels can be had here, and give what they should on a small example."""
    if library("nade.cpp") is None:
        return False
    generator = torch.Generator().manual_seed(0)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        d, w, u = torch.randn(3, 5, 5, generator=generator, dtype=dtype)
        x, c = (w > 0).to(dtype), u[0]
        found = (logits(x, w, c, u), *pull(d, x, w, c, u, wants_x=True))
        expected = (nade_blocks.logits(x, w, c, u), *nade_blocks.pull(d, x, w, c, u, wants_x=True))
        pairs = zip(found, expected, strict=True)
        if not all(torch.allclose(one, two, rtol=tolerance, atol=tolerance) for one, two in pairs):
            log.warning("native kernels: they give other numbers here, and are not used")
            return False
    return True


def logits(x: Tensor, w: Tensor, c: Tensor, u: Tensor, period: int = 1) -> Tensor:
    r"""As `nade_blocks.logits`."""
    x, w, c, u = (each.contiguous() for each in (x, w, c, u))
    (n, inputs), threads = x.shape, torch.get_num_threads()
    tiles, width = _tiles(w)
    group = max(min(GROUP, -(-n // threads)), 1)
    z = torch.empty_like(x)
    packed = _room(w.dtype, tiles * (2 * inputs + 1) * width)
    lists = _room(torch.int32, threads * group * (2 * inputs + 1))
    _call("logits", x, w, period, x, w, c, u, packed, z, lists, group, threads)
    return z


def pull(
    d: Tensor, x: Tensor, w: Tensor, c: Tensor, u: Tensor, period: int = 1, wants_x: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""As `nade_blocks.pull`."""
    d, x, w, c, u = (each.contiguous() for each in (d, x, w, c, u))
    (n, inputs), threads = x.shape, torch.get_num_threads()
    tiles, width = _tiles(w)
    parts = -(-threads // tiles)
    each = 2 * inputs + 1
    gw, gc, gu = (torch.empty_like(parameter) for parameter in (w, c, u))
    sizes = (tiles * each * width, (tiles * parts * each + threads * inputs) * width)
    packed, sums = _room(w.dtype, sum(sizes)).split(sizes)
    lists = _room(torch.int32, max(min(n, CHUNK), threads) * each)
    given = (period, x, w, c, u, packed, d)
    _call("pull", x, w, *given, gw, gc, gu, sums, lists, CHUNK, parts, threads)
    gx = torch.empty_like(x) if wants_x else x.new_empty(0)
    if wants_x:
        _call("pull_inputs", x, w, *given, gx, sums, lists, threads)
    return gx, gw, gc, gu


def sample(
    uniforms: Tensor, w: Tensor, c: Tensor, u: Tensor, b: Tensor, m: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    r"""As `nade_blocks.sample`."""
    uniforms, w, c, u, b = (each.contiguous() for each in (uniforms, w, c, u, b))
    threads = torch.get_num_threads()
    tiles, width = _tiles(w)
    m = None if m is None else m.contiguous()
    x, probabilities = torch.empty_like(uniforms), torch.empty_like(uniforms)
    rows = _room(w.dtype, threads * tiles * (2 * ROWS + 2) * width)
    _call("sample", uniforms, w, uniforms, w, c, u, b, m, x, probabilities, rows, threads)
    return x, probabilities


@functools.cache
def _width(dtype: torch.dtype) -> int:
    return int(_function("width", dtype)())


def _tiles(w: Tensor) -> tuple[int, int]:
    r"""The number of tiles of hidden units, and hidden units in a tile."""
    width = _width(w.dtype)
    return -(-w.shape[1] // width), width


_rooms = threading.local()


def _room(dtype: torch.dtype, count: int) -> Tensor:
    r"""So many numbers to work in until the next call, of any values."""
    name = str(dtype)
    room: Tensor | None = getattr(_rooms, name, None)
    if room is None or room.numel() < count:
        room = torch.empty(count, dtype=dtype)
        if room.nbytes <= KEPT:
            setattr(_rooms, name, room)
    return room[:count]


@functools.cache
def _function(name: str, dtype: torch.dtype) -> Any:
    function = getattr(library("nade.cpp"), f"nade_{name}_{NAMES[dtype]}")
    function.restype = ctypes.c_int64 if name == "width" else None
    return function


def _call(name: str, x: Tensor, w: Tensor, *arguments: Tensor | int | None) -> None:
    r"""Call a function of the library: first come the sizes n, I and J, then what is given.

    None is no tensor.
    """
    _function(name, x.dtype)(
        *(
            ctypes.c_int64(each)
            if isinstance(each, int)
            else ctypes.c_void_p(None if each is None else each.data_ptr())
            for each in (len(x), *w.shape, *arguments)
        )
    )
