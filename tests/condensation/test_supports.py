r"""Supports: free numbers reach them and nothing else, and come back."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from limbeck.condensation.sample_bag import Segment, Supports, as_segment
from limbeck.posteriors.draws import Structure
from tests.refusals import refused

DOUBLE = torch.float64
STRUCTURE = Structure(("beta", "sigma", "p", "mix"), ((2,), (), (3,), (2, 3)))
GIVEN = {"sigma": "positive", "p": (-1, 2.5), "mix": "simplex"}


def tensor(values):
    return torch.tensor(values, dtype=DOUBLE)


@pytest.mark.parametrize(
    "support",
    [Segment(1), Segment(1, 0, 2.0), Segment(1, 0, -math.inf, -1.0), Segment(1, 0, -3.0, 7.0)],
)
@given(free=st.lists(st.floats(-25, 25), min_size=1, max_size=5))
@settings(deadline=None, max_examples=30)
def test_free_numbers_are_held_within_and_come_back(support, free):
    free = tensor(free)
    held = support.constrain(free)
    assert not support.outside(held).any()
    torch.testing.assert_close(
        support.constrain(support.unconstrain(held)), held, rtol=1e-9, atol=1e-12
    )


def test_a_simplex_sums_to_one_and_comes_back():
    simplex, free = Segment(6, 3, 0.0, 1.0), torch.randn(5, 6, dtype=DOUBLE)
    held = simplex.constrain(free)
    torch.testing.assert_close(held.unflatten(-1, (2, 3)).sum(-1), torch.ones(5, 2, dtype=DOUBLE))
    assert not simplex.outside(held).any()
    torch.testing.assert_close(simplex.constrain(simplex.unconstrain(held)), held)


def test_numbers_at_the_ends_become_finite_free_ones():
    for support, ends in ((Segment(1, 0, 0.0), [0.0]), (Segment(2, 0, 0.0, 1.0), [0.0, 1.0])):
        free = support.unconstrain(tensor(ends))
        assert free.isfinite().all()
        torch.testing.assert_close(support.constrain(free), tensor(ends), rtol=0, atol=1e-10)


def test_each_variable_is_held_by_its_own_support():
    supports = Supports.of(GIVEN, STRUCTURE)
    free = torch.randn(50, STRUCTURE.dim, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    draws = STRUCTURE.unflatten(supports.constrain(5 * free))
    assert torch.equal(draws["beta"], 5 * free[:, :2])
    torch.testing.assert_close(draws["sigma"], (5 * free[:, 2]).exp(), rtol=1e-12, atol=0)
    assert draws["p"].min() >= -1
    assert draws["p"].max() <= 2.5
    torch.testing.assert_close(draws["mix"].sum(-1), torch.ones(50, 2, dtype=DOUBLE))
    back = supports.unconstrain(STRUCTURE.flatten(draws))
    torch.testing.assert_close(supports.constrain(back), STRUCTURE.flatten(draws))
    supports.check(STRUCTURE.flatten(draws), STRUCTURE)


def test_real_numbers_stay_as_they_are():
    supports = Supports.of(None, STRUCTURE)
    rows = torch.randn(3, STRUCTURE.dim)
    assert supports.plain
    assert supports.constrain(rows) is rows


def test_numbers_of_a_vector_have_supports_by_their_places():
    vector = Structure(("",), ((3,),))
    supports = Supports.of({2: "positive"}, vector)
    assert torch.equal(supports.constrain(tensor([-1.0, -2.0, 0.0])), tensor([-1.0, -2.0, 1.0]))
    assert (Supports.of("unit", vector).constrain(tensor([-1.0, 0.0, 9.0])) < 1).all()
    assert Supports.of("simplex", vector).constrain(tensor([0.0, 0.0, 0.0])).sum() == 1


def test_supports_survive_as_a_table_of_numbers():
    supports = Supports.of(GIVEN, STRUCTURE)
    again = Supports.decoded(supports.encoded(), STRUCTURE.dim)
    assert again.segments == supports.segments


def test_derivatives_pass_through_all_supports():
    supports = Supports.of(GIVEN, STRUCTURE)
    free = torch.randn(STRUCTURE.dim, dtype=DOUBLE, requires_grad=True)
    assert torch.autograd.gradcheck(supports.constrain, (free,))


@pytest.mark.parametrize(
    ("support", "argument", "received", "expected"),
    [
        ({"tau": "positive"}, "support", "a support of 'tau'", ""),
        (
            {"sigma": "positiv"},
            "support['sigma']",
            "'positiv'",
            "did you mean 'positive'",
        ),
        ({"sigma": (1, 1)}, "support['sigma']", r"^\(1, 1\)$", ""),
        ({"sigma": 3}, "support['sigma']", "^3$", "'real'"),
        ({"sigma": "simplex"}, "support['sigma']", r"a simplex for a variable of shape \(\)", ""),
        ("positive", "support", "'positive'", ""),
    ],
)
def test_what_is_no_support_is_refused(support, argument, received, expected):
    with refused(argument, received, expected=expected):
        Supports.of(support, STRUCTURE)


def test_draws_outside_are_refused_by_name():
    rows = torch.ones(10, STRUCTURE.dim)
    rows[3:5, 2] = -1
    supports = Supports.of({"sigma": "positive"}, STRUCTURE)
    with refused("support", "2 of 10 draws of sigma are not"):
        supports.check(rows, STRUCTURE)


def test_what_is_outside_is_found_on_both_sides():
    values = tensor([-3.1, -3.0, 0.0, 7.0, 7.1])
    ends = {(-3.0, 7.0): [0, 4], (-3.0, None): [0], (None, 7.0): [4], "real": []}
    for support, outside in ends.items():
        segment = as_segment(support, (), "support")
        assert segment.outside(values).nonzero()[:, 0].tolist() == outside
    rows = tensor([[0.2, 0.3, 0.5, 1.0, 0.0, 0.0], [0.2, 0.3, 0.6, 1.5, -0.5, 0.0]])
    found = Segment(6, 3, 0.0, 1.0).outside(rows).tolist()
    assert found[0] == [False] * 6  # up to rounding
    assert found[1] == [True, True, True, False, True, False]  # a wrong sum, a negative number


def test_supports_are_described_in_words():
    assert str(as_segment("positive", (), "support")) == "numbers between 0 and inf"
    assert str(as_segment("simplex", (3,), "support")) == "3 nonnegative numbers with the sum 1"
