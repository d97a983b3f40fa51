r"""Bridge sampling: log Z from draws of the target and of a proposal that overlaps with it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from limbeck.arguments import Auto, Choice, Count, CountFromZero, UserObject, checked_arguments
from limbeck.errors import ArgumentError
from limbeck.normalization.densities import Densities
from limbeck.normalization.estimate import Estimate, LogPartition, Method, log_mean, mean_bound
from limbeck.samplers import diagnostics
from limbeck.samplers.chains import KERNELS, Chains, Draws, Logs, start_events
from limbeck.samplers.diagnostics import MIN_CHAINS, SIGNIFICANT, difference, effective_size
from limbeck.verdict import Verdict

NO_OWN_STARTS = "chains from the target's own starts were not compared: it has no mass there"
MIN_EFFECTIVE_DRAWS = 100  # below, an error is not to be relied on
MAX_DRAWS = 20_000  # that test functions are evaluated at
VARIABLES, SUMS = 32, 16  # test functions: variables, and sums of all of them with random signs
LIMIT = 5.0  # a z-score that chance gives in 1 of 10⁴ checks, of a hundred test functions each
MIN_DRAWS_FOR_R_HAT = 10  # of a chain
Starts = tuple[str | Tensor, ...]
DEPENDENCES = {"drift_z": "drift at the end of their burn-in", "memory_z": "depend on their start"}
SECOND_CHAINS = 500  # from the second start, on top of few chains with many draws


@checked_arguments
@dataclass(frozen=True, kw_only=True)
class Bridge(Method):
    r"""log Z by bridge sampling, from draws of the target and of a proposal that overlaps with it.

    Draws from the two starts are pooled if they agree; if not, only those from the first start are
    used. If chains have not mixed, the difference between starts, or between early and late draws,
    is added to the error.

    Arguments:
        samples: Samples of the target, and as many of the proposal. Default: 10,000.
        burn_in: Steps of the chains before the first draw. "auto" continues until the chains no
            longer depend on their starts, and then as long again. Default: 2,000 with the target's
            own kernel, "auto" with another.
        kernel: How chains move. "target": by the target's sweeps; "metropolis": by proposals from
            the student, which is fast for a good one; "mixed": both in turn. Default: "target".
        start: Where chains start: "proposal" for fresh samples of it; "target" for the target's own
            starts; or events (m, *shape), such as data. Default: "proposal".
        second_start: Where a quarter of the chains start, which must agree with the others: "auto"
            is "target", or "proposal" if `start` is "target", or one half of each if `start` is
            events. Events are added to these; None skips this check, and the estimate is
            "unchecked". Default: "auto".
        chains: The number of chains. Default: one for each sample.
        thin: Steps between two draws of a chain, if there are fewer chains. "auto" takes a 40th of
            the burn-in. Default: 1.
    """

    name: ClassVar[str] = "bridge"

    burn_in: CountFromZero | Auto | None = None
    kernel: Annotated[str, Choice(*KERNELS)] = "target"
    start: UserObject[str | Tensor] = "proposal"
    second_start: UserObject[str | Tensor | None] = "auto"
    chains: Count | None = None
    thin: Count | Auto = 1

    def __post_init__(self) -> None:
        if self.chains is not None and self.chains > self.samples:
            expected = f"a whole number from 1 to {self.samples}, the number of samples"
            raise ArgumentError("chains", self.chains, expected)
        if self.burn_in is None:
            self._set("burn_in", 2000 if self.kernel == "target" else "auto")
        self._set_start("start")
        if not isinstance(self.second_start, str | None) or self.second_start not in ("auto", None):
            self._set_start("second_start")

    @property
    def count(self) -> int:
        r"""The number of chains."""
        return self.samples if self.chains is None else self.chains

    @property
    def per_chain(self) -> int:
        r"""Draws of each chain."""
        return math.ceil(self.samples / self.count)

    @property
    def others(self) -> Starts:
        r"""The starts that `start` is compared with."""
        if self.second_start is None:
            return ()
        others = tuple(name for name in ("proposal", "target") if self.start != name)
        return others if isinstance(self.second_start, str) else (*others, self.second_start)

    def _estimate(self, densities: Densities, progress: bool) -> Estimate:
        unchecked, others = list[str](), self.others
        if len(others) > 1 and "target" in others and not densities.target_starts_have_mass():
            others = tuple(start for start in others if start != "target")
            unchecked.append(NO_OWN_STARTS)
        proposed, logs = densities.drawn(self.samples, "proposal")
        first, second = self._draws(densities, others, logs.ratio, progress)
        fit, target, x = fit_bridge(first.logs.ratio, logs.ratio), first.logs, first.x
        scores = self._scores(fit, first.start, first.early, first.logs.ratio[:, 0])
        doubts = [
            f"chains still {DEPENDENCES[name]} (z = {score:.1f}); increase burn_in"
            for name, score in scores.items()
            if abs(score) > SIGNIFICANT
        ]
        if second is not None:
            reasons, scores["starts_z"] = _disagreement(fit, first.logs, second.logs)
            doubts += reasons
            if not reasons and self.per_chain == 1:
                target = Logs(*map(torch.cat, zip(first.logs, second.logs, strict=True)))
                fit, x = fit_bridge(target.ratio, logs.ratio), torch.cat([first.x, second.x])
        error = fit.std_error
        if doubts:
            ratios = [first.early.ratio[:, None], *([] if second is None else [second.logs.ratio])]
            gaps = [abs(fit_bridge(ratio, logs.ratio).log_z - fit.log_z) for ratio in ratios]
            error = math.hypot(error, max(gaps))
        doubts += _doubts(fit, target, logs, densities)
        scores["balance_z"], reasons = self._balance(
            densities, fit, proposed, logs.ratio, x, target.ratio
        )
        if reasons:  # importance sampling has no use for the chains
            error = math.hypot(error, log_mean(logs.ratio)[0] - fit.log_z)
        doubts += reasons
        unchecked += self._unchecked(first, second, bool(others))
        spread = diagnostics.r_hat(fit.f_target)
        long_chains = self.count < MIN_EFFECTIVE_DRAWS and self.per_chain >= MIN_DRAWS_FOR_R_HAT
        if long_chains and spread > 1.05:
            doubts.append(f"chains differ from one another (R-hat {spread:.2f})")
        runs = [first] if second is None else [first, second]
        accepted = [run.acceptance for run in runs if not math.isnan(run.acceptance)]
        z = LogPartition(
            fit.log_z, error, self.name, Verdict(tuple(doubts), tuple(unchecked)),
            mean_bound(logs.ratio), mean_bound(target.ratio),
            {
                "ess": fit.ess, "sampling_error": fit.std_error, "overlap": fit.overlap,
                "iterations": fit.iterations, "chains": sum(len(run.x) for run in runs),
                "draws_per_chain": self.per_chain, "burn_in": first.steps,
                "acceptance": accepted[0] if accepted else None,
                "r_hat": None if math.isnan(spread) else spread, **scores,
            },
            self.samples, sum(run.sweeps for run in runs), degrees=fit.degrees,
        )  # fmt: skip
        return z, x, None

    def _draws(
        self, densities: Densities, others: Starts, log_ratio: Tensor, progress: bool
    ) -> tuple[Draws, Draws | None]:
        r"""Draws from the first start; from the others, if any, a quarter, or one each of more."""

        def converged(start: Logs, early: Logs, now: Logs) -> bool:
            fit = fit_bridge(now.ratio[:, None], log_ratio)
            scores = self._scores(fit, start, early, now.ratio)
            return all(abs(score) < 2.0 for score in scores.values())

        single = self.per_chain == 1
        second = 0 if not others else self.count // 4 if single else SECOND_CHAINS
        generator = densities.generator("chains")
        x = start_events(densities, self.start, self.count - second * single, generator)
        chains = Chains.at(densities, x, generator, progress)
        burn_in = None if isinstance(self.burn_in, str) else self.burn_in
        thin = None if isinstance(self.thin, str) else self.thin
        draws = chains.collect(self.kernel, burn_in, self.per_chain, thin, converged)
        if outside := int((draws.logs.target == -math.inf).sum()):
            total = draws.logs.target.numel()
            received = f"chains at events of zero density ({outside:,} of {total:,})"
            raise ArgumentError("target", received, "chains within the target's mass; see start")
        if not second:
            return draws, None
        generator = densities.generator("chains from the second start")
        x = start_events(densities, others, second, generator)
        chains = Chains.at(densities, x, generator, progress)
        chains.leave_start(log_ratio, draws.sweeps // len(draws.x))
        return draws, chains.collect("mixed", 0, 1, 1, converged)

    def _scores(self, fit: BridgeFit, start: Logs, early: Logs, now: Tensor) -> dict[str, float]:
        r"""z-scores of how much chains still depend on their start; now are log ratios."""
        scores = {"drift_z": diagnostics.drift(fit.tilt(early.ratio), fit.tilt(now))}
        if self.start == "proposal":
            scores["memory_z"] = diagnostics.memory(start.ratio, fit.tilt(now))
        return scores

    def _balance(
        self, densities: Densities, fit: BridgeFit, proposed: Tensor, log_ratio: Tensor, x: Tensor,
        target_ratio: Tensor,
    ) -> tuple[float, list[str]]:  # fmt: skip
        r"""Whether draws x (chains, draws, *shape) and weighted samples of q give equal means."""
        chains = max(1, MAX_DRAWS // x.shape[1])
        x, target_ratio = x[:chains], target_ratio[:chains].flatten()
        proposed, draws = proposed[:MAX_DRAWS], x.flatten(0, 1)
        names, values = function_values(densities, proposed, draws)
        # where the proposal is what a wrong sampler leads to, log p̃/q is what tells them apart
        known = torch.cat([log_ratio[:MAX_DRAWS], target_ratio])
        low, high = known[known.isfinite()].quantile(known.new_tensor([0.005, 0.995]))
        one, other = (
            torch.cat([ratio[: len(part), None].clamp(low, high), part.cpu()], 1)
            for ratio, part in zip((log_ratio, target_ratio), values, strict=True)
        )
        scores = fit.imbalance(one, other.unflatten(0, x.shape[:2]))
        scores[2:] *= SIGNIFICANT / LIMIT  # since there are many of them
        largest = int(scores.abs().argmax())
        z = float(scores[largest])
        if abs(z) <= SIGNIFICANT:
            return z, []
        return z, [
            f"draws of the chains disagree with weighted samples of the proposal in the mean of "
            f"{['log p̃/q', *names][largest]} (z = {z:.1f}): the target's advance does not leave it "
            "invariant, or chains have not mixed; check advance, or increase burn_in"
        ]

    def _unchecked(self, first: Draws, second: Draws | None, compared: bool) -> list[str]:
        r"""The checks of the chains that did not run."""
        reasons = []
        if first.steps < 2:
            advice = f"(burn_in={first.steps}); use burn_in=2 or more, or 'auto'"
            reasons.append(f"whether chains still drift was not checked {advice}")
        elif not first.moved:
            reasons.append("no chain has moved: they may not be draws of the target")
        elif self.count < MIN_CHAINS and self.per_chain < MIN_DRAWS_FOR_R_HAT:
            reasons.append(
                f"whether chains have mixed was not checked: {self.count} chains with "
                f"{self.per_chain} draws are too few; use {MIN_CHAINS} chains, or "
                f"{MIN_DRAWS_FOR_R_HAT} draws of each"
            )
        if second is None:
            why = f"{self.count} chains" if compared else "second_start=None"
            reasons.append(f"chains from a second start were not compared ({why})")
        return reasons


class BridgeFit(NamedTuple):
    r"""The optimal bridge between samples of a target and of a proposal.

    With s₁ + s₂ = 1, f₁ = p/(s₁p + s₂q) at samples of q and f₂ = q/(s₁p + s₂q) at samples of p
    have the same mean, the overlap, which is 1 for p = q and 0 for disjoint densities.
    """

    log_z: float
    variances: tuple[float, float]  # of it: the relative ones of mean f₁ and of mean f₂
    degrees: float  # of freedom of the error
    f_proposal: Tensor  # f₁, (n,)
    f_target: Tensor  # f₂, (chains, draws)
    share: float  # s₁, the share of the target's samples, in effective ones
    overlap: float
    ess: float  # of the f₂ series
    iterations: int

    @property
    def std_error(self) -> float:
        return math.sqrt(sum(self.variances))

    @property
    def inside(self) -> float:
        r"""About how many draws lie in the overlap."""
        own, other = len(self.f_proposal) * self.share, self.ess * (1 - self.share)
        return self.overlap * min(own, other)

    def tilt(self, log_ratio: Tensor) -> Tensor:
        r"""s₁f₁ at any events: the probability that they came from the target."""
        shift = math.log(self.share / (1 - self.share))
        return torch.sigmoid(log_ratio.double() - self.log_z + shift)

    def imbalance(self, proposal: Tensor, target: Tensor) -> Tensor:
        r"""z-scores (k,) of ⟨g f₁⟩ − ⟨g f₂⟩, which is zero for any g, if draws are the target's.

        g (n, k) at the first samples of the proposal, (chains, draws, k) at those of the target,
        is centred such that the error of log Z does not matter.
        """
        f1, f2 = self.f_proposal[: len(proposal), None], self.f_target[: len(target), :, None]
        if self.overlap <= 0 or min(f1.numel(), f2.numel()) < MIN_CHAINS:
            return proposal.new_zeros(proposal.shape[1])
        slopes = f1 * (1 - self.share * f1), f2 * (1 - (1 - self.share) * f2)
        total = slopes[0].mean() + slopes[1].mean()
        centre = ((slopes[0] * proposal).mean(0) + (slopes[1] * target).mean((0, 1))) / total
        one, two = (proposal - centre) * f1, (target - centre) * f2
        spread = [series.var() / effective_size(series) for series in two.unbind(2)]
        error = (one.var(0) / len(one) + torch.stack(spread)).sqrt()
        gap = one.mean(0) - two.mean((0, 1))
        return torch.where(gap.abs() > 1e-9 * (1 + centre.abs()), gap / error, 0.0)


def fit_bridge(target: Tensor, proposal: Tensor) -> BridgeFit:
    r"""The bridge of log ratios at samples of the target (chains, draws) and the proposal (n,).

    The equation for r = Z is mean f₁ = mean f₂, whose left side falls and right side rises with r.
    """
    target, proposal = target.double().cpu(), proposal.double().cpu()
    n, total, size = len(proposal), 0, float(target.numel())
    for _ in range(20):
        share = size / (size + n)
        log_z, iterations = _solve(target.flatten(), proposal, share)
        total += iterations
        if not math.isfinite(log_z):  # no overlap at all
            none, worst = (torch.zeros_like(proposal), torch.zeros_like(target)), (math.inf, 0.0)
            return BridgeFit(log_z, worst, math.inf, *none, share, 0.0, size, total)
        tilt = math.log(share / (1 - share))
        f_proposal = torch.sigmoid(proposal - log_z + tilt) / share
        f_target = torch.sigmoid(-(target - log_z + tilt)) / (1 - share)
        before, size = size, effective_size(f_target)
        if abs(size - before) <= 0.01 * before:
            break
    parts = (_relative_variance(f_proposal) / n, _relative_variance(f_target) / size)
    variance = sum(parts)
    freedom = sum(v**2 / (m - 1) for v, m in zip(parts, (n, size), strict=True) if m > 1)
    degrees = variance**2 / freedom if freedom and variance < math.inf else math.inf
    return BridgeFit(
        log_z, parts, degrees, f_proposal, f_target, share, float(f_target.mean()), size, total
    )


def _relative_variance(f: Tensor) -> float:
    r"""The variance of numbers over their squared mean."""
    if f.numel() < 2:
        return math.inf
    mean = float(f.mean())
    return float(f.var()) / mean**2 if mean > 0 else math.inf


def _solve(target: Tensor, proposal: Tensor, share: float) -> tuple[float, int]:
    r"""The root of log mean f₁ − log mean f₂ in log r, and iterations; +∞ without any overlap."""
    from scipy.optimize import brentq

    tilt = math.log(share / (1 - share))
    shift = math.log(target.numel() / proposal.numel()) - tilt

    def gap(log_r: float) -> float:
        one, two = F.logsigmoid(proposal - log_r + tilt), F.logsigmoid(log_r - target - tilt)
        return float(one.logsumexp(0) - two.logsumexp(0)) + shift

    ratios = torch.cat([target, proposal])
    ratios = ratios[ratios.isfinite()]
    if len(ratios) == 0 or (target == math.inf).all():
        return math.inf, 0
    low, high = float(ratios.min()) - abs(tilt) - 1, float(ratios.max()) + abs(tilt) + 1
    width = high - low
    while gap(low) < 0 and width < math.inf:
        low -= (width := 2 * width)
    while gap(high) > 0 and width < math.inf:
        high += (width := 2 * width)
    if not gap(low) >= 0 >= gap(high):  # NaN where one of both has no mass
        return math.inf, 0
    log_r, report = brentq(gap, low, high, xtol=1e-12, maxiter=200, full_output=True)
    return log_r, report.iterations


def _disagreement(fit: BridgeFit, one: Logs, other: Logs) -> tuple[list[str], float]:
    r"""Reasons to distrust chains from two starts, and the z-score of their difference."""
    if (other.target == -math.inf).any():
        return ["chains from the second start have not reached the target's mass"], math.inf
    z = difference(fit.tilt(one.ratio), fit.tilt(other.ratio))
    reasons = []
    if abs(z) > SIGNIFICANT:
        reasons.append(
            f"chains from two starts disagree (z = {z:.1f}): they have not mixed, or the proposal "
            "misses a part of the target"
        )
    # log p̃ itself does not enter the estimate: two starts may differ in it a little.
    gap = float(one.target.mean() - other.target.mean())
    apart = difference(one.target, other.target)
    if not reasons and abs(apart) > SIGNIFICANT and abs(gap) > 0.5 * float(one.target.std()):
        reasons.append(f"chains from two starts disagree in log p̃, by {gap:.3g} on average")
    return reasons, z


def _doubts(fit: BridgeFit, target: Logs, proposal: Logs, densities: Densities) -> list[str]:
    r"""Reasons to distrust the estimate, if the draws are the target's."""
    reasons = densities.exactness_doubts()
    if outside := float((target.ratio == math.inf).double().mean()):
        reasons.append(f"the proposal has no mass at {outside:.1%} of the target's draws")
    if (size := min(len(proposal.ratio), fit.ess)) < MIN_EFFECTIVE_DRAWS:
        reasons.append(f"{size:.0f} effective draws are too few to know the error")
    if fit.inside < 50:
        reasons.append(f"target and proposal hardly overlap (in about {fit.inside:.2g} draws)")
    seen = torch.cat([target.target.flatten(), proposal.target])
    return reasons + densities.excess_doubts(seen, fit.log_z, fit.std_error)


@torch.no_grad()
def function_values(densities: Densities, *events: Tensor) -> tuple[list[str], list[Tensor]]:
    r"""Names and values (n, k) of log p̃, sums of variables, some variables, and squares at events.

    Values are cut at their 0.5% quantiles, so that tails do not decide.
    """
    size, device = densities.support.size, events[0].device
    signs = torch.randint(2, (size, SUMS), generator=densities.generator("signs"), device=device)
    signs = torch.cat([torch.ones_like(signs[:, :1]), 2 * signs - 1], 1).double()
    shown = range(0, size, math.ceil(size / VARIABLES))
    names = ["log p̃", "a sum of all variables"]
    names += ["a sum of all variables with random signs"] * SUMS
    squares = [f"the square of {name}" for name in names]
    names = [*names, *(f"variable {place}" for place in shown), *squares]
    parts = list[Tensor]()
    for x in events:
        rows = x.flatten(1).double()
        some = rows[:, :: shown.step]
        parts.append(torch.cat([densities.log_target(x)[:, None], rows @ signs, some], 1))
    known = torch.cat(parts)[:MAX_DRAWS]
    known = torch.where(known.isfinite(), known, known[known.isfinite()].mean())
    low, high = known.quantile(known.new_tensor([0.005, 0.995]), dim=0)
    centre = known.median(0).values
    parts = [part.nan_to_num(0.0, math.inf, -math.inf).clamp(low, high) for part in parts]
    return names, [torch.cat([part, (part - centre)[:, : SUMS + 2].square()], 1) for part in parts]
