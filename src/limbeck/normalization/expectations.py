r"""Expected statistics of an RBM, which are the derivatives of log Z, with standard errors."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from limbeck.arguments import whole_number
from limbeck.errors import ArgumentError
from limbeck.models.rbm import RBM, Statistics
from limbeck.normalization.densities import Densities
from limbeck.normalization.estimate import Verdict
from limbeck.samplers.diagnostics import effective_size, pareto_k, r_hat, weights_effective_size

__all__ = ["ExpectedStatistics", "expected_statistics"]

BLOCK = 2**22  # numbers of x at a time
FEW_SAMPLES, FEW_CHAINS = 100, 20
LARGEST_R_HAT, LARGEST_K = 1.05, 0.7


class ExpectedStatistics(NamedTuple):
    r"""Estimates of ⟨xhᵀ⟩, ⟨x⟩ and ⟨h⟩ under an RBM: ∂log Z/∂W, ∂log Z/∂a and ∂log Z/∂b.

    Attributes:
        mean: The estimates, in float64.
        std_error: Their standard errors.
        ess: The effective number of samples: of the weights, with a proposal; of the mean of
            log p̃, with chains of several draws.
        verdict: Whether to trust them, and why not.
    """

    mean: Statistics
    std_error: Statistics
    ess: float
    verdict: Verdict


def expected_statistics(
    rbm: RBM,
    x: Tensor | None = None,
    *,
    proposal: Any = None,
    samples: int = 10_000,
    seed: int = 0,
) -> ExpectedStatistics:
    r"""⟨xhᵀ⟩, ⟨x⟩ and ⟨h⟩ under an RBM, by samples of it or by weighted samples of a student.

    Hidden units enter by their probabilities given x, not by draws.

    Arguments:
        rbm: The model.
        x: Samples of the model: (n, I), independent of one another, such as one state of each of n
            chains; or (chains, draws, I), whose errors come from the variance between chains.
        proposal: A student or a distribution to sample instead, with `log_prob` and `sample`. Its
            samples are weighted by p̃(x)/q(x), and the weights scaled to sum to one.
        samples: How many samples of the proposal.
        seed: The seed of these samples.

    >>> rbm = RBM([[0.0], [0.0]], [0.0, 0.0], [0.0])
    >>> coins = torch.distributions.Bernoulli(torch.full((2,), 0.5))
    >>> found = expected_statistics(rbm, proposal=coins, samples=1000)
    >>> round(found.mean.b.item(), 6), round(found.ess)
    (0.5, 1000)
    """
    if not isinstance(rbm, RBM):
        raise ArgumentError("rbm", f"a {type(rbm).__name__}", "an RBM")
    if (x is None) == (proposal is None):
        received = "neither" if x is None else "both"
        raise ArgumentError("x, proposal", received, "either samples x of the RBM, or a proposal")
    if proposal is not None:
        return _weighted(rbm, proposal, whole_number("samples", samples, "2 or more", 2), seed)
    if not isinstance(x, Tensor) or x.dim() not in (2, 3) or x.shape[-1] != rbm.visible:
        received = f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
        expected = f"a tensor (n, {rbm.visible}) or (chains, draws, {rbm.visible})"
        raise ArgumentError("x", received, expected)
    if len(x) < 2 or x.numel() == 0:
        expected = "two samples or chains at least, for a standard error"
        raise ArgumentError("x", f"shape {tuple(x.shape)}", expected)
    rbm.support.check(x.flatten(0, -2), "x")
    return (_independent if x.dim() == 2 else _chains)(rbm, x.to(rbm.W))


def _weighted(rbm: RBM, proposal: Any, samples: int, seed: int) -> ExpectedStatistics:
    densities = Densities(rbm, proposal, seed)
    with densities.at_work():
        x, logs = densities.drawn(samples, "expectations")
        weight = logs.ratio.softmax(0).to(x.device)
        mean, error = _moments(rbm, x, weight)
    ess, k = weights_effective_size(logs.ratio), pareto_k(logs.ratio)
    reasons = [f"only {ess:.0f} effective samples of {samples:,}"] * (ess < FEW_SAMPLES)
    reasons += [f"the largest weights have a heavy tail, k̂ = {k:.2f}"] * (k > LARGEST_K)
    return ExpectedStatistics(mean, error, ess, Verdict(tuple(reasons)))


def _independent(rbm: RBM, x: Tensor) -> ExpectedStatistics:
    with Densities(rbm).at_work():
        mean, error = _moments(rbm, x, _equal(x))
    reasons = (f"only {len(x)} samples",) * (len(x) < FEW_SAMPLES)
    return ExpectedStatistics(mean, error, float(len(x)), Verdict(reasons))


def _chains(rbm: RBM, x: Tensor) -> ExpectedStatistics:
    n, densities = len(x), Densities(rbm)
    with densities.at_work():
        log_p = densities.log_target(x.flatten(0, 1)).reshape(x.shape[:2])
        mean = _sums(rbm, x.flatten(0, 1), _equal(x.flatten(0, 1)))
        squares = [torch.zeros_like(part) for part in mean]
        for chain in x:  # the means of all chains side by side would be too large to hold
            for square, own, all_ in zip(
                squares, _sums(rbm, chain, _equal(chain)), mean, strict=True
            ):
                square += (own - all_).square()
    error = Statistics(*((square / (n * (n - 1))).sqrt() for square in squares))
    ess, shrinkage = effective_size(log_p), r_hat(log_p)
    reasons = [f"only {n} chains, too few to tell the errors by"] * (n < FEW_CHAINS)
    reasons += [f"only {ess:.0f} effective samples"] * (ess < FEW_SAMPLES)
    reasons += [f"chains disagree, R-hat = {shrinkage:.2f}"] * (shrinkage > LARGEST_R_HAT)
    return ExpectedStatistics(mean, error, ess, Verdict(tuple(reasons)))


def _equal(x: Tensor) -> Tensor:
    return torch.full((len(x),), 1 / len(x), dtype=torch.float64, device=x.device)


def _moments(rbm: RBM, x: Tensor, weight: Tensor) -> tuple[Statistics, Statistics]:
    r"""Means μ = Σ w f under weights that sum to one, and their errors, √Σ w² (f − μ)²."""
    mean, square = _sums(rbm, x, weight), weight.square()
    seconds, firsts = _sums(rbm, x, square, power=2), _sums(rbm, x, square)
    scale = len(x) / (len(x) - 1)
    errors = (
        (scale * (second - 2 * mu * first + mu.square() * square.sum()).clamp_min(0)).sqrt()
        for mu, first, second in zip(mean, firsts, seconds, strict=True)
    )
    return mean, Statistics(*errors)


def _sums(rbm: RBM, x: Tensor, weight: Tensor, power: int = 1) -> Statistics:
    r"""Σ w f^power of the statistics f = xhᵀ, x and h, in float64; bits are their own powers."""
    shapes = (rbm.W, rbm.a, rbm.b)
    total = Statistics(*(torch.zeros_like(t, dtype=torch.float64) for t in shapes))
    rows = max(1, BLOCK // max(rbm.visible, rbm.hidden))
    for part, w in zip(x.split(rows), weight.split(rows), strict=True):
        h = rbm.hidden_probabilities(part).double().pow(power)
        v = part.double() * w[:, None]
        for sum_, found in zip(total, (v.T @ h, v.sum(0), w @ h), strict=True):
            sum_ += found
    return total
