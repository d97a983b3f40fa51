r"""Slice sampling and streams beside BlackJAX, which samples the same posteriors by itself."""

import itertools

import pytest
import torch
from torch.nn import functional as F

import limbeck as lb
from limbeck.samplers.slice import Slice

blackjax = pytest.importorskip("blackjax")
jax = pytest.importorskip("jax")
jnp = jax.numpy

DOUBLE = torch.float64
CHAINS, BURN_IN, KEPT = 1000, 60, 40


def signed_points():
    r"""24 points in two groups, times ±1 by their labels, (24, 2)."""
    sign = torch.tensor([-1.0, 1.0], dtype=DOUBLE).repeat_interleave(12)[:, None]
    x = torch.randn(24, 2, generator=torch.Generator().manual_seed(3), dtype=DOUBLE)
    x[:, :1] += 4 * sign
    return sign * x


POINTS = signed_points()
POINTS_THERE = jnp.asarray(POINTS.numpy(), dtype="float32")


def logistic(w):
    return F.logsigmoid(w @ POINTS.T).sum(1) - w.square().sum(1) / 200


def logistic_there(w):
    return jax.nn.log_sigmoid(POINTS_THERE @ w).sum() - (w**2).sum() / 200


def two_modes(x):
    return torch.logaddexp(-(x[:, 0] + 2).square(), -(x[:, 0] - 1).square() / 2)


def two_modes_there(x):
    return jnp.logaddexp(-((x[0] + 2) ** 2), -((x[0] - 1) ** 2) / 2)


DENSITIES = {
    "logistic": (logistic, logistic_there, 2),
    "two modes": (two_modes, two_modes_there, 1),
}


def features(x):
    r"""Means, squares, a tail and a product of draws (n, dim): (n, features)."""
    return torch.cat([x, x.square(), (x > 1).to(x), x[:, :1] * x[:, 1:]], 1)


def chains_there(sampler, dim, chains=CHAINS, burn_in=BURN_IN, kept=KEPT):
    r"""Draws of chains that BlackJAX ran, (kept, chains, dim)."""

    def chain(key):
        def sweep(state, key):
            state = sampler.step(key, state)[0]
            return state, state.position

        state = sampler.init(jnp.full(dim, 0.5))
        return jax.lax.scan(sweep, state, jax.random.split(key, burn_in + kept))[1]

    found = jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(0), chains))
    return torch.as_tensor(jax.device_get(found)[:, burn_in:].copy()).double().transpose(0, 1)


def of_chains(draws):
    r"""The means of features over the time of each chain, (chains, features)."""
    return torch.stack([features(each) for each in draws]).mean(0)


def deviations(ours, theirs):
    r"""By how many standard errors two samplers differ, feature by feature."""
    error = (ours.var(0) / len(ours) + theirs.var(0) / len(theirs)).sqrt()
    return (ours.mean(0) - theirs.mean(0)) / error


@pytest.fixture(scope="module", params=DENSITIES)
def both(request):
    r"""Our density, and features of BlackJAX's chains of the same."""
    density, there, dim = DENSITIES[request.param]
    from blackjax.mcmc.slice import fixed_order, stepping_out

    width = jnp.full(dim, 10.0)
    sampler = blackjax.coordinate_slice(
        there, initial_widths=width, interval=stepping_out, coordinate_order=fixed_order
    )
    return density, dim, of_chains(chains_there(sampler, dim))


def test_moments_agree(both):
    density, dim, theirs = both
    ours = Slice(density, torch.full((CHAINS, dim), 0.5, dtype=DOUBLE), seed=4).burn_in(BURN_IN)
    found = deviations(of_chains(list(itertools.islice(ours, KEPT))), theirs)
    assert found.abs().max() < 4


def test_another_density_would_be_seen(both):
    density, dim, theirs = both
    start = torch.full((CHAINS, dim), 0.5, dtype=DOUBLE)
    ours = Slice(lambda x: 1.3 * density(x), start, seed=4).burn_in(BURN_IN)
    found = deviations(of_chains(list(itertools.islice(ours, KEPT))), theirs)
    assert found.abs().max() > 6


def tight(w):
    r"""The same with a prior of variance 1, whose posterior Hamiltonian dynamics mix well in."""
    return logistic(w) - w.square().sum(1) / 2


def tight_there(w):
    return logistic_there(w) - (w**2).sum() / 2


def test_chains_of_blackjax_are_condensed_as_they_run():
    kernel = blackjax.hmc(
        tight_there, step_size=0.2, inverse_mass_matrix=jnp.ones(2), num_integration_steps=8
    )
    step = jax.jit(jax.vmap(kernel.step))

    def batches():
        states = jax.vmap(kernel.init)(jnp.full((50, 2), 0.5))
        for key in jax.random.split(jax.random.key(1), 1000):
            states = step(jax.random.split(key, 50), states)[0]
            yield states.position  # (50, 2), an array of JAX

    inputs = lb.inputs.Noise(2, scale=2.0)
    result = lb.condense(
        batches(), lambda draw, x: lb.Bernoulli(logits=x @ draw), inputs, burn_in=50, steps=300,
        batch_size=50, device="cpu", engine="eager", progress=False,
    )  # fmt: skip
    ours = Slice(tight, torch.zeros(CHAINS, 2, dtype=DOUBLE), seed=6).burn_in(BURN_IN)
    draws = torch.cat(list(itertools.islice(ours, 10)))
    x = 2 * torch.randn(500, 2, generator=torch.Generator().manual_seed(2))
    expected = (x.double() @ draws.T).sigmoid().mean(1)
    alone = (x.double() @ draws.mean(0)).sigmoid()
    apart = (result.predict(x).mean.double() - expected).abs().mean()
    assert apart < 0.01
    assert apart < 0.5 * (alone - expected).abs().mean()  # which a single draw does not reach
    assert result.diagnostics.r_hat.max() < 1.05
