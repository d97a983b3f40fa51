r"""Make docs/reproduction.md, with its pictures, of the results under experiments/results.

python experiments/page.py
"""

from __future__ import annotations

import json
from pathlib import Path

from limbeck.report.chapter4 import pictures
from limbeck.reproduction.page import page
from limbeck.reproduction.thesis import AIS_2008, LOG_Z

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
RESULTS = HERE / "results" / "chapter-4.json"
COVERAGE = HERE / "results" / "coverage.json"

PROMISE = """\
## Do the error bars hold?

An error bar is a promise: of intervals at 95%, about 95 in 100 must hold the truth. Here are
{models} small RBMs whose log Z is known exactly, with couplings from weak to strong and students
from poor to good (independent bits, NADEs after 30 and 300 steps, a NADE with noise on its weights,
one at the RBM's own), {samples:,} samples of each kind. z is the error over the standard error: it
should have a standard deviation of one. Thresholds of the verdicts were chosen on other RBMs of the
same kind. `python experiments/coverage.py` makes it again ({seconds:.0f} s on {cores} cores).
"""


def coverage() -> str:
    r"""How often intervals held the truth, for each way to estimate."""
    found = json.loads(COVERAGE.read_text(encoding="utf-8"))
    cores = found["hardware"]["cores"]
    head = PROMISE.format(
        models=found["models"], samples=found["samples"], seconds=found["seconds"], cores=cores
    )
    rows = [
        head,
        "| way | marked trustworthy | covered, all | covered, trusted | sd of z, all "
        "| sd of z, trusted | largest z, trusted |",
        "|---|---|---|---|---|---|---|",
    ]
    for way, line in found["summary"].items():
        rows.append(
            f"| {way} | {line['trustworthy']:.1%} | {line['coverage_all']:.1%} "
            f"| {line['coverage_trusted']:.1%} | {line['z_sd_all']:.2f} "
            f"| {line['z_sd_trusted']:.2f} | {line['z_largest_trusted']:.1f} |"
        )
    return "\n".join(rows)


def main() -> None:
    r"""Write the page and draw the pictures."""
    folder = DOCS / "pictures" / "chapter-4"
    folder.mkdir(parents=True, exist_ok=True)
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    said = pictures(found, folder, reference=("AIS, 2008", LOG_Z, *AIS_2008))
    shown = [
        f"![{words}]({(folder / name).relative_to(DOCS).as_posix()})"
        for name, words in said.items()
    ]
    parts = [page(RESULTS).rstrip(), "### Pictures", *shown, coverage()]
    text = "\n\n".join(parts) + "\n"
    (DOCS / "reproduction.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
