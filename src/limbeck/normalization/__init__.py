r"""Normalize: unnormalised densities distilled into tractable ones, and estimates of log Z."""

from __future__ import annotations
