r"""Losses add up: sums, coefficients, names and what is written of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from limbeck import losses
from limbeck.inputs import Dataset
from limbeck.models import MLP
from limbeck.teachers.base import as_teacher
from limbeck.training.objective import Objective
from limbeck.training.update import GradientUpdate
from tests.refusals import refused

X = torch.randn(6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 1, 0, 2])
WEIGHT = torch.tensor([1.0, 0.5, 2.0, 0.0, 1.0, 3.0], dtype=torch.float64)
A, B, C = losses.cross_entropy(), losses.square_error(), losses.label_cross_entropy()


def net(seed: int) -> MLP:
    g = torch.Generator().manual_seed(seed)
    return MLP(2, 4, 3, hidden="tanh", dtype=torch.float64, generator=g)


def objective(loss, weight=None) -> Objective:
    return Objective(as_teacher(net(0)), net(1), Dataset(X, Y, weight), loss)


def total(loss, weight=None) -> torch.Tensor:
    bound = objective(loss, weight)
    found = bound(bound.draw(6))
    assert all(each.shape == (6,) for each in found)
    return bound.total(found).detach()


def test_a_sum_is_the_sum_of_its_terms_with_their_coefficients() -> None:
    a, b, c = total(A), total(B), total(C)
    torch.testing.assert_close(total(A + 2 * B), a + 2 * b)
    torch.testing.assert_close(total(A * 0.5 + B), 0.5 * a + b)
    torch.testing.assert_close(total(3 * (A + 2 * B) + C), 3 * a + 6 * b + c)
    torch.testing.assert_close(total(sum([A, B, 0.1 * C])), a + b + 0.1 * c)
    torch.testing.assert_close(total(A + A), 2 * a)
    assert sum([A]) is A


def test_terms_are_given_without_coefficients_and_with_importance_weights() -> None:
    bound = objective(A + 2 * B, WEIGHT)
    plan = bound.draw(6)
    weight = WEIGHT[plan["inputs"]]
    plain = objective(A + 2 * B)
    for found, each in zip(bound(plan), plain(plan), strict=True):
        torch.testing.assert_close(found, weight * each)
    torch.testing.assert_close(bound.total(bound(plan)), weight * plain.total(plain(plan)))


def test_the_gradient_of_a_sum_is_the_sum_of_gradients_and_the_means_are_by_term() -> None:
    def gradient(loss) -> tuple[torch.Tensor, torch.Tensor]:
        update, bound = GradientUpdate(), objective(loss)
        update.bind(bound, 1)
        found, means, _ = update.gradient(bound.draw(6))
        return torch.cat([g.flatten() for g in found.values()]), means

    (a, mean_a), (b, mean_b) = gradient(A), gradient(losses.derivative_error())
    both, means = gradient(A + 0.25 * losses.derivative_error())
    torch.testing.assert_close(both, a + 0.25 * b)
    one, other = mean_a[0], mean_b[0]
    torch.testing.assert_close(means, torch.stack([one, other, one + 0.25 * other]))


def test_names_of_terms_that_stand_twice_are_distinct() -> None:
    assert objective(A).names == ["cross_entropy"]
    mixed = A + losses.derivative_error() + B + 3 * losses.derivative_error("plain")
    names = ["cross_entropy", "derivative_error_1", "square_error", "derivative_error_2"]
    assert objective(mixed).names == names


def test_negative_and_zero_coefficients_are_taken_as_they_are() -> None:
    torch.testing.assert_close(total(A + -0.5 * B), total(A) - 0.5 * total(B))
    torch.testing.assert_close(total(A + 0 * B), total(A))


@pytest.mark.parametrize("coefficient", [math.nan, math.inf, -math.inf, np.float64("nan")])
def test_coefficients_that_are_not_finite_are_refused(coefficient) -> None:
    with refused("loss", "the coefficient .*"):
        A + coefficient * B


@pytest.mark.parametrize("wrong", ["0.5", None, A])
def test_only_numbers_multiply_a_loss(wrong) -> None:
    with pytest.raises(TypeError):
        wrong * B


@pytest.mark.parametrize("wrong", [1, "cross_entropy", None])
def test_only_losses_are_added(wrong) -> None:
    with pytest.raises(TypeError):
        A + wrong
    with pytest.raises(TypeError):
        wrong + A


def test_a_loss_is_written_as_it_is_made() -> None:
    made = losses.cross_entropy(2) + 1e-4 * losses.derivative_error("log", "teacher", 3)
    assert repr(made) == (
        "cross_entropy(temperature=2) + "
        "0.0001 * derivative_error(domain='log', weight='teacher', projections=3)"
    )
    assert repr(2 * losses.log_density_error(-3) + losses.kl()) == (
        "2 * log_density_error(c=-3) + kl()"
    )
    assert repr(losses.hints("a", "b")) == "hints('a', 'b')"
    assert repr(-1 * B) == "-1 * square_error()"


def test_every_loss_says_what_it_is() -> None:
    for name in losses.__all__:
        assert getattr(losses, name).name == name


def test_losses_on_predictions_and_on_densities_do_not_mix() -> None:
    with refused("loss", expected="losses on one kind"):
        Objective(as_teacher(nn.Linear(2, 3).double()), net(1), Dataset(X), A + losses.kl())
