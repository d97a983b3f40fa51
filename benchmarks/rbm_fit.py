r"""Training of RBMs beside scikit-learn's, at equal CPU time: the test log likelihood.

Both run in turn in one process and one thread. scikit-learn trains as many iterations, with its
default settings, as take the time; limbeck, with its defaults, as many epochs. Where the smaller
side has too many units for an exact sum, log Z is from annealed importance sampling with 2,000
temperatures, the same for both.

    python -m benchmarks.rbm_fit [--seeds 5] [--out experiments/results/rbm-fit.json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from sklearn.neural_network import BernoulliRBM
from torch import Tensor

import limbeck as lb


def digits(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    bits = torch.tensor(load_digits().data > 7).float()
    bits = bits[torch.randperm(len(bits), generator=generator)]
    return bits[:1437], bits[1437:]


def bars_and_stripes(generator: torch.Generator, side: int = 5) -> tuple[Tensor, Tensor]:
    rows = torch.randint(2, (2000, side, 1), generator=generator).float().expand(-1, side, side)
    columns = torch.rand(2000, 1, 1, generator=generator) < 0.5
    images = torch.where(columns, rows, rows.transpose(1, 2)).reshape(2000, -1)
    return images[:1500], images[1500:]


def prototypes(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    r"""Eight random patterns of 100 bits, of which 5% are flipped."""
    patterns = (torch.rand(8, 100, generator=generator) < 0.3).float()
    images = patterns[torch.randint(8, (2500,), generator=generator)]
    images = (images - (torch.rand(images.shape, generator=generator) < 0.05).float()).abs()
    return images[:2000], images[2000:]


def drawn_digits(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    r"""A pixel is one with the probability of its grey value."""
    bits = torch.bernoulli(torch.tensor(load_digits().data / 16).float(), generator=generator)
    bits = bits[torch.randperm(len(bits), generator=generator)]
    return bits[:1437], bits[1437:]


def samples(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    r"""Of an RBM of 40 visible and 12 hidden units with random weights."""
    rbm = lb.RBM.random(40, 12, 0.8, generator)
    x = rbm.advance(rbm.start(3000, generator), 500, generator)
    return x[:2000], x[2000:]


def ising_chain(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    r"""30 bits, each of which differs from the one before with probability 0.12."""
    flips = (torch.rand(3000, 30, generator=generator) < 0.12).long()
    flips[:, 0] = torch.randint(2, (3000,), generator=generator)
    x = (flips.cumsum(1) % 2).float()
    return x[:2000], x[2000:]


DATA: dict[str, Callable[[torch.Generator], tuple[Tensor, Tensor]]] = {
    "digits": digits, "bars and stripes 5×5": bars_and_stripes, "prototypes": prototypes,
    "digits, drawn from grey": drawn_digits, "samples of an RBM": samples,
    "Ising chain": ising_chain,
}  # fmt: skip
ROWS = [
    ("digits", 16, 0.1), ("digits", 16, 0.5), ("digits", 64, 0.5),
    ("bars and stripes 5×5", 16, 0.5), ("prototypes", 12, 0.5),
    ("digits, drawn from grey", 16, 0.5), ("samples of an RBM", 12, 0.5), ("Ising chain", 16, 0.5),
]  # fmt: skip


def timed(train: Callable[[int], lb.RBM], seconds: float) -> tuple[lb.RBM, float, int]:
    r"""The RBM after as many rounds as take the CPU time, what they took, and their number."""
    train(1)
    rounds, took = 2, 0.0
    for _ in range(2):  # the second time with a better forecast
        began = time.process_time()
        rbm = train(rounds)
        took = time.process_time() - began
        rounds = max(1, round(rounds * seconds / took))
    began = time.process_time()
    rbm = train(rounds)
    return rbm, time.process_time() - began, rounds


def likelihood(rbm: lb.RBM, test: Tensor) -> float:
    rbm = lb.RBM(rbm.W.detach(), rbm.a.detach(), rbm.b.detach(), dtype=torch.float64)
    if min(rbm.visible, rbm.hidden) <= 20:
        log_z = lb.exact_log_z(rbm, progress=False)
    else:
        options = {"samples": 200, "schedule": 2000, "progress": False}
        log_z = lb.log_partition(rbm, method="ais", **options).value
    with torch.no_grad():
        return rbm.log_unnormalized(test.double()).mean().item() - log_z


def compare(name: str, hidden: int, seconds: float, seed: int) -> dict[str, list[float]]:
    train, test = DATA[name](torch.Generator().manual_seed(seed))
    options = {"device": "cpu", "progress": False, "seed": seed}

    def ours(rounds: int) -> lb.RBM:
        return lb.RBM.fit(train, hidden, epochs=rounds, **options)

    def theirs(rounds: int) -> lb.RBM:
        m = BernoulliRBM(hidden, n_iter=rounds, random_state=seed).fit(train.numpy())
        return lb.RBM(m.components_.T.copy(), m.intercept_visible_, m.intercept_hidden_)

    results = {}
    for label, fit in (("limbeck", ours), ("scikit-learn", theirs)):
        rbm, took, rounds = timed(fit, seconds)
        results[label] = [likelihood(rbm, test), took, rounds]
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("experiments/results/rbm-fit.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", lb.LimbeckWarning)
    table = []
    for name, hidden, seconds in ROWS:
        runs = [compare(name, hidden, seconds, seed) for seed in range(options.seeds)]
        row = {"data": name, "hidden": hidden, "seconds": seconds}
        for label in runs[0]:
            values, took, rounds = zip(*(run[label] for run in runs), strict=True)
            row[label] = {
                "test_log_likelihood": [round(value, 3) for value in values],
                "mean": round(statistics.mean(values), 3),
                "cpu_seconds": [round(value, 3) for value in took], "epochs": rounds,
            }  # fmt: skip
            print(name, hidden, f"{seconds} s", label, row[label], flush=True)
        table.append(row)
        options.out.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
