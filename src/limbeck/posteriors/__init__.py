r"""Posteriors: draws that are stored, or come from a running chain."""

from __future__ import annotations
