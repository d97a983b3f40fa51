r"""ArviZ's two forms, xarray, emcee and data frames: real objects, where they are installed."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from limbeck.posteriors.read import as_draws
from tests.refusals import refused

RNG = np.random.default_rng(0)
ALPHA, BETA = RNG.normal(size=(4, 20, 3)), RNG.normal(size=(4, 20))
NAMED = {"alpha": ALPHA, "beta": BETA}


class Variable:
    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return self.values


class Group:
    r"""As much of a group as is looked at."""

    def __init__(self, arrays):
        self.data_vars = {name: Variable(array) for name, array in arrays.items()}

    def __getitem__(self, name):
        return self.data_vars[name]


class Inference:
    r"""Anything with obj["posterior"]."""

    def __init__(self, **groups):
        self.groups = groups

    def __getitem__(self, name):
        return self.groups[name]


def handmade():
    return Inference(posterior=Group(NAMED))


def data_set():
    xarray = pytest.importorskip("xarray")
    variables = {"alpha": (("chain", "draw", "county"), ALPHA), "beta": (("chain", "draw"), BETA)}
    return xarray.Dataset(variables, coords={"county": ["a", "b", "c"]})


def data_tree():
    xarray = pytest.importorskip("xarray")
    observed = xarray.Dataset({"y": ("i", np.ones(7))})
    return xarray.DataTree.from_dict({"posterior": data_set(), "observed_data": observed})


def inference_data():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of its coming versions, at its import
        arviz = pytest.importorskip("arviz")
    return arviz.convert_to_inference_data(data_set())


OBJECTS = {
    "handmade": handmade,
    "Dataset": data_set,
    "DataTree": data_tree,
    "group of DataTree": lambda: data_tree()["posterior"],
    "InferenceData": inference_data,
    "transposed": lambda: data_set().transpose("county", "draw", "chain"),
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_all_forms_are_alike(kind):
    draws = as_draws(OBJECTS[kind](), burn_in=5, thin=2)
    assert repr(draws) == "Draws(4 chains of 8: alpha (3,), beta ())"
    taken = draws.take(range(draws.count))
    np.testing.assert_array_equal(taken["alpha"], ALPHA[:, 5::2].reshape(-1, 3))
    np.testing.assert_array_equal(taken["beta"], BETA[:, 5::2].reshape(-1))


@pytest.mark.parametrize("kind", OBJECTS)
def test_deterministics_are_left_out_by_name(kind):
    assert as_draws(OBJECTS[kind](), var_names=["beta"]).structure.names == ("beta",)
    assert as_draws(OBJECTS[kind](), var_names="~beta").structure.names == ("alpha",)
    with refused("var_names", "'bta'"):
        as_draws(OBJECTS[kind](), var_names="bta")


def test_one_variable_of_vectors_is_bare():
    draws = as_draws(data_set()["alpha"])
    assert draws.structure.vector
    np.testing.assert_array_equal(draws.flat, ALPHA.reshape(-1, 3))
    with refused("posterior", r"draws of shape \(\)"):
        as_draws(data_set()["beta"])


def test_draws_of_all_chains_in_one_dimension():
    stacked = data_set().stack(sample=("chain", "draw"))  # as arviz.extract gives them
    assert stacked["alpha"].dims == ("county", "sample")
    draws = as_draws(stacked)
    assert (draws.chains, draws.per_chain) == (1, 80)
    np.testing.assert_array_equal(draws.take(range(80))["alpha"], ALPHA.reshape(-1, 3))
    with refused("burn_in", "5 with draws of all chains"):
        as_draws(stacked, burn_in=5)
    one = as_draws(data_set().isel(chain=2, drop=True))
    np.testing.assert_array_equal(one.take(range(20))["beta"], BETA[2])


@pytest.mark.parametrize("kind", ["DataTree", "InferenceData"])
def test_without_a_posterior(kind):
    full = OBJECTS[kind]()
    if kind == "DataTree":
        del full["posterior"]
    else:
        full.add_groups(observed_data=data_set())
        del full.posterior
    with refused("posterior", f"{kind} of 'observed_data'", expected="'posterior'"):
        as_draws(full)


def test_data_frames():
    pandas = pytest.importorskip("pandas")
    columns = [f"alpha[{i}]" for i in (1, 2, 3)]
    frame = pandas.DataFrame(ALPHA.reshape(80, 3), columns=columns).assign(beta=BETA.reshape(80))
    assert repr(as_draws(frame)) == "Draws(1 chains of 80: alpha (3,), beta ())"
    by_chain = frame.assign(lp__=1.0, chain__=np.repeat(np.arange(1, 5), 20))
    draws = as_draws(by_chain, burn_in=10, var_names="alpha")
    np.testing.assert_array_equal(draws.take(range(40))["alpha"], ALPHA[:, 10:].reshape(-1, 3))
    assert as_draws(pandas.DataFrame(ALPHA.reshape(80, 3))).structure.vector
    with refused("posterior", "values of dtype object"):
        as_draws(frame.assign(name="x"))
    with refused("posterior", "chains of 20, 20, 20, 19 draws"):
        as_draws(by_chain[:-1])


def test_emcee():
    emcee = pytest.importorskip("emcee")
    sampler = emcee.EnsembleSampler(6, 2, lambda x: -0.5 * x @ x)
    with refused("posterior", "a EnsembleSampler without a chain"):
        as_draws(sampler)
    sampler.run_mcmc(RNG.normal(size=(6, 2)), 30)
    chain = sampler.get_chain()  # (step, walker, dim)
    for posterior, layout in ((sampler, "auto"), (sampler.backend, "auto"), (chain, "emcee")):
        draws = as_draws(posterior, burn_in=10, layout=layout)
        assert (draws.chains, draws.per_chain) == (6, 20)
        np.testing.assert_array_equal(draws.take(20 * 3 + 7), chain[17, 3])
    assert torch.isfinite(draws.diagnostics().r_hat).all()
