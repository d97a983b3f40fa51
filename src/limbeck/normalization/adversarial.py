r"""Adversarial students: a classifier tells the student's samples from the target's."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from limbeck.arguments import Seed, checked_arguments
from limbeck.errors import ArgumentError
from limbeck.inputs.generated import SeededCall
from limbeck.models.mlp import MLP
from limbeck.progress import tracked
from limbeck.samplers.chains import Chains
from limbeck.training.config import Training
from limbeck.training.result import History, Result

EVALUATIONS = 50  # of the history
CLASSIFIER_STEPS = 2  # for each step of the student
ROWS = 4000  # samples of each kind by which student and target are compared in the end


class Classifier(nn.Module):
    r"""log p(x) − log q(x), (n,), as learned from samples of both."""

    def __init__(self, x: Tensor, generator: torch.Generator) -> None:
        super().__init__()
        rows = x.flatten(1)
        self.mean, self.scale = rows.mean(0), rows.std(0).clamp_min(1e-3)
        with torch.random.fork_rng([]):
            torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
            self.net = MLP(rows.shape[1], 64, 64, 1).to(x)

    def forward(self, x: Tensor) -> Tensor:
        log_ratio: Tensor = self.net((x.flatten(1) - self.mean) / self.scale)
        return log_ratio.reshape(len(x))

    def loss(self, of_target: Tensor, of_student: Tensor) -> Tensor:
        r"""The mean logistic loss of both kinds of samples."""
        return F.softplus(-self(of_target)).mean() + F.softplus(self(of_student)).mean()


@dataclass(frozen=True)
class ToldApart:
    r"""How well held-out samples of two kinds are told apart.

    Attributes:
        auc: The probability that the classifier ranks a pair rightly: 0.5 if they are alike.
        std_error: Its standard error.
    """

    auc: float
    std_error: float


@checked_arguments
def tell_apart(one: Tensor, other: Tensor, seed: Seed = 0) -> ToldApart:
    r"""Train a classifier on half of two sets of independent samples; its AUC on the other half.

    Arguments:
        one: Samples (n, *shape), such as those of a target.
        other: Samples (m, *shape), such as those of a student.
        seed: The seed of the classifier and its batches. Default: 0.
    """
    if one.shape[1:] != other.shape[1:] or min(len(one), len(other)) < 20:
        received = f"shapes {tuple(one.shape)} and {tuple(other.shape)}"
        raise ArgumentError("other", received, "two sets of at least 20 samples of equal shapes")
    generator = torch.Generator().manual_seed(seed)
    (a, one), (b, other) = (x.detach().tensor_split(2) for x in (one, other))
    classifier = Classifier(torch.cat([a, b]), generator)
    optimizer = torch.optim.Adam(classifier.parameters(), 3e-3, weight_decay=1e-4)
    for step in range(500):
        optimizer.param_groups[0]["lr"] = 3e-3 * (1 - step / 500)
        rows = [torch.randint(len(x), (200,), generator=generator).to(x.device) for x in (a, b)]
        optimizer.zero_grad()
        classifier.loss(a[rows[0]], b[rows[1]]).backward()
        optimizer.step()
    with torch.no_grad():
        p, q = classifier(one).double(), classifier(other).double()
    wins = (p[:, None] > q).double() + (p[:, None] == q).double() / 2
    # the variances of the mean over rows of either kind, by DeLong
    variance = wins.mean(1).var() / len(p) + wins.mean(0).var() / len(q)
    return ToldApart(float(wins.mean()), math.sqrt(float(variance)))


def compare_samples(student: Any, chains: Chains, seed: int) -> dict[str, float]:
    r"""How well samples of a student and of chains, some sweeps later, are told apart."""
    chains.sweep(20, "advancing")
    generator = torch.Generator(chains.x.device).manual_seed(seed + 1)
    drawn = SeededCall(student.sample, "student")(generator, min(ROWS, chains.count))
    return asdict(tell_apart(chains.x[:ROWS], drawn))


def train_adversary(
    student: Any, chains: Chains, training: Training, device: torch.device
) -> Result:
    r"""Minimise the mean of the classifier's −(log p − log q) at samples of the student.

    It is an estimate of KL(q ‖ p). If the student has `rsample(n, generator)`, derivatives pass
    through its samples; otherwise they are the score function's, with the batch's mean as baseline.
    """
    began = time.monotonic()
    size: Any = training.batch_size
    dtype = next(student.parameters()).dtype
    chains.to(device, dtype, training.seed)
    generator = torch.Generator(device).manual_seed(training.seed)
    sample = SeededCall(student.sample, "student")
    paths = callable(getattr(student, "rsample", None))
    both = torch.cat([chains.draw(size), sample(generator, size)])
    classifier = Classifier(both, torch.Generator().manual_seed(training.seed))
    rate = 1e-3 if training.lr is None else training.lr
    # the classifier has to follow the student, and old gradients make the two oscillate
    learner = torch.optim.Adam(classifier.parameters(), max(1e-3, rate), betas=(0.5, 0.99))
    optimizer = torch.optim.Adam(student.parameters(), rate, betas=(0.5, 0.99))
    history, steps, losses = History(), training.steps, list[float]()
    stop_reason, step = "all steps done", 0
    for step in tracked(range(1, steps + 1), "distilling", training.progress):
        fraction = step / steps
        if training.seconds is not None:
            fraction = max(fraction, (time.monotonic() - began) / training.seconds)
        optimizer.param_groups[0]["lr"] = rate * (1 + math.cos(math.pi * min(fraction, 1))) / 2
        for _ in range(CLASSIFIER_STEPS):
            learner.zero_grad()
            classifier.loss(chains.draw(size), sample(generator, size)).backward()
            learner.step()
        optimizer.zero_grad()
        if paths:
            value = -classifier(student.rsample(size, generator)).mean()
        else:
            x = sample(generator, size)
            reward = -classifier(x).detach()
            value = ((reward - reward.mean()) * student.log_prob(x)).mean() * size / (size - 1)
            value = value - value.detach() + reward.mean()
        value.backward()
        optimizer.step()
        losses.append(float(value.detach()))
        if not math.isfinite(losses[-1]):
            received = f"{rate:g}, with which the loss is {losses[-1]}"
            raise ArgumentError("lr", received, "a lower rate")
        if fraction * EVALUATIONS >= len(history.get("step", [])) + 1:
            history.append(step=step, loss=sum(losses) / len(losses))
            losses.clear()
        if fraction >= 1 and step < steps:
            stop_reason = f"time limit of {training.seconds:g} s reached at step {step:,}"
            break
    optimizer.zero_grad()
    seconds = time.monotonic() - began
    return Result(student, history, step, stop_reason, seconds, settings={"loss": "adversarial"})
