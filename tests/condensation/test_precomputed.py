r"""Predictions from elsewhere: averaged, looked up by row, and refused where unclear."""

import numpy as np
import pytest
import torch

import limbeck as lb
from limbeck.condensation import models
from limbeck.condensation.condense import condense
from limbeck.condensation.densities import as_predictions
from limbeck.condensation.sample_bag import SampleBag
from limbeck.distributions import Bernoulli, Categorical, Mixture, Normal, Poisson
from limbeck.errors import NotDifferentiableError
from tests.refusals import refused

RNG = np.random.default_rng(0)
N, S = 60, 25
X = RNG.normal(size=(N, 2))
W = RNG.normal([1.0, 0.0], 0.7, (S, 2))
P = 1 / (1 + np.exp(-W @ X.T))  # (S, n)
FAST = {"device": "cpu", "engine": "eager", "progress": False, "steps": 200, "batch_size": 60}


def classes(p):
    return np.stack([1 - p, p], -1)


@pytest.mark.parametrize(
    "predictions",
    [P, P.mean(0), classes(P), classes(P).mean(0), P[..., None], P.mean(0)[:, None]],
    ids=["(S, n)", "(n,)", "(S, n, 2)", "(n, 2)", "(S, n, 1)", "(n, 1)"],
)
def test_arrays_of_probabilities_are_averaged(predictions):
    found = as_predictions(predictions, N)
    mean = found.mean if found.mean.ndim == 1 else found.mean[:, 1]
    np.testing.assert_allclose(mean, P.mean(0), rtol=1e-10)


def test_distributions_say_the_rest():
    logits = torch.randn(S, N)
    found = as_predictions(Bernoulli(logits=logits), N)
    torch.testing.assert_close(found.mean, logits.sigmoid().mean(0))
    averaged = as_predictions(Categorical(probs=classes(P).mean(0)), N)
    np.testing.assert_allclose(averaged.mean[:, 1], P.mean(0), rtol=1e-6)
    normal = as_predictions(Normal(np.zeros((S, N)), 1.0), N)
    assert isinstance(normal, Mixture)


@pytest.mark.parametrize(
    ("predictions", "received", "expected"),
    [
        (np.ones((N, N)), r"shape \(60, 60\) for 60 inputs", ""),
        (P[:, :10], r"shape \(25, 10\) for 60 inputs", ""),
        (np.ones((2, 3, N, 2)), r"shape \(2, 3, 60, 2\) for 60 inputs", r"probabilities \(60,\)"),
        (P + 1, "between 1", "probabilities"),
        (classes(P) * 0.7, "the sum 0.7", ""),
        (np.where(P > 0.9, np.nan, P), "NaN", ""),
        (Bernoulli(logits=np.zeros((3, 4))), r"batch shape \(3, 4\)", ""),
        ("many", "^a str$", ""),
    ],
)
def test_what_is_no_prediction_of_the_inputs_is_refused(predictions, received, expected):
    with refused("predictions", received, expected=expected):
        as_predictions(predictions, N)


def test_nobody_must_port_a_model():
    result = condense(predictions=P, inputs=X, **FAST)
    found = result.predict(X)
    assert isinstance(found, Bernoulli)
    assert np.abs(found.mean.numpy() - P.mean(0)).max() < 0.1
    assert result.predict(X[:3]).mean.shape == (3,)
    with refused("report", "a result of predictions"):
        result.report(X)


def test_the_students_kind_is_the_users_choice():
    net = lb.MLP(2, 8, 2, hidden="tanh", generator=torch.Generator().manual_seed(0))
    result = condense(predictions=classes(P), inputs=X, student=net, lr=0.05, **FAST)
    assert result.student is net
    assert np.abs(result.predict(X).mean.numpy()[:, 1] - P.mean(0)).max() < 0.1
    bag = condense(W, models.logistic(), X, predictions=P, components=5, **FAST)
    assert isinstance(bag.student, SampleBag)
    assert np.abs(bag.predict(X).mean.numpy() - P.mean(0)).max() < 0.05


def test_real_numbers_and_counts():
    loc = W @ X.T
    fast = FAST | {"steps": 400, "held_out_fraction": 0}  # 60 rows are too few to be without any
    result = condense(predictions=Normal(loc, 0.5), inputs=X, lr=0.01, **fast)
    found = result.predict(X)
    assert isinstance(found, Normal)
    assert np.abs(found.mean.numpy() - loc.mean(0)).mean() < 0.2
    assert 0.4 < found.scale.mean() < 1.5
    counts = condense(predictions=Poisson(log_rate=loc / 2), inputs=X, **FAST | {"steps": 20})
    assert isinstance(counts.predict(X), Poisson)


@pytest.mark.parametrize(
    ("arguments", "argument", "received"),
    [
        ({"inputs": None}, "inputs", "^None$"),
        ({"inputs": lb.inputs.Noise(2)}, "inputs", "Noise inputs"),
        ({"inputs": {"x": X}}, "student", "^None$"),
        ({"student": 3}, "student", "^3$"),
        ({"posterior": np.zeros((9, 2))}, "predict", "^None$"),
        ({"predict": models.logistic()}, "posterior", "^None$"),
    ],
)
def test_bad_input_is_refused(arguments, argument, received):
    with refused(argument, received):
        condense(**FAST | {"predictions": P, "inputs": X} | arguments)


def test_draws_of_outcomes_keep_their_means_and_variances():
    y = (W @ X.T).repeat(20, 0) + RNG.normal(0.0, 0.5, (20 * S, N))
    for given in ({"y": y}, {"posterior_predictive": {"y": y.reshape(5, -1, N)}}):
        found = as_predictions(given, N)
        np.testing.assert_allclose(found.mean, y.mean(0), rtol=1e-10)
        np.testing.assert_allclose(found.variance, y.var(0), rtol=1e-10)
    result = condense(predictions={"y": y}, inputs=X, lr=0.01, **FAST | {"held_out_fraction": 0})
    assert np.abs(result.predict(X).mean.numpy() - y.mean(0)).mean() < 0.3
    counts = RNG.poisson(2.0, (500, N))
    shares = as_predictions({"y": counts}, N)
    np.testing.assert_allclose(shares.mean[:, 1], (counts == 1).mean(0), rtol=1e-6)
    assert isinstance(as_predictions({"y": counts > 2}, N), Bernoulli)


def test_draws_of_outcomes_that_are_refused():
    y = RNG.normal(size=(500, N))
    for wrong, argument, received in (
        ({"y": y, "z": y}, "predictions", "'z'"),
        ({"y": y[:50]}, "predictions['y']", r"shape \(50, 60\)"),
        ({"y": y.T}, "predictions['y']", r"shape \(60, 500\)"),
        ({"y": y * 0 + 0.5}, "predictions['y']", "equal outcomes at 60 of 60"),
        ({"y": np.where(y > 3, np.nan, y)}, "predictions['y']", "NaN"),
    ):
        with refused(argument, received):
            as_predictions(wrong, N)


def test_stored_predictions_have_no_derivatives():
    with pytest.raises(NotDifferentiableError, match="stored targets"):
        condense(predictions=P, inputs=X, loss="derivative_error", **FAST)


def test_predictions_that_look_transposed_are_said_to_be():
    p = np.random.default_rng(0).uniform(size=(9, 60))  # (draws, n)
    assert as_predictions(p, 60).mean.shape == (60,)
    with refused("predictions", r"shape \(60, 9\)", expected=r"or \(draws, 60\): is it transposed"):
        as_predictions(p.T, 60)
