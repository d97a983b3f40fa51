r"""Inputs one after another."""

import pytest
import torch

from limbeck.arrays import check_alike, join
from tests.refusals import refused


def test_parts_are_joined_by_name():
    one = {"a": torch.zeros(2), "b": torch.zeros(2, 3)}
    other = {"b": torch.ones(1, 3), "a": torch.ones(1)}
    whole = join([one, other])
    assert whole["a"].tolist() == [0, 0, 1]
    assert whole["b"].shape == (3, 3)
    assert join([one]) is one


@pytest.mark.parametrize(
    ("other", "received"),
    [
        (
            torch.zeros(1, 3),
            r"a of \(n, 2\) float32 and b of \(n, 3\) float32",
        ),
        (torch.zeros(1, 2, dtype=torch.int64), r"b of \(n, 2\) int64"),
        ({"c": torch.zeros(1, 2)}, r"b of \{c: \(n, 2\) float32\}"),
        (None, "b of nothing"),
    ],
)
def test_what_differs_is_refused(other, received):
    with refused("s", received):
        check_alike([torch.zeros(4, 2), other], ["a", "b"], "s")
