r"""Losses on densities: by hand, and the text's decomposition by enumeration."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor, distributions, nn

import limbeck as lb
from limbeck import losses
from limbeck.arrays import Batch
from limbeck.evaluation import View
from tests.refusals import refused

N, D = 5, 2
RNG = np.random.default_rng(2)
X = RNG.normal(size=(N, D))
MEAN, SCALE = RNG.normal(size=D), np.array([0.7, 1.3])


class Gaussian(nn.Module):
    def log_prob(self, x: Tensor) -> Tensor:
        normal = distributions.Normal(torch.tensor(MEAN), torch.tensor(SCALE))
        return normal.log_prob(x).sum(1)


class Quartic:
    def log_unnormalized(self, x: Tensor) -> Tensor:
        return -(x**4).sum(1) / 4


def of(loss, student=None, teacher=None) -> np.ndarray:
    x = torch.tensor(X)
    views = (View(m, x, "log_density") for m in (student or Gaussian(), teacher or Quartic()))
    found = loss(*views, Batch(x))
    assert found.shape == (N,)
    return found.numpy()


LOG_F = [sum(scipy.stats.norm(MEAN[d], SCALE[d]).logpdf(x[d]) for d in range(D)) for x in X]
LOG_P = [-sum(v**4 for v in x) / 4 for x in X]


def test_kl_is_the_negative_log_density() -> None:
    np.testing.assert_allclose(of(losses.kl()), [-f for f in LOG_F])


@pytest.mark.parametrize("c", [0.0, -1.5, 4])
def test_log_density_error_by_hand(c) -> None:
    expected = [(f - p + c) ** 2 / 2 for f, p in zip(LOG_F, LOG_P, strict=True)]
    np.testing.assert_allclose(of(losses.log_density_error(c)), expected)


def test_score_matching_by_hand_does_not_depend_on_the_constant() -> None:
    scores = [(-(x - MEAN) / SCALE**2, -(x**3)) for x in X]
    expected = [sum((f - p) ** 2) / 2 for f, p in scores]
    np.testing.assert_allclose(of(losses.score_matching()), expected)
    shifted = of(losses.score_matching(), teacher=lambda x: Quartic().log_unnormalized(x) + 8)
    np.testing.assert_allclose(shifted, expected)


@pytest.mark.parametrize(
    "teacher",
    [
        Gaussian(),
        lambda x: Gaussian().log_prob(x)[:, None],
        distributions.Independent(distributions.Normal(torch.tensor(MEAN), torch.tensor(SCALE)), 1),
    ],
    ids=["module", "callable", "distribution"],
)
def test_a_density_comes_as_a_method_or_as_the_output(teacher) -> None:
    np.testing.assert_allclose(of(losses.log_density_error(), teacher=teacher), 0)
    np.testing.assert_allclose(of(losses.score_matching(), teacher=teacher), 0, atol=1e-30)


@pytest.mark.parametrize("above", [-2.0, 0.0, 3.0])
def test_the_square_error_is_that_of_the_densities_and_a_multiple_of_kl(above) -> None:
    r"""E_SE = E⁰ + (log Z − c) KL + ½(log Z − c)², by enumeration of eight states."""
    x = torch.arange(8)
    log_unnormalised, scores = torch.tensor(RNG.normal(size=(2, 8)))
    log_z = log_unnormalised.logsumexp(0)
    log_p, log_f = log_unnormalised - log_z, scores.log_softmax(0)
    c = (log_z - above).item()
    student = View(lambda x: log_f[x], x, "log_density")
    teacher = View(lambda x: log_unnormalised[x], x, "log_density")
    error = losses.log_density_error(c)(student, teacher, Batch(x))
    p, batch = log_p.exp(), Batch(x)
    divergence = p @ losses.kl()(student, teacher, batch) + p @ log_p
    assert divergence.item() == pytest.approx((p @ (log_p - log_f)).item())
    zeroth = p @ (log_f - log_p).square() / 2
    expected = zeroth + above * divergence + above**2 / 2
    torch.testing.assert_close(p @ error, expected)
    # Jensen: an upper bound of the squared divergence, where c is at most log Z
    if above >= 0:
        assert p @ error >= (divergence + above) ** 2 / 2


@pytest.mark.parametrize("c", [math.nan, math.inf, -math.inf])
def test_the_constant_must_be_finite(c) -> None:
    with refused("c", expected="a finite number"):
        losses.log_density_error(c)


@pytest.mark.parametrize("loss", [losses.kl(), losses.kl() + 0.1 * losses.log_density_error()])
@pytest.mark.parametrize("kind", ["net", "energy"])
def test_a_student_that_is_no_normalised_density_is_refused(loss, kind):
    # −log f(x) of an unbounded output falls for ever
    teacher = lb.RBM(torch.zeros(4, 2), torch.zeros(4), torch.zeros(2))
    student = nn.Linear(4, 1) if kind == "net" else copy.deepcopy(teacher)
    with refused("student", "no method log_prob", expected="log_prob"):
        lb.distill(teacher, student, torch.zeros(8, 4), loss, steps=5)


def test_outputs_that_are_declared_as_log_densities_are_trained():
    net = nn.Linear(4, 1)
    result = lb.distill(
        None, net, torch.randn(8, 4), losses.kl(), steps=2, student_output="log_density"
    )
    assert result.steps == 2


def test_several_outputs_are_no_log_density():
    with refused("student", r"\(8, 2\)"):
        lb.distill(
            None, nn.Linear(4, 2), torch.randn(8, 4), losses.kl(), steps=2,
            student_output="log_density",
        )  # fmt: skip
