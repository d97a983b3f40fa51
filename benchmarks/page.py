r"""Make docs/benchmarks.md of the results under benchmarks/results.

python benchmarks/page.py
"""

from __future__ import annotations

import json
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "benchmarks.md"

UNITS = {"microseconds": "µs", "milliseconds": "ms", "seconds": "s", "megabytes": "MB"}

HEAD = """\
# Benchmarks

Timings are ratios taken side by side in one process: every contender in turn, round after round,
and the median of the rounds' ratios. This page is made by `python benchmarks/page.py` of the files
under `benchmarks/results`.
"""

STEP = """\
## One step of the loop

`make bench` takes these again. The student is 784-50-30-10, the batch 20, the optimizer ADADELTA,
and the teacher's targets are computed beforehand. *CE* is cross entropy, *DSE* the derivative
square error; *the usual loop* is zero_grad, backward, step in plain PyTorch. A step of limbeck is
the whole turn of its loop: draw, teacher, loss, gradient, guard against non-finite numbers,
optimizer, bookkeeping.
"""

NADE = """\
## NADE

`python benchmarks/nade.py`: NADE(784, 500) at batch 20. *Usual* is the definition in PyTorch: a
cumulative sum over inputs with autograd, and a Python loop over pixels to sample. On a GPU, a whole
iteration is the source text's: 2,000 chains advanced, 20 used, value, gradient, ADADELTA.
"""

PARTS = {"step": STEP, "nade": NADE}


def table(path: Path) -> str:
    r"""The figures of one run as a section."""
    machine, *figures = (json.loads(line) for line in path.read_text().splitlines())
    name = f"{machine['device']}, {machine['threads']} threads, torch {machine['torch']}"
    rows = [
        f"### {name}",
        "",
        "| figure | limbeck | usual | ratio | wanted |",
        "|---|---|---|---|---|",
    ]
    for figure in figures:
        took, unit = next((figure[unit], short) for unit, short in UNITS.items() if unit in figure)
        usual = f"{figure['usual']:.4g} {unit}" if "usual" in figure else ""
        ratio = f"{figure['ratio']:.2f}" if "ratio" in figure else ""
        wanted = figure.get("must", "")
        rows.append(f"| {figure['figure']} | {took:.4g} {unit} | {usual} | {ratio} | {wanted} |")
    return "\n".join([*rows, *(["", machine["note"]] if "note" in machine else [])])


def main() -> None:
    r"""Write the page."""
    sections = []
    for part, head in PARTS.items():
        if files := sorted((HERE / "results").glob(f"{part}-*.jsonl")):
            sections += [head, *map(table, files)]
    text = "\n\n".join(part.rstrip() for part in (HEAD, *sections))
    PAGE.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
