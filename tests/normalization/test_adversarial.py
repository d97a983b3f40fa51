r"""Adversarial students come closer to the target, and a classifier measures how close."""

from __future__ import annotations

import pytest
import torch

import limbeck as lb
from limbeck.normalization.adversarial import Classifier
from tests.normalization.small import generator
from tests.refusals import refused

OPTIONS = {"chains": 500, "burn_in": 50, "progress": False, "device": "cpu"}


def fitted(x, y, steps=100):
    classifier = Classifier(torch.cat([x, y]), 0)
    for _ in range(steps):
        classifier.learn(x, y)
    return classifier


def test_the_log_ratio_is_zero_for_equal_samples_and_right_for_others() -> None:
    x, y, new = (torch.randn(2000, 2, generator=generator(seed)) for seed in (1, 2, 3))
    with torch.no_grad():
        assert fitted(x, y)(new).abs().mean() < 0.15
        moved, near = fitted(x, y + 1.0), new[new.norm(dim=1) < 1]
        log_ratio = 1 - near.sum(1)  # of N(0, I) to N(1, I)
        learnt = moved(near)
    assert torch.corrcoef(torch.stack([learnt, log_ratio]))[0, 1] > 0.97
    assert 0.6 < learnt.std() / log_ratio.std() < 1.1  # the penalty makes it flatter


def test_the_divergence_is_a_bound_that_samples_of_equal_densities_do_not_exceed() -> None:
    x, y, new, other = (torch.randn(3000, 2, generator=generator(seed)) for seed in range(4))
    value, error = fitted(x, y).divergence(new, other)
    assert value < 3 * error < 0.03
    value, error = fitted(x, y + 1).divergence(new, other + 1)
    p, q = (-(new - m).square().sum(1).double() / 2 for m in (0, 1))  # of N(0, I) and N(1, I)
    exact = float(p.sub(torch.logaddexp(p, q)).mean()) + 0.6931  # both halves are equal
    assert exact - 0.05 < value < exact + 4 * error
    assert exact > 0.15


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
        return Gaussian.rsample(self, n, generator)


def gaussian_target() -> lb.Energy:
    return lb.Energy(lambda x: ((x - 1) / 0.5).square().sum(1) / 2, lb.Real(2))


@pytest.mark.slow
def test_a_gaussian_is_learnt_by_reparameterisation() -> None:
    student = Gaussian()
    result = lb.normalize(gaussian_target(), student, "adversarial", steps=250, lr=0.02, **OPTIONS)
    assert (student.mean - 1).abs().max() < 0.1
    assert (student.log_scale.exp() - 0.5).abs().max() < 0.1
    settings = result.settings["normalization"]
    assert settings["js_divergence_before"][0] > 0.2
    assert settings["js_divergence"][0] < 0.02
    assert result.steps == 250


@pytest.mark.slow
def test_a_gaussian_is_learnt_by_the_score_function_too() -> None:
    student = Gaussian()
    student.rsample = None
    lb.normalize(gaussian_target(), student, "adversarial", steps=250, lr=0.02, **OPTIONS)
    assert (student.mean - 1).abs().max() < 0.2
    assert (student.log_scale.exp() - 0.5).abs().max() < 0.2


def test_independent_bits_are_learnt_by_the_score_function() -> None:
    fields = torch.tensor([-1.5, -0.5, 0.5, 1.5])
    target = lb.Energy(lambda x: -(x @ fields), lb.Binary(4))
    every = target.support.enumerate(0, 16)
    log_p = target.log_unnormalized(every).log_softmax(0)
    student = lb.MADE(4, 8, generator=generator(1))

    def kl() -> float:
        with torch.no_grad():
            return float((log_p.exp() * (log_p - student.log_prob(every))).sum())

    before = kl()
    result = lb.normalize(target, student, "adversarial", steps=200, lr=0.03, **OPTIONS)
    assert before > 0.3
    assert kl() < 0.03
    assert len(result.history["loss"]) > 10


def test_a_student_that_moves_away_is_warned_of() -> None:
    student = Gaussian()
    with torch.no_grad():
        student.mean += 1.0
        student.log_scale -= 0.6931  # it is the target
    with pytest.warns(UserWarning, match="adversarial training failed"):
        result = lb.normalize(
            gaussian_target(), student, "adversarial", steps=3, lr=0.5, schedule=None, **OPTIONS
        )
    assert result.settings["normalization"]["js_divergence_before"][0] < 0.02


def test_rsample_is_sample_with_derivatives() -> None:
    pytest.importorskip("zuko")
    from limbeck.models.flow import Flow

    flow = Flow(2)
    x = flow.rsample(4, generator(1))
    assert torch.equal(x, flow.sample(4, generator(1)))
    assert x.requires_grad


def test_settings_without_a_use_are_refused() -> None:
    target, student = lb.Energy(lambda x: x.sum(1), lb.Spins(3)), lb.MADE(3, 4, support=lb.Spins(3))
    with refused("loss", "adversarial with held_out"):
        lb.normalize(target, student, "adversarial", steps=1, held_out=torch.zeros(9, 3), **OPTIONS)
    with refused("loss", "adversarial with checkpoint"):
        lb.normalize(target, student, "adversarial", steps=1, checkpoint="folder", **OPTIONS)
    with refused("loss", "adversarial with batches of 1"):
        lb.normalize(target, student, "adversarial", steps=1, batch_size=1, **OPTIONS)
