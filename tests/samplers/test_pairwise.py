r"""Couplings of pairs of sites: found by differences, and swept group by group."""

import math

import pytest
import torch

from limbeck import Binary, Energy, Spins, States
from limbeck.normalization.log_partition import log_partition
from limbeck.samplers.gibbs import sweep
from limbeck.samplers.pairwise import Pairwise, draw_values


def lattice(x):
    return -(x * (x.roll(1, 1) + x.roll(1, 2))).sum((1, 2)) - 0.3 * x[:, 0].sum(1)


def glass(x):
    generator = torch.Generator().manual_seed(3)
    couplings = torch.randn(6, 6, generator=generator, dtype=torch.float64).to(x)
    return (x @ couplings * x).sum(1)


def potts(x):
    return (x != x.roll(1, 1)).to(x.dtype).sum(1) + 0.2 * (x * (x - 1)).sum(1)


TARGETS = {
    "lattice": Energy(lattice, Spins(4, 3), temperature=2.5),
    "glass": Energy(glass, Binary(6), temperature=3.0),
    "Potts": Energy(potts, States(3, 6)),
}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_couplings_give_the_log_density_of_every_event(name, dtype):
    target = TARGETS[name]
    support = target.support
    pairs = Pairwise.of(target.log_unnormalized, support, torch.empty(0, dtype=dtype))
    x = support.enumerate(0, support.count**support.size, dtype=dtype)
    scale = 1e-4 if dtype == torch.float32 else 1e-10
    torch.testing.assert_close(
        pairs.log_unnormalized(x), target.log_unnormalized(x), atol=scale, rtol=scale
    )


def test_sites_without_couplings_are_swept_together():
    bonds = Energy(lattice, Spins(4, 4))
    pairs = Pairwise.of(bonds.log_unnormalized, bonds.support, torch.empty(0))
    assert [end - begin for begin, end, *_ in pairs.groups] == [8, 8]
    glassy = Pairwise.of(TARGETS["glass"].log_unnormalized, Binary(6), torch.empty(0))
    assert len(glassy.groups) == 6  # all sites are coupled


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("beta", [1.0, 0.5, 0.0])
def test_sweeps_leave_the_density_invariant(name, beta):
    target = TARGETS[name]
    support = target.support
    events = support.enumerate(0, support.count**support.size)
    probability = (beta * target.log_unnormalized(events).double()).softmax(0)
    chosen = torch.multinomial(probability, 40_000, True, generator=generator(1))
    pairs = Pairwise.of(target.log_unnormalized, support, events)
    x = pairs.sweep(events[chosen], 2, generator(2), beta)
    codes = support.encode(x).flatten(1).long()
    numbers = (codes * support.count ** torch.arange(support.size).flip(0)).sum(1)
    counts = torch.bincount(numbers, minlength=len(events)).double()
    expected = 40_000 * probability
    often = expected > 5
    chi = ((counts - expected).square() / expected)[often].sum()
    degrees = int(often.sum())
    assert abs(float(chi) - degrees) < 5 * math.sqrt(2 * degrees)
    assert (x != events[chosen]).any()


def test_chains_go_where_sweeps_site_by_site_lead():
    target = TARGETS["Potts"]
    start = target.support.start(1, generator(5)).expand(20_000, -1)
    pairs = Pairwise.of(target.log_unnormalized, target.support, start)
    for sweeps in (1, 40):
        x = pairs.sweep(start, sweeps, generator(6))
        assert x.shape == start.shape
    other, numbers = start, generator(7)
    for _ in range(40):
        other, _ = sweep(target.log_unnormalized, other, target.support, numbers)
    gap = target.log_unnormalized(x).mean() - target.log_unnormalized(other).mean()
    assert abs(gap) < 5 * target.log_unnormalized(x).std() * math.sqrt(2 / 20_000)


@pytest.mark.parametrize(
    "energy",
    [
        lambda x: -(x[:, 0] * x[:, 1] * x[:, 2]) - x.sum(1),
        lambda x: -8 * x.mean(1) ** 7,
        lambda x: torch.where(x.sum(1) > 4, torch.inf, 0.0),
        lambda x: x.sum(1) + 5.0 * (x == 1).all(1).to(x.dtype),
    ],
    ids=["triple", "power", "forbidden", "one event"],
)
def test_other_interactions_are_not_taken_for_pairs(energy):
    target = Energy(energy, Binary(8))
    assert Pairwise.of(target.log_unnormalized, target.support, torch.empty(0)) is None


def test_an_energy_that_changes_is_looked_at_again():
    class Field(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.h = torch.nn.Parameter(torch.tensor(3.0))

        def forward(self, x):
            return self.h * x.sum(1)

    module = Field()
    target = Energy(module, Spins(10))
    x = target.support.start(2000, generator())
    assert target.advance(x, 3, generator()).mean() < -0.9
    module.h.data = torch.tensor(-3.0)
    assert target.advance(x, 3, generator()).mean() > 0.9


def test_events_where_pairs_do_not_hold_lead_back_to_sweeps_site_by_site():
    def walled(x):  # random events are never near the corner where it differs
        corner = (x[:, :40].sum(1) > 36).to(x.dtype)
        return -0.01 * x.sum(1) + 100 * corner

    target = Energy(walled, Binary(60))
    x = torch.zeros(200, 60)
    target.advance(x, 1, generator())
    x[:, :40] = 1
    moved = target.advance(x, 5, generator(1))
    assert walled(moved).max() < 50  # the wall is felt


def test_an_energy_with_tensors_in_single_precision_is_evaluated_in_it():
    couplings = torch.randn(30, 30, generator=generator()) / 10
    target = Energy(lambda x: ((x @ couplings) * x).sum(1), Spins(30))
    pairs = Pairwise.of(target.log_unnormalized, target.support, torch.empty(0))
    assert pairs is not None
    assert log_partition(target, std_error=0.1, progress=False).verdict.trustworthy


def test_a_site_gets_one_value_where_a_draw_lies_on_a_border(monkeypatch):
    # borders of intervals, u - w after a cumulative sum, differ from the sum before by rounding
    odds = torch.randn(4, 20_000, generator=torch.Generator().manual_seed(0))
    weights = (odds - odds.amax(0).clamp_min(0)).exp()
    upto = weights.cumsum(0)
    total = upto[-1] + (-odds.amax(0).clamp_min(0)).exp()
    for k in range(1, 4):
        border = (upto[k] - weights[k]) / total
        monkeypatch.setattr(torch, "rand", lambda *size, border=border, **where: border[None])
        features = torch.empty_like(odds)
        draw_values(odds, 4, None, features)
        assert int(features.sum(0).max()) == 1
