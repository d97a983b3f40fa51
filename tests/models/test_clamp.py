r"""Clamped variables and the likelihood of data, held against enumeration."""

from __future__ import annotations

import math

import pytest
import torch

import limbeck as lb
from limbeck.models.clamp import clamp
from limbeck.models.rbm import RBM
from tests.models.nets import DOUBLE, generator
from tests.refusals import refused


def rbm() -> RBM:
    return RBM.random(6, 4, 1.0, generator(1), dtype=DOUBLE)


def restricted_log_z(target, fixed: dict[int, float]) -> float:
    r"""The sum over all events that have the values."""
    support = target.support
    every = support.enumerate(0, support.count**support.size, dtype=DOUBLE)
    rows = every.flatten(1)
    agree = torch.stack([rows[:, i] == value for i, value in fixed.items()]).all(0)
    with torch.no_grad():
        return float(target.log_unnormalized(every[agree]).logsumexp(0))


def couplings(support):
    J = torch.randn(support.size, support.size, generator=generator(3), dtype=DOUBLE)
    return lb.Energy(lambda x: -((x.flatten(1) @ J.to(x)) * x.flatten(1)).sum(1), support, 3.0)


@pytest.mark.parametrize("support", [lb.Spins(2, 3), lb.States(3, 5), lb.Binary(6)])
def test_log_z_of_an_energy_with_clamped_variables(support) -> None:
    target = couplings(support)
    index = (0, 2) if len(support.shape) == 2 else 2
    rest = clamp(target, {index: 1})
    assert rest.support == type(rest.support)(*([3] * (support.count == 3)), support.size - 1)
    expected = restricted_log_z(target, {2: 1.0})
    assert lb.exact_log_z(rest, progress=False) == pytest.approx(expected, abs=1e-5)
    x = rest.support.start(7, generator(1), dtype=DOUBLE)
    moved = rest.advance(x, 2, generator(2))
    assert (rest.fn.expand(moved).flatten(1)[:, 2] == 1).all()


def test_an_rbm_with_clamped_units_is_an_rbm() -> None:
    target, fixed = rbm(), {0: 1, 3: 0, 5: 1}
    rest = clamp(target, fixed)
    assert isinstance(rest, RBM)
    assert (rest.visible, rest.hidden) == (3, 4)
    expected = restricted_log_z(target, fixed)
    assert lb.exact_log_z(rest, progress=False) == pytest.approx(expected, abs=1e-9)
    x = lb.Binary(3).enumerate(0, 8, dtype=DOUBLE)
    full = torch.tensor([[1.0, 0, 0, 0, 0, 1]], dtype=DOUBLE).repeat(8, 1)
    full[:, [1, 2, 4]] = x
    torch.testing.assert_close(rest.log_unnormalized(x), target.log_unnormalized(full))
    h = lb.Binary(4).enumerate(0, 16, dtype=DOUBLE)
    turned = lb.RBM(rest.W.T, rest.b, rest.a)  # hidden units as visible ones
    hidden = turned.log_unnormalized(h).logsumexp(0).detach()
    assert float(hidden) + rest.constant == pytest.approx(expected, abs=1e-9)
    twice = clamp(clamp(target, {0: 1, 5: 1}), {2: 0})
    assert lb.exact_log_z(twice, progress=False) == pytest.approx(expected, abs=1e-9)
    with refused("path", "constant"):
        rest.save("rest.npz")


@pytest.mark.parametrize("method", ["bridge", "ais", "importance"])
def test_estimates_of_clamped_units(method) -> None:
    target, fixed = rbm(), {0: 1, 3: 0}
    rest = clamp(target, fixed)
    student = None
    if method != "ais":
        options = {"steps": 100, "chains": 100, "burn_in": 50, "progress": False}
        student = lb.normalize(rest, **options, device="cpu").student
    options = {"schedule": 200} if method == "ais" else {"burn_in": 50} if student else {}
    z = lb.log_partition(rest, student, method=method, samples=1000, progress=False, **options)
    assert abs(z.value - restricted_log_z(target, fixed)) < 4 * z.std_error + 1e-3
    assert z.std_error < 0.3


def test_a_clamped_gaussian() -> None:
    r"""The slice of N(0, Σ) at x₁ = 1 has the marginal density there as its Z."""
    cov = torch.tensor([[2.0, 0.8], [0.8, 1.0]])
    density = torch.distributions.MultivariateNormal(torch.zeros(2), cov)
    rest = clamp(lb.Energy(lambda x: -density.log_prob(x), lb.Real(2)), {0: 1.0})
    grid = torch.linspace(-12, 12, 4001)[:, None]
    log_z = float(rest.log_unnormalized(grid).logsumexp(0)) + math.log(24 / 4000)
    marginal = torch.distributions.Normal(0.0, math.sqrt(2.0)).log_prob(torch.tensor(1.0))
    assert log_z == pytest.approx(float(marginal), abs=1e-4)
    x = rest.advance(torch.zeros(400, 1), 30, generator(1))
    assert abs(float(x.mean()) - 0.4) < 0.2


@pytest.mark.parametrize(
    ("values", "argument", "received"),
    [
        ({}, "values", "^none of 6"),
        (dict.fromkeys(range(6), 1), "values", "^all of 6"),
        ({6: 1}, "values", "the key 6"),
        ({-1: 1}, "values", "-1"),
        ({(0, 1): 1}, "values", r"the key \(0, 1\)"),
        ({0: 2}, "values", "^2$"),
        ({0: math.nan}, r"values\[0\]", "nan"),
        ([1] * 6, "values", "a list"),
    ],
)
def test_bad_values(values, argument, received) -> None:
    with refused(argument.replace("\\", ""), received):
        clamp(rbm(), values)


def test_a_target_without_support() -> None:
    with refused("target", "a Linear over None"):
        clamp(torch.nn.Linear(2, 1), {0: 1})


def test_the_likelihood_of_rows_with_its_error() -> None:
    target = rbm()
    x = target.advance(target.start(400, generator(1)), 100, generator(2))
    exact = target.log_likelihood(x)
    with torch.no_grad():
        log = target(x) - lb.exact_log_z(target, progress=False)
    assert exact.value == pytest.approx(float(log.mean()), abs=1e-9)
    assert exact.std_error == exact.data_error == pytest.approx(float(log.std()) / 20)
    z = lb.log_partition(target, method="ais", samples=200, schedule=50, progress=False)
    found = target.log_likelihood(x.bool().numpy(), z)
    assert found.log_z_error == z.std_error > 0
    assert found.std_error == pytest.approx(math.hypot(exact.data_error, z.std_error))
    assert abs(float(found) - exact.value) < 5 * z.std_error
    assert found.doubts == z.verdict.reasons
    assert "of 400 rows" in str(found)


def test_errors_of_likelihoods_cover_the_truth() -> None:
    r"""Over data sets, 95% intervals have the mean of log p under the model about as often."""
    target = RBM.random(5, 3, 1.0, generator(1), dtype=DOUBLE)
    every = lb.Binary(5).enumerate(0, 32, dtype=DOUBLE)
    with torch.no_grad():
        log = target(every).log_softmax(0)
    truth = float((log.exp() * log).sum())
    drawn = torch.multinomial(log.exp(), 200 * 100, replacement=True, generator=generator(2))
    inside = 0
    for rows in every[drawn].split(100):
        found = target.log_likelihood(rows)
        inside += abs(found.value - truth) < 1.98 * found.std_error
    assert 180 <= inside <= 199


def test_the_likelihood_of_an_energy_and_what_is_refused() -> None:
    target = couplings(lb.Spins(6))
    x = target.advance(lb.Spins(6).start(50, generator(1), dtype=DOUBLE), 20, generator(2))
    z = lb.log_partition(target, progress=False)
    assert float(target.log_likelihood(x, z)) < 0
    with refused("z", "below log p̃ of a row"):
        target.log_likelihood(x, z.value - 10)
    with refused("z", "None"):
        target.log_likelihood(x, None)
    with refused("z", "log Z"):
        target.log_likelihood(x, z - lb.log_partition(target, progress=False, seed=1))
    with refused("x", "6 values|values such as"):
        target.log_likelihood(torch.zeros(2, 6), z)
    with refused("z", "30 visible and 30 hidden"):
        RBM.random(30, 30).log_likelihood(torch.zeros(1, 30))
    assert target.log_likelihood(x[:1], z).std_error == math.inf
