r"""Bridge estimates: right where they are trusted, and doubtful where they cannot be."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Bernoulli

from limbeck.models.energy import Energy
from limbeck.normalization.log_partition import log_partition
from limbeck.supports import Binary, Real, Spins
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


def bridged(target, proposal, **settings):
    settings = {"samples": 2000, "burn_in": 100, "progress": False, "method": "bridge"} | settings
    return log_partition(target, proposal, **settings)


WAYS = {
    "sweeps": {},
    "automatic burn-in": {"burn_in": "auto"},
    "metropolis": {"kernel": "metropolis", "burn_in": None},
    "mixed": {"kernel": "mixed", "burn_in": None},
    "few long chains": {"chains": 20, "thin": 3},
    "some chains": {"chains": 500},
    "one start": {"second_start": None},
    "elsewhere": {"start": "target"},
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_finds_log_z_of_small_models(way):
    z_scores = []
    for seed in range(6):
        rbm = random_rbm(seed, scale=0.8)
        z = bridged(rbm, student(rbm), seed=seed, **WAYS[way])
        state = "unchecked" if way == "one start" else "trustworthy"
        assert z.verdict.state == state, z.verdict
        assert z.lower_bound - 4 * z.lower_bound.std_error < z.value
        assert z.upper_bound + 4 * z.upper_bound.std_error > z.value
        z_scores.append((z.value - table(rbm)[2]) / z.std_error)
    assert max(map(abs, z_scores)) < 4
    assert sum(s**2 for s in z_scores) < 22.5  # χ² of 6: one in a thousand


def test_the_bounds_are_log_z_less_and_more_the_divergences():
    rbm = random_rbm(scale=1.0)
    _, log, log_z = table(rbm)
    q = student(rbm)
    z = bridged(rbm, q, samples=20_000)
    ratio = log - q.log_q
    for bound, weights in ((z.lower_bound, q.log_q.exp()), (z.upper_bound, (log - log_z).exp())):
        assert bound == pytest.approx(float(weights @ ratio), abs=4 * bound.std_error)
    assert z.lower_bound < z.value < z.upper_bound


def test_the_upper_bound_of_slow_chains_has_an_error_that_knows_it():
    rbm = random_rbm(scale=1.0)
    q = student(rbm)

    def slowly(x, sweeps=1, generator=None):
        moved = type(rbm).advance(rbm, x, 1, generator)
        stay = torch.rand(len(x), 1, generator=generator) < 0.9**sweeps
        return torch.where(stay, x, moved)

    rbm.advance = slowly
    options = {"chains": 10, "second_start": None}
    bounds = [bridged(rbm, q, seed=seed, **options).upper_bound for seed in range(25)]
    spread = torch.tensor([float(bound) for bound in bounds]).std()
    claimed = torch.tensor([bound.std_error for bound in bounds]).mean()
    assert claimed == pytest.approx(
        float(spread), rel=0.4
    )  # known to 14%; the draws alone: 4 times


def test_the_result_says_what_was_done():
    rbm = random_rbm()
    z = bridged(rbm, student(rbm), samples=1000, burn_in=60, seed=4)
    assert (z.method, z.samples, z.seed) == ("bridge", 1000, 4)
    assert z.sweeps >= 1000 * 60
    assert z.seconds > 0
    assert {"ess", "overlap", "iterations", "memory_z", "drift_z", "starts_z"} <= set(z.diagnostics)
    assert z.diagnostics["chains"] == 1000
    assert z.diagnostics["burn_in"] == 60
    assert 0 < z.diagnostics["overlap"] <= 1.05
    few = bridged(rbm, student(rbm), samples=1001, chains=10)
    assert few.diagnostics["draws_per_chain"] == 101


def test_equal_seeds_give_equal_estimates_and_others_others():
    rbm = random_rbm()
    q = Bernoulli(torch.full((12,), 0.5, dtype=torch.float64))  # draws from torch's own generator
    for settings in ({}, {"kernel": "mixed", "burn_in": None}):
        one, two, other = (bridged(rbm, q, samples=300, seed=s, **settings) for s in (1, 1, 2))
        assert one.value == two.value
        assert one.std_error == two.std_error
        assert one.value != other.value


def test_an_exact_student_gives_log_z_without_an_error():
    rbm = random_rbm()
    _, log, log_z = table(rbm)
    for settings in ({}, {"kernel": "metropolis", "burn_in": None}, {"chains": 20}):
        z = bridged(rbm, Tabular(log), **settings)
        assert z.value == pytest.approx(log_z, abs=1e-9)
        assert z.std_error < 1e-9
        assert z.verdict.trustworthy
        assert z.interval(0.9)[0] == pytest.approx(log_z, abs=1e-9)


def test_spins_shaped_events_and_continuous_ones():
    couplings = torch.randn(9, 9, generator=generator(), dtype=torch.float64) / 3
    spins = Energy(lambda x: (x.flatten(1).double() @ couplings * x.flatten(1)).sum(1), Spins(3, 3))
    coins = Energy(lambda x: torch.zeros(len(x)), Spins(3, 3))

    class Uniform:
        support = Spins(3, 3)

        def sample(self, n, generator=None):
            return coins.support.start(n, generator)

        def log_prob(self, x):
            return torch.full((len(x),), -9 * math.log(2))

    z = bridged(spins, Uniform(), samples=4000, burn_in=20)
    exact = spins.log_unnormalized(spins.support.enumerate(0, 512)).double().logsumexp(0)
    assert z.verdict.trustworthy, z.verdict
    assert z.value == pytest.approx(float(exact), abs=4 * z.std_error)

    def exactly(x, sweeps, generator):
        return torch.randn(x.shape, generator=generator, dtype=x.dtype)

    normal = Energy(lambda x: x.square().sum(1) / 2, Real(2), advance=exactly)
    wide = torch.distributions.Normal(torch.zeros(2), 1.5)
    z = bridged(normal, wide, burn_in=2)
    assert z.verdict.trustworthy, z.verdict
    assert z.value == pytest.approx(math.log(2 * math.pi), abs=4 * z.std_error)


# What must not be trusted.


def test_a_student_of_one_mode_is_found_out_by_chains_from_elsewhere():
    z = bridged(two_modes(), one_mode_student())
    assert z.value == pytest.approx(HALF, abs=0.1)  # half of Z is missing,
    assert not z.verdict.trustworthy  # and the verdict knows
    assert "two starts disagree" in z.verdict.reasons[0]
    assert z.std_error > 5 * z.diagnostics["sampling_error"]  # the disagreement is counted in
    low, high = z.interval()
    assert low < HALF + math.log(2) < high
    for settings in WAYS.values():
        if settings != WAYS["one start"]:
            assert not bridged(two_modes(), one_mode_student(), **settings).verdict.trustworthy


def test_what_nobody_has_come_near_cannot_be_seen():
    # The limits of any verdict: nothing leads to this one event, which has half of the mass.
    bits = 60  # too many for random events to hit it
    place = torch.randint(2, (bits,), generator=generator(), dtype=torch.float64)
    height = math.log(2**bits - 1)
    hole = Energy(lambda x: torch.where((x == place).all(1), -height, 0.0), Binary(bits))
    coins = Bernoulli(torch.full((bits,), 0.5, dtype=torch.float64))
    alone = bridged(hole, coins, samples=200, burn_in=2)
    assert alone.verdict.trustworthy, alone.verdict
    assert "reached all of the mass" in alone.verdict.assumption
    assert alone.value == pytest.approx(bits * math.log(2), abs=0.01)
    seen = bridged(hole, coins, samples=200, burn_in=2, second_start=place[None])
    assert not seen.verdict.trustworthy


def test_a_mode_at_constant_events_is_found_without_chains_from_there():
    start = torch.zeros(1, MODES)
    for settings in ({"second_start": None}, {"start": start, "second_start": "proposal"}):
        alone = bridged(two_modes(), one_mode_student(), **settings)
        assert alone.value == pytest.approx(HALF, abs=0.01)
        assert any("the event of all 1" in reason for reason in alone.verdict.reasons)
    for settings in ({"second_start": torch.ones(1, MODES)}, {"start": torch.ones(1, MODES)}):
        assert not bridged(two_modes(), one_mode_student(), **settings).verdict.trustworthy


def test_events_and_a_student_of_one_mode_do_not_vouch_for_each_other():
    start = torch.zeros(1, MODES)
    for second in ("auto", "proposal", start):
        z = bridged(two_modes(), one_mode_student(), start=start, second_start=second)
        assert not z.verdict.trustworthy
        assert "two starts disagree" in z.verdict.reasons[0]


def test_a_student_of_both_modes_is_right_although_chains_do_not_cross():
    rbm = two_modes()
    z = bridged(rbm, student(rbm, faith=0.7))  # each has its half
    assert z.verdict.trustworthy, z.verdict
    assert z.value == pytest.approx(HALF + math.log(2), abs=4 * z.std_error)


def test_a_student_with_wrong_shares_of_modes_is_found_out():
    # One tenth of it where half of the target is; chains started there stay there.
    rbm = two_modes()
    x, log, _ = table(rbm)
    tilted = Tabular(log + torch.where(x.mean(1) > 0.5, -2.2, 0.0))
    z = bridged(rbm, tilted, second_start=None)
    assert not z.verdict.trustworthy
    assert "still depend on their start" in str(z.verdict)
    # Jumps mend it.
    mended = bridged(rbm, tilted, kernel="mixed", burn_in=None)
    assert mended.verdict.trustworthy, mended.verdict
    assert mended.value == pytest.approx(HALF + math.log(2), abs=4 * mended.std_error)


def test_chains_that_are_too_short_drift_or_remember():
    rbm = random_rbm(scale=1.5, seed=2)
    z = bridged(rbm, student(rbm), burn_in=0, second_start=None)
    assert "still depend on their start" in str(z.verdict)
    lazy = random_rbm(scale=1.5, seed=2)

    def slowly(x, sweeps=1, generator=None):
        # each sweep moves one chain in thirty
        moved = type(lazy).advance(lazy, x, 1, generator)
        stay = torch.rand(len(x), 1, generator=generator) < (29 / 30) ** sweeps
        return torch.where(stay, x, moved)

    lazy.advance = slowly
    z = bridged(lazy, student(lazy), burn_in=10, start="target", second_start=None)
    assert not z.verdict.trustworthy


def test_few_chains_that_differ_are_found_out_by_r_hat():
    rbm = two_modes()
    z = bridged(rbm, student(rbm, faith=0.9, noise=1.0), chains=4, second_start=None)
    assert not z.verdict.trustworthy
    assert z.diagnostics["ess"] < 200


def test_little_overlap_is_said():
    rbm = random_rbm(visible=14, scale=0.2)
    far = Bernoulli(logits=torch.full((14,), 5.0, dtype=torch.float64))
    z = bridged(rbm, far, samples=300)
    assert not z.verdict.trustworthy
    assert "hardly overlap" in str(z.verdict)


@pytest.mark.parametrize("samples", [1, 2, 5, 60])
def test_a_few_samples_are_too_few(samples):
    rbm = random_rbm()
    z = bridged(rbm, student(rbm), samples=samples)
    assert not z.verdict.trustworthy
    assert "too few" in str(z.verdict)
    assert z.std_error > 0
    low, high = z.interval()
    assert low < z.value < high
    if samples == 1:
        assert (low, high) == (-math.inf, math.inf)


def test_a_proposal_without_mass_where_the_target_has_some_is_said():
    rbm = random_rbm()
    _, log, log_z = table(rbm)
    half = Tabular(torch.where(torch.arange(len(log)) % 2 > 0, -math.inf, log))
    z = bridged(rbm, half)
    assert "the proposal has no mass at" in str(z.verdict)
    assert z.upper_bound == math.inf
    assert z.value == pytest.approx(log_z, abs=4 * z.std_error)  # a bridge can live with that


def test_a_sampler_that_is_not_exact_makes_it_doubtful():
    rbm = random_rbm()
    rbm.exact = False
    z = bridged(rbm, student(rbm))
    assert z.verdict.reasons == ("the target's sampler says that it is not exact",)


def test_log_z_below_the_density_of_a_single_event_is_impossible():
    # A broken sampler that stays among events without much mass.
    peak = Energy(
        lambda x: torch.where(x.sum(1) == 0, -50.0, 0.0), Binary(10), advance=lambda x, s, g: x
    )
    coins = Bernoulli(torch.full((10,), 0.5))
    z = bridged(peak, coins, start=torch.ones(1, 10), second_start=None, samples=5000)
    assert not z.verdict.trustworthy


@pytest.mark.parametrize(
    ("settings", "argument", "received", "expected"),
    [
        ({"samples": 0}, "samples", "^0$", "a whole number from 1"),
        ({"samples": -5}, "samples", "^-5$", ""),
        ({"samples": 10.5}, "samples", "^10.5$", ""),
        ({"chains": 0}, "chains", "^0$", "a whole number from 1"),
        ({"chains": 2001}, "chains", "^2001$", ""),
        ({"thin": 0}, "thin", "^0$", ""),
        ({"burn_in": -1}, "burn_in", "^-1$", ""),
        ({"burn_in": "long"}, "burn_in", "'long'", "a whole number from 0, or 'auto'"),
        ({"kernel": "gibs"}, "kernel", "'gibs'", ""),
        ({"start": "data"}, "start", "'data'", ""),
        ({"second_start": "data"}, "second_start", "'data'", ""),
        ({"start": torch.zeros(2, 3)}, "start", r"shape \(2, 3\)", ""),
    ],
)
def test_what_cannot_be_meant_is_refused(settings, argument, received, expected):
    rbm = random_rbm()
    with refused(argument, received, expected=expected):
        bridged(rbm, student(rbm), **settings)


def test_chains_that_end_without_mass_are_refused():
    stuck = Energy(
        lambda x: torch.where(x.sum(1) > 6, math.inf, 0.0), Binary(12), advance=lambda x, s, g: x
    )
    coins = Bernoulli(torch.full((12,), 0.2))
    with refused("target", "chains at events of zero density"):
        bridged(stuck, coins, start=torch.ones(1, 12))
