r"""Section 4.1.1 of the text on a small RBM and its NADE, by enumeration of all events."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from limbeck import losses
from limbeck.arrays import Batch
from limbeck.evaluation import View
from limbeck.models.nade import NADE
from limbeck.models.rbm import RBM
from limbeck.normalization.importance import free_energy
from limbeck.normalization.mode_search import climb

DOUBLE = torch.float64
RBM_ = RBM.random(6, 4, scale=1.0, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
X = RBM_.support.enumerate(0, 64, dtype=DOUBLE)
LOG_UNNORMALIZED = RBM_.log_unnormalized(X).detach()
LOG_Z = LOG_UNNORMALIZED.logsumexp(0)
LOG_P = LOG_UNNORMALIZED - LOG_Z
P = LOG_P.exp()


def student(seed=2) -> NADE:
    made = NADE(6, 5, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(seed))
    return made


def expected(loss, model) -> Tensor:
    r"""The mean of a loss over all events."""
    views = (View(m, X, "log_density") for m in (model, RBM_))
    return P @ loss(*views, Batch(X))


def divergence(model) -> Tensor:
    return P @ (LOG_P - model.log_prob(X))


def gradient(value: Tensor, model) -> Tensor:
    found = torch.autograd.grad(value, list(model.parameters()))
    return torch.cat([g.flatten() for g in found])


@pytest.mark.parametrize("below", [0.0, 0.5, 4.0, -1.0])
def test_the_square_error_is_that_of_densities_and_a_multiple_of_kl(below):
    model, c = student(), (LOG_Z - below).item()
    zeroth = P @ (model.log_prob(X) - LOG_P).square() / 2
    kl = divergence(model)
    torch.testing.assert_close(kl, expected(losses.kl(), model) + P @ LOG_P)
    error = expected(losses.log_density_error(c), model)
    torch.testing.assert_close(error, zeroth + below * kl + below**2 / 2)
    if below >= 0:
        assert error >= (kl + below) ** 2 / 2, "Jensen's bound"


@pytest.mark.parametrize("model", [RBM_, student()], ids=["the target", "another"])
def test_for_a_constant_at_most_log_z_the_target_is_the_minimum(model):
    r"""Any log p̃(x) is such a constant; beyond log Z, a student that is wrong can be better."""
    for c in (LOG_Z.item(), climb(RBM_)[0], LOG_Z.item() - 5):
        least = (LOG_Z - c).square() / 2
        log_q = LOG_P if model is RBM_ else model.log_prob(X).detach()
        error = P @ (log_q - LOG_UNNORMALIZED + c).square() / 2
        assert error >= least - 1e-12
        assert (error > least + 1e-6) == (model is not RBM_)


def test_far_below_log_z_its_gradient_is_that_of_kl():
    model = student()
    of_kl = gradient(divergence(model), model)
    differences = []
    for below in (1e2, 1e4, 1e6):
        error = expected(losses.log_density_error((LOG_Z - below).item()), model)
        scaled = gradient(error, model) / below
        differences.append(((scaled - of_kl).norm() / of_kl.norm()).item())
    assert differences[0] > 1e-3
    assert differences[-1] < 1e-4
    for one, next_one in itertools.pairwise(differences):
        assert next_one == pytest.approx(one / 100, rel=1e-3), "like 1 / (log Z − c)"


def test_the_free_energy_of_any_student_is_log_z_less_a_divergence():
    model = student()
    log_q = model.log_prob(X).detach()
    exact = (log_q.exp() @ (LOG_UNNORMALIZED - log_q)).item()
    assert exact < LOG_Z.item() - 0.1
    found = free_energy(RBM_, model, samples=20_000, seed=3)
    assert abs(found - exact) < 4 * found.std_error
    assert 0 < found.std_error < 0.05
    assert climb(RBM_)[0] <= LOG_Z.item()
