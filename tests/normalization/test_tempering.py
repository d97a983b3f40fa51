r"""Parallel tempering: log Z by MBAR with errors that hold, exchanges, and modes that are apart."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

import limbeck as lb
from limbeck.normalization.densities import Densities
from limbeck.normalization.paths import PairwisePath, SitePath, path_of
from limbeck.normalization.tempering import Replicas, Tempering, mbar, thermodynamic_integral
from tests.normalization.small import HALF, generator, random_rbm, table, two_modes
from tests.refusals import refused


def ring(q=3, size=6):
    return lb.Energy(lambda x: (x != x.roll(1, 1)).to(x.dtype).sum(1), lb.States(q, size))


def triples(x):
    return -(x[:, :-2] * x[:, 1:-1] * x[:, 2:]).sum(1)


TARGETS = {
    "RBM": random_rbm(scale=1.0, visible=8, hidden=5),
    "Potts": ring(),
    "triples": lb.Energy(triples, lb.Spins(8)),
    "forbidden": lb.Energy(lambda x: torch.where(x.sum(1) > 4, math.inf, -x.sum(1)), lb.Binary(8)),
    "normal": lb.Energy(lambda x: (x - 3).square().sum(1) / 8, lb.Real(2)),
}


def exact(name):
    if name == "normal":
        return math.log(2 * math.pi * 4)
    return lb.exact_log_z(TARGETS[name], progress=False)


def tempered(target, **settings):
    settings = {"samples": 1000, "ladders": 20, "burn_in": 30} | settings
    seed = settings.pop("seed", 0)
    return Tempering(**settings).estimate(target, seed=seed, progress=False)


@pytest.mark.parametrize("name", TARGETS)
def test_it_finds_log_z_of_every_kind_of_target(name):
    z = tempered(TARGETS[name])
    assert z.verdict.trustworthy, z.verdict
    assert z.value == pytest.approx(exact(name), abs=4 * z.std_error)
    assert z.std_error < 0.2
    if name != "forbidden":  # where the mean of log p̃ at β = 0 is −∞
        assert z.diagnostics["thermodynamic_integration"] == pytest.approx(z.value, abs=0.2)


def test_errors_are_those_of_repeated_runs():
    target, scores = ring(size=5), []
    truth = lb.exact_log_z(target, progress=False)
    for seed in range(25):
        z = tempered(target, samples=400, seed=seed)
        scores.append((z.value - truth) / z.std_error)
    assert max(map(abs, scores)) < 4.5
    assert 11 < sum(s**2 for s in scores) < 47  # 99.8% of a chi-square with 25 degrees


@pytest.mark.filterwarnings("ignore")  # pymbar passes options that SciPy does not know
def test_mbar_is_that_of_pymbar():
    pymbar = pytest.importorskip("pymbar")
    widths = torch.tensor([1.0, 1.5, 2.5], dtype=torch.float64)
    noise = torch.randn(3, 200, generator=generator(), dtype=torch.float64)
    x = (widths[:, None] * noise).flatten()
    log_p = -(x / widths[:, None]).square() / 2 + torch.tensor([[0.0], [3.0], [-2.0]])
    log_z, weights, H = mbar(log_p)
    other = pymbar.MBAR(-log_p.numpy(), [200] * 3)
    free = other.compute_free_energy_differences()
    assert (-log_z).tolist() == pytest.approx(free["Delta_f"][0].tolist(), abs=1e-6)
    # independent draws: the variance is that of the inverse, less that of known numbers of draws
    inverse = torch.linalg.inv(H[1:, 1:])
    own = torch.eye(3, dtype=torch.float64).repeat_interleave(200, 1)
    effect = inverse @ (weights - own)[1:]
    within = sum(effect[:, k * 200 : (k + 1) * 200].var(1) * 200 for k in range(3)).sqrt()
    assert within.tolist() == pytest.approx(free["dDelta_f"][0][1:].tolist(), rel=0.02)


def test_thermodynamic_integration_is_exact_for_quadratic_means():
    levels = [0.0, 0.3, 1.0]  # B is normal with mean t and variance 1 at t: log Z = t² / 2
    noise = torch.randn(1, 200_000, 1, generator=generator(), dtype=torch.float64)
    slope = noise + torch.tensor(levels, dtype=torch.float64)
    assert thermodynamic_integral(slope, levels) == pytest.approx(0.5, abs=0.02)


def test_levels_exchange_equally_often_after_the_burn_in_and_then_stay():
    densities = Densities(lb.Energy(lambda x: -0.4 * x.sum(1) ** 2 / 10, lb.Spins(20)))
    with densities.at_work():
        path = path_of(densities)
        replicas = Replicas(path, 30, 1.0, generator())
        replicas.adapt(None, False)
        levels = list(replicas.levels)
        for _ in range(60):
            replicas.step()
    rates = replicas.swap_rates()
    assert replicas.levels == levels
    assert max(rates) - min(rates) < 0.3
    assert min(rates) > 0.4
    assert (replicas.chain_at.sort(1).values == torch.arange(len(levels))).all()


def test_modes_that_sweeps_never_leave_are_both_visited():
    z = tempered(two_modes(), samples=2000)
    assert z.verdict.trustworthy, z.verdict
    assert z.value == pytest.approx(HALF + math.log(2), abs=4 * z.std_error)
    x = Tempering(ladders=40, burn_in=50).draw(two_modes(), 400, progress=False)
    assert x.shape == (400, 16)
    assert 0.3 < x.mean() < 0.7


def test_an_event_that_differs_from_pairs_leads_back_to_sweeps_by_sites():
    def walled(x):  # random events are never near the corner where it differs
        return -x.sum(1) - 100 * (x.sum(1) > 33).to(x.dtype)

    target = lb.Energy(walled, lb.Binary(36), temperature=1.0)
    densities = Densities(target)
    with densities.at_work():
        assert isinstance(path_of(densities), PairwisePath | SitePath)
        assert isinstance(path_of(densities, pairs=False), SitePath)
    z = lb.log_partition(target, method="ais", samples=200, schedule=50, progress=False)
    counts = torch.arange(37.0, dtype=torch.float64)
    choose = torch.lgamma(torch.tensor(37.0).double()) - torch.lgamma(counts + 1)
    choose = choose - torch.lgamma(37 - counts)
    truth = float((choose + counts + 100 * (counts > 33)).logsumexp(0))
    assert not z.verdict.trustworthy or abs(z.value - truth) < 4 * z.std_error


def test_what_is_wrong_is_refused():
    for argument, value in (("ladders", 3), ("levels", 1), ("samples", 0), ("burn_in", -1)):
        with refused(argument, str(value)):
            Tempering(**{argument: value})
    nan = lb.Energy(lambda x: torch.where(x[:, 0] > 0, math.nan, 0.0), lb.Spins(4))
    with pytest.raises(lb.LimbeckError):
        tempered(nan)


def test_few_draws_are_doubtful():
    z = tempered(TARGETS["RBM"], samples=20, burn_in=0)
    assert z.verdict.state == "doubtful"
    assert table(TARGETS["RBM"])[2] == pytest.approx(z.value, abs=1.0)


@pytest.mark.parametrize(("arrivals", "words"), [(0, "0 states"), (1, "1 state "), (2, "2 states")])
def test_few_arrivals_are_counted_in_words(arrivals, words):
    run = SimpleNamespace(arrivals=arrivals, swap_rates=lambda: [0.5])
    (doubt,) = Replicas.doubts(run)
    assert words in doubt
