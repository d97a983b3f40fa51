r"""Does a density over real numbers fall off far outside? If not, its integral is infinite."""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

from limbeck.normalization.densities import Densities

__all__ = ["tail_doubts"]

FAR = 1e6
r"""Distance of the points, in spreads of the proposal's samples."""

FALL = 3.0
r"""Nats by which the mass of a far shell must be below that near the samples, at least."""

SHARE = 0.1
r"""Share of the points for which it may not hold: of measure zero, if it were not for rounding."""

EVENTS, COORDINATES = 64, 64
r"""Samples that lines start from, and coordinates that lines follow, at most."""


@torch.no_grad()
def tail_doubts(densities: Densities, x: Tensor) -> list[str]:
    r"""What speaks against a finite integral, over real numbers.

    Where an integral is finite, so is that along almost every line parallel to an axis, and that of
    r^(d−1) p̃ along almost every ray. Then t p̃ at distance t on a line, and r^d p̃ on a ray, must
    fall. Both are compared with what they are near the samples, a million times closer: of a
    Student t with ν degrees of freedom they fall by 13.8 ν nats, of 1/√(1 + x²), whose integral is
    infinite, not at all.

    Arguments:
        densities: The target.
        x: Samples of the proposal (n, *shape), which say where the target is and how wide.
    """
    if densities.support.discrete:
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # overflow is no surprise so far out
        return _far_out(densities, x)


def _far_out(densities: Densities, x: Tensor) -> list[str]:
    rows, size = x.flatten(1), densities.support.size
    centre = rows.median(0).values
    spread = (rows - centre).abs().median(0).values
    spread = torch.where(spread > 0, spread, (rows - centre).abs().amax(0))
    spread = torch.where(spread > 0, spread, 1.0)
    rows = rows[:EVENTS]
    near = densities.log_target(rows.reshape(-1, *x.shape[1:]))
    step = max(1, math.ceil(size / COORDINATES))
    for coordinate in range(0, size, step):
        for sign in (-1, 1):
            far = rows.clone()
            far[:, coordinate] += sign * FAR * spread[coordinate]
            if _heavy(densities, far.reshape(-1, *x.shape[1:]), near, 1):
                return [_words(f"along coordinate {coordinate}")]
    # Rays pass through the samples' directions at the distance that is usual for them.
    ways = (rows - centre) / spread
    length = ways.norm(dim=1, keepdim=True)
    ways, near = ways[length[:, 0] > 0], near[length[:, 0] > 0]
    far = centre + FAR * math.sqrt(size) * torch.nn.functional.normalize(ways) * spread
    if _heavy(densities, far.reshape(-1, *x.shape[1:]), near, size):
        return [_words("in all directions")]
    return []


def _heavy(densities: Densities, far: Tensor, near: Tensor, dimension: int) -> bool:
    r"""Whether some of the far points lie in shells with as much mass as those near."""
    try:
        log = densities.target.log_unnormalized(far)
    except Exception:  # a user's function may fail where no chain comes: then nothing is known
        return False
    fall = near - (log.double() + dimension * math.log(FAR))
    known = near.isfinite() & ~log.isnan()
    return bool(known.any() and (fall[known] < FALL).double().mean() > SHARE)


def _words(where: str) -> str:
    return (
        f"log p̃ hardly falls off {where}, a million times further out than the proposal's samples: "
        "its integral seems to be infinite, and there is no log Z"
    )
