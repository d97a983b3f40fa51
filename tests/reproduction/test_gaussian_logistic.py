r"""Means of sigmoids under Gaussians: adaptive quadrature, Monte Carlo, tails and derivatives."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.integrate
import torch
from hypothesis import given
from hypothesis import strategies as st

from reproduction.expectation_propagation import (
    NARROW,
    log_moments,
    mackay_mean,
    predict,
    sigmoid_mean,
)
from tests.refusals import refused

DOUBLE = torch.float64
MEANS = [-60.0, -5.0, -1.0, 0.0, 0.3, 2.0, 12.0, 50.0]
VARIANCES = [1e-6, 0.3, 0.99 * NARROW, 1.01 * NARROW, 4.0, 30.0, 1700.0, 1e6]


def one(value: float) -> torch.Tensor:
    return torch.tensor([value], dtype=DOUBLE)


def adaptive(mean: float, variance: float) -> float:
    r"""The mean of σ(a) by scipy's adaptive quadrature, told where things happen."""
    spread = math.sqrt(variance)

    def integrand(a):
        return math.exp(-np.logaddexp(0, -a) - ((a - mean) / spread) ** 2 / 2)

    low, high = mean - 12 * spread, mean + 12 * spread
    edges = {low, high, *(e for e in (-10, 0, 10, mean - spread, mean + spread) if low < e < high)}
    edges = sorted(edges)
    parts = [
        scipy.integrate.quad(integrand, a, b, epsabs=1e-14, epsrel=1e-13, limit=200)[0]
        for a, b in itertools.pairwise(edges)
    ]
    return sum(parts) / (spread * math.sqrt(2 * math.pi))


@pytest.mark.parametrize("variance", VARIANCES)
@pytest.mark.parametrize("mean", MEANS)
def test_means_agree_with_adaptive_quadrature(mean, variance):
    found = float(sigmoid_mean(one(mean), one(variance)))
    assert found == pytest.approx(adaptive(mean, variance), abs=1e-9)
    assert float(mackay_mean(one(mean), one(variance))) == pytest.approx(found, abs=0.02)


def grid_of_tilted(mean: float, variance: float) -> tuple[float, float, float]:
    r"""log Z, slope and minus curvature from moments of the tilted Gaussian on a fine grid."""
    spread = math.sqrt(variance)
    a = np.linspace(min(mean, mean + variance) - 12 * spread - 40, mean + 12 * spread + 40, 2**20)
    log = -np.logaddexp(0, -a) - ((a - mean) / spread) ** 2 / 2
    top = log.max()
    weight = np.exp(log - top)
    total = weight.sum()
    m = (weight @ a) / total
    v = (weight @ (a - m) ** 2) / total
    log_z = top + math.log(total * (a[1] - a[0]) / spread) - math.log(2 * math.pi) / 2
    return log_z, (m - mean) / variance, (1 - v / variance) / variance


@pytest.mark.parametrize("variance", [0.3, 0.99 * NARROW, 1.01 * NARROW, 4.0, 30.0, 1700.0])
@pytest.mark.parametrize("mean", [-300.0, -60.0, -5.0, -1.0, 0.0, 2.0, 12.0])
def test_log_moments_are_right_in_the_tails_too(mean, variance):
    found = [float(each) for each in log_moments(one(mean), one(variance))]
    log_z, slope, bend = grid_of_tilted(mean, variance)
    assert found[0] == pytest.approx(log_z, abs=1e-7)
    assert found[1] == pytest.approx(slope, rel=1e-5, abs=1e-9)
    assert found[2] == pytest.approx(bend, rel=1e-4, abs=1e-8)


@given(st.floats(-1e4, 1e4), st.floats(0, 1e6))
def test_log_moments_belong_to_a_log_concave_function(mean, variance):
    log_z, slope, bend = log_moments(one(mean), one(variance))
    assert log_z <= 1e-12
    assert -1e-12 <= slope <= 1 + 1e-9
    assert 0 <= bend * variance < 1  # the tilted variance is positive, and not above the other


@given(st.floats(-40, 40), st.floats(0, 1e5))
def test_derivatives_are_those_of_the_mean(mean, variance):
    log_z, slope, bend = log_moments(one(mean), one(variance))
    assert float(log_z.exp()) == pytest.approx(
        float(sigmoid_mean(one(mean), one(variance))), abs=1e-9
    )
    step = 1e-3 * (1 + math.sqrt(variance))
    up, down = (log_moments(one(mean + s), one(variance)) for s in (step, -step))
    assert float(up[0] - down[0]) / (2 * step) == pytest.approx(float(slope), abs=1e-5)
    assert float(down[1] - up[1]) / (2 * step) == pytest.approx(float(bend), abs=1e-5)


@given(st.floats(-100, 100), st.floats(0, 1e6), st.sampled_from(["quadrature", "mackay"]))
def test_the_other_label_has_the_rest(mean, variance, method):
    p = predict([mean], [[variance]], [[1.0], [-1.0]], method)
    assert float(p.sum()) == pytest.approx(1, abs=1e-9)
    assert ((p >= -1e-12) & (p <= 1 + 1e-12)).all()


def test_without_variance_it_is_the_sigmoid():
    x = torch.linspace(-50, 50, 101, dtype=DOUBLE)[:, None]
    for method in "quadrature", "mackay":
        found = predict([1.0], [[0.0]], x, method)
        torch.testing.assert_close(found, x[:, 0].sigmoid(), atol=1e-12, rtol=0)


def test_predictions_agree_with_monte_carlo():
    generator = torch.Generator().manual_seed(0)
    root = 3 * torch.randn(3, 3, generator=generator, dtype=DOUBLE).tril()
    mean = torch.tensor([1.0, -2.0, 0.5], dtype=DOUBLE)
    x = torch.randn(20, 3, generator=generator, dtype=DOUBLE)
    draws = mean + torch.randn(200_000, 3, generator=generator, dtype=DOUBLE) @ root.T
    sampled = (draws @ x.T).sigmoid()  # (draws, 20)
    error = sampled.std(0) / math.sqrt(len(sampled))
    found = predict(mean, root @ root.T, x)
    assert ((found - sampled.mean(0)) / error).abs().max() < 4
    mackay = predict(mean, root @ root.T, x, "mackay")
    assert 1e-4 < (mackay - found).abs().max() < 0.02


def test_more_nodes_are_better_and_few_are_still_close():
    mean, variance = torch.linspace(-20, 20, 200, dtype=DOUBLE), torch.tensor(1.9).double()
    for scale in 1.0, 100.0:
        v = (scale * variance).expand(200)
        errors = [
            float((sigmoid_mean(mean, v, nodes) - sigmoid_mean(mean, v, 100)).abs().max())
            for nodes in (8, 16, 32)
        ]
        assert errors == sorted(errors, reverse=True)
        assert errors[0] < 1e-2
        assert errors[-1] < 1e-9


def test_many_rows_are_as_few():
    x = torch.randn(40_000, 2, generator=torch.Generator().manual_seed(1))
    whole = predict([1.0, 2.0], torch.eye(2) * 9, x)
    assert whole.shape == (40_000,)
    torch.testing.assert_close(whole[-5:], predict([1.0, 2.0], torch.eye(2) * 9, x[-5:]))
    assert predict([1.0, 2.0], torch.eye(2), torch.zeros(0, 2)).shape == (0,)


@pytest.mark.parametrize(
    ("arguments", "argument", "received", "expected"),
    [
        (dict(mean=[[1.0]]), "mean", r"shape \(1, 1\)", r"shape \(1,\)"),
        (dict(covariance=[1.0]), "covariance", r"shape \(1,\)", ""),
        (dict(x=[1.0]), "x", r"shape \(1,\)", r"shape \(n, 1\)"),
        (dict(x=[[1.0, 2.0]]), "x", r"shape \(1, 2\)", r"shape \(n, 1\)"),
        (dict(x=[[math.nan]]), "x", "NaN or infinite numbers", ""),
        (dict(mean=["a"]), "mean", r"^\['a'\]$", ""),
        (dict(covariance=[[-1.0]]), "covariance", "a negative variance", ""),
        (
            dict(method="quadratur"),
            "method",
            "'quadratur'",
            "did you mean 'quadrature'",
        ),
        (dict(nodes=1), "nodes", "^1$", "a whole number from 2 to 200"),
        (dict(nodes=1000), "nodes", "^1000$", ""),
    ],
)
def test_bad_arguments_are_refused(arguments, argument, received, expected):
    good = dict(mean=[1.0], covariance=[[1.0]], x=[[1.0]])
    with refused(argument, received, expected=expected):
        predict(**good | arguments)
