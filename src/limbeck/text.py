r"""How much more or less, in words."""

from __future__ import annotations

__all__ = ["compared"]


def compared(
    teacher: float | None,
    student: float | None,
    less: str,
    more: str,
    same: str,
    times: str = "×",
) -> str:
    r"""How much less, or more, of something a student needs; nothing where that is not known.

    Arguments:
        teacher: What the teacher needs.
        student: What the student needs.
        less: The word for a student that needs less, such as "faster".
        more: The word for one that needs more.
        same: The words for no difference.
        times: What follows the number. Default: "×".

    >>> compared(6.1, 0.1, "faster", "slower", "as fast"), compared(1, 2, "less", "more", "same")
    ('61× faster', '2.0× more')
    >>> compared(1, 3.1, "faster", "slower", "as fast", " times")
    '3.1 times slower'
    """
    if not teacher or not student:
        return ""
    ratio = teacher / student
    if 1 / 1.05 < ratio < 1.05:
        return same
    number = max(ratio, 1 / ratio)
    shown = f"{number:,.0f}" if number >= 9.95 else f"{number:.1f}"
    return f"{shown}{times} {less if ratio > 1 else more}"
