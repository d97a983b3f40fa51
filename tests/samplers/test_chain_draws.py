r"""Draws of the target: how long chains run, and what is kept of them."""

from __future__ import annotations

import pytest
import torch

import limbeck as lb
from limbeck.normalization.bridge import SECOND_CHAINS, Bridge
from limbeck.normalization.densities import Densities
from limbeck.samplers import chains as sampling
from limbeck.samplers.chains import Chains, start_events
from tests.normalization.small import generator, random_rbm, student

RBM = random_rbm()
DENSITIES = Densities(RBM, student(RBM))


def walk(n: int = 40) -> Chains:
    return Chains.at(DENSITIES, start_events(DENSITIES, "target", n, generator()), generator(1))


@pytest.mark.parametrize("patience", [8, 16, 64, 10**9])
def test_chains_go_on_until_they_have_forgotten_and_then_as_long_again(patience):
    seen = []

    def forgotten(start, early, now):
        seen.append((early, now))
        return 2 ** (len(seen) + 2) >= patience

    walked = walk()
    drawn = walked.collect("target", None, 1, 1, forgotten)
    longest = min(patience, sampling.LONGEST_BURN_IN)
    assert drawn.steps == 2 * longest
    assert drawn.sweeps == 40 * drawn.steps
    assert torch.equal(drawn.logs.target[:, 0], DENSITIES.logs(walked.x).target)
    for (_, half), (_, _), (early, _) in zip(seen, seen[1:], seen[2:], strict=False):
        assert torch.equal(half.target, early.target)  # a quarter of the way is two looks ago


@pytest.mark.parametrize(("burn_in", "quarter"), [(0, 0), (1, 1), (3, 1), (100, 25)])
def test_a_given_burn_in_is_kept_to(burn_in, quarter):
    drawn = walk().collect("target", burn_in, 3, 2, None)
    assert drawn.steps == burn_in
    assert drawn.sweeps == 40 * (burn_in + 4)
    assert drawn.logs.ratio.shape == (40, 3)
    short = walk()
    assert torch.equal(drawn.start.target, short.logs().target)
    short.sweep(quarter)
    assert torch.equal(drawn.early.target, short.logs().target)


def test_metropolis_ends_with_sweeps_that_must_change_nothing():
    drawn = walk().collect("metropolis", 30, 1, 1, None)
    assert drawn.sweeps == 40 * sampling.FINAL_SWEEPS
    assert 0 < drawn.acceptance < 1
    assert not torch.equal(drawn.early.target, drawn.logs.target[:, 0])


def test_a_quarter_of_the_chains_is_from_the_second_start():
    how = Bridge(samples=100, burn_in=5)
    assert how.others == ("target",)
    first, second = how._draws(DENSITIES, how.others, torch.zeros(50), False)
    assert (len(first.start.ratio), len(second.start.ratio)) == (75, 25)
    few = Bridge(samples=100, start=torch.zeros(1, 12), chains=5, burn_in=5)
    assert few.others == ("proposal", "target")
    assert Bridge(samples=100, start="target", chains=5, burn_in=5).others == ("proposal",)
    first, second = few._draws(DENSITIES, few.others, torch.zeros(50), False)
    assert first.logs.ratio.shape == (5, 20)
    assert second.logs.ratio.shape == (SECOND_CHAINS, 1)
    alone = Bridge(samples=100, second_start=None, burn_in=5)
    assert alone._draws(DENSITIES, alone.others, torch.zeros(50), False)[1] is None


def test_burn_in_by_default():
    assert lb.Bridge().burn_in == 2000
    assert lb.Bridge(kernel="mixed").burn_in == "auto"
    assert lb.Bridge(kernel="metropolis").burn_in == "auto"


def test_data_may_be_any_array():
    assert lb.Bridge(start=[[0, 1], [1, 0]]).start.tolist() == [[0, 1], [1, 0]]
    assert lb.Importance(start=torch.eye(2).numpy()).start.shape == (2, 2)
