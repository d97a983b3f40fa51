r"""Normalize: a small RBM of digits into a NADE, and its log Z in four ways."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from limbeck.demo.compression import digits
from limbeck.demo.tour import Tour, print_table
from limbeck.models.nade import NADE
from limbeck.models.rbm import RBM
from limbeck.normalization.estimate import LogPartition
from limbeck.normalization.log_partition import log_partition
from limbeck.normalization.normalize import normalize

__all__ = ["picture", "run"]

HIDDEN = 16  # units of the RBM: few enough for an exact log Z beside the estimates


def run(tour: Tour) -> dict[str, Any]:
    r"""Train an RBM, distil it, and estimate its log Z."""
    X, _, X_test, _ = digits(tour.seed)
    bits, bits_test = (X > 0.5).float(), (X_test > 0.5).float()
    say = tour.console.print
    say(f"\nTraining an RBM with {HIDDEN} hidden units on {len(bits):,} binary images …")
    rbm = RBM.fit(bits, HIDDEN, sweeps=5, persistent=True, epochs=30, **tour.training)
    say("Distilling it into a NADE that starts at its weights …")
    student = NADE(64, 2 * HIDDEN, generator=torch.Generator().manual_seed(tour.seed))
    result = normalize(
        rbm, student, steps=tour.steps, chains=1000, burn_in=500, init="teacher", **tour.training
    )
    say("Estimating log Z …")
    common: dict[str, Any] = {"samples": 5000, "seed": tour.seed, "progress": tour.progress}
    estimates = [
        log_partition(rbm, method="exact", progress=tour.progress),
        log_partition(rbm, student, method="bridge", burn_in=500, **common),
        log_partition(rbm, student, method="importance", **common),
        log_partition(rbm, method="ais", schedule=300, **common),
    ]
    exact = estimates[0].value
    with torch.no_grad():
        test = {
            "rbm": rbm.log_unnormalized(bits_test).mean().item() - exact,
            "nade": student.log_prob(bits_test).mean().item(),
        }
    sentence = finding(estimates, test, result.seconds)
    if tour.tables:
        generator = torch.Generator().manual_seed(tour.seed)
        chains = rbm.advance(rbm.start(8, generator), 2000, generator)
        images = picture(chains)
        say(f"\nSamples of the RBM, after 2,000 sweeps each:\n{images}", highlight=False)
        images = picture(student.sample(8, generator))
        say(f"Samples of the NADE, exact and at once:\n{images}", highlight=False)
        cells = [
            (
                z.method, f"{z.value:.3f}", f"{z.std_error:.3f}" if z.std_error else "",
                "{:.3f} … {:.3f}".format(*z.interval()) if z.std_error else "",
                z.verdict.state, f"{z.seconds:.1f}",
            )
            for z in estimates
        ]  # fmt: skip
        columns = ("method", "log Z", "s.e.", "95% interval", "verdict", "seconds")
        title = "log Z of an RBM on 8×8 digits"
        print_table(tour.console, title, columns, cells, left=("method", "verdict"))
        say(sentence, soft_wrap=True)
    tour.add(
        "normalize", result, sentence, target=rbm, data=bits_test,
        log_z={z.method: z for z in estimates[1:]}, exact=exact,
    )  # fmt: skip
    return {
        "estimates": [z.to_dict() for z in estimates],
        "test_log_probability": test,
        "distillation_seconds": result.seconds,
    }


def finding(estimates: list[LogPartition], test: dict[str, float], seconds: float) -> str:
    r"""The one sentence to tell a colleague."""
    exact, bridge = estimates[:2]
    inside = bridge.interval()[0] <= exact.value <= bridge.interval()[1]
    return (
        f"A NADE distilled in {seconds:.0f} s gives test images a log probability of "
        f"{test['nade']:.2f} (the RBM itself {test['rbm']:.2f}, with its exact log Z); by bridge "
        f"sampling with it, log Z is {bridge.value:.3f} ± {bridge.std_error:.3f}, and the exact "
        f"{exact.value:.3f} lies {'inside' if inside else 'outside'} its 95% interval."
    )


def picture(x: Tensor) -> str:
    r"""8×8 binary images (n, 64) side by side, two rows of pixels to a line."""
    rows = x.reshape(-1, 8, 8).to(torch.int64)
    marks = " ▄▀█"
    codes = (2 * rows[:, ::2] + rows[:, 1::2]).transpose(0, 1).tolist()  # (4, n, 8)
    lines = ("  ".join("".join(marks[c] for c in image) for image in line) for line in codes)
    return "\n".join(lines) + "\n"
