r"""Ready-made functions: against SciPy and torch, for vectors and named variables."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch.nn.utils import parameters_to_vector

import limbeck as lb
from limbeck.condensation import models
from limbeck.condensation.predict_function import PredictFunction
from tests.refusals import refused

DOUBLE = torch.float64
G = torch.Generator().manual_seed(0)
X = torch.randn(6, 3, dtype=DOUBLE, generator=G)
BETA = torch.randn(3, dtype=DOUBLE, generator=G)
ALPHA, SIGMA = torch.tensor(0.7, dtype=DOUBLE), torch.tensor(1.3, dtype=DOUBLE)
NAMED = {"beta": BETA, "alpha": ALPHA, "sigma": SIGMA}
Z = (X @ BETA + ALPHA).numpy()


def vector(*parts):
    return torch.cat([part.reshape(-1) for part in parts])


@pytest.mark.parametrize("draw", [NAMED, vector(BETA, ALPHA, SIGMA)], ids=["named", "vector"])
def test_linear_regression_is_normal(draw):
    found = models.linear()(draw, X)
    y = np.linspace(-2, 2, 6)
    np.testing.assert_allclose(found.log_prob(y), stats.norm(Z, 1.3).logpdf(y), rtol=1e-10)


@pytest.mark.parametrize("draw", [NAMED, vector(BETA, ALPHA)], ids=["named", "vector"])
def test_binary_and_count_regressions_are_scipys(draw):
    np.testing.assert_allclose(models.logistic()(draw, X).mean, 1 / (1 + np.exp(-Z)), rtol=1e-10)
    np.testing.assert_allclose(models.probit()(draw, X).mean, stats.norm.cdf(Z), rtol=1e-10)
    y = np.arange(6)
    np.testing.assert_allclose(
        models.poisson()(draw, X).log_prob(y), stats.poisson(np.exp(Z)).logpmf(y), rtol=1e-10
    )


def test_probit_is_right_in_the_tails():
    z = torch.tensor([[-40.0], [-8.0], [8.0], [40.0]], dtype=DOUBLE)
    logs = models.probit()(torch.ones(1, dtype=DOUBLE), z).log_probabilities
    np.testing.assert_allclose(logs[:, 1], stats.norm.logcdf(z[:, 0]), rtol=1e-9)
    np.testing.assert_allclose(logs[:, 0], stats.norm.logsf(z[:, 0]), rtol=1e-9)


def test_a_bias_is_used_where_there_is_one():
    without = {"beta": BETA, "sigma": SIGMA}
    np.testing.assert_allclose(models.linear()(without, X).mean, X @ BETA)
    np.testing.assert_allclose(models.linear()(vector(BETA, SIGMA), X).mean, X @ BETA)
    np.testing.assert_allclose(models.logistic()(BETA, X).mean, (X @ BETA).sigmoid())
    known = models.linear(scale=2.0)(vector(BETA, ALPHA), X)
    np.testing.assert_allclose(known.mean, Z)
    assert known.scale == 2.0


def test_softmax_regression_has_a_column_for_each_class():
    weights, bias = torch.randn(3, 4, dtype=DOUBLE, generator=G), torch.arange(4.0, dtype=DOUBLE)
    expected = (X @ weights + bias).softmax(-1)
    named = models.softmax(weights="w", bias="b")({"w": weights, "b": bias}, X)
    torch.testing.assert_close(named.mean, expected)
    flat = models.softmax(classes=4)(vector(weights, bias), X)
    torch.testing.assert_close(flat.mean, expected)
    plain = models.softmax(classes=4)(vector(weights), X)
    torch.testing.assert_close(plain.mean, (X @ weights).softmax(-1))


def test_inputs_of_one_variable_may_be_a_vector():
    found = models.logistic()(torch.tensor([2.0]), torch.tensor([0.0, 1.0]))
    torch.testing.assert_close(found.mean, torch.tensor([0.0, 2.0]).sigmoid())


@pytest.mark.parametrize("sizes", [(3, 5, 1), (3, 4, 4, 2)])
def test_a_network_is_limbecks_own_with_drawn_weights(sizes):
    net = lb.MLP(*sizes, hidden="tanh", dtype=DOUBLE, generator=G)
    predict = models.mlp(*sizes)
    flat = parameters_to_vector(net.parameters()).detach()
    assert predict.structure.dim == len(flat)
    found, named = predict(flat, X), predict(dict(net.named_parameters()), X)
    logs = net.log_probabilities(X)
    torch.testing.assert_close(found.log_probabilities, logs)
    torch.testing.assert_close(named.log_probabilities, logs)


def test_a_network_of_real_numbers_has_a_scale():
    net = lb.MLP(3, 5, 1, hidden="tanh", dtype=DOUBLE, generator=G)
    flat = parameters_to_vector(net.parameters()).detach()
    drawn = models.mlp(3, 5, 1, scale="sigma")(torch.cat([flat, SIGMA[None]]), X)
    torch.testing.assert_close(drawn.mean, net(X)[:, 0])
    assert drawn.scale == SIGMA
    named = models.mlp(3, 5, 1, scale="sigma")(dict(net.named_parameters()) | NAMED, X)
    assert named.scale == SIGMA
    assert models.mlp(3, 5, 1, scale=0.5)(flat, X).scale == 0.5


@pytest.mark.parametrize(
    ("function", "size"),
    [
        (models.linear(), 5),
        (models.logistic(), 4),
        (models.probit(), 3),
        (models.poisson(), 4),
        (models.softmax(classes=3), 12),
        (models.mlp(3, 2, 3), 17),
        (models.mlp(3, 2, 1, scale="sigma"), 12),
    ],
)
def test_all_are_mapped_over_draws(function, size):
    draws = torch.rand(9, size, dtype=DOUBLE, generator=G) + 0.1
    predict = PredictFunction(function, draws, X)
    assert predict.vmapped
    torch.testing.assert_close(predict.stacked(draws, X).mean[3], function(draws[3], X).mean)


@pytest.mark.parametrize(
    ("call", "argument", "received"),
    [
        (lambda: models.logistic()(torch.zeros(7), X.float()), "posterior", "draws of 7"),
        (lambda: models.softmax()(torch.zeros(12), X.float()), "classes", "None"),
        (lambda: models.softmax(classes=1), "classes", "1"),
        (
            lambda: models.logistic()({"w": BETA}, X),
            "posterior",
            "no variable 'beta' among 'w'",
        ),
        (
            lambda: models.linear()({"beta": BETA}, X),
            "posterior",
            "no variable 'sigma'",
        ),
        (lambda: models.logistic()({"beta": BETA[:2]}, X), "posterior", r"weights of shape \(2,\)"),
        (lambda: models.softmax()({"beta": BETA}, X), "posterior", r"weights of shape \(3,\)"),
        (lambda: models.logistic()(BETA, {"x": X}), "inputs", "a dict"),
        (lambda: models.mlp(3, 2, 1)(torch.zeros(5), X.float()), "posterior", "draws of 5"),
        (lambda: models.mlp(3, 2, 1)({"layers.0.weight": X}, X), "posterior", "no variable"),
        (lambda: models.mlp(3, 2, 2, scale=1.0), "sizes", r"\(3, 2, 2\)"),
        (lambda: models.Regression("cauchy"), "family", "'cauchy'"),
    ],
)
def test_what_does_not_fit_is_refused(call, argument, received):
    with refused(argument, received):
        call()
