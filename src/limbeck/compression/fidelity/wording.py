r"""Numbers as people read them: with errors, as ratios, as shares, in units."""

from __future__ import annotations

import math

from limbeck.compression.fidelity.measures import MEASURES, Figure

__all__ = ["figure", "percent", "short", "size", "span"]

ROUNDING = 1e-12
r"""Errors that are smaller than this, of the value or of 100%, are none."""


def figure(name: str, found: Figure | None, *, signed: bool = False, points: str = "") -> str:
    r"""A measure with its error, to two figures of the error.

    Arguments:
        name: The measure.
        found: Its value and standard error; None gives nothing.
        signed: Whether it is a difference, which has a sign and no percent.
        points: What differences of percentages are called.

    >>> figure("accuracy", Figure(0.98671, 0.00114)), figure("r2", Figure(-0.5, 0.012), signed=True)
    ('98.67 ± 0.11%', '-0.500 ± 0.012')
    """
    if found is None or math.isnan(found.value):
        return "" if signed or found is None else "–"
    share = MEASURES[name].share
    value, error = (100 * part if share else part for part in found)
    sign = "+" if signed else ""
    known = max(ROUNDING * abs(value), ROUNDING * share) < error < math.inf
    places = max(1 - _magnitude(error) if known else 3 - _magnitude(value), 0)
    if share and not known:
        places = min(places, 2)
    if places > 6:  # of small units, or tiny errors
        return f"{value:{sign}.4g}" + f" ± {error:.2g}" * known
    text = f"{value:{sign},.{places}f}" + (f" ± {error:,.{places}f}" if known else "")
    return text + (points if signed else "%") * share


def _magnitude(value: float) -> int:
    return math.floor(math.log10(abs(value))) if value else 0


def short(name: str, value: float) -> str:
    r"""A measure without its error, for a sentence."""
    if MEASURES[name].share:
        return percent(value)
    return f"{value:.3f}" if name in ("r2", "teacher_r2", "average_precision") else f"{value:,.4g}"


def percent(value: float) -> str:
    r"""A share, with as many places as keep what is below 100% below it.

    >>> percent(0.9871), percent(0.99996), percent(1.0)
    ('98.7%', '99.996%', '100.0%')
    """
    places = 1
    while value < 1 and round(100 * value, places) >= 100 and places < 6:
        places += 1
    return f"{value:.{places}%}"


def size(count: float) -> str:
    r"""Bytes.

    >>> size(210_000), size(512)
    ('210 kB', '512 bytes')
    """
    return (
        f"{count:,.0f} bytes" if count < 1000 else _scaled(count, {"GB": 1e9, "MB": 1e6, "kB": 1e3})
    )


def span(seconds: float) -> str:
    r"""Seconds.

    >>> span(0.0123), span(4e-5)
    ('12.3 ms', '40 µs')
    """
    return _scaled(seconds, {"s": 1.0, "ms": 1e-3, "µs": 1e-6})


def _scaled(value: float, units: dict[str, float]) -> str:
    unit = next((name for name, scale in units.items() if value >= scale), list(units)[-1])
    scaled = value / units[unit]
    return f"{scaled:,.0f} {unit}" if scaled >= 100 else f"{scaled:.3g} {unit}"
