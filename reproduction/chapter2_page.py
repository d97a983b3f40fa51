r"""Chapter 2's part of the page: five tables and five conclusions, made from its JSON results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reproduction.chapter2 import CELLS, Cell
from reproduction.chapter2_findings import (
    Conclusion,
    Figure,
    Figures,
    conclusions,
    figures,
    verdict,
)
from reproduction.page import TITLE
from reproduction.thesis import CHAPTER_2, CHAPTER_2_TEACHER, Printed

__all__ = ["GENERATORS", "LOSSES", "SHARES", "page", "section", "title"]

GENERATORS = {"mnist": "MNIST", "nade": "NADE", "noise": "Gaussian noise", "labels": "labels"}
SHARES = {"all": "all", "tenth": "10%"}
LOSSES = {"ce": "cross entropy", "dse": "derivative square error"}

DIGITS = {"accuracy": 2, "log_prob": 3}
MEASURES = {"accuracy": "accuracy", "log_prob": "log probability"}
TABLES = {
    "accuracy": "Accuracy on the test set [%]",
    "log_prob": "Average log probability on the test set",
    "difference_accuracy": "Difference in accuracy from the net trained on the labels [%]",
    "difference_log_prob": "Difference in log probability from the net trained on the labels",
}

HEAD = """\
## Chapter 2: an ensemble of nets into one small net

The teacher is an ensemble of {members} nets with {teacher} hidden units, each trained on its own
bootstrap resample of MNIST; a student is one net with {student}. All settings are those of the
source text: ADADELTA, batches of 20, and for each student as many samples from the generator as
{passes} epochs of MNIST have. With 10% of the images, the generator has the first tenth of them
and the student is trained on a tenth of the samples; the teacher was trained on all images. NADE's
inputs are its conditional probabilities; its pixels are ordered column by column. The net trained
on the labels alone is trained like a member of the teacher, for {teacher_passes} epochs.{scaled}

Ours are means over {seeds} seeds with their standard errors, on {hardware} with torch {torch}: one
student and one NADE per seed, and the same teacher for all. The text has one run of each, with
error bars of two standard deviations over test examples; ours of this kind are in the column "± 2
s.d.". In the last column, "within" means that our mean is within the text's error bar. Reproduce
this chapter with `python -m reproduction chapter-2 --data DIR`.
"""


def page(found: Mapping[str, Any]) -> str:
    r"""A page of chapter 2 alone, from its results."""
    return f"{TITLE}\n\n{section(found)}\n"


def section(found: Mapping[str, Any]) -> str:
    r"""Chapter 2, from its results."""
    ask, own = found["settings"], figures(found["runs"])
    factor = ask["steps_factor"]
    head = HEAD.format(
        members=ask["members"], passes=ask["passes"],
        teacher=_units(ask["teacher_hidden"]), student=_units(ask["hidden"]),
        teacher_passes=ask["teacher_passes"], seeds=len(ask["seeds"]),
        hardware=found["hardware"], torch=found["torch"],
        scaled="" if factor == 1 else f" All steps were multiplied by {factor:g}.",
    )  # fmt: skip
    parts = [head.rstrip(), *_teachers(found["teachers"])]
    parts += [_table(quantity, own) for quantity in TABLES if _cells(quantity, own)]
    parts += [part for part in (_direct(own), _balance(own), _judged(own)) if part]
    seconds = [run["seconds"] for run in found["runs"]]
    parts.append(
        f"All {len(seconds)} small nets took {sum(seconds):.0f} s of training, including "
        f"compilation; the whole reproduction took {found['seconds']:.0f} s."
    )
    return "\n\n".join([*parts, *([found["note"]] if "note" in found else [])])


def title(cell: Cell) -> str:
    r"""A cell in words.

    >>> title(CELLS["mnist-tenth-dse"])
    'MNIST, 10%, derivative square error'
    """
    words = (GENERATORS[cell.generator], SHARES[cell.share], LOSSES[cell.loss])
    return ", ".join(words[:2] if cell.generator == "labels" else words)


def _teachers(teachers: list[Mapping[str, Any]]) -> list[str]:
    text = CHAPTER_2_TEACHER
    said = [
        f"The teacher reaches {each['accuracy'][0]:.2f} ± {2 * each['accuracy'][1]:.2f}% and "
        f"{each['log_prob'][0]:.4f} ± {2 * each['log_prob'][1]:.4f} on the test set (the text's "
        f"{_printed(text.accuracy, 2)}%, {_printed(text.log_prob, 3)})."
        for each in teachers
    ]
    if len(said) > 1:
        said.append(f"These runs have {len(said)} teachers, trained in the same way.")
    return [" ".join(said)] if said else []


def _cells(quantity: str, own: Figures) -> list[str]:
    r"""The students of which a quantity is known, in the order of the tables."""
    return [
        name
        for name, cell in CELLS.items()
        if cell.generator != "labels" and quantity in own.get(name, {})
    ]


def _table(quantity: str, own: Figures) -> str:
    digits = _digits(quantity)
    rows = [
        f"### {TABLES[quantity]}",
        "",
        "| generator | images | loss | text | ours | s.e. | lowest | highest | ± 2 s.d. | |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in _cells(quantity, own):
        cell, figure = CELLS[name], own[name][quantity]
        words = f"{GENERATORS[cell.generator]} | {SHARES[cell.share]} | {cell.loss.upper()}"
        text = getattr(CHAPTER_2[name], quantity)
        rows.append(
            f"| {words} | {_row(text, figure, digits)} | {verdict(name, quantity, figure)} |"
        )
    return "\n".join(rows)


def _direct(own: Figures) -> str:
    rows = [
        "### The same net trained on the labels alone",
        "",
        "| images | measure | text | ours | s.e. | lowest | highest | ± 2 s.d. | |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in (name for name, cell in CELLS.items() if cell.generator == "labels"):
        for measure, words in MEASURES.items():
            if name in own:
                figure, text = own[name][measure], getattr(CHAPTER_2[name], measure)
                rows.append(
                    f"| {SHARES[CELLS[name].share]} | {words} "
                    f"| {_row(text, figure, DIGITS[measure])} | {verdict(name, measure, figure)} |"
                )
    return "\n".join(rows) if len(rows) > 4 else ""


def _row(text: Printed, figure: Figure, digits: int) -> str:
    numbers = (figure.mean, figure.error, figure.low, figure.high, figure.bar)
    ours = " | ".join(f"{value:.{digits + (place == 1)}f}" for place, value in enumerate(numbers))
    return f"{_printed(text, digits)} | {ours}"


def _balance(own: Figures) -> str:
    r"""The number of cells that agree with the text or are better, and a list of the others."""
    judged = {
        (name, measure): verdict(name, measure, own[name][measure])
        for name in own
        for measure in MEASURES
    }
    if not judged:
        return ""
    below = [key for key, word in judged.items() if word == "below"]
    said = [
        f"Of {len(judged)} figures (accuracy and log probability), "
        f"{list(judged.values()).count('within')} are within the text's error bar, "
        f"{list(judged.values()).count('better')} are better and {len(below)} are below it"
        + (":" if below else ".")
    ]
    for name, measure in below:
        figure, text = own[name][measure], getattr(CHAPTER_2[name], measure)
        digits, short = DIGITS[measure], text.value - figure.mean
        said.append(
            f"- {title(CELLS[name])}: {MEASURES[measure]} {figure.mean:.{digits}f}, "
            f"{short:.{digits}f} below the text, or {short / text.bar:.1f} of its error bars; our "
            f"seeds range from {figure.low:.{digits}f} to {figure.high:.{digits}f}."
        )
    return "\n".join([said[0], *([""] if below else []), *said[1:]])


def _judged(own: Figures) -> str:
    rows = [
        "### The text's conclusions",
        "",
        "Each conclusion is tested by the rule given with it. A difference counts if it is more "
        "than two standard errors above zero.",
        "",
    ]
    return "\n".join(rows + [f"- {_said(each)}" for each in conclusions(own)])


def _said(conclusion: Conclusion) -> str:
    words = {True: "Held", False: "Did not hold", None: "Not run"}[conclusion.held]
    head = f"**({conclusion.letter})** {conclusion.claim}. *Rule:* {conclusion.rule}. **{words}**"
    if conclusion.held is None:
        return f"{head}."
    found = sorted(conclusion.comparisons, key=lambda each: each.difference / (each.error or 1e-9))
    shown = found if len(found) <= 4 else found[:2]
    numbers = "; ".join(
        f"{title(CELLS[each.one])} over {title(CELLS[each.two])}, {MEASURES[each.measure]} "
        f"{each.difference:+.{DIGITS[each.measure]}f} ± "
        f"{each.error:.{DIGITS[each.measure] + 1}f}{'' if each.holds else ' (does not hold)'}"
        for each in shown
    )
    held = sum(each.holds for each in found)
    weakest = ", the weakest" if len(shown) < len(found) else ""
    return f"{head} ({held} of {len(found)} comparisons{weakest}: {numbers})."


def _printed(text: Printed, digits: int) -> str:
    return f"{text.value:.{digits}f} ± {text.bar:.{digits}f}"


def _units(hidden: list[int]) -> str:
    return " and ".join(map(str, hidden))


def _digits(quantity: str) -> int:
    return DIGITS[quantity.removeprefix("difference_")]
