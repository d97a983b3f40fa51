r"""Numbers as arguments."""

import numpy as np
import pytest

from limbeck.arguments import Number, integer
from tests.refusals import refused


@pytest.mark.parametrize("value", [1, 0.5, np.float32(0.25), np.int64(1)])
def test_numbers_of_any_type_are_taken(value):
    assert Number(0, 1)("swap", value, "a probability") == value


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "0.5", None, [0.5]])
def test_other_values_are_refused_by_name(value):
    with refused("swap", expected="a probability"):
        Number(0, 1)("swap", value, "a probability")


def test_whole_numbers_are_not_truncated():
    assert integer("k", np.int32(4), "a positive integer", least=1) == 4
    for value in (4.0, True, "4", None, 0):
        with refused("k", expected="a positive integer"):
            integer("k", value, "a positive integer", least=1)
