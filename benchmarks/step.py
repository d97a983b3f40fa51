r"""One step of distillation against the usual PyTorch loop, on a CPU and, if there is one, a GPU.

Student 784-50-30-10, batch 20, ADADELTA, targets computed beforehand. One JSON line a figure.

    python benchmarks/step.py [--device cpu] [--ensemble-steps 60000]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from timing import machine, report, side_by_side, stepping
from torch import Tensor, nn
from torch.nn import functional as F

import limbeck as lb
from limbeck.losses.base import Loss
from limbeck.models.ensemble import Resamples, members_cross_entropy

ROWS, FEATURES, CLASSES, BATCH = 2000, 784, 10, 20
ADADELTA = {"lr": 1.0, "rho": 0.95, "eps": 1e-6}


def images(generator: torch.Generator) -> Tensor:
    r"""Rows like pixels: a fifth of the places lit."""
    values = torch.rand(ROWS, FEATURES, generator=generator)
    return values * (torch.rand(ROWS, FEATURES, generator=generator) < 0.2)


def usual_net(*sizes: int) -> nn.Sequential:
    r"""A ReLU net in plain PyTorch."""
    layers: list[nn.Module] = []
    for i, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        layers += [nn.ReLU()] if i else []
        layers += [nn.Linear(fan_in, fan_out)]
    return nn.Sequential(*layers)


def minibatches(rows: int, size: int, device: torch.device) -> Iterator[Tensor]:
    while True:
        yield from torch.randperm(rows, device=device)[: rows // size * size].split(size)


def usual_loop(net: nn.Module, X: Tensor, targets: Tensor) -> Callable[[], None]:
    r"""zero_grad, backward, step."""
    optimizer = torch.optim.Adadelta(net.parameters(), **ADADELTA)
    batches = minibatches(len(X), BATCH, X.device)

    def step() -> None:
        i = next(batches)
        optimizer.zero_grad()
        loss = -(targets[i] * F.log_softmax(net(X[i]), dim=1)).sum(1).mean()
        loss.backward()
        optimizer.step()

    return step


def limbeck_loop(
    teacher: nn.Module, X: Tensor, loss: Loss, outputs: int = CLASSES
) -> Callable[[], object]:
    r"""limbeck's steps, one a call."""
    student = lb.MLP(FEATURES, 50, 30, outputs)
    run = lb.steps(
        teacher, student, X, loss, steps=10**9, every=10**8, preset="thesis", engine="compiled",
        device=X.device, precompute=True,
    )  # fmt: skip
    return stepping(run)


def step_figures(device: torch.device) -> None:
    X = images(torch.Generator().manual_seed(0)).to(device)
    torch.manual_seed(0)
    ce, dse = lb.losses.cross_entropy(), lb.losses.derivative_error()
    one = lb.losses.derivative_error(projections=1)
    teacher = lb.MLP(FEATURES, 500, 300, CLASSES).to(device)
    with torch.no_grad():
        targets = F.softmax(teacher(X), dim=1)
    contenders = {
        "usual": usual_loop(usual_net(FEATURES, 50, 30, CLASSES).to(device), X, targets),
        "ce": limbeck_loop(teacher, X, ce),
        "dse": limbeck_loop(teacher, X, dse),
        "one": limbeck_loop(teacher, X, one),
    }
    for outputs in (100, 1000):
        wide = lb.MLP(FEATURES, 100, outputs).to(device)
        contenders[f"ce {outputs}"] = limbeck_loop(wide, X[:500], ce, outputs)
        contenders[f"one {outputs}"] = limbeck_loop(wide, X[:500], one, outputs)
    took = side_by_side(contenders, calls=50 if device.type == "cpu" else 500)
    where, cpu = device.type, device.type == "cpu"
    report(
        f"{where}: CE step against the usual loop",
        microseconds=took.microseconds("ce"),
        usual=took.microseconds("usual"),
        ratio=took.ratio("usual", "ce"),
        must="at least 3, aim 5" if cpu else "at most 100 µs on an H200",
    )
    report(
        f"{where}: DSE step over ten outputs against a CE step",
        microseconds=took.microseconds("dse"),
        ratio=took.ratio("dse", "ce"),
        must="at most 3.5" if cpu else "",
    )
    for outputs in ("", " 100", " 1000"):
        report(
            f"{where}: DSE step with one projection,{outputs or ' 10'} outputs, against a CE step",
            microseconds=took.microseconds(f"one{outputs}"),
            ratio=took.ratio(f"one{outputs}", f"ce{outputs}"),
            must="at most 1.5" if cpu else "",
        )


def ensemble_figures(device: torch.device, steps: int) -> None:
    r"""Ten nets at once against ten usual loops; on a GPU also the whole 30-net teacher."""
    generator = torch.Generator().manual_seed(0)
    X = images(generator).to(device)
    y = torch.randint(0, CLASSES, (ROWS,), generator=generator).to(device)
    sizes = (FEATURES, 500, 300, CLASSES)
    targets = F.one_hot(y, CLASSES).float()
    took = side_by_side(
        {
            "usual": usual_loop(usual_net(*sizes).to(device), X, targets),
            "limbeck": stepping(bootstrap_steps(sizes, X, y, 10)),
        },
        calls=10 if device.type == "cpu" else 50,
        rounds=20,
    )
    report(
        f"{device.type}: a 10-member ensemble against ten usual loops, one after the other",
        milliseconds=took.microseconds("limbeck") / 1e3,
        usual=10 * took.microseconds("usual") / 1e3,
        ratio=10 * took.ratio("usual", "limbeck"),
        must="at least 2" if device.type == "cpu" else "",
    )
    if device.type == "cuda":
        start = time.perf_counter()
        lb.Ensemble.train_bootstrap(sizes, X, y, 30, steps=steps, device=device, progress=False)
        torch.cuda.synchronize()
        report(f"cuda: the 30-net teacher, {steps:,} steps", seconds=time.perf_counter() - start,
               must="at most 25 s for 60,000 steps on an H200")  # fmt: skip


def bootstrap_steps(sizes: tuple[int, ...], X: Tensor, y: Tensor, members: int) -> Iterator[object]:
    r"""The steps of `Ensemble.train_bootstrap`, one by one."""
    return lb.steps(
        None, lb.BatchedMLP(members, *sizes), Resamples(X, y, members), members_cross_entropy(),
        steps=10**9, every=10**8, preset="thesis", engine="compiled", device=X.device,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--ensemble-steps", type=int, default=60_000)
    options = parser.parse_args()
    report("machine", **machine())
    step_figures(torch.device(options.device))
    ensemble_figures(torch.device(options.device), options.ensemble_steps)


if __name__ == "__main__":
    main()
