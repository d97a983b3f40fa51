r"""Importance sampling: log Z, and expected statistics, from weighted samples of a proposal."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import torch
from torch import Tensor

from limbeck.arguments import Seed, UserObject, Whole, checked_arguments
from limbeck.errors import ArgumentError
from limbeck.models.rbm import RBM, Statistics
from limbeck.normalization.bridge import NO_OWN_STARTS, fit_bridge
from limbeck.normalization.densities import Densities, check_target, tail_doubts
from limbeck.normalization.estimate import Bound, Estimate, Method, Verdict, mean_bound
from limbeck.samplers import diagnostics
from limbeck.samplers.chains import Chains, ChainTarget, Logs, start_events
from limbeck.samplers.diagnostics import SIGNIFICANT, pareto_k, weights_effective_size

EXPECTATION_BLOCK = 2**22  # numbers of x at a time


@checked_arguments
@dataclass(frozen=True, kw_only=True)
class Importance(Method):
    r"""log Z = log ⟨p̃/q⟩ over samples of a proposal q that covers all of the target's mass.

    If q misses some of the target's mass, the weights do not show it. So samples resampled by
    weight are moved by the target's own kernel, which must not change their distribution, and
    chains from other starts must reach the same distribution.

    Arguments:
        samples: Samples of the proposal. Default: 10,000.
        start: Where the chains of the check start, besides the target's own starts: "target",
            "proposal", or events (m, *shape), such as data. Default: "target".
    """

    name: ClassVar[str] = "importance"

    start: UserObject[str | Tensor] = "target"

    def __post_init__(self) -> None:
        self._set_start("start")

    def _estimate(self, densities: Densities, progress: bool) -> Estimate:
        x, logs = densities.drawn(self.samples, "proposal")
        z = self._mean_of_weights(logs.ratio, "weights")
        doubts, unchecked = [*z.verdict.doubts, *tail_doubts(densities, x)], []
        seen = logs.target
        if callable(getattr(densities.target, "advance", None)) and densities.exact:
            origins: dict[str, str | Tensor] = {"far": "target"}
            if self.start != "target":
                origins["start"] = self.start  # on top of the target's own
                if not densities.target_starts_have_mass():
                    del origins["far"]
                    unchecked.append(NO_OWN_STARTS)
            generator = densities.generator("probes")
            share = torch.softmax(logs.ratio, 0).to(x.device)
            chosen = torch.multinomial(share, min(len(x), 4000), True, generator=generator)
            walks = {"near": Chains.at(densities, x[chosen], generator, progress)}
            walks["near"].sweep(20)
            for name, origin in origins.items():
                start = start_events(densities, origin, min(len(x), 500), generator)
                walks[name] = Chains.at(densities, start, generator)
                walks[name].leave_start(logs.ratio)
            swept = {name: walk.logs().cpu() for name, walk in walks.items()}
            z.sweeps = sum(walk.sweeps_done for walk in walks.values())
            reasons, scores = _probe(swept, logs, z.value, z.std_error)
            if reasons:  # the difference to bridges between the swept ones counts in with the error
                bridges = [fit_bridge(s.ratio[:, None], logs.ratio) for s in swept.values()]
                gap = max(abs(fit.log_z - z.value) for fit in bridges)
                z.std_error = math.hypot(z.std_error, gap)
            doubts += reasons
            z.diagnostics |= scores
            seen = torch.cat([seen, *(s.target for s in swept.values())])
        else:
            why = "it has no advance" if densities.exact else "its advance is not exact"
            check = "whether the proposal covers the target was not checked by sweeps of the target"
            unchecked.append(f"{check}: {why}")
        doubts += densities.excess_doubts(seen, z.value, z.std_error)
        z.verdict = Verdict(tuple(doubts), tuple(unchecked))
        return z, x[:, None], logs.ratio


def _probe(
    swept: dict[str, Logs], logs: Logs, value: float, error: float
) -> tuple[list[str], dict[str, float]]:
    r"""Whether swept samples are where the weighted ones say that the target is."""
    reasons = []
    if outside := max(float((s.ratio == math.inf).double().mean()) for s in swept.values()):
        reasons.append(f"the proposal has no mass at {outside:.1%} of the target's draws")
    share = torch.softmax(logs.ratio, 0)
    tilt = torch.sigmoid(logs.ratio - value)
    mean = float(share @ tilt)
    mean_variance = float(share.square() @ (tilt - mean).square())
    scores = {}
    for name, (_, ratio) in swept.items():
        now = torch.sigmoid(ratio - value)
        variance = float(now.var(correction=0)) / len(now) + mean_variance
        gap = float(now.mean()) - mean
        z = gap / math.sqrt(variance) if abs(gap) > 1e-12 and variance > 0 else 0.0
        # Mass beyond the largest weight is mass that the mean lacks, less what the proposal has
        # of it: p(beyond) − q(beyond), with q = p Z / weight.
        above = ratio[ratio > logs.ratio.max()]
        beyond, lack = len(above) / len(now), float(-(value - above).expm1().sum()) / len(now)
        if abs(z) > SIGNIFICANT or (lack > 2 * error and beyond * len(now) > 5):
            reasons.append(
                f"sweeps of the target from {name} lead away from the proposal's samples (z = "
                f"{z:.1f}, and {beyond:.1%} beyond the largest weight): it misses some of the mass"
            )
        scores[f"{name}_z"] = z
    return reasons, scores


@checked_arguments
def free_energy(
    target: UserObject[ChainTarget], student: UserObject[object],
    samples: Annotated[int, Whole(2)] = 10_000, seed: Seed = 0,
) -> Bound:  # fmt: skip
    r"""⟨log p̃(x) − log q(x)⟩ over samples of q: log Z less KL(q ‖ p), so at most log Z.

    It is −∞, with an infinite error, if the student samples events that the target forbids.

    Arguments:
        target: Has a `support` and `log_unnormalized(x)`.
        student: q, with `log_prob` and `sample`.
        samples: The number of samples, from 2. Default: 10,000.
        seed: Seeds the samples. Default: 0.

    >>> coins = torch.distributions.Bernoulli(torch.full((2,), 0.5))
    >>> print(f"{free_energy(RBM([[0.0], [0.0]], [0.0, 0.0], [0.0]), coins):.4f}")  # 3 log 2
    2.0794
    """
    check_target(target, chains=False)
    densities = Densities(target, student, seed)
    with densities.at_work():
        _, logs = densities.drawn(samples, "free energy")
    return mean_bound(logs.ratio)


class ExpectedStatistics(NamedTuple):
    r"""Estimates of ⟨xhᵀ⟩, ⟨x⟩ and ⟨h⟩ under an RBM: ∂log Z/∂W, ∂log Z/∂a and ∂log Z/∂b."""

    mean: Statistics  # in float64
    std_error: Statistics
    ess: float  # of the weights, with a proposal; of the mean of log p̃, with chains
    verdict: Verdict


@checked_arguments
def expected_statistics(
    rbm: RBM, x: Tensor | None = None, *, proposal: UserObject[object] = None,
    samples: Annotated[int, Whole(2)] = 10_000, seed: Seed = 0,
) -> ExpectedStatistics:  # fmt: skip
    r"""⟨xhᵀ⟩, ⟨x⟩ and ⟨h⟩ under an RBM, by samples of it or by weighted samples of a student.

    Hidden units enter by their probabilities given x, not by draws.

    Arguments:
        rbm: The model.
        x: Samples of the model: (n, I), independent of one another, such as one state of each of n
            chains; or (chains, draws, I), whose errors come from the variance between chains.
            Default: None, with a proposal.
        proposal: A student or a distribution to sample instead, with `log_prob` and `sample`. Its
            samples are weighted by p̃(x)/q(x), normalised to sum to one. Default: None.
        samples: The number of samples of the proposal. Default: 10,000.
        seed: The seed of these samples. Default: 0.

    >>> rbm = RBM([[0.0], [0.0]], [0.0, 0.0], [0.0])
    >>> coins = torch.distributions.Bernoulli(torch.full((2,), 0.5))
    >>> estimate = expected_statistics(rbm, proposal=coins, samples=1000)
    >>> round(estimate.mean.b.item(), 6), round(estimate.ess)
    (0.5, 1000)
    """
    if not isinstance(rbm, RBM):
        raise ArgumentError("rbm", f"a {type(rbm).__name__}", "an RBM")
    if (x is None) == (proposal is None):
        received = "neither" if x is None else "both"
        raise ArgumentError("x, proposal", received, "either samples x of the RBM, or a proposal")
    if proposal is not None:
        densities = Densities(rbm, proposal, seed)
        with densities.at_work():
            x, logs = densities.drawn(samples, "expectations")
            mean, error = _moments(rbm, x, logs.ratio.softmax(0).to(x.device))
        ess, k = weights_effective_size(logs.ratio), pareto_k(logs.ratio)
        reasons = [f"only {ess:.0f} effective samples of {samples:,}"] * (ess < 100)
        reasons += [f"the largest weights have a heavy tail, k̂ = {k:.2f}"] * (k > 0.7)
        return ExpectedStatistics(mean, error, ess, Verdict(tuple(reasons)))
    if not isinstance(x, Tensor) or x.dim() not in (2, 3) or x.shape[-1] != rbm.visible:
        received = f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
        expected = f"a tensor (n, {rbm.visible}) or (chains, draws, {rbm.visible})"
        raise ArgumentError("x", received, expected)
    if len(x) < 2 or x.numel() == 0:
        expected = "two samples or chains at least, for a standard error"
        raise ArgumentError("x", f"shape {tuple(x.shape)}", expected)
    rbm.support.check(x.flatten(0, -2), "x")
    x, n, densities = x.to(rbm.W), len(x), Densities(rbm)
    if x.dim() == 2:
        with densities.at_work():
            mean, error = _moments(rbm, x, _equal(x))
        verdict = Verdict((f"only {n} samples",) * (n < 100))
        return ExpectedStatistics(mean, error, float(n), verdict)
    draws = x.flatten(0, 1)
    with densities.at_work():
        log_p = densities.log_target(draws).reshape(x.shape[:2])
        mean = _sums(rbm, draws, _equal(draws))
        squares = [torch.zeros_like(part) for part in mean]
        for chain in x:  # the means of all chains side by side would be too large to hold
            chain_mean = _sums(rbm, chain, _equal(chain))
            for square, part, total in zip(squares, chain_mean, mean, strict=True):
                square += (part - total).square()
    error = Statistics(*((square / (n * (n - 1))).sqrt() for square in squares))
    ess, shrinkage = diagnostics.effective_size(log_p), diagnostics.r_hat(log_p)
    reasons = [f"only {n} chains, too few to tell the errors by"] * (n < 20)
    reasons += [f"only {ess:.0f} effective samples"] * (ess < 100)
    reasons += [f"chains disagree, R-hat = {shrinkage:.2f}"] * (shrinkage > 1.05)
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
    rows = max(1, EXPECTATION_BLOCK // max(rbm.visible, rbm.hidden))
    for part, w in zip(x.split(rows), weight.split(rows), strict=True):
        h = rbm.hidden_probabilities(part).double().pow(power)
        v = part.double() * w[:, None]
        for sum_, part_sum in zip(total, (v.T @ h, v.sum(0), w @ h), strict=True):
            sum_ += part_sum
    return total
