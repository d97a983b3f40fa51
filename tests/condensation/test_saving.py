r"""A condensed posterior is read back as it was: its model, its head, its doubts."""

import json

import numpy as np
import pytest
import torch

import limbeck as lb
from limbeck.condensation import models
from limbeck.condensation.condensed import ABOUT, Condensed
from limbeck.condensation.models import model_spec, named_model
from limbeck.distributions import Bernoulli, Normal
from limbeck.errors import CheckpointError
from limbeck.export import export
from tests.refusals import raises_about, refused, warns_about

G = torch.Generator().manual_seed(0)
X = torch.randn(30, 2, generator=G)
W = torch.randn(200, 2, generator=G)
FAST = {"device": "cpu", "engine": "eager", "progress": False, "steps": 5}


def own(w, x):
    return Bernoulli(logits=x @ w)


def draws(size):
    return torch.randn(200, size, generator=torch.Generator().manual_seed(1))


READY = {
    "linear": (models.linear(), {"beta": draws(2), "sigma": draws(1)[:, 0].abs() + 0.1}),
    "known scale": (models.linear("w", "b", scale=np.float32(0.5)), {"w": W, "b": draws(1)[:, 0]}),
    "logistic": (models.logistic(), draws(3)),
    "probit": (models.probit(), draws(2)),
    "poisson": (models.poisson(), draws(3)),
    "softmax": (models.softmax(classes=3), draws(6)),
    "mlp": (models.mlp(2, 3, 1), draws(13)),
    "mlp classes": (models.mlp(2, 4, 3, hidden="relu"), draws(27)),
    "mlp values": (models.mlp(2, 3, 1, scale=0.3), draws(13)),
}


@pytest.mark.parametrize("model", READY)
def test_ready_made_models_need_nothing(model, tmp_path):
    predict, posterior = READY[model]
    result = lb.condense(
        posterior, predict, X, components=3, weighted=model == "mlp", layout="draws", **FAST
    )
    again = lb.load(result.save(tmp_path / "saved"))
    assert isinstance(again, Condensed)
    assert again.head == result.head
    assert type(again.predict(X)) is type(result.predict(X))
    torch.testing.assert_close(again.predict(X).mean, result.predict(X).mean, rtol=0, atol=0)
    assert torch.equal(again.student.get_extra_state(), result.student.get_extra_state())
    assert torch.equal(again.student.weights, result.student.weights)


@pytest.mark.parametrize("model", READY)
def test_a_model_is_what_its_name_and_settings_say(model):
    told = model_spec(READY[model][0])
    assert model_spec(named_model(json.loads(json.dumps(told)))) == told


def test_functions_of_ones_own_have_no_name():
    assert model_spec(own) is None
    assert model_spec(models.linear(scale=torch.ones(3))) is None
    assert named_model(None) is None
    with refused("model", expected="did you mean 'logistic'"):
        named_model({"model": "logistics"})


@pytest.fixture(scope="module")
def result():
    return lb.condense(W, own, X, components=3, **FAST)


def test_ones_own_function_is_given_again(result, tmp_path):
    result.save(tmp_path)
    with refused("predict", "None, and", expected="predict=, the function"):
        lb.load(tmp_path)
    for again in (lb.load(tmp_path, predict=own), Condensed.load(tmp_path, predict=own)):
        assert torch.equal(again.predict(X).mean, result.predict(X).mean)
        assert isinstance(again.predict(X), Bernoulli)
        assert (again.used, again.draw_bytes, again.notes) == (200, 200 * 2 * 4, result.notes)


def test_another_function_is_refused(result, tmp_path):
    result.save(tmp_path)
    with refused("predict", "gives Normal"):
        lb.load(tmp_path, predict=lambda w, x: Normal(x @ w, torch.ones(())))
    with refused("predict", "fails at the saved draws"):
        lb.load(tmp_path, predict=lambda w, x: own(w[:1], x))
    with refused("predict", "a int"):
        lb.load(tmp_path, predict=3)


def test_a_report_takes_the_draws_anew(result, tmp_path):
    result.save(tmp_path)
    again = lb.load(tmp_path, predict=own)
    with refused("posterior", "None"):
        again.report(X)
    one, two = again.report(X, posterior=W), result.report(X)
    assert (one.mean_error, one.kl, one.bytes) == (two.mean_error, two.kl, two.bytes)


def test_doubts_and_numbers_are_kept(tmp_path):
    stuck = torch.randn(4, 50, 2, generator=G) + 5 * torch.arange(4.0)[:, None, None]
    with warns_about("posterior", "R̂"):
        result = lb.condense(stuck, own, X, components=2, layout="chains", **FAST)
    again = lb.load(result.save(tmp_path), predict=own)
    assert again.diagnostics.reasons == result.diagnostics.reasons != []
    assert again.diagnostics.names == result.diagnostics.names
    torch.testing.assert_close(again.diagnostics.r_hat, result.diagnostics.r_hat, equal_nan=True)
    assert again.portable().about["doubts"] == result.portable().about["doubts"] != []


def test_a_head_of_a_net_is_kept(tmp_path):
    net = lb.MLP(2, 4, 2, generator=torch.Generator().manual_seed(0))
    result = lb.condense(W, own, X, student=net, **FAST)
    again = lb.load(result.save(tmp_path))
    assert isinstance(again.predict(X), Bernoulli)
    torch.testing.assert_close(again.predict(X).mean, result.predict(X).mean)
    with refused("predict", "whose student calls none"):
        lb.load(tmp_path, predict=own)
    with refused("report"):
        again.report(X, posterior=W)


def test_a_density_and_given_predictions_are_read_back(tmp_path):
    normal = lambda w: Normal(w[0], torch.ones(()))  # noqa: E731
    density = lb.condense(draws(1), normal, components=2, restarts=1, samples=500, **FAST)
    again = lb.load(density.save(tmp_path / "density"))
    points = torch.linspace(-2, 2, 9)[:, None]
    torch.testing.assert_close(again.student.log_prob(points), density.student.log_prob(points))
    assert again.head is None
    given = torch.rand(40, 30, 3, generator=G).softmax(-1)
    options = {"held_out_fraction": 0, **FAST}  # noise says nothing of other inputs
    found = lb.condense(predictions=given, inputs=X, student=lb.MLP(2, 4, 3), **options)
    again = lb.load(found.save(tmp_path / "given"))
    torch.testing.assert_close(again.predict(X).mean, found.predict(X).mean)


def test_a_saved_bag_is_exported_from_its_folder(result, tmp_path):
    bag = lb.condense(W, models.logistic(), X, components=3, **FAST)
    path = export(bag.save(tmp_path / "saved"), tmp_path / "bag.npz")
    weights = np.load(path, allow_pickle=False)
    assert sum(weights[name].size for name in weights.files) >= 6
    result.save(tmp_path / "own")
    with refused("predict", expected="predict=, the function"):
        export(tmp_path / "own", tmp_path / "own.pt2")
    export(str(tmp_path / "own"), tmp_path / "own.pt2", predict=own)
    program = torch.export.load(tmp_path / "own.pt2").module()
    torch.testing.assert_close(program(X), result.predict(X).mean, rtol=1e-5, atol=1e-6)
    with refused("predict", "a function"):
        export(result, tmp_path / "own.pt2", predict=own)


def test_only_results_of_condense_take_a_function(tmp_path):
    net = lb.MLP(2, 3, 2)
    lb.distill(lambda x: x.softmax(1), net, X, **FAST).save(tmp_path)
    with refused("predict", "no result of condense"):
        lb.load(tmp_path, predict=own)


@pytest.mark.parametrize("damage", ["", "[]", "{}", '{"bag": {"predict": 3}}'])
def test_a_damaged_file_is_named(result, tmp_path, damage):
    result.save(tmp_path)
    (tmp_path / ABOUT).write_text(damage)
    with raises_about(CheckpointError, "condensation.json"):
        lb.load(tmp_path)
