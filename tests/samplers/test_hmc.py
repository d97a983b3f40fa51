r"""HMC: the integrator, the distribution it leaves invariant, adaptation, refusals."""

from __future__ import annotations

import math

import pytest
import torch

import limbeck as lb
from limbeck.errors import NotDifferentiableError
from limbeck.samplers import HMC, effective_size
from limbeck.samplers.hmc import differentiate, leapfrog
from tests.refusals import refused

TWO = torch.tensor([[2.0, 0.6], [0.6, 0.5]], dtype=torch.float64)


def gaussian(covariance):
    precision = torch.linalg.inv(covariance)
    return lambda x: -((x @ precision.to(x)) * x).sum(1) / 2


def banana(x):
    return -x[:, 0].square() / 2 - 2 * (x[:, 1] - x[:, 0].square()).square()


@pytest.mark.parametrize(
    "scale", [torch.tensor([0.5, 2.0]), torch.tensor([[0.5, 0.0], [0.3, 1.0]])]
)
def test_trajectories_are_reversible_and_keep_volume(scale):
    scale, generator = scale.double(), torch.Generator().manual_seed(0)
    x = torch.randn(3, 2, dtype=torch.float64, generator=generator)
    momentum = torch.randn(3, 2, dtype=torch.float64, generator=generator)
    steps = torch.tensor([[0.1], [0.2], [0.05]], dtype=torch.float64)
    counts = torch.tensor([[3], [5], [1]])

    def evaluate(x):
        return differentiate(banana, x)

    def whole(x, momentum):
        end, last = leapfrog(evaluate, evaluate(x), momentum, steps, scale, counts)
        return torch.cat([end.x, last], 1)

    end = whole(x, momentum)
    for row, count in enumerate(counts.flatten().tolist()):  # each ends as it would by itself
        one = slice(row, row + 1)
        alone, last = leapfrog(evaluate, evaluate(x[one]), momentum[one], steps[one], scale, count)
        torch.testing.assert_close(end[one], torch.cat([alone.x, last], 1))
    back = whole(end[:, :2], -end[:, 2:])
    torch.testing.assert_close(back, torch.cat([x, -momentum], 1), atol=1e-10, rtol=0)
    h, columns = 1e-5, []  # finite differences of the map of each row
    for place in range(4):
        shift = torch.zeros(4, dtype=torch.float64)
        shift[place] = h
        ends = [whole(x + s * shift[:2], momentum + s * shift[2:]) for s in (1, -1)]
        columns.append((ends[0] - ends[1]) / (2 * h))
    determinant = torch.linalg.det(torch.stack(columns, 2))
    torch.testing.assert_close(determinant, torch.ones(3, dtype=torch.float64), atol=1e-6, rtol=0)


def test_the_error_of_the_energy_is_of_second_order_in_the_step():
    def evaluate(x):
        return differentiate(banana, x)

    x, momentum = torch.tensor([[0.7, 0.1]]).double(), torch.tensor([[0.4, -1.1]]).double()
    here, errors = evaluate(x), []
    for step in (0.04, 0.02):
        end, last = leapfrog(
            evaluate, here, momentum, step, torch.ones(2).double(), round(0.4 / step)
        )
        error = end.log - here.log - (last.square() - momentum.square()).sum(1) / 2
        errors.append(abs(float(error)))
    assert 3.0 < errors[0] / errors[1] < 5.0


def test_exact_draws_stay_where_they_are():
    generator = torch.Generator().manual_seed(1)
    n = 20_000
    first = torch.randn(n, dtype=torch.float64, generator=generator)
    x = torch.stack(
        [first, torch.randn(n, dtype=torch.float64, generator=generator) / 2 + first**2], 1
    )
    sampler = HMC(banana, x, step_size=0.15, seed=2)  # large: many are refused
    after = [sampler.step() for _ in range(8)][-1]
    assert 0.3 < sampler.accepted < 0.98  # so that the test needs the refusals
    for f in (lambda x: x[:, 0], lambda x: x[:, 1], banana, lambda x: x[:, 0] ** 2 * x[:, 1]):
        change = f(after) - f(x)
        assert abs(float(change.mean() / (change.std() / math.sqrt(n)))) < 4.0
    assert float((after != x).any(1).double().mean()) > 0.9


def test_the_posterior_of_a_linear_regression():
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(30, 4, dtype=torch.float64, generator=generator) * torch.tensor([1, 5, 0.1, 1])
    y = (
        X @ torch.tensor([1.0, -0.3, 4.0, 0.0]).double()
        + torch.randn(30, generator=generator).double()
    )
    precision = X.T @ X + torch.eye(4) / 9
    mean = torch.linalg.solve(precision, X.T @ y)

    def log_posterior(w):
        return -(y - w @ X.T).square().sum(1) / 2 - w.square().sum(1) / 18

    sampler = HMC(log_posterior, torch.zeros(50, 4).double()).burn_in(150)
    draws = torch.stack([sampler.step() for _ in range(200)], 1)
    covariance = torch.linalg.inv(precision)
    for place in range(4):
        series, sd = draws[:, :, place], float(covariance[place, place].sqrt())
        error = sd / math.sqrt(effective_size(series))
        assert abs(float(series.mean() - mean[place])) < 4.5 * error
        assert float(series.std()) == pytest.approx(sd, rel=0.06)
    assert sampler.divergences == 0


def test_a_hundred_correlated_coordinates_mix():
    generator = torch.Generator().manual_seed(0)
    Q, _ = torch.linalg.qr(torch.randn(100, 100, dtype=torch.float64, generator=generator))
    covariance = (Q * torch.logspace(-2, 2, 100, dtype=torch.float64)) @ Q.T
    sampler = HMC(gaussian(covariance), torch.randn(64, 100, generator=generator)).burn_in(150)
    before = sampler.evaluations
    draws = torch.stack([sampler.step() for _ in range(60)], 1)
    widest = draws.double() @ Q[:, -1]
    assert effective_size(widest) / (sampler.evaluations - before) > 0.05
    assert float(widest.var()) == pytest.approx(100, rel=0.15)


def test_the_same_seed_gives_the_same_run_and_states_continue():
    log_density, start = (
        gaussian(TWO),
        torch.randn(5, 2, generator=torch.Generator().manual_seed(0)),
    )
    one, two = (HMC(log_density, start, seed=3).burn_in(20) for _ in range(2))
    assert torch.equal(one.step(), two.step())
    state = one.state_dict()
    ahead = [one.step() for _ in range(3)]
    other = HMC(log_density, start, seed=9)
    other.load_state_dict(state)
    for expected in ahead:
        assert torch.equal(next(other), expected)
    assert not torch.equal(HMC(log_density, start, seed=4).burn_in(20).step(), ahead[0])


def test_points_without_mass_are_never_accepted():
    def log_density(x):  # a quarter of the plane, with derivatives that do not exist outside
        return torch.where((x > 0).all(1), -x.sum(1) - 0 * x.sqrt().sum(1), -math.inf)

    sampler = HMC(log_density, torch.ones(200, 2)).burn_in(50)
    draws = torch.stack([sampler.step() for _ in range(100)], 1)
    assert (draws > 0).all()
    series = draws[:, :, 0]
    assert abs(float(series.mean()) - 1) < 4.5 / math.sqrt(effective_size(series))


def test_unstable_trajectories_are_counted():
    sampler = HMC(lambda x: -1e8 * x.square().sum(1), torch.zeros(20, 2), step_size=1.0)
    with pytest.warns(UserWarning, match="became unstable"):
        next(sampler)
    assert sampler.divergences > 0


def test_chains_that_fall_into_a_narrow_mode_are_not_called_unstable():
    sampler = HMC(lambda x: -x.square().sum(1) / 2e-4, torch.ones(50, 2), scale=[0.01, 0.01])
    draws = [sampler.step() for _ in range(30)]
    assert sampler.divergences == 0
    assert float(draws[-1].std()) == pytest.approx(0.01, rel=0.3)


def test_refusals():
    start = torch.zeros(4, 2)
    with refused("start", "zero at 4"):
        HMC(lambda x: x.sum(1) - math.inf, start)
    with refused("log_density", "nan"):
        HMC(lambda x: x.sum(1) * math.nan, start)
    with refused("log_density", "shape"):
        HMC(lambda x: x.sum(), start)
    with refused("scale"):
        HMC(lambda x: x.sum(1), start, scale=[1.0, -1.0])
    with pytest.raises(NotDifferentiableError, match="Slice"):
        HMC(lambda x: x.detach().sum(1), start)

    def rooted(x):  # NaN where another function would say −∞
        return x.sqrt().sum(1) - x.sum(1)

    with refused("log_density", "nan"):
        HMC(rooted, torch.full((50, 2), 0.5)).burn_in(20)


@pytest.mark.parametrize("detached", [False, True])
def test_an_energy_over_the_reals_moves_by_hmc_or_else_by_slices(detached):
    precision = torch.linalg.inv(TWO).float()

    def energy(x):
        x = x.detach() if detached else x
        return ((x @ precision) * x).sum(1) / 2

    target = lb.Energy(energy, lb.Real(2))
    x = torch.linalg.cholesky(TWO).float() @ torch.randn(
        2, 4000, generator=torch.Generator().manual_seed(0)
    )
    moved = target.advance(x.T, 3, torch.Generator().manual_seed(1))
    torch.testing.assert_close(moved.T.cov(), TWO.float(), atol=0.15, rtol=0)
    again = target.advance(x.T, 3, torch.Generator().manual_seed(1))
    other = lb.Energy(energy, lb.Real(2)).advance(x.T, 3, torch.Generator().manual_seed(1))
    assert torch.equal(moved, again)
    assert torch.equal(moved, other)
    step_size, scale = next(iter(target._adapted.values()))
    assert (scale is None) == detached
    assert (step_size > 0) != detached
