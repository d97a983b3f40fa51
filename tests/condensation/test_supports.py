r"""Supports: free numbers reach them and nothing else, and come back."""

import math
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import constraints

from limbeck.condensation.sample_bag import Supports
from limbeck.posteriors.coordinates import parts_of
from limbeck.posteriors.draws import Structure
from tests.refusals import refused

DOUBLE = torch.float64
STRUCTURE = Structure(("beta", "sigma", "p", "mix"), ((2,), (), (3,), (2, 3)))
GIVEN = {"sigma": "positive", "p": (-1, 2.5), "mix": "simplex"}


def tensor(values):
    return torch.tensor(values, dtype=DOUBLE)


def check(rows, structure, support):
    for part in parts_of(structure, support):
        part.check(rows.double())


@pytest.mark.parametrize("support", [None, (0, 2.0), (None, -1.0), (-3.0, 7.0), "ordered"])
@given(free=st.lists(st.floats(-25, 25), min_size=1, max_size=5))
@settings(deadline=None, max_examples=30)
def test_free_numbers_are_held_within_and_come_back(support, free):
    vector = Structure(("",), ((len(free),),))
    supports = Supports.of(support, vector)
    held = supports.constrain(tensor([free]))
    check(held, vector, support)
    torch.testing.assert_close(
        supports.constrain(supports.unconstrain(held)), held, rtol=1e-9, atol=1e-12
    )


def test_a_simplex_sums_to_one_and_comes_back():
    structure = Structure(("mix",), ((2, 3),))
    simplex, free = Supports.of("simplex", structure), torch.randn(5, 6, dtype=DOUBLE)
    held = simplex.constrain(free)
    torch.testing.assert_close(held, free.unflatten(-1, (2, 3)).softmax(-1).flatten(-2))
    torch.testing.assert_close(simplex.constrain(simplex.unconstrain(held)), held)


def test_numbers_at_the_ends_become_finite_free_ones():
    for support, ends in (
        ("positive", [0.0]),
        ("unit_interval", [0.0, 1.0]),
        ("simplex", [0.0, 1.0]),
    ):
        vector = Structure(("",), ((len(ends),),))
        supports = Supports.of(support, vector)
        check(tensor([ends]), vector, support)
        free = supports.unconstrain(tensor(ends))
        assert free.isfinite().all()
        torch.testing.assert_close(supports.constrain(free), tensor(ends), rtol=0, atol=1e-10)


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
    check(STRUCTURE.flatten(draws), STRUCTURE, GIVEN)


def test_real_numbers_stay_as_they_are():
    supports = Supports.of(None, STRUCTURE)
    rows = torch.randn(3, STRUCTURE.dim)
    assert supports.plain
    assert supports.constrain(rows) is rows


def test_numbers_of_a_vector_have_supports_by_their_places():
    vector = Structure(("",), ((3,),))
    supports = Supports.of({2: "positive"}, vector)
    assert torch.equal(supports.constrain(tensor([-1.0, -2.0, 0.0])), tensor([-1.0, -2.0, 1.0]))
    assert (Supports.of("unit_interval", vector).constrain(tensor([-1.0, 0.0, 9.0])) < 1).all()
    assert Supports.of("simplex", vector).constrain(tensor([0.0, 0.0, 0.0])).sum() == 1


def test_supports_survive_as_a_table_of_numbers():
    supports = Supports.of(GIVEN, STRUCTURE)
    again = Supports.decoded(supports.encoded(), STRUCTURE.dim)
    assert again.segments == supports.segments
    before = [[2, 0, -math.inf, math.inf], [1, 0, 0, math.inf], [3, 0, -1, 2.5], [6, 3, 0, 1]]
    assert supports.encoded().tolist() == before  # as in the files of version 0.1


@pytest.mark.parametrize(
    ("name", "constraint"),
    [
        ("positive", constraints.positive),
        ((0, None), constraints.nonnegative),
        ((-1, 2), constraints.interval(torch.tensor(-1.0), torch.tensor(2.0))),
        ("unit_interval", "unit"),
        ("simplex", constraints.simplex),
        (None, constraints.real_vector),
    ],
)
def test_constraints_are_the_supports_that_they_name(name, constraint):
    structure = Structure(("a", "b"), ((3,), ()))
    one, other = (Supports.of({"a": support}, structure) for support in (name, constraint))
    assert one.segments == other.segments


def test_derivatives_pass_through_all_supports():
    supports = Supports.of(GIVEN, STRUCTURE)
    free = torch.randn(STRUCTURE.dim, dtype=DOUBLE, requires_grad=True)
    assert torch.autograd.gradcheck(supports.constrain, (free,))


@pytest.mark.parametrize(
    ("support", "argument", "received", "expected"),
    [
        ({"tau": "positive"}, "support", "'tau'", "'sigma'"),
        (
            {"sigma": "positiv"},
            "support['sigma']",
            "'positiv'",
            "did you mean 'positive'",
        ),
        ({"sigma": (1, 1)}, "support['sigma']", r"^\(1, 1\)$", ""),
        ({"sigma": 3}, "support['sigma']", "^3$", "'real'"),
        ({"sigma": "simplex"}, "draws['sigma']", r"shape \(\)", "1 axes for 'simplex'"),
        ({"mix": constraints.corr_cholesky}, "support", "CorrCholesky", "simplex"),
        ({"p": constraints.less_than(torch.zeros(3))}, "support", "draws", "two ends"),
        ({"p": torch.zeros(2)}, "support['p']", "", "'ordered'"),
    ],
)
def test_what_is_no_support_is_refused(support, argument, received, expected):
    with refused(argument, received, expected=expected):
        Supports.of(support, STRUCTURE)


def test_draws_outside_are_refused_by_name():
    rows = torch.ones(10, STRUCTURE.dim)
    rows[3:5, 2] = -1
    with refused("draws['sigma']", "2 of 10 draws such as -1"):
        check(rows, STRUCTURE, {"sigma": "positive"})


@pytest.mark.parametrize(
    ("support", "outside"),
    [((-3.0, 7.0), [0, 4]), ((-3.0, None), [0]), ((None, 7.0), [4]), ("real", [])],
)
def test_what_is_outside_is_refused_on_both_sides(support, outside):
    structure = Structure(("a",), ((),))
    for k, value in enumerate([-3.1, -3.0, 0.0, 7.0, 7.1]):
        with refused("draws['a']", "draws such as") if k in outside else nullcontext():
            check(tensor([[value]]), structure, support)


def test_what_is_no_simplex_or_not_in_order_is_refused():
    structure = Structure(("a",), ((2, 3),))
    check(tensor([[0.2, 0.3, 0.5, 1.0, 0.0, 0.0]]), structure, "simplex")
    check(tensor([[0.2, 0.3, 0.5, -1.0, 0.0, 7.0]]), structure, "ordered")
    many = Structure(("a",), ((1000,),))
    check(torch.full((1, 1000), 0.001), many, "simplex")
    for wrong, of, support in (
        (tensor([[0.2, 0.3, 0.6, 1.0, 0.0, 0.0]]), structure, "simplex"),
        (tensor([[0.2, 0.3, 0.5, 1.5, -0.5, 0.0]]), structure, "simplex"),
        (torch.full((1, 1000), 0.00101), many, "simplex"),
        (tensor([[0.2, 0.3, 0.25, 0.0, 1.0, 2.0]]), structure, "ordered"),
    ):
        with refused("draws['a']", "1 of 1 draws"):
            check(wrong, of, support)
