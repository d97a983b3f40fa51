r"""Files and result folders: written whole or not at all, checked when read."""

from __future__ import annotations

from limbeck.storage.folder import FORMAT, VERBS, Saved, read, write

__all__ = ["FORMAT", "VERBS", "Saved", "read", "write"]
