r"""Inputs from a user's function."""

import pytest
import torch

from limbeck.arrays import Batch
from limbeck.errors import ArgumentError
from limbeck.inputs import Function


def test_batches_keep_all_that_they_have():
    given = Batch(torch.zeros(3), torch.ones(3), torch.full((3,), 0.5), torch.arange(3))
    batch = Function(lambda n: given)(3)
    for one, other in zip(batch, given, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda n: torch.zeros(n - 1), "fn: expected as many rows as .*: 3.*, got 2 rows"),
        (lambda n: torch.full((n,), torch.inf), "fn: expected .*, got 3 NaN or infinite values"),
        (lambda n: [torch.zeros(2)] * n, "fn: expected a Batch.*, got a draw of type list"),
        (lambda n: "x", "fn: expected .*, got a str"),
        (lambda n: {}, "fn: expected .*, got an empty dict"),
        (lambda n: Batch(torch.zeros(n), y=torch.zeros(1)), r"fn\.y: expected .*, got 1 rows"),
        (
            lambda n: Batch(torch.zeros(n), weight=torch.full((n,), torch.nan)),
            r"fn\.weight: expected .*, got 3",
        ),
        (
            lambda n: Batch(torch.zeros(n), index=torch.zeros(1)),
            r"fn\.index: expected .*, got 1 rows",
        ),
    ],
)
def test_bad_outputs_are_refused(fn, message):
    with pytest.raises(ArgumentError, match=message):
        Function(fn)(3)


def test_errors_of_the_function_itself_are_its_own():
    def fn(n):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        Function(fn)(3)
