r"""Simulated households in villages, and the posterior of their hierarchical logistic regression.

Sampled outside of limbeck, by NumPyro's NUTS or by emcee, and given back as ArviZ's object with all
that a model leaves there: variables that predictions need, others, and deterministics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

__all__ = ["SAMPLERS", "UNSEEN", "Households", "simulate"]

TRUTH = {"mu": 0.3, "tau": 0.9, "beta": (-0.7, 0.8)}  # of distance and of log arsenic
UNSEEN = -1


class Households(NamedTuple):
    r"""Rows of data.

    Attributes:
        group: The number of the village, (n,); `UNSEEN` is one that has no draws of its own.
        features: Distance and log arsenic, standardised, (n, 2).
        y: Whether the household changed to another well, (n,).
    """

    group: Tensor
    features: Tensor
    y: Tensor

    @property
    def x(self) -> dict[str, Tensor]:
        return {"group": self.group, "features": self.features}

    def only(self, rows: Tensor) -> Households:
        return Households(*(part[rows] for part in self))


def simulate(groups: int, seed: int = 0) -> tuple[Households, Households, Households]:
    r"""Households to learn from, held-out ones of the same villages, and those of one more village.

    Villages have from 8 to 120 households; of each a quarter is held out.
    """
    rng = np.random.default_rng(seed)
    sizes = rng.integers(8, 120, groups + 1)
    group = np.repeat(np.arange(groups + 1), sizes)
    features = rng.normal(size=(len(group), 2))
    alpha = rng.normal(TRUTH["mu"], TRUTH["tau"], groups + 1)
    logits = alpha[group] + features @ np.array(TRUTH["beta"])
    y = rng.random(len(group)) < 1 / (1 + np.exp(-logits))
    kept = rng.random(len(group)) < 0.75
    group[group == groups] = UNSEEN
    parts = (group, features.astype(np.float32), y.astype(np.float32))
    every = Households(*(torch.tensor(part) for part in parts))
    seen, learnt = every.group >= 0, torch.tensor(kept)
    return every.only(seen & learnt), every.only(seen & ~learnt), every.only(~seen)


def by_numpyro(data: Households, groups: int, draws: int, seed: int) -> Any:
    r"""The posterior by NUTS, four chains, as ArviZ's object, deterministics and all."""
    import arviz
    import jax
    import numpyro
    from numpyro import distributions as dist

    group, features, y = (jax.numpy.asarray(part.numpy()) for part in data)

    def model() -> None:
        mu = numpyro.sample("mu", dist.Normal(0, 2))
        tau = numpyro.sample("tau", dist.HalfNormal(2))
        beta = numpyro.sample("beta", dist.Normal(0, 2).expand([2]))
        z = numpyro.sample("z", dist.Normal(0, 1).expand([groups]))
        alpha = numpyro.deterministic("alpha", mu + tau * z)
        numpyro.sample("alpha_new", dist.Normal(mu, tau))  # of a village without data
        p = numpyro.deterministic("p", jax.nn.sigmoid(alpha[group] + features @ beta))
        numpyro.sample("y", dist.Bernoulli(probs=p), obs=y)

    mcmc = numpyro.infer.MCMC(
        numpyro.infer.NUTS(model),
        num_warmup=500,
        num_samples=draws // 4,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.PRNGKey(seed))
    return arviz.from_numpyro(mcmc, log_likelihood=False)


def by_emcee(data: Households, groups: int, draws: int, seed: int) -> Any:
    r"""The same by emcee, with the intercepts themselves as coordinates; for few villages."""
    import arviz
    import emcee

    group, features, y = (part.numpy() for part in data)
    sign = 2 * y - 1

    def log_density(w: np.ndarray) -> np.ndarray:  # (walkers, 4 + groups)
        mu, log_tau, beta, alpha = w[:, 0], w[:, 1], w[:, 2:4], w[:, 4:]
        logits = alpha[:, group] + beta @ features.T
        likelihood = -np.logaddexp(0, -sign * logits).sum(1)
        apart = (alpha - mu[:, None]) / np.exp(log_tau)[:, None]
        hierarchy = -(apart**2).sum(1) / 2 - groups * log_tau
        prior = -(mu**2 + (beta**2).sum(1) + np.exp(2 * log_tau)) / 8 + log_tau
        return likelihood + hierarchy + prior

    walkers, steps = 32, 4000
    rng = np.random.RandomState(seed)  # emcee takes this kind's state
    start = 0.3 * rng.normal(size=(walkers, 4 + groups))
    moves = [(emcee.moves.DEMove(), 0.8), (emcee.moves.DESnookerMove(), 0.2)]
    sampler = emcee.EnsembleSampler(walkers, 4 + groups, log_density, vectorize=True, moves=moves)
    sampler.random_state = rng.get_state()
    sampler.run_mcmc(start, steps)
    chain = sampler.get_chain(discard=steps // 3).swapaxes(0, 1)  # (walker, step, dim)
    chain = chain[:, :: max(1, walkers * chain.shape[1] // draws)]
    mu, tau = chain[..., 0], np.exp(chain[..., 1])
    new = mu + tau * rng.normal(size=mu.shape)
    named = {"mu": mu, "tau": tau, "beta": chain[..., 2:4], "alpha": chain[..., 4:]}
    named |= {"alpha_new": new, "odds": np.exp(chain[..., 2:4])}
    return arviz.convert_to_inference_data(named)


SAMPLERS: dict[str, Callable[..., Any]] = {"numpyro": by_numpyro, "emcee": by_emcee}
