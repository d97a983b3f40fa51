r"""Do the error bars hold? Estimates of log Z of small RBMs against exact values.

Two hundred random RBMs with couplings from weak to strong, and for each a student of one of five
qualities, from independent bits to a NADE that is close to the model. Every method of estimating
log Z is run on each of them. How often does the 95% interval cover the exact value? How are errors
divided by standard errors distributed? Is any trusted estimate far from the exact value?

    python experiments/coverage.py [--models 200] [--workers 2] [--out experiments/results]
    python experiments/coverage.py --budget [--models 1000]
    python experiments/coverage.py --power

With --budget, problems of mixed kinds (RBMs, lattices, Potts models, spin glasses, densities over
real numbers) go through `std_error=` and `seconds=4` instead, without exact sums; the clock is CPU
time, so that other work on the machine does not matter. With --power, the honest targets of
`tools/attack_targets.py` are estimated by the defaults without exact sums: how many are trusted?
Results go to the folder `--out` as they come, so that an interrupted run continues.

The models are numbers 1,000 and up: thresholds were chosen while looking at others, below 1,000.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.distributions import Bernoulli

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tools")]

from attack_targets import cases
from parallel import add_options, run_all

import limbeck as lb
from limbeck.models.nade import NADE
from limbeck.models.rbm import RBM
from limbeck.normalization.log_partition import exact_log_z, log_partition

SAMPLES, FIRST = 2000, 1000
COUPLINGS = (0.3, 2.5)  # the range of the weights' standard deviations
STUDENTS = (
    "independent bits",
    "NADE, 30 steps",
    "NADE, 300 steps",
    "NADE, noisy",
    "NADE, the RBM's",
)

WAYS = {
    "bridge, 200 sweeps": {"method": "bridge", "burn_in": 200},
    "bridge, automatic burn-in": {"method": "bridge", "burn_in": "auto"},
    "bridge, Metropolis": {"method": "bridge", "kernel": "metropolis"},
    "bridge, mixed": {"method": "bridge", "kernel": "mixed"},
    "bridge, 100 chains": {"method": "bridge", "chains": 100, "burn_in": 200},
    "importance": {"method": "importance"},
    "AIS, 200 temperatures": {"method": "ais", "schedule": 200},
}


def model(number: int) -> RBM:
    r"""A random RBM: 12 to 16 visible units, 8 to 10 hidden ones."""
    generator = torch.Generator().manual_seed(number)
    visible, hidden = 12 + number % 5, 8 + number % 3
    low, high = COUPLINGS
    scale = low + (high - low) * float(torch.rand((), generator=generator))
    W = scale * torch.randn(visible, hidden, generator=generator)
    a, b = (0.5 * torch.randn(size, generator=generator) for size in (visible, hidden))
    return RBM(W, a - W.sum(1) / 2, b - W.sum(0) / 2)  # units are on about half of the time


def student(rbm: RBM, number: int) -> object:
    r"""A student of the model, of the quality whose turn it is; samples for it are its own."""
    generator = torch.Generator().manual_seed(100_000 + number)
    x = rbm.advance(rbm.start(1000, generator), 200, generator)
    kind = STUDENTS[number % len(STUDENTS)]
    if kind == "independent bits":
        return Bernoulli(x.mean(0).clamp(0.02, 0.98))
    nade = NADE(rbm.visible, rbm.hidden, generator=generator)
    if kind == "NADE, the RBM's":
        nade = NADE.from_rbm(rbm)
    optimizer = torch.optim.Adam(nade.parameters(), lr=0.02)
    for _ in range(30 if kind == "NADE, 30 steps" else 300):
        x = rbm.advance(x, 1, generator)
        rows = torch.randint(len(x), (100,), generator=generator)
        optimizer.zero_grad()
        (-nade.log_prob(x[rows])).mean().backward()
        optimizer.step()
    if kind == "NADE, noisy":
        with torch.no_grad():
            for p in nade.parameters():
                p += 0.3 * torch.randn(p.shape, generator=generator)
    return nade


def score(z: Any, truth: float, began: float) -> dict[str, Any]:
    r"""What is recorded of an estimate."""
    low, high = z.interval(0.95)
    return {
        "z": round((z.value - truth) / z.std_error, 4), "covered": int(low <= truth <= high),
        "trusted": int(z.verdict.trustworthy), "std_error": float(f"{z.std_error:.3g}"),
        "reasons": list(z.verdict.reasons), "seconds": round(time.process_time() - began, 2),
    }  # fmt: skip


def run_model(
    number: int, ways: dict[str, dict[str, Any]] = WAYS, samples: int = SAMPLES
) -> dict[str, dict[str, Any]]:
    r"""Scores of every way for one RBM."""
    rbm = model(number)
    truth, q = exact_log_z(rbm, progress=False), student(rbm, number)
    records = {}
    for name, settings in ways.items():
        began = time.process_time()
        z = log_partition(rbm, q, samples=samples, seed=number, progress=False, **settings)
        records[name] = score(z, truth, began)
    return records


def problem(number: int) -> tuple[str, object, float]:
    r"""A target of one of six kinds, with its log Z."""
    generator = torch.Generator().manual_seed(number)

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=generator))

    kind = ("RBM", "lattice", "Potts", "glass", "normal", "mixture")[number % 6]
    size = number // 6 % 3
    if kind == "RBM":
        target = model(number)
    elif kind == "lattice":
        side, field = 4 + size, uniform(0.0, 0.2)
        target = lb.Energy(
            lambda x: -(x * (x.roll(1, 1) + x.roll(1, 2))).sum((1, 2)) - field * x.sum((1, 2)),
            lb.Spins(side, side), temperature=uniform(1.5, 4.0),
        )  # fmt: skip
    elif kind == "Potts":
        target = lb.Energy(
            lambda x: (x != x.roll(1, 1)).to(x.dtype).sum(1), lb.States(3 + size, 8),
            temperature=uniform(0.3, 2.0),
        )  # fmt: skip
    elif kind == "glass":
        couplings = torch.randn(12 + size, 12 + size, generator=generator) / 12**0.5
        target = lb.Energy(
            lambda x: ((x @ couplings.to(x)) * x).sum(1), lb.Spins(12 + size),
            temperature=uniform(0.7, 2.0),
        )  # fmt: skip
    else:
        dim, apart = 2 + 4 * size, uniform(0.0, 3.0) if kind == "mixture" else 0.0
        A = torch.randn(dim, dim, generator=generator)
        precision = A @ A.T / dim + 0.3 * torch.eye(dim)
        shift = torch.zeros(dim)
        shift[0] = apart

        def energy(x: torch.Tensor) -> torch.Tensor:
            halves = [((d @ precision) * d).sum(1) / -2 for d in (x - shift, x + shift)]
            return -torch.logaddexp(*halves)

        target = lb.Energy(energy, lb.Real(dim))
        half = dim / 2 * math.log(2 * math.pi) - float(torch.logdet(precision.double())) / 2
        return kind, target, math.log(2) + half
    return kind, target, exact_log_z(target, progress=False)


def run_budgets(number: int) -> dict[str, dict[str, Any]]:
    r"""Scores of estimates with a requested error, and with a time."""
    kind, target, truth = problem(number)
    error = 10 ** -(1 + number // 18 % 3 / 2)  # 0.1, 0.03 or 0.01
    records = {}
    for budget in ({"std_error": error, "seconds": 30}, {"seconds": 4}):
        began = time.process_time()
        z = log_partition(target, exact=False, seed=number, progress=False, **budget)
        name = "std_error" if "std_error" in budget else "seconds=4"
        reached = int(z.std_error <= error)
        records[name] = score(z, truth, began) | {"kind": kind, "reached": reached}
    return records


def run_power(name: str) -> dict[str, dict[str, Any]]:
    r"""The score of an honest target by the defaults, without exact sums."""
    honest = next(case.build() for case in cases(["honest targets"]) if case.name == name)
    began = time.process_time()
    z = log_partition(honest.target, exact=False, progress=False)
    return {"defaults": score(z, honest.log_z, began)}


def gathered(results: dict[str, dict[str, dict[str, Any]]]) -> dict[str, dict[str, list[Any]]]:
    r"""By way: lists of what was recorded."""
    found: dict[str, dict[str, list[Any]]] = {}
    for records in results.values():
        for name, record in records.items():
            rows = found.setdefault(name, {})
            for key, value in record.items():
                rows.setdefault(key, []).append(value)
    return found


def summary(rows: dict) -> dict[str, float]:
    r"""The figures of one way, over all estimates and over those that are called trustworthy."""
    trusted = [i for i, yes in enumerate(rows["trusted"]) if yes]
    figures: dict[str, float] = {"trustworthy": len(trusted) / len(rows["z"])}
    for what, chosen in (("all", range(len(rows["z"]))), ("trusted", trusted)):
        z = [rows["z"][i] for i in chosen]
        figures |= {
            f"coverage_{what}": statistics.fmean(rows["covered"][i] for i in chosen),
            f"z_mean_{what}": statistics.fmean(z),
            f"z_sd_{what}": statistics.stdev(z),
            f"z_largest_{what}": max(map(abs, z)),
        }
    return {name: round(value, 4) for name, value in figures.items()} | {
        "seconds": round(sum(rows["seconds"]), 1)
    }


def show(summaries: dict[str, dict[str, float]], models: int) -> None:
    table = Table(title=f"95% intervals over {models} models (all / trusted)", title_justify="left")
    for column in ("way", "trusted", "coverage", "sd of z", "mean of z", "largest |z|", "seconds"):
        table.add_column(column, justify="left" if column == "way" else "right")
    for name, s in summaries.items():
        pairs = [
            f"{s[f'{key}_all']:{form}} / {s[f'{key}_trusted']:{form}}"
            for key, form in (
                ("coverage", ".1%"),
                ("z_sd", ".2f"),
                ("z_mean", "+.2f"),
                ("z_largest", ".1f"),
            )
        ]
        table.add_row(name, f"{s['trustworthy']:.1%}", *pairs, f"{s['seconds']:.0f}")
    Console(width=120).print(table)
    held = [
        0.9 <= s["coverage_trusted"] <= 0.99
        and 0.85 <= s["z_sd_trusted"] <= 1.15
        and s["trustworthy"] >= 0.8
        and s["z_largest_trusted"] <= 5
        for s in summaries.values()
    ]
    print(
        f"Of {len(held)} methods, {sum(held)} pass: 95% intervals that cover 90 to 99%, "
        "scores with a standard deviation of 0.85 to 1.15, at least 80% trusted, and no trusted "
        "one off by more than 5 standard errors."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--first", type=int, default=FIRST, help="the number of the first model")
    parser.add_argument("--out", type=Path, default=ROOT / "experiments" / "results")
    parser.add_argument("--budget", action="store_true", help="by a requested error or time")
    parser.add_argument("--power", action="store_true", help="honest targets by the defaults")
    add_options(parser)
    options = parser.parse_args()
    began = time.perf_counter()
    numbers = range(options.first, options.first + options.models)
    function, name = run_model, "coverage"
    jobs: dict[str, tuple[Any, ...]] = {str(number): (number,) for number in numbers}
    if options.budget:
        function, name = run_budgets, "coverage-budget"
    elif options.power:
        function, name = run_power, "power"
        jobs = {case.name: (case.name,) for case in cases(["honest targets"])}
    results = run_all(
        function, jobs, options.out / f"{name}.jsonl", workers=options.workers,
        stop_after=options.stop_after, fresh=options.fresh, cpu_clock=options.budget,
    )  # fmt: skip
    found = gathered(results)
    summaries = {way: summary(rows) for way, rows in found.items()}
    show(summaries, len(results))
    for key, records in results.items():
        for way, record in records.items():
            if record["trusted"] and abs(record["z"]) > 4:
                print(f"trusted and far off: {key}, {way}: z = {record['z']}")
    about = {
        "models": len(results),
        "first": options.first,
        "samples": SAMPLES if name == "coverage" else None,
        "couplings": COUPLINGS,
        "students": STUDENTS,
        "ways": WAYS if name == "coverage" else list(found),
        "seeds": "model and estimates k have the seed k, its student 100000 + k",
        "seconds": round(time.perf_counter() - began, 1),
        "hardware": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "threads": 1,
        },
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "summary": summaries,
        "scores": {
            way: {key: rows[key] for key in ("z", "covered", "trusted")}
            for way, rows in found.items()
        },
    }
    if name == "power":
        about["targets"] = {
            key: {k: records["defaults"][k] for k in ("z", "std_error", "trusted", "reasons")}
            for key, records in results.items()
        }
    text = json.dumps(about) + "\n"
    (options.out / f"{name}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
