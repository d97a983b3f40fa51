r"""The numbers of the source text: G. Papamakarios, Distilling Model Knowledge, 2015."""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "AIS_2008",
    "CHAPTER_2",
    "CHAPTER_2_TEACHER",
    "CHAPTER_4",
    "LOG_Z",
    "Compressed",
    "Printed",
    "Row",
]

LOG_Z = 451.28
r"""log Z of CD25(500) by Salakhutdinov & Murray, 2008, with which the text normalises the RBM."""

AIS_2008 = (450.97, 451.52)
r"""Their interval of three standard deviations."""


class Row(NamedTuple):
    r"""What the text prints of a NADE: values, and intervals of three standard deviations."""

    test: float
    upper: float
    lower: float
    importance: tuple[float, float, float]
    bridge: tuple[float, float, float]


CHAPTER_4 = {
    (250, "kl"): Row(-94.75, 459.01, 442.80, (450.86, 450.06, 451.30), (451.27, 451.14, 451.39)),
    (500, "kl"): Row(-93.19, 458.20, 442.98, (450.96, 449.94, 451.46), (451.28, 451.16, 451.39)),
    (750, "kl"): Row(-92.93, 457.66, 443.41, (450.79, 450.47, 451.04), (451.22, 451.11, 451.33)),
    (1000, "kl"): Row(-92.49, 457.70, 443.74, (450.79, 450.40, 451.07), (451.24, 451.13, 451.35)),
    (250, "se"): Row(-94.62, 459.71, 439.21, (450.81, 449.77, 451.31), (451.24, 451.10, 451.38)),
    (500, "se"): Row(-93.83, 458.87, 440.85, (450.96, 450.33, 451.34), (451.30, 451.17, 451.43)),
    (750, "se"): Row(-93.61, 458.72, 439.19, (450.95, 450.40, 451.30), (451.21, 451.08, 451.33)),
    (1000, "se"): Row(-93.01, 458.52, 438.11, (451.51, 450.09, 452.08), (451.36, 451.23, 451.49)),
}  # fmt: skip
r"""Tables of chapter 4 by hidden units and loss: KL divergence or square error."""


class Printed(NamedTuple):
    r"""A number as the text prints it: a value, and two standard deviations."""

    value: float
    bar: float


class Compressed(NamedTuple):
    r"""What the text prints of a small net: test figures, and those minus the direct net's."""

    accuracy: Printed
    log_prob: Printed
    difference_accuracy: Printed | None = None
    difference_log_prob: Printed | None = None


def _compressed(*numbers: float) -> Compressed:
    return Compressed(*map(Printed, numbers[::2], numbers[1::2]))


CHAPTER_2_TEACHER = _compressed(98.67, 0.23, -0.053, 0.011)
r"""The ensemble that chapter 2 compresses."""

CHAPTER_2 = {
    "labels-all": _compressed(97.14, 0.33, -0.182, 0.028),
    "labels-tenth": _compressed(94.43, 0.46, -0.321, 0.035),
    "mnist-all-ce": _compressed(97.46, 0.31, -0.110, 0.017, 0.32, 0.33, 0.072, 0.023),
    "mnist-all-dse": _compressed(96.50, 0.37, -0.184, 0.025, -0.64, 0.35, -0.002, 0.024),
    "mnist-tenth-ce": _compressed(94.63, 0.45, -0.232, 0.024, 0.20, 0.39, 0.089, 0.024),
    "mnist-tenth-dse": _compressed(96.36, 0.37, -0.198, 0.026, 1.93, 0.40, 0.124, 0.027),
    "nade-all-ce": _compressed(97.60, 0.31, -0.083, 0.011, 0.46, 0.30, 0.099, 0.022),
    "nade-all-dse": _compressed(96.27, 0.38, -0.177, 0.022, -0.87, 0.38, 0.005, 0.024),
    "nade-tenth-ce": _compressed(96.64, 0.36, -0.113, 0.012, 2.21, 0.40, 0.209, 0.029),
    "nade-tenth-dse": _compressed(95.33, 0.42, -0.209, 0.024, 0.90, 0.44, 0.112, 0.029),
    "noise-all-ce": _compressed(91.98, 0.54, -0.323, 0.011, -5.16, 0.53, -0.141, 0.026),
    "noise-all-dse": _compressed(63.98, 0.96, -1.328, 0.044, -33.16, 0.98, -1.146, 0.048),
    "noise-tenth-ce": _compressed(85.04, 0.71, -0.507, 0.014, -9.39, 0.71, -0.185, 0.031),
    "noise-tenth-dse": _compressed(75.17, 0.86, -0.662, 0.025, -19.26, 0.88, -0.341, 0.034),
}
r"""Tables of chapter 2: the same net on the labels alone, then by generator, images and loss."""
