r"""Bayesian dark knowledge: chains of Bayesian nets, distilled online into single nets.

    pip install 'limbeck[chains]'
    python experiments/dark_knowledge.py [--part toy] [--data MNIST] [--out experiments/results]

After Korattikara, Rathod, Murphy and Welling (2015). On a toy problem in the plane: how far
students are from the full posterior predictive distribution. On digits: errors and log
probabilities of the chain's average, of a student and of a plain net. The chain is SGLD, by
`posteriors`; the toy's reference is NUTS, by BlackJAX. Without them the toy problem runs on
limbeck's slice sampler, more slowly, and the digits not at all. A part that is not asked for stays
as the file has it.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

sys.path[:0] = [str(Path(__file__).parent)]
sys.path.append(str(Path(__file__).resolve().parents[1]))  # the root, for `reproduction`
import dark_knowledge_digits as digits
import dark_knowledge_toy as toy
from dark_knowledge_page import PAPER, figure

from limbeck.environment import environment
from reproduction.record import write

FILE = "dark-knowledge.json"
LIBRARIES = ("posteriors", "blackjax", "jax")


def made_with() -> dict[str, Any]:
    r"""Hardware and versions, with those of the samplers that are installed."""
    there = {name: metadata.version(name) for name in LIBRARIES if digits.installed(name)}
    return environment("cpu") | there | {"threads": torch.get_num_threads()}


def toy_table(found: dict[str, Any]) -> Table:
    r"""The toy problem's figures."""
    title = f"KL from {found['settings']['reference']:,} draws of {found['reference']}, nats"
    table = Table(title=title, title_justify="left")
    for heading in ("", "numbers", "KL", f"KL from {found['chain']}", "paper's"):
        table.add_column(heading, justify="right" if heading else "left")
    for row in found["rows"]:
        paper = PAPER.get(row["name"])
        table.add_row(
            row["name"], f"{row['parameters']:,}", figure(row["kl"], 5),
            figure(row["to_chain"], 5), "" if paper is None else f"{paper:g}",
        )  # fmt: skip
    return table


def digits_table(found: dict[str, Any]) -> Table:
    r"""The digits' figures."""
    table = Table(title=f"{found['data']}, test images", title_justify="left")
    for heading in ("", "numbers", "error, %", "log probability", "KL from the average"):
        table.add_column(heading, justify="right" if heading else "left")
    for row in found["rows"]:
        table.add_row(
            row["name"], f"{row['parameters']:,}", figure(row["error"], 2),
            figure(row["log_prob"], 4), figure(row["kl"], 4),
        )  # fmt: skip
    return table


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    r"""Run what is asked for, and write and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", default="both", choices=("toy", "digits", "both"))
    parser.add_argument("--data", help="a folder with MNIST's files, in place of the digits")
    parser.add_argument("--out", default="experiments/results", help="a folder for the results")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--toy", default="{}", help="JSON of the toy's settings to change")
    parser.add_argument("--digits", default="{}", help="JSON of the digits' settings to change")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
    ask = parser.parse_args(arguments)
    torch.set_num_threads(1)
    path = Path(ask.out) / FILE
    found: dict[str, Any] = {}
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))
    if ask.part != "digits":
        found["toy"] = made_with() | toy.run(ask.seeds, json.loads(ask.toy), not ask.quiet)
        write(path, found)
    if ask.part != "toy":
        changes = json.loads(ask.digits)
        found["digits"] = made_with() | digits.run(ask.seeds, ask.data, changes, not ask.quiet)
        write(path, found)
    console = Console()
    for name, table in (("toy", toy_table), ("digits", digits_table)):
        if name in found:
            console.print(table(found[name]))
    return found


if __name__ == "__main__":
    main()
