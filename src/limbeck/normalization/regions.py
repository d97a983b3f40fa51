r"""Regions of high density and their mass; over real numbers, boxes around where climbs end."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from limbeck.normalization.densities import Densities, centre_and_spread, chosen_rows, moments
from limbeck.samplers.chains import start_events
from limbeck.text import listed

MAX_SIZE = 64  # variables; with more, nothing climbs coordinate by coordinate
FAR_EVENTS = 2**15  # the highest of which climbs start from
MORE = 1 / 16  # of the time that is left, for three times as many more
SHELLS = 16  # of distances that events are compared in
ROUNDS = 30  # of a climb: steps double where they succeed, and halve where they do not
WIDE = 3.0  # deviations of a normal variable from the centre of a box to its sides
INSIDE = 0.4986501019683699  # its mass on one side of them


class Region(NamedTuple):
    r"""A set of events, its mass Σ p̃(x), and which draws lie in it."""

    name: str
    log_mass: float  # estimated without bias, or exact
    error: float  # relative standard error of the mass
    inside: Tensor  # whether each draw lies in it, (n,)
    several: bool = False  # whether it is made of several of the others


Set = TypeVar("Set", bound=Any)  # with a centre, and contains(rows)


class Box(NamedTuple):
    r"""A box around a peak (size,), with widths (2, size) below and above it along axes."""

    peak: Tensor
    widths: Tensor
    axes: Tensor  # (size, size), in columns

    @property
    def centre(self) -> Tensor:
        return self.peak[None]

    @property
    def factor(self) -> Tensor:
        r"""Of the covariance (size, size) of a normal distribution that is as wide."""
        return self.axes * self.widths.mean(0) / WIDE

    def contains(self, rows: Tensor) -> Tensor:
        r"""Whether rows (n, size) are inside, (n,)."""
        below, above = self.widths
        places = torch.linalg.solve(self.axes, (rows - self.peak).T).T
        return ((places >= -below) & (places <= above)).all(1)

    def sample(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        r"""Rows (n, size) and their log densities: on each side a normal cut at the sides."""
        shape, device = (2, n, len(self.peak)), self.peak.device
        side, u = torch.rand(shape, generator=generator, device=device, dtype=torch.float64)
        below, above = self.widths
        total = below + above
        t = torch.special.ndtri(0.5 + INSIDE * u)
        log = -t.square() / 2 - math.log(math.sqrt(2 * math.pi) * INSIDE / WIDE) - total.log()
        places = torch.where(side < above / total, above, -below) * t / WIDE
        return self.peak + places @ self.axes.T, log.sum(1) - self.axes.slogdet().logabsdet


def measured(
    names: list[str], sets: list[Set], exact: list[float], draws: Tensor,
    sample: Callable[[Set], tuple[Tensor, Tensor]], kind: str,
) -> list[Region]:  # fmt: skip
    r"""Sets and their union as regions, with masses from weighted samples.

    `exact` are log masses of the sets' centres, of which samples take no account.
    """
    regions = list[Region]()
    fresh: list[tuple[float, float]] = []  # masses of what is in none before, and errors
    for number, (name, around, log_mass) in enumerate(zip(names, sets, exact, strict=True)):
        rows, weights = sample(around)
        inside = around.contains(draws).cpu()
        regions.append(Region(name, *_mass(weights.cpu(), log_mass), inside))
        for known in sets[:number]:
            weights = weights.masked_fill(known.contains(rows), -math.inf)
            if known.contains(around.centre).any():
                log_mass = -math.inf
        fresh.append(_mass(weights.cpu(), log_mass))
    return regions + union(regions, fresh, kind)


def union(regions: list[Region], masses: list[tuple[float, float]], kind: str) -> list[Region]:
    r"""All regions as one, by the log masses and errors of what each adds; none of a single one."""
    scale = max((mass for mass, _ in masses), default=-math.inf)
    if len(regions) < 2 or scale == -math.inf:
        return []
    shares = [math.exp(mass - scale) for mass, _ in masses]
    error = math.hypot(*(s * e for s, (_, e) in zip(shares, masses, strict=True))) / sum(shares)
    inside = torch.stack([region.inside for region in regions]).any(0)
    top = max(regions, key=lambda region: region.log_mass).name
    name = f"{len(regions)} {kind} together (one is {top})"
    return [Region(name, scale + math.log(sum(shares)), error, inside, True)]


def _mass(log_weights: Tensor, exact: float) -> tuple[float, float]:
    r"""log (mean of weights + exp(exact)), and its relative standard error."""
    scale = max(float(log_weights.max()), exact)
    if scale == -math.inf:
        return -math.inf, 0.0
    w = (log_weights - scale).exp()
    mean = float(w.mean()) + math.exp(exact - scale)
    return scale + math.log(mean), float(w.std()) / math.sqrt(len(w)) / mean


class RealSearch:
    r"""Peaks of a density over real numbers, from draws (n, *shape) and other events."""

    def __init__(
        self, densities: Densities, draws: Tensor, given: Tensor | None = None,
        end: float | None = None,
    ) -> None:  # fmt: skip
        self.densities, self.given, self.evaluations = densities, given, 0
        self.end = densities.deadline if end is None else end  # on the monotonic clock
        self.hurried = self.singular = False
        self.generator = densities.generator(f"modes, {len(densities.boxes)} known")
        self.draws = draws.flatten(1).double()
        self.centre, self.spread = centre_and_spread(self.draws)
        self.factor = moments(self.draws)[1]
        self.sets = list[Box]()

    def log_p(self, rows: Tensor) -> Tensor:
        r"""log p̃ (n,) of rows (n, size); −∞ where it is no number, or +∞ at a single point."""
        self.evaluations += len(rows)
        x = rows.to(self.densities.dtype).reshape(-1, *self.densities.support.shape)
        try:
            with warnings.catch_warnings(action="ignore"):  # overflow is no surprise far out
                log = self.densities.target.log_unnormalized(x).double()
        except Exception:  # a user's function may fail where no chain comes
            return rows.new_full((len(rows),), -math.inf)
        return torch.where(log < math.inf, log, -math.inf).nan_to_num(-math.inf, neginf=-math.inf)

    def starts(self, count: int) -> Tensor:
        r"""Draws, events far out and on lines, the target's own starts, data and known peaks.

        In few dimensions, events far out, so many, hit what nothing leads to. Climbs start from
        those whose log p̃ is above that of others as far out, and from any.
        """
        some = chosen_rows(self.draws, 16, self.generator)
        parts = [some, 0 * some[:1], self._on_lines(), *self.images(some[:4])]
        parts += [box.centre for box in self.densities.boxes]
        if self.given is not None:
            parts.append(chosen_rows(self.given.flatten(1).to(some), 16, self.generator))
        own = start_events(self.densities, "target", 1024, self.generator).flatten(1).double()
        wide, log = self._wide(count, own)
        far = wide[((wide - self.centre).abs() > 2 * self.spread).any(1)]
        parts += [own[:8], wide[self._outliers(wide, log)]]
        even = torch.linspace(0, len(far) - 1, 16 if len(far) else 0).long()  # by their distance
        parts.append(far[((far - self.centre) / self.spread).norm(dim=1).argsort()[even]])
        starts = torch.cat(parts[::-1])  # of equal peaks, as of plateaus, the first ones count
        return starts[self.log_p(starts) > -math.inf]

    def _wide(self, count: int, own: Tensor) -> tuple[Tensor, Tensor]:
        r"""Rows (n, size): `own`, and around the draws' centre; with log p̃ > −∞ there."""
        size = own.shape[1]
        place: Any = {"generator": self.generator, "device": own.device, "dtype": own.dtype}
        rows, logs, began = [own], [self.log_p(own)], time.monotonic()
        for block in range(4):
            normal, u = torch.randn(count, size, **place), torch.rand(count, 1, **place)
            wide, factor = (5 * u - 1, self.factor.T) if block else (10 * u, self.spread.diag())
            rows.append(self.centre + 2**wide * normal @ factor)
            logs.append(self.log_p(rows[-1]))
            now = time.monotonic()
            if not block and 3 * (now - began) > MORE * (self.end - now):
                break
        x, log = torch.cat(rows), torch.cat(logs)
        return x[log > -math.inf], log[log > -math.inf]

    def _outliers(self, rows: Tensor, log: Tensor) -> Tensor:
        r"""Indices of rows (n, size) that are furthest above a line through log p̃ (n,).

        Lines are fitted to rows at nearly the same distance, in standard deviations of the draws.
        """
        whitened = torch.linalg.solve_triangular(self.factor, (rows - self.centre).T, upper=False)
        radius, order = whitened.norm(dim=0).sort()
        order = order[: len(order) // SHELLS * SHELLS].view(SHELLS, -1)
        radius, log = radius[: order.numel()].view_as(order), log[order]
        radius, log = (part - part.mean(1, keepdim=True) for part in (radius, log))
        slope = (radius * log).sum(1, keepdim=True) / radius.square().sum(1, keepdim=True)
        top = (log - slope * radius).topk(min(2, order.shape[1]), dim=1).indices
        return order.gather(1, top).flatten()

    def _on_lines(self) -> Tensor:
        r"""The highest two peaks on some lines along coordinates, and on that of constants."""
        most = 2 * float(self.draws.abs().max())
        steps = torch.cat([self.spread.diag(), torch.full_like(self.centre, most / 16)[None]])
        through = torch.cat([self.centre.expand(len(self.centre), -1), 0 * self.centre[None]])
        places = torch.linspace(-32, 32, 257, device=steps.device, dtype=steps.dtype)[:, None]
        rows = through[:, None] + places * steps[:, None]
        log = self.log_p(rows.flatten(0, 1)).view(len(steps), -1)
        around = torch.nn.functional.pad(log, (1, 1), value=-math.inf)
        peak = (log > around[:, :-2]) & (log >= around[:, 2:])
        values, top = torch.where(peak, log, -math.inf).topk(2, dim=1)
        lines = values.topk(min(8, len(steps)), dim=0).indices  # by their highest, and their second
        return rows[lines, top.gather(0, lines)].flatten(0, 1)

    def images(self, rows: Tensor) -> list[Tensor]:
        r"""Mirror images of rows (n, size), and with coordinates in other orders."""
        order = torch.randperm(rows.shape[1], generator=self.generator, device=rows.device)
        others = rows, rows.flip(1), rows.roll(1, 1), rows[:, order]
        return [*others[1:], *(-other for other in others), 2 * self.centre - rows]

    def climb(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        r"""The rows (n, size) where climbs end, and log p̃ there."""
        rows, value = rows.clone(), self.log_p(rows)
        step = self.spread.expand_as(rows).clone()
        for _ in range(ROUNDS):
            for k in range(rows.shape[1]):
                better = torch.zeros_like(value, dtype=torch.bool)
                for sign in (-1, 1):
                    other = rows.clone()
                    other[:, k] += sign * step[:, k]
                    log = self.log_p(other)
                    gain = log > value
                    rows = torch.where(gain[:, None], other, rows)
                    value = torch.where(gain, log, value)
                    better |= gain
                step[:, k] *= torch.where(better, 2.0, 0.5)
            if (step < 1e-6 * self.spread).all():
                break
        return rows, value

    def widths(self, peaks: Tensor, value: Tensor, axes: Tensor) -> Tensor:
        r"""How far (n, 2, size) from peaks along axes (n, size, size) log p̃ falls by WIDE² / 2."""
        n, size = peaks.shape
        scales = 2.0 ** torch.arange(-26, 12, device=peaks.device, dtype=torch.float64)
        widths = peaks.new_empty(n, 2, size)
        for k in range(size):
            for side, sign in enumerate((-1, 1)):
                other = peaks[:, None] + sign * scales[:, None] * axes[:, None, :, k]
                fall = value[:, None] - self.log_p(other.flatten(0, 1)).view(n, -1)
                low = fall > WIDE**2 / 2
                first = torch.where(low.any(1), low.int().argmax(1), len(scales) - 1)
                width, step = scales[first], scales[first] / 4
                for _ in range(6):  # bisection: plateaus end between two scales
                    middle = peaks + sign * (width - step)[:, None] * axes[:, :, k]
                    beyond = value - self.log_p(middle) > WIDE**2 / 2
                    width = torch.where(beyond, width - step, width)
                    step = step / 2
                widths[:, side, k] = width
        return widths

    def axes(self, peak: Tensor, value: Tensor, widths: Tensor) -> Tensor | None:
        r"""Principal axes (size, size) at a peak, by second differences; None for coordinates."""
        step = widths.mean(0) * self.spread / WIDE
        size, rise = len(peak), torch.eye(len(peak), device=peak.device).double()
        one, other = torch.tril_indices(size, size, -1, device=peak.device)
        single = self.log_p(peak + rise * step)
        both = self.log_p(peak + (rise[one] + rise[other]) * step)
        curved = (2 * value - single - self.log_p(peak - rise * step)).diag()
        curved[one, other] = curved[other, one] = single[one] + single[other] - both - value
        scale = curved.diagonal().clamp_min(1e-300).rsqrt()
        correlated = (curved * scale * scale[:, None]).tril(-1).abs() > 0.1
        if not curved.isfinite().all() or not correlated.any():
            return None
        stretch, turn = torch.linalg.eigh(curved)
        return step[:, None] * turn * stretch.rsqrt() if stretch[0] > 0 else None

    def boxes(self, most: int = 12) -> list[Box]:
        r"""Boxes around the peaks that seem to have most of the mass; one may lie in another."""
        self.log_p(self.draws[:64])  # the first one may prepare something
        began = time.monotonic()
        self.log_p(self.draws[:64])
        took, left = time.monotonic() - began, self.end - began
        if 4 * ROUNDS * len(self.centre) * took > left:  # two climbs
            self.hurried = not self.densities.boxes
            return self.densities.boxes
        far = int(min(FAR_EVENTS, 16 * left / max(took, 1e-9)))
        peaks, value = self._distinct(*self.climb(self.starts(far)))
        if len(peaks):
            images = self.climb(torch.cat(self.images(peaks[:8])))
            both = zip((peaks, value), images, strict=True)
            peaks, value = self._distinct(*map(torch.cat, both))
        if not len(peaks):
            return []
        plain = self.spread.diag().expand(len(peaks), -1, -1)
        widths, boxes, tops = self.widths(peaks, value, plain), list[Box](), list[float]()
        log_mass = value + (widths.sum(1) * self.spread).log().sum(1)
        for k in log_mass.argsort(descending=True).tolist():
            new = Box(peaks[k], widths[k], plain[0])
            same = any(
                bool(box.contains(new.peak[None])) and float(value[k]) <= top
                for box, top in zip(boxes, tops, strict=True)
            )  # a spike may be in the box of a broad peak, and all of a plateau is in one
            if len(boxes) == most or same:
                continue
            if (axes := self.axes(peaks[k], value[k], widths[k])) is not None:
                turned = self.widths(peaks[k, None], value[k, None], axes[None])[0]
                new = Box(peaks[k], turned, axes)
            boxes.append(new)
            tops.append(float(value[k]) + 0.01)
        return boxes

    def _distinct(self, peaks: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        r"""Peaks in falling order of log p̃, without those that are the same but for rounding."""
        chosen = list[int]()
        for k in value.argsort(descending=True, stable=True).tolist():
            if value[k] == -math.inf or len(chosen) == 64:
                break
            near = ((peaks[chosen] - peaks[k]).abs() < 0.01 * self.spread).all(1)
            if not (near & (value[chosen] - value[k] < 0.01)).any():
                chosen.append(k)
        return peaks[chosen], value[chosen]

    def regions(self) -> tuple[list[Region], int]:
        r"""Boxes as regions, and their number."""
        began = time.monotonic()
        boxes, names = self.boxes(), list[str]()
        self.sets = boxes
        for box in boxes:
            shown = listed([f"{value:.4g}" for value in box.peak.tolist()])
            names.append(f"a box around ({shown}), found by climbing")

        def sample(box: Box) -> tuple[Tensor, Tensor]:
            rows, log_q = box.sample(1000, self.generator)
            return rows, self.log_p(rows) - log_q

        none = [-math.inf] * len(boxes)
        regions = measured(names, boxes, none, self.draws, sample, "boxes")
        self.singular = self._is_singular(boxes)
        self.densities.search_seconds = time.monotonic() - began
        return regions, len(regions)

    def _is_singular(self, boxes: list[Box]) -> bool:
        r"""Whether r^d p̃ hardly falls from a thousandth to a millionth of the spread, at a peak."""
        size = len(self.centre)
        rays = torch.randn(32, size, generator=self.generator, device=self.centre.device).double()
        rays = torch.nn.functional.normalize(rays) * self.spread
        for box in boxes:
            far, near = (self.log_p(box.peak + r * rays) for r in (1e-3, 1e-6))
            fall = (far - near + size * math.log(1e3))[(far > -math.inf) & (near > -math.inf)]
            if len(fall) and float(fall.median()) < 1.5:
                return True
        return False
