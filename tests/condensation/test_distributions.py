r"""The small distributions: against SciPy, against enumeration, and through torch's transforms."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

import limbeck as lb
from limbeck.arrays import map_tensors
from limbeck.distributions import (
    Bernoulli,
    Categorical,
    Mixture,
    MultivariateNormal,
    Normal,
    Poisson,
    average,
    broadcast,
    weighted_average,
)
from tests.refusals import raises_about, refused

DOUBLE = torch.float64


def tensor(values):
    return torch.tensor(values, dtype=DOUBLE)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def normals():
    return Mixture(
        tensor([[0.2, 0.5, 0.3], [0.9, 0.05, 0.05]]),
        Normal(tensor([[-3.0, 0.0, 2.0], [10.0, -10.0, 0.0]]), tensor([1.4, 2.2, 0.3])),
    )


def counts():
    return Mixture(logits=tensor([0.0, 1.0]), components=Poisson(rate=tensor([2.0, 30.0])))


VECTORS = MultivariateNormal(
    tensor([[1.0, 2.0], [0.0, -1.0]]), tensor([[[2.0, 0.0], [0.5, 1.0]], [[1.0, 0.0], [-3.0, 0.2]]])
)

NUMBERS = {
    "bernoulli, logits": Bernoulli(logits=tensor([-3.0, 0.2, 5.0])),
    "bernoulli, probs": Bernoulli(probs=tensor([0.0, 0.3, 1.0])),
    "categorical, logits": Categorical(logits=tensor([[0.0, 1.0, -2.0], [3.0, 3.0, 3.0]])),
    "categorical, probs": Categorical(probs=tensor([[0.1, 0.2, 0.7], [1.0, 0.0, 0.0]])),
    "normal": Normal(tensor([0.0, 100.0]), tensor(2.5)),
    "poisson, rate": Poisson(rate=tensor([0.0, 0.3, 4.0, 900.0])),
    "poisson, log_rate": Poisson(log_rate=tensor([-20.0, 0.0, 6.0])),
    "one coin": Bernoulli(logits=tensor(0.3)),
    "one die": Categorical(logits=tensor([0.3, 0.0, 0.1])),
    "one class": Categorical(logits=tensor([[0.3], [0.1]])),
    "one normal": Normal(tensor(0.3), tensor(2.0)),
    "one count": Poisson(rate=tensor(3.0)),
    "mixture of normals": normals(),
    "mixture of counts": counts(),
    "mixture of classes": Mixture(
        tensor([0.4, 0.6]), Categorical(logits=tensor([[0.0, 1.0, 2.0], [2.0, 0.0, 0.0]]))
    ),
    "mixture of mixtures": Mixture(tensor([0.5, 0.5]), normals()),
}
ALL = NUMBERS | {
    "vectors": VECTORS,
    "mixture of vectors": Mixture(tensor([0.3, 0.7]), VECTORS),
}
everything = pytest.mark.parametrize("one", ALL.values(), ids=ALL)
of_numbers = pytest.mark.parametrize("one", NUMBERS.values(), ids=NUMBERS)


def outcomes(one):
    r"""Whole numbers that hold all but nothing of the probability."""
    return torch.arange(0.0, 1200.0, dtype=DOUBLE) if one.discrete else None


# what they are


@of_numbers
def test_probabilities_sum_to_one_and_give_the_mean_and_the_variance(one):
    batch = one.batch_shape
    if one.discrete:
        y = outcomes(one).reshape(-1, *[1] * len(batch))
        p = one.log_prob(y).exp()
        first, second = (p * y).sum(0), (p * y**2).sum(0)
    else:
        y = torch.linspace(-60, 160, 400_001, dtype=DOUBLE).reshape(-1, *[1] * len(batch))
        p = one.log_prob(y).exp() * (y[1] - y[0])
        first, second = (p * y).sum(0), (p * y**2).sum(0)
    torch.testing.assert_close(p.sum(0), torch.ones(batch, dtype=DOUBLE), rtol=0, atol=1e-10)
    if one.mean_dims:  # of classes: the mean is the probability of each
        found = p[: one.mean.shape[-1]].movedim(0, -1)
        torch.testing.assert_close(one.mean, found, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(one.variance, found * (1 - found), rtol=1e-9, atol=1e-12)
    else:
        torch.testing.assert_close(one.mean, first, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(one.variance, second - first**2, rtol=1e-6, atol=1e-8)


def test_log_probabilities_are_scipys():
    y = torch.arange(0.0, 40.0, dtype=DOUBLE)
    np.testing.assert_allclose(
        Poisson(rate=tensor(7.3)).log_prob(y), stats.poisson(7.3).logpmf(y), rtol=1e-10
    )
    np.testing.assert_allclose(
        Poisson(log_rate=tensor(math.log(7.3))).log_prob(y), stats.poisson(7.3).logpmf(y)
    )
    np.testing.assert_allclose(
        Normal(tensor(1.0), tensor(0.1)).log_prob(y), stats.norm(1, 0.1).logpdf(y), rtol=1e-12
    )
    x = torch.randn(5, 2, 2, dtype=DOUBLE, generator=generator())
    for k in range(2):
        other = stats.multivariate_normal(VECTORS.loc[k], VECTORS.covariance[k])
        np.testing.assert_allclose(VECTORS.log_prob(x)[:, k], other.logpdf(x[:, k]), rtol=1e-10)


def test_a_density_of_vectors_integrates_to_one():
    mixture = ALL["mixture of vectors"]
    axis = torch.linspace(-25, 25, 501, dtype=DOUBLE)
    grid = torch.cartesian_prod(axis, axis)
    cell = (axis[1] - axis[0]) ** 2
    p = mixture.log_prob(grid).exp() * cell
    assert p.sum().item() == pytest.approx(1, abs=1e-6)
    torch.testing.assert_close(p @ grid, mixture.mean, rtol=0, atol=1e-5)
    apart = grid - mixture.mean
    torch.testing.assert_close(p @ apart.square(), mixture.variance, rtol=1e-5, atol=0)


def test_what_cannot_be_has_no_probability():
    coin = Bernoulli(logits=tensor([0.3]))
    for y in (0.5, 2, -1):
        assert coin.log_prob(y).item() == -math.inf
    die = Categorical(logits=tensor([0.0, 0.0, 0.0]))
    assert [die.log_prob(y).item() for y in (-1, 3, 1.5)] == [-math.inf] * 3
    count = Poisson(rate=tensor(2.0))
    assert [count.log_prob(y).item() for y in (-1, 0.5)] == [-math.inf] * 2
    assert coin.log_prob(True).item() == pytest.approx(-math.log1p(math.exp(-0.3)))


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("size", [50.0, 1e4])
def test_far_out_logits_lose_nothing(dtype, size):
    coin = Bernoulli(logits=torch.tensor([-size, size], dtype=dtype))
    assert coin.log_prob(1).tolist() == [-size, pytest.approx(-math.exp(-size))]
    assert coin.log_prob(0).tolist() == [pytest.approx(-math.exp(-size)), -size]
    both = average(Bernoulli(logits=torch.tensor([[-size], [-size + 1]], dtype=dtype)))
    assert both.logits.item() == pytest.approx(-size + math.log((1 + math.e) / 2), rel=1e-6)
    classes = Categorical(logits=torch.tensor([[[0.0, -size]], [[0.0, -size + 1]]], dtype=dtype))
    logs = average(classes).log_probabilities
    assert logs[0, 1].item() == pytest.approx(-size + math.log((1 + math.e) / 2), rel=1e-6)


LOGITS = {
    "ordinary": [0.3, -1.2, 2.0],
    "at zero": [0.0, 0.0, 0.0],
    "both sides": [-400.0, 0.0, 500.0],
    "all unlikely": [-90.0, -300.0, -90.5],
    "all but certain": [50.0, 800.0, 51.0],
}


@pytest.mark.parametrize("name", LOGITS)
def test_averages_of_coins_and_their_derivatives_are_those_of_the_log_domain(name):
    z, share = torch.tensor(LOGITS[name], dtype=DOUBLE), torch.tensor([0.2, 0.5, 0.3], dtype=DOUBLE)

    def found(z):
        return weighted_average(Bernoulli(logits=z[:, None]), share.to(z).log()).logits[0]

    def plain(z):
        logs = [torch.nn.functional.logsigmoid(each) + share.log() for each in (z, -z)]
        return logs[0].logsumexp(0) - logs[1].logsumexp(0)

    torch.testing.assert_close(found(z), plain(z), rtol=1e-12, atol=1e-14)
    single = found(z.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), plain(z), rtol=2e-6, atol=2e-7)
    for derivative in (torch.func.jacrev, torch.func.jacfwd, torch.func.hessian):
        torch.testing.assert_close(
            derivative(found)(z), derivative(plain)(z), rtol=1e-9, atol=1e-13
        )


def test_float32_stays_float32():
    for one in ALL.values():
        single = map_tensors(lambda value: value.float(), one)
        y = single.sample((3,), generator())
        for found in (single.mean, single.variance, single.log_prob(y)):
            assert found.dtype == torch.float32
            assert found.isfinite().all()


# intervals


@of_numbers
@pytest.mark.parametrize("level", [0.1, 0.5, 0.9, 0.999])
def test_beyond_the_ends_of_an_interval_is_as_much_as_it_says(one, level):
    low, high = one.interval(level)
    mass = (1 - level) / 2
    assert low.shape == high.shape == one.batch_shape
    assert (low <= high).all()
    if one.discrete:  # the smallest numbers with P(Y ≤ low) ≥ mass and P(Y > high) ≤ mass
        assert (one.cdf(low) >= mass - 1e-12).all()
        assert (one.cdf(low - 1) < mass).all()
        assert (1 - one.cdf(high) <= mass + 1e-12).all()
        assert ((high == 0) | (1 - one.cdf(high - 1) > mass - 1e-12)).all()
    else:
        expected = torch.full_like(low, mass)
        torch.testing.assert_close(one.cdf(low), expected, rtol=1e-9, atol=0)
        torch.testing.assert_close(1 - one.cdf(high), expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("level", [0.5, 0.95])
def test_intervals_are_scipys(level):
    for rate in (0.01, 3.7, 250.0):
        found = [end.item() for end in Poisson(rate=tensor(rate)).interval(level)]
        assert found == list(stats.poisson(rate).interval(level))
    found = [end.item() for end in Normal(tensor(2.0), tensor(3.0)).interval(level)]
    assert found == pytest.approx(stats.norm(2, 3).interval(level), rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(-20, 20), min_size=3, max_size=3),
    st.lists(st.floats(0.01, 10), min_size=3, max_size=3),
    st.floats(0.01, 0.99),
)
def test_quantiles_of_mixtures_turn_the_cumulative_distribution_round(loc, scale, level):
    mixture = Mixture(tensor([0.2, 0.3, 0.5]), Normal(tensor(loc), tensor(scale)))
    low, high = mixture.interval(level)
    inside = (mixture.cdf(high) - mixture.cdf(low)).item()
    assert inside == pytest.approx(level, abs=1e-9)


def test_tails_keep_their_digits_in_float32():
    mixture = Mixture(torch.tensor([0.5, 0.5]), Normal(torch.zeros(2), torch.ones(2)))
    low, high = mixture.interval(1 - 2e-9)
    assert -low.item() == pytest.approx(-stats.norm.ppf(1e-9), rel=1e-3)
    assert high.item() == pytest.approx(-stats.norm.ppf(1e-9), rel=1e-3)


@pytest.mark.parametrize("level", [0, 1, -0.5, math.nan, "0.9"])
def test_a_level_is_between_0_and_1(level):
    with refused("level", expected="a number between 0 and 1"):
        NUMBERS["normal"].interval(level)


def test_vectors_have_no_intervals():
    with raises_about(lb.LimbeckError, "MultivariateNormal"):
        ALL["mixture of vectors"].interval(0.9)


# samples


@everything
def test_samples_have_the_mean_and_the_variance(one):
    n = 40_000
    y = one.sample((n,), generator())
    assert y.shape[: 1 + len(one.batch_shape)] == (n, *one.batch_shape)
    assert torch.equal(y, one.sample(n, generator()))
    if (one.variance > 1e-6).any():
        assert not torch.equal(y, one.sample(n, generator(1)))
    if one.mean_dims and not one.event:
        y = torch.nn.functional.one_hot(y, one.mean.shape[-1]).to(DOUBLE)
    error = (one.variance / n).sqrt()
    assert ((y.to(DOUBLE).mean(0) - one.mean).abs() <= 5 * error + 1e-12).all()
    spread = y.to(DOUBLE).var(0)
    fourth = (y.to(DOUBLE) - one.mean).pow(4).mean(0)
    noise = (fourth - one.variance**2).clamp_min(0).div(n).sqrt()
    assert ((spread - one.variance).abs() <= 5 * noise + 1e-6).all()


@everything
def test_one_sample_of_each(one):
    y = one.sample(generator=generator())
    assert y.shape[: len(one.batch_shape)] == one.batch_shape
    assert one.log_prob(y).shape == one.batch_shape
    assert one.log_prob(y).isfinite().all()
    assert one.sample((0,)).shape[0] == 0


def test_a_mixture_of_many_components_is_sampled_without_a_matrix_of_all():
    mixture = Mixture(
        torch.full((100_000,), 1e-5, dtype=DOUBLE),
        Normal(torch.linspace(-1, 1, 100_000, dtype=DOUBLE), tensor(1e-3)),
    )
    y = mixture.sample(20_000, generator())  # 16 GB, were it one
    assert stats.kstest(y.numpy(), mixture_cdf).pvalue > 1e-3


def mixture_cdf(y):
    return np.clip((1 + y) / 2, 0, 1)


def test_they_are_sources_of_inputs():
    inputs = lb.inputs.Samples(counts())
    assert inputs(7).x.shape == (7,)
    assert torch.equal(
        lb.inputs.Samples(counts(), seed=3)(5).x, lb.inputs.Samples(counts(), seed=3)(5).x
    )


# averages over draws


def one_draw_teacher(kind, w):
    r"""What a draw w (3,) predicts at four inputs; scales and weights are broadcast."""
    x = torch.linspace(-1, 1, 12, dtype=DOUBLE).reshape(4, 3)
    z = x @ w
    if kind == "bernoulli":
        return Bernoulli(logits=z)
    if kind == "bernoulli, probs":
        return Bernoulli(probs=z.sigmoid())
    if kind == "categorical":
        return Categorical(logits=torch.stack([z, -z, z**2], 1))
    if kind == "categorical, probs":
        return Categorical(probs=torch.stack([z, -z, z**2], 1).softmax(1))
    if kind == "normal":
        return Normal(z, w[0].exp())
    if kind == "normal, fixed scale":
        return Normal(z, 0.5)
    if kind == "poisson":
        return Poisson(log_rate=z)
    if kind == "mixture":
        return Mixture(w.softmax(0), Normal(torch.stack([z, -z, z + 1], 1), 1.5))
    if kind == "mixture of classes":
        return Mixture([0.5, 0.5], Bernoulli(logits=torch.stack([z, z + 1], 1)))
    return MultivariateNormal(torch.stack([z, -z], 1), torch.eye(2, dtype=DOUBLE) * w[1].exp())


KINDS = {
    "bernoulli": Bernoulli,
    "bernoulli, probs": Bernoulli,
    "categorical": Categorical,
    "categorical, probs": Categorical,
    "normal": Mixture,
    "normal, fixed scale": Mixture,
    "poisson": Mixture,
    "mixture": Mixture,
    "mixture of classes": Bernoulli,
    "vectors": Mixture,
}
DRAWS = torch.randn(6, 3, dtype=DOUBLE, generator=generator(5))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weighted", [False, True])
def test_an_average_over_draws_has_the_mean_density(kind, weighted):
    weights = torch.arange(1.0, 7.0, dtype=DOUBLE) if weighted else torch.ones(6, dtype=DOUBLE)
    stacked = torch.vmap(lambda w: broadcast(one_draw_teacher(kind, w)))(DRAWS)
    log_weights = (weights / weights.sum()).log()
    found = weighted_average(stacked, log_weights) if weighted else average(stacked)
    assert type(found) is KINDS[kind]
    assert found.batch_shape == (4,)
    each = [broadcast(one_draw_teacher(kind, w)) for w in DRAWS]
    y = each[0].sample(9, generator())
    share = (weights / weights.sum()).reshape(-1, 1, 1)
    expected = (torch.stack([one.log_prob(y).exp() for one in each]) * share).sum(0)
    torch.testing.assert_close(found.log_prob(y).exp(), expected, rtol=1e-10, atol=1e-14)
    mean = torch.stack([one.mean for one in each])
    share = share.reshape(-1, *[1] * (mean.ndim - 1))
    torch.testing.assert_close(found.mean, (share * mean).sum(0), rtol=1e-10, atol=1e-12)


def test_averages_of_blocks_make_the_average_of_all():
    stacked = torch.vmap(lambda w: one_draw_teacher("categorical", w))(DRAWS)
    blocks = [average(map_tensors(lambda t, r=r: t[r], stacked)) for r in (slice(4), slice(4, 6))]
    joined = Categorical(logits=torch.stack([block.logits for block in blocks]))
    found = weighted_average(joined, torch.tensor([4 / 6, 2 / 6], dtype=DOUBLE).log())
    torch.testing.assert_close(found.mean, average(stacked).mean, rtol=1e-12, atol=0)


def test_a_density_without_inputs_is_averaged_too():
    stacked = torch.vmap(lambda w: broadcast(Mixture(w.softmax(0), Normal(w, [1.0, 2.0, 3.0]))))(
        DRAWS
    )
    found = average(stacked)
    assert found.batch_shape == ()
    assert found.components.loc.shape == (18,)
    total, _ = integrate.quad(lambda y: found.log_prob(y).exp().item(), -40, 40, limit=200)
    assert total == pytest.approx(1, abs=1e-8)


# torch's transforms


@pytest.mark.parametrize("kind", KINDS)
def test_they_pass_through_vmap_and_jacrev(kind):
    def mean(w):
        return broadcast(one_draw_teacher(kind, w)).mean

    def predictive(w):
        return average(torch.vmap(lambda v: broadcast(one_draw_teacher(kind, v)))(w)).mean

    stacked = torch.vmap(mean)(DRAWS)
    torch.testing.assert_close(stacked, torch.stack([mean(w) for w in DRAWS]))
    jacobian = torch.func.jacrev(predictive)(DRAWS)
    step = 1e-6
    for s, i in ((0, 0), (5, 2)):
        moved = DRAWS.clone()
        moved[s, i] += step
        back = DRAWS.clone()
        back[s, i] -= step
        slope = (predictive(moved) - predictive(back)) / (2 * step)
        torch.testing.assert_close(jacobian[..., s, i], slope, rtol=1e-6, atol=1e-8)


def test_they_pass_through_the_compiler():
    def both(w, y):
        coin = average(torch.vmap(lambda v: one_draw_teacher("bernoulli", v))(w))
        normal = average(torch.vmap(lambda v: broadcast(one_draw_teacher("normal", v)))(w))
        return coin.mean, normal.log_prob(y), normal

    y = torch.linspace(-1, 1, 4, dtype=DOUBLE)
    compiled = torch.compile(both, backend="aot_eager", fullgraph=True)(DRAWS, y)
    plain = both(DRAWS, y)
    assert type(compiled[2]) is Mixture
    torch.testing.assert_close(compiled[:2], plain[:2])


@everything
def test_they_keep_their_type_in_nests_of_tensors(one):
    same = map_tensors(torch.clone, {"a": [one]})["a"][0]
    assert type(same) is type(one)
    assert torch.equal(same.mean, one.mean)
    if one.batch_shape:
        torch.testing.assert_close(torch.vmap(lambda d: d)(broadcast(one)).mean, one.mean)
