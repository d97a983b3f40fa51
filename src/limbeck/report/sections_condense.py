r"""The report on a condensed posterior."""

from __future__ import annotations

import math
from typing import Any

from limbeck.condensation.agreement import Agreement
from limbeck.condensation.held_out import NewInputs
from limbeck.report import pictures
from limbeck.report.blocks import Block, Prose, Section, Stat, TableBlock, from_rich
from limbeck.report.drawing import Drawing
from limbeck.report.pictures_posterior import MODELS, numbers_of
from limbeck.report.sections import ratio, value
from limbeck.text import compared

__all__ = ["sections", "stats"]

COORDINATES = 40
r"""Numbers of a draw whose diagnostics are shown, those with the largest R̂."""


def stats(content: dict[str, Any]) -> list[Stat]:
    r"""How near the student is to all draws, and what it saves."""
    found = _agreement(content)
    if found is None:
        return []
    shown = [
        Stat(f"{found.mean_error:.2g}", "mean difference from the average of all draws"),
        Stat(f"{found.kl:.2g}", "nats of KL(average ‖ student)"),
    ]
    size, speed = found.bytes, found.seconds
    for said in (
        compared(size[0], size[1], "smaller", "larger", "as large"),
        compared(speed[0], speed[1], "faster", "slower", "as fast"),
    ):
        if said:
            shown.append(ratio(said, "than the draws" if "×" in said else "as the draws"))
    return shown


def sections(drawing: Drawing) -> list[Section]:
    r"""Agreement, surfaces or curves, compact weights, diagnostics."""
    content = drawing.saved.content
    found = _agreement(content)
    words = "Without the draws and inputs, nothing could be compared."
    beside: list[Block] = [Prose(words)]
    if found is not None:
        table = from_rich(found.table())
        table.words = (0,)
        table.note = "t is the average over all draws, f the student; means over the inputs."
        beside = [table]
    return [
        Section("Teacher beside student", beside + _new_inputs(content)),
        Section("What both predict", _predictions(drawing)),
        Section("Compact weights", _weights(drawing)),
        Section("The draws", _diagnostics(content)),
    ]


def _agreement(content: dict[str, Any]) -> Agreement | None:
    saved = content.get("agreement")
    if not saved:
        return None
    pairs = {name: tuple(saved[name]) for name in ("bytes", "seconds")}
    logs = saved["log_prob"]
    return Agreement(**{**saved, **pairs, "log_prob": None if logs is None else tuple(logs)})


def _new_inputs(content: dict[str, Any]) -> list[Block]:
    r"""Divergences at training inputs and at new ones, and what they tell."""
    if content.get("density"):
        return []
    found = NewInputs.from_record(content.get("new_inputs"))
    rows = []
    for name, each in (("training inputs", found.training), (found.kind, found.held_out)):
        if each is not None:
            error = f"{each.std_error:.1g}" if math.isfinite(each.std_error) else "–"
            rows.append([name, f"{each.inputs:,}", f"{each.mean:.2g}", error, f"{each.max:.2g}"])
    told = Prose(f"At new inputs the student is {found.state}: {found.reason}.")
    if not rows:
        return [told]
    heads = ["KL(average ‖ student), nats", "inputs", "mean", "error of the mean", "largest"]
    return [TableBlock("Inputs that the student has not seen", heads, rows, words=(0,)), told]


def _predictions(drawing: Drawing) -> list[Block]:
    arrays = drawing.saved.arrays
    if not drawing.pictures:
        return []
    if "curve_x" in arrays:
        count = len(arrays["curve_student"])
        drawn = [
            drawing.picture(f"Output {k}" if count > 1 else "Curve", pictures.curve, output=k)
            for k in range(count)
        ]
        return [*drawing.gallery("Student and average of all draws", *drawn)]
    if "surface_x" not in arrays:
        return []
    blocks: list[Block] = []
    count = len(arrays["surface_student"])
    for k in range(count):
        drawn = [
            drawing.picture(model, pictures.surface, True, model=model, output=k)
            for model in MODELS
        ]
        drawn.append(drawing.picture("difference", pictures.difference, True, output=k))
        blocks += drawing.gallery(f"Output {k}" if count > 1 else "Surfaces", *drawn)
    return blocks


def _weights(drawing: Drawing) -> list[Block]:
    arrays = drawing.saved.arrays
    if "pseudo_draws" not in arrays:
        return []
    own, share = arrays["pseudo_draws"], arrays["pseudo_weights"]
    blocks: list[Block] = []
    if drawing.pictures and own.shape[1] > 1:
        words = (
            "The student averages over these few trained draws in place of the posterior's. They "
            "need not lie where the posterior has its mass: what they predict together counts."
        )
        blocks = [Prose(words)]
        blocks += drawing.gallery("Weights", drawing.picture("Weights", pictures.weights))
    if own.shape[1] <= 12:
        names = ["component", "weight", *numbers_of(drawing.saved)]
        rows = [
            [str(k), f"{share[k]:.4f}", *(f"{each:.4g}" for each in row)]
            for k, row in enumerate(own.tolist())
        ]
        blocks.append(TableBlock("Pseudo-draws", names, rows))
    return blocks


def _diagnostics(content: dict[str, Any]) -> list[Block]:
    found = content.get("diagnostics")
    if not found:
        return []
    rows = list(zip(found["names"], found["r_hat"], found["ess"], strict=True))
    chosen = sorted(rows, key=lambda row: -(row[1] or 0.0))[:COORDINATES]
    shown = [
        [name or "–", "–" if r_hat is None else f"{r_hat:.3f}", value(ess and round(ess))]
        for name, r_hat, ess in chosen
    ]
    note = "R̂ above 1.05 says that chains disagree; a student cannot be better than its draws."
    return [TableBlock("Diagnostics", ["number", "R̂", "effective size"], shown, True, note)]
