r"""Dark knowledge on a toy problem: two classes in the plane, ten points of each, a 2-10-2 net.

The divergence KL(t ‖ f) is from a long run of NUTS, t, on a grid over the square that students are
taught on, as Korattikara et al. (2015) measure it.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from dark_knowledge_chains import (
    Net,
    installed,
    langevin,
    mean_and_error,
    nuts,
    plain,
    slices,
    weights_mix_slowly,
)
from running_chain import REACH, SIZES, data
from torch import Tensor

import limbeck as lb

__all__ = ["STUDENTS", "divergence", "grid", "run"]

STUDENTS: dict[str, tuple[int, ...]] = {
    "student 2-10-2": (2, 10, 2),
    "student 2-100-2": (2, 100, 2),
    "student 2-10-10-2": (2, 10, 10, 2),
}
BAG = "bag of 10"
FEW = (10, 100, 1000)
SETTINGS = {
    "scale": 1.0,  # the prior's standard deviation
    "chains": 200,
    "rate": 0.01,
    "rows": 5,  # of the twenty points, in a gradient
    "burn_in": 1500,
    "thin": 2,
    "sweeps": 100,  # of burn-in, where slice sampling runs
    "reference": 20_000,  # draws
    "plain_steps": 2000,
    "steps": 2500,
    "lr": 0.01,  # of students that are nets
    "side": 41,
}


def grid(side: int) -> Tensor:
    r"""Points (side², 2) of the square."""
    along = torch.linspace(-REACH, REACH, side)
    return torch.cartesian_prod(along, along)


def divergence(t: Tensor, f: Tensor) -> float:
    r"""The mean of KL(t ‖ f) of probabilities (n, K)."""
    return (t * (t.log() - f.log())).sum(1).mean().item()


def many(chain: Any, count: int) -> Tensor:
    r"""So many draws of a chain, (count, dim)."""
    found: list[Tensor] = []
    while sum(map(len, found)) < count:
        found.append(chain.step())
    return torch.cat(found)[:count]


def reference(net: Net, ask: dict[str, Any], seed: int) -> tuple[Tensor, str]:
    r"""Draws by NUTS where BlackJAX is installed, else by slice sampling; with the way's name."""
    chains = min(100, ask["reference"])
    if installed("blackjax"):
        return many(nuts(net, chains, 400, 1, seed), ask["reference"]), "NUTS"
    return many(slices(net, chains, ask["sweeps"], seed), ask["reference"]), "slice sampling"


def chain(net: Net, ask: dict[str, Any], seed: int) -> tuple[Any, str]:
    r"""A running chain: SGLD where `posteriors` is installed, else slice sampling."""
    if installed("posteriors"):
        how = {name: ask[name] for name in ("chains", "rate", "burn_in", "thin")}
        return langevin(net, batch=ask["rows"], seed=seed, **how), "SGLD"
    return slices(net, ask["chains"], ask["sweeps"], seed), "slice sampling"


def taught(net: Net, name: str, ask: dict[str, Any], seed: int, progress: bool) -> Any:
    r"""A student, distilled online from a chain that runs."""
    inputs = lb.inputs.Function(
        lambda n, generator: REACH * (2 * torch.rand(n, 2, generator=generator) - 1)
    )
    more: dict[str, Any] = {}
    if name != BAG:
        generator = torch.Generator().manual_seed(seed)
        more = {"student": lb.MLP(*STUDENTS[name], generator=generator), "lr": ask["lr"]}
    running, _ = chain(net, ask, seed)
    return lb.condense(
        running, net.predict, inputs, steps=ask["steps"], batch_size=ask["chains"], seed=seed,
        device="cpu", progress=progress, **more,
    )  # fmt: skip


def run(seeds: int, changes: dict[str, Any] | None = None, progress: bool = True) -> dict[str, Any]:
    r"""All of the toy problem; one data set, chains and students by several seeds."""
    ask = SETTINGS | (changes or {})
    net, x = Net(SIZES, *data(), ask["scale"]), grid(ask["side"])
    began = time.perf_counter()
    draws, way = reference(net, ask, 1000)
    t = net.average(draws, x)
    halves = [net.average(half, x) for half in (draws[::2], draws[1::2])]
    found: dict[str, dict[str, list[float]]] = {}
    surfaces, shown = {way: t}, {}
    parameters = {f"{count:,} draws": count * net.dim for count in FEW} | {"plain net": net.dim}
    for seed in range(seeds):
        running, source = chain(net, ask, 100 + seed)
        own = many(running, ask["reference"])
        f = {f"{count:,} draws": net.average(own[:count], x) for count in FEW}
        f[f"{len(own):,} draws"] = average = net.average(own, x)
        parameters[f"{len(own):,} draws"] = len(own) * net.dim
        f["plain net"] = net.average(plain(net, ask["plain_steps"], seed), x)
        for name in (*STUDENTS, BAG):
            with weights_mix_slowly():
                result = taught(net, name, ask, 200 + seed, progress)
            f[name] = result.predict(x).mean.double()
            parameters[name] = sum(p.numel() for p in result.student.parameters())
            shown.setdefault(name, result.seconds)
        for name, each in f.items():
            entry = found.setdefault(name, {"kl": [], "to_chain": []})
            entry["kl"].append(divergence(t, each))
            entry["to_chain"].append(divergence(average, each))
            print(f"toy, seed {seed}: {name:>18} KL {entry['kl'][-1]:.5f}", flush=True)
        surfaces = f | surfaces if not seed else surfaces
    return {
        "settings": ask, "seeds": seeds, "reference": way, "chain": source,
        "reference_halves": divergence(*halves), "seconds": time.perf_counter() - began,
        "rows": [
            {"name": name, "parameters": parameters[name], "seconds": shown.get(name),
             "kl": mean_and_error(each["kl"]), "to_chain": mean_and_error(each["to_chain"])}
            for name, each in found.items()
        ],
        "data": {"x": net.x.tolist(), "y": net.y.tolist()},
        "surfaces": {name: _packed(p[:, 1]) for name, p in surfaces.items()},
    }  # fmt: skip


def _packed(values: Tensor) -> str:
    return " ".join(f"{value:.4f}" for value in values.tolist())
