r"""Predictive distributions: posteriors condensed into what they predict, and baselines for it."""

from __future__ import annotations
