r"""Make docs/benchmarks.md of the results under benchmarks/results.

python benchmarks/page.py
"""

from __future__ import annotations

import json
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "benchmarks.md"

HEAD = """\
# Benchmarks

Timings are ratios taken side by side in one process: every contender in turn, round after round,
and the median of the rounds' ratios. `make bench` takes them again; this page is made by
`python benchmarks/page.py` of the files under `benchmarks/results`.

The student is 784-50-30-10, the batch 20, the optimizer ADADELTA, and the teacher's targets are
computed beforehand. *CE* is cross entropy, *DSE* the derivative square error; *the usual loop* is
zero_grad, backward, step in plain PyTorch. A step of limbeck is the whole turn of its loop: draw,
teacher, loss, gradient, guard against non-finite numbers, optimizer, bookkeeping.
"""


def table(path: Path) -> str:
    r"""The figures of one run as a section."""
    machine, *figures = (json.loads(line) for line in path.read_text().splitlines())
    name = f"{machine['device']}, {machine['threads']} threads, torch {machine['torch']}"
    rows = [
        f"## {name}",
        "",
        "| figure | limbeck | usual | ratio | wanted |",
        "|---|---|---|---|---|",
    ]
    for figure in figures:
        took, unit = next(
            (figure[unit], short)
            for unit, short in (("microseconds", "µs"), ("milliseconds", "ms"), ("seconds", "s"))
            if unit in figure
        )
        usual = f"{figure['usual']:.4g} {unit}" if "usual" in figure else ""
        ratio = f"{figure['ratio']:.2f}" if "ratio" in figure else ""
        wanted = figure.get("must", "")
        rows.append(f"| {figure['figure']} | {took:.4g} {unit} | {usual} | {ratio} | {wanted} |")
    return "\n".join([*rows, *(["", machine["note"]] if "note" in machine else [])])


def main() -> None:
    r"""Write the page."""
    sections = [table(path) for path in sorted((HERE / "results").glob("step-*.jsonl"))]
    PAGE.write_text("\n\n".join([HEAD, *sections]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
