r"""`--require`: what it means, for figures of either kind."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limbeck.cli.requirements import (
    Requirement,
    check_requirements,
    figures,
    parse_requirements,
)
from tests.refusals import refused


@pytest.mark.parametrize(
    ("text", "verb", "expected"),
    [
        ("agreement=0.98", "compress", Requirement("agreement", 0.98, False)),
        ("kl=0.05", "compress", Requirement("kl", 0.05, True)),
        ("kl>=0.05", "compress", Requirement("kl", 0.05, False)),
        (" bytes <= 1e5 ", "compress", Requirement("bytes", 1e5, True)),
        ("mean_error=0.01", "condense", Requirement("mean_error", 0.01, True)),
        ("ess=400", "condense", Requirement("ess", 400.0, False)),
        ("kl=0.05", "condense", Requirement("kl", 0.05, True)),
        ("std_error=0.1", "logz", Requirement("std_error", 0.1, True)),
        ("lower=3", "logz", Requirement("lower", 3.0, False)),
        ("upper=5", "logz", Requirement("upper", 5.0, True)),
        ("log_prob>=-90", "normalize", Requirement("log_prob", -90.0, False)),
    ],
)
def test_equal_means_at_least_as_good(text, verb, expected):
    assert parse_requirements([text], verb) == [expected]


@pytest.mark.parametrize("text", ["agreement", "agreement=", "agreement=x", "=3", "kl<3", "kl=nan"])
def test_what_cannot_be_read_is_refused(text):
    with refused("--require"):
        parse_requirements([text], "compress")


def test_a_name_of_another_verb_is_unknown():
    with refused("--require", expected="'std_error'"):
        parse_requirements(["std_eror=1"], "logz")
    with refused("--require", expected="'mean_error'"):
        parse_requirements(["agreement=1"], "condense")


STUDENT = {"name": "MLP", "role": "student", "parameters": 7, "bytes": 99}
FIDELITY = {
    "measures": {"student": {"agreement": [0.97, 0.01], "kl": [0.2, 0.1]}},
    "retention": 0.9,
}
CONTENT = {"verb": "compress", "models": [STUDENT], "fidelity": FIDELITY}


def test_figures_of_a_result():
    found = figures(CONTENT)
    assert (found["agreement"], found["kl"], found["retention"], found["bytes"]) == (
        0.97,
        0.2,
        0.9,
        99,
    )
    assert found["accuracy"] is None


def test_of_two_models_the_figures_are_the_students():
    teacher = {"name": "Forest", "role": "teacher", "parameters": 7000, "bytes": 9900}
    found = figures({**CONTENT, "models": [STUDENT, teacher]})
    assert (found["parameters"], found["bytes"]) == (7, 99)


def test_a_bag_of_draws_is_as_good_as_its_worst_coordinate():
    agreement = {"kl": 0.2, "max_error": 0.5, "log_prob": [-3.0, -4.0], "bytes": [6400, 96]}
    diagnostics = {"r_hat": [1.01, None, 1.2], "ess": [900.0, 400.0, None]}
    content = {"verb": "condense", "models": [STUDENT], "diagnostics": diagnostics}
    found = figures({**content, "agreement": agreement})
    assert (found["r_hat"], found["ess"]) == (1.2, 400.0)
    assert (found["log_prob"], found["bytes"]) == (-4.0, 96)  # not those of the draws
    assert (found["kl"], found["max_error"]) == (0.2, 0.5)
    unlabelled = figures({**content, "agreement": {**agreement, "log_prob": None}})
    assert unlabelled["log_prob"] is None


def test_figures_of_log_z_are_those_of_the_first_estimate():
    first = {"value": 4.0, "std_error": 0.1, "bounds": {"lower": [3.0, 0.2], "upper": None}}
    second = {"value": 9.0, "std_error": 0.9, "bounds": {"lower": None, "upper": [9.5, 0.3]}}
    found = figures({"verb": "logz", "models": [], "log_z": [first, second]})
    assert found == {"value": 4.0, "std_error": 0.1, "lower": 3.0, "upper": None}
    held_out = {"student": -80.0, "target": -70.0}
    content = {"verb": "normalize", "models": [STUDENT], "log_z": [first], "held_out": held_out}
    found = figures({**content, "divergence": {"value": 0.3, "std_error": 0.01}})
    assert (found["log_prob"], found["divergence"], found["std_error"]) == (-80.0, 0.3, 0.1)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("agreement=0.97", True),
        ("agreement=0.9701", False),
        ("kl=0.2", True),
        ("kl=0.19", False),
        ("parameters<=7", True),
        ("parameters>=8", False),
        ("accuracy=0", False),
    ],
)
def test_bounds_are_inclusive_and_what_is_not_known_is_not_met(text, holds):
    (verdict,) = check_requirements(parse_requirements([text], "compress"), CONTENT)
    assert verdict["held"] == holds


def verdict_on(value, bound, most):
    content = {"verb": "normalize", "models": [], "divergence": {"value": value}}
    return check_requirements([Requirement("divergence", bound, most)], content)[0]


NUMBERS = st.floats(-1e6, 1e6)


@given(NUMBERS, NUMBERS, st.booleans())
def test_it_holds_on_the_right_side_of_the_bound(value, bound, most):
    verdict = verdict_on(value, bound, most)
    assert verdict["held"] == (value <= bound if most else value >= bound)
    word = "at " if verdict["held"] else ("above" if most else "below")
    assert f", {word}" in verdict["words"]


def test_rounding_does_not_hide_a_failure():
    verdict = verdict_on(0.97999999, 0.98, most=False)
    assert not verdict["held"]
    assert "0.97999999" in verdict["words"]


@pytest.mark.parametrize("value", [None, math.nan])
def test_what_is_not_known_has_not_been_met(value):
    verdict = verdict_on(value, 0.1, most=True)
    assert not verdict["held"]
    assert verdict["words"] == (
        "divergence is unchecked: it could not be computed; 0.1 was required"
    )
