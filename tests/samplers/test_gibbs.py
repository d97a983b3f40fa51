r"""Site-wise Gibbs sampling: its transition matrix by enumeration, and long runs."""

from __future__ import annotations

import itertools
import math

import pytest
import scipy.stats
import torch
from torch import Tensor

from limbeck.samplers import gibbs
from limbeck.samplers.gibbs import choose, sweep
from limbeck.supports import Binary, Spins, States

DOUBLE = torch.float64
SUPPORTS = [Binary(3), Spins(3), States(3, 2), States(4, 1, 2)]
every_support = pytest.mark.parametrize("support", SUPPORTS, ids=repr)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


class Table:
    r"""A density with nothing special about it: a number for each event."""

    def __init__(self, support, forbidden=0):
        self.support, self.states = support, support.count**support.size
        self.table = 2 * torch.randn(self.states, dtype=DOUBLE, generator=generator(1))
        self.table[1 : 1 + forbidden] = -math.inf
        self.calls = []

    def number(self, x: Tensor) -> Tensor:
        codes = self.support.encode(x.reshape(len(x), -1)).long()
        places = self.support.count ** torch.arange(self.support.size - 1, -1, -1)
        return codes @ places

    def __call__(self, x: Tensor) -> Tensor:
        assert x.shape[1:] == self.support.shape
        self.calls.append(len(x))
        return self.table[self.number(x)]

    def events(self):
        return self.support.enumerate(0, self.states, dtype=DOUBLE)

    def probabilities(self, beta=1.0):
        return (beta * self.table).softmax(0)


def transitions(monkeypatch, density, **options) -> Tensor:
    r"""The matrix of probabilities of a sweep: all paths through all choices, with their own."""
    support, size = density.support, density.support.size
    matrix = torch.zeros(density.states, density.states, dtype=DOUBLE)
    for path in itertools.product(range(support.count), repeat=size):
        weight, choices = torch.ones(density.states, dtype=DOUBLE), iter(path)

        def scripted(logs, _, choices=choices, weight=weight):
            choice = torch.full((logs.shape[1],), next(choices))
            weight *= logs.softmax(0).nan_to_num(0.5).gather(0, choice[None])[0]
            return choice

        monkeypatch.setattr(gibbs, "choose", scripted)
        moved, logs = sweep(density, density.events(), support, **options)
        assert torch.equal(logs, density(moved))
        matrix[torch.arange(density.states), density.number(moved)] += weight
    return matrix


@every_support
@pytest.mark.parametrize("beta", [1.0, 0.3, 0.0])
def test_a_sweep_leaves_the_density_invariant(monkeypatch, support, beta):
    density = Table(support)
    matrix = transitions(monkeypatch, density, beta=beta)
    p = density.probabilities(beta)
    torch.testing.assert_close(matrix.sum(1), torch.ones(density.states, dtype=DOUBLE))
    torch.testing.assert_close(p @ matrix, p)
    assert (matrix > 0).all(), "from anywhere to anywhere"
    if beta:
        uniform = torch.full_like(p, 1 / len(p))
        assert (uniform @ matrix - uniform).abs().max() > 1e-3, "and no other one"


def test_forbidden_events_are_left_and_never_entered(monkeypatch):
    density = Table(Binary(3), forbidden=3)
    matrix = transitions(monkeypatch, density)
    p = density.probabilities()
    torch.testing.assert_close(p @ matrix, p)
    assert (matrix[0, [1, 2, 3]] == 0).all()
    torch.testing.assert_close(matrix.sum(1), torch.ones(8, dtype=DOUBLE))


def test_a_chain_among_forbidden_events_finds_its_way_out():
    def only_ones(x):
        return torch.where(x.sum(1) == 4, 0.0, -math.inf)

    x, g = torch.zeros(50, 4), generator()
    for _ in range(200):
        x, log = sweep(only_ones, x, Binary(4), g)
    assert (x == 1).all()
    assert (log == 0).all()


@every_support
def test_long_runs_have_the_right_frequencies(support):
    density, g, chains, keep = Table(support), generator(2), 400, 30
    x = support.start(chains, g)
    counts = torch.zeros(density.states, dtype=DOUBLE)
    for step in range(20 + 10 * keep):
        x, _ = sweep(density, x, support, g)
        if step >= 20 and step % 10 == 0:  # ten sweeps forget all but nothing of so few sites
            counts += torch.bincount(density.number(x), minlength=density.states)
    expected = density.probabilities() * counts.sum()
    usual = expected > 5
    observed = torch.cat([counts[usual], counts[~usual].sum()[None]])
    wanted = torch.cat([expected[usual], expected[~usual].sum()[None]])
    if usual.all():
        observed, wanted = observed[:-1], wanted[:-1]
    assert scipy.stats.chisquare(observed, wanted).pvalue > 1e-3


@pytest.mark.parametrize("q", [2, 3, 5])
def test_choices_follow_the_logs(q):
    logs = torch.randn(q, 1, generator=generator(3), dtype=DOUBLE).expand(q, 20_000) * 2
    found = torch.bincount(choose(logs, generator(4)), minlength=q)
    assert scipy.stats.chisquare(found, logs[:, 0].softmax(0) * 20_000).pvalue > 1e-3


def test_choices_among_nothing_are_uniform_and_impossible_ones_are_never_made():
    logs = torch.full((4, 10_000), -math.inf)
    found = torch.bincount(choose(logs, generator(5)), minlength=4)
    assert scipy.stats.chisquare(found).pvalue > 1e-3
    logs[2], logs[1] = -1e30, -900.0
    assert (choose(logs, generator(6)) == 1).all()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_probability_is_not_hidden(value):
    def broken(x):
        return torch.where(x[:, 1] == 1, value, 0.0)

    x, _ = sweep(broken, torch.zeros(5, 3), Binary(3), generator())
    assert x.isnan().any(1).all()


def test_one_call_a_site_and_none_for_what_is_known():
    density = Table(States(4, 3))
    x = density.support.start(7, generator(), dtype=DOUBLE)
    before = x.clone()
    moved, log = sweep(density, x, density.support, generator(1))
    assert density.calls == [7] + [3 * 7] * 3
    assert torch.equal(x, before)
    density.calls.clear()
    again, _ = sweep(density, moved, density.support, generator(2), known=log)
    assert density.calls == [3 * 7] * 3
    assert torch.equal(again, sweep(density, moved, density.support, generator(2))[0])


def test_equal_seeds_give_equal_chains():
    density = Table(Binary(3))
    x = torch.zeros(20, 3)
    one, two, three = (sweep(density, x, density.support, generator(s))[0] for s in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, three)
