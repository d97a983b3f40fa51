r"""Condensing a density without inputs: EM on samples, EM on a stream, gradients."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import limbeck as lb
from limbeck.condensation.condense import condense
from limbeck.condensation.densities import Outcomes, events_of, pair_derivative_error
from limbeck.condensation.predict_function import PredictFunction
from limbeck.condensation.stepwise_em import StepwiseEM
from limbeck.condensation.teachers import FreshDraws
from limbeck.distributions import Mixture, MultivariateNormal, Normal, Poisson
from limbeck.models.mixture import GaussianMixture
from limbeck.posteriors.read import as_draws
from tests.refusals import refused, warns_about

DOUBLE = torch.float64
FAST = {"device": "cpu", "engine": "eager", "progress": False}
MEANS = np.random.default_rng(0).normal([-4.0, 3.0], 0.2, (2, 300, 2))
VARIANCE = {"mu": MEANS, "sigma": np.random.default_rng(1).gamma(50, 0.02, (2, 300))}


def two(draw):
    return Mixture(torch.tensor([0.3, 0.7]), Normal(draw["mu"], draw["sigma"]))


def vector(draw):
    return MultivariateNormal(draw["mu"], torch.eye(2))


def stream(batches, size=50, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(batches):
        yield {
            "mu": rng.normal([-4.0, 3.0], 0.2, (size, 2)),
            "sigma": rng.gamma(50, 0.02, size),
        }


def close(mixture):
    order = mixture.means[:, 0].argsort()
    assert mixture.means[order, 0].tolist() == pytest.approx([-4, 3], abs=0.15)
    assert mixture.weights[order].tolist() == pytest.approx([0.3, 0.7], abs=0.04)


def test_batch_em_on_samples_of_all_draws():
    result = condense(VARIANCE, two, components=2, samples=4000, restarts=2, **FAST)
    assert isinstance(result.student, GaussianMixture)
    close(result.student)
    assert "EM converged" in result.stop_reason
    losses = result.history["loss"]
    assert all(later <= before + 1e-9 for before, later in pairwise(losses))
    assert (result.engine, result.used, result.draw_bytes) == ("EM", 600, 600 * 3 * 4)
    report = result.report(y=np.array([-4.0, 3.0]))
    assert abs(report.kl) < 0.01
    assert report.log_prob[0] == pytest.approx(report.log_prob[1], abs=0.05)
    assert result.predict() is result.student
    assert "samples" in str(report)


def test_stepwise_em_on_a_stream():
    result = condense(stream(500), two, components=2, steps=100, batch_size=100, **FAST)
    close(result.student)
    assert result.draw_bytes == 100 * 3 * 4
    assert result.used >= 100 * 100
    assert result.diagnostics.reasons == []
    assert abs(result.report(draws=2000).kl) < 0.01


def test_stored_draws_online_and_an_update_of_the_users():
    one = condense(VARIANCE, two, components=2, online=True, steps=60, batch_size=100, **FAST)
    close(one.student)
    update = StepwiseEM("robbins-monro", restarts=2)
    own = condense(VARIANCE, two, components=2, update=update, steps=60, batch_size=100, **FAST)
    close(own.student)
    assert "StepwiseEM" in own.settings["update"]
    slow = condense(
        VARIANCE, two, components=2, online=True, schedule="constant", restarts=1, steps=5, **FAST
    )
    assert "restarts=1" in slow.settings["update"]


def test_gradients_are_the_alternative():
    result = condense(VARIANCE, two, components=2, lr=0.02, steps=150, **FAST)
    close(result.student)
    assert "Adam" in result.settings["update"]


class Location(nn.Module):
    def __init__(self):
        super().__init__()
        self.loc = nn.Parameter(torch.zeros(()))

    def log_prob(self, x):
        return Normal(self.loc, torch.tensor(5.0)).log_prob(x[:, 0])


def test_other_densities_are_trained_by_gradients():
    student = Location()
    result = condense(VARIANCE, two, student=student, lr=0.1, steps=120, **FAST)
    assert result.student is student
    assert student.loc.item() == pytest.approx(0.3 * -4 + 0.7 * 3, abs=0.5)


def test_vectors():
    result = condense(
        {"mu": MEANS}, vector, components=1, covariance="diagonal", samples=2000, restarts=1, **FAST
    )
    assert result.student.dim == 2
    assert result.student.mean.tolist() == pytest.approx([-4, 3], abs=0.15)
    assert result.student.covariance == "diagonal"
    assert abs(result.report().kl) < 0.02


def test_a_stream_that_ends_keeps_the_mixture_so_far():
    result = condense(stream(40), two, components=2, steps=100, batch_size=50, **FAST)
    assert 0 < result.steps < 100
    assert "the stream ended" in result.stop_reason


def test_a_stream_that_fails_gives_the_mixture_so_far():
    def failing():
        yield from stream(40)
        raise OSError("disk gone")

    with warns_about("disk gone"):
        result = condense(failing(), two, components=2, steps=100, batch_size=50, **FAST)
    assert isinstance(result.student, GaussianMixture)
    assert "disk gone" in result.stop_reason


def test_events_are_of_the_average_and_can_be_gone_back_to():
    draws = {name: torch.tensor(part).flatten(0, 1) for name, part in VARIANCE.items()}
    calling = PredictFunction(two, {name: part[:4] for name, part in draws.items()}, None)
    events = events_of(calling, draws, torch.Generator().manual_seed(0))
    assert events.shape == (600, 1)
    fresh = FreshDraws(as_draws(VARIANCE))

    def of(batch, generator):
        return events_of(calling, fresh.next(len(batch.x)), generator)

    source = Outcomes(of, posterior=fresh)
    source.to(torch.device("cpu"), DOUBLE, 0)
    state = source.state_dict()
    first = source(2000).x
    source.load_state_dict(state)
    assert torch.equal(source(2000).x, first)
    assert first.mean().item() == pytest.approx(0.3 * -4 + 0.7 * 3, abs=0.3)
    assert source.probe(5).x.shape == (5, 1)


def test_equal_seeds_give_equal_mixtures():
    one, same = (
        condense(VARIANCE, two, components=2, samples=500, restarts=1, seed=4, **FAST).student.means
        for _ in range(2)
    )
    assert torch.equal(one, same)


@pytest.mark.parametrize(
    ("density", "argument", "received"),
    [
        (lambda draw, x: two(draw), "predict", "missing 1 required positional argument: 'x'"),
        (lambda draw: Poisson(rate=draw["sigma"]), "predict", "of whole numbers, without inputs"),
        (lambda draw: draw["mu"], "predict", "a Tensor as its result"),
        (
            lambda draw: Normal(draw["mu"], draw["sigma"]),
            "predict",
            r"batch shape \(2,\) of no inputs",
        ),
        (lambda draw: draw["tau"], "predict", "KeyError: 'tau'"),
    ],
)
def test_what_is_no_density_is_refused(density, argument, received):
    with refused(argument, received):
        condense(VARIANCE, density, components=2, **FAST)


def test_derivatives_of_pairs_are_compared_with_respect_to_x_and_not_to_y():
    class Derivatives:
        def __init__(self, values):
            self.values = values

        def derivatives(self, domain):
            assert domain == "density"
            return self.values

    x, y = torch.randn(5, 3), torch.randn(5)
    one, two = torch.randn(5, 1, 4), torch.randn(5, 1, 4)  # three of x, one of y
    batch = lb.Batch({"x": x, "y": y})
    loss = pair_derivative_error()(Derivatives(one), Derivatives(two), batch)
    torch.testing.assert_close(loss, (one - two)[:, 0, :3].square().sum(1) / 2)
