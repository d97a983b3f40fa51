r"""Random copies of images: turned, shifted, stretched and bent a little, inside the step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from limbeck.arrays import Batch
from limbeck.errors import ArgumentError
from limbeck.inputs import Dataset
from limbeck.inputs.base import Nested

__all__ = ["Change", "Copies"]

KNOTS = 6
r"""Points a side at which an image is pulled about to bend it."""


@dataclass(frozen=True)
class Change:
    r"""How much copies differ from their images, at most; each part is drawn uniformly.

    Attributes:
        rotation: Degrees, either way.
        shift: Pixels along each axis, either way.
        scale: Each axis is stretched by a factor between 1 − scale and 1 + scale.
        shear: Pixels a pixel, either way.
        bend: Pixels by which each knot of a coarse net is pulled, as a standard deviation.
        original: The share of images that stay as they are.
    """

    rotation: float = 15.0
    shift: float = 2.0
    scale: float = 0.15
    shear: float = 0.15
    bend: float = 0.0
    original: float = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            least = 0 if name != "original" else 1
            if not (math.isfinite(value) and value >= 0 and (not least or value <= 1)):
                expected = "a number from 0 to 1" if least else "a finite number from 0"
                raise ArgumentError(name, value, expected)
        if self.scale >= 1:
            raise ArgumentError("scale", self.scale, "a number from 0 to below 1")

    def times(self, strength: float) -> Change:
        r"""The same with every change but the share of originals so much stronger."""
        each = {name: strength * value for name, value in vars(self).items()}
        return Change(**each | {"original": self.original})


class Copies(Nested):
    r"""Changed copies of the rows of a data set, in shuffled passes; labels go with them.

    What is drawn is row numbers and random numbers; the copies are made of them within the step.

    Arguments:
        X: Images (N, height · width), row by row.
        change: How much they are changed.
        y: Labels (N, ...).
        shape: Height and width of an image.
        seed: The generator's seed; None takes the seed of the distillation.

    >>> Copies(torch.rand(9, 12), Change(shift=1.0), shape=(3, 4))(5).x.shape
    torch.Size([5, 12])
    """

    def __init__(
        self,
        X: Any,
        change: Change = Change(),  # noqa: B008 - frozen
        y: Any = None,
        shape: tuple[int, int] = (28, 28),
        seed: int | None = None,
    ) -> None:
        self.data = Dataset(X, y)
        super().__init__([self.data], seed)
        self.change, self.shape = change, shape
        rows, wanted = self.data.x, (len(self.data), shape[0] * shape[1])
        if not isinstance(rows, Tensor) or rows.shape != wanted:
            received = f"shape {tuple(rows.shape)}" if isinstance(rows, Tensor) else "a dict"
            raise ArgumentError("X", received, f"shape {wanted}")
        self._bells = _bells(shape)

    def draw(self, n: int) -> dict[str, Tensor]:
        r"""Rows (n,), uniform numbers (n, 7), and knots' normal ones (n, 2, knots) if any bend."""
        place: dict[str, Any] = {"generator": self.generator, "device": self.device}
        found = {"rows": self.data.next_rows(n), "uniform": torch.rand(n, 7, **place)}
        if self.change.bend:
            found["normal"] = torch.randn(n, 2, KNOTS**2, **place)
        return found

    def build(self, drawn: dict[str, Tensor]) -> Batch:
        batch = self.data.build(drawn["rows"])
        x: Any = batch.x
        height, width = self.shape
        tall = x.reshape(-1, 1, height, width)
        uniform = drawn["uniform"].to(x.dtype)
        grid = F.affine_grid(self._matrices(uniform), list(tall.shape), align_corners=False)
        if self.change.bend:
            moved = self.change.bend * drawn["normal"].to(x.dtype) @ self._bells  # (n, 2, pixels)
            across, down = moved.unbind(1)  # pixels, of which the grid has two units a side
            pull = torch.stack([2 / width * across, 2 / height * down], 2)
            grid = grid + pull.reshape(grid.shape)
        copies = F.grid_sample(tall, grid, align_corners=False).flatten(1)
        stays = uniform[:, 6:] < self.change.original
        return Batch(torch.where(stays, x, copies), batch.y)

    def to(self, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        super().to(device, dtype, seed)
        self._bells = self._bells.to(self.device, dtype)

    def _matrices(self, uniform: Tensor) -> Tensor:
        r"""From places in the copy to places in the image, both from −1 to 1: (n, 2, 3)."""
        change, height, width = self.change, *self.shape
        u = 2 * uniform - 1  # (n, 7)
        angle = math.radians(change.rotation) * u[:, 0]
        across, down = 1 / (1 + change.scale * u[:, 1]), 1 / (1 + change.scale * u[:, 2])
        lean = change.shear * u[:, 3]
        cos, sin = angle.cos(), angle.sin()
        ratio = height / width
        rows = (
            (across * cos, ratio * down * (lean * cos - sin), 2 * change.shift / width * u[:, 4]),
            (across * sin / ratio, down * (lean * sin + cos), 2 * change.shift / height * u[:, 5]),
        )
        return torch.stack([torch.stack(row, 1) for row in rows], 1)


def _bells(shape: tuple[int, int]) -> Tensor:
    r"""How far each knot's pull is felt at each pixel, (knots, pixels): bells that sum to one."""
    sides = []
    for size in shape:
        pixels, knots = torch.arange(size) + 0.5, (torch.arange(KNOTS) + 0.5) * size / KNOTS
        bells = torch.exp(-0.5 * ((pixels - knots[:, None]) * KNOTS / size).square())
        sides.append(bells / bells.sum(0))
    return torch.einsum("ky,lx->klyx", *sides).reshape(KNOTS**2, -1)
