r"""Students trained on Gaussian noise: how they depend on the teacher's initial weights.

    python experiments/noise.py --data DIR --out experiments/results

Images vary in few of the directions of noise, so training hardly changes a teacher's weights in the
others: far from images its predictions depend on its initial weights. Here teachers that differ
only in a factor on their initial weights are distilled by cross entropy on N(0, I).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch

from limbeck import losses
from limbeck.environment import environment
from limbeck.inputs import Noise
from limbeck.models import BatchedMLP
from limbeck.models.ensemble import Ensemble, Resamples, members_cross_entropy
from limbeck.models.mlp import MLP
from limbeck.training.config import choose_device
from limbeck.training.distill import distill

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the root, for `reproduction`
from reproduction import data
from reproduction.chapter2_measure import examples, measured
from reproduction.record import write

FILE = "noise.json"


def teacher_of(ask, digits, scale):
    r"""An ensemble on resamples of the images; `scale` multiplies the initial hidden weights."""
    sizes = (digits.train.shape[1], *ask.teacher_hidden, 10)
    nets = BatchedMLP(ask.members, *sizes, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for weight in list(nets.weights)[:-1]:
            weight.mul_(scale)
    source = Resamples(digits.train, digits.labels, ask.members)
    distill(
        None, nets, source, members_cross_entropy(), steps=ask.teacher_steps, batch_size=20,
        preset="thesis", device=ask.device, progress=not ask.quiet,
    )  # fmt: skip
    return Ensemble(nets)


def student_of(ask, digits, teacher, seed):
    r"""What a student of noise reaches on test images: accuracy in % and log probability."""
    net = MLP(digits.train.shape[1], 50, 30, 10, generator=torch.Generator().manual_seed(seed))
    distill(
        teacher, net, Noise(digits.train.shape[1]), losses.cross_entropy(), steps=ask.steps,
        batch_size=20, preset="thesis", seed=seed, device=ask.device, progress=not ask.quiet,
    )  # fmt: skip
    return tested(net, digits, ask)


def tested(net, digits, ask):
    r"""Accuracy and log probability on test images."""
    place = choose_device(ask.device)
    found = measured(examples(net, digits.test.to(place), digits.test_labels.to(place)))
    return {name: mean for name, (mean, _) in found.items()}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default=None, help="folder with MNIST")
    parser.add_argument("--out", default=".", help="folder for results")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--scales", type=float, nargs="+", default=[1.0, 0.7, 0.5, 0.25])
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--teacher-hidden", type=int, nargs="+", default=[200, 100])
    parser.add_argument("--teacher-steps", type=int, default=3000)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
    ask = parser.parse_args(arguments)
    digits, began = data.mnist(ask.data), time.perf_counter()
    settings = {k: v for k, v in vars(ask).items() if k not in ("data", "out", "device", "quiet")}
    found = environment(choose_device(ask.device)) | {"settings": settings, "scales": []}
    for scale in ask.scales:
        teacher = teacher_of(ask, digits, scale)
        students = [student_of(ask, digits, teacher, seed) for seed in range(ask.seeds)]
        entry = {"scale": scale, "teacher": tested(teacher, digits, ask), "students": students}
        found["scales"].append(entry)
        found["seconds"] = round(time.perf_counter() - began, 1)
        write(Path(ask.out) / FILE, found)
        means = [statistics.mean(each[name] for each in students) for name in students[0]]
        taught = entry["teacher"]
        print(
            f"scale {scale}: teacher {taught['accuracy']:.2f} {taught['log_prob']:.4f}, "
            f"students {means[0]:.2f} {means[1]:.4f}",
            flush=True,
        )
    return found


if __name__ == "__main__":
    main()
