r"""NADE(784, 500) against the usual ways, on a CPU and, if there is one, a GPU.

Value and gradient at batch 20 against `cumsum` with autograd, peak memory of both, and samples
against a Python loop over pixels. One JSON line a figure.

    python benchmarks/nade.py [--device cpu]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from timing import Times, machine, report, side_by_side, stepping
from torch import Tensor
from torch.nn import functional as F

import limbeck as lb
from limbeck.models.kernels import nade_native, nade_op
from limbeck.models.nade import NADE

INPUTS, HIDDEN, BATCH = 784, 500, 20
LIT = 0.13  # of the pixels of binarised MNIST
DATA = {
    "as many ones as in MNIST": lambda: images(LIT),
    "half of all ones": lambda: images(0.5),
    "real numbers": lambda: torch.randn(BATCH, INPUTS, generator=generator()),
}


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def images(lit: float) -> Tensor:
    return (torch.rand(BATCH, INPUTS, generator=generator()) < lit).float()


def model(device: torch.device) -> NADE:
    nade = NADE(INPUTS, HIDDEN, device=device, generator=generator())
    with torch.no_grad():
        nade.b.fill_(torch.tensor(LIT).logit())  # so that samples are as sparse as images
        nade.u.mul_(0.2)
    return nade


def usual_log_prob(x: Tensor, w: Tensor, c: Tensor, u: Tensor, b: Tensor) -> Tensor:
    r"""The direct implementation, with batch × inputs × hidden numbers in memory."""
    before, weights = F.pad(x[:, :-1], (1, 0)), F.pad(w[:-1], (0, 0, 1, 0))
    a = torch.cumsum(before[:, :, None] * weights, 1) + c
    z = (a.sigmoid() * u).sum(2) + b
    return (x * z - F.softplus(z)).sum(1)


def usual_sample(
    uniforms: Tensor, w: Tensor, c: Tensor, u: Tensor, b: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Samples (n, I) and the probabilities of ones, pixel by pixel."""
    a = c.expand(len(uniforms), -1)
    x, probabilities = torch.empty_like(uniforms), torch.empty_like(uniforms)
    for i in range(uniforms.shape[1]):
        probabilities[:, i] = (a.sigmoid() @ u[i] + b[i]).sigmoid()
        x[:, i] = (uniforms[:, i] < probabilities[:, i]).to(x.dtype)
        a = a + x[:, i].unsqueeze(1) * w[i]
    return x, probabilities


def usual(nade: NADE, x: Tensor) -> Callable[[], object]:
    parameters = [nade.w, nade.c, nade.u, nade.b]
    return lambda: torch.autograd.grad(usual_log_prob(x, *parameters).mean(), parameters)


def limbeck(nade: NADE, x: Tensor) -> Callable[[], object]:
    parameters = [nade.w, nade.c, nade.u, nade.b]
    return lambda: torch.autograd.grad(nade.log_prob(x, check=False).mean(), parameters)


def plain(call: Callable[[], object]) -> Callable[[], object]:
    r"""The same without C++ kernels."""

    def without() -> object:
        worth, nade_op.WORTH_NATIVE = nade_op.WORTH_NATIVE, sys.maxsize
        try:
            return call()
        finally:
            nade_op.WORTH_NATIVE = worth

    return without


def captured(call: Callable[[], object]) -> Callable[[], object]:
    r"""The same as one CUDA graph."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    stream.synchronize()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def value_figures(device: torch.device) -> None:
    nade, cpu = model(device), device.type == "cpu"
    for name, data in DATA.items():
        x = data().to(device)
        contenders = {"usual": usual(nade, x), "limbeck": limbeck(nade, x)}
        if cpu:
            contenders["plain"] = plain(contenders["limbeck"])
        else:  # calls from Python take longer than the work; training replays graphs
            contenders = {way: captured(call) for way, call in contenders.items()}
        took = side_by_side(contenders, calls=3 if cpu else 100, rounds=20)
        must = "at least 4, aim 8" if cpu and name == next(iter(DATA)) else ""
        told(f"{device.type}: value and gradient, {name}", took, "limbeck", must=must)
        if cpu:
            told(f"cpu: value and gradient, {name}, without C++ kernels", took, "plain")


def sample_figures(device: torch.device) -> None:
    nade, cpu = model(device), device.type == "cpu"
    count = 1000 if cpu else 10_000
    draw = torch.Generator(device).manual_seed(0)
    parameters = [each.detach() for each in (nade.w, nade.c, nade.u, nade.b)]

    def loop() -> object:
        uniforms = torch.rand(count, INPUTS, generator=draw, device=device)
        return usual_sample(uniforms, *parameters)

    contenders = {"usual": loop, "limbeck": lambda: nade.sample(count, draw)}
    if cpu:
        contenders["plain"] = plain(contenders["limbeck"])
    took = side_by_side(contenders, calls=1, rounds=7)
    must = "at least 3" if cpu else "at most 50 ms on an H200"
    told(f"{device.type}: {count:,} samples against a loop over pixels", took, "limbeck", must=must)
    if cpu:
        told(f"cpu: {count:,} samples, without C++ kernels", took, "plain")


def told(figure: str, took: Times, name: str, **more: object) -> None:
    report(
        figure,
        milliseconds=took.microseconds(name) / 1e3,
        usual=took.microseconds("usual") / 1e3,
        ratio=took.ratio("usual", name),
        **more,
    )


def memory_figures(device: torch.device) -> None:
    r"""Peak memory of one value and gradient over what was there before, each in a process."""
    found = {}
    for name in ("usual", "limbeck"):
        command = [sys.executable, __file__, "--device", str(device), "--memory", name]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        found[name] = float(ran.stdout)
    report(
        f"{device.type}: peak memory of value and gradient",
        megabytes=found["limbeck"],
        usual=found["usual"],
        ratio=found["usual"] / found["limbeck"],
        must="at least 5",
    )


def peak(name: str, device: torch.device) -> float:
    r"""Megabytes that a few calls need at most, over what was there before them."""
    way = {"usual": usual, "limbeck": limbeck}[name]
    nade, x = model(device), images(LIT).to(device)
    nade_native.available()  # whatever is loaded comes before
    way(NADE(3, 2, device=device), x[:, :3])()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        way(nade, x)()
        return (torch.cuda.max_memory_allocated() - before) / 1e6
    Path("/proc/self/clear_refs").write_text("5")  # Linux forgets the peak so far
    before = resident("VmRSS")
    for _ in range(3):
        way(nade, x)()
    return resident("VmHWM") - before


def resident(field: str) -> float:
    status = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1e3 for line in status if line.startswith(field))


def iteration_figures(device: torch.device) -> None:
    r"""The source text's iteration: 2,000 chains advanced, 20 of them used, ADADELTA."""
    rbm = lb.RBM.random(INPUTS, HIDDEN, 0.05, generator(), device=device)
    run = lb.steps(
        rbm, NADE(INPUTS, HIDDEN, generator=generator()), lb.Chains(rbm, 2000, burn_in=10),
        lb.losses.kl(), steps=10**9, every=10**8, batch_size=BATCH, preset="thesis",
        engine="compiled", device=device,
    )  # fmt: skip
    took = side_by_side({"limbeck": stepping(run)}, calls=500, rounds=10)
    report(
        f"{device.type}: a whole iteration of the text's setting",
        microseconds=took.microseconds("limbeck"),
        must="at most 200 µs on an H200, aim 100",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--memory", choices=["usual", "limbeck"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    device = torch.device(options.device)
    if options.memory:
        print(peak(options.memory, device))
        return
    report("machine", **machine())
    value_figures(device)
    memory_figures(device)
    sample_figures(device)
    if device.type == "cuda":
        iteration_figures(device)


if __name__ == "__main__":
    main()
