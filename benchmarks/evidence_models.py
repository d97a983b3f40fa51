r"""Posteriors whose evidence is known: exact draws of each, and log Z by quadrature.

Most parameters are integrated in closed form, and one to three others on a grid. Draws are exact: a
cell of the grid, a point in it by rejection, and the rest from their conditional distributions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import HalfCauchy, HalfNormal, MultivariateNormal, Normal, StudentT

torch.set_default_dtype(torch.float64)

# Effects of coaching in eight schools, and their standard errors.
SCHOOLS = torch.tensor([[28.0, 8, -3, 7, -1, 1, 18, 12], [15.0, 10, 16, 11, 9, 11, 10, 18]])


@dataclass
class Problem:
    name: str
    log_density: Callable[[Any], Tensor]  # of a dict of tensors (n, ...), or of rows (n, dim)
    sample: Callable[[int, torch.Generator], Any]  # n exact draws
    log_z: float
    support: Any = None
    gaussian: bool = False


class Grid:
    r"""A density over a box of one to three dimensions, on a grid of cell centres."""

    def __init__(self, log: Callable[[Tensor], Tensor], ranges, count: int) -> None:
        self.log, self.width = log, torch.tensor([(b - a) / count for a, b in ranges])
        axes = [a + (torch.arange(count) + 0.5) * (b - a) / count for a, b in ranges]
        self.points = torch.cartesian_prod(*axes).reshape(-1, len(axes))
        self.values = torch.cat([log(part) for part in self.points.split(20_000)])
        self.log_z = float(self.values.logsumexp(0) + self.width.log().sum())

    def sample(self, n: int, g: torch.Generator) -> Tensor:
        kept, count = [], 0
        p = (self.values - self.values.max()).exp()
        while count < n:
            cell = torch.searchsorted(p.cumsum(0) / p.sum(), torch.rand(2 * n, generator=g))
            cell = cell.clamp_max(len(p) - 1)
            x = self.points[cell] + self.width * (
                torch.rand(2 * n, len(self.width), generator=g) - 0.5
            )
            gain = self.log(x) - self.values[cell]
            accepted = (
                torch.rand(2 * n, generator=g) < (gain - 1.0).exp()
            )  # cells vary by less than e
            kept.append(x[accepted])
            count += int(accepted.sum())
        return torch.cat(kept)[:n]


def regression(name: str, data: dict[str, np.ndarray]) -> Problem:
    r"""y ~ N(Xβ, σ²) of posteriordb."""
    X, y = torch.tensor(data["X"]), torch.tensor(data["y"])
    beta, sigma = (json.loads(str(data[f"{k}_prior"])) for k in ("beta", "sigma"))
    n, p = X.shape
    precision, shift = torch.zeros(p, p), torch.zeros(p)
    prior_constant = 0.0
    mean = scale = None
    if beta[0] == "normal":
        mean, scale = (torch.tensor(v, dtype=torch.float64).expand(p) for v in beta[1])
        precision, shift = scale.pow(-2).diag(), mean / scale**2
        prior_constant = float(Normal(mean, scale).log_prob(torch.zeros(p)).sum())

    def log_sigma_prior(s: Tensor) -> Tensor:
        if sigma[0] == "flat":
            return torch.zeros_like(s)
        size = float(sigma[1] if np.isscalar(sigma[1]) else sigma[1][0])
        if sigma[0] == "half-cauchy":
            return torch.distributions.Cauchy(0.0, size).log_prob(s)
        return Normal(0.0, size).log_prob(s)

    def log_density(rows: Tensor) -> Tensor:
        b, s = rows[:, :p], rows[:, p]
        log = Normal(b @ X.T, s[:, None]).log_prob(y).sum(1) + log_sigma_prior(s)
        return log if mean is None else log + Normal(mean, scale).log_prob(b).sum(1)

    XX, Xy, yy = X.T @ X, X.T @ y, y @ y

    def conditional(log_s: Tensor) -> tuple[Tensor, Tensor]:
        v = (-2 * log_s).exp()[:, None, None]
        P = XX * v + precision
        return P, torch.linalg.solve(P, (Xy * v[:, 0] + shift)[..., None])[..., 0]

    def log_marginal(t: Tensor) -> Tensor:
        log_s = t[:, 0]
        P, m = conditional(log_s)
        log = -n / 2 * math.log(2 * math.pi) - n * log_s - yy / 2 * (-2 * log_s).exp()
        log += ((m[:, None] @ P @ m[..., None]).flatten()) / 2 + prior_constant
        log += p / 2 * math.log(2 * math.pi) - torch.linalg.slogdet(P)[1] / 2
        return log + log_sigma_prior(log_s.exp()) + log_s

    residual = y - X @ torch.linalg.lstsq(X, y[:, None]).solution[:, 0]
    centre, width = math.log(float(residual.std())), 12 / math.sqrt(2 * n)
    grid = Grid(log_marginal, [(centre - width, centre + width)], 4000)

    def sample(count: int, g: torch.Generator) -> Tensor:
        t = grid.sample(count, g)[:, 0]
        P, m = conditional(t)
        L = torch.linalg.cholesky(P)
        z = torch.randn(count, p, 1, generator=g)
        b = m + torch.linalg.solve_triangular(L.mT, z, upper=True)[..., 0]
        return torch.cat([b, t.exp()[:, None]], 1)

    return Problem(name, log_density, sample, grid.log_z, {p: "positive"}, gaussian=True)


def groups(name: str, y: Tensor, s: Tensor, scale: float, log_prior: Any) -> Problem:
    r"""Means y of groups with errors s: y ~ N(θ, s²), θ ~ N(μ, τ²), μ ~ N(0, scale²), τ > 0."""
    k = len(y)

    def log_density(d: dict[str, Tensor]) -> Tensor:
        mu, tau, theta = d["mu"], d["tau"], d["theta"]
        log = Normal(theta, s).log_prob(y).sum(-1)
        log = log + Normal(mu[..., None], tau[..., None]).log_prob(theta).sum(-1)
        return log + Normal(0.0, scale).log_prob(mu) + log_prior(tau)

    def log_marginal(t: Tensor) -> Tensor:
        tau = t[:, 0].exp()
        cov = torch.diag_embed(s**2 + tau[:, None] ** 2) + scale**2
        return MultivariateNormal(torch.zeros(k), cov).log_prob(y) + log_prior(tau) + t[:, 0]

    grid = Grid(log_marginal, [(-14.0, 7.0)], 8000)

    def sample(n: int, g: torch.Generator) -> dict[str, Tensor]:
        tau = grid.sample(n, g)[:, 0].exp()
        v = 1 / (s**2 + tau[:, None] ** 2)
        precision = v.sum(1) + scale**-2
        mu = (v @ y) / precision + torch.randn(n, generator=g) / precision.sqrt()
        precision = s**-2 + tau[:, None] ** -2
        mean = (y / s**2 + mu[:, None] / tau[:, None] ** 2) / precision
        theta = mean + torch.randn(n, k, generator=g) / precision.sqrt()
        return {"mu": mu, "tau": tau, "theta": theta}

    return Problem(name, log_density, sample, grid.log_z, {"tau": "positive"})


def on_grid(name: str, log: Callable[[Tensor], Tensor], ranges, count: int) -> Problem:
    r"""A density of one to three real parameters."""
    grid = Grid(log, ranges, count)
    return Problem(name, log, grid.sample, grid.log_z)


def mixture() -> Problem:
    g = torch.Generator().manual_seed(1)
    y = torch.cat([torch.randn(24, generator=g) - 1.6, torch.randn(16, generator=g) + 1.4])

    def log(x: Tensor) -> Tensor:
        w = x[:, 2].sigmoid()
        parts = [Normal(x[:, k, None], 1.0).log_prob(y) for k in (0, 1)]
        parts = [parts[0] + w.log()[:, None], parts[1] + (-w).log1p()[:, None]]
        prior = Normal(0.0, 3.0).log_prob(x[:, :2]).sum(1) + w.log() + (-w).log1p()
        return torch.stack(parts).logsumexp(0).sum(1) + prior

    return on_grid("mixture model", log, [(-9.0, 9.0), (-9.0, 9.0), (-9.0, 9.0)], 120)


def gaussian_process() -> Problem:
    g = torch.Generator().manual_seed(2)
    x = torch.linspace(0, 4, 15)
    y = (2 * x).sin() + 0.3 * torch.randn(15, generator=g)

    def log(t: Tensor) -> Tensor:
        amplitude, length, noise = t.exp().unbind(1)
        gap = (x[:, None] - x) ** 2
        cov = amplitude[:, None, None] ** 2 * (-gap / 2 / length[:, None, None] ** 2).exp()
        cov = cov + torch.diag_embed((noise[:, None] ** 2 + 1e-8).expand(-1, 15))
        prior = Normal(torch.tensor([0.0, 0.0, -1.0]), 1.0).log_prob(t).sum(1)
        factor, failed = torch.linalg.cholesky_ex(cov)
        z = torch.linalg.solve_triangular(factor, y.expand(len(t), 15)[..., None], upper=False)
        value = -z.square().sum((1, 2)) / 2 - factor.diagonal(dim1=1, dim2=2).log().sum(1)
        return torch.where(failed > 0, -math.inf, value - 7.5 * math.log(2 * math.pi) + prior)

    return on_grid("GP hyperparameters", log, [(-4.5, 4.5), (-4.5, 4.5), (-5.5, 3.5)], 90)


def student_t_regression() -> Problem:
    g = torch.Generator().manual_seed(3)
    x = torch.randn(12, generator=g)
    y = 1 + 2 * x + torch.tensor([0.4, -0.5, 0.2, 6.0, -0.1, 0.3, -7.0, 0.1, -0.6, 0.5, 0.2, 9.0])

    def log(t: Tensor) -> Tensor:
        a, b, s = t.unbind(1)
        mean = a[:, None] + b[:, None] * x
        log = StudentT(2.0, mean, s.exp()[:, None]).log_prob(y).sum(1)
        return log + Normal(0.0, 10.0).log_prob(t[:, :2]).sum(1) + Normal(0.0, 1.5).log_prob(s)

    return on_grid("Student-t regression", log, [(-9.0, 11.0), (-8.0, 12.0), (-5.0, 4.0)], 120)


def horseshoe() -> Problem:
    y = torch.tensor([0.3, -0.6, 4.0, 0.1])
    t = torch.linspace(-12, 12, 2001)
    step = float(t[1] - t[0])

    def log_local(log_tau: Tensor) -> Tensor:
        r"""log p(y_j, log λ_j | τ) of taus (n,), (n, 4, grid)."""
        scale = (1 + ((t + log_tau[:, None]) * 2).exp()).sqrt()
        prior = HalfCauchy(1.0).log_prob(t.exp()) + t
        return Normal(0.0, scale[:, None]).log_prob(y[:, None]) + prior

    def log_marginal(u: Tensor) -> Tensor:
        parts = [log_local(part).logsumexp(2) for part in u[:, 0].split(200)]
        log = torch.cat(parts).sum(1) + 4 * math.log(step)
        return log + HalfCauchy(1.0).log_prob(u[:, 0].exp()) + u[:, 0]

    grid = Grid(log_marginal, [(-12.0, 12.0)], 1000)

    def log_density(d: dict[str, Tensor]) -> Tensor:
        scale = d["tau"][..., None] * d["lam"]
        log = Normal(d["beta"], 1.0).log_prob(y).sum(-1)
        log = log + Normal(0.0, scale).log_prob(d["beta"]).sum(-1)
        return log + HalfCauchy(1.0).log_prob(d["lam"]).sum(-1) + HalfCauchy(1.0).log_prob(d["tau"])

    def sample(n: int, g: torch.Generator) -> dict[str, Tensor]:
        u = grid.sample(n, g)[:, 0]
        p = log_local(u).softmax(2).flatten(0, 1)
        log_lam = t[torch.multinomial(p, 1, generator=g)[:, 0]].reshape(n, 4)
        log_lam = log_lam + step * (torch.rand(n, 4, generator=g) - 0.5)
        tau, lam = u.exp(), log_lam.exp()
        precision = 1 + (tau[:, None] * lam) ** -2
        beta = y / precision + torch.randn(n, 4, generator=g) / precision.sqrt()
        return {"tau": tau, "lam": lam, "beta": beta}

    return Problem(
        "horseshoe", log_density, sample, grid.log_z, {"tau": "positive", "lam": "positive"}
    )


def shells(d: int) -> Problem:
    r, w = 2.0, 0.1
    centre = torch.zeros(2, d)
    centre[:, 0] = torch.tensor([-3.5, 3.5])

    def log(x: Tensor) -> Tensor:
        radius = (x[:, None] - centre).norm(dim=2)
        inside = (x.abs() <= 6).all(1)
        value = Normal(r, w).log_prob(radius).logsumexp(1) - d * math.log(12)
        return torch.where(inside, value, -math.inf)

    radial = Grid(
        lambda t: Normal(r, w).log_prob(t[:, 0]) + (d - 1) * t[:, 0].log(), [(1.0, 3.0)], 2000
    )
    sphere = math.log(2) + d / 2 * math.log(math.pi) - math.lgamma(d / 2)
    log_z = math.log(2) + sphere + radial.log_z - d * math.log(12)

    def sample(n: int, g: torch.Generator) -> Tensor:
        direction = torch.randn(n, d, generator=g)
        direction = direction / direction.norm(dim=1, keepdim=True)
        side = torch.randint(2, (n,), generator=g)
        return centre[side] + radial.sample(n, g) * direction

    return Problem(f"shells, d = {d}", log, sample, log_z)


def banana(d: int = 4) -> Problem:
    scale = torch.ones(d)
    scale[0] = 3.0

    def log(x: Tensor) -> Tensor:
        straight = torch.cat([x[:, :1], x[:, 1:2] + 0.3 * (x[:, :1] ** 2 - 9), x[:, 2:]], 1)
        return Normal(0.0, scale).log_prob(straight).sum(1) + 2.0

    def sample(n: int, g: torch.Generator) -> Tensor:
        z = scale * torch.randn(n, d, generator=g)
        return torch.cat([z[:, :1], z[:, 1:2] - 0.3 * (z[:, :1] ** 2 - 9), z[:, 2:]], 1)

    return Problem(f"banana, d = {d}", log, sample, 2.0)


def eight_schools() -> Problem:
    return groups("eight schools", *SCHOOLS, 5.0, HalfCauchy(5.0).log_prob)


def random_intercepts() -> Problem:
    g = torch.Generator().manual_seed(4)
    means = 1 + 0.8 * torch.randn(12, generator=g) + torch.randn(12, generator=g) / math.sqrt(5)
    size = torch.full((12,), 1 / math.sqrt(5))
    return groups("random intercepts", means, size, 5.0, HalfNormal(2.0).log_prob)


OTHERS = {
    "shells, d = 2": lambda: shells(2), "shells, d = 5": lambda: shells(5), "banana, d = 4": banana,
    "eight schools": eight_schools, "random intercepts": random_intercepts,
    "horseshoe": horseshoe, "Student-t regression": student_t_regression,
    "GP hyperparameters": gaussian_process, "mixture model": mixture,
}  # fmt: skip


def read_regression(path: Path) -> Problem:
    with np.load(path, allow_pickle=False) as data:
        return regression(path.stem, dict(data))


def problems(folder: Path | None, only: str) -> Iterator[Problem]:
    yield from (make() for name, make in OTHERS.items() if only in name)
    paths = [] if folder is None else sorted(folder.glob("*.npz"))
    yield from (read_regression(path) for path in paths if only in path.stem)
