r"""Losses: (n,)-valued, composable with + and *."""

from limbeck.losses.derivatives import derivative_error, directional_error
from limbeck.losses.values import (
    cross_entropy,
    hints,
    kl,
    label_cross_entropy,
    label_square_error,
    log_density_error,
    logit_error,
    multilabel_cross_entropy,
    reverse_kl,
    score_matching,
    square_error,
)

__all__ = [
    "cross_entropy", "derivative_error", "directional_error", "hints", "kl", "label_cross_entropy",
    "label_square_error", "log_density_error", "logit_error", "multilabel_cross_entropy",
    "reverse_kl", "score_matching", "square_error",
]  # fmt: skip
