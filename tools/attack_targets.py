r"""Families of targets with known log Z, each with a parameter swept across its transition.

The answers are closed forms, sums by symmetry (over the number of spins up, or over occupation
numbers), one-dimensional quadrature, or enumeration of small models. `cases()` lists them all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Independent, Normal, StudentT

import limbeck as lb

DISCRETE = ("bridge", "importance", "ais")
REAL = ("bridge", "importance")


@dataclass
class Problem:
    r"""A target, its log Z (NaN if the integral does not exist), and how to estimate it."""

    target: Any
    log_z: float
    methods: tuple[str, ...] = DISCRETE
    proposal: Any = None  # None: a student is distilled
    needle: bool = False  # nothing leads to some of its mass
    student: str = "auto"  # or "score matching", of a flow


class Case(NamedTuple):
    r"""A problem that is built when it is its turn."""

    family: str
    name: str
    build: Callable[[], Problem]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def log_binomial(n: int) -> Tensor:
    r"""log of n over k, k = 0 … n."""
    k = torch.arange(n + 1, dtype=torch.float64)
    return math.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)


def mean_field(size: int, log_p: Callable[[Tensor], Tensor], **options: Any) -> lb.Energy:
    r"""Spins whose log p̃ is a function of their mean."""
    return lb.Energy(lambda x: -log_p(x.mean(1)), lb.Spins(size), **options)


def mean_field_log_z(size: int, log_p: Callable[[Tensor], Tensor]) -> float:
    mean = 2 * torch.arange(size + 1, dtype=torch.float64) / size - 1
    return float((log_binomial(size) + log_p(mean)).logsumexp(0))


def of_mean(size: int, log_p: Callable[[Tensor], Tensor], **options: Any) -> Problem:
    return Problem(mean_field(size, log_p), mean_field_log_z(size, log_p), **options)


def occupations_log_z(size: int, values: int, log_p: Callable[[Tensor], Tensor]) -> float:
    r"""log Σ over states of Π_k exp(log_p(n_k)), n_k sites of value k: a power of a polynomial."""
    n = torch.arange(size + 1, dtype=torch.float64)
    one = log_p(n) - torch.lgamma(n + 1)
    total = torch.where(n == 0, 0.0, -math.inf).double()
    for _ in range(values):
        total = torch.stack(
            [(total[: k + 1] + one[: k + 1].flip(0)).logsumexp(0) for k in range(size + 1)]
        )
    return float(total[size]) + math.lgamma(size + 1)


def kaufman(length: int, temperature: float) -> float:
    r"""log Z of the periodic square Ising lattice (Kaufman 1949), of even length."""
    k, n = 1 / temperature, length

    def gamma(r: int) -> float:
        if r == 0:
            return 2 * k + math.log(math.tanh(k))
        c = math.cosh(2 * k) / math.tanh(2 * k) - math.cos(math.pi * r / n)
        return math.acosh(max(c, 1.0))

    def log_product(first: int, hyperbolic: Callable[[float], float]) -> tuple[float, float]:
        sign, total = 1.0, 0.0
        for r in range(first, 2 * n, 2):
            value = 2 * hyperbolic(n * gamma(r) / 2)
            sign, total = sign * math.copysign(1.0, value), total + math.log(abs(value) or 1e-300)
        return sign, total

    odd = [log_product(1, f) for f in (math.cosh, math.sinh)]
    even = [log_product(0, f) for f in (math.cosh, math.sinh)]
    terms = [*odd, *even]
    top = max(value for _, value in terms)
    total = sum(sign * math.exp(value - top) for sign, value in terms)
    return n * n / 2 * math.log(2 * math.sinh(2 * k)) - math.log(2) + top + math.log(total)


def lattice(length: int, temperature: float) -> lb.Energy:
    def energy(x: Tensor) -> Tensor:
        return -(x * x.roll(1, 1) + x * x.roll(1, 2)).sum((1, 2))

    return lb.Energy(energy, lb.Spins(length, length), temperature=temperature)


def quadrature(log_p: Callable[[Tensor], Tensor], low: float, high: float) -> float:
    r"""log of an integral over a line, by the trapezoid rule on many points."""
    x = torch.linspace(low, high, 400_001, dtype=torch.float64)
    log = log_p(x)
    log[0] -= math.log(2)
    log[-1] -= math.log(2)
    return float(log.logsumexp(0)) + math.log((high - low) / (len(x) - 1))


def real(log_p: Callable[[Tensor], Tensor], dim: int, **options: Any) -> lb.Energy:
    return lb.Energy(lambda x: -log_p(x), lb.Real(dim), **options)


def random_walk(log_p: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    r"""A sampler by random-walk Metropolis, for densities that slices would be endless in."""

    def advance(x: Tensor, sweeps: int, generator: torch.Generator) -> Tensor:
        for _ in range(sweeps):
            y = x + 2 * torch.randn(x.shape, generator=generator)
            better = torch.rand(len(x), generator=generator).log() < log_p(y) - log_p(x)
            x = torch.where(better[:, None], y, x)
        return x

    return advance


def mixture(parts: list[tuple[float, float, float]], dim: int) -> Callable[[Tensor], Tensor]:
    r"""log p̃ of a mixture of N(m·1, s²·I): (weight, m, s)."""

    def log_p(x: Tensor) -> Tensor:
        logs = [
            math.log(w) - (x - m).square().sum(1) / (2 * s * s)
            - dim / 2 * math.log(2 * math.pi * s * s)
            for w, m, s in parts
        ]  # fmt: skip
        return torch.stack(logs).logsumexp(0)

    return log_p


def normal(dim: int, scale: float = 1.0) -> Independent:
    return Independent(Normal(torch.zeros(dim), scale * torch.ones(dim)), 1)


def student_t(dim: int, freedom: float, scale: float = 1.0) -> Independent:
    return Independent(
        StudentT(freedom * torch.ones(dim), torch.zeros(dim), scale * torch.ones(dim)), 1
    )


# Symmetric modes


def symmetric_modes() -> Iterator[tuple[str, Callable[[], Problem]]]:
    for size, beta in itertools.product((16, 40, 100), (0.6, 0.9, 1.0, 1.1, 1.3, 1.6, 2.2)):
        yield (
            f"Curie-Weiss N={size} beta={beta}",
            lambda n=size, b=beta: of_mean(n, lambda m: b * n * m**2 / 2),
        )
    for size, tilt in itertools.product((40, 100), (0.001, 0.003, 0.01, 0.03)):
        yield (
            f"Curie-Weiss with a field N={size} beta=1.5 h={tilt}",
            lambda n=size, h=tilt: of_mean(n, lambda m: 1.5 * n * m**2 / 2 + h * n * m),
        )
    for size, temperature in itertools.product((4, 6), (1.0, 1.5, 2.0, 2.269, 3.0, 5.0)):
        yield (
            f"Ising {size}x{size} T={temperature}",
            lambda n=size, t=temperature: Problem(lattice(n, t), kaufman(n, t)),
        )
    for dim, barrier in itertools.product((1, 3, 8), (0.5, 2.0, 6.0, 15.0)):

        def wells(d: int = dim, b: float = barrier) -> Problem:
            def log_p(x: Tensor) -> Tensor:
                return -b * (x.square() - 1).square().sum(1)

            one = quadrature(lambda x: -b * (x.square() - 1).square(), -6.0, 6.0)
            return Problem(real(log_p, d), d * one, REAL)

        yield f"double wells d={dim} barrier={barrier}", wells
    for dim, apart, share in itertools.product((1, 4), (1.0, 3.0, 6.0, 15.0), (0.5, 0.1)):

        def pair(d: int = dim, m: float = apart, w: float = share) -> Problem:
            log_p = mixture([(w, m, 1.0), (1 - w, -m, 1.0)], d)
            return Problem(real(log_p, d), 0.0, REAL)

        yield f"two Gaussians d={dim} at ±{apart} share={share}", pair


# First-order transitions


def first_order() -> Iterator[tuple[str, Callable[[], Problem]]]:
    betas = (0.5, 0.6, 0.66, 0.69, 0.72, 0.78, 0.85, 1.0, 1.2)
    for power, size in ((3, 64), (5, 32), (7, 64), (9, 128)):
        for beta in betas:
            yield (
                f"-N mean^{power} N={size} beta={beta}",
                lambda n=size, p=power, b=beta: of_mean(n, lambda m: b * n * m**p),
            )
    for power, size in ((4, 64), (6, 32)):
        for beta in (0.55, 0.65, 0.7, 0.8):
            yield (
                f"-N mean^{power} N={size} beta={beta}",
                lambda n=size, p=power, b=beta: of_mean(n, lambda m: b * n * m**p),
            )
    for values, size, couplings in (
        (3, 60, (2.4, 2.6, 2.7, 2.77, 2.85, 3.0)),
        (5, 60, (3.2, 3.5, 3.7, 3.9, 4.2)),
        (10, 60, (4.4, 4.7, 4.9, 5.1, 5.5)),
        (20, 80, (5.6, 6.0, 6.2, 6.4, 6.8)),
    ):
        for coupling in couplings:

            def potts(q: int = values, n: int = size, b: float = coupling) -> Problem:
                def energy(x: Tensor) -> Tensor:
                    counts = torch.stack([(x == k).sum(1) for k in range(q)], 1).to(x.dtype)
                    return -b / (2 * n) * counts.square().sum(1)

                log_z = occupations_log_z(n, q, lambda m: b / (2 * n) * m.square())
                return Problem(lb.Energy(energy, lb.States(q, n)), log_z)

            yield f"Curie-Weiss Potts q={values} N={size} b={coupling}", potts
    for beta in (0.66, 0.7, 0.8, 1.0):

        def planted(b: float = beta, n: int = 48) -> Problem:
            pattern = 2.0 * torch.randint(2, (n,), generator=generator(5)) - 1

            def energy(x: Tensor) -> Tensor:
                return -b * n * (x * pattern).mean(1) ** 5

            return Problem(
                lb.Energy(energy, lb.Spins(n)), mean_field_log_z(n, lambda m: b * n * m**5)
            )

        yield f"planted pattern, power 5, N=48 beta={beta}", planted


# Spike and slab


def spike_and_slab() -> Iterator[tuple[str, Callable[[], Problem]]]:
    scales, dims = (0.3, 0.1, 0.03, 0.01, 0.001), (1, 2, 5)
    for dim, scale, share in itertools.product(dims, scales, (0.5, 0.1)):

        def spike(d: int = dim, s: float = scale, w: float = share) -> Problem:
            return Problem(real(mixture([(w, 0.0, s), (1 - w, 0.0, 1.0)], d), d), 0.0, REAL)

        yield f"spike of width {scale} in N(0, I), d={dim} share={share}", spike
    for share, size in itertools.product((0.02, 0.2, 0.5, 0.95), (16, 40)):
        for place in (
            "all zeros", "random event", "random event with a narrow funnel",
            "random event with a wide funnel",
        ):  # fmt: skip

            def event(w: float = share, n: int = size, where: str = place) -> Problem:
                peak = torch.zeros(n)
                if where != "all zeros":
                    peak = torch.randint(2, (n,), generator=generator(n)).float()
                height = math.log(w / (1 - w)) + n * math.log(2)
                width = {"narrow": 4, "wide": 2 * n // 5}.get(where.split()[-2], 0)

                def log_p(distance: Tensor) -> Tensor:
                    fall = height * (1 - distance / (width + 1))
                    return torch.where(distance <= width, fall, 0.0)

                def energy(x: Tensor) -> Tensor:
                    return -log_p((x != peak).sum(1).to(x.dtype))

                k = torch.arange(n + 1, dtype=torch.float64)
                log_z = float((log_binomial(n) + log_p(k)).logsumexp(0))
                # of 40 bits, one event in 10 million is within 4 turns of the peak
                needle = where == "random event" or (width == 4 and n == 40)
                return Problem(lb.Energy(energy, lb.Binary(n)), log_z, needle=needle)

            yield f"spike at {place}, N={size} share={share}", event


# Disconnected supports


def disconnected() -> Iterator[tuple[str, Callable[[], Problem]]]:
    for size, wall in itertools.product((20, 50), (0.0, 0.1, 0.3, 0.6)):
        for tilt in (0.0, 0.05):
            yield (
                f"no |mean| <= {wall}, N={size} h={tilt}",
                lambda n=size, c=wall, h=tilt: of_mean(
                    n, lambda m: torch.where(m.abs() <= c + 1e-6, -math.inf, h * n * m)
                ),
            )
    for size, field in itertools.product((12, 24), (0.0, 0.3, 1.0)):

        def parity(n: int = size, h: float = field) -> Problem:
            def energy(x: Tensor) -> Tensor:
                even = (x > 0).sum(1) % 2 == 0
                return torch.where(even, -h * x.sum(1), math.inf)

            k = torch.arange(n + 1, dtype=torch.float64)
            log = log_binomial(n) + h * (2 * k - n)
            return Problem(lb.Energy(energy, lb.Spins(n)), float(log[::2].logsumexp(0)))

        yield f"an even number of ups, N={size} h={field}", parity
    for size, values in ((12, 3), (16, 4), (20, 3)):

        def colouring(n: int = size, q: int = values) -> Problem:
            def energy(x: Tensor) -> Tensor:
                return torch.where((x == x.roll(1, 1)).any(1), math.inf, 0.0)

            return Problem(
                lb.Energy(energy, lb.States(q, n)), math.log((q - 1) ** n + (-1) ** n * (q - 1))
            )

        yield f"colourings of a ring, N={size} q={values}", colouring
    for dim, apart in itertools.product((1, 3), (0.5, 2.0, 6.0)):
        for share in (1.0, 3.0):

            def boxes(d: int = dim, m: float = apart, w: float = share) -> Problem:
                def log_p(x: Tensor) -> Tensor:
                    left = (x.abs() <= 1).all(1)
                    right = ((x - 2 - m).abs() <= 1).all(1)
                    return torch.where(left, 0.0, torch.where(right, math.log(w), -math.inf))

                log_z = d * math.log(2) + math.log(1 + w)
                return Problem(real(log_p, d), log_z, REAL)

            yield f"two boxes {apart} apart, d={dim} weight={share}", boxes


# Samplers that do not leave the target invariant


def spin_sampler(size: int, coupling: float, fault: str, amount: float) -> Callable[..., Tensor]:
    r"""Site-wise Gibbs sampling of a Curie–Weiss magnet with a field of 0.2, with a fault."""
    field = 0.2

    def advance(x: Tensor, sweeps: int, generator: torch.Generator) -> Tensor:
        x = x.clone()
        total = x.sum(1)
        for _ in range(sweeps):
            if fault == "all at once":
                some = torch.rand(size, generator=generator) < amount
                slope = coupling * (total[:, None] - x) / size + field
                up = torch.rand(x.shape, generator=generator) < torch.sigmoid(2 * slope)
                x = torch.where(some, up.to(x.dtype) * 2 - 1, x)
                total = x.sum(1)
                continue
            for site in range(size):
                if fault == "dropped sites" and site >= size - amount:
                    continue
                slope = coupling * (total - x[:, site]) / size + field
                if fault == "no field at a site" and site == 0:
                    slope = slope - field * amount
                if fault == "temperature":
                    slope = slope / (1 + amount)
                if fault == "old neighbours":
                    slope = slope + amount * coupling * x[:, site] / size
                p = torch.sigmoid(2 * slope)
                if fault == "accepts too much":  # Metropolis that accepts some rejected flips
                    flip = torch.exp(-2 * slope * x[:, site]).clamp_max(1)
                    flip = flip + amount * (1 - flip)
                    turn = torch.rand(len(x), generator=generator) < flip
                    new = torch.where(turn, -x[:, site], x[:, site])
                else:
                    new = (torch.rand(len(x), generator=generator) < p).to(x.dtype) * 2 - 1
                if fault == "stuck":
                    moves = torch.rand(len(x), generator=generator) > amount
                    new = torch.where(moves, new, x[:, site])
                total = total + new - x[:, site]
                x[:, site] = new
        return x

    return advance


def real_sampler(fault: str, amount: float) -> Callable[..., Tensor]:
    r"""Moves that should leave N(0, I), or a Gamma density, invariant, and do not."""

    def advance(x: Tensor, sweeps: int, generator: torch.Generator) -> Tensor:
        for _ in range(sweeps):
            noise = torch.randn(x.shape, generator=generator)
            if fault == "no correction":  # unadjusted Langevin
                x = x - amount / 2 * x + math.sqrt(amount) * noise
            elif fault == "no Jacobian":  # a random walk of log x, for Gamma(3)
                y = x * (amount * noise).exp()
                log = 2 * (y / x).log().sum(1) - (y - x).sum(1)
                x = torch.where(
                    (torch.rand(len(x), generator=generator).log() < log)[:, None], y, x
                )
            elif fault == "temperature":
                y = x + 0.7 * noise
                log = (x.square() - y.square()).sum(1) / (2 * (1 + amount))
                x = torch.where(
                    (torch.rand(len(x), generator=generator).log() < log)[:, None], y, x
                )
            elif fault == "drift without correction":
                y = x + 0.5 * noise + amount * x
                log = (x.square() - y.square()).sum(1) / 2
                x = torch.where(
                    (torch.rand(len(x), generator=generator).log() < log)[:, None], y, x
                )
        return x

    return advance


def wrong_samplers() -> Iterator[tuple[str, Callable[[], Problem]]]:
    faults = {
        "temperature": (-0.3, -0.1, -0.05, 0.05, 0.1, 0.2, 0.5),
        "dropped sites": (1, 2, 5, 10),
        "no field at a site": (0.5, 1.0, 5.0),
        "old neighbours": (0.5, 1.0, 3.0),
        "all at once": (0.3, 0.6, 1.0),
        "accepts too much": (0.02, 0.1, 0.5),
        "stuck": (0.5, 0.9, 0.99, 0.9999),
    }
    for fault, amounts in faults.items():
        for amount in amounts:

            def spins(f: str = fault, a: float = amount, n: int = 20) -> Problem:
                def log_p(m: Tensor) -> Tensor:
                    return 0.8 * n * m**2 / 2 + 0.2 * n * m

                target = mean_field(n, log_p, advance=spin_sampler(n, 0.8, f, a))
                return Problem(target, mean_field_log_z(n, log_p), ("bridge", "importance"))

            yield f"spins, {fault} {amount}", spins
    for amount in (0.02, 0.1, 0.3, 1.0):
        yield (
            f"Langevin without correction, step {amount}",
            lambda a=amount: Problem(
                lb.Energy(
                    lambda x: x.square().sum(1) / 2, lb.Real(3),
                    advance=real_sampler("no correction", a),
                ),
                1.5 * math.log(2 * math.pi), REAL,
            ),
        )  # fmt: skip
    for fault, amounts in {"temperature": (-0.1, 0.05, 0.2, 0.5),
                           "drift without correction": (0.02, 0.1, -0.1)}.items():  # fmt: skip
        for amount in amounts:
            yield (
                f"random walk, {fault} {amount}",
                lambda f=fault, a=amount: Problem(
                    lb.Energy(
                        lambda x: x.square().sum(1) / 2, lb.Real(3), advance=real_sampler(f, a)
                    ),
                    1.5 * math.log(2 * math.pi), REAL,
                ),
            )  # fmt: skip
    for amount in (0.3, 1.0):

        def gamma(a: float = amount) -> Problem:
            def energy(x: Tensor) -> Tensor:
                safe = x.clamp_min(1e-30)
                log = (2 * safe.log() - safe).sum(1)
                return torch.where((x > 0).all(1), -log, math.inf)

            target = lb.Energy(energy, lb.Real(2), advance=real_sampler("no Jacobian", a))
            target.start = lambda n, g=None: torch.rand(n, 2, generator=g) + 0.5
            return Problem(target, 2 * math.log(2), REAL)

        yield f"random walk of log x without its Jacobian, step {amount}", gamma


# Near-deterministic weights


def near_deterministic() -> Iterator[tuple[str, Callable[[], Problem]]]:
    for scale, seed in itertools.product((1.0, 3.0, 6.0, 12.0, 30.0, 100.0), range(3)):

        def rbm(s: float = scale, number: int = seed) -> Problem:
            draw = generator(number)
            W = s * torch.randn(24, 8, generator=draw)
            a, b = (0.3 * s * torch.randn(n, generator=draw) for n in (24, 8))
            model = lb.RBM(W, a, b)
            return Problem(model, lb.exact_log_z(model, progress=False))

        yield f"RBM 24x8, weights of scale {scale}, number {seed}", rbm
    for scale in (3.0, 10.0, 30.0, 100.0):

        def field(s: float = scale, n: int = 40) -> Problem:
            h = s * torch.randn(n, generator=generator(1)).double()
            log_z = float((h.abs() + torch.log1p((-2 * h.abs()).exp())).sum())
            return Problem(lb.Energy(lambda x: -(x @ h.to(x.dtype)), lb.Spins(n)), log_z)

        yield f"independent spins in fields of scale {scale}", field

        def glass(s: float = scale, n: int = 14) -> Problem:
            J = s / math.sqrt(n) * torch.randn(n, n, generator=generator(2)).triu(1)
            target = lb.Energy(lambda x: -((x @ J.to(x.dtype)) * x).sum(1), lb.Spins(n))
            log = target.log_unnormalized(target.support.enumerate(0, 2**n, dtype=torch.float64))
            return Problem(target, float(log.logsumexp(0)))

        yield f"Sherrington-Kirkpatrick N=14 beta={scale}", glass


# Heavy tails, and integrals that do not exist


def heavy_tails() -> Iterator[tuple[str, Callable[[], Problem]]]:
    proposals = {"a distilled mixture": lambda d, v: None, "a normal": lambda d, v: normal(d, 2.0),
                 "the same tails": lambda d, v: student_t(d, v, 1.5)}  # fmt: skip
    for freedom, dim in itertools.product((1.0, 2.0, 5.0, 30.0), (1, 3)):
        for name, make in proposals.items():

            def t(v: float = freedom, d: int = dim, q: Any = make) -> Problem:
                def log_p(x: Tensor) -> Tensor:
                    return -(v + 1) / 2 * torch.log1p(x.square() / v).sum(1)

                one = math.lgamma(v / 2) - math.lgamma((v + 1) / 2) + math.log(v * math.pi) / 2
                return Problem(real(log_p, d), d * one, REAL, q(d, v))

            yield f"Student t with {freedom} degrees, d={dim}, {name}", t
    for scale in (0.5, 1.0, 2.0, 4.0):

        def log_normal(s: float = scale) -> Problem:
            def log_p(x: Tensor) -> Tensor:
                u = x.clamp_min(1e-30).log()
                return torch.where(x > 0, -u - u.square() / (2 * s * s), -math.inf).sum(1)

            log_z = math.log(2 * math.pi * s * s) / 2
            return Problem(real(log_p, 1), log_z, REAL)

        yield f"log-normal of scale {scale}", log_normal
    for scale in (0.5, 1.0, 3.0):

        def funnel(s: float = scale, d: int = 4) -> Problem:
            def log_p(x: Tensor) -> Tensor:
                v = x[:, 0]
                rest = -x[:, 1:].square().sum(1) / 2 * (-v).exp() - (d - 1) / 2 * v
                return -v.square() / (2 * s * s) + rest

            log_z = math.log(s) + d / 2 * math.log(2 * math.pi)
            return Problem(real(log_p, d), log_z, REAL)

        yield f"funnel of scale {scale}", funnel
    divergent: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
        "1/(1 + |x|)": (1, lambda x: -torch.log1p(x.abs()).sum(1)),
        "1/(1 + |x|)^0.9": (1, lambda x: -0.9 * torch.log1p(x.abs()).sum(1)),
        "constant": (1, lambda x: 0.0 * x.sum(1)),
        "flat in one of three": (3, lambda x: -x[:, :2].square().sum(1) / 2),
        "flat along a diagonal": (2, lambda x: -(x[:, 0] - x[:, 1]).square() / 2),
        "flat along a random line": (
            3,
            lambda x: -(x - (x @ x.new_tensor([[2 / 3], [-1 / 3], [2 / 3]]))
                        * x.new_tensor([2 / 3, -1 / 3, 2 / 3])).square().sum(1) / 2,
        ),
        "one-sided: exp(−softplus(−x))": (
            1, lambda x: -torch.nn.functional.softplus(-x).sum(1),
        ),
        "1/|x| at the origin": (1, lambda x: (-x.abs().log() - x.square() / 2).sum(1)),
        "1/|x|² at the origin, d=2": (
            2, lambda x: -x.square().sum(1).log() - x.square().sum(1) / 2,
        ),
        "1/r² in two dimensions": (2, lambda x: -torch.log1p(x.square().sum(1))),
        "a ridge that opens": (
            2, lambda x: -x[:, 1].square() * (1 + x[:, 0].square()).rsqrt() / 2 - 0.0 * x[:, 0],
        ),
        "grows": (1, lambda x: 0.1 * x.abs().sum(1)),
    }  # fmt: skip
    for name, (dim, log_p) in divergent.items():
        yield (
            f"no integral: {name}",
            lambda d=dim, f=log_p: Problem(
                real(f, d, advance=random_walk(f)), math.nan, REAL, normal(d, 3.0)
            ),
        )
    exists: dict[str, tuple[int, float, Callable[[Tensor], Tensor]]] = {
        "|x|^-1/2 exp(-x²/2)": (
            1, math.lgamma(0.25) + 0.25 * math.log(2),
            lambda x: (-x.abs().log() / 2 - x.square() / 2).sum(1),
        ),
        "Laplace": (2, 2 * math.log(2), lambda x: -x.abs().sum(1)),
        "exp(-x⁴)": (
            2, 2 * (math.lgamma(1.25) + math.log(2)), lambda x: -x.pow(4).sum(1),
        ),
    }  # fmt: skip
    for name, (dim, log_z, log_p) in exists.items():
        yield (
            f"an integral: {name}",
            lambda d=dim, v=log_z, f=log_p: Problem(real(f, d), v, REAL, student_t(d, 5.0, 1.0)),
        )


def score_matching() -> Iterator[tuple[str, Callable[[], Problem]]]:
    for curve, scale in itertools.product((1.0, 5.0, 20.0), (1.0, 2.0)):

        def rosenbrock(c: float = curve, s: float = scale) -> Problem:
            def log_p(x: Tensor) -> Tensor:
                bend = c * (x[:, 1] - x[:, 0].square()).square()
                return -((1 - x[:, 0]).square() / (2 * s * s) + bend)

            log_z = math.log(2 * math.pi * s * s) / 2 + math.log(math.pi / c) / 2
            return Problem(real(log_p, 2), log_z, REAL, student="score matching")

        yield f"Rosenbrock, curvature {curve}, scale {scale}", rosenbrock


# Honest targets, for power


def honest() -> Iterator[tuple[str, Callable[[], Problem]]]:
    for length, temperature in itertools.product((4, 8, 16), (1.5, 2.269, 4.0)):
        yield (
            f"Ising {length}x{length} T={temperature}",
            lambda n=length, t=temperature: Problem(lattice(n, t), kaufman(n, t)),
        )
    for values, size, coupling in ((3, 12, 1.0), (4, 16, 0.7), (5, 20, 1.5)):

        def ring(q: int = values, n: int = size, b: float = coupling) -> Problem:
            def energy(x: Tensor) -> Tensor:
                return -b * (x == x.roll(1, 1)).sum(1).to(x.dtype)

            high, low = math.exp(b) + q - 1, math.exp(b) - 1
            return Problem(lb.Energy(energy, lb.States(q, n)), math.log(high**n + (q - 1) * low**n))

        yield f"Potts ring q={values} N={size} b={coupling}", ring
    for size, beta in ((16, 0.7), (18, 1.0), (20, 1.3)):

        def glass(n: int = size, b: float = beta) -> Problem:
            J = b / math.sqrt(n) * torch.randn(n, n, generator=generator(n)).triu(1)
            target = lb.Energy(lambda x: -((x @ J.to(x.dtype)) * x).sum(1), lb.Spins(n))
            return Problem(target, lb.exact_log_z(target, progress=False))

        yield f"Sherrington-Kirkpatrick N={size} beta={beta}", glass
    for size, patterns, beta in ((16, 2, 0.8), (18, 3, 1.0), (20, 2, 1.2)):

        def hopfield(n: int = size, p: int = patterns, b: float = beta) -> Problem:
            xi = 2.0 * torch.randint(2, (p, n), generator=generator(n)) - 1

            def energy(x: Tensor) -> Tensor:
                return -b / (2 * n) * (x @ xi.T.to(x.dtype)).square().sum(1)

            target = lb.Energy(energy, lb.Spins(n))
            return Problem(target, lb.exact_log_z(target, progress=False))

        yield f"Hopfield N={size} patterns={patterns} beta={beta}", hopfield
    for visible, hidden, scale in ((16, 8, 0.5), (30, 10, 1.0), (64, 15, 0.5), (100, 20, 0.3)):

        def rbm(i: int = visible, j: int = hidden, s: float = scale) -> Problem:
            model = lb.RBM.random(i, j, s, generator(i))
            return Problem(model, lb.exact_log_z(model, progress=False))

        yield f"RBM {visible}x{hidden} scale={scale}", rbm
    for size, scale in ((20, 0.5), (64, 1.0), (200, 1.0)):

        def fields(n: int = size, s: float = scale) -> Problem:
            h = s * torch.randn(n, generator=generator(n)).double()
            log_z = float((h.abs() + torch.log1p((-2 * h.abs()).exp())).sum())
            return Problem(lb.Energy(lambda x: -(x @ h.to(x.dtype)), lb.Spins(n)), log_z)

        yield f"independent units N={size} scale={scale}", fields


FAMILIES = {
    "symmetric modes": symmetric_modes,
    "first-order transitions": first_order,
    "spike and slab": spike_and_slab,
    "disconnected supports": disconnected,
    "wrong samplers": wrong_samplers,
    "near-deterministic weights": near_deterministic,
    "heavy tails": heavy_tails,
    "score matching": score_matching,
    "honest targets": honest,
}


def cases(families: list[str] | None = None) -> list[Case]:
    r"""All cases, or those of some families."""
    return [
        Case(family, name, build)
        for family, all_of in FAMILIES.items()
        if families is None or family in families
        for name, build in all_of()
    ]
