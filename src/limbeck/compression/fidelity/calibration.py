r"""Whether probabilities mean what they say: calibration curves and expected calibration error.

Confidences are sorted into bins of equal mass, equal confidences into the same bin. The expected
calibration error is Σ_b (share of b) · |frequency of being right in b − mean confidence in b|. It
is the plain estimate, which noise makes larger than it would be with more data. Its standard error
is that of the bootstrap over examples, with the bins as they are; resamples are the same for all
models, so that differences pair.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from limbeck.compression.fidelity.measures import Figure, correct

__all__ = ["BINS", "Outcomes", "calibration_errors", "curve", "outcomes"]

BINS = 15
RESAMPLES = 200

BLOCKS = 5000
r"""More examples than this are resampled in blocks of some, which costs less and errs as much."""

Outcomes = tuple[np.ndarray, np.ndarray]
r"""Confidences (n, m), and whether what was predicted came true (n, m)."""


def outcomes(task: str, p: np.ndarray, y: np.ndarray) -> Outcomes:
    r"""Confidences and what came of them.

    Of a classifier, the probability of the most probable class and whether it is the right one,
    (n, 1); of a multi-label one, the probability of every label and whether it is there, (n, K).
    """
    if task == "classification":
        return p.max(1, keepdims=True), correct(p, y)[:, None]
    return p, (y > 0.5).astype(float)


def curve(found: Outcomes, bins: int = BINS) -> dict[str, list[float]]:
    r"""For each bin: mean confidence, frequency of being right, its standard error, and count.

    >>> always = np.array([[0.9]] * 4), np.array([[1.0], [0.0], [1.0], [1.0]])
    >>> {name: [round(x, 2) for x in column] for name, column in curve(always).items()}
    {'confidence': [0.9], 'frequency': [0.75], 'std_error': [0.25], 'count': [4.0]}
    """
    confidence, right = (part.ravel() for part in found)
    codes = _bins(confidence, bins)
    count = np.bincount(codes, minlength=bins)
    full, count = count > 0, count[count > 0]
    sums = [np.bincount(codes, part, bins)[full] for part in (confidence, right)]
    f = sums[1] / count
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.where(count > 1, np.sqrt(f * (1 - f) / (count - 1)), math.nan)
    columns = (sums[0] / count, f, error, count.astype(float))
    names = ("confidence", "frequency", "std_error", "count")
    return {name: column.tolist() for name, column in zip(names, columns, strict=True)}


def calibration_errors(
    models: Mapping[str, Outcomes],
    pairs: Mapping[str, tuple[str, str]],
    *,
    bins: int = BINS,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> dict[str, Figure]:
    r"""Expected calibration errors of several models on the same examples, and differences.

    Arguments:
        models: What `outcomes` gives, by name.
        pairs: Names of differences, and of the two models whose errors are subtracted.
        bins: How many there are at most.
        seed: Of the bootstrap.
        resamples: Of the bootstrap.
    """
    n = len(next(iter(models.values()))[0])
    generator = np.random.default_rng(seed)
    blocks = generator.permutation(n) % (n // -(-n // BLOCKS))
    gaps = {name: _gaps(found, bins, blocks) for name, found in models.items()}
    values = {name: float(np.abs(gap.sum(1)).sum()) for name, gap in gaps.items()}
    draws = generator.integers(0, blocks.max() + 1, (resamples, blocks.max() + 1))
    counts = np.stack([np.bincount(draw, minlength=len(draw)) for draw in draws], axis=1)
    spread = {name: np.abs(gap @ counts).sum(0) for name, gap in gaps.items()}
    for name, (one, other) in pairs.items():
        values[name], spread[name] = values[one] - values[other], spread[one] - spread[other]
    return {
        name: Figure(value, float(spread[name].std(ddof=1)) if n > 1 else math.nan)
        for name, value in values.items()
    }


def _bins(confidence: np.ndarray, bins: int) -> np.ndarray:
    edges = np.quantile(confidence, np.arange(1, bins) / bins)
    return np.searchsorted(edges, confidence)


def _gaps(found: Outcomes, bins: int, blocks: np.ndarray) -> np.ndarray:
    # (bins, blocks): what each block of examples adds to a bin's |frequency − confidence|
    confidence, right = found
    n, m = confidence.shape
    width = int(blocks.max()) + 1
    cells = _bins(confidence.ravel(), bins) * width + np.repeat(blocks, m)
    return np.bincount(cells, (right - confidence).ravel() / (n * m), bins * width).reshape(
        bins, -1
    )
