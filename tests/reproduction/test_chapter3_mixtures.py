r"""Chapter 3's mixture in small: its posterior, its exact predictive density, its students."""

import math

import pytest
import torch
from scipy import stats

from limbeck.condensation.stepwise_em import StepwiseEM
from reproduction import chapter3_exact, chapter3_remarks
from reproduction.chapter3_exact import exact_log_density, marginals, span
from reproduction.chapter3_mixtures import (
    GRID,
    MEANS,
    VARIANCES,
    Predicted,
    Recorded,
    batch_student,
    chains,
    divergence,
    log_density,
    log_posterior,
    observations,
    online_student,
    predicted,
    sampler,
    truth,
)
from reproduction.chapter3_remarks import Trial, remarks

DOUBLE = torch.float64
STEP = float(GRID[1] - GRID[0])
X = observations(5, 0)


def test_observations_are_of_the_true_mixture_and_of_their_seed():
    x = observations(1000, 1)
    assert torch.equal(x, observations(1000, 1))
    assert not torch.equal(x[:5], observations(5, 1))
    components = [stats.norm(m, math.sqrt(v)) for m, v in zip(MEANS, VARIANCES, strict=True)]
    found = stats.kstest(x.numpy(), lambda at: sum(c.cdf(at) for c in components) / 3)
    assert found.pvalue > 1e-3


def test_the_posterior_is_the_prior_times_the_likelihood():
    w = 3 * torch.randn(6, 3, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    scale = torch.tensor(VARIANCES, dtype=DOUBLE).sqrt()
    each = torch.distributions.Normal(w[:, None], scale).log_prob(X[:, None])  # (6, 5, 3)
    expected = (each.logsumexp(-1) - math.log(3)).sum(1)
    expected += torch.distributions.Normal(0.0, 10.0).log_prob(w).sum(1)
    found = log_posterior(X)(w)
    torch.testing.assert_close(found - found[0], expected - expected[0], rtol=1e-10, atol=1e-10)


def test_a_divergence_of_gaussians_is_the_formula():
    logs = [
        torch.as_tensor(stats.norm(m, s).logpdf(GRID.numpy())) for m, s in ((0.0, 1.0), (1.0, 3.0))
    ]
    expected = math.log(3) + (1 + 1) / (2 * 9) - 0.5
    assert divergence(*logs) == pytest.approx(expected, rel=1e-9)
    assert divergence(logs[0], logs[0]) == 0


def test_the_density_of_draws_is_their_mean_in_blocks_too(monkeypatch):
    draws = torch.randn(7, 3, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))
    scale = torch.tensor(VARIANCES, dtype=DOUBLE).sqrt()
    each = torch.distributions.Normal(draws[:, None], scale).log_prob(GRID[:, None])
    expected = each.exp().mean((0, 2))
    monkeypatch.setattr("reproduction.chapter3_mixtures.BLOCK", 3 * len(GRID))
    found = log_density(draws).exp()
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-300)
    assert found.sum().item() * STEP == pytest.approx(1, abs=1e-9)


def gaussian(x, mean, variance):
    return torch.exp(-((x - mean) ** 2) / (2 * variance)) / math.sqrt(2 * math.pi * variance)


def test_the_exact_density_of_one_observation_is_an_integral_over_each_mean():
    x, zero = torch.tensor([1.5], dtype=DOUBLE), torch.zeros((), dtype=DOUBLE)
    w = torch.linspace(-90, 90, 20_001, dtype=DOUBLE)
    evidence = [gaussian(x[0], zero, 100 + v) for v in VARIANCES]
    at = torch.tensor([-2.0, 0.0, 3.0], dtype=DOUBLE)
    expected = torch.zeros_like(at)
    for k, variance in enumerate(VARIANCES):
        others = sum(evidence) - evidence[k]  # x is of another component, which k knows nothing of
        posterior = gaussian(w, 0.0, 100.0) * (gaussian(x[0], w, variance) + others)
        posterior /= posterior.sum()
        expected += gaussian(at[:, None], w, variance) @ posterior / 3
    torch.testing.assert_close(exact_log_density(x, at).exp(), expected, rtol=1e-6, atol=0)


def test_the_exact_posterior_is_a_distribution_and_does_not_depend_on_blocks(monkeypatch):
    p = marginals(X)[1]
    torch.testing.assert_close(p.sum(1), torch.ones(3, dtype=DOUBLE))
    assert (p >= 0).all()
    assert exact_log_density(X).exp().sum().item() * STEP == pytest.approx(1, abs=1e-6)
    monkeypatch.setattr(chapter3_exact, "TOGETHER", 2)
    torch.testing.assert_close(marginals(X)[1], p, rtol=1e-9, atol=1e-15)
    assert span(20) == (56.0, 0.5)
    assert span(4000)[1] == pytest.approx(span(1000)[1] / 2)


def test_chains_come_to_the_exact_density_and_students_to_the_chains():
    long = chains(sampler(X, 200, 100, seed=0), 60)
    assert long.shape == (200, 60, 3)
    pool, exact = long.flatten(0, 1), exact_log_density(X)
    assert divergence(exact, log_density(pool)) < 2e-3
    assert divergence(exact, log_density(pool + 1)) > 2e-2  # other chains would be seen
    batch = batch_student(pool, samples=5000, seed=0, restarts=3)
    update = StepwiseEM(restarts=4, start=1000)
    online = online_student(Recorded(long.transpose(0, 1).flatten(0, 1)), 50, 200, 0, update)
    with torch.no_grad():
        assert divergence(exact, batch.log_prob(GRID)) < 0.05
        assert divergence(exact, online.log_prob(GRID)) < 0.01
        assert divergence(exact, truth().log_prob(GRID)) > 1


def test_draws_predict_one_x_each_and_are_handed_out_once():
    draws = torch.arange(30.0, dtype=DOUBLE).reshape(10, 3) * 100
    x = predicted(draws, torch.Generator().manual_seed(0))
    assert x.shape == (10, 1)
    assert ((x - draws).abs().amin(1) < 20).all()  # near a mean of its own draw
    rows = Recorded(draws)
    source = Predicted(rows, held=4)
    assert source.probe(6).x.shape == (6, 1)
    assert rows.used == 4
    state = source.state_dict()
    first = source.draw(3)
    source.load_state_dict(state)
    assert rows.used == 4
    assert torch.equal(source.draw(3), first)


def test_trials_use_the_draws_that_they_say(monkeypatch):
    long = torch.arange(2 * 400, dtype=DOUBLE).reshape(2, 400, 1).expand(2, 400, 3) / 400
    trial = Trial("thinned, two chains", batch=10, share=0.1, thin=5, chains=2)
    rows = chapter3_remarks._rows(trial, long, repeat=1)
    assert len(rows) == 50
    assert rows[:4, 0].tolist() == [1.0, 0.0, 1 + 5 / 400, 5 / 400]
    made = chains(sampler(X, 2, 20, seed=0), 300)
    few = (Trial("plain", batch=50), Trial("tenths", batch=10, share=0.5, chains=2))
    monkeypatch.setattr(chapter3_remarks, "TRIALS", few)
    found = remarks(5, 0, made, repeats=2)
    assert found["observations"] == 5
    assert list(found["trials"]) == ["plain", "tenths"]
    for each in found["trials"].values():
        assert each["mean"] == pytest.approx(sum(each["kl"]) / 2)
        assert each["std_error"] == pytest.approx(abs(each["kl"][0] - each["kl"][1]) / 2)
        assert 0 < each["mean"] < 1
