r"""Posteriors: draws that are stored somewhere, or come from a chain that still runs."""

from __future__ import annotations
