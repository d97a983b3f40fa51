r"""What the parts of the demo share: settings, tables, result folders, and one page on all."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from limbeck import storage
from limbeck.report import records

__all__ = ["Tour", "print_table"]


@dataclass
class Tour:
    r"""Settings of the demo, and the results of its parts."""

    folder: Path  # for result folders, pictures and the page
    steps: int  # of each distillation
    seed: int
    console: Console
    progress: bool  # whether to show bars
    tables: bool  # whether to print tables
    folders: list[Path] = field(default_factory=list)  # of results
    findings: list[str] = field(default_factory=list)  # a sentence on each result

    @property
    def training(self) -> dict[str, Any]:
        r"""Arguments of every training."""
        return {"seed": self.seed, "device": "cpu", "progress": self.progress}

    def add(self, verb: str, result: object, finding: str, **options: Any) -> None:
        r"""Write a verb's result folder, with options of `limbeck.report.records.described`."""
        command = f"limbeck demo {verb}"
        content, arrays = records.described(result, verb=verb, command=command, **options)
        storage.write(self.folder / verb, content, arrays)
        self.folders.append(self.folder / verb)
        self.findings.append(finding)

    def write(self) -> str:
        r"""Write the page; a sentence on where it is, or on what it needs."""
        missing = [name for name in ("jinja2", "matplotlib") if not importlib.util.find_spec(name)]
        if missing:
            return f"A page on it needs {' and '.join(missing)}: pip install 'limbeck[report]'."
        from limbeck.report.page import write_tour

        commands = (
            "limbeck compress models:teacher train.csv --label y --export student.onnx",
            "limbeck condense posterior.nc --predict models:predict --inputs data.csv",
            "limbeck logz rbm.npz",
        )
        page = write_tour(self.folders, self.folder, self.findings, commands=commands)
        return f"One page on all of it is {page}. Next: limbeck compress --help."


def print_table(
    console: Console,
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    left: Collection[str],
    sections: Collection[int] = (),
) -> None:
    r"""Print a table, with some columns to the left and a line below some rows."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if column in left else "right")
    for number, row in enumerate(rows):
        table.add_row(*row, end_section=number in sections)
    console.print(table)
