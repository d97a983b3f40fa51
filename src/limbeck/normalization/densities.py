r"""A target and a proposal: checks, and their log densities in full precision."""

from __future__ import annotations

import hashlib
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent

from limbeck.arguments import Seed, UserObject, checked_arguments
from limbeck.arrays import float_tensor, full_precision
from limbeck.errors import ArgumentError, LimbeckError
from limbeck.evaluation import evaluating
from limbeck.inputs.generated import SeededCall
from limbeck.models.autoregressive import Autoregressive
from limbeck.models.energy import Energy
from limbeck.models.made import MADE
from limbeck.models.nade import NADE
from limbeck.models.rbm import RBM
from limbeck.samplers.chains import Logs, Target, start_events
from limbeck.samplers.diagnostics import SIGNIFICANT
from limbeck.supports import Discrete, Support

BLOCK = 2**23  # numbers of events that are evaluated together
EVENTS = 128  # at which log densities are evaluated again
REPEATABLE = (
    "the same value for the same event: switch dropout and noise off; a module that is the target "
    "or its fn= is put into eval mode, but one that a function uses needs .eval() from you"
)
FAR = 1e6  # distance of points where tails are measured, in spreads of the proposal's samples
PROPOSAL = "a student or distribution with log_prob(x) and sample(n)"


def place_of(target: object) -> tuple[torch.device, torch.dtype]:
    r"""Where a target expects its events, and of which floating type."""
    like = float_tensor(target, torch.empty(0))
    return like.device, like.dtype


def _missing(model: object, names: Iterable[str]) -> list[str]:
    return [name for name in names if not callable(getattr(model, name, None))]


def check_target(target: Any, chains: bool = True) -> None:
    r"""Refuse a target that lacks a method (`advance` is for chains) or is not repeatable."""
    missing = _missing(target, ("log_unnormalized", "advance")[: 1 + chains])
    if not isinstance(getattr(target, "support", None), Support):
        missing.append("support")
    if missing:
        expected = (
            "an lb.RBM, an lb.Energy, or anything with a support, log_unnormalized(x) and "
            "advance(x, sweeps, generator)"
        )
        if hasattr(target, "intercept_visible_"):  # scikit-learn's
            expected = "lb.RBM(m.components_.T, m.intercept_visible_, m.intercept_hidden_) of it"
        received = f"an object of type {type(target).__name__} without {' and '.join(missing)}"
        raise ArgumentError("target", received, expected)
    x = target.support.start(EVENTS, torch.Generator().manual_seed(0)).to(*place_of(target))
    with torch.no_grad(), evaluating(target):
        try:
            log = _one_each(target.log_unnormalized(x[:8]), 8, "target")
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            if isinstance(error, LimbeckError):
                raise
            received = f"{type(error).__name__} at events {tuple(x[:8].shape)}: {error}"
            raise ArgumentError(
                "target", received, f"a log density over {target.support}"
            ) from error
        if log.isnan().any():
            raise ArgumentError("target", "log densities that are NaN", "numbers, or −∞")
        check_repeatable(target.log_unnormalized, x, "target")
        own = isinstance(target, Energy | RBM) and getattr(target, "sampler", None) is None
        if not own and callable(getattr(target, "advance", None)):
            check_generator(target, x[:64])


def check_generator(target: Target, x: Tensor) -> None:
    r"""Refuse an `advance` that takes random numbers from elsewhere than its generator."""
    try:
        one, other = (
            target.advance(x.clone(), 2, torch.Generator(x.device).manual_seed(0)) for _ in range(2)
        )
    except Exception:  # these may be no events for it: it will tell where it is used
        return
    if not isinstance(one, Tensor) or not isinstance(other, Tensor) or one.shape != other.shape:
        return
    same = torch.isclose(one, other, rtol=1e-4, equal_nan=True).flatten(1).all(1)
    if float(same.double().mean()) < 0.9:  # but for rounding
        received = "other chains in a second call with an equal generator, so runs would not repeat"
        raise ArgumentError("advance", received, "random numbers from its argument generator only")


def discrete_support(target: object, expected: str) -> Discrete:
    r"""The support of a target, which must be discrete."""
    support = getattr(target, "support", None)
    if not isinstance(support, Discrete):
        received = repr(support) if isinstance(support, Support) else f"a {type(target).__name__}"
        raise ArgumentError("target", received, expected)
    return support


def check_student(student: object, target: Target, samples: bool = False) -> None:
    r"""Refuse a student that is no density over the target's support, or has no `sample`."""
    names = ("log_prob", "sample")[: 1 + samples]
    missing = _missing(student, names)
    if not isinstance(student, nn.Module) or missing:
        received = f"an object of type {type(student).__name__}"
        received += f" without {' and '.join(missing)}" if missing else ""
        raise ArgumentError("student", received, f"a torch module with {' and '.join(names)}")
    support = getattr(student, "support", None)
    if isinstance(support, Support) and support != target.support:
        expected = f"one over {target.support!r}, the target's support (support=target.support)"
        raise ArgumentError("student", f"one over {support!r}", expected)


def default_student(target: Target, seed: int) -> Autoregressive:
    r"""A NADE for a target with hidden units, such as an RBM, else a MADE of one small layer."""
    support = target.support
    if not isinstance(support, Discrete):
        examples = f"lb.GaussianMixture(10, {support.size}) or a Flow({support.size})"
        expected = f"a module with log_prob and sample, as {examples}"
        raise ArgumentError("student", f"None, for a target over {support!r}", expected)
    hidden, size = getattr(target, "hidden", None), support.size
    like = float_tensor(target, None)
    dtype = like.dtype if isinstance(like, nn.Parameter) else None
    generator = torch.Generator().manual_seed(seed)
    options: Any = {"support": support, "dtype": dtype, "generator": generator}
    if isinstance(hidden, int):
        return NADE(size, hidden, **options)
    return MADE(size, min(max(size, 16), 500), activation="tanh", **options)


@torch.no_grad()
def check_repeatable(log_density: Callable[[Tensor], Tensor], x: Tensor, argument: str) -> Tensor:
    r"""log p̃ (n,) at events, unless it changes from call to call or with the rest of the batch."""
    x = x[:EVENTS]
    first = log_density(x)
    compare(first, log_density(x), argument)
    n = max(1, len(x) // 8)
    finite = first[first.isfinite()].double()
    spread = float(finite.std()) if len(finite) > 1 else 0.0
    if (gap := _gap(first[:n], log_density(x[:n]))) > 1e-4 * _scale(first) + 0.02 * spread:
        received = (
            f"log densities that depend on the other events of a batch (by up to {gap:.3g}: "
            f"{n} events alone, and among {len(x)})"
        )
        raise ArgumentError(argument, received, f"{REPEATABLE}, and so does batch normalization")
    return first


def compare(first: Tensor, again: Tensor, argument: str) -> None:
    r"""Refuse two evaluations of the same events that differ by more than rounding."""
    gap = _gap(first, again)
    # on a GPU the order of a sum may change from call to call
    if gap > (1e-5 if first.device.type == "cpu" else 1e-4) * _scale(first):
        received = f"log densities that differ between two evaluations, by up to {gap:.3g}"
        raise ArgumentError(argument, received, REPEATABLE)


def _gap(one: Tensor, other: Tensor) -> float:
    r"""The largest difference; none where both are NaN or the same infinity."""
    same = (one == other) | (one.isnan() & other.isnan())
    gap = torch.where(same, 0.0, (one.double() - other.double()).abs())
    return float(gap.nan_to_num(math.inf, math.inf).amax()) if gap.numel() else 0.0


def _scale(values: Tensor) -> float:
    finite = values[values.isfinite()].double().abs()
    return max(1.0, float(finite.max())) if len(finite) else 1.0


def _one_each(log: object, n: int, argument: str) -> Tensor:
    r"""Log densities, which must be a tensor (n,)."""
    if not isinstance(log, Tensor) or log.shape != (n,):
        kind = tuple(log.shape) if isinstance(log, Tensor) else type(log).__name__
        expected = f"a tensor of shape ({n},)"
        raise ArgumentError(argument, f"log densities {kind} of {n} events", expected)
    if log.is_complex():
        raise ArgumentError(argument, f"log densities of {log.dtype}", "real numbers")
    return log


class Proposal:
    r"""A normalised density q: a student, or another object with `log_prob` and `sample`."""

    def __init__(self, model: Any) -> None:
        self.model = model
        if isinstance(model, Distribution) and model.batch_shape:  # independent variables
            model = Independent(model, len(model.batch_shape))
        for name in _missing(model, ("log_prob", "sample")):
            received = f"a {type(model).__name__} without {name}"
            raise ArgumentError("proposal", received, PROPOSAL)
        self._log_prob = model.log_prob
        self._sample = SeededCall(model.sample, "proposal")

    @torch.no_grad()
    def log_prob(self, x: Tensor) -> Tensor:
        r"""log q(x), (n,), of events (n, *shape), on the device of x."""
        log = self._log_prob(x.to(float_tensor(self.model, x)))
        return _one_each(log, len(x), "proposal").to(x.device)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        r"""Independent events (n, *shape), on the generator's device."""
        x = self._sample.sample(generator, n)
        if not isinstance(x, Tensor) or x.dim() == 0 or len(x) != n:
            kind = f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise ArgumentError("proposal", f"{kind} for {n} samples", f"a tensor ({n}, …)")
        return x.to(generator.device)


class Densities:
    r"""A target and, if there is one, a proposal over the same support.

    Streams of random numbers have names, so that they differ from one another and from those that
    a student was fitted with. Events are on the target's device and of its dtype.
    """

    @checked_arguments
    def __init__(
        self, target: UserObject[Target], proposal: UserObject[object] = None, seed: Seed = 0
    ) -> None:
        self.target, self.support = target, target.support
        self.exact = bool(getattr(target, "exact", True))  # whether sweeps leave it invariant
        self.seed = seed
        self.deadline = math.inf  # on the monotonic clock; checks that would take longer are left
        self.search_seconds = 0.0  # of a search for modes
        self.boxes = list[Any]()  # around peaks that climbs led to before the estimate
        self.device, self.dtype = place_of(target)
        self._proposal = None if proposal is None else Proposal(proposal)
        if self._proposal is None:
            return
        support = getattr(proposal, "support", None)
        if isinstance(support, Support) and support != self.support:
            raise ArgumentError("proposal", f"one over {support!r}", f"one over {self.support!r}")
        with self._modes():
            self.logs(self.sample(8, self.generator("look")))
            x = self.sample(EVENTS, self.generator("repeated"))
            check_repeatable(self._proposal.log_prob, x, "proposal")

    def time_left(self) -> float:
        r"""Seconds until the deadline."""
        return self.deadline - time.monotonic()

    @property
    def proposal(self) -> Proposal:
        if self._proposal is None:
            raise ArgumentError("proposal", None, PROPOSAL)
        return self._proposal

    def generator(self, stream: str) -> torch.Generator:
        r"""A new generator on the target's device, for one purpose."""
        digest = hashlib.sha256(f"limbeck log_partition {stream} {self.seed}".encode()).digest()
        return torch.Generator(self.device).manual_seed(int.from_bytes(digest[:7], "little"))

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        r"""Events (n, *shape) of the proposal, where the target expects them."""
        x = self.proposal.sample(n, generator)
        if not x.is_floating_point():
            x = x.to(self.dtype)
        return self.support.check(x, "proposal").to(self.device, self.dtype)

    def log_target(self, x: Tensor) -> Tensor:
        r"""log p̃(x), (n,), in float64."""
        return self._in_blocks(self.target.log_unnormalized, x, "target")

    def logs(self, x: Tensor) -> Logs:
        r"""Both log densities at events (n, *shape)."""
        target = self.log_target(x)
        q = self._in_blocks(self.proposal.log_prob, x, "proposal")
        neither = (target == -math.inf) & (q == -math.inf)
        return Logs(target, torch.where(neither, -math.inf, target - q))

    def drawn(self, n: int, stream: str) -> tuple[Tensor, Logs]:
        r"""Samples of the proposal (n, *shape) and their log densities, on the CPU."""
        x = self.sample(n, self.generator(stream))
        check_repeatable(self.target.log_unnormalized, x, "target")
        logs = self.logs(x).cpu()
        nowhere = int((logs.ratio == math.inf).sum())
        if nowhere or (logs.ratio == -math.inf).all():
            what = "proposal" if nowhere else "target"
            received = f"zero density at {nowhere or n:,} of {n:,} samples of the proposal"
            raise ArgumentError(what, received, f"a {what} with mass there")
        return x, logs

    def target_starts_have_mass(self) -> bool:
        r"""Whether chains can begin at the target's own starts: the density is above zero."""
        if self.support.discrete:
            return True
        x = start_events(self, "target", 50, self.generator("look at the starts"))
        return bool((self.log_target(x) > -math.inf).any())

    def exactness_doubts(self) -> list[str]:
        return [] if self.exact else ["the target's sampler says that it is not exact"]

    def excess_doubts(self, log_p: Tensor, log_z: float, std_error: float) -> list[str]:
        r"""Whether an event of a discrete target has more mass than log Z says there is in all."""
        largest = float(log_p.max())
        if self.support.discrete and largest > log_z + SIGNIFICANT * std_error:
            return [f"log Z is above {largest:.6g}, log p̃ of one of the events"]
        return []

    @contextmanager
    def at_work(self) -> Iterator[None]:
        r"""No gradients, no dropout, full precision; the target's values may not change."""
        with self._modes():
            x = self.support.start(EVENTS, self.generator("repeated"), self.device, self.dtype)
            before = check_repeatable(self.target.log_unnormalized, x, "target")
            yield
            compare(before, self.target.log_unnormalized(x), "target")

    @contextmanager
    def _modes(self) -> Iterator[None]:
        q = None if self._proposal is None else self._proposal.model
        plain = torch.autocast(self.device.type, enabled=False)
        with torch.no_grad(), plain, full_precision(), evaluating(self.target), evaluating(q):
            yield

    @torch.no_grad()
    def _in_blocks(self, function: Callable[[Tensor], Tensor], x: Tensor, argument: str) -> Tensor:
        r"""Log densities (n,) in float64, of many events at a time; NaN and +∞ are refused."""
        parts = x.split(max(1, BLOCK // self.support.size))
        log = torch.cat([_one_each(function(part), len(part), argument) for part in parts]).double()
        bad = log.isnan() | (log == math.inf)
        if count := int(bad.sum()):
            total, example = len(log), log[bad][0].item()
            received = f"log densities such as {example} at {count:,} of {total:,} events"
            raise ArgumentError(argument, received, "numbers, or −∞ where there is no mass")
        return log


@torch.no_grad()
def tail_doubts(densities: Densities, x: Tensor, far: float = FAR) -> list[str]:
    r"""A reason for doubt if a density over real numbers does not fall off far from the samples.

    If its integral is finite, t p̃ at distance t on a line, and r^d p̃ on a ray, fall from near the
    samples x (n, *shape) to `far` times further out: if a million, for a Student t by 13.8 ν nats.
    """
    if densities.support.discrete:
        return []
    with warnings.catch_warnings(action="ignore"):  # overflow is no surprise so far out
        for direction, points, near, dimension in _far_points(densities, x, far):
            try:
                log = densities.target.log_unnormalized(points.reshape(-1, *x.shape[1:]))
            except Exception:  # a user's function may fail where no chain comes
                continue
            fall = near - (log.double() + dimension * math.log(far))
            known = near.isfinite() & ~log.isnan()
            least = 3.0 * math.log(far) / math.log(FAR)  # of a Student t with ν = 0.22
            if known.any() and (fall[known] < least).double().mean() > 0.1:
                return [
                    f"log p̃ hardly falls off {direction}, {far:,.0f} times further out than the "
                    "samples: its integral seems to be infinite, and there is no log Z"
                ]
    return []


def centre_and_spread(rows: Tensor) -> tuple[Tensor, Tensor]:
    r"""Medians (size,) of rows and of distances from them; where these are 0, the largest, or 1."""
    centre = rows.median(0).values
    apart = (rows - centre).abs()
    spread = apart.median(0).values
    spread = torch.where(spread > 0, spread, apart.amax(0))
    return centre, torch.where(spread > 0, spread, 1.0)


def moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    r"""The mean of rows (n, size), and a factor of their covariance, shrunk where rows are few."""
    n, size = rows.shape
    covariance = torch.cov(rows.double().T).reshape(size, size)
    shrink = min(1.0, size / n)  # towards independent coordinates
    diagonal = covariance.diagonal().clamp_min(1e-12)
    covariance = (1 - shrink) * covariance + shrink * diagonal.diag()
    return rows.mean(0), torch.linalg.cholesky(covariance).to(rows)


def _far_points(
    densities: Densities, x: Tensor, distance: float
) -> Iterator[tuple[str, Tensor, Tensor, int]]:
    r"""By direction: points far out, log p̃ near the samples, and the dimension of the shells."""
    rows, size = x.flatten(1), densities.support.size
    centre, spread = centre_and_spread(rows)
    rows = rows[:64]
    near = densities.log_target(rows.reshape(-1, *x.shape[1:]))
    rays = (rows - centre) / spread
    own = rays.abs().clamp_min(1.0).log()  # samples of heavy tails are far out themselves
    for coordinate in range(0, size, math.ceil(size / 64)):
        for sign in (-1, 1):
            far = rows.clone()
            far[:, coordinate] += sign * distance * spread[coordinate]
            yield f"along coordinate {coordinate}", far, near + own[:, coordinate], 1
    # Rays pass through the samples' directions at the distance that is usual for them.
    apart = rays.norm(dim=1) > 0
    own = size * (rays[apart].norm(dim=1) / math.sqrt(size)).clamp_min(1.0).log()
    rays = torch.nn.functional.normalize(rays[apart])
    far = centre + distance * math.sqrt(size) * rays * spread
    yield "in all directions", far, near[apart] + own, size


def chosen_rows(x: Tensor, n: int, generator: torch.Generator) -> Tensor:
    r"""Rows at random, some perhaps more than once."""
    return x[torch.randint(len(x), (n,), generator=generator, device=x.device)]
