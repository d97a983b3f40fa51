r"""The demo as a page: a result folder for each verb, one report that opens with the findings."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from limbeck import storage
from limbeck.report import records

__all__ = ["NEXT", "Tour"]

NEXT = (
    "limbeck compress models:teacher train.csv --label y --export student.onnx",
    "limbeck condense posterior.nc --predict models:predict --inputs data.csv",
    "limbeck logz rbm.npz",
)
r"""What to try after the demo."""

NEEDED = ("jinja2", "matplotlib")


class Tour:
    r"""Collects what the parts of the demo give back.

    Arguments:
        folder: Where result folders and the page go; made when the first of them is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folders: list[Path] = []
        self.findings: list[str] = []

    def add(self, verb: str, result: Any, finding: str, **described: Any) -> None:
        r"""Write a verb's result folder.

        Arguments:
            verb: The verb.
            result: What it gave back.
            finding: The sentence to tell a colleague.
            described: Further arguments of `limbeck.report.records.described`.
        """
        command = f"limbeck demo {verb}"
        content, arrays = records.described(result, verb=verb, command=command, **described)
        folder = self.folder / verb
        storage.write(folder, content, arrays)
        self.folders.append(folder)
        self.findings.append(finding)

    def write(self) -> str:
        r"""Write the page, and say where it is, or what it needs."""
        missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
        if missing:
            return f"A page on it needs {' and '.join(missing)}: pip install 'limbeck[report]'."
        from limbeck.report.page import write_tour

        page = write_tour(self.folders, self.folder, self.findings, commands=NEXT)
        return f"One page on all of it is {page}. Next: limbeck compress --help."
