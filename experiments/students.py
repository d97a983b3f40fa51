r"""Which tractable student comes closest to an RBM in a given time: NADE, MADE or DeepNADE.

    python experiments/students.py --data DIR --out results --seconds 30 --students nade deep

Each student is trained by KL on chains of the RBM for so many seconds, compilation not counted,
with a rate that falls along half a cosine of the time that has passed. Its upper bound on log Z is
the mean of log p̃ − log q over fresh samples of the RBM, log Z + KL(p ‖ q); its lower bound the
same over its own samples. With `--expected` the targets are the RBM's p(x_i | h) instead of x_i:
the gradient has the same mean and less noise.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path

import torch
from torch import nn

import limbeck as lb
from limbeck.arrays import Batch, full_precision
from limbeck.environment import environment
from limbeck.inputs.base import Inputs
from limbeck.models.made import MADE
from limbeck.models.nade import NADE, DeepNADE
from limbeck.models.rbm import RBM
from limbeck.normalization.estimate import mean_bound
from limbeck.normalization.log_partition import log_partition
from limbeck.samplers.chains import Chains
from limbeck.training.config import choose_device
from limbeck.training.distill import steps

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the root, for `reproduction`
from reproduction import data

LOOK = 10  # steps between readings of the clock


def warm(hidden, width=None, depth=0):
    def make(rbm, samples, generator):
        if not depth:
            return NADE.from_rbm(rbm, hidden, generator=generator, centre=None)
        nade = NADE.from_rbm(rbm, hidden, generator=generator, centre=samples.mean(0))
        return DeepNADE.from_nade(nade, width, depth, generator=generator)

    return make


def centred(hidden):
    def make(rbm, samples, generator):
        nade = NADE.from_rbm(rbm, hidden, generator=generator, centre=samples.mean(0))
        return DeepNADE.from_nade(nade, 1, 0, generator=generator)

    return make


def made(*hidden):
    def make(rbm, samples, generator):
        model = MADE(rbm.visible, hidden, dtype=rbm.W.dtype, generator=generator).to(rbm.W.device)
        mean = samples.mean(0).clamp(1e-3, 1 - 1e-3)
        with torch.no_grad():
            model.bias.copy_(mean.logit())
        return model

    return make


STUDENTS = {
    "nade": warm(None),  # as many hidden units as the RBM
    "nade1000": warm(1000),
    "centred": centred(None),
    "deep-small": warm(None, 500, 1),
    "deep": warm(None, 1000, 2),
    "deep-large": warm(None, 2000, 3),
    "deep1000": warm(1000, 1000, 2),
    "made": made(2048, 2048, 2048),
    "made-large": made(4096, 4096, 4096, 4096),
}
RATES = {"nade": 2e-3, "centred": 2e-3, "deep": 2e-3, "made": 1e-3}


class ByTime:
    r"""Half a cosine of the fraction of the time that has passed."""

    def __init__(self, device, warmup=0.02):
        self.passed, self.warmup = torch.zeros(1, dtype=torch.float64, device=device), warmup

    def __call__(self, t, total):
        passed = self.passed[0].clamp(0, 1)
        rise = (passed / self.warmup + 0.02).clamp_max(1)
        return rise * (1 + torch.cos(math.pi * passed)) / 2


class Expected(Inputs):
    r"""Samples x of an RBM's chains, and p(x_i = 1 | h) at hidden states h drawn given x."""

    def __init__(self, chains, rbm):
        super().__init__()
        self.chains, self.rbm = chains, [rbm]

    def draw(self, n):
        x = self.chains.draw(n)
        shape = (n, self.rbm[0].hidden)
        return x, torch.rand(shape, generator=self.generator, device=x.device, dtype=x.dtype)

    def build(self, drawn):
        x, uniforms = drawn
        W, a, b = (p.detach() for p in (self.rbm[0].W, self.rbm[0].a, self.rbm[0].b))
        h = (uniforms < (x @ W + b).sigmoid()).to(x.dtype)
        return Batch({"x": x, "expected": (h @ W.T + a).sigmoid()})

    def to(self, device, dtype, seed):
        super().to(device, dtype, seed + 1)
        self.chains.to(device, dtype, seed)

    def probe(self, n):
        x = self.chains.probe(n).x
        return Batch({"x": x, "expected": x})


class Expecting(nn.Module):
    r"""A student whose log density at {x, expected} is the expected one."""

    output_form = "log_density"

    def __init__(self, student):
        super().__init__()
        self.student = student

    def log_prob(self, parts):
        x, expected = parts["x"], parts["expected"]
        z = self.student.logits(x)
        return (expected * z - nn.functional.softplus(z)).sum(1)

    forward = log_prob


def train(student, rbm, start, ask, device):
    r"""Steps done, seconds until the first ones were, seconds of the rest."""
    chains = Chains(
        rbm, ask.chains or 20 * ask.batch, scheme="all", burn_in=ask.burn_in, start=start
    )
    source = Expected(chains, rbm) if ask.expected else chains
    trained = Expecting(student) if ask.expected else student
    schedule = ByTime(device)
    run = steps(
        None, trained, source, lb.losses.kl(), steps=10**7, every=10**7, batch_size=ask.batch,
        lr=ask.rate, schedule=schedule, clip=ask.clip, engine=ask.engine, device=device,
        seed=ask.seed,
    )  # fmt: skip
    asked = time.perf_counter()
    for step in run:
        if step.number == LOOK:  # compiled, and captured if on a GPU
            began = now(device)
        elif step.number % LOOK == 0:
            if step.number % (5 * LOOK) == 0 and device.type == "cuda":
                torch.cuda.synchronize()
            passed = (time.perf_counter() - began) / ask.seconds
            schedule.passed.fill_(passed)
            if passed >= 1:
                break
    run.close()
    seconds = now(device) - began
    return step.number - LOOK, began - asked, seconds


def now(device):
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


@torch.no_grad()
def measure(student, rbm, x, samples, seed, device):
    with full_precision():

        def ratio(x):
            parts = x.split(1000)
            return torch.cat([rbm.log_unnormalized(p) - student.log_prob(p) for p in parts])

        upper = mean_bound(ratio(x))
        began = now(device)
        own = student.sample(samples, torch.Generator(device).manual_seed(seed))
        seconds = now(device) - began
        lower = mean_bound(ratio(own))
    return upper, lower, seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default=None, help="folder with the RBM and the images")
    parser.add_argument("--rbm", default=None, help="another RBM, as lb.RBM.load reads it")
    parser.add_argument("--out", default=None, help="folder for the results")
    parser.add_argument("--students", nargs="+", default=["nade", "deep", "made"], choices=STUDENTS)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--chains", type=int, default=None)
    parser.add_argument("--rate", type=float, default=None)
    parser.add_argument("--clip", type=float, default=None)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--burn-in", type=int, default=2000)
    parser.add_argument("--expected", action="store_true", help="targets p(x_i | h) for x_i")
    parser.add_argument("--bridge", action="store_true", help="estimate log Z with each student")
    parser.add_argument("--engine", default="compiled")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    ask = parser.parse_args()
    device = choose_device(ask.device)
    if ask.rbm:
        rbm, start = RBM.load(ask.rbm).to(device), None
    else:
        rbm, start = data.rbm(ask.data).to(device), data.binarized(ask.data).train
    rbm.requires_grad_(False)
    generator = torch.Generator(device).manual_seed(ask.seed + 1000)
    first = rbm.start(ask.samples, generator) if start is None else start[-ask.samples :].to(device)
    with full_precision():
        x = rbm.advance(first, ask.burn_in, generator)
    rows, given = [], ask.rate
    columns = ("student", "parameters", "steps", "compile s", "train s", "upper", "lower", "logZ")
    print(("{:>12}" * len(columns)).format(*columns), flush=True)
    for name in ask.students:
        ask.rate = given or next(rate for key, rate in RATES.items() if name.startswith(key))
        own = torch.Generator().manual_seed(ask.seed)
        student = STUDENTS[name](rbm, x[:2000], own).to(device)
        done, compiling, seconds = train(student, rbm, start, ask, device)
        upper, lower, sampling = measure(student, rbm, x, ask.samples, ask.seed + 1, device)
        row = {
            "student": name, "parameters": sum(p.numel() for p in student.parameters()),
            "steps": done, "compiling": compiling, "seconds": seconds, "sampling": sampling,
            "upper": [upper, upper.std_error], "lower": [lower, lower.std_error],
        }  # fmt: skip
        if ask.bridge:
            z = log_partition(rbm, student, samples=ask.samples, method="bridge", seed=ask.seed)
            row |= {"log_z": z.value, "three_errors": 3 * z.std_error, "verdict": str(z.verdict)}
        rows.append(row)
        print(
            f"{name:>12}{row['parameters']:>12,}{done:>12,}{compiling:>12.1f}{seconds:>12.1f}"
            f"{upper:>8.3f}±{upper.std_error:.3f}{lower:>8.3f}±{lower.std_error:.3f}"
            + (f"{row['log_z']:>9.3f}±{row['three_errors']:.3f} (3 s.e.)" if ask.bridge else ""),
            flush=True,
        )
        if ask.out:
            Path(ask.out).mkdir(parents=True, exist_ok=True)
            settings = {k: v for k, v in vars(ask).items() if k not in ("data", "rbm", "out")}
            about = environment(device) | {"settings": settings | {"rate": given}}
            path = Path(ask.out) / "students.json"
            path.write_text(json.dumps(about | {"students": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
