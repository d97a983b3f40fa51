r"""Warnings that are raised while an estimate runs: they count against it."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["recorded_warnings"]

ABOUT_CODE = (
    DeprecationWarning,
    PendingDeprecationWarning,
    FutureWarning,
    ImportWarning,
    ResourceWarning,
    SyntaxWarning,
)
r"""Kinds of warnings that say nothing about numbers."""


@contextmanager
def recorded_warnings() -> Iterator[list[str]]:
    r"""A list that holds, afterwards, what was warned of: one text for each place in the code.

    The warnings themselves are raised again at the end, once for each place, and meet the filters
    that are set outside. A filter that hides a warning does not hide it from the list.
    """
    texts: list[str] = []
    raised: dict[tuple[type[Warning], str, int], warnings.WarningMessage] = {}
    try:
        with warnings.catch_warnings(record=True) as every:
            warnings.simplefilter("always")
            yield texts
    except BaseException:
        with contextlib.suppress(Warning):  # the error is more important than what came before
            _raise_again(every)
        raise
    for each in every:
        raised.setdefault((each.category, each.filename, each.lineno), each)
    texts += [
        f"a warning was raised while the estimate ran: {str(each.message).strip().rstrip('.')}"
        for each in raised.values()
        if not issubclass(each.category, ABOUT_CODE) and not _of_the_compiler(each.filename)
    ]
    _raise_again(list(raised.values()))


def _raise_again(every: list[warnings.WarningMessage]) -> None:
    for each in every:
        warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def _of_the_compiler(filename: str) -> bool:
    r"""Whether it comes from torch's own compiler, which warns of speed."""
    return "/torch/_" in filename.replace("\\", "/")
