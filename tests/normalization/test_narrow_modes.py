r"""Narrow modes that draws do not visit: what leads to them, and what estimates make of it."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Independent, Normal, Uniform

import limbeck as lb
from limbeck.normalization.densities import Densities
from limbeck.normalization.regions import RealSearch
from tests.normalization.small import generator


def direction(kind: str, dim: int) -> torch.Tensor:
    vector = torch.ones(dim) if kind == "constant" else torch.zeros(dim)
    if kind == "coordinate":
        vector[0] = 1
    if kind == "random":
        vector = torch.randn(dim, generator=generator(9))
    return vector / vector.norm()


def slab_and_spike(share: float, place: torch.Tensor, width: float) -> lb.Energy:
    r"""N(0, I) with this share, and N(place, width² I) with the rest; log Z is 0."""
    slab = Independent(Normal(torch.zeros(len(place)), 1.0), 1)
    spike = Independent(Normal(place, width), 1)

    def energy(x):
        logs = math.log(share) + slab.log_prob(x), math.log1p(-share) + spike.log_prob(x)
        return -torch.logaddexp(*logs)

    return lb.Energy(energy, lb.Real(len(place)))


CASES = [
    ("constant", 20, 2.0, 0.1),  # between draws, closer to the centre than nearly all of them
    ("coordinate", 20, 12.0, 0.5),
    ("random", 5, 12.0, 0.3),
    ("random", 10, 10.0, 0.5),
]


@pytest.mark.parametrize(("kind", "dim", "apart", "width"), CASES)
def test_a_narrow_mode_is_reached_from_lines_and_from_events_far_out(kind, dim, apart, width):
    place = apart * direction(kind, dim)
    target = slab_and_spike(0.7, place, width)
    draws = torch.randn(4000, dim, generator=generator(1))
    search = RealSearch(Densities(target), draws)
    regions, _ = search.regions()
    assert not search.singular
    (number,) = [k for k, box in enumerate(search.sets) if (box.peak - place).norm() < width / 2]
    assert not regions[number].inside.any()
    # the mass of three deviations on each side of every coordinate
    log_mass = math.log(0.3) + dim * math.log(math.erf(3 / math.sqrt(2)))
    assert regions[number].log_mass == pytest.approx(log_mass, abs=0.1)


@pytest.mark.parametrize(("kind", "dim", "apart", "width"), CASES[::2])
def test_importance_sampling_that_misses_a_narrow_mode_is_doubtful(kind, dim, apart, width):
    target = slab_and_spike(0.5, apart * direction(kind, dim), width)
    q = Independent(Normal(torch.zeros(dim), 1.05), 1)
    z = lb.log_partition(target, q, method="importance", samples=4000, progress=False)
    assert z.value == pytest.approx(-math.log(2), abs=0.1)
    assert z.verdict.state == "doubtful"


@pytest.mark.parametrize("width", [1.0, 0.3, 0.05])
def test_a_box_is_as_wide_as_its_peak(width):
    target = slab_and_spike(1e-9, torch.tensor([3.0, 1.0]), width)
    draws = torch.tensor([3.0, 1.0]) + width * torch.randn(2000, 2, generator=generator(0))
    deviations = RealSearch(Densities(target), draws).boxes()[0].factor.norm(dim=1)
    torch.testing.assert_close(deviations, torch.full((2,), width).double(), rtol=0.02, atol=0)


def test_a_narrow_peak_in_a_broad_density_is_not_called_infinite():
    target = slab_and_spike(0.9, 6 * direction("random", 2), 0.02)
    search = RealSearch(Densities(target), torch.randn(2000, 2, generator=generator(0)))
    assert len(search.regions()[0]) == 3  # with both together
    assert not search.singular


@pytest.mark.slow
@pytest.mark.parametrize("origin", [0.0, -0.5])
@pytest.mark.parametrize("kind", ["constant", "coordinate"])
def test_annealing_takes_a_narrow_mode_along(kind, origin):
    r"""Also where the chains that the start is fitted to are in both modes (origin −0.5)."""
    place = 10 * direction(kind, 10)
    base = slab_and_spike(0.9, place, 0.5)
    target = lb.Energy(lambda x: -base.log_unnormalized(x - origin * place), lb.Real(10))
    z = lb.log_partition(target, seconds=3, progress=False)
    assert z.value == pytest.approx(0, abs=4.5 * z.std_error)
    assert z.std_error < 0.05  # the narrow mode has a tenth of the mass


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_a_mode_of_an_rbm_that_only_its_hidden_unit_leads_to(share):
    r"""Given the hidden unit, visible ones are independent: a student of one mode is exact."""
    size, g = 300, generator(5)
    W, a = 2 * torch.randn(size, 1, generator=g), 0.5 * torch.randn(size, generator=g)
    off, on = (torch.nn.functional.softplus(a + h * W[:, 0]).sum() for h in (0, 1))
    b = (off - on + math.log(share / (1 - share)))[None]
    q = Independent(torch.distributions.Bernoulli(logits=a), 1)
    z = lb.log_partition(
        lb.RBM(W, a, b), q, method="importance", samples=4000, exact=False, progress=False
    )
    assert z.value == pytest.approx(float(off), abs=0.01)  # without the other mode
    assert z.verdict.state == "doubtful"
    low, high = z.interval(0.999)
    assert low < float(off) - math.log1p(-share) < high


@pytest.mark.parametrize("apart", [2.0, 6.0])
def test_a_second_plateau_is_found(apart):
    r"""Two boxes of equal height, of which the proposal knows one."""

    def log_p(x):
        inside = (x.abs() <= 1).all(1) | ((x - 2 - apart).abs() <= 1).all(1)
        return torch.where(inside, 0.0, -math.inf)

    target = lb.Energy(lambda x: -log_p(x), lb.Real(3))
    box = Uniform(-torch.ones(3), torch.ones(3))
    z = lb.log_partition(target, box, method="importance", progress=False)
    assert z.verdict.state == "doubtful"
