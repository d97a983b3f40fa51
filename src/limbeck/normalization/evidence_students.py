r"""Densities that are fitted to draws for a bridge: t, radial profiles, mixtures, flows."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from limbeck.errors import LimbeckError
from limbeck.models.flow import Flow
from limbeck.models.mixture import GaussianMixture
from limbeck.posteriors.coordinates import Affine

STUDENTS = ("gaussian", "student_t", "autoregressive", "radial", "mixture", "flow")
DEGREES = (30.0, 15.0, 8.0, 5.0, 3.0)  # of freedom that are tried for a Student t


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
        self.degrees, weight = degrees, x.new_ones(n)
        for _ in range(30 if degrees < math.inf else 1):
            mean = weight @ x / weight.sum()
            covariance = (weight[:, None] * (x - mean)).T @ (x - mean) / n
            # a few draws' worth of the diagonal: many coordinates have noisy correlations
            diagonal = covariance.diagonal().diag()
            covariance = torch.lerp(covariance, diagonal, dim / (n + 9 * dim))
            self.affine = Affine(mean, torch.linalg.cholesky(covariance))
            if degrees < math.inf:
                weight = (degrees + dim) / (degrees + self.affine.distance(x))

    def log_prob(self, x: Tensor) -> Tensor:
        dim, nu, volume = x.shape[1], self.degrees, self.affine.log_volume
        if nu == math.inf:
            return -self.affine.distance(x) / 2 - volume - dim / 2 * math.log(2 * math.pi)
        constant = math.lgamma((nu + dim) / 2) - math.lgamma(nu / 2)
        constant -= dim / 2 * math.log(nu * math.pi) + volume
        return constant - (nu + dim) / 2 * torch.log1p(self.affine.distance(x) / nu)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        z = torch.randn(n, len(self.affine.mean), generator=generator, dtype=torch.float64)
        if self.degrees < math.inf:
            z = z * _t_scale(z.new_full((n, 1), self.degrees), generator)
        return self.affine.back(z)


def _t_scale(degrees: Tensor, generator: torch.Generator) -> Tensor:
    r"""Numbers that turn normal ones into Student t's with these degrees of freedom."""
    half = (degrees / 2).contiguous()
    return (half / torch._standard_gamma(half, generator)).sqrt()


class Radial:
    r"""Ellipsoids with any distribution of the radius, one for each cluster of draws.

    The directions of a whitened cluster are uniform, and the logarithm of its radius has a mixture
    of Gaussians: shells and heavy tails have such densities.
    """

    def __init__(self, x: Tensor, clusters: int, seed: int) -> None:
        dim, generator = x.shape[1], torch.Generator().manual_seed(seed)
        owner = torch.zeros(len(x), dtype=torch.long)
        if clusters > 1:
            owner = _mixture(x, clusters, generator).responsibilities(x).argmax(1)
        self.shares = torch.bincount(owner, minlength=clusters) / len(x)
        self.parts = list[tuple[Affine, GaussianMixture]]()
        for cluster in range(clusters):
            rows = x[owner == cluster]
            ellipse = _thinnest_shell(StudentT(rows, math.inf).affine, rows)
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
            x[rows] = ellipse.back(radius * unit)
        return x


def _thinnest_shell(ellipse: Affine, x: Tensor) -> Affine:
    r"""The ellipsoid nearest to rows (by least squares of xᵀAx + b·x = 1), if it fits better."""
    dim = x.shape[1]
    first, second = torch.triu_indices(dim, dim)
    z = ellipse.whiten(x)
    features = torch.cat([z[:, first] * z[:, second], z], 1)
    solution = torch.linalg.lstsq(features, torch.ones(len(x), 1, dtype=x.dtype)).solution[:, 0]
    matrix = torch.zeros(dim, dim, dtype=x.dtype)
    matrix[first, second] = solution[: len(first)]
    factor, failed = torch.linalg.cholesky_ex((matrix + matrix.T) / 2)
    if failed:
        return ellipse
    centre = -torch.cholesky_solve(solution[len(first) :, None], factor)[:, 0] / 2
    covariance = ellipse.factor @ torch.cholesky_inverse(factor) @ ellipse.factor.T
    shell = Affine(ellipse.back(centre), torch.linalg.cholesky(covariance))
    spreads = [float(each.distance(x).log().std()) for each in (ellipse, shell)]
    return shell if spreads[1] < 0.5 * spreads[0] else ellipse


class ConditionalStudentT:
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
        z = torch.randn(n, dim, generator=generator, dtype=torch.float64)
        z = z * _t_scale((self.log_degrees.exp() + 2).expand(n, dim), generator)
        rows = torch.zeros_like(z)
        for k in range(dim):
            location, log_scale = self._conditional(rows)
            rows[:, k] = location[:, k] + log_scale[:, k].exp() * z[:, k]
        x = torch.empty_like(rows)
        x[:, self.order] = rows
        return torch.linalg.solve_triangular(self.factor, x.T, upper=False).T


def _standardised(x: Tensor) -> Tensor:
    return (x - x.mean(0)) / x.std(0).clamp_min(1e-12)


def _mixture(x: Tensor, components: int, random: torch.Generator | int) -> GaussianMixture:
    generator = torch.Generator().manual_seed(random) if isinstance(random, int) else random
    components, dim = max(components, 1), x.shape[1]
    mixture = GaussianMixture(components, dim, dtype=torch.float64, generator=generator)
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


class Candidate(NamedTuple):
    r"""A student that may suit draws."""

    family: str
    name: str  # with its setting
    fit: Callable[[Tensor], Student]  # to rows (n, D) in float64


def candidates(kind: str, x: Tensor, factor: Tensor, seed: int) -> list[Candidate]:
    r"""Students of a kind, or "auto", for rows x (n, D) whitened by a factor; simple ones first."""
    n, dim = x.shape
    most = n // (10 + 4 * dim)  # components by the draws that a covariance needs
    fits: dict[str, list[tuple[str, Callable[[Tensor], Student]]]] = {
        "gaussian": [("", partial(StudentT, degrees=math.inf))],
        "student_t": [(f" ({nu:g})", partial(StudentT, degrees=nu)) for nu in DEGREES],
        "autoregressive": [
            ("", partial(ConditionalStudentT, factor=factor, sort=sort))
            for sort in (False, True)
            if dim > 1
        ],
        "radial": [
            (f" ({k})", partial(Radial, clusters=k, seed=seed))
            for k in (1, 2, 4)
            if n // k >= 100 + 10 * dim or k == 1
        ],
        "mixture": [
            (f" ({k})", partial(_mixture, components=k, random=seed))
            for k in (2, 4, 8, 16, 32)
            if k <= most or k == 2
        ],
        "flow": [("", partial(SplineFlow, seed=seed))],
    }
    kinds = STUDENTS if kind == "auto" else (kind,)
    return [Candidate(f, f + setting, fit) for f in kinds for setting, fit in fits[f]]
