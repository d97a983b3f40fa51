r"""The mixture of Gaussians: a density that is evaluated, sampled and integrated exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

import torch
from torch import Tensor, nn

from limbeck import arguments as arg
from limbeck.arrays import floating, random
from limbeck.distributions import gaussians
from limbeck.distributions.base import Mixture, draw_classes
from limbeck.distributions.gaussians import Moments
from limbeck.errors import ArgumentError
from limbeck.models import mixture_em
from limbeck.models.checks import Device, DtypeName, Generator, Specified, matrix
from limbeck.models.mixture_em import Numbers, Samples, numbers
from limbeck.supports import Real


class GaussianMixture(Specified):
    r"""p(x) = Σ_k π_k N(x; m_k, S_k).

    Its parameters are unconstrained, so it can be trained by gradients as well as by EM (`fit`). It
    starts with equal weights, unit covariances and means drawn from N(0, I): call `start_from(x)`
    before training by gradients.

    Arguments:
        components: The number of components K.
        dim: The number of variables D. Default: 1.
        covariance: "full", "diagonal" or "spherical". Default: "full".
        dtype: The parameters' type, float32 or float64. Default: torch's.
        device: The parameters' device. Default: torch's.
        generator: Draws the first means. Default: torch's global one.

    Attributes:
        means: Means (K, D).
        support: The support of x: real numbers (n, D); (n,) is accepted for one variable.

    >>> mixture = GaussianMixture(2).set_([0.5, 0.5], [-1.0, 1.0], [1.0, 4.0])
    >>> mixture.mean.tolist(), round(mixture.variance.item(), 4)
    ([0.0], 3.5)
    """

    output_form = "log_density"
    fields: ClassVar[Mapping[str, Any]] = dict(
        components=int, dim=int, covariance=str, dtype=DtypeName
    )

    @arg.checked_arguments
    def __init__(
        self, components: arg.Count, dim: arg.Count = 1,
        covariance: Annotated[str, arg.Choice(*gaussians.KINDS)] = "full", *,
        dtype: torch.dtype | None = None, device: Device = None, generator: Generator = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.components, self.dim, self.covariance = components, dim, covariance
        self.support, dtype = Real(dim), floating(dtype)
        self.matrices = gaussians.has_matrices(covariance, dim)
        device = torch.get_default_device() if device is None else torch.device(device)
        like = torch.empty(0, dtype=dtype, device="cpu")
        means = random(torch.randn, (components, dim), like, generator)

        def zeros(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.zeros(*shape, dtype=dtype, device=device))

        self.logits, self.means = zeros(components), nn.Parameter(means.to(device))
        self.log_scale = zeros(components, 1 if covariance == "spherical" else dim)
        self.below = zeros(components, dim * (dim - 1) // 2) if self.matrices else None

    @property
    def weights(self) -> Tensor:
        r"""Weights π (K,)."""
        return self.logits.softmax(0)

    @property
    def scale(self) -> Tensor:
        r"""Deviations (K, D), or with full covariances their Cholesky factors (K, D, D)."""
        deviations = self.log_scale.exp().expand(-1, self.dim)
        if self.below is None:
            return deviations
        places = mixture_em.places_below(self.dim, self.below.device)
        flat = self.below.new_zeros(self.components, self.dim**2).index_copy(1, places, self.below)
        return flat.unflatten(1, (self.dim, self.dim)) + torch.diag_embed(deviations)

    @property
    def covariances(self) -> Tensor:
        r"""Covariances (K, D, D), whatever their kind."""
        scale = self.scale
        return scale @ scale.mT if self.matrices else torch.diag_embed(scale.square())

    @property
    def mean(self) -> Tensor:
        r"""The mean of x, (D,)."""
        return self.weights @ self.means

    @property
    def variance(self) -> Tensor:
        r"""The variance of each variable, (D,)."""
        variances = self.covariances.diagonal(dim1=1, dim2=2)
        return self.weights @ (variances + (self.means - self.mean).square())

    def log_prob(self, x: Tensor) -> Tensor:
        r"""log p(x), (n,), of x (n, D)."""
        return self._log_joint(x).logsumexp(0)

    forward = log_prob

    def responsibilities(self, x: Tensor) -> Tensor:
        r"""The probability of each component given x, (n, K)."""
        return self._log_joint(x).mT.softmax(1)

    def _log_joint(self, x: Tensor) -> Tensor:
        log_weights = self.logits.log_softmax(0)
        return gaussians.log_joint(self.rows(x), log_weights, self.means, self.scale, self.matrices)

    def rows(self, x: Numbers, argument: arg.UserObject[str] = "x") -> Tensor:
        r"""x as a matrix (n, D); its shape is checked, its values are not."""
        return matrix(x, self.dim, argument, vectors=True)

    @torch.no_grad()
    @arg.checked_arguments
    def sample(self, n: arg.CountFromZero, generator: Generator = None) -> Tensor:
        r"""Independent events (n, D), exactly from p."""
        chosen = draw_classes(self.weights, (n,), generator)
        z, scale = random(torch.randn, (n, self.dim), self.means, generator), self.scale[chosen]
        spread = (scale @ z.unsqueeze(-1)).squeeze(-1) if self.matrices else scale * z
        return self.means[chosen] + spread

    def cdf(self, x: Tensor) -> Tensor:
        r"""P(X ≤ x), (n,), of one variable."""
        return self._one_variable().cdf(self.rows(x)[:, 0])

    @arg.checked_arguments
    def interval(self, level: arg.InnerFraction = 0.95) -> tuple[Tensor, Tensor]:
        r"""The central interval of one variable: both tails have the probability ½(1 − level)."""
        return self._one_variable().interval(level)

    def _one_variable(self) -> Mixture:
        if self.dim > 1:
            raise ArgumentError("dim", self.dim, "a mixture of one variable")
        components = gaussians.Normal(self.means[:, 0], self.scale[:, 0])
        return Mixture(components=components, logits=self.logits)

    @arg.checked_arguments
    def set_(self, weights: Numbers, means: Numbers, covariances: Numbers) -> Self:
        r"""Set all parameters in place.

        Arguments:
            weights: (K,), nonnegative, with the sum 1.
            means: (K, D); of one variable, (K,) is taken too.
            covariances: Matrices (K, D, D), variances (K, D), or one variance a component (K,).
        """
        count, dim = shape = self.means.shape
        user = {"weights": weights, "means": means, "covariances": covariances}
        pi, m, s = (numbers(name, values, self.means.device) for name, values in user.items())
        m = m.unsqueeze(1) if dim == 1 and m.ndim == 1 else m
        for name, values, expected in (("weights", pi, (count,)), ("means", m, tuple(shape))):
            if values.shape != expected:
                raise ArgumentError(name, f"shape {tuple(values.shape)}", f"shape {expected}")
        if bool((pi < 0).any()) or abs(pi.sum().item() - 1) > ROUNDING:
            received = f"{pi.tolist()} with the sum {pi.sum():g}"
            raise ArgumentError("weights", received, "nonnegative numbers with the sum 1")
        s = _covariances(s, self.covariance, count, dim)
        return self.set_moments_(Moments(pi / pi.sum(), m, s))

    @torch.no_grad()
    def set_moments_(self, moments: Moments, centre: Tensor | float = 0.0) -> Self:
        r"""Set everything from the moments of x − centre, unchecked."""
        moments = moments._replace(means=moments.means + centre)
        for name, value in mixture_em.parameters_of(moments, self.covariance).items():
            getattr(self, name).copy_(value)
        return self

    @torch.no_grad()
    def moments(self, centre: Tensor | float = 0.0) -> Moments:
        r"""Weights, means and covariances of x − centre in float64, as EM has them."""
        scale = self.scale.double()
        covariances = scale @ scale.mT if self.matrices else scale.square()
        return Moments(self.logits.double().softmax(0), self.means.double() - centre, covariances)

    @arg.checked_arguments
    def start_from(self, x: Numbers, weight: Numbers = None, generator: Generator = None) -> Self:
        r"""Start near samples x (n, D): spread centres by k-means++, and covariances around them.

        Arguments:
            x: Samples, a tensor or an array.
            weight: The weight of each sample, (n,). Default: 1.
            generator: Draws the centres. Default: torch's global one.
        """
        samples = Samples.of(self, x, weight)
        moments = mixture_em.started(samples, self.components, self.covariance, generator)
        return self.set_moments_(moments, samples.centre)

    fit = mixture_em.fit_em

    @staticmethod
    def _least_size(fields: Mapping[str, Any]) -> int:
        matrices = gaussians.has_matrices(fields["covariance"], fields["dim"])
        below = fields["dim"] * (fields["dim"] - 1) // 2 if matrices else 0
        return fields["components"] * (fields["dim"] + below)


ROUNDING = 1e-3  # relative tolerance of weights' sums, of symmetry and of covariance kinds


def _covariances(s: Tensor, kind: str, count: int, dim: int) -> Tensor:
    r"""Matrices (K, D, D) or variances (K, D), as the kind has them."""
    if s.shape == (count,):
        s = s.unsqueeze(1).expand(count, dim)
    if s.shape == (count, dim):
        s = torch.diag_embed(s)
    if s.shape != (count, dim, dim):
        expected = f"shape {(count, dim, dim)}, {(count, dim)} or {(count,)}"
        raise ArgumentError("covariances", f"shape {tuple(s.shape)}", expected)
    size = s.diagonal(dim1=1, dim2=2).amax(1)
    asymmetric = (s - s.mT).abs().amax((1, 2)) > ROUNDING * size
    broken = (torch.linalg.cholesky_ex(s)[1] != 0) | asymmetric
    if bool(broken.any()):
        received = f"no symmetric positive definite matrix for component {int(broken.nonzero()[0])}"
        raise ArgumentError("covariances", received, "variances above zero, or such matrices")
    if gaussians.has_matrices(kind, dim):
        return (s + s.mT) / 2
    variances = s.diagonal(dim1=1, dim2=2)
    if kind == "spherical":
        variances = variances.mean(1, keepdim=True).expand(-1, dim)
    if bool(((s - torch.diag_embed(variances)).abs().amax((1, 2)) > ROUNDING * size).any()):
        expected = f"{kind} ones, or a mixture of another kind"
        raise ArgumentError("covariances", f"matrices that are not {kind}", expected)
    return variances
