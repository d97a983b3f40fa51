r"""Attacks on verdicts: samplers that are wrong, modes over real numbers, integrals that are none.

A sampler at a slightly wrong temperature gave estimates that were many errors off and trusted, and
so did a spike in a broad density. `tools/attacks.py` sweeps whole families of such targets.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path

import pytest
import torch
from torch.distributions import Independent, Normal

import limbeck as lb
from limbeck.normalization.bridge import fit_bridge
from limbeck.normalization.densities import Densities
from limbeck.normalization.regions import RealSearch
from tests.honesty.test_modes import Sites, estimate, mode_reasons, spike
from tests.normalization.small import generator
from tests.refusals import refused

SIZE, FIELD = 16, 0.6
pytestmark = pytest.mark.usefixtures("all_random_events")


def field_energy(x):
    return -FIELD * x.sum(1)


def field_log_z() -> float:
    return SIZE * math.log(2 * math.cosh(FIELD))


def sampler(temperature: float):
    r"""Draws of independent spins at a temperature, which should be one."""

    def advance(x, sweeps, generator):
        up = torch.rand(x.shape, generator=generator) < 1 / (1 + math.exp(-2 * FIELD / temperature))
        return up.to(x.dtype) * 2 - 1 if sweeps else x

    return advance


@pytest.mark.parametrize("temperature", [0.8, 1.25])
def test_a_sampler_at_a_wrong_temperature_is_noticed(temperature):
    target = lb.Energy(field_energy, lb.Spins(SIZE), advance=sampler(temperature))
    # as a student of such chains would be
    q = Sites(target.support, 1 / (1 + math.exp(-2 * FIELD / temperature)))
    z = estimate(target, q, method="bridge", samples=2000, burn_in=20)
    assert z.verdict.state == "doubtful"
    assert any("does not leave it invariant" in reason for reason in z.verdict.reasons)
    low, high = z.interval()
    assert low < field_log_z() < high  # the difference to importance sampling is in the error


@pytest.mark.parametrize("seed", range(3))
def test_a_right_sampler_is_trusted(seed):
    target = lb.Energy(field_energy, lb.Spins(SIZE), advance=sampler(1.0))
    z = estimate(target, Sites(target.support, 0.7), method="bridge", samples=2000, seed=seed)
    assert z.verdict.trustworthy, z.verdict
    assert z.value == pytest.approx(field_log_z(), abs=4.5 * z.std_error)


def test_scores_of_test_functions_are_standard_normal_if_draws_are_the_targets():
    r"""p = N(0, 1) and q = N(0.3, 1.3²), both sampled exactly: 400 repetitions."""
    draw, scores = generator(1), []
    q = Normal(torch.tensor(0.3).double(), torch.tensor(1.3).double())
    for _ in range(400):
        target = torch.randn(200, 1, generator=draw, dtype=torch.float64)
        proposal = 0.3 + 1.3 * torch.randn(300, generator=draw, dtype=torch.float64)
        log_ratio = [-x.square() / 2 - q.log_prob(x) for x in (target, proposal)]
        fit = fit_bridge(*log_ratio)
        values = [
            torch.stack([x, x.square(), x.sin()], -1).clamp(-4, 4) for x in (proposal, target)
        ]
        scores.append(fit.imbalance(*values))
    scores = torch.stack(scores)
    assert scores.mean(0).abs().max() < 0.2
    assert (scores.std(0) - 1).abs().max() < 0.13  # its own error is 0.035


def mixture(*parts):
    r"""The energy of a mixture of normal densities (weight, mean, deviation) of each variable."""

    def energy(x):
        logs = [math.log(w) + (Normal(m, s).log_prob(x)).sum(1) for w, m, s in parts]
        return -torch.stack(logs).logsumexp(0)

    return energy


def normal(dim: int, scale: float = 1.0) -> Independent:
    return Independent(Normal(torch.zeros(dim), scale * torch.ones(dim)), 1)


@pytest.mark.parametrize("dim", [1, 4])
def test_the_mass_of_a_box_is_right(dim):
    target = lb.Energy(mixture((1.0, 2.0, 0.5)), lb.Real(dim))
    densities = Densities(target, normal(dim))
    draws = 2 + 0.5 * torch.randn(2000, dim, generator=generator(0))
    search = RealSearch(densities, draws, None)
    regions, _ = search.regions()
    assert len(regions) == 1  # one peak, and no union
    assert not search.singular
    assert search.evaluations > 0
    share = float(regions[0].inside.double().mean())
    error = math.hypot(regions[0].error * share, math.sqrt(share * (1 - share) / 2000))
    assert math.exp(regions[0].log_mass) == pytest.approx(share, abs=4.5 * error)
    assert share > 0.9**dim  # to two deviations at least


@pytest.mark.parametrize(
    ("parts", "dim"),
    [
        ([(0.5, 0.0, 1.0), (0.5, 12.0, 1.0)], 1),  # a mode far from the proposal
        ([(0.5, 0.0, 1.0), (0.5, 12.0, 1.0)], 3),
        ([(0.5, 0.0, 1.0), (0.5, 0.0, 1e-4)], 3),  # a spike in a slab
    ],
)
@pytest.mark.parametrize("method", ["importance", "bridge"])
def test_a_mode_over_real_numbers_that_no_draw_visits(parts, dim, method):
    target = lb.Energy(mixture(*parts), lb.Real(dim))
    settings = {"burn_in": 20} if method == "bridge" else {}
    z = estimate(target, normal(dim, 1.1), method=method, **settings)
    assert not z.verdict.trustworthy
    low, high = z.interval()
    assert low < 0 < high  # the mass that was found is in the error


def test_integrals_that_do_not_exist():
    def at_origin(x):  # 1/|x| near zero
        return (x.abs().log() + x.square() / 2).sum(1)

    def diagonal(x):  # constant along a diagonal
        return (x[:, 0] - x[:, 1]).square() / 2

    class Bare:  # no advance: slice sampling would step out very far
        def __init__(self, energy, dim):
            self.support, self.log_unnormalized = lb.Real(dim), lambda x: -energy(x)

    for energy, dim, words in ((at_origin, 1, "infinite"), (diagonal, 2, "the estimate implies")):
        z = estimate(Bare(energy, dim), normal(dim, 2.0), method="importance")
        assert z.verdict.state == "doubtful"
        assert any(words in reason for reason in z.verdict.reasons), z.verdict


def test_an_integrable_singularity_is_no_reason():
    target = lb.Energy(lambda x: (x.abs().log() / 2 + x.square() / 2).sum(1), lb.Real(1))
    z = estimate(target, normal(1, 1.2), method="importance", samples=4000)
    assert not any("infinite" in reason for reason in z.verdict.reasons)


def test_events_of_start_lead_to_a_needle():
    r"""Nothing leads to a random event with half of the mass but the user's own events."""
    size, height = 24, 24 * math.log(2)
    needle = torch.randint(2, (1, size), generator=generator(3)).float()

    def energy(x):
        return torch.where((x == needle).all(1), -height, 0.0)

    target = lb.Energy(energy, lb.Binary(size))
    unaware = estimate(target, method="importance")
    assert not mode_reasons(unaware)
    assert "its samples, chains and climbs from likely events reached all" in unaware.sentence()
    assert unaware.to_dict()["assumption"] == unaware.verdict.assumption
    z = estimate(target, method="importance", start=needle)
    assert not z.verdict.trustworthy
    assert mode_reasons(z)


def test_an_event_visited_more_often_than_the_estimate_implies():
    r"""Chains that stand at all zeros, to which the estimate gives a twentieth of the mass."""
    target = spike(0.05)
    still = lb.Energy(target.fn, target.support, advance=lambda x, sweeps, generator: 0 * x)
    q = Sites(lb.Binary(20), 0.5)
    q.sample = lambda n, generator=None: torch.randint(2, (n, 20), generator=generator).float()
    z = estimate(still, q, method="bridge", burn_in=5)
    assert not z.verdict.trustworthy


BAD = {
    "NaN": (lambda x: x.sum(1) * math.nan, "target", "NaN"),
    "forbidden everywhere": (lambda x: torch.full((len(x),), math.inf), "target", "log Z is -inf"),
    "shape": (lambda x: x, "fn", r"shape \(8, 6\)"),
    "a scalar": (lambda x: x.sum(), "fn", r"shape \(\)"),
    "complex": (lambda x: x.sum(1) + 1j, "fn", "complex64"),
    "another support": (lambda x: (x * torch.ones(7)).sum(1), "target", "RuntimeError"),
    "an array": (lambda x: x.sum(1).numpy(), "fn", "ndarray"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_energies_are_refused(name):
    fn, argument, received = BAD[name]
    with refused(argument, received):
        lb.log_partition(lb.Energy(fn, lb.Spins(6)), method="exact", progress=False)


def test_a_complex_log_density_is_refused():
    class Target:
        support = lb.Spins(4)

        def log_unnormalized(self, x):
            return x.sum(1) + 0j

    with refused("target", "complex64"):
        lb.log_partition(Target(), method="exact")


def test_an_advance_that_ignores_its_generator_is_refused():
    def advance(x, sweeps, generator):
        return torch.where(torch.rand_like(x) < 0.5, x, -x)

    target = lb.Energy(lambda x: 0 * x.sum(1), lb.Spins(6), advance=advance)
    with refused("advance", "runs would not repeat"):
        estimate(target, method="bridge")
    with refused("advance", "runs would not repeat"):
        lb.normalize(target, steps=2, progress=False)


@pytest.mark.slow
def test_some_attacks(tmp_path):
    folder = Path(__file__).parents[2] / "tools"
    sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location("attacks", folder / "attacks.py")
    attacks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(attacks)
    cheap = ["--only", "N=16", "--fraction", "0.2", "--out", str(tmp_path)]
    assert attacks.main(cheap) == 0
    stored = (tmp_path / "attacks.jsonl").read_text()
    assert attacks.main(cheap) == 0  # from what is stored
    assert (tmp_path / "attacks.jsonl").read_text() == stored


def test_answers_of_attacks():
    r"""Sums by symmetry and closed forms against enumeration."""
    folder = Path(__file__).parents[2] / "tools"
    sys.path.insert(0, str(folder))
    import attack_targets as targets

    assert len(targets.cases()) >= 200
    potts = lb.Energy(
        lambda x: -0.3 * sum((x == k).sum(1).float().square() for k in range(3)), lb.States(3, 6)
    )
    value = targets.occupations_log_z(6, 3, lambda n: 0.3 * n.square())
    assert value == pytest.approx(lb.exact_log_z(potts, progress=False), abs=1e-4)
    for temperature in (1.0, 2.5, 4.0):
        exact = lb.exact_log_z(targets.lattice(4, temperature), progress=False)
        assert targets.kaufman(4, temperature) == pytest.approx(exact, abs=1e-3)
    problem = targets.of_mean(10, lambda m: 3 * m**3)
    exact = lb.exact_log_z(problem.target, progress=False)
    assert problem.log_z == pytest.approx(exact, abs=1e-4)


NARROW = [
    (0.5, 1.0, 1.0),
    (0.5, -1.0, 0.3),
]  # narrow and mirrored: nothing but symmetry leads there


def test_annealing_starts_at_a_narrow_mode_that_a_symmetry_leads_to():
    target = lb.Energy(mixture(*NARROW), lb.Real(20))
    z = estimate(target, method="ais", samples=2000, schedule=120)
    assert z.verdict.trustworthy, z.verdict
    assert z.value == pytest.approx(0, abs=4.5 * z.std_error)


@pytest.mark.parametrize("method", ["importance", "bridge"])
@pytest.mark.parametrize("place", [-1.0, 5.0], ids=["mirrored", "constant"])
def test_a_narrow_mode_that_a_proposal_misses_is_found_by_symmetries(method, place):
    target = lb.Energy(mixture((0.5, 1.0, 1.0), (0.5, place, 0.3)), lb.Real(20))
    proposal = Independent(Normal(torch.ones(20), 1.05), 1)
    settings = {"burn_in": 20, "start": "proposal"} if method == "bridge" else {}
    z = estimate(target, proposal, method=method, samples=2000, **settings)
    assert z.verdict.state == "doubtful"
    low, high = z.interval()
    assert low < 0 < high


def test_a_box_has_the_axes_of_a_peak():
    factor = torch.linalg.cholesky(0.95 + 0.05 * torch.eye(6).double())
    inverse = torch.linalg.inv(factor).float()
    target = lb.Energy(lambda x: (x @ inverse.T).square().sum(1) / 2, lb.Real(6))
    draws = (torch.randn(2000, 6, generator=generator(2)).double() @ factor.T).float()
    regions, _ = RealSearch(Densities(target), draws).regions()
    share = float(regions[0].inside.double().mean())
    assert share > 0.6  # of a box along the coordinates, a hundredth
    log_z = 3 * math.log(2 * math.pi) + float(factor.diagonal().log().sum())
    error = math.hypot(regions[0].error * share, math.sqrt(share * (1 - share) / 2000))
    assert math.exp(regions[0].log_mass - log_z) == pytest.approx(share, abs=4.5 * error)
