r"""Hill climbing: tops that no single change improves, and the highest ones of small models."""

from __future__ import annotations

import math

import pytest
import torch

from limbeck.models.energy import Energy
from limbeck.models.rbm import RBM
from limbeck.normalization.log_partition import exact_log_z
from limbeck.normalization.mode_search import climb
from limbeck.supports import Binary, Real, Spins, States
from tests.refusals import refused

DOUBLE = torch.float64


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def neighbours(support, x: torch.Tensor) -> torch.Tensor:
    r"""All events that differ from x in one variable."""
    codes, found = support.encode(x).flatten(), []
    for site in range(support.size):
        for value in range(support.count):
            other = codes.clone()
            other[site] = value
            found.append(other)
    return support.decode(torch.stack(found)).reshape(-1, *support.shape)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_the_highest_point_of_a_small_rbm(seed, dtype) -> None:
    rbm = RBM.random(10, 6, 2.0, generator(seed), dtype=dtype)
    highest = rbm(rbm.support.enumerate(0, 1024, dtype=dtype)).max().item()
    value, x = climb(rbm, tries=100)
    assert value == pytest.approx(highest, rel=1e-6)
    assert rbm(x[None]).item() == pytest.approx(value, rel=1e-6)
    assert x.dtype == dtype
    assert value < exact_log_z(rbm)


@pytest.mark.parametrize("tries", [0, 3])
def test_no_single_bit_of_an_rbm_improves(tries) -> None:
    rbm = RBM.random(60, 40, 1.0, generator(1), dtype=DOUBLE)
    value, x = climb(rbm, tries)
    rbm.support.check(x[None])
    assert rbm(neighbours(rbm.support, x)).max().item() <= value + 1e-9


def test_alternate_steps_alone_would_stop_short() -> None:
    r"""A bit without weights whose bias is above zero, and a pair that only turns bit by bit."""
    rbm = RBM([[4.0, -4.0], [-4.0, 4.0], [0.0, 0.0]], [-1.0, -1.0, 0.5], [-1.0, -1.0])
    value, x = climb(rbm, 0)
    assert rbm(neighbours(rbm.support, x)).max().item() <= value + 1e-6
    assert x[2] == 1


def glass(support, seed: int = 0) -> Energy:
    r"""Random couplings between all pairs of variables."""
    couplings = torch.randn(support.size, support.size, generator=generator(seed))

    def fn(x):
        x = x.flatten(1)
        return torch.einsum("ni,ij,nj->n", x, couplings, x)

    return Energy(fn, support)


@pytest.mark.parametrize("support", [Binary(9), Spins(3, 3), States(3, 6), States(4, 2, 2)])
@pytest.mark.parametrize("seed", range(3))
def test_the_highest_point_of_any_target(support, seed) -> None:
    target = glass(support, seed)
    count = support.count**support.size
    highest = target.log_unnormalized(support.enumerate(0, count)).max().item()
    value, x = climb(target, tries=60, seed=seed)
    assert x.shape == support.shape
    assert value == pytest.approx(highest, rel=1e-5)
    alone, top = climb(target, tries=0)
    assert alone <= value + 1e-5
    assert target.log_unnormalized(neighbours(support, top)).max().item() <= alone + 1e-4


def test_equal_seeds_climb_equally() -> None:
    target = glass(Spins(40))
    one, same = (climb(target, 5, seed=3) for _ in range(2))
    assert one[0] == same[0]
    assert torch.equal(one[1], same[1])


def test_plateaus_end() -> None:
    value, x = climb(Energy(lambda x: 0 * x.sum(1), States(4, 5)), 4)
    assert value == 0
    assert torch.equal(x, torch.zeros(5))  # the first of equals


def test_forbidden_events_are_left() -> None:
    def fn(x):
        return torch.where(x.sum(1) == 1, x @ torch.arange(4.0), math.inf)

    value, x = climb(Energy(fn, Binary(4)), 0)
    assert torch.equal(x, torch.tensor([1.0, 0, 0, 0]))
    assert value == 0


@pytest.mark.parametrize(
    ("call", "argument", "received"),
    [
        (
            lambda: climb(Energy(lambda x: x.sum(1), Real(2))),
            "target",
            r"Real\(2\)",
        ),
        (lambda: climb("rbm"), "target", "^a str$"),
        (
            lambda: climb(Energy(lambda x: x.sum(1) + math.inf, Binary(2)), 0),
            "target",
            "^-inf",
        ),
        (
            lambda: climb(Energy(lambda x: x.sum(1) * math.nan, Binary(2)), 0),
            "target",
            "^nan",
        ),
        (
            lambda: climb(Energy(lambda x: x.sum(1) - math.inf, Binary(2)), 0),
            "target",
            "^inf",
        ),
    ],
)
def test_bad_arguments(call, argument, received) -> None:
    with refused(argument, received):
        call()
