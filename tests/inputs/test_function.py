r"""Inputs from a user's function."""

import pytest
import torch

from limbeck.arrays import Batch
from limbeck.inputs import Function
from tests.refusals import refused


def test_batches_keep_all_that_they_have():
    given = Batch(torch.zeros(3), torch.ones(3), torch.full((3,), 0.5), torch.arange(3))
    batch = Function(lambda n: given)(3)
    for one, other in zip(batch, given, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("fn", "argument", "received", "expected"),
    [
        (lambda n: torch.zeros(n - 1), "fn", "^2 rows$", "as many rows as .*: 3"),
        (lambda n: torch.full((n,), torch.inf), "fn", "3 NaN or infinite values", ""),
        (lambda n: [torch.zeros(2)] * n, "fn", "a draw of type list", ""),
        (lambda n: "x", "fn", "^a str$", ""),
        (lambda n: {}, "fn", "an empty dict", ""),
        (lambda n: Batch(torch.zeros(n), y=torch.zeros(1)), "fn.y", "^1 rows$", ""),
        (
            lambda n: Batch(torch.zeros(n), weight=torch.full((n,), torch.nan)),
            "fn.weight",
            "^3",
            "",
        ),
        (
            lambda n: Batch(torch.zeros(n), index=torch.zeros(1)),
            "fn.index",
            "^1 rows$",
            "",
        ),
    ],
)
def test_bad_outputs_are_refused(fn, argument, received, expected):
    with refused(argument, received, expected=expected):
        Function(fn)(3)


def test_errors_of_the_function_itself_are_its_own():
    def fn(n):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        Function(fn)(3)
