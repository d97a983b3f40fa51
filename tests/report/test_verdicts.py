r"""A requirement is met or not, and words never say otherwise."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limbeck.report.summary import required
from tests.refusals import refused

NUMBERS = st.floats(-1e6, 1e6)


@given(NUMBERS, NUMBERS, st.booleans())
def test_it_holds_on_the_right_side_of_the_bound(value, bound, most):
    found = required("kl", value, bound, most=most)
    assert found["held"] == (value <= bound if most else value >= bound)
    word = "at " if found["held"] else ("above" if most else "below")
    assert f", {word}" in found["words"]


def test_rounding_does_not_hide_a_failure():
    found = required("agreement", 0.97999999, 0.98)
    assert not found["held"]
    assert "0.97999999" in found["words"]


@pytest.mark.parametrize("value", [None, math.nan])
def test_what_is_not_known_has_not_been_met(value):
    found = required("mean_error", value, 0.1, most=True)
    assert not found["held"]
    assert found["words"] == ("mean error is unchecked: it could not be computed; 0.1 was required")


def test_a_bound_is_a_number():
    with refused("kl", expected="a finite number"):
        required("kl", 0.1, math.nan)
