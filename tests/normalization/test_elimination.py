r"""Exact log Z by sums over one site after the other."""

import math
import time

import pytest
import torch

import limbeck as lb
from limbeck.normalization.elimination import find_elimination
from limbeck.normalization.log_partition import feasible
from limbeck.normalization.mode_search import HURRIED


def ring(x):
    return -(x * x.roll(1, 1)).sum(1)


def lattice(x):
    return -(x * (x.roll(1, 1) + x.roll(1, 2))).sum((1, 2))


def small(target):
    r"""Elimination where all events can be summed as well."""
    return find_elimination(target, target.support.count**target.support.size - 1)


@pytest.mark.parametrize(
    "target",
    [
        lb.Energy(lambda x: ring(x) - 0.4 * x[:, 2], lb.Spins(9), temperature=0.7),
        lb.Energy(lambda x: (x - x.roll(1, 1)).abs().sum(1) - x[:, 0], lb.States(3, 7)),
        lb.Energy(lambda x: -(x[:, 0] * x[:, 1]) - 2 * x[:, 4], lb.Binary(5)),
        lb.Energy(lambda x: 0.1 * x.sum(1) - x.sum(1).square() / 12, lb.Spins(10)),
    ],
    ids=["ring", "states", "single sites", "all coupled"],
)
def test_it_is_the_sum_over_all_events(target):
    n = target.support.count**target.support.size
    limit = n - 1 if find_elimination(target, n - 1) else None
    assert lb.exact_log_z(target) == pytest.approx(
        torch.logsumexp(target.log_unnormalized(target.support.enumerate(0, n)).double(), 0).item(),
        abs=1e-5,
    )
    if limit is not None:
        assert small(target).log_z(False) == pytest.approx(lb.exact_log_z(target), abs=1e-5)


def test_a_long_ring_has_its_known_log_z():
    n, beta = 200, 0.8
    z = lb.log_partition(lb.Energy(ring, lb.Spins(n), temperature=1 / beta), progress=False)
    known = n * math.log(2 * math.cosh(beta)) + math.log1p(math.tanh(beta) ** n)
    assert z.value == pytest.approx(known, rel=1e-10)
    assert (z.method, z.std_error, z.verdict.state) == ("exact", 0.0, "trustworthy")
    assert "if sites interact only in pairs" in z.sentence()


def test_an_ising_lattice_of_eight_by_eight():
    target = lb.Energy(lattice, lb.Spins(8, 8), temperature=2.269)
    z = lb.log_partition(target, progress=False)
    assert z.value == pytest.approx(60.14521687764, abs=1e-8)  # Kaufman's formula
    assert z.diagnostics["largest_table"] <= 2**20


def test_tables_that_are_too_large_are_not_tried():
    target = lb.Energy(lattice, lb.Spins(16, 16))
    assert find_elimination(target, 2**20) is None
    assert feasible(target, math.inf)[0] == "bridge"


def test_an_event_that_differs_from_pairs_is_noticed():
    def needle(x):  # climbs lead there, random events and chains hardly do
        flat = x.flatten(1)
        near = (flat.sum(1) - 60).clamp_min(0)
        return lattice(x) - 50 * near

    target = lb.Energy(needle, lb.Spins(8, 8), temperature=4.0)
    assert feasible(target, math.inf)[0] == "bridge"


def test_many_independent_sites_need_no_pairs():
    h = torch.randn(3000, generator=torch.Generator().manual_seed(0))
    z = lb.log_partition(lb.Energy(lambda x: -(x * h).sum(1), lb.Spins(3000)), progress=False)
    assert z.method == "exact"
    assert z.value == pytest.approx(float((2 * h.double().cosh()).log().sum()), rel=1e-6)


def test_nothing_is_summed_that_would_end_too_late():
    target = lb.Energy(ring, lb.Spins(30))
    assert find_elimination(target, 2**20) is not None
    assert find_elimination(target, 2**20, end=0.0) is None


def test_couplings_where_climbs_had_no_time_to_lead_are_unchecked():
    def energy(x):
        time.sleep(0.02)
        return ring(x)

    z = lb.log_partition(lb.Energy(energy, lb.Spins(60)), seconds=1.0, progress=False)
    assert (z.method, z.verdict.state) == ("exact", "unchecked")
    assert z.verdict.reasons == (HURRIED,)
