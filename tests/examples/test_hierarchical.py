r"""The hierarchical example: a posterior of another library, through ArviZ, on held-out data."""

from __future__ import annotations

import importlib.util
import json
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from limbeck.errors import LimbeckError
from tests.refusals import raises_about, refused

FOLDER = Path(__file__).parents[2] / "examples"
QUICK = {"groups": 4, "draws": 800, "steps": 300, "seed": 1, "progress": False}
pytest.importorskip("arviz")


@pytest.fixture(scope="module")
def example():
    sys.path.insert(0, str(FOLDER))
    try:
        yield runpy.run_path(str(FOLDER / "hierarchical.py"), run_name="hierarchical")
    finally:
        sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def posterior(example):
    r"""Draws as a sampler would leave them, without one: normal about what data were made of."""
    import arviz

    rng = np.random.default_rng(0)
    shape, groups = (4, 200), QUICK["groups"]
    named = {
        "mu": rng.normal(0.3, 0.2, shape), "tau": rng.gamma(20, 0.045, shape),
        "beta": rng.normal((-0.7, 0.8), 0.2, (*shape, 2)),
        "alpha": rng.normal(0.0, 0.7, (*shape, groups)), "alpha_new": rng.normal(0.3, 0.9, shape),
        "odds": np.exp(rng.normal(size=(*shape, 2))), "p": rng.random((*shape, 50)),
    }  # fmt: skip
    return arviz.convert_to_inference_data(named)


@pytest.fixture
def given(example, posterior, monkeypatch):
    r"""The example's `main` with these draws in place of a sampler's."""
    found = example["main"].__globals__
    monkeypatch.setitem(found, "SAMPLERS", {"arviz": lambda *_: posterior})  # one that is there
    return lambda **more: found["main"](sampler="arviz", **QUICK | more)


def test_held_out_predictions_are_those_of_all_draws(given, capsys):
    figures = given()
    assert abs(figures.difference) < 0.005
    rows = figures.rows
    assert rows["student"]["kl"] < 1e-4
    assert rows["student"]["kl"] < rows["10 of them"]["kl"] / 5
    assert rows["all draws"]["kl"] == 0
    assert abs(rows["student"]["unseen"] - rows["all draws"]["unseen"]) < 0.005
    assert rows["all draws"]["bytes"] == 4 * 800 * (4 + 1 + 2)  # no deterministics among them
    printed = capsys.readouterr().out
    assert "unseen village" in printed.replace("\n", " ")
    assert figures.sentence() in printed.replace("\n", " ")


def test_a_data_tree_is_read_like_inference_data(given):
    one, other = (given(container=kind, steps=50) for kind in ("inferencedata", "datatree"))
    assert one.probabilities.keys() == other.probabilities.keys()
    for name, values in one.probabilities.items():  # threads may sum in another order
        assert values == pytest.approx(other.probabilities[name], abs=1e-5), name


def test_the_average_over_draws_is_the_mean_of_the_models_probabilities(example, posterior):
    _, test, unseen = example["simulate"](QUICK["groups"], 1)
    held = posterior["posterior"]
    draws = {
        name: torch.tensor(held[name].values).flatten(0, 1).float() for name in example["VARIABLES"]
    }
    for part in (test, unseen):
        n = 5
        x = {name: value[:n] for name, value in part.x.items()}
        own = [draws["alpha"][:, g] if g >= 0 else draws["alpha_new"] for g in x["group"]]
        logits = torch.stack(own, 1) + draws["beta"] @ x["features"].T
        expected = logits.sigmoid().mean(0)
        torch.testing.assert_close(example["average"](draws, x), expected)


def test_the_data_are_split_as_told(example):
    train, test, unseen = example["simulate"](6, 3)
    assert set(train.group.tolist()) == set(range(6))
    assert set(test.group.tolist()) <= set(range(6))
    assert set(unseen.group.tolist()) == {-1}
    rows = torch.cat([part.features for part in (train, test, unseen)])
    assert len(torch.unique(rows, dim=0)) == len(rows)  # no household is in two of them
    again = example["simulate"](6, 3)[0]
    assert torch.equal(train.features, again.features)


def test_the_picture_and_the_figures_are_written(given, tmp_path):
    pytest.importorskip("matplotlib")
    figures = given(steps=20, out=tmp_path)
    saved = json.loads((tmp_path / "hierarchical.json").read_text())
    assert saved["rows"] == figures.rows
    assert (tmp_path / "hierarchical.png").read_bytes().startswith(b"\x89PNG")


def test_emcee_finds_the_posterior_of_one_parameter_at_a_time(example):
    r"""With many households, what was sampled covers what they were made of."""
    pytest.importorskip("emcee")
    samplers = sys.modules["hierarchical_posterior"]
    train, _, _ = example["simulate"](3, 5)
    held = samplers.by_emcee(train, 3, 1600, 0)["posterior"]
    beta = held["beta"].values.reshape(-1, 2)
    apart = (beta.mean(0) - samplers.TRUTH["beta"]) / beta.std(0)
    assert np.abs(apart).max() < 3.5
    assert np.allclose(held["odds"].values, np.exp(held["beta"].values))


def test_numpyro_and_emcee_agree(example):
    pytest.importorskip("numpyro")
    pytest.importorskip("emcee")
    samplers = sys.modules["hierarchical_posterior"]
    train, _, _ = example["simulate"](3, 5)
    one, other = (
        samplers.SAMPLERS[name](train, 3, 4000, 0)["posterior"] for name in ("numpyro", "emcee")
    )
    for name in ("alpha", "beta", "mu", "tau"):
        first, second = (held[name].values for held in (one, other))
        scale = first.std((0, 1))
        assert np.abs((first.mean((0, 1)) - second.mean((0, 1))) / scale).max() < 0.3, name


@pytest.mark.parametrize(
    ("more", "argument", "received", "expected"),
    [
        ({"sampler": "stan"}, "sampler", "'stan'", ""),
        ({"sampler": "emcee", "container": "pickle"}, "container", "'pickle'", ""),
        ({"sampler": "emcee", "groups": 1}, "groups", "^1$", "2 or more"),
        ({"sampler": "emcee", "draws": 3}, "draws", "^3$", "100 or more"),
    ],
)
def test_refusals_say_what_came_and_what_is_accepted(example, more, argument, received, expected):
    pytest.importorskip("emcee")
    with refused(argument, received, expected=expected):
        example["main"](**more)


def test_a_library_that_is_missing_is_named(example, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with raises_about(LimbeckError, "emcee"):
        example["main"]()


@pytest.mark.slow
def test_it_runs_as_a_script():
    found = subprocess.run(
        [sys.executable, str(FOLDER / "hierarchical.py"), "--help"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "--container" in found.stdout
