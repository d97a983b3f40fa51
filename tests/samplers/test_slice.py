r"""Slice sampling: moments against quadrature, invariance from exact draws, and what it refuses."""

from __future__ import annotations

import itertools
import math

import pytest
import scipy.stats
import torch
from torch import Tensor
from torch.nn import functional as F

from limbeck.errors import CheckpointError
from limbeck.samplers.slice import Slice
from tests.refusals import refused

DOUBLE = torch.float64


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(x: Tensor) -> Tensor:
    return -x.square().sum(1) / 2


class Skewed:
    r"""The logarithm of a gamma variable: steep on the right, a long tail on the left."""

    law = scipy.stats.loggamma(0.7)
    grid = torch.linspace(-60, 8, 400_001, dtype=DOUBLE)[:, None]

    def __call__(self, x):
        return 0.7 * x[:, 0] - x[:, 0].exp()


class Bimodal:
    r"""A narrow mode and a wide one, of unequal weight, with little between them."""

    grid = torch.linspace(-12, 16, 400_001, dtype=DOUBLE)[:, None]

    def __call__(self, x):
        narrow = math.log(0.3 / 0.4) - ((x[:, 0] + 2) / 0.4).square() / 2
        wide = math.log(0.7 / 1.2) - ((x[:, 0] - 2) / 1.2).square() / 2
        return torch.logaddexp(narrow, wide)

    class law:
        @staticmethod
        def cdf(x):
            norm = scipy.stats.norm.cdf
            return 0.3 * norm(x, -2, 0.4) + 0.7 * norm(x, 2, 1.2)

        @staticmethod
        def rvs(size, random_state):
            u, z = torch.rand(size, generator=generator(random_state)), scipy.stats.norm
            z = torch.as_tensor(z.rvs(size=size, random_state=random_state))
            return torch.where(u < 0.3, -2 + 0.4 * z, 2 + 1.2 * z).numpy()


class Logistic:
    r"""The posterior of logistic regression on 24 points in two groups, prior N(0, 100·I)."""

    def __init__(self):
        x = torch.randn(24, 2, generator=generator(3), dtype=DOUBLE)
        sign = torch.tensor([-1.0, 1.0], dtype=DOUBLE).repeat_interleave(12)
        x[:, 0] += 4 * sign
        self.signed = x * sign[:, None]  # (24, 2)
        axis = 0.2 * (torch.arange(-300, 300, dtype=DOUBLE) + 0.5)  # midpoints: 1 lies between
        self.grid = torch.cartesian_prod(axis, axis)

    def __call__(self, w):
        return F.logsigmoid(w @ self.signed.T).sum(1) - w.square().sum(1) / 200


def features(x: Tensor) -> Tensor:
    r"""Means, second moments and tails of (n, dim): (n, features)."""
    parts = [x, x.square(), (x > 1).to(x), (x[:, :1] * x[:, 1:])]
    return torch.cat(parts, 1)


def by_quadrature(density, function=features) -> Tensor:
    weight = torch.softmax(density(density.grid), 0)
    return weight @ function(density.grid)


def deviations(sampler, truth, keep=20, function=features) -> Tensor:
    r"""How many standard errors the means over independent chains are from the truth."""
    of_chains = sum(function(draws) for draws in itertools.islice(sampler, keep)) / keep
    return (of_chains.mean(0) - truth) / (of_chains.std(0) / math.sqrt(len(of_chains)))


@pytest.mark.parametrize("density", [Skewed(), Bimodal()], ids=["skewed", "bimodal"])
@pytest.mark.parametrize(("width", "tune"), [(0.5, False), (30.0, False), (1e-3, True)])
def test_moments_of_one_dimension_agree_with_quadrature(density, width, tune):
    start = 2 * torch.randn(4000, 1, generator=generator(), dtype=DOUBLE)
    sampler = Slice(density, start, width, seed=1).burn_in(60 * tune)
    for _ in range(60 * (not tune)):
        sampler.step()
    assert deviations(sampler, by_quadrature(density)).abs().max() < 4


def test_moments_of_a_logistic_posterior_agree_with_quadrature():
    density = Logistic()
    sampler = Slice(density, torch.zeros(4000, 2, dtype=DOUBLE), seed=2).burn_in(100)

    def more(w):  # predictions too, since they are what draws are for
        inputs = torch.tensor([[0.5, 0.5], [0.0, -3.0], [-1.0, 2.0]], dtype=DOUBLE)
        return torch.cat([features(w), (w @ inputs.T).sigmoid()], 1)

    found = deviations(sampler, by_quadrature(density, more), function=more)
    assert found.abs().max() < 4


def drift(sampler: Slice, law, sweeps: int) -> float:
    r"""The p-value of a Kolmogorov test of one-dimensional chains after some sweeps."""
    *_, draws = itertools.islice(sampler, sweeps)
    return scipy.stats.kstest(draws[:, 0].numpy(), law.cdf).pvalue


def exact(density, chains=20_000) -> Tensor:
    return torch.as_tensor(density.law.rvs(size=chains, random_state=1)).reshape(-1, 1)


@pytest.mark.filterwarnings("ignore:stepping out")  # one or four steps are soon used up
@pytest.mark.parametrize("density", [Skewed(), Bimodal()], ids=["skewed", "bimodal"])
@pytest.mark.parametrize(("width", "most"), [(0.5, 1000), (0.5, 4), (0.5, 1), (3, 1000), (3, 1)])
def test_exact_draws_stay_exact(density, width, most):
    sampler = Slice(density, exact(density), width, max_steps_out=most, seed=1)
    assert drift(sampler, density.law, 1) > 1e-3
    assert drift(sampler, density.law, 9) > 1e-3


class OneSided(Slice):
    r"""A mistake: left ends do not step out."""

    def _step_out(self, coordinate, height):
        left, right, steps = super()._step_out(coordinate, height)
        return torch.maximum(left, self._x[:, coordinate] - self.width[coordinate]), right, steps


class Centred(Slice):
    r"""A mistake: the first interval has the point in its middle."""

    def _step_out(self, coordinate, height):
        self._uniform = lambda n: torch.full((n,), 0.5, dtype=DOUBLE)
        ends = super()._step_out(coordinate, height)
        del self._uniform
        return ends


@pytest.mark.parametrize("mistaken", [OneSided, Centred])
def test_mistakes_in_stepping_out_would_be_seen(mistaken):
    density = Bimodal()
    sampler = mistaken(density, exact(density), 3.0, seed=1)
    assert drift(sampler, density.law, 10) < 1e-20
    assert deviations(sampler, by_quadrature(density)).abs().max() > 20


@pytest.mark.filterwarnings("ignore:stepping out")
def test_steps_that_are_not_dealt_at_random_would_be_seen(monkeypatch):
    density = Skewed()
    monkeypatch.setattr(torch, "randint", lambda most, size, **_: torch.full(size, most // 2))
    sampler = Slice(density, exact(density), 0.5, max_steps_out=4, seed=1)
    assert drift(sampler, density.law, 10) < 1e-20


def test_exact_draws_of_a_correlated_density_stay_exact_in_every_direction():
    covariance = torch.tensor([[1.0, 0.9], [0.9, 1.5]], dtype=DOUBLE)
    precision, root = covariance.inverse(), torch.linalg.cholesky(covariance)
    start = torch.randn(20_000, 2, generator=generator(4), dtype=DOUBLE) @ root.T
    sampler = Slice(lambda x: -((x @ precision) * x).sum(1) / 2, start, seed=5)
    draws = sampler.step()
    assert not (draws == start).any()
    for direction in torch.eye(2, dtype=DOUBLE), torch.tensor([[1.0, 1.0], [1.0, -1.0]]).double():
        for along in direction:
            scale = math.sqrt(along @ covariance @ along)
            assert scipy.stats.kstest(draws @ along / scale, "norm").pvalue > 1e-3


def test_chains_stay_where_the_density_is():
    def square(x):
        return torch.where(((x > 0) & (x < 1)).all(1), 0.0, -math.inf)

    start = torch.rand(20_000, 2, generator=generator(6))
    *_, draws = itertools.islice(Slice(square, start, 0.3, seed=7), 5)
    assert ((draws > 0) & (draws < 1)).all()
    for coordinate in draws.T:
        assert scipy.stats.kstest(coordinate, "uniform").pvalue > 1e-3


def test_the_density_is_asked_no_more_than_it_must():
    asked = []

    def density(x):
        asked.append(x.clone())
        return normal(x)

    n = 300
    sampler = Slice(density, torch.zeros(n, 2), seed=8)
    assert [len(points) for points in asked] == [n]
    for _ in range(3):
        here, count = sampler._x.clone(), len(asked)
        sampler.step()
        sizes = [len(points) for points in asked[count:]]
        assert 2 * n - 5 < sizes[0] <= 2 * n, "both ends in one call"
        shrinking = sizes.index(n)
        assert sizes[:shrinking] == sorted(sizes[:shrinking], reverse=True)
        points = torch.cat(asked[count : count + shrinking + 1])
        assert not (points[:, None, 0] == here[None, :, 0]).any(), "never where a chain is"
    assert sampler.evaluations == sum(map(len, asked))
    assert sampler.evaluations < n * 2 * 3 * 9
    torch.testing.assert_close(sampler._log, normal(sampler._x))


def test_the_width_is_tuned_in_burn_in_only_and_to_the_scale_of_each_coordinate():
    scales = torch.tensor([1e-3, 1.0, 1e4], dtype=DOUBLE)
    start = scales * torch.randn(200, 3, generator=generator(), dtype=DOUBLE)

    def density(x):
        return normal(x / scales)

    sampler = Slice(density, start, seed=9).burn_in(50)
    tuned = sampler.width.clone()
    assert ((tuned / scales > 2) & (tuned / scales < 8)).all()
    before = sampler.evaluations
    list(itertools.islice(sampler, 10))
    assert torch.equal(sampler.width, tuned)
    assert sampler.evaluations - before < 200 * 3 * 10 * 6
    fixed = Slice(density, start, [1e-3, 1.0, 1e4], seed=9)
    fixed.step()
    assert torch.equal(fixed.width, scales)
    assert fixed.sweeps_done == 1


def test_equal_seeds_give_equal_draws_and_the_draws_are_the_user_s_to_change():
    one, two, other = (Slice(normal, torch.zeros(20, 3), seed=s).burn_in(5) for s in (1, 1, 2))
    given = Slice(normal, torch.zeros(20, 3), generator=generator(1)).burn_in(5)
    first = one.step()
    assert torch.equal(first, two.step())
    assert torch.equal(first, given.step())
    assert not torch.equal(first, other.step())
    first.fill_(math.nan)
    assert torch.equal(next(one), next(iter(two)))
    assert (one.chains, one.dim, one.sweeps_done) == (20, 3, 7)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_a_resumed_run_is_the_uninterrupted_one(dtype):
    density = Logistic()
    density.signed = density.signed.to(dtype)
    whole = Slice(density, torch.zeros(50, 2, dtype=dtype), seed=3).burn_in(20)
    state = whole.state_dict()
    ahead = [whole.step() for _ in range(5)]
    again = Slice(density, torch.ones(50, 2, dtype=dtype), width=7.0, seed=99)
    again.load_state_dict(state)
    for draws in ahead:
        assert torch.equal(again.step(), draws)
    assert (again.sweeps_done, again.evaluations) == (whole.sweeps_done, whole.evaluations)
    with pytest.raises(CheckpointError, match=r"are \(50, 2\) .* and here \(4, 2\)"):
        Slice(density, torch.zeros(4, 2, dtype=dtype)).load_state_dict(state)


def test_a_density_may_return_a_part_of_its_argument_or_change_it():
    def falling(x):  # exponential with the largest value at zero; a view of x
        x[x > 0] = -math.inf
        return x[:, 0]

    *_, draws = itertools.islice(Slice(falling, -torch.ones(5000, 1), seed=2), 30)
    assert scipy.stats.kstest(-draws[:, 0], "expon").pvalue > 1e-3


@pytest.mark.parametrize("density", [lambda x: 0 * x[:, 0], lambda x: x[:, 0].clamp_max(0)])
def test_what_does_not_fall_off_is_bounded_and_told_once(density):
    sampler = Slice(density, torch.zeros(100, 1), max_steps_out=50)
    with pytest.warns(UserWarning, match=r"more than half of max_steps_out=50 in \d+ of 100"):
        draws = sampler.step()
    assert draws.isfinite().all()
    assert draws.abs().max() <= 2 * 51
    sampler.step()  # silent, since warnings are errors here


def test_a_width_below_the_rounding_of_the_point_is_told():
    sampler = Slice(normal_around(1e6), torch.full((10, 1), 1e6), 1e-3, max_steps_out=9)
    with pytest.warns(UserWarning, match="the width is far too small"):
        sampler.step()


def normal_around(centre):
    return lambda x: normal(x - centre)


def test_chains_in_a_slice_of_nothing_else_stay_and_the_sweep_ends():
    start = torch.randn(10, 2, generator=generator())
    known = iter([torch.zeros(10)])
    sampler = Slice(lambda x: next(known, torch.full((len(x),), -math.inf)), start)
    assert torch.equal(sampler.step(), start)


def test_integers_lists_and_one_chain_are_taken():
    assert Slice(normal, [[0, 1]], 2).step().shape == (1, 2)
    assert Slice(normal, [[0.5]]).step().dtype == torch.get_default_dtype()
    assert not Slice(normal, torch.zeros(3, 2, requires_grad=True)).step().requires_grad


@pytest.mark.parametrize(
    ("start", "received"),
    [
        (torch.zeros(3), r"shape \(3,\)"),
        (torch.zeros(0, 2), r"shape \(0, 2\)"),
        (torch.zeros(2, 0), r"shape \(2, 0\)"),
        (torch.zeros(3, 2, 2), r"shape \(3, 2, 2\)"),
        (torch.tensor([[0.0, math.nan]]), "1 NaN or infinite values"),
        (torch.tensor([[math.inf]]), "1 NaN or infinite values"),
        (torch.zeros(3, 2).half(), r"of torch\.float16"),
        (torch.zeros(3, 2) * 1j, r"complex numbers"),
        ("zeros", "strings"),
        ([[0.0], [0.0, 1.0]], "no array"),
    ],
)
def test_starts_that_are_no_points_are_refused(start, received):
    with refused("start", received):
        Slice(normal, start)


@pytest.mark.parametrize("width", [0, -1.0, math.nan, math.inf, "wide", [1.0], [1.0, 0.0], [[1.0]]])
def test_widths_that_are_none_are_refused(width):
    with refused("width"):
        Slice(normal, torch.zeros(3, 2), width)


def test_other_arguments_that_are_none_are_refused():
    x = torch.zeros(3, 2)
    with refused("log_density", "1.0"):
        Slice(1.0, x)
    with refused("max_steps_out", "0"):
        Slice(normal, x, max_steps_out=0)
    with refused("seed", "'a'"):
        Slice(normal, x, seed="a")
    with refused("sweeps", "-1"):
        Slice(normal, x).burn_in(-1)


@pytest.mark.parametrize(
    ("density", "received"),
    [
        (lambda x: -x.square(), r"a Tensor of shape \(3, 2\)"),
        (lambda x: normal(x)[:, None], r"a Tensor of shape \(3, 1\)"),
        (lambda x: normal(x).sum(), r"a Tensor of shape \(\)"),
        (lambda x: normal(x).numpy(), "a ndarray of shape"),
        (lambda x: normal(x) * math.nan, r"nan at \[0.0, 0.0\]"),
        (lambda x: normal(x) + math.inf, r"inf at \[0.0, 0.0\]"),
    ],
)
def test_densities_that_are_none_are_refused(density, received):
    with refused("log_density", received) as error:
        Slice(density, torch.zeros(3, 2))
    if "Tensor of shape" in received:
        assert "a tensor of shape (3,)" in str(error.value.expected)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_densities_that_fail_later_name_the_point_and_leave_the_chains_usable(value):
    def density(x):
        return torch.where(x[:, 0] > 2, value, normal(x))

    sampler = Slice(density, torch.zeros(100, 1), 5.0)
    with refused("log_density", rf"{value} at \[[2-9]\."):
        list(itertools.islice(sampler, 100))
    torch.testing.assert_close(sampler._log, normal(sampler._x))


def test_a_start_without_density_is_refused():
    start = torch.tensor([[0.5], [2.0], [3.0]])
    with refused("start", "a density of zero at 2 of 3 points"):
        Slice(lambda x: torch.where(x[:, 0] < 1, 0.0, -math.inf), start)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_and_no_generator_of_another_device():
    start = torch.randn(20_000, 1, device="cuda", dtype=DOUBLE)
    draws = Slice(normal, start, seed=1).step()
    assert scipy.stats.kstest(draws[:, 0].cpu(), "norm").pvalue > 1e-3
    with refused("generator", "one on cpu"):
        Slice(normal, start, generator=generator())


def test_a_sparse_start_is_refused():
    with refused("start", "layout torch.sparse_coo"):
        Slice(lambda x: -x.square().sum(1), torch.zeros(2, 3).to_sparse())
