r"""Variables that a function does not need, whichever way it reads the others."""

import pytest
import torch

from limbeck.condensation.predict_function import PredictFunction
from limbeck.distributions import Normal

DRAWS = {name: torch.tensor([1.0, 2.0]) + k for k, name in enumerate(("alpha", "beta", "mu"))}


@pytest.mark.parametrize(
    ("mean", "names"),
    [
        (lambda d: d["alpha"] + d["beta"], ["mu"]),
        (lambda d: d["alpha"] + d.get("beta", 0.0) + d.get("gamma", 0.0), ["mu"]),
        (lambda d: d["alpha"] + d["beta"] + d["mu"], []),
        (lambda d: sum(d.values()), []),
        (lambda d: sum(value for _, value in d.items()), []),
        (lambda d: sum(d[name] for name in d), []),
        (lambda d: dict(d)["alpha"], ["beta", "mu"]),
        (lambda d: (lambda **named: named["alpha"])(**d), ["beta", "mu"]),
    ],
)
def test_variables_without_which_predictions_stay_the_same(mean, names):
    function = PredictFunction(lambda d, x: Normal(mean(d) * x, 1.0), DRAWS, torch.ones(3))
    assert function.unused == names


def test_vectors_have_no_names():
    draws = torch.ones(2, 3)
    assert PredictFunction(lambda w, x: Normal(w[0] * x, 1.0), draws, torch.ones(3)).unused == []


def test_notes_say_how_to_leave_them_out():
    def notes(*unused):
        draw = {name: torch.zeros(1) for name in ("beta", *unused)}
        return PredictFunction(lambda d, x: Normal(d["beta"] * x, 1.0), draw, torch.ones(2)).notes

    assert notes() == []
    assert notes("mu", "p") == [
        "predict does not use mu, p: var_names=['~mu', '~p'] leaves out what is not needed"
    ]
    assert "g, h, … (9 in all)" in notes(*"abcdefghi")[0]
