r"""Intractable generative models: distilled into tractable ones, and their log Z estimated."""

from __future__ import annotations
