r"""Peak memory of online distillation: of a chain a hundred times longer, and of a bag of 5 GB.

Each figure is of a Python process of its own: its largest resident memory, all of it, and what of
that came after the import of torch and limbeck. Megabytes are of a million bytes. A chain is that
of the source text's logistic regression, a hundred draws a step; the bag of 5 GB is virtual, a
generator of draws of a Bayesian net, or of softmax regression, each of which is used once. One JSON
line a figure.

    python benchmarks/memory.py [--threads 1] [--gigabytes 5] [--steps 100] [--longer 100]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from timing import machine, report
from torch import Tensor

import limbeck as lb
from limbeck.condensation.models import MLPRegression, Regression, mlp, softmax

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the root, for `reproduction`
from reproduction.chapter3_logistic import points, sampler

CHAINS, BURN_IN = 100, 50
FEATURES, HIDDEN, CLASSES = 784, 64, 10
AT_ONCE = 50
r"""Draws of the virtual bag that the generator makes at once, and inputs a step."""


def peak() -> float:
    r"""The largest memory of this process so far, in megabytes."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage may give that of the parent, from before this program began
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def bag_of_a_chain(steps: int, engine: str) -> Any:
    r"""Chains that run as long as the student is trained, into a bag of ten draws."""
    x, y = points(0)
    chains = sampler(x.float(), y, CHAINS, BURN_IN, seed=0)
    return lb.condense(
        chains, lambda draw, x: lb.Bernoulli(logits=x @ draw), lb.inputs.Noise(2, scale=10**0.5),
        steps=steps, batch_size=CHAINS, engine=engine, device="cpu", progress=False,
    )  # fmt: skip


def mixture_of_a_chain(steps: int) -> Any:
    r"""The same chains as two means of a mixture, by stepwise EM into a mixture of three."""
    x, y = points(0)
    chains = sampler(x.float(), y, CHAINS, BURN_IN, seed=0)
    equal = torch.full((2,), 0.5)
    return lb.condense(
        chains, lambda draw: lb.Mixture(equal, lb.Normal(draw, torch.ones(2))), components=3,
        steps=steps, batch_size=CHAINS, engine="eager", device="cpu", progress=False,
    )  # fmt: skip


class Virtual:
    r"""A virtual bag: draws around a centre, generated when they are requested.

    Attributes:
        made: Bytes of draws so far.
    """

    def __init__(self, dim: int) -> None:
        self.generator, self.made = torch.Generator().manual_seed(0), 0
        self.centre = 0.1 * torch.randn(dim, generator=self.generator)

    def __iter__(self) -> Iterator[Tensor]:
        while True:
            draws = torch.randn(AT_ONCE, len(self.centre), generator=self.generator)
            self.made += draws.nbytes
            yield draws.mul_(0.03).add_(self.centre)


def virtual_bag(predict: MLPRegression | Regression, dim: int, net: bool, size: float) -> Any:
    r"""A bag of so many bytes into a net, or into a bag of ten draws."""
    bag = Virtual(dim)
    result = lb.condense(
        iter(bag), predict, lb.inputs.Noise(FEATURES),
        student=lb.MLP(FEATURES, 32, CLASSES) if net else None,
        steps=int(size / (4 * dim * AT_ONCE)), batch_size=AT_ONCE, engine="eager", device="cpu",
        progress=False,
    )  # fmt: skip
    return result, bag.made


def child(case: str, number: float) -> None:
    r"""Distil, and print what it took."""
    bare, began = peak(), time.perf_counter()
    weights = FEATURES * CLASSES + CLASSES
    net = mlp(FEATURES, HIDDEN, CLASSES)
    made, steps = None, int(number)
    if case.startswith("virtual"):
        kinds: dict[str, Callable[[], Any]] = {
            "virtual net": lambda: virtual_bag(net, net.structure.dim, True, number),
            "virtual bag": lambda: virtual_bag(softmax(classes=CLASSES), weights, False, number),
        }
        result, made = kinds[case]()
    elif case == "mixture":
        result = mixture_of_a_chain(steps)
    else:
        result = bag_of_a_chain(steps, case)
    found = {"whole": peak(), "bare": bare, "seconds": time.perf_counter() - began}
    found |= {"draws": result.used, "steps": result.steps, "made": made}
    if made is not None:  # after the peak was taken
        found["kl"] = result.report(torch.randn(200, FEATURES), draws=200).kl
    print(json.dumps(found))


def measured(case: str, number: float, threads: int) -> dict[str, Any]:
    r"""One case in a process of its own."""
    command = [sys.executable, __file__, "--case", case, "--number", str(number)]
    ran = subprocess.run(
        [*command, "--threads", str(threads)], capture_output=True, text=True, check=False,
        env=os.environ | {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"},  # all compile alike
    )  # fmt: skip
    if ran.returncode:
        sys.exit(ran.stderr)
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def chain_figures(steps: int, longer: int, threads: int) -> None:
    for case, words in {
        "eager": "a bag of ten, eager steps",
        "compiled": "a bag of ten, compiled steps",
        "mixture": "a mixture of three, stepwise EM",
    }.items():
        short, long = (measured(case, count, threads) for count in (steps, steps * longer))
        report(
            f"{words}: a chain of {long['draws']:,} draws beside one of {short['draws']:,}",
            megabytes=long["whole"], usual=short["whole"], ratio=long["whole"] / short["whole"],
            above_import=long["whole"] - long["bare"], seconds=long["seconds"],
            must="at most 1.05 times",
        )  # fmt: skip


def bag_figures(size: float, threads: int) -> None:
    for case, words in {
        "virtual net": f"draws of a Bayesian net {FEATURES}-{HIDDEN}-{CLASSES}, into a small net",
        "virtual bag": f"draws of softmax regression {FEATURES}-{CLASSES}, into a bag of ten",
    }.items():
        found = measured(case, size, threads)
        report(
            f"a virtual bag of {found['made'] / 1e9:.1f} GB, {found['draws']:,} {words}",
            megabytes=found["whole"], above_import=found["whole"] - found["bare"],
            seconds=found["seconds"], kl=found["kl"], must="at most 500 MB",
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--gigabytes", type=float, default=5.0)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--longer", type=int, default=100)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--number", type=float, help=argparse.SUPPRESS)
    ask = parser.parse_args()
    torch.set_num_threads(ask.threads)
    if ask.case:
        child(ask.case, ask.number)
        return
    report("machine", **machine())
    chain_figures(ask.steps, ask.longer, ask.threads)
    bag_figures(ask.gigabytes * 1e9, ask.threads)


if __name__ == "__main__":
    main()
