r"""EP: exact with one site, close to dense quadrature with more, symmetric, and moment matching."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from reproduction.expectation_propagation import ep_logistic, predict
from tests.refusals import refused, warns_about

DOUBLE = torch.float64


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def data(n: int, dim: int, seed: int, weight: float = 1.0) -> tuple[Tensor, Tensor]:
    r"""Inputs and labels of logistic regression with weights all alike."""
    x = normal(n, dim, seed=seed)
    uniform = torch.rand(n, generator=torch.Generator().manual_seed(seed + 1), dtype=DOUBLE)
    return x, ((weight * x.sum(1)).sigmoid() > uniform).double()


def dense(x: Tensor, y: Tensor, mean: Tensor, covariance: Tensor, reach: float, count: int):
    r"""Mean, covariance and log evidence on a grid; and the grid with its weights."""
    axis = torch.linspace(-reach, reach, count, dtype=DOUBLE)
    w = torch.cartesian_prod(*[axis] * len(mean)).reshape(-1, len(mean))
    prior = torch.distributions.MultivariateNormal(mean, covariance)
    log = F.logsigmoid((w @ x.T) * (2 * y - 1)).sum(1) + prior.log_prob(w)
    weight = log.softmax(0)
    m = weight @ w
    cell = len(mean) * math.log(2 * reach / (count - 1))
    return m, (w - m).T @ ((w - m) * weight[:, None]), float(log.logsumexp(0)) + cell, w, weight


@pytest.mark.parametrize("label", [0.0, 1.0])
@pytest.mark.parametrize("scale", [0.3, 1.0, 8.0])
def test_one_site_is_exact(label, scale):
    x, y = torch.tensor([[1.0, -0.5]], dtype=DOUBLE) * scale, torch.tensor([label], dtype=DOUBLE)
    mean = torch.tensor([-0.5, 1.0], dtype=DOUBLE)
    covariance = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=DOUBLE)
    found = ep_logistic(x, y, mean, covariance, moments="quadrature", tolerance=1e-11)
    m, s, log_evidence, *_ = dense(x, y, mean, covariance, 14.0, 1401)
    torch.testing.assert_close(found.mean, m, atol=1e-7, rtol=0)
    torch.testing.assert_close(found.covariance, s, atol=1e-7, rtol=0)
    assert found.log_evidence == pytest.approx(log_evidence, abs=1e-8)
    assert found.converged


@pytest.mark.parametrize(("moments", "close"), [("quadrature", 0.02), ("mackay", 0.1)])
@pytest.mark.parametrize(("n", "dim"), [(10, 1), (60, 1), (30, 2)])
def test_posteriors_are_close_to_dense_quadrature(n, dim, moments, close):
    x, y = data(n, dim, seed=2)
    mean, covariance = torch.zeros(dim, dtype=DOUBLE), 4 * torch.eye(dim, dtype=DOUBLE)
    found = ep_logistic(x, y, prior_covariance=4.0, moments=moments)
    m, s, log_evidence, w, weight = dense(x, y, mean, covariance, 12.0, 1001 if dim == 2 else 20001)
    spread = s.diagonal().sqrt()
    assert ((found.mean - m).abs() / spread).max() < close
    assert ((found.covariance - s).abs() / torch.outer(spread, spread)).max() < 2.5 * close
    assert found.log_evidence == pytest.approx(log_evidence, abs=close)
    inputs = normal(20, dim, seed=5) * 2
    predicted = predict(found.mean, found.covariance, inputs)
    assert (predicted - (w @ inputs.T).sigmoid().T @ weight).abs().max() < 0.2 * close


def one_by_one(x: Tensor, y: Tensor, variance: float) -> tuple[float, float]:
    r"""EP in one dimension as books have it: site after site, moments by sums over a grid."""
    w = torch.linspace(-25, 25, 20_001, dtype=DOUBLE)
    tau, nu = torch.zeros(len(x), dtype=DOUBLE), torch.zeros(len(x), dtype=DOUBLE)
    for _, i in itertools.product(range(40), range(len(x))):
        precision, shift = 1 / variance + tau.sum() - tau[i], nu.sum() - nu[i]  # without site i
        log = shift * w - precision * w**2 / 2 + F.logsigmoid((2 * y[i] - 1) * x[i, 0] * w)
        weight = log.softmax(0)
        m = weight @ w
        v = weight @ (w - m) ** 2
        tau[i], nu[i] = 1 / v - precision, m / v - shift
    v = 1 / (1 / variance + tau.sum())
    return float(v * nu.sum()), float(v)


@pytest.mark.parametrize("damping", [1.0, 0.5, 0.2])
@pytest.mark.parametrize("weight", [1.0, 30.0])  # the latter is separable
def test_the_fixed_point_is_that_of_going_site_by_site(weight, damping):
    x, y = data(12, 1, seed=3, weight=weight)
    found = ep_logistic(x, y, prior_covariance=9.0, moments="quadrature", damping=damping)
    mean, variance = one_by_one(x, y, 9.0)
    assert float(found.mean) == pytest.approx(mean, abs=1e-5)
    assert float(found.covariance) == pytest.approx(variance, abs=1e-5)


def test_small_steps_are_not_taken_for_the_end():
    x, y = data(12, 1, seed=3)
    options = dict(prior_covariance=9.0, moments="quadrature")
    found = ep_logistic(x, y, **options)
    slow = ep_logistic(x, y, **options, damping=0.02, tolerance=1e-6, iterations=5000)
    assert slow.converged
    assert slow.iterations > 10 * found.iterations
    assert float(slow.mean) == pytest.approx(float(found.mean), abs=1e-5)
    assert float(slow.covariance) == pytest.approx(float(found.covariance), abs=1e-5)


def test_variances_go_on_where_means_stand_still():
    x, y = torch.ones(6, 1, dtype=DOUBLE), torch.tensor([0.0, 1.0], dtype=DOUBLE).repeat(3)
    found = ep_logistic(x, y, prior_covariance=9.0, moments="quadrature")
    mean, variance = one_by_one(x, y, 9.0)
    assert float(found.mean) == pytest.approx(mean, abs=1e-7)
    assert float(found.covariance) == pytest.approx(variance, abs=1e-5)


@pytest.mark.parametrize("moments", ["quadrature", "mackay"])
def test_symmetries(moments):
    x, y = data(15, 3, seed=6)
    prior_mean, root = normal(3, seed=7), normal(3, 3, seed=8)
    covariance = root @ root.T + torch.eye(3, dtype=DOUBLE)
    found = ep_logistic(x, y, prior_mean, covariance, moments=moments)

    def same(other, mean, s):
        torch.testing.assert_close(other.mean, mean, atol=1e-6, rtol=0)
        torch.testing.assert_close(other.covariance, s, atol=1e-6, rtol=0)
        assert other.log_evidence == pytest.approx(found.log_evidence, abs=1e-6)

    order = torch.randperm(15, generator=torch.Generator().manual_seed(9))
    same(
        ep_logistic(x[order], y[order], prior_mean, covariance, moments=moments),
        found.mean, found.covariance,
    )  # fmt: skip
    same(
        ep_logistic(x, 1 - y, -prior_mean, covariance, moments=moments),
        -found.mean, found.covariance,
    )  # fmt: skip
    same(
        ep_logistic(-x, 1 - y, prior_mean, covariance, moments=moments),
        found.mean, found.covariance,
    )  # fmt: skip
    turn = torch.linalg.qr(normal(3, 3, seed=10)).Q
    same(
        ep_logistic(x @ turn.T, y, turn @ prior_mean, turn @ covariance @ turn.T, moments=moments),
        turn @ found.mean, turn @ found.covariance @ turn.T,
    )  # fmt: skip


@pytest.mark.parametrize("moments", ["quadrature", "mackay"])
@pytest.mark.parametrize(("n", "close"), [(1, 1e-9), (4, 0.02)])
def test_probabilities_of_all_labels_add_up_to_one(n, close, moments):
    x = normal(n, 2, seed=11)
    every = itertools.product([0, 1], repeat=n)
    logs = [ep_logistic(x, y, prior_covariance=3.0, moments=moments).log_evidence for y in every]
    assert sum(map(math.exp, logs)) == pytest.approx(1, abs=close)


def test_inputs_of_zeros_say_nothing_but_that_their_label_was_one_of_two():
    x, y = data(10, 2, seed=12)
    found = ep_logistic(x, y, moments="quadrature")
    more = ep_logistic(torch.cat([x, torch.zeros(1, 2)]), [*y, 1], moments="quadrature")
    torch.testing.assert_close(more.mean, found.mean, atol=1e-7, rtol=0)
    assert more.log_evidence == pytest.approx(found.log_evidence - math.log(2), abs=1e-7)
    prior = ep_logistic(torch.zeros(3, 2), [0, 1, 1], [1.0, 2.0], [[2.0, 1.0], [1.0, 2.0]])
    torch.testing.assert_close(prior.mean, torch.tensor([1.0, 2.0], dtype=DOUBLE))
    assert prior.converged


@pytest.mark.parametrize("moments", ["quadrature", "mackay"])
@pytest.mark.parametrize(("n", "prior"), [(24, 100.0), (200, 1e4)])
def test_separable_data_converge_to_something_that_separates(n, prior, moments):
    y = torch.tensor([0.0, 1.0], dtype=DOUBLE).repeat_interleave(n // 2)
    x = normal(n, 2, seed=13)
    x[:, 0] += 4 * (2 * y - 1)
    found = ep_logistic(x, y, prior_covariance=prior, moments=moments)
    assert found.converged
    assert torch.linalg.eigvalsh(found.covariance).min() > 0
    predicted = predict(found.mean, found.covariance, x)
    assert ((predicted > 0.5) == (y == 1)).all()
    if n == 24:  # the study's own data: EP is too sure, but not by much in what it predicts
        zeros, eye = torch.zeros(2, dtype=DOUBLE), prior * torch.eye(2, dtype=DOUBLE)
        _, s, log_evidence, w, weight = dense(x, y, zeros, eye, 60.0, 601)
        assert found.covariance[0, 0] < 0.8 * s[0, 0]
        assert found.log_evidence == pytest.approx(log_evidence, abs=1)
        axis = torch.linspace(-8, 8, 9, dtype=DOUBLE)
        grid = torch.cartesian_prod(axis, axis)
        error = predict(found.mean, found.covariance, grid) - (w @ grid.T).sigmoid().T @ weight
        assert error.abs().mean() < 0.05
        assert error.abs().max() < 0.12


def test_outliers_do_no_harm():
    x = torch.tensor([[50.0], [40.0], [60.0], [-1.0]], dtype=DOUBLE)
    y = torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=DOUBLE)  # the third is far on the wrong side
    found = ep_logistic(x, y, prior_covariance=1e4, moments="quadrature")
    one, kind = torch.zeros(1, dtype=DOUBLE), torch.full((1, 1), 1e4, dtype=DOUBLE)
    m, s, log_evidence, *_ = dense(x, y, one, kind, 5.0, 200_001)
    assert float(found.mean) == pytest.approx(float(m), abs=0.1 * math.sqrt(s))
    assert found.log_evidence == pytest.approx(log_evidence, abs=0.1)


def test_the_prior_is_standard_unless_another_is_given():
    x, y = data(10, 2, seed=15)
    found = ep_logistic(x, y)
    for other in (ep_logistic(x, y, [0.0, 0.0], torch.eye(2)), ep_logistic(x, y, None, 1.0)):
        assert torch.equal(other.mean, found.mean)
        assert torch.equal(other.covariance, found.covariance)


def test_rounds_that_do_not_suffice_are_told():
    x, y = data(30, 2, seed=14)
    with warns_about("EP", "3 iterations"):
        found = ep_logistic(x, y, iterations=3)
    assert not found.converged
    assert found.iterations == 3


@pytest.mark.parametrize(
    ("arguments", "argument", "received", "expected"),
    [
        (dict(X=[1.0, 2.0]), "X", r"shape \(2,\)", ""),
        (dict(X=torch.zeros(0, 2), y=[]), "X", r"shape \(0, 2\)", ""),
        (dict(X=[[math.nan, 1.0], [0.0, 0.0]]), "X", "NaN or infinite", ""),
        (dict(y=[1.0]), "y", r"shape \(1,\)", r"labels 0 or 1 of shape \(2,\)"),
        (dict(y=[-1, 1]), "y", r"such as \[-1.0, 1.0\]", "labels 0 or 1"),
        (dict(y=["a", "b"]), "y", r"\['a', 'b'\]", ""),
        (dict(prior_mean=[0.0]), "prior_mean", r"shape \(1,\)", r"shape \(2,\)"),
        (dict(prior_covariance=[1.0, 1.0]), "prior_covariance", r"shape \(2,\)", ""),
        (dict(prior_covariance=0.0), "prior_covariance", "a matrix that is not", ""),
        (
            dict(prior_covariance=[[1.0, 0.5], [0.0, 1.0]]),
            "prior_covariance",
            "a matrix that is not",
            "",
        ),
        (
            dict(prior_covariance=[[1.0, 2.0], [2.0, 1.0]]),
            "prior_covariance",
            "a matrix that is not",
            "",
        ),
        (dict(moments="mckay"), "moments", "'mckay'", "did you mean 'mackay'"),
        (dict(iterations=0), "iterations", "^0$", ""),
        (dict(tolerance=0), "tolerance", "^0$", ""),
        (dict(damping=1.5), "damping", r"^1\.5$", "a number above zero and up to 1"),
    ],
)
def test_bad_arguments_are_refused(arguments, argument, received, expected):
    good = dict(X=[[1.0, 0.0], [0.0, 1.0]], y=[0, 1])
    with refused(argument, received, expected=expected):
        ep_logistic(**good | arguments)
