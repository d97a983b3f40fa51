r"""Adversarial students beside KL and reverse KL: the divergence from the target after equal time.

Each student trains for the same CPU seconds of one thread, from several seeds.
KL(p ‖ q) is exact over all events of the two discrete targets, and by 20,000 samples of the two
Gaussians otherwise; so is KL(q ‖ p).

    python experiments/adversarial.py [--seconds 5] [--seeds 3] [--out FILE]
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any

import torch

import limbeck as lb
from limbeck.models.flow import Flow

RATES = {"kl": 3e-3, "reverse_kl": 3e-3, "adversarial": 1e-2}


def ring() -> lb.Energy:
    r"""Twelve spins on a ring with a weak field: two modes of unequal mass."""
    return lb.Energy(lambda x: -0.8 * (x * x.roll(1, 1)).sum(1) - 0.05 * x.sum(1), lb.Spins(12))


def rbm() -> lb.RBM:
    return lb.RBM.random(12, 6, 1.0, torch.Generator().manual_seed(0))


def two_gaussians() -> tuple[Any, lb.Energy]:
    r"""Equal weights, means 2 apart from the origin on either side, deviation 1, in the plane."""
    normal = torch.distributions.Normal
    means = torch.tensor([[-2.0, 0.0], [2.0, 0.0]])

    def log_p(x: torch.Tensor) -> torch.Tensor:
        each = normal(means[:, None], 1.0).log_prob(x).sum(-1)
        return each.logsumexp(0) - torch.tensor(2.0).log()

    generator = torch.Generator().manual_seed(1)
    sides = torch.randint(2, (20_000,), generator=generator)
    x = means[sides] + torch.randn(20_000, 2, generator=generator)
    return x, lb.Energy(lambda x: -log_p(x), lb.Real(2))


def divergences(target: Any, student: Any, x: torch.Tensor | None) -> tuple[float, float]:
    with torch.no_grad():
        if x is None:
            every = target.support.enumerate(0, 2**target.support.size)
            p, q = target.log_unnormalized(every).log_softmax(0), student.log_prob(every)
            return float((p.exp() * (p - q)).sum()), float((q.exp() * (q - p)).sum())
        y = student.sample(20_000, torch.Generator().manual_seed(2))
        ratios = (student.log_prob(z) - target.log_unnormalized(z) for z in (x, y))
        forward, backward = (float(ratio.mean()) for ratio in ratios)
        return -forward, backward


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("experiments/results/adversarial.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    time.monotonic = time.process_time  # limits are of CPU time, whatever else runs here
    x, gaussians = two_gaussians()
    table = []
    cases = (("ring", ring(), None), ("RBM", rbm(), None), ("plane", gaussians, x))
    for name, target, samples in cases:
        for loss, seed in itertools.product(RATES, range(options.seeds)):
            torch.manual_seed(seed)
            size = target.support.size
            student = Flow(2) if samples is not None else lb.MADE(size, 32, support=target.support)
            result = lb.normalize(
                target, student, loss, seconds=options.seconds, chains=1000, lr=RATES[loss],
                seed=seed, progress=False, device="cpu",
            )  # fmt: skip
            kl, reverse = divergences(target, student, samples)
            row = {
                "target": name, "loss": loss, "seed": seed, "cpu_seconds": options.seconds,
                "steps": result.steps,
                "kl": round(kl, 4), "reverse_kl": round(reverse, 4),
                "js_divergence": result.settings["normalization"].get("js_divergence"),
            }  # fmt: skip
            print(row, flush=True)
            table.append(row)
            options.out.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
