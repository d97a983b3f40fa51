r"""Result folders: what a command found, kept so that it can be read, drawn and told again."""

from __future__ import annotations

from limbeck.results.described import described
from limbeck.results.folder import FORMAT, VERBS, Saved, read, write
from limbeck.results.verdicts import required, verdict

__all__ = ["FORMAT", "VERBS", "Saved", "described", "read", "required", "verdict", "write"]
