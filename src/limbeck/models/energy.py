r"""Targets: what they are, their likelihood of data, and those made of an energy function."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from limbeck import arguments as arg
from limbeck.arguments import CountFromZero, Flag, UserObject, checked_arguments
from limbeck.arrays import as_part, per_row
from limbeck.errors import ArgumentError, LimbeckError, shown
from limbeck.models.checks import Generator, Maybe, Pair
from limbeck.samplers.gibbs import as_power, sweep
from limbeck.samplers.hmc import HMC
from limbeck.samplers.pairwise import Pairwise
from limbeck.samplers.slice import Slice
from limbeck.supports import Discrete, Support


class Path(Protocol):
    r"""Densities p_β from one that can be sampled and normalised (β = 0) to the target (β = 1).

    `support` is the support of x, `log_z` the logarithm of the normaliser at β = 0.
    """

    support: Support
    log_z: float

    def sample(self, n: int, generator: Generator = None) -> Tensor:
        r"""Independent events (n, *shape) of the density at β = 0."""

    def log_unnormalized(self, x: Tensor, beta: float) -> Tensor:
        r"""log p̃_β(x), (n,)."""

    def climb(self, x: Tensor, before: float, after: float, generator: Generator = None) -> Pair:
        r"""log p̃_after(x) − log p̃_before(x), (n,), and x advanced by a sweep under p_after."""


@dataclass(frozen=True)
class LogLikelihood:
    r"""The mean of log p(x) over rows, with its error.

    Attributes:
        value: The mean of log p̃(x), less log Z.
        std_error: Its standard error as an estimate for new rows: both errors below together.
        data_error: The standard error of the mean over the rows.
        log_z_error: The standard error of log Z.
        rows: The number of rows.
        doubts: Why log Z, and so the value, is not trustworthy; empty if it is.
    """

    value: float
    std_error: float
    data_error: float
    log_z_error: float
    rows: int
    doubts: tuple[str, ...] = ()

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        parts = f"± {self.data_error:.2g} of {self.rows:,} rows and {self.log_z_error:.2g} of log Z"
        text = f"mean log p = {self.value:.4f} ± {self.std_error:.2g} ({parts})"
        return f"{text}; do not trust log Z: {'; '.join(self.doubts)}" if self.doubts else text


class Unnormalized(nn.Module):
    r"""The common base of models with `log_unnormalized` and a `support`."""

    output_form = "log_density"
    support: Any
    log_unnormalized: Any

    def _exact_log_z(self) -> float | None:
        r"""log Z, where it is a sum that is feasible."""
        return None

    @torch.no_grad()
    def log_likelihood(self, x: UserObject[Any], z: UserObject[Any] = None) -> LogLikelihood:
        r"""The mean of log p(x) over rows (n, *shape), with a standard error of log Z and of rows.

        Arguments:
            x: Events of the support.
            z: log Z: what `lb.log_partition` returns, or a number. Default: of an RBM the exact
                sum, which is feasible up to 25 units on the smaller side.
        """
        like = next(iter(self.parameters()), torch.zeros(0))
        x = self.support.check(as_part(x, "x").values.to(like), "x")
        z = self._exact_log_z() if z is None else z
        if getattr(z, "quantity", "log Z") != "log Z":
            raise ArgumentError("z", f"an estimate of {z.quantity}", "one of log Z of this model")
        if hasattr(z, "std_error"):
            log_z, error, doubts = float(z.value), float(z.std_error), tuple(z.verdict.reasons)
        else:
            expected = "log Z of this model, as lb.log_partition gives it"
            log_z, error, doubts = arg.Number()("z", z, expected), 0.0, ()
        log = self.log_unnormalized(x).double()
        excess = float(log.max()) - log_z
        if self.support.discrete and excess > 4 * error + 1e-5 * max(1.0, abs(log_z)):
            received = f"{log_z:.6g}, which is below log p̃ of a row by {excess:.3g}"
            raise ArgumentError("z", received, "log Z of this model")
        mean = float(log.mean()) - log_z
        spread = float(log.std()) / math.sqrt(len(log)) if len(log) > 1 else math.inf
        spread = math.inf if math.isnan(spread) else spread  # rows without mass
        return LogLikelihood(mean, math.hypot(spread, error), spread, error, len(log), doubts)


class Energy(Unnormalized):
    r"""The density p(x) ∝ exp(−fn(x) / temperature): low energies are likely.

    Arguments:
        fn: The energy (n,) of events (n, *shape), a function or a module. +∞ forbids an event.
        support: The support of x: `Binary`, `Spins`, `States` or `Real`.
        temperature: Divides the energy; above zero. Default: 1.
        advance: `advance(x, sweeps, generator)` returns the chains after `sweeps` sweeps that leave
            the density invariant. Default: single-site Gibbs sampling; on `Real`,
            `lb.samplers.HMC`, or slice sampling in one dimension and for energies that do not suit
            HMC. Annealing uses the default, or a `path` of your own; see `lb.AIS`.
        exact: Whether `advance` leaves the density invariant exactly; if not, results from its
            samples are marked as doubtful. Default: True.

    >>> from limbeck.supports import Spins
    >>> Energy(lambda x: -x.sum(1), Spins(3), temperature=2.0).log_unnormalized(torch.ones(1, 3))
    tensor([1.5000])
    """

    @checked_arguments
    def __init__(
        self, fn: UserObject[Callable[[Tensor], Tensor]], support: Support,
        temperature: arg.Positive = 1.0, advance: UserObject[Callable[..., Tensor] | None] = None,
        exact: Flag = True,
    ) -> None:  # fmt: skip
        super().__init__()
        if not callable(fn):
            raise ArgumentError("fn", f"a {type(fn).__name__}", "a function of events (n, *shape)")
        self.fn, self.support = fn, support
        self.temperature = temperature
        self.exact, self.sampler = exact, advance
        if advance is not None:
            _check_advance(advance)
        self._pairs: Pairwise | bool = True  # whether there may be couplings, or what they are
        # step size and scale of HMC by device and type, (0, None) where it does not suit
        self._adapted: dict[str, tuple[float, Maybe]] = {}

    def log_unnormalized(self, x: Tensor) -> Tensor:
        r"""log p̃(x) = −fn(x) / temperature, (n,)."""
        if not isinstance(x, Tensor):
            raise ArgumentError("x", shown(x), "a tensor (n, *shape)")
        return per_row(self.fn(x), len(x), "fn") / -self.temperature

    forward = log_unnormalized

    @checked_arguments
    def advance(self, x: Tensor, sweeps: CountFromZero = 1, generator: Generator = None) -> Tensor:
        r"""Chains (n, *shape) after so many sweeps."""
        self.support.check_shape(x)
        if self.sampler is not None:
            chains: object = self.sampler(x, sweeps, generator)
            if isinstance(chains, Tensor) and (chains.shape, chains.dtype) == (x.shape, x.dtype):
                return chains
            received = f"a {type(chains).__name__}"
            if isinstance(chains, Tensor):
                received = f"a tensor {tuple(chains.shape)} of {chains.dtype}"
            expected = f"chains as it was given them, {tuple(x.shape)} of {x.dtype}"
            raise ArgumentError("advance", received, expected)
        if isinstance(self.support, Discrete):
            return self.sites(x, sweeps, generator)
        if generator is None:
            seed = int(torch.randint(2**62, ()))  # from torch's global one
            generator = torch.Generator(x.device).manual_seed(seed)

        sampler, chains = self._real_sampler(x.flatten(1), generator), x.clone()
        for _ in range(sweeps):
            chains = sampler.step().view_as(x)
        return chains

    def _real_sampler(self, x: Tensor, generator: torch.Generator) -> HMC | Slice:
        r"""A sampler of chains x (n, size): HMC, if it runs well on this energy, or slice sampling.

        HMC is adapted once, by chains of its own from the support's starts (or, where these have no
        mass, from x), so that runs with equal seeds are equal.
        """

        def log_density(rows: Tensor) -> Tensor:
            return self.log_unnormalized(rows.view(-1, *self.support.shape))

        key = str((x.device, x.dtype))
        if key not in self._adapted:
            own = torch.Generator(x.device).manual_seed(0)
            start = self.support.start(64, own, x.device, x.dtype).flatten(1)
            with torch.no_grad():
                start = torch.cat([start, x[:64]])
                start = start[log_density(start).isfinite()][:64]
            self._adapted[key] = _adapted(log_density, start, own)
        step_size, scale = self._adapted[key]
        if scale is None:
            return Slice(log_density, x, generator=generator)
        return HMC(log_density, x, step_size=step_size, scale=scale, generator=generator)

    @checked_arguments
    def sites(
        self, x: Tensor, sweeps: CountFromZero = 1, generator: Generator = None, *,
        beta: UserObject[float | Tensor] = 1.0, known: Maybe = None,
    ) -> Tensor:  # fmt: skip
        r"""Sweeps of site-wise Gibbs sampling that leave p̃(x)^β invariant.

        β is a number from 0, or one for each chain (n,).
        """
        self.support.check_shape(x)
        log, support, chains = self.log_unnormalized, self.support, x
        if not isinstance(support, Discrete):
            expected = "advance(x, sweeps, generator), since site-wise Gibbs sampling is for "
            raise ArgumentError("advance", f"None over {support!r}", expected + "discrete supports")
        known = None if known is None else per_row(known, len(x), "known")
        beta = as_power(beta, len(x))
        if (pairs := self._pairs_at(x, known)) is not None:
            return pairs.sweep(x, sweeps, generator, beta)
        for _ in range(sweeps):
            chains, known = sweep(log, chains, support, generator, beta=beta, known=known)
        capturing = chains.is_cuda and torch.cuda.is_current_stream_capturing()
        if not capturing and chains.isnan().any() and not x.isnan().any():
            received = "energies that are NaN or −∞ at some events"
            raise ArgumentError("fn", received, "numbers, or +∞ to forbid an event")
        return chains

    def _pairs_at(self, x: Tensor, log_p: Maybe = None) -> Pairwise | None:
        r"""The couplings of pairs of sites, if these give log p̃ where chains are; or else None."""
        if not isinstance(self.support, Discrete) or self._pairs is False:
            return None
        if self._pairs is True and 8 * len(x) < self.support.size * (self.support.count - 1):
            return None  # finding them would take longer than a few sweeps
        events = x if log_p is not None else x[:32]
        with torch.no_grad():
            log_p = self.log_unnormalized(events) if log_p is None else log_p.detach()
            if isinstance(self._pairs, Pairwise):
                known = self._pairs.to(x)
                if known.agrees(events, log_p):
                    return known
            pairs = Pairwise.of(self.log_unnormalized, self.support, x)
        if pairs is None or not pairs.agrees(events, log_p):
            self._pairs = False
            return None
        self._pairs = pairs
        return pairs

    def extra_repr(self) -> str:
        return f"support={self.support!r}, temperature={self.temperature:g}"


def _adapted(
    log_density: Callable[[Tensor], Tensor], x: Tensor, generator: torch.Generator
) -> tuple[float, Maybe]:
    r"""The step size and scale of HMC, from points x (n, size); (0, None) if it does not suit."""
    if len(x) < 8 or x.shape[1] == 1:
        return 0.0, None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # slice sampling is used where these matter
            sampler = HMC(log_density, x, generator=generator).burn_in(200)
            for _ in range(20):
                sampler.step()
    except (LimbeckError, RuntimeError):  # no derivatives, or none of those of an operation
        return 0.0, None
    stable = sampler.divergences < 0.01 * 20 * len(x) and sampler.accepted > 0.6
    return (sampler.step_size, sampler.scale) if stable else (0.0, None)


def _check_advance(advance: Callable[..., Any]) -> None:
    r"""Refuse what cannot be called as `advance(x, sweeps, generator)`."""
    try:
        inspect.signature(advance).bind(None, 1, None)
    except ValueError:  # some built-in functions have no signature
        return
    except TypeError as error:
        expected = "a function advance(x, sweeps, generator)"
        raise ArgumentError("advance", f"{shown(advance)}: {error}", expected) from None
