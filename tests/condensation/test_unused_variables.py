r"""Variables that a function does not look at, whichever way it looks."""

import pytest
import torch

from limbeck.condensation.predict_function import PredictFunction, unused_variables
from limbeck.distributions import Normal

DRAW = {"alpha": 1.0, "beta": 2.0, "mu": 3.0}


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (lambda d: d["alpha"] + d["beta"], ("mu",)),
        (lambda d: d["alpha"] + d.get("beta") + d.get("gamma", 0.0), ("mu",)),
        (lambda d: d["alpha"] + d["beta"] + d["mu"], ()),
        (lambda d: sum(d.values()), ()),
        (lambda d: [value for _, value in d.items()], ()),
        (lambda d: [d[name] for name in d], ()),
        (lambda d: dict(d)["alpha"], ()),
        (lambda d: (lambda **named: named["alpha"])(**d), ()),
        (lambda d: {type(d): 1}[dict], ()),  # no other than a plain dict
    ],
)
def test_what_is_not_read_is_found_and_nothing_is_claimed_where_it_cannot_be_told(function, names):
    assert unused_variables(function, DRAW) == names


def test_vectors_have_no_names():
    assert unused_variables(lambda d: 0.0, [1.0, 2.0]) == ()


def test_notes_say_how_to_leave_them_out():
    def notes(*unused):
        draw = {name: torch.zeros(1) for name in ("beta", *unused)}
        return PredictFunction(lambda d, x: Normal(d["beta"] * x, 1.0), draw, torch.ones(2)).notes

    assert notes() == []
    assert notes("mu", "p") == [
        "predict does not use mu, p: var_names=['~mu', '~p'] leaves out what is not needed"
    ]
    assert "g, h, … (9 in all)" in notes(*"abcdefghi")[0]
