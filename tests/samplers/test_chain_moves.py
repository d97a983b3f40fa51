r"""Chains on a target: every kernel leaves it invariant, starts are what they say."""

from __future__ import annotations

import math

import pytest
import torch

from limbeck.models.energy import Energy
from limbeck.normalization.densities import Densities
from limbeck.samplers.chains import KERNELS, Chains, start_events
from limbeck.samplers.diagnostics import acceptance_rate
from limbeck.supports import Binary
from tests.normalization.small import (
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


def frequencies(x: torch.Tensor, size: int) -> torch.Tensor:
    place = 2 ** torch.arange(size - 1, -1, -1)
    return torch.bincount((x.long() @ place), minlength=2**size) / len(x)


@pytest.mark.parametrize("kernel", KERNELS)
def test_each_kernel_leaves_the_target_as_it_is(kernel):
    rbm = random_rbm(visible=5, hidden=3, scale=1.0)
    _x, log, log_z = table(rbm)
    n = 40_000
    first = Tabular(log).sample(n, generator(1))
    walk = Chains.at(Densities(rbm, student(rbm, noise=0.5)), first, generator(2))
    walk.move(kernel, 3)
    p = (log - log_z).exp()
    # χ² of 31 degrees of freedom: 61 is exceeded in one of a thousand
    assert float((n * (frequencies(walk.x, 5) - p).square() / p).sum()) < 61


@pytest.mark.parametrize("kernel", KERNELS)
def test_each_kernel_leads_to_the_target_from_elsewhere(kernel):
    rbm = random_rbm(visible=5, hidden=3, scale=1.0)
    _, log, log_z = table(rbm)
    n = 40_000
    walk = Chains.at(Densities(rbm, student(rbm)), torch.ones(n, 5).double(), generator(3))
    walk.move(kernel, 40)
    p = (log - log_z).exp()
    assert float((n * (frequencies(walk.x, 5) - p).square() / p).sum()) < 61


def test_the_acceptance_is_what_weights_foretell():
    rbm = random_rbm(visible=8, hidden=6, scale=1.0)
    _, log, _ = table(rbm)
    q = student(rbm)
    densities = Densities(rbm, q)
    _, logs = densities.drawn(20_000, "proposal")
    walk = Chains.at(densities, Tabular(log).sample(20_000, generator()), generator(1))
    walk.move("metropolis", 2)
    acceptance = int(walk.accepted) / walk.tried
    assert acceptance == pytest.approx(acceptance_rate(logs.ratio), abs=0.01)
    ratio = log - q.log_q
    exact = (
        torch.softmax(log, 0) @ (ratio[None] - ratio[:, None]).exp().clamp_max(1) @ q.log_q.exp()
    )
    assert acceptance == pytest.approx(float(exact), abs=0.01)
    assert walk.tried == 40_000


def test_acceptance_rates_of_zero_weights():
    assert acceptance_rate(torch.tensor([-math.inf, 0.0])) == pytest.approx(0.5)


def test_log_densities_are_those_of_where_the_chains_are():
    rbm = random_rbm()
    densities = Densities(rbm, student(rbm))
    walk = Chains.at(densities, start_events(densities, "target", 50, generator()), generator())
    for move in (lambda: walk.sweep(3), walk.jump, lambda: walk.move("mixed", 2)):
        move()
        logs, expected = walk.logs(), densities.logs(walk.x)
        torch.testing.assert_close(logs.target, expected.target, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(logs.ratio, expected.ratio, rtol=1e-12, atol=1e-12)
    assert walk.sweeps_done == 50 * 5


def test_chains_leave_events_without_mass_but_not_those_that_the_proposal_lacks():
    # The target forbids all that starts with 1; the proposal gives nothing that starts with 01.
    target = Energy(lambda x: torch.where(x[:, 0] > 0, math.inf, 0.0), Binary(3))
    q = Tabular(torch.tensor([0.0, 0, -math.inf, -math.inf, 0, 0, 0, 0]))
    forbidden, missed = torch.ones(40, 3), torch.tensor([[0.0, 1, 0]]).expand(40, 3)
    walk = Chains.at(Densities(target, q), torch.cat([forbidden, missed]), generator())
    walk.move("metropolis", 30)
    assert (walk.x[:40, 0] == 0).all()
    assert torch.equal(walk.x[40:], missed)


def test_settled_chains_find_both_modes_but_stay_where_the_proposal_does_not_reach():
    rbm = two_modes()
    for q, ones in ((student(rbm, faith=1.0), 0.5), (one_mode_student(), None)):
        densities = Densities(rbm, q)
        _, logs = densities.drawn(500, "proposal")
        zeros = Chains.at(densities, torch.zeros(400, MODES).double(), generator())
        zeros.leave_start(logs.ratio)
        away = Chains.at(densities, torch.ones(400, MODES).double(), generator())
        away.leave_start(logs.ratio)
        share = [float((walk.x.mean(1) > 0.5).double().mean()) for walk in (zeros, away)]
        assert share == pytest.approx([ones, ones] if ones else [0, 1], abs=0.1)


def test_starts_are_what_they_are_called():
    rbm = random_rbm()
    densities = Densities(rbm, one_value(1.0))
    assert (start_events(densities, "proposal", 6, generator()) == 1).all()
    assert start_events(densities, "target", 500, generator()).mean() == pytest.approx(
        0.5, abs=0.03
    )
    both = start_events(densities, ("proposal", "target"), 501, generator())
    assert (both[:251] == 1).all()
    assert both[251:].mean() == pytest.approx(0.5, abs=0.04)
    assert len(start_events(densities, ("proposal", "target"), 1, generator())) == 1
    data = torch.eye(12)
    chosen = start_events(densities, data, 30, generator())
    assert chosen.dtype == torch.float64
    assert (chosen.sum(1) == 1).all()
    assert len(chosen.argmax(1).unique()) > 5
    assert torch.equal(chosen, start_events(densities, data.to(torch.uint8), 30, generator()))


def one_value(value: float) -> Tabular:
    log = torch.full((2**12,), -math.inf)
    log[-1 if value else 0] = 0.0
    return Tabular(log)


@pytest.mark.parametrize(
    ("data", "received"),
    [
        (torch.zeros(3, 5), r"shape \(3, 5\)"),
        (torch.full((3, 12), 0.5), "values such as 0.5"),
        (torch.zeros(0, 12), "no events"),
    ],
)
def test_starts_that_are_no_events_are_refused(data, received):
    densities = Densities(random_rbm(), one_value(0.0))
    with refused("start", received):
        start_events(densities, data, 5, generator())


def test_an_advance_of_another_shape_is_refused():
    rbm = random_rbm()
    rbm.advance = lambda x, sweeps=1, generator=None: x[:-1]
    with refused("target", r"chains of shape \(3, 12\) from advance"):
        Chains.at(Densities(rbm), torch.zeros(4, 12).double(), generator()).sweep(1)
