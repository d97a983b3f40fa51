r"""Numbers in words."""

import math

import pytest

from limbeck.compression.fidelity import tables as wording
from limbeck.compression.fidelity.measures import Figure


@pytest.mark.parametrize(
    ("name", "value", "error", "text"),
    [
        ("accuracy", 0.98671, 0.00114, "98.67 ± 0.11%"),
        ("accuracy", 0.987, 0.0, "98.70%"),
        ("accuracy", 1.0, math.nan, "100.0%"),
        ("accuracy", 0.0, 0.0, "0.00%"),
        ("accuracy", 0.912345, 0.000012, "91.2345 ± 0.0012%"),
        ("rmse", 53211.3, 812.4, "53,211 ± 812"),
        ("rmse", 3.2e-9, 1.5e-10, "3.2e-09 ± 1.5e-10"),
        ("rmse", 0.1, 1e-17, "0.1000"),
        ("kl", 0.01234, 0.00056, "0.01234 ± 0.00056"),
        ("r2", math.nan, math.nan, "–"),
    ],
)
def test_figures_have_the_places_that_their_errors_allow(name, value, error, text):
    assert wording.figure_in_words(name, Figure(value, error)) == text


def test_differences_have_a_sign_and_may_have_points():
    assert wording.figure_in_words("accuracy", Figure(-0.008, 0.003), signed=True) == "-0.80 ± 0.30"
    said = wording.figure_in_words("accuracy", Figure(0.008, 0.003), signed=True, points=" points")
    assert said == "+0.80 ± 0.30 points"
    assert (
        wording.figure_in_words("rmse", Figure(0.5, 0.1), signed=True, points=" points")
        == "+0.50 ± 0.10"
    )
    assert wording.figure_in_words("rmse", None) == ""
    assert wording.figure_in_words("rmse", Figure(math.nan, 1.0), signed=True) == ""


def test_units_fit_the_number():
    assert [wording.size_in_words(n) for n in (12, 999, 1000, 56_700, 4.06e6, 2.5e11)] == [
        "12 bytes", "999 bytes", "1 kB", "56.7 kB", "4.06 MB", "250 GB",
    ]  # fmt: skip
    assert [wording.span(s) for s in (2e-7, 4e-5, 0.0123, 0.5, 72)] == [
        "0.2 µs", "40 µs", "12.3 ms", "500 ms", "72 s",
    ]  # fmt: skip
