r"""Dark knowledge on handwritten digits: the average over a chain of nets, and one net of its size.

Scikit-learn's digits (8 × 8 pixels) by default, MNIST where its files are given.
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
    plain,
    weights_mix_slowly,
)
from dark_knowledge_toy import divergence, many
from torch import Tensor

import limbeck as lb
from reproduction import data

__all__ = ["run", "scored", "split"]

SETTINGS: dict[str, Any] = {
    "hidden": (32,),
    "scale": 1.0,  # the prior's standard deviation
    "temperature": 1.0,
    "chains": 100,
    "rate": 3e-4,
    "rows": 100,  # of the data, in a gradient
    "burn_in": 4000,
    "thin": 2,
    "draws": 2000,
    "plain_steps": 1500,
    "steps": 4000,
    "batch_size": 100,
    "lr": 1e-2,
    "noise": 0.1,  # on half of the inputs that students are taught at
}
r"""Those of students were chosen on a part of the train images of a split that is not reported."""

FEW = (1, 10)
PLAIN, STUDENT, CHAIN = "plain net", "online student", "chain average"


def split(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""Images and labels of scikit-learn's digits to learn from, and a quarter to measure on."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    parts = train_test_split((x / 16).astype("float32"), y, test_size=0.25, random_state=seed)
    x, test, y, test_y = (torch.tensor(part) for part in parts)
    return x, y, test, test_y


def scored(p: Tensor, y: Tensor) -> dict[str, float]:
    r"""The error in % and the mean log probability of labels y under probabilities (n, K)."""
    wrong = (p.argmax(1) != y).double().mean().item()
    return {"error": 100 * wrong, "log_prob": p[torch.arange(len(y)), y].log().mean().item()}


def near(x: Tensor, noise: float) -> lb.inputs.Inputs:
    r"""Half of them train images with noise, within the range of pixels, half mixed with others."""

    def changed(x: Tensor, generator: torch.Generator) -> Tensor:
        return (x + noise * torch.randn(x.shape, generator=generator)).clamp(0, 1)

    return lb.inputs.Mix([lb.inputs.Augment(x, changed), lb.inputs.Munge(x)])


def taught(net: Net, running: Any, ask: dict[str, Any], seed: int, progress: bool) -> Any:
    r"""The student, of the net's own size, distilled online from the chain."""
    generator = torch.Generator().manual_seed(seed)
    return lb.condense(
        running, net.predict, near(net.x, ask["noise"]),
        student=lb.MLP(*net.sizes, generator=generator), steps=ask["steps"],
        batch_size=ask["batch_size"], lr=ask["lr"], seed=seed, device="cpu", progress=progress,
    )  # fmt: skip


def run(
    seeds: int,
    folder: str | None = None,
    changes: dict[str, Any] | None = None,
    progress: bool = True,
    make_chain: Any = None,
) -> dict[str, Any]:
    r"""All of the digits, by several seeds: of the split, the chains and the nets.

    Arguments:
        seeds: How many.
        folder: With MNIST's files; None takes scikit-learn's digits.
        changes: Settings other than `SETTINGS`.
        progress: Whether to show bars.
        make_chain: Gives a running chain of a net and a seed, in place of SGLD.
    """
    ask, began = SETTINGS | (changes or {}), time.perf_counter()
    if make_chain is None and not installed("posteriors"):
        raise lb.LimbeckError("digits need the library posteriors (SGLD): pip install posteriors")
    found: dict[str, dict[str, list[float]]] = {}
    r_hat, parameters = [], {}
    for seed in range(seeds):
        x, y, test, test_y = data.mnist(folder)[:4] if folder is not None else split(seed)
        net = Net((x.shape[1], *ask["hidden"], 10), x, y, ask["scale"])
        how = {name: ask[name] for name in ("chains", "rate", "burn_in", "thin", "temperature")}
        running = (
            langevin(net, batch=ask["rows"], seed=seed, progress=progress, **how)
            if make_chain is None
            else make_chain(net, seed)
        )
        half = ask["draws"] // 2  # before the student and after: the chain goes on meanwhile
        own = many(running, half)
        with weights_mix_slowly():
            result = taught(net, running, ask, seed, progress)
        own = torch.cat([own, many(running, half)])
        average = net.average(own, test)
        r_hat.append(float(result.diagnostics.r_hat.nan_to_num(0.0).max()))
        f = {CHAIN: average, STUDENT: result.predict(test).mean.double()}
        f[PLAIN] = net.average(plain(net, ask["plain_steps"], seed), test)
        f |= {f"{count} of its draws": net.average(own[-count:], test) for count in FEW}
        parameters |= dict.fromkeys(f, net.dim) | {CHAIN: len(own) * net.dim}
        parameters |= {f"{count} of its draws": count * net.dim for count in FEW}
        for name, p in f.items():
            figures = scored(p, test_y) | {"kl": divergence(average, p)}
            for measure, value in figures.items():
                found.setdefault(name, {}).setdefault(measure, []).append(value)
            print(f"digits, seed {seed}: {name:>18} {_words(figures)}", flush=True)
    return {
        "settings": ask | {"hidden": list(ask["hidden"])}, "seeds": seeds, "r_hat": r_hat,
        "data": "digits" if folder is None else "MNIST", "seconds": time.perf_counter() - began,
        "rows": [
            {"name": name, "parameters": parameters[name],
             **{measure: mean_and_error(values) for measure, values in each.items()}}
            for name, each in found.items()
        ],
    }  # fmt: skip


def _words(figures: dict[str, float]) -> str:
    return f"error {figures['error']:.2f}%, log probability {figures['log_prob']:.4f}"
