r"""Condense: posteriors distilled into compact predictive distributions, and baselines."""

from __future__ import annotations
