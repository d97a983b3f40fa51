r"""The user's function: mapped over draws and pairs, NumPy's too, and refused with the reason."""

import numpy as np
import pytest
import torch

from limbeck.condensation.predict_function import (
    PredictFunction,
    class_logs,
    stack,
)
from limbeck.distributions import Bernoulli, Categorical, Mixture, Normal, Poisson, average
from tests.refusals import refused

DOUBLE = torch.float64
G = torch.Generator().manual_seed(0)
DRAWS = {
    "alpha": torch.randn(6, 3, dtype=DOUBLE, generator=G),
    "beta": torch.randn(6, dtype=DOUBLE, generator=G),
    "sigma": torch.rand(6, dtype=DOUBLE, generator=G) + 0.1,
}
X = {
    "group": torch.tensor([0, 2, 1, 1, 0]),
    "dose": torch.randn(5, dtype=DOUBLE, generator=G),
}
W = torch.randn(6, 2, dtype=DOUBLE, generator=G)
POINTS = torch.randn(5, 2, dtype=DOUBLE, generator=G)


def hierarchical(draw, x):
    return Normal(draw["alpha"][x["group"]] + draw["beta"] * x["dose"], draw["sigma"])


def logistic(w, x):
    return Bernoulli(logits=x @ w)


def in_numpy(w, x):
    assert isinstance(w, np.ndarray)
    return Bernoulli(probs=1 / (1 + np.exp(-x @ w)))


def test_structured_draws_are_mapped_like_a_loop_over_them():
    predict = PredictFunction(hierarchical, DRAWS, X)
    assert predict.vmapped
    assert predict.classes is None
    stacked = predict.stacked(DRAWS, X)
    for s in range(6):
        one = hierarchical({name: part[s] for name, part in DRAWS.items()}, X)
        torch.testing.assert_close(stacked.loc[s], one.loc)
        assert (stacked.scale[s] == one.scale).all()
    assert stacked.scale.shape == (6, 5)


def test_pairs_are_the_diagonal():
    predict = PredictFunction(hierarchical, DRAWS, X)
    five = {name: part[:5] for name, part in DRAWS.items()}
    pairs, stacked = predict.paired(five, X), predict.stacked(five, X)
    torch.testing.assert_close(pairs.loc, stacked.loc.diagonal())
    torch.testing.assert_close(pairs.scale, stacked.scale.diagonal())


def test_a_function_of_numpy_arrays_gives_the_same_outside_torch():
    predict = PredictFunction(in_numpy, W, POINTS)
    assert not predict.vmapped
    assert predict.arrays
    assert "NumPy" in predict.reason
    plain = PredictFunction(logistic, W, POINTS)
    torch.testing.assert_close(
        predict.stacked(W, POINTS).mean, plain.stacked(W, POINTS).mean, rtol=1e-12, atol=0
    )
    torch.testing.assert_close(
        predict.paired(W[:5], POINTS).mean, plain.paired(W[:5], POINTS).mean, rtol=1e-12, atol=0
    )


def test_torch_code_that_looks_at_values_is_called_draw_by_draw_with_a_warning():
    def careful(w, x):
        return Bernoulli(logits=x @ w if torch.sum(w).item() > 0 else -(x @ -w))

    with pytest.warns(UserWarning, match="vmap cannot map it over draws .*draw by draw"):
        predict = PredictFunction(careful, W, POINTS)
    assert not predict.vmapped
    assert not predict.arrays
    torch.testing.assert_close(predict.stacked(W, POINTS).logits, W @ POINTS.T)


def test_a_function_of_a_draw_alone_is_mapped():
    predict = PredictFunction(lambda w: Normal(w[0], w[1].exp()), W, None)
    found = predict.stacked(W)
    torch.testing.assert_close(found.mean, W[:, 0])
    torch.testing.assert_close(predict.paired(W).scale, found.scale)


def test_classes_are_counted_and_looked_for_in_mixtures():
    k = torch.ones(2, dtype=DOUBLE)
    assert PredictFunction(logistic, W, POINTS).classes == 2
    assert PredictFunction(lambda w, x: Categorical(logits=x), W, POINTS).classes == 2
    assert PredictFunction(lambda w, x: Poisson(log_rate=x @ w), W, POINTS).classes is None
    mixture = PredictFunction(
        lambda w, x: Mixture(logits=k, components=Bernoulli(logits=(x @ w)[:, None] * k)),
        W,
        POINTS,
    )
    assert mixture.classes == 2
    torch.testing.assert_close(
        class_logs(mixture.example), logistic(W[0], POINTS).log_probabilities
    )


def test_memory_is_counted_by_draw_and_input():
    few = PredictFunction(logistic, W, POINTS).numbers
    many = PredictFunction(
        lambda w, x: Bernoulli(logits=(x @ w)[:, None].repeat(1, 50).mean(1)), W, POINTS
    )
    assert many.numbers >= few + 50


@pytest.mark.parametrize(
    ("function", "received", "expected"),
    [
        (lambda w, x: x @ w, "a Tensor as its result", ""),
        (lambda w, x: None, "a NoneType as its result", ""),
        (lambda w, x: Bernoulli(probs=x @ w), "probs of a Bernoulli between", "between 0 and 1"),
        (lambda w, x: Bernoulli(logits=x @ w, probs=x @ w), "with probs and logits", ""),
        (lambda w, x: Bernoulli(logits=(x @ w)[:3]), r"batch shape \(3,\) for 5 inputs", ""),
        (
            lambda w, x: Bernoulli(logits=x),
            r"a Bernoulli of the batch shape \(5",
            r"one label per input: the shape \(n,\)",
        ),
        (lambda w, x: Normal(x @ w, w[0] - 1e3), "scale of a Normal", ""),
        (lambda w, x: Bernoulli(logits=x @ w / 0), "NaN or infinite", ""),
        (lambda w, x: Bernoulli(logits=(x - x.mean(0)) @ w), "depend on the other inputs", ""),
        (lambda w, x: Bernoulli(logits=x @ w + torch.randn(len(x))), "draws random numbers", ""),
        (lambda w, x: Bernoulli(logits=x @ w[:1]), "fails", r"a draw \(2,\) and inputs \(5, 2\)"),
        (lambda w, x: w["beta"], "a function that fails", ""),
        (lambda w: Bernoulli(logits=w), "a function that fails", ""),
        ("logistic", "^a str$", ""),
    ],
)
def test_what_cannot_be_used_is_refused_with_what_came(function, received, expected):
    with refused("predict", received, expected=expected):
        PredictFunction(function, W, POINTS)


def test_the_users_own_error_is_the_cause():
    def broken(w, x):
        raise ZeroDivisionError("oh no")

    with refused("predict", "ZeroDivisionError: oh no") as caught:
        PredictFunction(broken, W, POINTS)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_the_mean_of_probabilities_is_taken_in_the_log_domain():
    logits = torch.randn(7, 4, dtype=DOUBLE, generator=G) * 3
    for one in (Bernoulli(logits=logits), Bernoulli(probs=logits.sigmoid())):
        found = class_logs(average(one)).exp()
        torch.testing.assert_close(found[:, 1], logits.sigmoid().mean(0), rtol=1e-12, atol=0)
        torch.testing.assert_close(found.sum(1), torch.ones(4, dtype=DOUBLE), rtol=1e-12, atol=0)
    scores = torch.randn(7, 4, 3, dtype=DOUBLE, generator=G)
    torch.testing.assert_close(
        class_logs(average(Categorical(logits=scores))).exp(),
        scores.softmax(-1).mean(0),
        rtol=1e-12,
        atol=0,
    )
    far = class_logs(average(Bernoulli(logits=torch.tensor([[-2000.0], [-2001.0]]))))
    assert far[0, 1].item() == pytest.approx(-2000 + np.log((1 + np.exp(-1)) / 2), abs=1e-3)


def test_distributions_are_stacked_with_their_parts():
    one = Mixture(logits=torch.zeros(2), components=Normal(torch.zeros(2), torch.ones(2)))
    assert stack([one, one, one]).components.loc.shape == (3, 2)
