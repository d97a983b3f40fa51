r"""The result of an estimate: intervals, bounds that are numbers, verdicts, the printed table."""

from __future__ import annotations

import copy
import json
import math

import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from limbeck.normalization.estimate import Bound, LogPartition, Verdict
from tests.refusals import refused


def estimate(**changes) -> LogPartition:
    given_ = {"value": 451.27, "std_error": 0.0151, "method": "bridge", "verdict": Verdict()}
    return LogPartition(**given_ | changes)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.997])
def test_intervals_have_student_s_quantiles(level):
    low, high = estimate(degrees=7).interval(level)
    half = scipy.stats.t(7).ppf((1 + level) / 2) * 0.0151
    assert (low, high) == pytest.approx((451.27 - half, 451.27 + half))
    low, high = estimate().interval(level)
    assert high - low == pytest.approx(2 * scipy.stats.norm.ppf((1 + level) / 2) * 0.0151, rel=1e-6)


def test_an_exact_value_has_no_width_and_an_unknown_error_an_infinite_one():
    assert estimate(std_error=0.0).interval() == (451.27, 451.27)
    assert estimate(std_error=math.inf).interval() == (-math.inf, math.inf)


@pytest.mark.parametrize("level", [0, 1, 95, -0.5, math.nan, "95%"])
def test_levels_are_probabilities(level):
    with refused("level", expected="a number between 0 and 1"):
        estimate().interval(level)


def test_a_bound_is_a_number_with_an_error():
    bound = Bound(459.01, 0.067)
    assert bound >= 459
    assert bound - 9.01 == pytest.approx(450)
    assert bound.std_error == 0.067
    assert repr(bound) == "459.010 ± 0.067"
    again = copy.deepcopy(bound)
    assert again == bound
    assert again.std_error == bound.std_error
    assert json.dumps([bound]) == "[459.01]"


def test_a_verdict_is_its_reasons():
    assert Verdict().trustworthy
    assert Verdict()
    assert str(Verdict()) == "trustworthy"
    verdict = Verdict(("too few", "too far"))
    assert not verdict.trustworthy
    assert not verdict
    assert str(verdict) == "doubtful: too few; too far"
    assert verdict.state == "doubtful"


def test_a_check_that_did_not_run_is_not_one_that_passed():
    verdict = Verdict((), ("no second start",))
    assert verdict.state == "unchecked"
    assert not verdict.trustworthy
    assert not verdict
    assert verdict.reasons == ("no second start",)
    assert str(verdict) == "unchecked: no second start"
    both = Verdict(("chains drift",), ("no second start",))
    assert both.state == "doubtful"
    assert both.reasons == ("chains drift", "no second start")
    z = estimate(verdict=verdict)
    assert str(z).endswith(
        "log Z = 451.270 ± 0.015, by bridge sampling, is unchecked: no second start."
    )
    assert (z.to_dict()["state"], z.to_dict()["trustworthy"]) == ("unchecked", False)


def test_it_prints_as_a_table_that_ends_with_a_sentence():
    z = estimate(
        lower_bound=Bound(449.0, 0.02),
        upper_bound=Bound(453.5, 0.03),
        diagnostics={"ess": 9999.4, "iterations": 4, "acceptance": None},
        samples=10_000,
        sweeps=20_000_000,
        seconds=1.5,
    )
    *_, last = str(z).splitlines()
    assert last == (
        "By bridge sampling, log Z is 451.270 ± 0.015 (95%: 451.240 to 451.300); all checks passed."
    )
    for part in ("449.000 ± 0.020", "453.500 ± 0.030", "20,000,000", "trustworthy", "9,999 ", "–"):
        assert part in str(z)


def test_a_doubtful_one_ends_with_its_reasons():
    z = estimate(verdict=Verdict(("chains drift", "there is no overlap")))
    assert str(z).endswith(
        "Do not trust log Z = 451.270 ± 0.015, by bridge sampling: chains drift; and there is no "
        "overlap."
    )
    exact = estimate(method="exact", std_error=0.0)
    assert str(exact).endswith("log Z is 451.270000, exactly: by enumeration.")


@given(st.floats(-1e4, 1e4), st.one_of(st.floats(0, 1e3), st.just(math.inf), st.just(1e-300)))
def test_any_numbers_can_be_printed_and_written(value, error):
    z = estimate(value=value, std_error=error, lower_bound=Bound(value, error))
    assert "log Z" in str(z)
    read = json.loads(json.dumps(z.to_dict(), allow_nan=False))
    assert read["value"] == value
    assert read["bounds"]["upper"] is None


def test_the_difference_of_two_estimates_adds_variances_and_doubts():
    one = LogPartition(5.0, 0.3, "bridge", Verdict(), seed=1, degrees=10)
    other = LogPartition(2.0, 0.4, "ais", Verdict(("a doubt",), ("a check",)), seed=2, degrees=10)
    ratio = one - other
    assert float(ratio) == 3.0
    assert ratio.std_error == pytest.approx(0.5)
    assert ratio.degrees == pytest.approx(0.5**4 / (0.3**4 / 10 + 0.4**4 / 10))
    assert ratio.verdict == Verdict(("a doubt",), ("a check",))
    assert "log Z₁ − log Z₂" in str(ratio)


def test_estimates_that_share_random_numbers_have_no_difference():
    one, other = (LogPartition(v, 0.1, "bridge", Verdict(), seed=3) for v in (5.0, 2.0))
    with refused("seed", "two estimates with seed 3"):
        one - other
    exact = LogPartition(2.0, 0.0, "exact", Verdict(), seed=3)
    assert (one - exact).std_error == pytest.approx(0.1)
    with pytest.raises(TypeError):
        one - 2.0


def test_the_difference_of_exact_values_is_exact():
    one, other = (LogPartition(v, 0.0, "exact", Verdict()) for v in (5.0, 2.0))
    assert (one - other).interval() == (3.0, 3.0)
    assert "3.000000, exactly" in (one - other).sentence()
