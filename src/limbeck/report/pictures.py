r"""Pictures of saved results.

Each function takes a saved result (what `limbeck.storage.read` gives, or its folder) and draws on
one of matplotlib's axes, its own if none are given; it gives the axes back. Their label,
`axes.get_label()`, says what is to be seen, for those who cannot see it.
"""

from __future__ import annotations

from limbeck.report.pictures_compression import (
    calibration,
    disagreement,
    learning,
    measures,
    subgroups,
)
from limbeck.report.pictures_generative import features, log_probabilities, log_z, samples
from limbeck.report.pictures_posterior import curve, difference, surface, weights

__all__ = [
    "calibration",
    "curve",
    "difference",
    "disagreement",
    "features",
    "learning",
    "log_probabilities",
    "log_z",
    "measures",
    "samples",
    "subgroups",
    "surface",
    "weights",
]
