r"""`refused`: the block must raise an `ArgumentError` about one argument."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from limbeck.errors import ArgumentError


@contextmanager
def refused(
    argument: str, received: str = "", *, expected: str = ""
) -> Iterator[pytest.ExceptionInfo[ArgumentError]]:
    r"""Check the error's argument and, by regular expressions, the values that it shows."""
    with pytest.raises(ArgumentError) as caught:
        yield caught
    error = caught.value
    assert error.argument == argument, str(error)
    assert re.search(received, str(error.received)), str(error)
    assert re.search(expected, str(error.expected)), str(error)
