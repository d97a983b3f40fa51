r"""Families of torch, and limbeck's own: densities, tails, samples, and bags of them."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import distributions as td

import limbeck as lb
from limbeck.distributions import Censored, Mixture, Normal, Poisson, ZeroInflated, ordinal
from limbeck.distributions.base import average
from limbeck.distributions.conversion import adapt
from tests.refusals import refused

LOC = torch.tensor([0.3, -1.0], dtype=torch.float64)
FAMILIES = {
    "student": (td.StudentT(4.0, LOC, 2.0), stats.t(4, LOC.numpy(), 2.0)),
    "gamma": (td.Gamma(LOC.exp(), 2 * LOC.exp()), stats.gamma(LOC.exp(), scale=0.5 / LOC.exp())),
    "beta": (td.Beta(LOC.exp(), LOC.exp() + 1), stats.beta(LOC.exp(), LOC.exp() + 1)),
    "negative binomial": (
        td.NegativeBinomial(torch.tensor(3.0).double(), logits=LOC),
        stats.nbinom(3, torch.sigmoid(-LOC).numpy()),
    ),
    "binomial": (
        td.Binomial(torch.tensor(9.0).double(), logits=LOC),
        stats.binom(9, torch.sigmoid(LOC).numpy()),
    ),
    "geometric": (
        td.Geometric(logits=LOC),
        stats.geom(torch.sigmoid(LOC).numpy(), loc=-1),
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_of_torch_agrees_with_scipy(name):
    made, known = FAMILIES[name]
    family = adapt(made)
    np.testing.assert_allclose(family.mean, known.mean())
    np.testing.assert_allclose(family.variance, known.var())
    y = torch.tensor([1.0, 2.0]) if family.discrete else torch.tensor([0.4, 0.7])
    density = known.logpmf if family.discrete else known.logpdf
    np.testing.assert_allclose(family.log_prob(y), density(y.numpy()), rtol=1e-6)
    np.testing.assert_allclose(family.cdf(y), known.cdf(y.numpy()), rtol=1e-6)
    low, high = family.interval(0.9)
    # at most a twentieth is beyond either end, and just so for continuous outcomes
    assert (known.sf(high.numpy()) <= 0.05 + 1e-6).all()
    if not family.discrete:
        np.testing.assert_allclose(known.cdf(low.numpy()), 0.05, atol=1e-6)


def test_a_mixture_over_draws_is_the_mean_of_the_densities():
    def predict(w):
        return adapt(td.Gamma(w.exp(), torch.ones(())))

    stacked = torch.vmap(predict)(LOC[:, None].expand(-1, 3))
    mixture = average(stacked)
    y = torch.tensor([0.2, 1.0, 3.0])
    apart = torch.stack([predict(w.expand(3)).log_prob(y).exp() for w in LOC])
    torch.testing.assert_close(mixture.log_prob(y).exp(), apart.mean(0))
    samples = mixture.sample((4000,), torch.Generator().manual_seed(0))
    assert samples.mean(0) == pytest.approx(mixture.mean.numpy(), abs=0.1)


def test_impossible_outcomes_have_no_density():
    assert adapt(td.Gamma(torch.ones(1), torch.ones(1))).log_prob(-1.0) == -math.inf
    assert adapt(td.Beta(torch.ones(1), torch.ones(1))).log_prob(2.0) == -math.inf


def test_ordinal_classes_have_differences_of_logistic_functions():
    eta, cuts = torch.tensor([0.2, -3.0]), torch.tensor([-1.0, 0.5, 2.0])
    below = torch.sigmoid(cuts - eta[:, None])
    ends = torch.cat([torch.zeros(2, 1), below, torch.ones(2, 1)], 1)
    torch.testing.assert_close(ordinal(eta, cuts).mean, ends.diff(dim=1))


def test_zero_inflated_counts_sum_to_one():
    family = ZeroInflated(torch.tensor(0.3), Poisson(rate=torch.tensor(2.0)))
    y = torch.arange(40.0)
    p = family.log_prob(y).exp()
    assert float(p.sum()) == pytest.approx(1)
    assert float((p * y).sum()) == pytest.approx(float(family.mean))
    assert float((p * y.square()).sum() - family.mean**2) == pytest.approx(float(family.variance))
    assert float(family.cdf(3.0)) == pytest.approx(float(p[:4].sum()))


def test_censored_numbers_have_their_tails_at_the_limits():
    family = Censored(Normal(torch.tensor(0.5), torch.tensor(1.0)), -1.0, 2.0)
    grid = torch.linspace(-1, 2, 3001)[1:-1]
    inside = family.log_prob(grid).exp().sum() * 1e-3
    ends = family.log_prob(torch.tensor([-1.0, 2.0])).exp().sum()
    assert float(inside + ends) == pytest.approx(1, abs=1e-3)
    assert family.log_prob(torch.tensor(2.5)) == -math.inf
    assert float(family.cdf(2.0)) == 1


GENERATOR = torch.Generator().manual_seed(0)
DRAWS = 0.2 * torch.randn(600, 3, generator=GENERATOR) + torch.tensor([0.3, -0.2, 0.5])
X = torch.randn(30, 2, generator=GENERATOR)
PREDICT = {
    "student": lambda w, x: td.StudentT(4.0, x @ w[:2], w[2].exp()),
    "negative binomial": lambda w, x: td.NegativeBinomial(3.0, logits=x @ w[:2]),
    "mixture": lambda w, x: td.MixtureSameFamily(
        td.Categorical(torch.ones(len(x), 2)),
        td.Laplace((x @ w[:2])[:, None], w[2].exp().expand(2)),
    ),
    "zero inflated": lambda w, x: ZeroInflated(
        w[2].sigmoid(), td.NegativeBinomial(3.0, logits=x @ w[:2])
    ),
    "tobit": lambda w, x: Censored(td.Normal(x @ w[:2], w[2].exp()), 0.0, math.inf),
    "ordinal": lambda w, x: ordinal(x @ w[:2], torch.stack([-w[2].exp(), w[2].exp()])),
}


@pytest.mark.parametrize("name", PREDICT)
def test_a_bag_of_any_family_is_no_worse_than_the_draws_it_started_from(name, tmp_path):
    result = lb.condense(
        DRAWS, PREDICT[name], X, components=4, steps=6, pool=60, progress=False, device="cpu"
    )
    assert result.new_inputs.best <= result.new_inputs.start
    prediction = result.predict(X)
    assert prediction.mean.isfinite().all()
    result.save(tmp_path / "bag")
    again = lb.load(tmp_path / "bag", predict=PREDICT[name])
    torch.testing.assert_close(again.predict(X).mean, prediction.mean)


def test_parameters_that_torch_would_refuse_are_refused():
    with refused("predict", "scale of a StudentT"):
        lb.condense(DRAWS, lambda w, x: td.StudentT(4.0, x @ w[:2], -w[2].exp()), X, progress=False)
    with refused("predict", "Wishart"):
        lb.condense(DRAWS, lambda w, x: td.Wishart(torch.ones(len(x)) * 3, torch.eye(2)), X)


def test_a_mixture_of_torch_components_is_adapted():
    parts = td.StudentT(4.0, torch.zeros(3, 2), torch.ones(3, 2))
    family = adapt(Mixture(torch.full((3, 2), 0.5), parts))
    torch.testing.assert_close(family.log_prob(0.0), td.StudentT(4.0).log_prob(torch.zeros(3)))
