r"""Adversarial training: a classifier learns to tell the student's samples from the target's."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from limbeck.errors import warn
from limbeck.inputs.generated import SeededCall
from limbeck.losses import kl
from limbeck.models.mlp import MLP
from limbeck.training.objective import Objective, Plan
from limbeck.training.update import GradientUpdate, Tensors

CLASSIFIER_STEPS = 3  # for each step of the student, which it has to follow
OWN_STEPS = 100  # of the classifier, before it measures how far student and target are apart
PENALTY = 0.05  # of its squared slopes (Mescheder et al. 2018), without which both oscillate
MAX_SIGNAL = 5.0  # nats, of a single sample
FAR_APART = 0.1  # nats of their divergence; log 2 is the most that there can be
ROWS = 4000  # samples of each kind that student and target are compared by


class Classifier(nn.Module):
    r"""log p(x) − log q(x), (n,), as learned from samples of both; a penalty makes it flatter."""

    def __init__(self, x: Tensor, seed: int) -> None:
        super().__init__()
        rows = x.flatten(1)
        self.mean, self.scale = rows.mean(0), rows.std(0).clamp_min(1e-3)
        draw = torch.Generator().manual_seed(seed)
        self.net = MLP(rows.shape[1], 64, 64, 1, hidden="tanh", generator=draw).to(x)
        self.optimizer = torch.optim.Adam(self.parameters(), 3e-3, betas=(0.5, 0.99))

    def forward(self, x: Tensor) -> Tensor:
        log_ratio: Tensor = self.net((x.flatten(1) - self.mean) / self.scale)
        return log_ratio.flatten()

    @torch.enable_grad()
    def learn(self, of_target: Tensor, of_student: Tensor) -> None:
        r"""A step on the logistic loss of both kinds of samples, with a penalty on slopes."""
        loss = of_target.new_zeros(())
        for x, sign in ((of_target, -1), (of_student, 1)):
            x = x.detach().requires_grad_()
            log_ratio = self(x)
            (slope,) = torch.autograd.grad(log_ratio.sum(), x, create_graph=True)
            steep = (slope.flatten(1) * self.scale).square().sum(1)
            loss = loss + (F.softplus(sign * log_ratio) + PENALTY / 2 * steep).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    @torch.no_grad()
    def divergence(self, of_target: Tensor, of_student: Tensor) -> tuple[float, float]:
        r"""A lower bound on their Jensen–Shannon divergence in nats, by new samples; its error."""
        logs = F.logsigmoid(self(of_target)).double(), F.logsigmoid(-self(of_student)).double()
        error = math.sqrt(sum(float(log.var()) / len(log) for log in logs)) / 2
        return math.log(2) + sum(float(log.mean()) for log in logs) / 2, error


class adversarial(kl):  # noqa: N801
    r"""log(1 + q/p) at samples of the student, by an `Adversary`; without one, it is `kl`."""


class Adversary(GradientUpdate):
    r"""Gradient descent on log(1 + q/p) at samples of the student, with p/q by a classifier.

    Its minimum is at q = p, and no sample has a derivative above 1. If the student has
    `rsample(n, generator)`, derivatives pass through its samples; otherwise they are the score
    function's, with the mean of the other samples as a baseline.
    """

    def bind(self, objective: Objective, steps: int) -> None:
        super().bind(objective, steps)
        student: Any = objective.student
        self.sample = SeededCall(student.sample, "student")
        self.rsample = getattr(student, "rsample", None)
        self.classifier: Classifier | None = None

    def gradient(self, plan: Plan, traced: bool = False) -> tuple[Tensors, Tensor, Tensors]:
        x: Any = self.objective.batch(plan).x
        student: Any = self.objective.student
        n, generator = len(x), self.objective.generator
        if self.classifier is None:  # chains have burnt in by now
            both = torch.cat([x, self.sample(generator, n)])
            self.classifier = Classifier(both, generator.initial_seed())
            self.before = self.divergence()
        for drawn in self.sample(generator, CLASSIFIER_STEPS * n).split(n):
            self.classifier.learn(x, drawn)
        with torch.enable_grad():
            if callable(self.rsample):
                value = F.softplus(-self.classifier(self.rsample(n, generator=generator))).mean()
            else:
                drawn = self.sample(generator, n)
                signal = F.softplus(-self.classifier(drawn)).detach().clamp_max(MAX_SIGNAL)
                score = (signal - signal.mean()) * student.log_prob(drawn)
                value = score.sum() / (n - 1)
                value = value - value.detach() + signal.mean()
            leaves = list(self.parameters.values())
            values = torch.autograd.grad(value, leaves, materialize_grads=True)
        gradients = dict(zip(self.parameters, values, strict=True))
        return gradients, value.detach().expand(2), dict(self._buffers)

    def divergence(self) -> tuple[float, float]:
        r"""That of student and target, by the classifier after steps of its own."""
        chains: Any = self.objective.inputs
        assert self.classifier is not None  # since the first step
        generator, n = self.objective.generator, min(chains.count, ROWS)
        drawn = self.sample(generator, n)
        for _ in range(OWN_STEPS):
            self.classifier.learn(chains.x[:n], drawn)
        chains.sweep(20)
        return self.classifier.divergence(chains.x[:n], self.sample(generator, n))

    def outcome(self) -> dict[str, Any]:
        r"""Divergences before and after; a warning if the student is far from the target."""
        (first, first_error), (last, error) = self.before, self.divergence()
        if last - first > 3 * math.hypot(first_error, error) or last > FAR_APART:
            warn(
                "adversarial training failed: the Jensen–Shannon divergence of student and target "
                f'is {last:.2g} nats, and was {first:.2g} before; use another lr, or loss="kl"'
            )
        return {"js_divergence_before": self.before, "js_divergence": (last, error)}
