r"""Annealing: unbiased for Z, bounds on the right sides, schedules, paths that are not there."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from limbeck.models.energy import Energy
from limbeck.normalization.annealing import temperatures
from limbeck.normalization.log_partition import exact_log_z, log_partition
from limbeck.supports import Real, Spins
from tests.normalization.small import generator, random_rbm, table
from tests.refusals import refused


def annealed(target, **settings):
    settings = {"samples": 500, "schedule": 100, "progress": False, "method": "ais"} | settings
    return log_partition(target, **settings)


def test_it_finds_log_z_of_small_models():
    scores = []
    for seed in range(12):
        rbm = random_rbm(seed, scale=1.0)
        z = annealed(rbm, seed=seed)
        assert z.verdict.trustworthy, z.verdict
        scores.append((z.value - table(rbm)[2]) / z.std_error)
    assert max(map(abs, scores)) < 4
    assert 1.5 < sum(s**2 for s in scores) < 33


def test_z_itself_is_unbiased_even_with_few_temperatures():
    rbm = random_rbm(scale=1.0, visible=6, hidden=4)
    log_z = table(rbm)[2]
    z = annealed(rbm, samples=100_000, schedule=3)
    assert z.value == pytest.approx(log_z, abs=4 * z.std_error)
    assert z.lower_bound < log_z - 20 * z.lower_bound.std_error  # while the mean log is far below


def test_the_two_ways_hold_log_z_between_them_and_close_in_as_temperatures_grow():
    rbm = random_rbm(scale=1.2)
    log_z = table(rbm)[2]
    gaps = []
    for schedule in (5, 30, 200):
        z = annealed(rbm, schedule=schedule, samples=2000, reverse=True, burn_in=200)
        for bound, side in ((z.lower_bound, 1), (z.upper_bound, -1)):
            assert side * (log_z - bound) > -4 * bound.std_error
        gaps.append(z.upper_bound - z.lower_bound)
        both, error = z.diagnostics["both_ways"], z.diagnostics["both_ways_error"]
        assert both == pytest.approx(log_z, abs=4 * error)
    assert gaps[0] > 3 * gaps[1] > 6 * gaps[2]


def test_energies_have_the_reversed_kernel_they_need():
    # Site-wise sweeps in a fixed order are not their own reversal.
    couplings = torch.randn(8, 8, generator=generator(1), dtype=torch.float64) / 2
    spins = Energy(lambda x: (x.double() @ couplings * x).sum(1), Spins(8))
    log_z = float(spins.log_unnormalized(spins.support.enumerate(0, 256)).double().logsumexp(0))
    z = annealed(spins, schedule=20, samples=4000, reverse=True, burn_in=50)
    assert z.verdict.trustworthy, z.verdict
    assert z.value == pytest.approx(log_z, abs=4 * z.std_error)
    both, error = z.diagnostics["both_ways"], z.diagnostics["both_ways_error"]
    assert both == pytest.approx(log_z, abs=4 * error)
    assert z.lower_bound < log_z < z.upper_bound


def test_the_way_back_takes_the_reversed_kernels_in_reversed_order():
    rbm = random_rbm()
    path, told = rbm.path(), []

    class Told:
        log_z, sample, climb = path.log_z, path.sample, path.climb
        log_unnormalized = path.log_unnormalized

        def advance(self, x, beta, generator=None, *, reverse=False):
            told.append((beta, reverse))
            return path.advance(x, beta, generator, reverse=reverse)

    annealed(rbm, path=Told(), schedule=5, reverse=True, samples=20, burn_in=5)
    assert told == [(1.0, True), (0.75, True), (0.5, True), (0.25, True)]


def test_bounds_the_wrong_way_round_are_said():
    # Draws of the target that are none, and kernels that leave them where they are.
    rbm = random_rbm(scale=1.0)
    path = rbm.path()
    x, log, _ = table(rbm)
    path.advance = lambda x, beta, generator=None, *, reverse=False: x
    worst = x[log.argmin()][None]
    z = annealed(rbm, path=path, reverse=True, burn_in=0, start=worst)
    assert z.upper_bound < z.lower_bound
    assert "the upper bound is below the lower one" in str(z.verdict)


def test_an_estimate_that_the_way_back_contradicts_has_an_error_that_says_so():
    rbm = random_rbm(scale=4.0, visible=14)
    z = annealed(rbm, schedule=2, path=rbm.path(), reverse=True, burn_in=300, samples=2000)
    assert "forward and reverse runs disagree" in str(z.verdict)
    assert z.std_error > abs(z.diagnostics["both_ways"] - z.value) > 3
    assert z.value == pytest.approx(table(rbm)[2], abs=3 * z.std_error)


def test_the_result_says_what_was_done():
    rbm = random_rbm()
    z = annealed(rbm, samples=50, schedule=11)
    assert (z.method, z.samples, z.sweeps) == ("ais", 50, 500)
    assert z.upper_bound is None
    both = annealed(rbm, samples=50, schedule=11, reverse=True, burn_in=7)
    assert both.sweeps == 500 + 500 + 350
    assert both.value == pytest.approx(z.value, abs=5 * (z.std_error + both.std_error))
    assert annealed(rbm, samples=50, schedule=11, seed=1).value != z.value


def test_hasty_annealing_is_not_trusted():
    rbm = random_rbm(scale=4.0, visible=14)
    z = annealed(rbm, schedule=2, path=rbm.path())
    assert not z.verdict.trustworthy
    assert abs(annealed(rbm, schedule=2).value - exact_log_z(rbm)) < abs(z.value - exact_log_z(rbm))


def test_target_draws_that_are_none_are_said():
    rbm = random_rbm(scale=2.0, seed=4)

    def slowly(x, sweeps=1, generator=None):
        moved = type(rbm).advance(rbm, x, 1, generator)
        stay = torch.rand(len(x), 1, generator=generator) < 0.98**sweeps
        return torch.where(stay, x, moved)

    rbm.advance = slowly
    z = annealed(rbm, reverse=True, burn_in=40)
    assert "chains still drift" in str(z.verdict)
    assert annealed(rbm, reverse=True, burn_in=6000).verdict.trustworthy
    rbm.exact = False
    z = annealed(rbm, reverse=True, burn_in=100)
    assert "not exact" in str(z.verdict)
    assert "not exact" not in str(annealed(rbm).verdict)  # forward needs no samples of the target


def test_the_schedule_of_2008():
    betas = temperatures("2008")
    assert len(betas) == 14_500
    assert (betas[0], betas[-1]) == (0.0, 1.0)
    assert sum(b < 0.5 for b in betas) == 500
    assert sum(0.5 <= b < 0.9 for b in betas) == 4000
    assert sum(0.9 <= b <= 1.0 for b in betas) == 10_000
    gaps = [b - a for a, b in itertools.pairwise(betas)]
    for start, stop, gap in (
        (0, 500, 0.5 / 500),
        (500, 4500, 0.4 / 4000),
        (4500, None, 0.1 / 9999),
    ):
        assert gaps[start:stop] == pytest.approx([gap] * len(gaps[start:stop]), rel=1e-6)
    assert all(a < b for a, b in itertools.pairwise(betas))


@pytest.mark.parametrize("count", [2, 3, 10, 1000])
def test_numbers_of_temperatures_are_spread_evenly(count):
    betas = temperatures(count)
    assert len(betas) == count
    assert (betas[0], betas[-1]) == (0.0, 1.0)
    gaps = [b - a for a, b in itertools.pairwise(betas)]
    assert gaps == pytest.approx([1 / (count - 1)] * (count - 1))


@pytest.mark.parametrize("schedule", ["2009", 1, 0, -3, 2.5, True, [], [0, 0.5, 1], ["a", "b"]])
def test_schedules_that_are_none_are_refused(schedule):
    with refused("schedule", expected="a whole number from 2, or '2008'"):
        annealed(random_rbm(), schedule=schedule)
    with refused("spacing", "'log'"):
        annealed(random_rbm(), spacing="log")


class Bare:
    def __init__(self, rbm):
        self.support, self.log_unnormalized = rbm.support, rbm.log_unnormalized


def test_a_path_that_is_none_is_refused():
    with refused("path", "an? object without log_z and sample"):
        annealed(random_rbm(), path=object())
    half = Bare(random_rbm())
    half.path = lambda: object()
    with refused("path", "an? object without log_z and sample"):
        annealed(half)
    real = Energy(lambda x: x.square().sum(1), Real(2))
    with refused("reverse", "True"):
        annealed(real, reverse=True)


def test_a_target_without_a_path_is_annealed_site_by_site():
    rbm = random_rbm(scale=1.0, visible=8)
    z = annealed(Bare(rbm), samples=1000)
    assert z.value == pytest.approx(table(rbm)[2], abs=4 * z.std_error)


def test_pairs_of_sites_without_a_path_are_annealed_both_ways():
    ring = Energy(lambda x: -0.5 * (x * x.roll(1, 1)).sum(1), Spins(8))

    class Ring:
        support, log_unnormalized = ring.support, staticmethod(ring.log_unnormalized)
        advance = staticmethod(ring.advance)

    z = annealed(Ring(), samples=1000, schedule=30, reverse=True, burn_in=50)
    assert z.value == pytest.approx(exact_log_z(ring), abs=4 * z.std_error)
    assert z.lower_bound < exact_log_z(ring) < z.upper_bound


def correlated(dim, seed=0):
    A = torch.randn(dim, dim, generator=generator(seed), dtype=torch.float64)
    precision = A @ A.T / dim + 0.3 * torch.eye(dim, dtype=torch.float64)
    log_z = dim / 2 * math.log(2 * math.pi) - float(torch.logdet(precision)) / 2
    centre = torch.arange(dim, dtype=torch.float64)
    return Energy(
        lambda x: (((x - centre.to(x)) @ precision.to(x)) * (x - centre.to(x))).sum(1) / 2,
        Real(dim),
    ), log_z


@pytest.mark.parametrize("dim", [1, 3, 20])
def test_densities_over_real_numbers_are_annealed_from_a_normal_one(dim):
    target, log_z = correlated(dim)
    z = annealed(target, samples=300, schedule=60, spacing="adaptive")
    assert z.verdict.trustworthy, z.verdict
    assert z.value == pytest.approx(log_z, abs=4 * z.std_error)
    assert z.std_error < 0.1


def test_energies_without_derivatives_are_annealed_by_slices():
    target = Energy(lambda x: x.abs().sum(1).detach(), Real(2))
    z = annealed(target, samples=300, schedule=20)
    assert z.value == pytest.approx(2 * math.log(2), abs=4 * z.std_error)


def test_adaptive_temperatures_vary_less_where_the_path_is_uneven():
    rbm = random_rbm(scale=3.0, visible=14)  # nearly all of its length is near β = 0
    errors = {
        spacing: annealed(rbm, schedule=30, spacing=spacing, samples=4000).std_error
        for spacing in ("linear", "adaptive")
    }
    assert errors["adaptive"] < errors["linear"]


def test_weights_that_are_no_numbers_are_refused():
    class Broken:
        support, log_z = random_rbm().support, 0.0

        def sample(self, n, generator=None):
            return torch.zeros(n, 12)

        def climb(self, x, before, after, generator=None):
            return torch.full((len(x),), math.nan), x

        log_unnormalized = advance = None

    with refused("target", "log weights such as nan"):
        annealed(random_rbm(), path=Broken())


def test_rounding_is_part_of_the_error_where_weights_are_equal():
    fields = torch.randn(200, generator=generator())
    target = Energy(lambda x: -(x * fields).sum(1), Spins(200))
    truth = float((2 * fields.double().cosh()).log().sum())
    z = log_partition(target, exact=False, progress=False)
    assert abs(z.value - truth) < 4 * z.std_error < 1e-3


@pytest.mark.slow
def test_annealing_reaches_both_phases_of_a_lattice_in_a_field():
    # a few percent of the mass have the other sign, which annealing from one phase missed
    def energy(x):
        return -(x * (x.roll(1, 1) + x.roll(1, 2))).sum((1, 2)) - 0.1805 * x.sum((1, 2))

    target = Energy(energy, Spins(5, 5), temperature=2.334)
    truth = exact_log_z(target, progress=False)
    scores = []
    for seed in range(5):
        z = annealed(target, samples=4000, schedule=18, spacing="adaptive", seed=seed)
        scores.append((z.value - truth) / z.std_error)
    assert abs(sum(scores)) < 3.5 * math.sqrt(len(scores))
