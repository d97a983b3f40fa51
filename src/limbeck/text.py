r"""Ratios as text."""

from __future__ import annotations


def compared(
    teacher: float | None, student: float | None, less: str, more: str, same: str, times: str = "×"
) -> str:
    r"""The ratio of the teacher's cost to the student's as text; "" if it is unknown.

    >>> compared(6.1, 0.1, "faster", "slower", "as fast"), compared(1, 2, "less", "more", "same")
    ('61× faster', '2.0× more')
    """
    if not teacher or not student:
        return ""
    ratio = teacher / student
    if 1 / 1.05 < ratio < 1.05:
        return same
    factor = max(ratio, 1 / ratio)
    digits = ",.0f" if factor >= 9.95 else ".1f"
    return f"{factor:{digits}}{times} {less if ratio > 1 else more}"
