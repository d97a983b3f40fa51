r"""Ratios say how much, and which way."""

import pytest

from limbeck.text import compared


@pytest.mark.parametrize(
    ("teacher", "student", "text"),
    [
        (6.1, 0.1, "61× faster"),
        (0.1, 6.1, "61× slower"),
        (9.94, 1, "9.9× faster"),
        (9.96, 1, "10× faster"),
        (1.02, 1, "as fast"),
        (1, 1.02, "as fast"),
        (1.1, 1, "1.1× faster"),
        (1, 1.1, "1.1× slower"),
        (12345, 1, "12,345× faster"),
        (None, 1, ""),
        (1, None, ""),
        (0, 1, ""),
    ],
)
def test_ratios_say_which_way(teacher, student, text):
    assert compared(teacher, student, "faster", "slower", "as fast") == text
    in_words = compared(teacher, student, "faster", "slower", "as fast", " times")
    assert in_words == text.replace("×", " times")
