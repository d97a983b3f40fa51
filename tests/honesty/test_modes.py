r"""Modes of a discrete target that the draws of an estimate of log Z never visit.

At a first-order transition nearly all draws are in one phase, and bridge, importance sampling and
annealing agree on its mass: all of them miss the other phase, with a small error and no doubt. Yet
the estimate itself implies how likely each event is, exp(log p̃(x) − log Ẑ). Constant events, events
found by hill climbing, and what lies around them must be visited that often, and no probability is
above one. Densities over real numbers may exceed Z, and are left alone.
"""

from __future__ import annotations

import math

import pytest
import torch

from limbeck.models.energy import Energy
from limbeck.normalization.densities import Densities
from limbeck.normalization.log_partition import exact_log_z, log_partition
from limbeck.normalization.mode_search import HURRIED, RANDOM_NUMBERS, check_modes
from limbeck.supports import Binary, Real, Spins, States
from tests.normalization.small import generator
from tests.refusals import refused

WAYS = {
    "bridge": {"method": "bridge", "burn_in": 5},
    "several draws of a chain": {"method": "bridge", "burn_in": 5, "chains": 50},
    "importance": {"method": "importance"},
    "annealing": {"method": "ais", "schedule": 10},
}
SIZE = 64
pytestmark = pytest.mark.usefixtures("all_random_events")


class Uniform:
    r"""A proposal that gives all events the same probability."""

    def __init__(self, support) -> None:
        self.support = support

    def log_prob(self, x):
        return torch.full((len(x),), -self.support.log_count, dtype=torch.float64)

    def sample(self, n, generator=None):
        return self.support.start(n, generator)


class Sites:
    r"""A proposal of independent spins that are up with one probability."""

    def __init__(self, support, up: float) -> None:
        self.support, self.up = support, up

    def log_prob(self, x):
        ups = (x > 0).flatten(1).sum(1).double()
        return ups * math.log(self.up) + (self.support.size - ups) * math.log1p(-self.up)

    def sample(self, n, generator=None):
        x = torch.rand(n, *self.support.shape, generator=generator)
        return (x < self.up).float() * 2 - 1


def magnet(beta: float, size: int = SIZE, pattern=1.0) -> Energy:
    r"""p ∝ exp(β N m⁷), with m the mean of the spins times a pattern."""
    return Energy(lambda x: -size * (x * pattern).mean(1) ** 7, Spins(size), temperature=1 / beta)


def log_z(beta: float, size: int = SIZE) -> float:
    r"""The exact value: a sum over the number of spins that are up."""
    ups = torch.arange(size + 1, dtype=torch.float64)
    count = torch.lgamma(torch.tensor(size + 1.0).double())
    count = count - torch.lgamma(ups + 1) - torch.lgamma(size - ups + 1)
    return float((count + beta * size * (2 * ups / size - 1) ** 7).logsumexp(0))


def estimate(target, proposal=None, **settings):
    proposal = Uniform(target.support) if proposal is None else proposal
    return log_partition(target, proposal, progress=False, **{"samples": 400} | settings)


def mode_reasons(z) -> list[str]:
    return [reason for reason in z.verdict.reasons if "the estimate implies" in reason]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("beta", [0.69, 0.85])
def test_an_ordered_phase_that_no_draw_visits(way, beta):
    r"""Half of the mass, or nearly all of it, is at 'all up'; every draw is in the other phase."""
    z = estimate(magnet(beta), **WAYS[way])
    assert z.value == pytest.approx(SIZE * math.log(2), abs=0.01)  # the disordered phase alone
    assert not z.verdict.trustworthy
    (reason,) = mode_reasons(z)
    assert "all 1" in reason
    assert "none of about" in reason
    assert ("a probability of 0.8" if beta < 0.8 else "above 1 (log Z is at least 54.4)") in reason
    low, high = z.interval()
    assert low < log_z(beta) < high  # the mass that was found is counted in with the error


def test_mass_around_an_event_counts_and_not_only_its_own():
    r"""In a larger magnet 'all up' itself is unlikely, and events near it hold the mass."""
    spins, field = 100, 2.2
    support = Spins(spins)

    def energy(x):  # independent spins beyond a wall, each up with a probability of 0.92
        mean = x.mean(1)
        phase = field * spins / 2 * mean - spins * math.log(2 * math.cosh(field / 2))
        return -torch.where(mean > 0.5, phase + spins * math.log(2), 0.0)

    target = Energy(energy, support)
    top = float(target.log_unnormalized(torch.ones(1, spins))) - spins * math.log(2)
    assert math.exp(top) < 1e-3  # of the probability, while one half is around it
    z = estimate(target, method="ais", schedule=4, samples=1000)
    assert z.value == pytest.approx(spins * math.log(2), abs=0.01)
    (reason,) = mode_reasons(z)
    assert "and the events around it" in reason
    assert z.std_error == pytest.approx(math.log(2), abs=0.1)


def test_a_gap_too_small_for_so_few_draws_is_counted_in_with_the_error():
    r"""At β = 0.6 one draw in 370 would be up: none of them is no sign, but its mass is known."""
    z = estimate(magnet(0.6), **WAYS["annealing"])
    assert not mode_reasons(z)
    assert z.value < log_z(0.6) - 0.002
    low, high = z.interval()
    assert low < log_z(0.6) < high


@pytest.mark.parametrize(("share", "missed"), [(0.02, True), (0.004, False)])
@pytest.mark.parametrize("seed", range(3))
def test_no_visit_where_ten_are_expected_is_a_miss_and_where_two_are_it_may_be_chance(
    share, missed, seed
):
    r"""A flat density with a spike, of which chance leaves one of ten out in 1 of 20,000 runs."""
    height = math.log(share / (1 - share)) + 40 * math.log(2)
    target = Energy(lambda x: torch.where(x.sum(1) == 0, -height, 0.0), Binary(40))
    z = estimate(target, method="ais", schedule=50, samples=500, seed=seed)
    assert z.verdict.trustworthy != missed
    low, high = z.interval()
    assert low < 40 * math.log(2) - math.log1p(-share) < high


@pytest.mark.parametrize("way", ["bridge", "importance"])
def test_a_planted_pattern_is_found_by_climbing(way):
    pattern = 2.0 * torch.randint(2, (SIZE,), generator=generator(5)) - 1
    z = estimate(magnet(0.85, pattern=pattern), **WAYS[way])
    (reason,) = mode_reasons(z)
    assert "found by hill climbing" in reason


@pytest.mark.parametrize("coupling", [1.0, -1.0])
def test_both_ground_states_of_a_lattice(coupling):
    r"""A cold ferromagnet or antiferromagnet, and a proposal and chains of one of two modes."""
    board = torch.ones(6, 6)
    if coupling < 0:
        board[::2, 1::2] = board[1::2, ::2] = -1

    def energy(x):
        return -coupling * (x * x.roll(1, 1) + x * x.roll(1, 2)).sum((1, 2))

    class Board(Sites):
        def log_prob(self, x):
            return super().log_prob(x * board)

        def sample(self, n, generator=None):
            return super().sample(n, generator) * board

    target = Energy(energy, Spins(6, 6), temperature=1.2)
    q = Board(target.support, 0.99)
    z = estimate(target, q, method="bridge", burn_in=10, second_start=None)
    assert mode_reasons(z), z.verdict
    low, high = z.interval()
    assert low < z.value + math.log(2) < high


def test_each_constant_category():
    r"""A Potts model of four values with long range: all four ordered phases are missed."""
    size, values = 24, 4

    def energy(x):
        shares = torch.stack([(x == value).float().mean(1) for value in range(values)], 1)
        return -2.0 * size * shares.pow(6).sum(1)

    z = estimate(Energy(energy, States(values, size)), method="importance")
    assert z.value < 40  # log p̃ of each constant event is 48
    (reason,) = mode_reasons(z)
    assert "the event of all" in reason


def spike(share: float = 0.5, size: int = 20) -> Energy:
    r"""All zeros has this probability, and all other events the same one."""
    height = math.log(share / (1 - share) * (2**size - 1))
    return Energy(lambda x: torch.where(x.sum(1) == 0, -height, 0.0), Binary(size))


class Spiked(Uniform):
    r"""One half of it at all zeros."""

    def log_prob(self, x):
        even = super().log_prob(x).exp() / 2
        return torch.where(x.sum(1) == 0, even + 0.5, even).log()

    def sample(self, n, generator=None):
        x = super().sample(n, generator)
        x[torch.rand(n, generator=generator) < 0.5] = 0
        return x


@pytest.mark.parametrize("way", ["bridge", "importance"])
@pytest.mark.parametrize("share", [0.5, 0.05])
def test_an_event_that_is_as_likely_as_it_is_visited(way, share):
    r"""All zeros is likely, and the proposal and chains that jump to its samples know it."""
    target = spike(share)
    settings = {"kernel": "metropolis"} if way == "bridge" else {}
    z = estimate(target, Spiked(target.support), method=way, **settings)
    assert not mode_reasons(z), z.verdict
    error = 5 * z.std_error + 1e-4
    assert z.value == pytest.approx(math.log((2**20 - 1) / (1 - share)), abs=error)
    if share == 0.5:
        assert z.verdict.trustworthy, z.verdict


@pytest.mark.parametrize("way", ["bridge", "importance", "annealing"])
def test_the_same_event_where_it_is_not_visited(way):
    z = estimate(spike(), **WAYS[way])
    (reason,) = mode_reasons(z)
    assert "the event of all 0" in reason


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("way", WAYS)
def test_no_alarm_where_draws_go_everywhere(way, seed):
    r"""Spins with random couplings, warm enough for chains to mix."""
    support = (Spins(10), Binary(2, 5), States(3, 6), States(5, 4))[seed]
    couplings = 0.25 * torch.randn(support.size, support.size, generator=generator(seed))

    def energy(x):
        x = x.flatten(1)
        return torch.einsum("ni,ij,nj->n", x, couplings, x) / max(support.count - 1, 1)

    target = Energy(energy, support)
    z = estimate(target, **WAYS[way], seed=seed)
    assert not mode_reasons(z), z.verdict
    if z.verdict:
        assert z.value == pytest.approx(exact_log_z(target, progress=False), abs=5 * z.std_error)


def test_a_density_over_real_numbers_may_exceed_its_integral():
    narrow = torch.distributions.Normal(torch.zeros(2), torch.full((2,), 0.01))
    target = Energy(lambda x: x.square().sum(1) / 2e-4, Real(2))  # log Z is −7.4, log p̃(0) is 0
    z = estimate(target, narrow, method="importance")
    assert z.verdict.trustworthy, z.verdict
    assert z.value == pytest.approx(math.log(2 * math.pi * 1e-4), abs=1e-3)
    assert z.diagnostics["modes_checked"]  # boxes, whose probability is below one


def test_events_without_a_density_are_left_out():
    r"""log p̃ is NaN at all zeros and −∞ at all ones: no probability is implied there."""

    def energy(x):
        ones = x.sum(1)
        return torch.where(ones == x.shape[1], math.inf, ones * 0 / ones)

    z = estimate(Energy(energy, Binary(30)), method="ais", schedule=3)
    assert z.verdict.trustworthy, z.verdict
    assert z.value == pytest.approx(30 * math.log(2), abs=1e-6)
    assert 0 < z.diagnostics["modes_evaluations"] - RANDOM_NUMBERS // 30 < 200_000


def test_an_event_of_infinite_density_is_refused():
    target = Energy(lambda x: torch.where(x.sum(1) == 0, -math.inf, 0.0), Binary(30))
    with refused("target", "a log density of"):
        estimate(target, method="ais", schedule=3)


@pytest.mark.parametrize("width", [7, 9])
def test_a_narrow_funnel_to_a_spike_is_found_among_random_events(width):
    r"""Of 40 bits, 2 or 34 in 100,000 events are in the funnel of a spike with half of the mass."""
    size, height = 40, 40 * math.log(2)
    peak = torch.randint(2, (size,), generator=generator(5)).float()

    def energy(x):
        distance = (x != peak).sum(1).to(x.dtype)
        return torch.where(distance <= width, -height * (1 - distance / (width + 1)), 0.0)

    z = estimate(Energy(energy, Binary(size)), method="ais", schedule=20, samples=500)
    assert not z.verdict.trustworthy
    assert mode_reasons(z)


@pytest.mark.parametrize("support", [Spins(12), Real(2)])
def test_a_search_that_has_no_time_is_not_one_that_found_nothing(support):
    target = Energy(lambda x: x.square().sum(1) / 2, support)
    densities = Densities(target)
    x = support.start(500, generator(0))[:, None]
    assert check_modes(densities, x, 0.0, 0.1)[1] == []
    densities.deadline = 0.0
    assert check_modes(densities, x, 0.0, 0.1)[1] == [HURRIED]
