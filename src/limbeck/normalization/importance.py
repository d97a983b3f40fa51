r"""Importance sampling: log Z from weighted samples of a proposal."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from limbeck.arguments import Seed, UserObject, Whole, checked_arguments
from limbeck.normalization.bridge import NO_OWN_STARTS, fit_bridge
from limbeck.normalization.densities import Densities, check_target
from limbeck.normalization.estimate import Bound, Estimate, Method, Verdict, mean_bound
from limbeck.samplers.chains import Chains, Logs, Target, start_events
from limbeck.samplers.diagnostics import SIGNIFICANT


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
        doubts, unchecked = list(z.verdict.doubts), list[str]()
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
    target: UserObject[Target], student: UserObject[object],
    samples: Annotated[int, Whole(2)] = 10_000, seed: Seed = 0,
) -> Bound:  # fmt: skip
    r"""⟨log p̃(x) − log q(x)⟩ over samples of q: log Z less KL(q ‖ p), so at most log Z.

    It is −∞, with an infinite error, if the student samples events that the target forbids.

    Arguments:
        target: Has a `support` and `log_unnormalized(x)`.
        student: q, with `log_prob` and `sample`.
        samples: The number of samples, from 2. Default: 10,000.
        seed: Seeds the samples. Default: 0.

    >>> from limbeck.models.rbm import RBM
    >>> coins = torch.distributions.Bernoulli(torch.full((2,), 0.5))
    >>> print(f"{free_energy(RBM([[0.0], [0.0]], [0.0, 0.0], [0.0]), coins):.4f}")  # 3 log 2
    2.0794
    """
    check_target(target, chains=False)
    densities = Densities(target, student, seed)
    with densities.at_work():
        _, logs = densities.drawn(samples, "free energy")
    return mean_bound(logs.ratio)
