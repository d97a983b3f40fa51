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
    text = "\n\n".join([page(RESULTS).rstrip(), "### Pictures", *shown]) + "\n"
    (DOCS / "reproduction.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
