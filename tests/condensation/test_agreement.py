r"""Agreement of densities without inputs, at the very samples; and whole times of parts."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from limbeck.condensation import agreement as agreements
from limbeck.condensation.agreement import SAMPLES, agreement, predictive
from limbeck.condensation.predict_function import PredictFunction
from limbeck.distributions import Mixture, Normal, Poisson
from limbeck.posteriors.read import as_draws

DOUBLE = torch.float64
MEANS = torch.tensor([[-1.0], [0.5], [2.0]], dtype=DOUBLE)


def density(w):
    return Normal(w[0], torch.tensor(0.5, dtype=DOUBLE))


def compare(**options):
    draws = as_draws(MEANS)
    student = Normal(torch.tensor(0.4, dtype=DOUBLE), torch.tensor(1.4, dtype=DOUBLE))
    return student, agreement(
        PredictFunction(density, MEANS, None), draws, student, None, **options
    )


def test_densities_are_compared_at_samples_of_the_average():
    y = torch.tensor([-1.5, 0.0, 4.0], dtype=DOUBLE)
    student, found = compare(y=y, bytes_=(24, 16), seed=3)
    spread = torch.full((3,), 0.5, dtype=DOUBLE)
    t = Mixture(torch.full((3,), 1 / 3, dtype=DOUBLE), Normal(MEANS[:, 0], spread))
    x = t.sample((SAMPLES,), torch.Generator().manual_seed(3))
    one, two = t.log_prob(x), student.log_prob(x)
    errors = (one.exp() - two.exp()).abs()
    assert found.mean_error == pytest.approx(errors.mean().item())
    assert found.max_error == pytest.approx(errors.max().item())
    assert found.kl == pytest.approx((one - two).mean().item())
    assert found.kl_error == pytest.approx((one - two).std().item() / math.sqrt(SAMPLES))
    expected = [each.log_prob(y).mean().item() for each in (t, student)]
    assert found.log_prob == pytest.approx(tuple(expected))
    assert (found.inputs, found.draws, found.bytes, found.at) == (SAMPLES, 3, (24, 16), "samples")


def test_samples_in_blocks_are_the_same_ones(monkeypatch):
    _, found = compare(y=None, bytes_=(24, 16))
    monkeypatch.setattr(agreements, "AT_ONCE", 10_000)  # bytes
    _, again = compare(y=None, bytes_=(24, 16))
    for name in ("mean_error", "max_error", "kl", "kl_error"):
        assert getattr(again, name) == pytest.approx(getattr(found, name), rel=1e-12)
    assert again.log_prob is None


def test_the_time_of_a_part_stands_for_that_of_all(monkeypatch):
    monkeypatch.setattr(agreements, "_seconds", lambda call: 2.0)
    assert compare(y=None, bytes_=(24, 16))[1].seconds == (2.0 * SAMPLES / 1000, 2.0)

    def real(w, x):
        return Normal(x * w, torch.tensor(0.5, dtype=DOUBLE))

    x = torch.linspace(-1, 1, 30, dtype=DOUBLE)
    draws = as_draws(MEANS)
    predict = PredictFunction(real, MEANS, x)
    each = 3 * predict.numbers * 8 * 273  # outcomes at each of 30 inputs
    monkeypatch.setattr(agreements, "AT_ONCE", 10 * each)  # ten inputs at once
    found = agreement(predict, draws, lambda x: real(MEANS[0], x), x, None, (1, 1))
    assert found.seconds == (6.0, 2.0)


@pytest.mark.parametrize("family", ["normal", "poisson"])
def test_ranks_of_outcomes_are_even_for_the_average_itself_alone(family):
    draws = torch.randn(200, 2, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    x = torch.randn(300, 2, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)

    def predict(w, x):
        return (
            Normal(x @ w, torch.ones((), dtype=DOUBLE))
            if family == "normal"
            else Poisson(log_rate=1 + 0.3 * x @ w)
        )

    stored = as_draws(draws)
    function = PredictFunction(predict, draws[:8], x)
    everything = partial(predictive, function, stored)
    found = agreement(function, stored, everything, x, None, (1, 1))
    assert found.coverage == pytest.approx(0.9, abs=0.015)
    assert max(found.pit) - min(found.pit) < 0.03
    one = agreement(function, stored, lambda x: predict(0 * draws[0], x), x, None, (1, 1))
    assert one.coverage < 0.86  # one draw is too narrow
    assert "90% intervals" in str(one)
    y = torch.zeros(300, dtype=DOUBLE)
    given = agreement(function, stored, everything, x, y, (1, 1))
    assert given.pit != found.pit
