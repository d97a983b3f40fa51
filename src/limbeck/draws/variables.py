r"""The variables of a posterior by name, and those that are wanted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from limbeck.errors import ArgumentError

__all__ = ["Found", "choose", "group"]


class Found(NamedTuple):
    r"""What was found in a posterior.

    Attributes:
        variables: Those that are wanted, by name; a bare array has the name ''.
        layout: How their axes are to be read.
        notes: What there is to tell the user.
    """

    variables: Mapping[str, Any]
    layout: str
    notes: Sequence[str] = ()


def choose(known: Iterable[str], var_names: str | Sequence[str] | None) -> list[str]:
    r"""The names that are wanted, in the order in which they are.

    Arguments:
        known: All names; only '' for a bare array.
        var_names: Names to take; or, with '~' before each, to leave out; None takes all.

    >>> choose(["alpha", "beta", "mu"], "~mu"), choose(["alpha", "beta"], ["beta", "alpha"])
    (['alpha', 'beta'], ['beta', 'alpha'])
    """
    known = list(known)
    if var_names is None:
        return known
    names = [var_names] if isinstance(var_names, str) else list(var_names)
    if known == [""]:
        raise ArgumentError("var_names", repr(names), "None for draws without names")
    out = [name[1:] for name in names if name not in known and str(name).startswith("~")]
    if out and len(out) < len(names):
        raise ArgumentError("var_names", repr(names), "names to take, or names to leave out by '~'")
    for name in out or names:
        if name not in known:
            raise ArgumentError.unknown("var_names", name, known)
    chosen = [name for name in known if name not in out] if out else list(dict.fromkeys(names))
    if not chosen:
        raise ArgumentError("var_names", repr(names), f"at least one of {', '.join(known)}")
    return chosen


def group(value: Any) -> dict[str, Any] | None:
    r"""The variables of a dict, an xarray data set, or what has them under "posterior".

    ArviZ's InferenceData and xarray's DataTree are such. None is said of anything else.
    """
    inner = _posterior_of(value)
    variables = _variables_of(value if inner is None else inner)
    if variables is None:
        return None
    found = {name: variables[name] for name in variables}
    groups = [name for name, variable in found.items() if _variables_of(variable) is not None]
    if not found or groups or not all(isinstance(name, str) and name for name in found):
        held = ", ".join(map(repr, found)) or ", ".join(map(repr, value)) or "nothing"
        received = f"a {type(value).__name__} of {held}"
        raise ArgumentError("posterior", received, "arrays by name, or such under 'posterior'")
    return found


def _variables_of(value: Any) -> Mapping[str, Any] | None:
    own = getattr(value, "data_vars", None)
    own = own if isinstance(own, Mapping) else value
    return own if isinstance(own, Mapping) else None


def _posterior_of(value: Any) -> Any:
    if not hasattr(value, "__getitem__"):
        return None
    try:
        inner = value["posterior"]
    except Exception:  # objects have their own ways to say that there is no such thing
        return None
    return None if _variables_of(inner) is None else inner
