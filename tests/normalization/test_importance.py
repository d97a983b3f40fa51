r"""Importance sampling: right where it is trusted, doubtful where weights or sweeps say so."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Bernoulli

from limbeck.normalization.estimate import log_mean
from limbeck.normalization.importance import Importance
from limbeck.normalization.log_partition import log_partition
from limbeck.samplers.diagnostics import pareto_k
from tests.normalization.small import (
    HALF,
    MODES,
    Tabular,
    generator,
    one_mode_student,
    random_rbm,
    student,
    table,
    two_modes,
)
from tests.refusals import refused


def weight_doubts(log_weights):
    return Importance()._mean_of_weights(log_weights, "weights").verdict.doubts


def estimated(target, proposal, **settings):
    settings = {"samples": 2000, "progress": False, "method": "importance"} | settings
    return log_partition(target, proposal, **settings)


def test_it_finds_log_z_of_small_models():
    scores, trusted = [], 0
    for seed in range(12):
        rbm = random_rbm(seed, scale=0.6)
        z = estimated(rbm, student(rbm), seed=seed)
        trusted += z.verdict.trustworthy
        assert z.upper_bound is None
        assert z.lower_bound < z.value
        scores.append((z.value - table(rbm)[2]) / z.std_error)
    assert trusted >= 10
    assert max(map(abs, scores)) < 4
    assert 1.5 < sum(s**2 for s in scores) < 33  # χ² of 12, one in a thousand on each side


def test_the_log_of_a_mean_is_taken_in_the_log_domain_with_its_error():
    weights = torch.rand(500, generator=generator(), dtype=torch.float64) + 0.1
    value, error = log_mean(weights.log() + 5000)
    assert value == pytest.approx(5000 + math.log(weights.mean()), abs=1e-9)
    apart = (weights / weights.mean() - 1) / (weights / weights.mean()).std()
    wider = 1 + max(float(apart.pow(3).mean()), 0.0) / (2 * math.sqrt(500))  # by their skewness
    assert error == pytest.approx(float(weights.std() / weights.mean()) / math.sqrt(500) * wider)


def test_errors_of_skewed_weights_cover():
    r"""Of log-normal weights, of which few are large: without the skewness, rms 1.09, 92.8%."""
    draw, scores = generator(), []
    for _ in range(2000):
        value, error = log_mean(1.1 * torch.randn(400, generator=draw, dtype=torch.float64))
        scores.append((value - 1.1**2 / 2) / error)
    scores = torch.tensor(scores)
    assert 0.935 < float((scores.abs() < 1.96).double().mean()) < 0.97
    assert float(scores.square().mean().sqrt()) < 1.04
    assert log_mean(torch.tensor([3.0])) == (3.0, math.inf)
    assert log_mean(torch.tensor([0.0, -math.inf]))[0] == pytest.approx(-math.log(2))


def test_the_lower_bound_is_the_free_energy_of_the_proposal():
    rbm = random_rbm(scale=1.0)
    _, log, log_z = table(rbm)
    q = student(rbm)
    z = estimated(rbm, q, samples=20_000)
    free = float(q.log_q.exp() @ (log - q.log_q))
    assert z.lower_bound == pytest.approx(free, abs=4 * z.lower_bound.std_error)
    assert free < log_z


def test_an_exact_student_gives_log_z_without_an_error():
    rbm = random_rbm()
    _, log, log_z = table(rbm)
    z = estimated(rbm, Tabular(log))
    assert z.value == pytest.approx(log_z, abs=1e-9)
    assert z.std_error < 1e-9
    assert z.verdict.trustworthy, z.verdict
    assert z.diagnostics["ess"] == pytest.approx(2000)


def test_heavy_tails_are_said_to_be_low():
    # Weights of the proposal p², half of whose mass is elsewhere than the target's.
    rbm = random_rbm(scale=3.0, seed=1)
    _, log, _log_z = table(rbm)
    z = estimated(rbm, Tabular(0.25 * log + 2 * torch.randn(len(log), generator=generator())))
    assert z.diagnostics["pareto_k"] > 0.7
    assert "heavy tail" in str(z.verdict)


@pytest.mark.parametrize("samples", [1, 3, 50])
def test_a_few_samples_are_too_few(samples):
    rbm = random_rbm()
    z = estimated(rbm, student(rbm), samples=samples)
    assert "too few" in str(z.verdict)
    assert z.interval()[0] < z.value
    if samples == 1:
        assert z.std_error == math.inf


def test_weights_of_which_one_counts_are_not_trusted():
    found = weight_doubts(torch.cat([torch.zeros(5000), torch.tensor([20.0])]))
    assert "effective number of weights is 1" in found[0]


@pytest.mark.parametrize(
    ("n", "k", "heavy"), [(100, 0.6, True), (20_000, 0.6, False), (20_000, 0.74, True)]
)
def test_fewer_weights_may_have_less_of_a_tail(n, k, heavy):
    # the limit is 1 − 1/log₁₀ n, and never above 0.7
    ranks = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    log_weights = (((1 - ranks) ** -k - 1) / k).log()
    limit = min(1 - 1 / math.log10(n), 0.7)
    assert (pareto_k(log_weights) > limit) == heavy
    assert any("heavy tail" in doubt for doubt in weight_doubts(log_weights)) == heavy


def test_scores_of_sweeps_are_standard_where_nothing_is_missed():
    rbm = random_rbm(scale=0.8)
    q = student(rbm)
    found = [estimated(rbm, q, samples=400, seed=seed).diagnostics for seed in range(80)]
    for name in ("near_z", "far_z"):
        scores = torch.tensor([each[name] for each in found])
        assert abs(scores.mean()) < 0.4
        assert 0.75 < scores.std() < 1.25  # known to 8%


def test_sweeps_from_near_start_from_samples_chosen_by_weight():
    # Both modes have the same mass, of which the proposal has 10% and 90%; no sweep crosses over.
    target = two_modes()
    x, log, _ = table(target)
    z = estimated(target, Tabular(log - math.log(9) * (x.sum(1) > MODES / 2)))
    assert abs(z.diagnostics["near_z"]) < 3
    assert "from near" not in str(z.verdict)


def test_a_little_mass_beyond_the_largest_weight_is_enough_for_doubts():
    rbm = random_rbm(scale=0.3)
    _, log, log_z = table(rbm)
    rising = (log - log_z).exp().sort()
    rare = rising.indices[rising.values.cumsum(0) < 0.0045]
    z = estimated(rbm, Tabular(log.index_add(0, rare, torch.full((len(rare),), -20.0).double())))
    assert abs(z.diagnostics["near_z"]) < 3.7  # which by itself is no reason
    assert abs(z.diagnostics["far_z"]) < 3.7
    assert "beyond the largest weight" in str(z.verdict)


def test_a_missed_mode_is_found_by_sweeps_from_elsewhere():
    z = estimated(two_modes(), one_mode_student())
    assert z.value == pytest.approx(HALF, abs=0.01)  # half of Z; all weights are equal
    assert z.diagnostics["pareto_k"] < 0
    assert not z.verdict.trustworthy
    assert "from far lead away" in str(z.verdict)
    assert "no mass" not in str(z.verdict)


def test_a_start_adds_to_the_chains_from_elsewhere():
    # From the zeros, where the samples are, nothing is seen; the target's own starts tell.
    for start in (torch.zeros(1, MODES), torch.ones(2, MODES), "proposal"):
        z = estimated(two_modes(), one_mode_student(), start=start)
        assert not z.verdict.trustworthy
        assert {"near_z", "far_z", "start_z"} <= z.diagnostics.keys()


def test_a_mode_at_constant_events_is_found_without_chains_from_there():
    alone = estimated(two_modes(), one_mode_student())
    assert any("the event of all 1" in reason for reason in alone.verdict.reasons)


def test_mass_next_to_the_samples_is_found_by_sweeps_from_them():
    # The proposal has almost nothing where the first bit is one; the target has a good part there.
    rbm = random_rbm(scale=0.3)
    x, log, log_z = table(rbm)
    z = estimated(rbm, Tabular(torch.where(x[:, 0] > 0, log - 20, log)))
    share = float((log - log_z).exp() @ x[:, 0])
    assert z.value == pytest.approx(log_z + math.log(1 - share), abs=0.01)
    assert z.diagnostics["pareto_k"] < 0.5
    assert "from near lead away" in str(z.verdict)
    missed = -math.log(1 - share)  # which the error has to cover, as far as sweeps can tell
    assert z.diagnostics["sampling_error"] < 0.01 * missed
    assert z.std_error > 0.5 * missed


def test_no_mass_where_the_target_has_some_is_said():
    rbm = random_rbm()
    x, log, _ = table(rbm)
    z = estimated(rbm, Tabular(torch.where(x[:, 0] > 0, -math.inf, log)))
    assert "the proposal has no mass at" in str(z.verdict)


def test_a_target_without_sweeps_or_with_inexact_ones_is_unchecked():
    class Bare:
        def __init__(self, rbm):
            self.support, self.log_unnormalized = rbm.support, rbm.log_unnormalized

    rbm = random_rbm()
    z = estimated(Bare(rbm), student(rbm))
    assert z.verdict.state == "unchecked"
    assert "it has no advance" in str(z.verdict)
    assert z.sweeps == 0
    assert "far_z" not in z.diagnostics
    rbm.exact = False
    z = estimated(rbm, student(rbm))  # it needs no samples of the target, but its check does
    assert z.verdict.state == "unchecked"
    assert "not exact" in str(z.verdict)


def test_zero_samples_and_other_supports_are_refused():
    rbm = random_rbm()
    with refused("samples", "0"):
        estimated(rbm, student(rbm), samples=0)
    with refused("proposal"):
        estimated(rbm, Bernoulli(torch.full((5,), 0.5)))


def test_mass_beyond_the_largest_weight_is_no_reason_where_the_proposal_has_as_much_of_it():
    rbm = random_rbm(scale=0.3)
    q = student(rbm, faith=1.0, noise=0.05)  # weights differ by a few percent
    verdicts = [str(estimated(rbm, q, samples=300, seed=seed).verdict) for seed in range(60)]
    assert not any("beyond the largest weight" in each for each in verdicts)
