r"""Posteriors of other programs: the same density, and its evidence."""

import numpy as np
import pytest
import torch
from torch.distributions import Gamma, Normal

import limbeck as lb
from limbeck.posteriors import programs
from tests.refusals import refused

Y = np.array([0.3, 1.2, -0.4, 0.9])


def own(d):
    prior = Normal(0.0, 2.0).log_prob(d["mu"]) + Gamma(3.0, 2.0).log_prob(d["s"])
    y = torch.tensor(Y).to(d["mu"])
    return prior + Normal(d["mu"][:, None], d["s"][:, None]).log_prob(y).sum(1)


@pytest.mark.filterwarnings("ignore")  # of JAX
def test_numpyro():
    numpyro = pytest.importorskip("numpyro")
    import jax

    dist = numpyro.distributions

    def model(y=None):
        mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
        s = numpyro.sample("s", dist.Gamma(3.0, 2.0))
        numpyro.deterministic("twice", 2 * mu)
        with numpyro.plate("rows", len(Y)):
            numpyro.sample("y", dist.Normal(mu, s), obs=y)

    mcmc = numpyro.infer.MCMC(
        numpyro.infer.NUTS(model), num_warmup=300, num_samples=500, num_chains=2,
        chain_method="vectorized", progress_bar=False,
    )  # fmt: skip
    mcmc.run(jax.random.PRNGKey(0), y=Y)
    program = lb.from_numpyro(model, mcmc, y=Y)
    assert set(program.draws) == {"mu", "s"}
    assert program.support == {"s": (0.0, np.inf)}
    few = {k: torch.tensor(v[0, :5]).double().requires_grad_() for k, v in program.draws.items()}
    one, other = (
        torch.autograd.grad(function(few).sum(), few["s"])[0]
        for function in (program.log_density, own)
    )
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
    one, other = (
        lb.log_evidence(f, program.draws, support=program.support)
        for f in (program.log_density, own)
    )
    assert abs(one.value - other.value) < 0.01
    assert program.predictive(y=None)["y"].shape == (1000, 4)


@pytest.mark.filterwarnings("ignore")  # of PyTensor, about libraries that it lacks
def test_pymc():
    pymc = pytest.importorskip("pymc")
    with pymc.Model() as model:
        mu = pymc.Normal("mu", 0.0, 2.0)
        s = pymc.Gamma("s", 3.0, 2.0)
        pymc.Normal("y", mu, s, observed=Y)
        idata = pymc.sample(
            300, tune=300, chains=2, cores=1, progressbar=False, random_seed=0,
            compute_convergence_checks=False,
        )  # fmt: skip
    program = lb.from_pymc(model, idata)
    assert set(program.draws) == {"mu", "s_log__"}
    draws = {"mu": idata.posterior["mu"].values, "s": idata.posterior["s"].values}
    one = lb.log_evidence(program.log_density, program.draws, student="gaussian", sweeps=1)
    other = lb.log_evidence(own, draws, support={"s": "positive"}, student="gaussian", sweeps=1)
    assert abs(one.value - other.value) < 0.01
    with refused("idata", "no draws of"):
        lb.from_pymc(model, {"posterior": {}})


@pytest.mark.parametrize("read", [lb.from_pymc, lambda model, data: lb.from_numpyro(model, data)])
def test_a_missing_library_is_named(monkeypatch, read):
    def missing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(programs, "import_module", missing)
    with pytest.raises(lb.LimbeckError, match="is not installed"):
        read(object(), object())
