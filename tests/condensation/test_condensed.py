r"""What a condensation gives back: predictions, reports against plain formulas, files."""

import importlib.util
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import limbeck as lb
from limbeck.condensation import agreement as agreements
from limbeck.condensation import models
from limbeck.condensation.agreement import agreement, predictive
from limbeck.condensation.condense import condense
from limbeck.condensation.predict_function import PredictFunction
from limbeck.condensation.sample_bag import SampleBag
from limbeck.condensation.teachers import is_online
from limbeck.distributions import Bernoulli, Categorical, Normal
from limbeck.posteriors.draws import Draws
from limbeck.posteriors.read import as_draws
from tests.refusals import refused

DOUBLE = torch.float64
G = torch.Generator().manual_seed(0)
W = torch.randn(400, 2, dtype=DOUBLE, generator=G)
X = torch.randn(30, 2, dtype=DOUBLE, generator=G)
FAST = {"device": "cpu", "engine": "eager", "progress": False, "steps": 20}


def logistic(w, x):
    return Bernoulli(logits=x @ w)


def stored(draws=W):
    return Draws({"": draws[None]})


@pytest.fixture(scope="module")
def result():
    return condense(W, logistic, X, components=4, **FAST)


def test_predictions_take_arrays_and_tensors_of_any_type(result):
    expected = result.student(X).mean.detach()
    for x in (X, X.float(), X.numpy(), X.tolist()):
        torch.testing.assert_close(result.predict(x).mean, expected, rtol=1e-5, atol=1e-6)
    assert not result.predict(X).mean.requires_grad
    with refused("x", ".*NaN"):
        result.predict(np.full((3, 2), np.nan))


def test_predictions_as_an_arviz_object(result):
    pytest.importorskip("arviz")
    found = result.to_arviz(X[:5], torch.ones(5), samples=4000)
    y = found["posterior_predictive"]["y"].values
    assert y.shape == (1, 4000, 5)
    np.testing.assert_allclose(y.mean((0, 1)), result.predict(X[:5]).mean, atol=0.04)
    assert found["observed_data"]["y"].shape == (5,)


def test_the_report_is_the_plain_formulas(result):
    y = (torch.arange(30) % 2).double()
    report = result.report(X, y)
    t = (X @ W.T).sigmoid().mean(1)
    f = result.student(X).mean.detach()
    assert report.mean_error == pytest.approx((t - f).abs().mean().item(), rel=1e-9)
    assert report.max_error == pytest.approx((t - f).abs().max().item(), rel=1e-9)
    kl = t * (t / f).log() + (1 - t) * ((1 - t) / (1 - f)).log()
    assert report.kl == pytest.approx(kl.mean().item(), rel=1e-6)
    assert report.kl_error == 0
    log_t = torch.where(y == 1, t, 1 - t).log().mean().item()
    assert report.log_prob[0] == pytest.approx(log_t, rel=1e-9)
    assert report.bytes == (400 * 2 * 8, result.bytes)
    assert (report.inputs, report.draws) == (30, 400)
    assert min(report.seconds) > 0
    text = str(report)
    assert "average of 400 draws" in text
    assert "log probability" in text
    sides = {"bytes": (6400, 96), "seconds": (1e-3, 3.1e-3)}
    slower = str(replace(report, **sides))
    assert slower.endswith("at 30 inputs; it is 67× smaller and 3.1× slower.")
    sides = {"bytes": (96, 960), "seconds": (1.0, 1.01)}
    assert str(replace(report, **sides)).endswith("it is 10× larger and as fast.")
    assert str(replace(report, bytes=(0, 96), seconds=(0.0, 1.0))).endswith("at 30 inputs.")


def test_a_report_may_be_against_other_draws(result):
    other = W + 1
    t = (X @ other.T).sigmoid().mean(1)
    f = result.student(X).mean.detach()
    found = result.report(X, posterior=other)
    assert found.mean_error == pytest.approx((t - f).abs().mean().item(), rel=1e-9)


def test_a_stream_gives_further_draws_for_a_report():
    rng = np.random.default_rng(0)
    stream = (rng.normal(size=(20, 2)) for _ in range(1000))
    result = condense(stream, logistic, X, **FAST | {"batch_size": 30})
    report = result.report(X, draws=500)
    assert report.draws == 500
    assert report.max_error < 0.5


def test_divergences_of_densities_are_estimated_with_their_error(monkeypatch):
    def real(w, x):
        return Normal(x @ w, torch.tensor(0.5, dtype=DOUBLE))

    draws = stored(W[:1].repeat(4, 1))  # all the same: the average is one normal distribution
    predict = PredictFunction(real, draws.take([0, 1]), X)

    def student(x):
        return Normal(x @ W[0] + 0.3, torch.full((len(x),), 0.6, dtype=DOUBLE))

    found = agreement(predict, draws, student, X, None, (1, 1))
    expected = np.log(0.6 / 0.5) + (0.25 + 0.09) / (2 * 0.36) - 0.5
    assert abs(found.kl - expected) < 4 * found.kl_error
    assert 0 < found.kl_error < 0.1
    assert found.mean_error == pytest.approx(0.3)
    monkeypatch.setattr(agreements, "AT_ONCE", 2000)  # rows in blocks
    again = agreement(predict, draws, student, X, X[:, 0], (1, 1))
    assert again.mean_error == pytest.approx(0.3)
    assert again.log_prob[0] == pytest.approx(
        real(W[0], X).log_prob(X[:, 0]).mean().item(), rel=1e-9
    )


def test_the_predictive_distribution_is_of_the_functions_kind():
    predict = PredictFunction(logistic, W[:4], X)
    found = predictive(predict, stored(), X)
    assert isinstance(found, Bernoulli)
    torch.testing.assert_close(found.mean, (X @ W.T).sigmoid().mean(1))
    scores = torch.randn(400, 6, dtype=DOUBLE, generator=G)
    softmax = models.softmax(classes=3)
    several = predictive(PredictFunction(softmax, scores[:4], X), stored(scores), X)
    assert isinstance(several, Categorical)
    direct = torch.stack([softmax(w, X).mean for w in scores]).mean(0)
    torch.testing.assert_close(several.mean, direct)


def test_a_result_tells_its_story(result):
    text = str(result)
    for part in ("condensation", "SampleBag, 8 parameters", "400, 6,400 bytes", "R̂", "20 steps"):
        assert part in text
    assert result.draw_bytes == 400 * 2 * 8
    assert result.bytes == sum(
        t.numel() * t.element_size() for t in result.student.state_dict().values()
    )


def test_a_result_is_saved_and_read_back(result, tmp_path):
    result.save(tmp_path)
    about = json.loads((tmp_path / "training.json").read_text())
    assert about["settings"]["input_shape"] == {"": [2]}
    empty = SampleBag(logistic, result.student.structure, 4, dtype=DOUBLE)
    again = lb.load(tmp_path, student=empty)
    assert torch.equal(again.student(X).mean, result.student(X).mean)
    assert again.stop_reason == result.stop_reason


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("onnxscript") is None, reason="needs onnxscript")
def test_a_bag_is_exported_as_its_probabilities(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    x = X.float()
    for function in (logistic, models.linear(scale=1.0)):
        result = condense(W.float(), function, x, components=4, **FAST)
        path = result.export(tmp_path / "bag.onnx")
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        found = session.run(None, {"x": x.numpy()})[0]
        np.testing.assert_allclose(found, result.predict(x).mean, rtol=1e-4, atol=1e-5)


def test_large_bags_are_used_draw_by_draw(monkeypatch):
    draws = as_draws(np.zeros((4, 100, 3), dtype=np.float32) + np.arange(100)[None, :, None])
    assert not is_online("auto", draws)
    assert is_online(True, draws)
    monkeypatch.setattr("limbeck.condensation.teachers.IN_MEMORY", 1000)
    assert is_online("auto", draws)
    assert not is_online(False, draws)


def test_what_few_draws_cannot_tell_is_not_put_into_numbers():
    some = iter(np.random.default_rng(0).normal(size=(20, 20, 2)))
    ended = condense(some, logistic, X, **FAST | {"steps": 100, "batch_size": 30})
    assert "not known: too few draws" in str(ended)
    assert "inf" not in str(ended)
    with refused("posterior", "without 100 further draws", expected="posterior="):
        ended.report(X, draws=100)
    assert 0 < ended.report(X, posterior=W).mean_error < 1
