r"""Adversarial students come closer to the target, and a classifier measures how close."""

from __future__ import annotations

import pytest
import torch

import limbeck as lb
from limbeck.normalization.adversarial import tell_apart
from tests.models.nets import generator
from tests.refusals import refused

OPTIONS = {"chains": 1000, "burn_in": 100, "progress": False, "device": "cpu"}


def test_equal_distributions_are_not_told_apart_and_others_are() -> None:
    x, y = (torch.randn(1500, 3, generator=generator(seed)) for seed in (1, 2))
    same, other = tell_apart(x, y), tell_apart(x, 1.5 * y)  # equal means and signs
    assert abs(same.auc - 0.5) < 4 * same.std_error < 0.1
    assert other.auc - 0.5 > 5 * other.std_error


@pytest.mark.slow
def test_the_error_is_that_of_repeated_samples() -> None:
    found = []
    for seed in range(8):
        x, y = torch.randn(2, 400, 1, generator=generator(seed)).unbind()
        found.append(tell_apart(x, y + 2))
    spread = torch.tensor([each.auc for each in found]).std()
    mean = torch.tensor([each.std_error for each in found]).mean()
    assert 0.5 < spread / mean < 2


def test_over_bits_by_the_score_function() -> None:
    target = lb.Energy(lambda x: -0.7 * (x * x.roll(1, 1)).sum(1) - 0.5 * x.sum(1), lb.Spins(6))
    every = lb.Spins(6).enumerate(0, 64)
    log_p = target.log_unnormalized(every).log_softmax(0)

    def kl(student) -> float:
        with torch.no_grad():
            return float((log_p.exp() * (log_p - student.log_prob(every))).sum())

    student = lb.MADE(6, 20, support=lb.Spins(6), generator=generator(1))
    before = kl(student)
    result = lb.normalize(target, student, "adversarial", steps=300, lr=0.01, **OPTIONS)
    assert kl(student) < before / 5
    settings = result.settings["normalization"]
    assert 0.3 < settings["told_apart"]["auc"] < 0.7
    assert len(result.history["loss"]) == 50
    assert result.steps == 300


class Gaussian(torch.nn.Module):
    r"""Independent normal variables, whose samples can be differentiated."""

    output_form = "log_density"
    support = lb.Real(2)

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.log_scale = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))

    def log_prob(self, x: torch.Tensor) -> torch.Tensor:
        return torch.distributions.Normal(self.mean, self.log_scale.exp()).log_prob(x).sum(1)

    forward = log_prob

    def rsample(self, n: int, generator: torch.Generator | None = None) -> torch.Tensor:
        return self.mean + self.log_scale.exp() * torch.randn(n, 2, generator=generator)

    @torch.no_grad()
    def sample(self, n: int, generator: torch.Generator | None = None) -> torch.Tensor:
        return self.rsample(n, generator)


def test_over_the_reals_by_reparameterisation() -> None:
    target = lb.Energy(lambda x: ((x - 1) / 0.5).square().sum(1) / 2, lb.Real(2))
    student = Gaussian()
    lb.normalize(target, student, "adversarial", steps=300, lr=0.01, **OPTIONS)
    assert (student.mean - 1).abs().max() < 0.25
    assert (student.log_scale.exp() - 0.5).abs().max() < 0.25


def test_rsample_is_sample_with_derivatives() -> None:
    pytest.importorskip("zuko")
    from limbeck.models.flow import Flow

    flow = Flow(2)
    x = flow.rsample(4, generator(1))
    assert torch.equal(x, flow.sample(4, generator(1)))
    assert x.requires_grad


def test_what_is_refused() -> None:
    target, student = lb.Energy(lambda x: x.sum(1), lb.Spins(3)), lb.MADE(3, 4, support=lb.Spins(3))
    with refused("loss", "adversarial with optimizer"):
        lb.normalize(target, student, "adversarial", steps=1, optimizer="sgd", **OPTIONS)
    with refused("loss", "adversarial with checkpoint"):
        lb.normalize(target, student, "adversarial", steps=1, checkpoint="folder", **OPTIONS)
    with refused("loss", "adversarial with 1"):
        lb.normalize(target, student, "adversarial", steps=1, batch_size=1, **OPTIONS)
    with refused("other", "shapes"):
        tell_apart(torch.zeros(30, 2), torch.zeros(30, 3))
