r"""The numbers of the source text: G. Papamakarios, Distilling Model Knowledge, 2015."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["AIS_2008", "CHAPTER_4", "LOG_Z", "Row"]

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
