r"""Chapter 3's logistic regression in small: posterior, exact predictions, bags."""

import pytest
import torch

from reproduction.chapter3_logistic import (
    GRID,
    LOSSES,
    NEAR,
    MonteCarlo,
    best_bag,
    errors,
    exact_surface,
    independent,
    log_posterior,
    points,
    sampler,
    text_bag,
)

X, Y = points(0)
AT = torch.tensor([[0.5, 0.5], [3.0, 0.0], [0.0, -6.0], [-1.0, 2.0]], dtype=torch.float64)


@pytest.fixture(scope="module")
def draws():
    chains = sampler(X, Y, 1000, 100, seed=0)
    return torch.cat([chains.step() for _ in range(10)]).float()


def test_points_are_two_groups_of_twelve():
    assert X.shape == (24, 2)
    assert Y.tolist() == [0] * 12 + [1] * 12
    assert (X[:12, 0].mean() + 4).abs() < 1
    assert (X[12:, 0].mean() - 4).abs() < 1
    assert torch.equal(points(3)[0], points(3)[0])
    assert not torch.equal(points(3)[0], X)


def test_the_posterior_is_the_prior_times_the_likelihood():
    w = torch.randn(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    p = (w @ X.T).sigmoid()
    expected = torch.where(Y == 1, p, 1 - p).log().sum(1)
    expected += torch.distributions.Normal(0.0, 10.0).log_prob(w).sum(1)
    found = log_posterior(X, Y)(w)
    torch.testing.assert_close(found - found[0], expected - expected[0], rtol=1e-10, atol=1e-10)


def test_exact_predictions_are_symmetric_fine_enough_and_those_of_chains(draws, monkeypatch):
    p = exact_surface(X, Y, AT)
    torch.testing.assert_close(exact_surface(X, Y, -AT), 1 - p, rtol=0, atol=1e-12)
    each = (AT.float() @ draws.T).sigmoid().double()  # (4, draws)
    by_chain = each.unflatten(1, (10, 1000)).mean(1)
    error = by_chain.std(1) / 1000**0.5
    assert ((by_chain.mean(1) - p) / error).abs().max() < 4
    module = "reproduction.chapter3_logistic."
    monkeypatch.setattr(module + "STEP", 0.25)
    monkeypatch.setattr(module + "REACH", 70.0)
    torch.testing.assert_close(exact_surface(X, Y, AT), p, rtol=0, atol=1e-4)


def test_errors_are_of_the_grid_and_near_the_origin():
    zero = torch.zeros(len(GRID), dtype=torch.float64)
    apart = torch.where(NEAR, 0.3, 0.1).double()
    found = errors(zero, apart)
    share = NEAR.double().mean().item()
    assert found.mean == pytest.approx(0.3 * share + 0.1 * (1 - share))
    assert (found.highest, found.near) == (pytest.approx(0.3), pytest.approx(0.3))
    assert share == pytest.approx(torch.pi * 4 / 256, rel=0.1)


def surface(bag):
    with torch.no_grad():
        return bag(GRID.float()).mean.double()


def average(draws):
    model = MonteCarlo(draws)
    return torch.cat([model(part.float()).double() for part in GRID.split(500)])


@pytest.mark.slow
@pytest.mark.parametrize("online", [False, True], ids=["batch", "online"])
@pytest.mark.parametrize("loss", LOSSES)
def test_bags_of_the_text_come_near_the_average_over_draws(loss, online, draws):
    bag, seconds = text_bag(
        loss, draws, online=online, variance=10.0, steps=900, batch=10, components=5, seed=0
    )
    assert bag.components == 5
    assert bag.logits is None
    assert seconds > 0
    assert errors(average(draws), surface(bag)).mean < 0.06  # from about 0.3 at the start


def test_limbecks_bag_comes_nearer_with_more_components(draws):
    expected, found = average(draws), {}
    for components in (2, 8):
        bag, _ = best_bag(draws[::10], steps=150, components=components, seed=0)
        assert bag.logits is not None
        found[components] = errors(expected, surface(bag)).mean
    assert found[8] < 0.03
    assert found[8] < 0.7 * found[2]


def test_independent_draws_have_the_posteriors_moments_and_no_memory(draws, monkeypatch):
    monkeypatch.setattr("reproduction.chapter3_logistic.THINNED", (500, 60, 15))
    found = independent(X, Y, 1990, seed=1)
    assert found.shape == (2000, 2)
    by_time = found.unflatten(0, (4, 500))
    error = found.std(0) / 2000**0.5
    known = draws.unflatten(0, (10, 1000)).mean(0)  # one number of each chain
    apart = found.mean(0) - known.mean(0)
    assert (apart.abs() < 4 * (error**2 + known.var(0) / 1000).sqrt()).all()
    z = (by_time - by_time.mean((0, 1))) / by_time.std((0, 1))
    along, across = (z[1:] * z[:-1]).mean((0, 1)), (z[:, 1:] * z[:, :-1]).mean((0, 1))
    assert across.abs().max() < 4 / 2000**0.5
    assert along.abs().max() < 4 / 1500**0.5  # after a single sweep it is about 0.4
    assert independent(X, Y, 20, seed=1).shape == (20, 2)


def test_shared_draws_take_noise_away(draws):
    ask = {"online": True, "variance": 10.0, "steps": 30, "batch": 10, "components": 3, "seed": 0}
    spread = {}
    for share in (1, 10):  # the same inputs and start each time, and other draws
        own = [text_bag("DSE", part, **ask, share=share)[0]._flat for part in draws.split(1000)[:5]]
        spread[share] = torch.stack(own).var(0).sum().item()
    assert spread[10] < 0.5 * spread[1]
