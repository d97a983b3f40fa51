r"""Effective sizes against series that are known, k̂ against draws of generalised Pareto."""

from __future__ import annotations

import math
import warnings

import pytest
import scipy.signal
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from limbeck.samplers.diagnostics import effective_size, pareto_k, r_hat, weights_effective_size
from tests.refusals import refused


def autoregressive(phi: float, chains: int, draws: int, seed: int = 0) -> Tensor:
    r"""Stationary chains x_t = φ x_{t−1} + noise, with a variance of 1: ESS is n(1 − φ)/(1 + φ)."""
    noise = torch.randn(
        chains, draws, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    noise[:, 1:] *= math.sqrt(1 - phi**2)
    return torch.as_tensor(scipy.signal.lfilter([1.0], [1.0, -phi], noise.numpy(), axis=1))


@pytest.mark.parametrize("phi", [-0.5, -0.3, 0.0, 0.5, 0.9])
@pytest.mark.parametrize("chains", [1, 4, 50])
def test_the_size_of_an_autoregressive_series_is_the_known_one(phi, chains):
    n = 40_000
    known = n * (1 - phi) / (1 + phi)
    found = [effective_size(autoregressive(phi, chains, n // chains, seed)) for seed in range(5)]
    assert sum(found) / 5 == pytest.approx(known, rel=0.1)


@pytest.mark.parametrize(("phi", "draws"), [(0.8, 2), (0.8, 5), (-0.6, 3), (-0.6, 8)])
def test_many_short_chains_have_the_exact_size_of_their_finite_length(phi, draws):
    lags = range(1, draws)
    time = 1 + 2 * sum((1 - t / draws) * phi**t for t in lags)
    chains = 20_000
    found = effective_size(autoregressive(phi, chains, draws))
    # Geyer's cut drops what alternates in sign; it may only make the size smaller.
    assert found == pytest.approx(chains * draws / time, rel=0.12 if phi < 0 else 0.04)


def test_a_strongly_antithetic_series_is_never_worth_more_than_it_is():
    for seed in range(10):
        found = effective_size(autoregressive(-0.9, 4, 5000, seed))
        assert 20_000 < found <= 20_000 * math.log10(20_000) < 20_000 * 19


def test_the_size_gives_the_error_of_the_mean():
    # 400 repetitions of 4 chains × 250: the spread of their means against what each one says.
    x = autoregressive(0.7, 1600, 250).reshape(400, 4, 250)
    claimed = torch.tensor([float(each.var()) / effective_size(each) for each in x])
    actual = x.mean((1, 2)).var()
    assert claimed.mean() == pytest.approx(float(actual), rel=0.2)


def test_it_is_the_mean_s_own_size_and_not_that_of_ranks_or_of_another_function():
    # x is antithetic, x² is not: each has its own.
    x = autoregressive(-0.5, 10, 4000)
    assert effective_size(x) > 2.5 * x.numel()
    assert effective_size(x.square()) < x.numel()


def test_chains_that_disagree_are_worth_their_number():
    apart = torch.arange(5.0)[:, None] + 0.01 * autoregressive(0.0, 5, 1000)
    assert effective_size(apart) == pytest.approx(5, rel=0.2)


def by_hand(x: Tensor) -> tuple[float, bool]:
    r"""Geyer's initial monotone sequence, lag by lag; and whether monotony changed anything."""
    x = x - x.mean()
    draws = x.shape[1]
    rho = [float((x[:, : draws - t] * x[:, t:]).sum() / x.square().sum()) for t in range(draws)]
    time, last, t, cut = -1.0, math.inf, 0, False
    while t < draws:
        pair = sum(rho[t : t + 2])
        if pair <= 0:
            time += max(rho[t], 0.0)
            break
        cut |= pair > last
        last = min(last, pair)
        time += 2 * last
        t += 2
    return x.numel() / max(time, 1 / math.log10(x.numel())), cut


@pytest.mark.parametrize("phi", [-0.95, -0.6, 0.0, 0.6, 0.95])
def test_the_size_is_geyer_s_sum_lag_by_lag(phi):
    cuts = 0
    for seed in range(10):
        x = autoregressive(phi, 3, 41, seed)
        expected, cut = by_hand(x)
        assert effective_size(x) == pytest.approx(expected, rel=1e-9)
        cuts += cut
    assert cuts or phi < 0.5


@pytest.mark.parametrize("shape", [(1, 1), (7, 1), (1, 2), (3, 5)])
def test_single_draws_and_constants_are_worth_their_number(shape):
    assert effective_size(torch.full(shape, 3.3)) == math.prod(shape)
    if shape[1] == 1:
        assert effective_size(torch.randn(shape)) == shape[0]


@given(st.integers(1, 6), st.integers(1, 40), st.integers(0, 10_000), st.floats(1e-6, 1e6))
def test_the_size_is_positive_finite_and_free_of_scale(chains, draws, seed, scale):
    x = autoregressive(0.3, chains, draws, seed)
    found = effective_size(x)
    assert 0 < found <= x.numel() * max(1.0, math.log10(max(x.numel(), 11))) * (1 + 1e-9)
    assert effective_size(5 + scale * x) == pytest.approx(found, rel=1e-3)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_series_that_are_no_numbers_are_refused(bad):
    for function in (effective_size, r_hat):
        with refused("series", "1 NaN or infinite"):
            function(torch.tensor([[1.0, bad, 2.0, 3.0]]))


def test_r_hat_is_one_for_chains_that_agree_and_large_for_chains_apart():
    x = autoregressive(0.2, 6, 2000)
    assert r_hat(x) == pytest.approx(1, abs=0.01)
    x[0] += 3
    assert r_hat(x) > 1.3
    drifting = autoregressive(0.0, 4, 1000) + torch.linspace(0, 4, 1000)
    assert r_hat(drifting) > 1.3  # all alike, but the halves differ


@pytest.mark.parametrize("draws", [4, 7, 12])
def test_r_hat_is_gelman_and_rubin_s_formula(draws):
    x = autoregressive(0.5, 3, draws)
    half = draws // 2  # of an odd number of draws the one in the middle is left out
    halves = [part for chain in x for part in (chain[:half], chain[draws - half :])]
    within = sum(float(part.var()) for part in halves) / 6
    means = torch.stack([part.mean() for part in halves])
    pooled = (half - 1) / half * within + float(means.var())
    assert r_hat(x) == pytest.approx(math.sqrt(pooled / within), rel=1e-12)


def test_r_hat_of_constants_stuck_chains_and_short_ones():
    assert r_hat(torch.ones(3, 8)) == 1
    assert r_hat(torch.tensor([[0.0] * 8, [1.0] * 8])) == math.inf
    assert math.isnan(r_hat(torch.randn(5, 3)))


@pytest.mark.parametrize("k", [-0.3, 0.0, 0.3, 0.5, 0.7, 1.0])
def test_k_of_generalised_pareto_draws_is_found(k):
    found = []
    for seed in range(20):
        w = scipy.stats.genpareto.rvs(k, size=20_000, random_state=seed)
        found.append(pareto_k(torch.as_tensor(w).log()))
    found = torch.tensor(found)
    # the tail of such draws is again one of the same k; 424 of them, and a prior at ½ worth 10
    expected = (424 * k + 5) / 434
    assert float(found.mean()) == pytest.approx(expected, abs=0.06)
    assert found.std() < 0.15


@pytest.mark.parametrize("n", [40, 100, 1000])
@pytest.mark.parametrize("k", [0.2, 0.8])
def test_k_is_that_of_arviz(n, k):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its next version
        arviz = pytest.importorskip("arviz")
        if not hasattr(arviz, "psislw"):
            pytest.skip("this ArviZ has no psislw")
        log_w = torch.as_tensor(scipy.stats.genpareto.rvs(k, size=n, random_state=1)).log()
        known = arviz.psislw(log_w.numpy().copy())[1]
    assert pareto_k(log_w) == pytest.approx(float(known), abs=1e-9)


def test_k_agrees_with_maximum_likelihood_on_one_tail():
    w = torch.as_tensor(scipy.stats.genpareto.rvs(0.6, size=10_000, random_state=3)).log()
    size = 300
    top = (w - w.max()).exp().sort().values
    likely = scipy.stats.genpareto.fit((top[-size:] - top[-size - 1]).numpy(), floc=0)[0]
    assert pareto_k(w) == pytest.approx((size * likely + 5) / (size + 10), abs=0.03)


def test_k_does_not_change_with_a_constant_factor_and_survives_underflow():
    w = torch.as_tensor(scipy.stats.genpareto.rvs(0.4, size=3000, random_state=1)).log()
    assert pareto_k(w + 4000) == pytest.approx(pareto_k(w), abs=1e-6)
    assert pareto_k(torch.cat([w, torch.full((5,), -math.inf)])) < 0.8
    assert pareto_k(300 * w) > 0.7


def test_weights_without_a_tail():
    assert pareto_k(torch.zeros(1000)) == -math.inf
    assert math.isnan(pareto_k(torch.zeros(10)))
    assert math.isnan(pareto_k(torch.cat([torch.zeros(997), torch.arange(3.0)])))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("other", [0.0, -math.inf])
def test_weights_that_are_no_numbers_are_refused(bad, other):
    for function in (pareto_k, weights_effective_size):
        with refused("log_weights", "1 NaN or infinite values, the first"):
            function(torch.tensor([other, 0.0, bad]))


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=30))
def test_kish_s_size_lies_between_one_and_the_number(logs):
    found = weights_effective_size(torch.tensor(logs))
    assert 1 - 1e-6 <= found <= len(logs) + 1e-6
