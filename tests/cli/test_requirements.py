r"""`--require`: what it means, for figures of either kind."""

import pytest

from limbeck.cli.requirements import Requirement, figures, held, parsed
from limbeck.errors import ArgumentError


@pytest.mark.parametrize(
    ("text", "verb", "expected"),
    [
        ("agreement=0.98", "compress", Requirement("agreement", 0.98, False)),
        ("kl=0.05", "compress", Requirement("kl", 0.05, True)),
        ("kl>=0.05", "compress", Requirement("kl", 0.05, False)),
        (" bytes <= 1e5 ", "compress", Requirement("bytes", 1e5, True)),
        ("mean_error=0.01", "condense", Requirement("mean_error", 0.01, True)),
        ("ess=400", "condense", Requirement("ess", 400.0, False)),
        ("std_error=0.1", "logz", Requirement("std_error", 0.1, True)),
        ("log_prob>=-90", "normalize", Requirement("log_prob", -90.0, False)),
    ],
)
def test_equal_means_at_least_as_good(text, verb, expected):
    assert parsed([text], verb) == [expected]


@pytest.mark.parametrize("text", ["agreement", "agreement=", "agreement=x", "=3", "kl<3", "kl=nan"])
def test_what_cannot_be_read_is_refused(text):
    with pytest.raises(ArgumentError, match="--require"):
        parsed([text], "compress")


def test_a_name_of_another_verb_is_unknown():
    with pytest.raises(ArgumentError, match="'std_error'"):
        parsed(["std_eror=1"], "logz")
    with pytest.raises(ArgumentError, match="'mean_error'"):
        parsed(["agreement=1"], "condense")


STUDENT = {"name": "MLP", "role": "student", "parameters": 7, "bytes": 99}
FIDELITY = {"measures": {"student": {"agreement": [0.97, 0.01], "kl": [0.2, 0.1]}}, "kept": 0.9}
CONTENT = {"verb": "compress", "models": [STUDENT], "fidelity": FIDELITY}


def test_figures_of_a_result():
    found = figures(CONTENT)
    assert (found["agreement"], found["kl"], found["kept"], found["bytes"]) == (0.97, 0.2, 0.9, 99)
    assert found["accuracy"] is None


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
    (verdict,) = held(parsed([text], "compress"), CONTENT)
    assert verdict["held"] == holds
