r"""Log densities for estimates: checks, streams of randomness, the state of models."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.distributions import Bernoulli, Normal

from limbeck.arrays import full_precision
from limbeck.models.energy import Energy
from limbeck.models.nade import NADE
from limbeck.normalization import densities as evaluating
from limbeck.normalization.densities import Densities
from limbeck.supports import Binary, Real, Spins
from tests.normalization.small import generator, random_rbm, student, table
from tests.refusals import refused

COINS = Bernoulli(torch.full((12,), 0.5, dtype=torch.float64))


def flat(log, support=None) -> Energy:
    return Energy(lambda x: -log(x), support or Binary(12))


def test_both_log_densities_are_those_of_the_models_in_float64(monkeypatch):
    monkeypatch.setattr(evaluating, "BLOCK", 100)  # so that there are many blocks
    rbm = random_rbm()
    q = student(rbm)
    x, log, _ = table(rbm)
    logs = Densities(rbm, q).logs(x)
    torch.testing.assert_close(logs.target, log, rtol=1e-12, atol=1e-12)
    assert torch.allclose(logs.ratio, log - q.log_q)
    assert logs.ratio.dtype == torch.float64


def test_streams_differ_from_one_another_and_from_plain_seeds():
    one = Densities(random_rbm(), seed=5)
    seeds = {one.generator(name).initial_seed() for name in ("chains", "proposal", "probes")}
    seeds |= {Densities(random_rbm(), seed=6).generator("chains").initial_seed(), 5}
    assert len(seeds) == 5
    again = Densities(random_rbm(), seed=5).generator("chains").initial_seed()
    assert again == one.generator("chains").initial_seed()


@pytest.mark.parametrize("seed", [-1, 1.5, "0", None, True])
def test_seeds_are_whole_numbers(seed):
    with refused("seed"):
        Densities(random_rbm(), seed=seed)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_log_densities_that_are_no_numbers_are_refused_with_their_number(bad):
    broken = flat(lambda x: torch.where(x[:, 0] > 0, bad, 0.0))
    x = torch.cat([torch.zeros(3, 12), torch.ones(2, 12)])
    with refused("target", f"log densities such as {bad} at 2 of 5"):
        Densities(broken).log_target(x)
    with refused("proposal", "log densities such as"):
        Densities(flat(lambda x: x.sum(1)), Fixed(torch.ones(12), bad))


def test_zero_densities_are_told_apart():
    densities = Densities(flat(lambda x: torch.where(x[:, 0] > 0, -math.inf, 0.0)), COINS)
    logs = densities.logs(torch.eye(12))
    assert logs.ratio[0] == -math.inf
    assert logs.ratio[1:].isfinite().all()


class Fixed:
    r"""A proposal that gives one event, with any log density."""

    def __init__(self, event, log):
        self.event, self.log = event, log

    def sample(self, n):
        return self.event.expand(n, *self.event.shape)

    def log_prob(self, x):
        return torch.full((len(x),), self.log)


def test_a_proposal_s_own_samples_must_have_mass():
    densities = Densities(random_rbm(), Fixed(torch.ones(12), -math.inf))
    with refused("proposal", "zero density at 50 of 50 samples"):
        densities.drawn(50, "proposal")
    nowhere = Densities(flat(lambda x: torch.full((len(x),), -math.inf)), COINS)
    with refused("target", "zero density at 50 of 50 samples"):
        nowhere.drawn(50, "proposal")


@pytest.mark.parametrize(
    ("proposal", "received", "expected"),
    [
        (NADE(5, 2, generator=generator()), r"one over Binary\(5\)", r"one over Binary\(12\)"),
        (
            NADE(12, 2, support=Spins(12), generator=generator()),
            r"one over Spins\(12\)",
            r"one over Binary\(12\)",
        ),
        (Bernoulli(torch.full((5,), 0.5)), r"shape \(8, 5\)", r"shape \(n, 12\)"),
        (Normal(torch.zeros(12), 1.0), "values such as", "0 and 1"),
    ],
)
def test_a_proposal_over_something_else_is_refused(proposal, received, expected):
    with refused("proposal", received, expected=expected):
        Densities(random_rbm(), proposal)


def test_integer_samples_are_taken_where_they_are_events():
    class Whole:
        def sample(self, n):
            return torch.ones(n, 12, dtype=torch.int64)

        def log_prob(self, x):
            return torch.zeros(len(x))

    assert Densities(random_rbm(), Whole()).sample(3, generator()).dtype == torch.float64


def test_models_come_back_in_the_mode_they_came_in():
    class Noisy(nn.Module):
        support = Real(2)

        def __init__(self):
            super().__init__()
            self.drop, self.scale = nn.Dropout(0.5), nn.Parameter(torch.ones(()))

        def log_unnormalized(self, x):
            return -self.drop(x).square().sum(1) * self.scale

    noisy = Noisy()
    densities, x = Densities(noisy), torch.ones(200, 2)
    with densities.at_work():
        log = densities.log_target(x)
    assert (log == -2).all()
    assert not log.requires_grad
    assert noisy.training
    assert noisy.drop.training


def test_tensor_float_is_put_aside_and_comes_back():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        with full_precision():
            assert not torch.backends.cuda.matmul.allow_tf32
        assert torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def test_a_missing_proposal_is_asked_for():
    with refused("proposal", "None"):
        Densities(random_rbm()).logs(torch.zeros(2, 12))
