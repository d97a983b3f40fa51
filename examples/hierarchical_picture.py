r"""Held-out probabilities of the hierarchical example, drawn from its saved figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

from limbeck.report.canvas import COLOURS, MUTED, STYLE

__all__ = ["draw"]


def draw(figures: dict[str, Any], path: Path) -> None:
    r"""Probabilities by village, and how far a few draws and the student are from all draws."""
    found = {name: np.array(values) for name, values in figures["probabilities"].items()}
    groups = np.unique(found["group"])
    means = {
        name: np.array([found[name][found["group"] == group].mean() for group in groups])
        for name in ("y", "all draws", "student")
    }
    order = means["all draws"].argsort()
    with mpl.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(10.4, 3.6), layout="constrained")
        place = np.arange(len(groups))
        left.plot(place, means["y"][order], "_", color=MUTED, label="share who changed")
        left.plot(
            place, means["all draws"][order], "o", color=COLOURS[0], mfc="none",
            markersize=7, label=f"all {figures['draws']:,} draws",
        )  # fmt: skip
        left.plot(
            place, means["student"][order], ".", color=COLOURS[1],
            label=f"student, {figures['components']} pseudo-draws",
        )  # fmt: skip
        left.set_xlabel("villages, in the order of all draws")
        left.set_ylabel("mean probability of held-out households")
        left.set_xticks([])
        left.legend()
        for name, label, colour in (
            ("few", f"{figures['components']} of the draws", MUTED),
            ("student", f"student, {figures['components']} pseudo-draws", COLOURS[1]),
        ):
            apart = found[name] - found["all draws"]
            right.plot(found["all draws"], apart, ".", color=colour, markersize=3, label=label)
        right.set_xlabel("probability by all draws")
        right.set_ylabel("difference from it")
        right.set_title("each held-out household")
        right.legend()
        largest = np.abs(found["all draws"] - found["student"]).max()
        text = (
            f"Mean held-out probabilities of {len(groups)} villages by all draws and by the "
            f"student, which lie on each other; single households differ by at most {largest:.3f}."
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=160, metadata={"Description": text})
        plt.close(figure)
