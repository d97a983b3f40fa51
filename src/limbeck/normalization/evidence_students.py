r"""Densities that are fitted to draws for a bridge: t, radial profiles, mixtures, flows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from limbeck.errors import LimbeckError
from limbeck.models.flow import Flow
from limbeck.models.mixture import GaussianMixture

STUDENTS = ("gaussian", "student_t", "autoregressive", "radial", "mixture", "flow")
DEGREES = (3.0, 5.0, 8.0, 15.0, 30.0)  # of freedom that are tried for a Student t


class Student(Protocol):
    r"""A normalised density over real rows (n, D), in float64."""

    def log_prob(self, x: Tensor) -> Tensor:
        r"""The log density (n,) of rows (n, D)."""

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        r"""Independent rows (n, D)."""


class StudentT:
    r"""A multivariate Student t, by EM; infinite degrees of freedom are a Gaussian."""

    def __init__(self, x: Tensor, degrees: float) -> None:
        n, dim = x.shape
        self.degrees = degrees
        weight = x.new_ones(n)
        for _ in range(30 if degrees < math.inf else 1):
            self.mean = weight @ x / weight.sum()
            rows = x - self.mean
            covariance = (weight[:, None] * rows).T @ rows / n
            # a few draws' worth of the diagonal: many coordinates have noisy correlations
            diagonal = covariance.diagonal().diag()
            self.factor = torch.linalg.cholesky(
                torch.lerp(covariance, diagonal, dim / (n + 9 * dim))
            )
            weight = (
                (degrees + dim) / (degrees + self.distance(x)) if degrees < math.inf else weight
            )

    def distance(self, x: Tensor) -> Tensor:
        z = torch.linalg.solve_triangular(self.factor, (x - self.mean).T, upper=False)
        return z.square().sum(0)

    @property
    def log_volume(self) -> float:
        return float(self.factor.diagonal().log().sum())

    def log_prob(self, x: Tensor) -> Tensor:
        dim, nu = x.shape[1], self.degrees
        if nu == math.inf:
            return -self.distance(x) / 2 - self.log_volume - dim / 2 * math.log(2 * math.pi)
        constant = math.lgamma((nu + dim) / 2) - math.lgamma(nu / 2)
        constant -= dim / 2 * math.log(nu * math.pi) + self.log_volume
        return constant - (nu + dim) / 2 * torch.log1p(self.distance(x) / nu)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        z = torch.randn(n, len(self.mean), generator=generator, dtype=torch.float64)
        if self.degrees < math.inf:
            half = torch.full((n, 1), self.degrees / 2, dtype=torch.float64)
            z = z / (torch._standard_gamma(half, generator) / half).sqrt()
        return self.mean + z @ self.factor.T


class Radial:
    r"""Ellipsoids with any distribution of the radius, one for each cluster of draws.

    The directions of a whitened cluster are uniform, and the logarithm of its radius has a mixture
    of Gaussians: shells and heavy tails have such densities.
    """

    def __init__(self, x: Tensor, clusters: int, generator: torch.Generator) -> None:
        dim = x.shape[1]
        owner = torch.zeros(len(x), dtype=torch.long)
        if clusters > 1:
            owner = _mixture(x, clusters, generator).responsibilities(x).argmax(1)
        self.shares = torch.bincount(owner, minlength=clusters) / len(x)
        self.parts = list[tuple[StudentT, GaussianMixture]]()
        for cluster in range(clusters):
            rows = x[owner == cluster]
            ellipse = _thinnest_shell(StudentT(rows, math.inf), rows)
            log_radius = ellipse.distance(rows).log()[:, None] / 2
            profile = _mixture(log_radius, min(3, len(rows) // 50), generator)
            self.parts.append((ellipse, profile))
        self.log_sphere = math.log(2) + dim / 2 * math.log(math.pi) - math.lgamma(dim / 2)

    def log_prob(self, x: Tensor) -> Tensor:
        logs = []
        for share, (ellipse, profile) in zip(self.shares, self.parts, strict=True):
            log_radius = ellipse.distance(x).clamp_min(1e-200).log() / 2
            log = profile.log_prob(log_radius[:, None]) - x.shape[1] * log_radius
            logs.append(share.log() + log - ellipse.log_volume - self.log_sphere)
        return torch.stack(logs).logsumexp(0)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        owner = torch.multinomial(self.shares, n, True, generator=generator)
        x = torch.empty(n, len(self.parts[0][0].mean), dtype=torch.float64)
        for cluster, (ellipse, profile) in enumerate(self.parts):
            rows = (owner == cluster).nonzero()[:, 0]
            z = torch.randn(len(rows), x.shape[1], generator=generator, dtype=torch.float64)
            radius = profile.sample(len(rows), generator).exp()
            unit = z / z.norm(dim=1, keepdim=True)
            x[rows] = ellipse.mean + (radius * unit) @ ellipse.factor.T
        return x


def _thinnest_shell(ellipse: StudentT, x: Tensor) -> StudentT:
    r"""The ellipsoid nearest to rows (by least squares of xᵀAx + b·x = 1), if it fits better."""
    dim = x.shape[1]
    first, second = torch.triu_indices(dim, dim)
    z = torch.linalg.solve_triangular(ellipse.factor, (x - ellipse.mean).T, upper=False).T
    features = torch.cat([z[:, first] * z[:, second], z], 1)
    solution = torch.linalg.lstsq(features, torch.ones(len(x), 1, dtype=x.dtype)).solution[:, 0]
    matrix = torch.zeros(dim, dim, dtype=x.dtype)
    matrix[first, second] = solution[: len(first)]
    matrix = (matrix + matrix.T) / 2
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if failed:
        return ellipse
    shell = StudentT.__new__(StudentT)
    centre = -torch.cholesky_solve(solution[len(first) :, None], factor)[:, 0] / 2
    shell.mean, shell.degrees = ellipse.mean + ellipse.factor @ centre, math.inf
    inverse = torch.linalg.inv(factor).T  # matrix⁻¹ = inverse inverseᵀ, and upper triangular
    shell.factor = torch.linalg.cholesky(ellipse.factor @ inverse @ inverse.T @ ellipse.factor.T)
    spreads = [float(each.distance(x).log().std()) for each in (ellipse, shell)]
    return shell if spreads[1] < 0.5 * spreads[0] else ellipse


class Autoregressive:
    r"""Conditional densities, one variable after the other, of Student t form.

    Location and log scale of each are functions of those before it: linear terms, squares, and
    products with the first, as in hierarchical models, whose scales come first.

    Arguments:
        x: Whitened rows (n, dim).
        factor: The lower triangular factor that they were whitened by.
        sort: Whether those come first that the scale or the location of others depends on.
    """

    def __init__(self, x: Tensor, factor: Tensor, sort: bool) -> None:
        n, dim = x.shape
        self.factor = factor / factor.norm(dim=1, keepdim=True)
        rows = x @ self.factor.T
        self.order = torch.arange(dim)
        if sort:
            standard = _standardised(rows)
            logs = _standardised(standard.square().clamp_min(1e-12).log())
            drives = (standard.T @ logs / n).square()
            drives += (_standardised(standard.square()).T @ standard / n).square()
            drives.fill_diagonal_(0.0)
            self.order = (drives.sum(1) - drives.sum(0)).argsort(descending=True)
        rows = rows[:, self.order]
        self.location = torch.zeros(dim, 3 * dim + 1, dtype=x.dtype)
        self.log_scale = torch.zeros_like(self.location)
        self.log_degrees = torch.full((dim,), 3.0, dtype=x.dtype)
        mask = torch.tril(torch.ones(dim, dim, dtype=x.dtype), -1)
        self.mask = torch.cat([*[mask] * 3, torch.ones(dim, 1, dtype=x.dtype)], 1)
        parameters = [self.location, self.log_scale, self.log_degrees]
        with torch.enable_grad():
            for parameter in parameters:
                parameter.requires_grad_()
            optimizer = torch.optim.LBFGS(
                parameters, max_iter=400, history_size=50, line_search_fn="strong_wolfe"
            )

            def closure() -> Tensor:
                optimizer.zero_grad()
                penalty = (self.location.square().sum() + self.log_scale.square().sum()) / (10 * n)
                loss = penalty - self._log_prob(rows).mean()
                loss.backward()
                return loss

            optimizer.step(closure)
        for parameter in parameters:
            parameter.requires_grad_(False)
        if not all(parameter.isfinite().all() for parameter in parameters):
            raise LimbeckError("a student that has not converged")

    def _conditional(self, x: Tensor) -> tuple[Tensor, Tensor]:
        r"""Locations and log scales (n, dim) of rows in order."""
        bounded = 5 * (x / 5).tanh()  # so that extrapolation stays tame
        first = bounded[:, :1]
        rest = [bounded.square(), first * bounded, torch.ones_like(first)]
        location = torch.cat([x, *rest], 1) @ (self.location * self.mask).T
        return location, torch.cat([bounded, *rest], 1) @ (self.log_scale * self.mask).T

    def _log_prob(self, x: Tensor) -> Tensor:
        location, log_scale = self._conditional(x)
        nu = self.log_degrees.exp() + 2
        z = (x - location) * (-log_scale).exp()
        constant = torch.lgamma((nu + 1) / 2) - torch.lgamma(nu / 2) - (nu * math.pi).log() / 2
        return (constant - log_scale - (nu + 1) / 2 * (z.square() / nu).log1p()).sum(1)

    def log_prob(self, x: Tensor) -> Tensor:
        volume = float(self.factor.diagonal().log().sum())
        return self._log_prob((x @ self.factor.T)[:, self.order]) + volume

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        dim = len(self.order)
        half = ((self.log_degrees.exp() + 2) / 2).expand(n, dim).contiguous()
        z = torch.randn(n, dim, generator=generator, dtype=torch.float64)
        z = z / (torch._standard_gamma(half, generator) / half).sqrt()
        rows = torch.zeros_like(z)
        for k in range(dim):
            location, log_scale = self._conditional(rows)
            rows[:, k] = location[:, k] + log_scale[:, k].exp() * z[:, k]
        x = torch.empty_like(rows)
        x[:, self.order] = rows
        return torch.linalg.solve_triangular(self.factor, x.T, upper=False).T


def _standardised(x: Tensor) -> Tensor:
    return (x - x.mean(0)) / x.std(0).clamp_min(1e-12)


def _mixture(x: Tensor, components: int, generator: torch.Generator) -> GaussianMixture:
    mixture = GaussianMixture(
        max(components, 1), x.shape[1], dtype=torch.float64, generator=generator
    )
    mixture.fit(
        x, restarts=2, iterations=200, tolerance=1e-4, floor=1e-5, generator=generator,
        progress=False,
    )  # fmt: skip
    return mixture.requires_grad_(False)


class SplineFlow:
    r"""limbeck's `Flow`, trained on rows, and stopped by the last fifth of them."""

    def __init__(self, x: Tensor, seed: int) -> None:
        from limbeck.losses import kl
        from limbeck.training.distill import distill

        generator = torch.Generator().manual_seed(seed)
        rows = x.float()
        cut = len(rows) - len(rows) // 5
        self.flow = Flow(x.shape[1], dtype=torch.float32, generator=generator).start_from(rows)
        distill(
            None, self.flow, rows[:cut], kl(), held_out=rows[cut:], steps=1500, every=50,
            patience=6, batch_size=min(256, cut), lr=2e-3, seed=seed, device="cpu",
            engine="eager", progress=False,
        )  # fmt: skip
        self.flow.requires_grad_(False)

    def log_prob(self, x: Tensor) -> Tensor:
        return self.flow.log_prob(x.float()).double()

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        return self.flow.sample(n, generator).double()


def candidates(kind: str, x: Tensor) -> Iterator[tuple[str, float]]:
    r"""The kinds of students that suit draws x (n, D), with a setting each; simple ones first."""
    n, dim = x.shape
    kinds = STUDENTS if kind == "auto" else (kind,)
    if "gaussian" in kinds:
        yield "gaussian", math.inf
    if "student_t" in kinds:
        yield from (("student_t", degrees) for degrees in reversed(DEGREES))
    if "autoregressive" in kinds and dim > 1:
        yield from (("autoregressive", sort) for sort in (0, 1))
    if "radial" in kinds:
        yield from (("radial", k) for k in (1, 2, 4) if n // k >= 100 + 10 * dim or k == 1)
    if "mixture" in kinds:
        most = n // (10 + 4 * dim)  # draws that a component's covariance needs
        yield from (("mixture", k) for k in (2, 4, 8, 16, 32) if k <= most or k == 2)
    if "flow" in kinds:
        yield "flow", 0


def fit_student(
    kind: str, setting: float, x: Tensor, seed: int, factor: Tensor | None = None
) -> Student | None:
    r"""A student fitted to rows x (n, D) in float64, whitened by a factor; None if it cannot be."""
    generator = torch.Generator().manual_seed(seed)
    try:
        if kind in ("gaussian", "student_t"):
            return StudentT(x, setting)
        if kind == "autoregressive":
            assert factor is not None
            return Autoregressive(x, factor, bool(setting))
        if kind == "radial":
            return Radial(x, int(setting), generator)
        if kind == "mixture":
            return _mixture(x, int(setting), generator)
        return SplineFlow(x, seed)
    except (LimbeckError, torch.linalg.LinAlgError):
        return None
