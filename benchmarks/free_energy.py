r"""log Z at equal CPU seconds: limbeck beside plain annealing and parallel tempering.

The rivals are written out below as one would write them for these models: plain annealed importance
sampling with evenly spaced temperatures, and parallel tempering whose draws are evaluated by BAR
between neighbours, by MBAR and by thermodynamic integration. All sweep many chains at once. limbeck
gets `lb.log_partition(target, seconds=…, exact=False)`. True values come from exact sums.

Every estimate is measured in seconds of CPU time, with limbeck's clock set to CPU time, so that
other work on the machine does not matter.
A row's error is the root of the mean square error over seeds.

    python benchmarks/free_energy.py [--seeds 30] [--seconds 1 10] [--workers 2] [--out FOLDER]
    python benchmarks/free_energy.py --rbm FILE --only CD25 --seeds 5 --seconds 30 60

Results go to the folder `--out` as they come, so that an interrupted run continues.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "benchmarks")]

from attack_targets import kaufman
from parallel import add_options, run_all
from timing import machine

import limbeck as lb
from limbeck.normalization.bridge import fit_bridge
from limbeck.normalization.tempering import mbar, thermodynamic_integral

CRITICAL = 2.269185314213022
Sweep = Callable[[torch.Tensor, torch.Tensor, torch.Generator], torch.Tensor]


def ising(size: int, temperature: float) -> tuple[lb.Energy, Sweep, Callable, int]:
    r"""A periodic lattice: the target, a chessboard sweep at β (n,), its log p̃, and its sites."""
    board = (torch.arange(size)[:, None] + torch.arange(size)) % 2 == 0

    def energy(x: torch.Tensor) -> torch.Tensor:
        return -(x * (x.roll(1, 1) + x.roll(1, 2))).sum((1, 2))

    def sweep(x: torch.Tensor, beta: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        for colour in (board, ~board):
            near = x.roll(1, 1) + x.roll(-1, 1) + x.roll(1, 2) + x.roll(-1, 2)
            up = torch.sigmoid(2 * beta[:, None, None] / temperature * near)
            new = torch.where(torch.rand(x.shape, generator=generator) < up, 1.0, -1.0)
            x = torch.where(colour, new, x)
        return x

    target = lb.Energy(energy, lb.Spins(size, size), temperature=temperature)
    return target, sweep, lambda x: -energy(x) / temperature, size * size


def machine_rbm(rbm: lb.RBM) -> tuple[lb.RBM, Sweep, Callable, int]:
    r"""An RBM, with visible and hidden units as its state, and a block Gibbs sweep at β."""
    W, a, b = (p.detach() for p in (rbm.W, rbm.a, rbm.b))
    size = rbm.visible

    def sweep(x: torch.Tensor, beta: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        t, v = beta[:, None], x[:, :size]
        h = (torch.rand(len(x), len(b), generator=generator) < torch.sigmoid(t * (v @ W + b))) * 1.0
        up = torch.sigmoid(t * (h @ W.T + a))
        return torch.cat([(torch.rand(up.shape, generator=generator) < up) * 1.0, h], 1)

    def log_p(x: torch.Tensor) -> torch.Tensor:
        v, h = x[:, :size], x[:, size:]
        return v @ a + h @ b + ((v @ W) * h).sum(1)

    return rbm, sweep, log_p, size + len(b)


def start(model: tuple, n: int, generator: torch.Generator) -> torch.Tensor:
    target, _, _, size = model
    if isinstance(target, lb.RBM):
        return torch.randint(2, (n, size), generator=generator).float()
    return target.support.start(n, generator)


def plain_ais(model: tuple, seconds: float, seed: int) -> dict[str, float]:
    r"""Annealing from uniform states, 500 runs, as many even temperatures as the time allows."""
    _, sweep, log_p, size = model
    generator = torch.Generator().manual_seed(seed)
    began = time.process_time()
    for _ in range(3):
        x = sweep(start(model, 500, generator), torch.full((500,), 0.5), generator)
        log_p(x)
    step = (time.process_time() - began) / 3
    count = max(2, int((seconds - 3 * step) / step))
    x, total = start(model, 500, generator), torch.zeros(500, dtype=torch.float64)
    for k in range(count):
        total += log_p(x).double() / count
        x = sweep(x, torch.full((500,), (k + 1) / count), generator)
    return {"plain AIS": size * math.log(2) + float(total.logsumexp(0)) - math.log(500)}


def tempering(model: tuple, seconds: float, seed: int) -> dict[str, float]:
    r"""20 ladders of even temperatures; a fifth of the time is burn-in."""
    _, sweep, log_p, size = model
    generator, ladders = torch.Generator().manual_seed(seed), 20
    levels = max(10, round(1.5 * math.sqrt(size)))
    betas = torch.linspace(0, 1, levels)
    x = start(model, ladders * levels, generator)
    rows, series = torch.arange(len(x)).reshape(ladders, levels), list[torch.Tensor]()
    began, turn = time.process_time(), 0
    while (spent := time.process_time() - began) < 0.9 * seconds:
        x = sweep(x, betas.repeat(ladders), generator)
        log = log_p(x).reshape(ladders, levels)
        low = torch.arange(turn % 2, levels - 1, 2)
        gain = (betas[low + 1] - betas[low]) * (log[:, low] - log[:, low + 1])
        accept = torch.rand(gain.shape, generator=generator) < gain.exp()
        order = rows.clone()
        order[:, low] = torch.where(accept, rows[:, low + 1], rows[:, low])
        order[:, low + 1] = torch.where(accept, rows[:, low], rows[:, low + 1])
        x, log = x[order.flatten()], log.flatten()[order]
        turn += 1
        if spent > 0.2 * seconds:
            series.append(log.double())
    draws = torch.stack(series, 1)  # (ladders, draws, levels)
    # as many as take a small share of the time; those left out are like their neighbours
    thin = draws[:, :: max(1, math.ceil(draws.shape[1] * ladders * levels**2 / (2**19 * seconds)))]
    uniform, b = size * math.log(2), betas.double()
    bars = sum(
        fit_bridge(
            (b[k + 1] - b[k]) * thin[:, :, k + 1], (b[k + 1] - b[k]) * thin[:, :, k].flatten()
        ).log_z
        for k in range(levels - 1)
    )
    log_z, *_ = mbar(b[:, None] * thin.flatten())
    return {
        "PT+BAR": uniform + bars,
        "PT+MBAR": uniform + float(log_z[-1]),
        "PT+TI": uniform + thermodynamic_integral(draws, b.tolist()),
    }


def limbeck(model: tuple, seconds: float, seed: int) -> tuple[float, dict[str, Any]]:
    z = lb.log_partition(model[0], seconds=seconds, exact=False, seed=seed, progress=False)
    return z.value, {"std_error": z.std_error, "state": z.verdict.state, "note": z.note}


def pooled(rows: list[dict[str, Any]], generator: np.random.Generator) -> dict[str, float]:
    r"""The geometric mean of limbeck's error over the best rival's, with a bootstrap over seeds."""

    def ratio(resample: bool) -> float:
        logs = []
        for row in rows:
            count = len(row["errors"]["limbeck"])
            chosen = generator.integers(count, size=count) if resample else np.arange(count)
            rms = {k: np.sqrt(np.mean(np.square(e)[chosen])) for k, e in row["errors"].items()}
            best = min(value for name, value in rms.items() if name != "limbeck")
            logs.append(math.log(rms["limbeck"] / best))
        return math.exp(sum(logs) / len(logs))

    low, high = np.quantile([ratio(True) for _ in range(500)], [0.025, 0.975])
    return {"ratio": ratio(False), "low": float(low), "high": float(high)}


MODELS: dict[str, Callable[[], tuple]] = {
    "Ising 8×8, T_c": lambda: (ising(8, CRITICAL), kaufman(8, CRITICAL)),
    "Ising 8×8, T = 1.5": lambda: (ising(8, 1.5), kaufman(8, 1.5)),
    "Ising 16×16, T_c": lambda: (ising(16, CRITICAL), kaufman(16, CRITICAL)),
    "Ising 16×16, T = 1.5": lambda: (ising(16, 1.5), kaufman(16, 1.5)),
    "RBM 100×15": lambda: strong_rbm(),
}


def strong_rbm() -> tuple[tuple, float]:
    rbm = lb.RBM.random(100, 15, 0.7, torch.Generator().manual_seed(1))
    return machine_rbm(rbm), lb.exact_log_z(rbm, progress=False)


@cache
def model_of(name: str, rbm: Path | None) -> tuple[tuple, float]:
    r"""A model by its name, and its log Z."""
    return MODELS[name]() if rbm is None else (machine_rbm(lb.RBM.load(rbm)), 451.27)


def run_seed(name: str, rbm: Path | None, seconds: float, seed: int) -> dict[str, Any]:
    r"""Errors and CPU seconds of every way, and limbeck's verdict."""
    model, truth = model_of(name, rbm)
    record: dict[str, Any] = {"errors": {}, "cpu": {}}
    for way in (plain_ais, tempering, limbeck):
        began = time.process_time()
        result = way(model, seconds, seed)
        spent = round(time.process_time() - began, 2)
        if isinstance(result, tuple):
            record["state"], result = result[1]["state"], {"limbeck": result[0]}
        for which, value in result.items():
            record["errors"][which], record["cpu"][which] = value - truth, spent
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--seconds", type=float, nargs="+", default=[1.0, 10.0])
    parser.add_argument("--only", nargs="*", default=None, help="names of models")
    parser.add_argument("--rbm", type=Path, default=None, help="the file of CD25(500)")
    parser.add_argument("--out", type=Path, default=ROOT / "experiments" / "results")
    add_options(parser)
    options = parser.parse_args()
    names = [*MODELS, *(["CD25(500)"] if options.rbm else [])]
    if options.only:
        names = [name for name in names if any(part in name for part in options.only)]
    groups = [(name, seconds) for name in names for seconds in options.seconds]
    jobs = {
        f"{name}, {seconds:g} s, seed {seed}": (
            name, options.rbm if name.startswith("CD25") else None, seconds, seed
        )
        for seed in range(options.seeds)
        for name, seconds in groups
    }  # fmt: skip
    results = run_all(
        run_seed, jobs, options.out / "free-energy.jsonl", workers=options.workers,
        stop_after=options.stop_after, fresh=options.fresh, cpu_clock=True,
    )  # fmt: skip
    rows = list[dict[str, Any]]()
    for name, seconds in groups:
        own = [r for key, r in results.items() if key.startswith(f"{name}, {seconds:g} s, seed ")]
        if not own:
            continue
        ways = own[0]["errors"]
        row: dict[str, Any] = {"model": name, "seconds": seconds, "seeds": len(own)}
        row |= {what: {w: [r[what][w] for r in own] for w in ways} for what in ("errors", "cpu")}
        row["states"] = [r["state"] for r in own]
        row["rms"] = {k: float(np.sqrt(np.mean(np.square(e)))) for k, e in row["errors"].items()}
        row["pooled"] = pooled([row], np.random.default_rng(0))
        rows.append(row)
        spent = {k: round(float(np.mean(v)), 2) for k, v in row["cpu"].items()}
        text = ", ".join(f"{k} {v:.4f} ({spent[k]} s)" for k, v in row["rms"].items())
        ratio = "{ratio:.2f} ({low:.2f} to {high:.2f})".format(**row["pooled"])
        print(f"{name}, {seconds:g} s, {len(own)} seeds: {text}; ratio {ratio}")
    total = pooled(rows, np.random.default_rng(0))
    print(
        "limbeck's error over the best rival's: {ratio:.3f} ({low:.3f} to {high:.3f})".format(
            **total
        )
    )
    about = {"machine": machine(), "pooled": total, "rows": rows}
    text = json.dumps(about, indent=1) + "\n"
    (options.out / "free-energy.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
