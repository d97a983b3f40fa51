r"""Draws in CSV files, as Stan writes them; each file is a chain."""

from __future__ import annotations

import csv
import itertools
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from limbeck.draws.columns import CHAIN, from_columns, places
from limbeck.draws.variables import Found
from limbeck.errors import ArgumentError

__all__ = ["read_csv"]

SETTING = re.compile(r"#\s*(\w+)\s*=\s*(\S+)")


class Head(NamedTuple):
    r"""What a file says before its numbers.

    Attributes:
        names: The columns.
        lines: How many lines there are before the first draw.
        warmup: How many of the draws are Stan's warmup, which is there if the user asked for it.
    """

    names: list[str]
    lines: int
    warmup: int


def read_csv(paths: Sequence[Path], choose: Callable[[Sequence[str]], list[str]]) -> Found:
    r"""Arrays (chain, draw, ...) of the variables that are chosen."""
    heads = [_head(path) for path in paths]
    header, warmup = heads[0].names, heads[0].warmup
    for path, head in zip(paths, heads, strict=True):
        if head.names != header:
            received = f"{path}, with other columns than {paths[0]}"
            raise ArgumentError("posterior", received, "chains of one model")
    found = places(header)
    wanted = [found[name] for name in choose(list(found))]
    used = sorted({int(column) for columns in wanted for column in columns.flat})
    used += [column for column, name in enumerate(header) if name in CHAIN]
    tables = [_table(path, head, used) for path, head in zip(paths, heads, strict=True)]
    lengths = [len(table) for table in tables]
    if len(set(lengths)) > 1:
        received = f"files of {', '.join(map(str, lengths))} draws"
        raise ArgumentError("posterior", received, "chains of equal length")
    notes = [f"{warmup} warmup draws of each chain are left out"] if warmup else []
    return from_columns([header[column] for column in used], tables, choose, notes)


def _head(path: Path) -> Head:
    comments, names, lines = [], [""], 0
    with open(path, encoding="utf-8-sig") as file:
        for lines, line in enumerate(file, start=1):  # noqa: B007 - used after the loop
            if line.startswith("#"):
                comments.append(line)
            elif line.strip():
                names = [name.strip() for name in next(csv.reader([line]))]
                break
    if not any(names):
        raise ArgumentError("posterior", f"{path}, without a line of names", "draws by column")
    settings = {match[1]: match[2] for match in map(SETTING.match, comments) if match}
    if names != _counted(names) and _numbers(names):
        return Head(_counted(names), lines - 1, 0)
    saved = settings.get("save_warmup", "0").lower() in ("1", "true")
    warmup = math.ceil(int(settings.get("num_warmup", 0)) / int(settings.get("thin", 1)))
    return Head(names, lines, warmup if saved else 0)


def _counted(names: Sequence[str]) -> list[str]:
    return [str(column) for column in range(len(names))]


def _numbers(words: Sequence[str]) -> bool:
    try:
        return bool([float(word) for word in words])
    except ValueError:
        return False


def _table(path: Path, head: Head, used: Sequence[int]) -> np.ndarray[Any, Any]:
    with open(path, encoding="utf-8-sig") as file:
        rows = (line for line in itertools.islice(file, head.lines, None) if line.strip("\n\r, "))
        lines = (line for line in rows if not line.startswith("#"))
        first = next(lines, None)
        if first is None:
            return np.empty((0, len(used)))
        text = itertools.chain([first], lines)
        table = np.loadtxt(text, delimiter=",", quotechar='"', usecols=used, ndmin=2)
    return table[head.warmup :]
