r"""Teachers of every kind, and how they are queried."""

from __future__ import annotations
