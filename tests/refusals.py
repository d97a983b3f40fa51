r"""`refused`, `raises_about`, `warns_about`: errors and warnings by the values they show."""

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


@contextmanager
def raises_about(
    kind: type[BaseException], *values: object
) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    r"""Check an error's class and that it shows values: names of files, fields, shapes, counts."""
    with pytest.raises(kind) as caught:
        yield caught
    missing = [str(value) for value in values if str(value) not in str(caught.value)]
    assert not missing, f"{missing} not in: {caught.value}"


@contextmanager
def warns_about(*values: object, kind: type[Warning] = UserWarning) -> Iterator[list]:
    r"""Check that one of the block's warnings is of a class and shows all the values."""
    with pytest.warns(kind) as caught:
        yield caught
    texts = [str(warning.message) for warning in caught]
    shown = any(all(str(value) in text for value in values) for text in texts)
    assert shown, f"no warning has {values}: {texts}"
