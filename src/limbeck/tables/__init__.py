r"""Mixed tables: frames for teachers, tensors for students."""

from __future__ import annotations
