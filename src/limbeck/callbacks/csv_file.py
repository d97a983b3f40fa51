r"""A CSV file of all looks, and a JSON file of settings beside it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from limbeck.callbacks.logger import Logger, last_step
from limbeck.core.checkpoint import write_text
from limbeck.core.history import History
from limbeck.errors import ArgumentError, CheckpointError

__all__ = ["CSVLogger"]

FIRST = ["run", "step"]


class CSVLogger(Logger):
    r"""Writes each look as a row of a CSV file, as it comes.

    The column "run" names what was asked for: a run that goes on, or is made again with the same
    settings, takes the place of its own later rows, and rows of other runs stay. Settings are in
    a file of the same name that ends in .json.

    Arguments:
        path: The file.

    >>> CSVLogger("log.csv")
    CSVLogger('log.csv')
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.suffix == ".json":
            raise ArgumentError("path", str(path), "a name that does not end in .json, as .csv")

    def __repr__(self) -> str:
        return f"CSVLogger({str(self.path)!r})"

    def _open(self, name: str, settings: Mapping[str, Any], history: History) -> None:
        self.name, after = name, last_step(history)
        self.columns, rows = self._read()
        kept = [row for row in rows if row["run"] != name or int(row["step"]) <= after]
        self._rewrite(kept)
        about = self.path.with_suffix(".json")
        known = json.loads(about.read_text(encoding="utf-8")) if about.exists() else {}
        text = json.dumps({**known, name: dict(settings)}, indent=1, default=str)
        _whole(about, text + "\n")

    def _write(self, entry: Mapping[str, float]) -> None:
        row = {"run": self.name, **entry, "step": int(entry["step"])}
        if new := [key for key in row if key not in self.columns]:
            rows = self._read()[1]
            self.columns += new
            self._rewrite(rows)
        with open(self.path, "a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, self.columns, restval="").writerow(row)

    def _read(self) -> tuple[list[str], list[dict[str, str]]]:
        if not self.path.exists():
            return list(FIRST), []
        with open(self.path, encoding="utf-8", newline="") as file:
            found = csv.DictReader(file)
            columns, rows = list(found.fieldnames or FIRST), list(found)
        if columns[:2] != FIRST:
            received = f"{self.path}, which is another file"
            raise ArgumentError("callbacks", received, "a new file, or one of a CSVLogger")
        # the last row may have been cut off
        return columns, [row for row in rows if None not in row.values()]

    def _rewrite(self, rows: list[dict[str, str]]) -> None:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self.columns, restval="")
        writer.writeheader()
        writer.writerows(rows)
        _whole(self.path, text.getvalue())


def _whole(path: Path, text: str) -> None:
    try:
        write_text(path, text)
    except CheckpointError as error:
        raise error.__cause__ or error from None
