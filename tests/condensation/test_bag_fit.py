r"""Bags fitted at a pool of inputs: neighbours, choice of draws, joint predictions, verdicts."""

import math
import warnings

import pytest
import torch

import limbeck as lb
from limbeck.condensation.pool import (
    Covariances,
    choose_draws,
    draws_curve,
    neighbours,
    subset_divergence,
    worth,
)
from limbeck.condensation.predict_function import PredictFunction
from limbeck.posteriors.draws import Draws
from tests.refusals import refused

GENERATOR = torch.Generator().manual_seed(0)
DRAWS = torch.randn(400, 6, generator=GENERATOR)
ROWS = torch.randn(60, 6, generator=GENERATOR)
OPTIONS = {"progress": False, "device": "cpu"}


def logistic(w, x):
    return lb.Bernoulli(logits=x @ w)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_neighbours_have_the_mean_and_covariance_of_the_rows():
    x = torch.randn(500, 3, generator=generator(1)) @ torch.tensor(
        [[1.0, 2, 0], [0, 1, 1], [0, 0, 3]]
    )
    near, index = neighbours(x, 40_000, 0.5, generator())
    assert near.shape == (40_000, 3)
    assert index.shape == (40_000,)
    torch.testing.assert_close(near.mean(0), x.mean(0), atol=0.05, rtol=0)
    torch.testing.assert_close(near.T.cov(), x.T.cov(), atol=0.3, rtol=0.05)


def test_codes_bounds_and_constant_columns_stay():
    x = {
        "group": torch.arange(40) % 5,
        "x": torch.stack([torch.rand(40, generator=generator(1)), torch.ones(40)], 1),
        "code": torch.arange(40.0),
    }
    near, index = neighbours(x, 500, 0.5, generator())
    assert torch.equal(near["group"], x["group"][index])
    assert torch.equal(near["code"], x["code"][index])
    assert (near["x"][:, 1] == 1).all()
    assert near["x"].min() >= 0
    assert near["x"].max() <= 1
    assert (near["x"][:, 0] != x["x"][index, 0]).any()
    assert neighbours(torch.arange(10), 5, 0.5, generator()) is None
    assert neighbours(ROWS, 5, 0.0, generator()) is None


def test_chosen_draws_are_nearer_than_random_ones():
    p = torch.sigmoid(DRAWS @ ROWS.T).double()
    both = torch.stack([p, 1 - p], -1).flatten(1)
    t = both.mean(0)
    ratio, weight = both / t, t / t.sum()
    chosen = choose_draws(ratio, weight, 10)
    assert len(set(chosen)) == 10
    best = float(subset_divergence(ratio[chosen].mean(0), weight))
    others = []
    for k in range(50):
        random = ratio[torch.randperm(400, generator=generator(k))[:10]].mean(0)
        others.append(float(subset_divergence(random, weight)))
    assert 0 <= best < min(others)


def test_worth_inverts_the_curve_of_random_draws():
    curve = {2**k: 0.3 / 2**k for k in range(8)}
    assert worth(curve, 0.3 / 50) == pytest.approx(50)
    assert worth(curve, 0.3 / 5000) == pytest.approx(5000)
    assert worth(curve, 1.0) == 1
    assert worth(curve, -4e-8) == worth(curve, 1e-7) < 1e8  # rounding is no nearness
    ratio = 1 + 0.1 * torch.randn(500, 40, generator=generator(), dtype=torch.float64)
    ratio = ratio / ratio.mean(0)
    found = draws_curve(ratio, torch.full((40,), 1 / 40).double(), generator())
    assert found[64] * 64 == pytest.approx(found[8] * 8, rel=0.2)  # as 1/N


def test_a_bag_is_better_at_new_inputs_than_the_draws_it_started_from():
    result = lb.condense(DRAWS, logistic, ROWS, **OPTIONS)
    found = result.new_inputs
    assert found.best < found.start
    new = torch.randn(500, 6, generator=generator(5))
    starts = [lb.SampleBag(logistic, DRAWS, generator=generator(k)) for k in range(5)]
    t = torch.sigmoid(new @ DRAWS.T).mean(1)
    errors = [(bag(new).mean.detach() - t).abs().mean() for bag in (result.student, *starts)]
    assert errors[0] < 0.5 * min(errors[1:])
    assert "as near as" in str(result)
    assert result.verdict.state == "trustworthy"
    assert "verdict" in str(result)


def test_too_few_components_are_doubted():
    def narrow(w, x):  # one component cannot be as wide as the average
        return lb.Normal(x @ w, torch.tensor(0.1))

    verdict = lb.condense(DRAWS, narrow, ROWS, components=1, steps=20, pool=100, **OPTIONS).verdict
    assert verdict.state == "doubtful"
    assert "too few components" in str(verdict)


def test_a_stream_that_jumps_is_doubted_and_counts_its_draws():
    def stream(jump):
        for step in range(100):
            yield torch.randn(50, 2, generator=generator(step)) + (jump if step >= 20 else 0.0)

    x = torch.randn(40, 2, generator=generator(3))
    steady = lb.condense(stream(0.0), logistic, x, samples=2000, steps=20, **OPTIONS)
    assert steady.used == 2000
    assert steady.verdict.state != "doubtful"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        jumped = lb.condense(stream(1e4), logistic, x, samples=2000, steps=20, **OPTIONS)
    assert jumped.verdict.state == "doubtful"
    assert "have not converged: R̂" in str(jumped.verdict)


def test_a_stream_that_jumps_midway_is_doubted_by_gradient_descent_too():
    def stream(jump):
        for step in range(130):
            yield torch.randn(50, 2, generator=generator(step)) + (jump if step >= 35 else 0.0)

    x = torch.randn(40, 2, generator=generator(3))
    options = OPTIONS | {"optimizer": "adam", "steps": 100, "batch_size": 32}
    steady = lb.condense(stream(0.0), logistic, x, **options)
    assert steady.verdict.state != "doubtful"
    assert "3,324" in str(steady)  # the draws that it took
    with pytest.warns(UserWarning, match="R̂"):
        jumped = lb.condense(stream(1e4), logistic, x, **options)
    assert jumped.verdict.state == "doubtful"


@pytest.mark.parametrize("chains", [None, 20, 4])
def test_a_streamed_posterior_is_condensed_as_a_stored_one(chains):
    draws = DRAWS.double()  # with inputs of single precision
    if chains is not None:  # the same draws by chain
        draws = draws.reshape(-1, chains, 6).movedim(1, 0)
    stored = lb.condense(draws, logistic, ROWS, **OPTIONS)
    streamed = lb.condense(iter(DRAWS.double().split(chains or 7)), logistic, ROWS, **OPTIONS)
    assert stored.used == streamed.used == 400
    assert "with 400 draws, of which 400 were used" in streamed.stop_reason
    new = torch.randn(300, 6, generator=generator(5))
    assert torch.equal(stored.predict(new).mean, streamed.predict(new).mean)
    t = torch.sigmoid(new.double() @ DRAWS.double().T).mean(1)
    assert (streamed.predict(new).mean - t).abs().mean() < 0.005


def test_a_function_may_have_numbers_of_another_type_than_the_draws():
    errors = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)

    def predict(w, x):
        return lb.Normal(w[x], errors[x])

    for draws in (DRAWS, iter(DRAWS.split(50))):
        result = lb.condense(draws, predict, torch.arange(3), steps=20, **OPTIONS)
        assert result.new_inputs.best < result.new_inputs.start


def test_joint_predictions_have_the_posteriors_covariances():
    effects = torch.randn(500, 1, generator=generator(6)) + 0.5 * torch.randn(
        500, 4, generator=generator(7)
    )

    def predict(w, x):
        return lb.Normal(w[x], torch.ones(()))

    groups = torch.arange(4)
    result = lb.condense(effects, predict, groups, joint=True, **OPTIONS)
    bag, truth = result.student, torch.cov(effects.T, correction=0).double()
    torch.testing.assert_close(bag.covariances(groups).detach(), truth, rtol=0.1, atol=0)
    assert result.new_inputs.covariance < 0.05
    samples = bag.sample_jointly(groups, 20_000, generator())
    spread = (samples[:, 0] - samples[:, 1]).var()
    assert float(spread) == pytest.approx(
        float(truth[0, 0] + truth[1, 1] - 2 * truth[0, 1] + 2), rel=0.1
    )
    known = Covariances.of(
        PredictFunction(predict, effects[:8], groups), Draws.one_chain(effects), groups
    )
    torch.testing.assert_close(known.matrix, truth, rtol=1e-4, atol=1e-4)


def test_joint_bags_of_too_few_components_are_doubted_with_the_number_that_is_needed():
    effects = torch.randn(600, 12, generator=generator(8))  # of twelve groups, independent

    def predict(w, x):
        return lb.Normal(w[x], torch.ones(()))

    groups = torch.arange(12)
    few = lb.condense(effects, predict, groups, joint=True, components=5, steps=50, **OPTIONS)
    # four directions of twelve: no bag of five comes nearer than √(8/12)
    assert few.new_inputs.covariance > 0.7
    assert few.verdict.state == "doubtful"
    assert f"at least {few.new_inputs.needed} components" in str(few.verdict)
    needed = few.new_inputs.needed
    assert 11 <= needed <= 13
    enough = lb.condense(effects, predict, groups, joint=True, components=needed, **OPTIONS)
    assert enough.new_inputs.covariance < 0.1
    truth = torch.cov(effects.T, correction=0).double()
    error = (enough.student.covariances(groups).detach() - truth).norm() / truth.norm()
    assert float(error) == pytest.approx(enough.new_inputs.covariance, rel=1e-3, abs=1e-4)
    assert "covariances" not in str(enough.verdict)
    chosen = lb.condense(effects, predict, groups, joint=True, steps=50, **OPTIONS)
    assert chosen.student.components == math.ceil(1.1 * needed)
    assert chosen.new_inputs.covariance < 0.1


@pytest.mark.slow
def test_joint_bags_have_as_many_components_as_covariances_need():
    # a radon-like model: 85 groups with effects of their own, two kinds of rows in each
    effects = torch.randn(1500, 87, generator=generator(9))
    x = {"group": torch.arange(170) % 85, "floor": (torch.arange(170) >= 85).float()}

    def predict(w, x):
        return lb.Normal(
            1.4 + 0.3 * w[:85][x["group"]] + 0.1 * w[85] * x["floor"], (0.1 * w[86]).exp()
        )

    options = OPTIONS | {"held_out_fraction": 0}  # every group is to be predicted
    result = lb.condense(effects, predict, x, joint=True, steps=40, **options)
    assert 75 <= result.new_inputs.needed < result.student.components <= 97
    assert result.new_inputs.covariance < 0.1
    assert "covariances" not in str(result.verdict)
    alone = lb.condense(effects, predict, x, steps=2, pool=100, **options)
    assert alone.student.components == 10


def test_joint_samples_need_joint_training():
    bag = lb.SampleBag(logistic, DRAWS, components=3)
    with refused("joint", "one input at a time"):
        bag.sample_jointly(ROWS)
    with refused("joint", "True"):
        lb.condense(DRAWS, logistic, ROWS, joint=True, lr=0.1, **OPTIONS)


def test_predictions_that_are_not_finite_are_refused():
    with refused("predict", "NaN or infinite"):
        lb.condense(DRAWS, lambda w, x: lb.Normal((x @ w).sqrt(), torch.ones(())), ROWS, **OPTIONS)
