r"""Running chains of other libraries, condensed; limbeck's own sampler where they are missing."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

from limbeck.condensation.models import mlp
from tests.refusals import refused

PATH = Path(__file__).parents[2] / "examples" / "running_chain.py"
example = runpy.run_path(str(PATH), run_name="running_chain")
NEEDED = {"sgld": "posteriors", "nuts": "blackjax", "slice": "limbeck"}


@pytest.mark.filterwarnings("ignore:posterior. R̂:UserWarning")  # a few draws cannot tell
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of tensordict, on importing posteriors
@pytest.mark.parametrize("kind", NEEDED)
def test_a_chain_is_condensed_as_it_runs(kind, monkeypatch, capsys):
    pytest.importorskip(NEEDED[kind])
    names = example["main"].__globals__
    shorter = {"chains": 100, "thin": 1, "burn_in": 50 if kind != "slice" else 1}
    whole = names["chain"]
    monkeypatch.setitem(
        names, "chain", lambda kind, chains, seed: whole(kind, seed=seed, **shorter)
    )
    result, report = names["main"](kind, steps=5, draws=100)
    assert result.student.components == 10
    assert result.steps == 5
    assert result.used >= 5 * 100
    assert report.draws == 100
    assert 0 <= report.kl < 0.2
    assert "condensation" in capsys.readouterr().out


def test_the_posterior_is_that_of_the_net():
    x, y = example["data"]()
    predict = mlp(*example["SIZES"], hidden="relu")
    w = torch.randn(3, predict.structure.dim, generator=torch.Generator().manual_seed(0))
    found = example["log_posterior"](predict, x, y, 2.0)(w)
    for row, value in zip(w, found, strict=True):
        prior = -row.square().sum() / 8
        torch.testing.assert_close(value, predict(row, x).log_prob(y).sum() + prior)


def test_the_posterior_in_jax_is_the_same():
    pytest.importorskip("jax")
    x, y = example["data"]()
    predict = mlp(*example["SIZES"], hidden="relu")
    w = torch.randn(3, predict.structure.dim, generator=torch.Generator().manual_seed(0))
    found = example["log_posterior"](predict, x, y, 2.0)(w)
    in_jax = example["log_density"](x, y, 2.0)
    for row, value in zip(w, found, strict=True):
        assert float(in_jax(row.numpy())) == pytest.approx(value.item(), rel=1e-4)


def test_an_unknown_chain_is_refused():
    with refused("chain", "'gibbs'"):
        example["chain"]("gibbs")
