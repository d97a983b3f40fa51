r"""Normalize: a small RBM of digits into a NADE, and its log Z in four ways."""

from __future__ import annotations

from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from limbeck.demo.compression import digits
from limbeck.demo.tour import Tour
from limbeck.models.nade import NADE
from limbeck.models.rbm import RBM
from limbeck.normalization.estimate import LogPartition
from limbeck.normalization.log_partition import log_partition
from limbeck.normalization.normalize import normalize

__all__ = ["picture", "run"]

HIDDEN = 16
r"""Hidden units of the RBM: few enough for an exact log Z beside the estimates."""

SAMPLES = 5000
TEMPERATURES = 300


def run(
    steps: int, seed: int, console: Console, progress: bool, shown: bool, tour: Tour
) -> dict[str, Any]:
    r"""Train an RBM, distil it, estimate its log Z, and print the table if it is to be shown."""
    X, _, X_test, _ = digits(seed)
    bits, bits_test = (X > 0.5).float(), (X_test > 0.5).float()
    console.print(f"\nTraining an RBM with {HIDDEN} hidden units on {len(bits):,} binary images …")
    rbm = RBM.fit(
        bits, HIDDEN, sweeps=5, persistent=True, epochs=30, seed=seed, device="cpu",
        progress=progress,
    )  # fmt: skip
    console.print("Distilling it into a NADE that starts at its weights …")
    student = NADE(64, 2 * HIDDEN, generator=torch.Generator().manual_seed(seed))
    result = normalize(
        rbm, student, steps=steps, chains=1000, burn_in=500, init="teacher", seed=seed,
        device="cpu", progress=progress,
    )  # fmt: skip
    common: dict[str, Any] = {"samples": SAMPLES, "seed": seed, "progress": progress}
    console.print("Estimating log Z …")
    found = [
        log_partition(rbm, method="exact", progress=progress),
        log_partition(rbm, student, method="bridge", burn_in=500, **common),
        log_partition(rbm, student, method="importance", **common),
        log_partition(rbm, method="ais", schedule=TEMPERATURES, **common),
    ]
    exact = found[0].value
    with torch.no_grad():
        test = {
            "rbm": rbm.log_unnormalized(bits_test).mean().item() - exact,
            "nade": student.log_prob(bits_test).mean().item(),
        }
    if shown:
        generator = torch.Generator().manual_seed(seed)
        chains = rbm.advance(rbm.start(8, generator), 2000, generator)
        show(found, test, chains, student.sample(8, generator), result.seconds, console)
    tour.add(
        "normalize", result, finding(found, test, result.seconds), target=rbm, data=bits_test,
        log_z={z.method: z for z in found[1:]}, exact=exact,
    )  # fmt: skip
    return {
        "estimates": [z.to_dict() for z in found],
        "test_log_probability": test,
        "distillation_seconds": result.seconds,
    }


def show(
    found: list[LogPartition],
    test: dict[str, float],
    chains: Tensor,
    samples: Tensor,
    seconds: float,
    console: Console,
) -> None:
    r"""Print samples of both models, the table, and what was found."""
    console.print(
        "\nSamples of the RBM, after 2,000 sweeps each:\n" + picture(chains), highlight=False
    )
    console.print("Samples of the NADE, exact and at once:\n" + picture(samples), highlight=False)
    table = Table(title="log Z of an RBM on 8×8 digits", title_justify="left")
    for column in ("method", "log Z", "s.e.", "95% interval", "verdict", "seconds"):
        table.add_column(column, justify="left" if column in ("method", "verdict") else "right")
    for z in found:
        low, high = z.interval()
        table.add_row(
            z.method, f"{z.value:.3f}", f"{z.std_error:.3f}" if z.std_error else "",
            f"{low:.3f} … {high:.3f}" if z.std_error else "",
            z.verdict.state, f"{z.seconds:.1f}",
        )  # fmt: skip
    console.print(table)
    console.print(finding(found, test, seconds), soft_wrap=True)


def finding(found: list[LogPartition], test: dict[str, float], seconds: float) -> str:
    r"""The one sentence to tell a colleague."""
    exact, bridge = found[0], found[1]
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
    lines = [
        "  ".join("".join(marks[2 * int(up) + int(low)] for up, low in zip(a, b, strict=True))
                  for a, b in rows[:, 2 * k : 2 * k + 2].tolist())
        for k in range(4)
    ]  # fmt: skip
    return "\n".join(lines) + "\n"
