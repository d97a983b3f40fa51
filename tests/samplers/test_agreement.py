r"""Tests of mixing: their scores are standard normal where all is well, and large where not."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from limbeck.samplers.diagnostics import SIGNIFICANT, difference, drift, memory
from tests.normalization.small import generator


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def chains(phi: float, count: int, steps: int, seed: int) -> Tensor:
    noise = normal(steps, count, seed=seed)
    x = [noise[0]]
    for each in noise[1:]:
        x.append(phi * x[-1] + math.sqrt(1 - phi**2) * each)
    return torch.stack(x, 1)


SCORES = {
    "difference": lambda s: difference(normal(150, 1, seed=s), normal(60, 1, seed=10_000 + s)),
    "difference of series": lambda s: difference(
        chains(0.6, 20, 40, s), chains(0.6, 10, 40, 10_000 + s)
    ),
    "drift": lambda s: drift(*chains(0.3, 80, 2, s).T),
    "memory": lambda s: memory(normal(300, seed=s), normal(300, seed=10_000 + s)),
}


@pytest.mark.parametrize("name", SCORES)
def test_scores_of_mixed_chains_are_standard_normal(name):
    z = torch.tensor([SCORES[name](seed) for seed in range(400)])
    # over 400 repetitions the mean is known to 0.05 and the standard deviation to 0.035
    assert abs(z.mean()) < 0.2
    assert z.std() == pytest.approx(1, abs=0.15)
    assert z.abs().max() < SIGNIFICANT + 0.8


def test_scores_of_chains_apart_grow_with_their_number():
    for n, least in ((100, 2.0), (10_000, 20.0)):
        x, y = normal(n, seed=1), normal(n, seed=2)
        assert abs(difference(x[:, None] + 0.5, y[:, None])) > least
        assert drift(x, x + 0.5 + y) > least
        assert memory(x, x + y) > least
        assert memory(x, y - x) < -least
        assert abs(memory(x, y)) < SIGNIFICANT


@pytest.mark.parametrize("test", [difference, drift, memory])
def test_constants_and_single_chains_say_nothing(test):
    same = torch.full((50, 1), 3.3)
    one = same[:1]
    if test is not difference:
        same, one = same.flatten(), one.flatten()
    assert test(same, same) == 0
    assert test(one, one) == 0


def test_memory_is_the_bias_that_the_start_has_left():
    # Start at q = N(0, 1) for p = N(1, 1), and stay: the mean is 0, and 1 it would be.
    x = normal(50_000, seed=3)
    weights = x - 0.5
    share = torch.softmax(weights, 0)
    left = float(share @ x - x.mean())
    assert left == pytest.approx(1, abs=0.05)
    moved = 1 + normal(50_000, seed=4)  # chains that have arrived
    assert memory(weights, x) > 20
    assert abs(memory(weights, moved)) < SIGNIFICANT


def test_memory_is_not_judged_by_less_than_ten_effective_weights():
    x = normal(1000, seed=5)
    for count, judged in ((9, False), (11, True)):  # so many equal weights, and nothing else
        weights = torch.full((1000,), -math.inf, dtype=torch.float64)
        weights[x.argsort(descending=True)[:count]] = 0
        assert (memory(weights, x) > SIGNIFICANT) is judged


def test_two_constants_that_differ_disagree_for_certain():
    assert difference(torch.ones(50, 1), torch.zeros(50, 1)) == math.inf
    assert drift(torch.ones(50), torch.zeros(50)) == -math.inf
