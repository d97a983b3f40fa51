r"""log Z at equal CPU seconds: limbeck beside plain annealing and parallel tempering.

The rivals are written out below as one would write them for these models: plain annealed importance
sampling with evenly spaced temperatures, and parallel tempering whose draws are evaluated by BAR
between neighbours, by MBAR and by thermodynamic integration. All sweep many chains at once. limbeck
gets `lb.log_partition(target, seconds=…, exact=False)`. True values come from exact sums.

Every estimate is measured in seconds of CPU time, with limbeck's clock set to CPU time, so that
other work on the machine does not matter.
A row's error is the root of the mean square error over seeds.

    python benchmarks/free_energy.py [--seeds 30] [--seconds 1 10] [--out FILE] [--rbm FILE]
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
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


def kaufman(size: int, temperature: float) -> float:
    r"""log Z of a periodic lattice (Kaufman, 1949)."""
    K, n = 1 / temperature, size
    gammas = [2 * K + math.log(math.tanh(K))]
    for k in range(1, 2 * n):
        gammas.append(math.acosh(math.cosh(2 * K) / math.tanh(2 * K) - math.cos(k * math.pi / n)))
    terms = list[float]()
    for first in (1, 0):
        halves = [n * gamma / 2 for gamma in gammas[first::2]]
        sign = math.prod(1 if half > 0 else -1 for half in halves)
        sizes = [abs(half) for half in halves]
        terms.append(sum(half + math.log1p(math.exp(-2 * half)) for half in sizes))
        sinh = sum(half + math.log1p(-math.exp(-2 * half)) for half in sizes if half)
        if sign > 0 or first:
            terms.append(sinh)
        else:
            terms[-1] += math.log1p(-math.exp(sinh - terms[-1]))
    top = max(terms)
    total = top + math.log(sum(math.exp(term - top) for term in terms))
    return n * n / 2 * math.log(2 * math.sinh(2 * K)) - math.log(2) + total


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
    uniform, b = size * math.log(2), betas.double()
    bars = sum(
        fit_bridge(
            (b[k + 1] - b[k]) * draws[:, :, k + 1], (b[k + 1] - b[k]) * draws[:, :, k].flatten()
        ).log_z
        for k in range(levels - 1)
    )
    thin = draws[:, :: max(1, draws.shape[1] * ladders * levels**2 // 2**23)]
    counts = torch.full((levels,), float(thin.shape[0] * thin.shape[1]), dtype=torch.float64)
    log_z, _ = mbar(b[:, None] * thin.flatten(), counts)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--seconds", type=float, nargs="+", default=[1.0, 10.0])
    parser.add_argument("--only", nargs="*", default=None, help="names of models")
    parser.add_argument("--rbm", type=Path, default=None, help="the file of CD25(500)")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    time.monotonic = time.process_time  # type: ignore[assignment]  # limbeck's clock
    strong = lb.RBM.random(100, 15, 0.7, torch.Generator().manual_seed(1))
    models = {
        "Ising 8×8, T_c": (ising(8, CRITICAL), None),
        "Ising 8×8, T = 1.5": (ising(8, 1.5), None),
        "Ising 16×16, T_c": (ising(16, CRITICAL), kaufman(16, CRITICAL)),
        "Ising 16×16, T = 1.5": (ising(16, 1.5), kaufman(16, 1.5)),
        "RBM 100×15": (machine_rbm(strong), None),
    }
    if options.rbm is not None:
        models["CD25(500)"] = (machine_rbm(lb.RBM.load(options.rbm)), 451.27)
    rows = []
    for name, (model, known) in models.items():
        if options.only and not any(part in name for part in options.only):
            continue
        truth = known or lb.exact_log_z(model[0], progress=False)
        for seconds in options.seconds:
            row: dict[str, Any] = {"model": name, "seconds": seconds, "errors": {}, "cpu": {}}
            row["states"] = []
            for seed in range(options.seeds):
                for way in (plain_ais, tempering, limbeck):
                    began = time.process_time()
                    result = way(model, seconds, seed)
                    spent = time.process_time() - began
                    if isinstance(result, tuple):
                        row["states"].append(result[1]["state"])
                        result = {"limbeck": result[0]}
                    for which, value in result.items():
                        row["errors"].setdefault(which, []).append(value - truth)
                        row["cpu"].setdefault(which, []).append(round(spent, 2))
            rms = {k: float(np.sqrt(np.mean(np.square(e)))) for k, e in row["errors"].items()}
            row["rms"] = rms
            rows.append(row)
            spent = {k: round(float(np.mean(v)), 2) for k, v in row["cpu"].items()}
            text = ", ".join(f"{k} {v:.4f} ({spent[k]} s)" for k, v in rms.items())
            print(f"{name}, {seconds:g} s: {text}", flush=True)
            total = pooled(rows, np.random.default_rng(0))
            if options.out is not None:
                about = {
                    "seeds": options.seeds,
                    "machine": machine(),
                    "pooled": total,
                    "rows": rows,
                }
                options.out.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    print(f"limbeck's error over the best rival's: {pooled(rows, np.random.default_rng(0))}")


if __name__ == "__main__":
    main()
