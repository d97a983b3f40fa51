r"""Condensed posteriors: the record of a result, and the report on it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from limbeck.compression.fidelity.cost import Cost, parameters
from limbeck.condensation.agreement import Agreement, predictive
from limbeck.condensation.condensed import Condensed
from limbeck.condensation.held_out import NewInputs
from limbeck.condensation.sample_bag import SampleBag
from limbeck.condensation.teachers import stored_draws
from limbeck.distributions import average
from limbeck.posteriors.draws import Draws
from limbeck.posteriors.stream import StreamEnded
from limbeck.report import pictures, summary
from limbeck.report.blocks import Block, Report, Stat, TableBlock, from_rich, gallery, ratio, value
from limbeck.storage import Saved
from limbeck.teachers.keys import dense

SIDE, LINE = 41, 201  # points along each direction of a surface, and along a curve
STREAM_DRAWS = 4000  # that the student is compared with


def condensed(
    result: Condensed,
    *,
    agreement: Agreement | None = None,  # else it is made at the inputs x
    x: object = None,  # inputs to compare at; curves and surfaces cover their range
    y: object = None,
    points: object = None,  # data (n, 2) to draw on surfaces
    labels: object = None,  # their labels (n,)
) -> tuple[dict[str, Any], summary.Arrays]:
    r"""Content and arrays of a condensed posterior."""
    content, notes = summary.run_summary(result), list(result.notes)
    draws, stream = None, result.posterior
    if result.calling is not None and stream is not None:
        try:
            draws = stored_draws(stream, STREAM_DRAWS)
        except StreamEnded:
            notes.append("The stream has no further draws to compare the student with.")
        if draws is not None and draws is not stream:
            further = f"{STREAM_DRAWS:,} further draws of the stream"
            notes.append(f"The student is compared with {further}.")
    if agreement is None and draws is not None and (x is not None or result.head is None):
        agreement = result.report(x, y, posterior=draws)
    count = result.used if draws is None else draws.count
    size = result.draw_bytes if agreement is None else agreement.bytes[0]
    teacher = Cost(None if draws is None else draws.count * draws.structure.dim, size)
    student = Cost(parameters(result.student), result.bytes)
    content["models"] = [
        summary.model(f"average of {count:,} draws", "teacher", teacher),
        summary.model(type(result.student).__name__, "student", student),
    ]
    content["title"] = f"{count:,} posterior draws, condensed"
    content["density"] = result.head is None
    if agreement is None:
        content["summary"] = str(result).rstrip().rsplit("\n", 1)[-1]
        needs = "it needs inputs, the draws and predict"
        notes.append(f"The student was not compared with the average of all draws: {needs}.")
    else:
        content["agreement"] = asdict(replace(agreement, new_inputs=None))
        content["summary"] = agreement.sentence()
    _add_checks(result, content, notes)
    arrays = {} if draws is None else _predictions(result, draws, x)
    if isinstance(bag := result.student, SampleBag):
        arrays["pseudo_draws"] = dense(bag._flat)
        arrays["pseudo_weights"] = dense(bag.weights)
        if draws is not None:
            subset = draws.take(summary.some(draws.count, 2000))
            arrays["draws"] = dense(draws.structure.flatten(subset))
    if points is not None:
        arrays["points"] = dense(points).astype(float)
        if labels is not None:
            arrays["labels"] = dense(labels)
    return content | {"notes": notes}, arrays


def _add_checks(result: Condensed, content: dict[str, Any], notes: list[str]) -> None:
    r"""Add the diagnostics of the draws and the student at new inputs, with verdicts or notes."""
    checks = result.diagnostics
    if checks is not None and len(checks.r_hat):
        worst = checks.r_hat.nan_to_num(0.0).max().item()
        least = checks.ess.nan_to_num(math.inf).min().item()
        words = f"R̂ is at most {worst:.3f} and the effective size at least {least:,.0f}."
        if checks.reasons:
            words = f"The draws themselves are doubtful: {'; '.join(checks.reasons)}."
        content["verdicts"].append(summary.verdict("draws", not checks.reasons, words))
        content["diagnostics"] = checks.record()
    if (new := result.new_inputs) is not None:
        content["new_inputs"] = new.record()
        words = f"{new.reason[:1].upper()}{new.reason[1:]}."
        if new.state == "unchecked":
            notes.append(words)
        else:
            held = new.state == "trustworthy"
            content["verdicts"].append(summary.verdict("new inputs", held, words))


@torch.no_grad()
def _predictions(result: Condensed, draws: Draws, x: object) -> summary.Arrays:
    r"""Curves over one variable, or surfaces over two, by teacher and student.

    Predictions cover the inputs x; densities, four deviations on either side of the student's mean.
    """
    student: Any = result.student
    calling, like = result.calling, next(student.parameters())
    assert calling is not None
    if is_density := result.head is None:
        mean, variance = (getattr(student, name, None) for name in ("mean", "variance"))
        if not isinstance(mean, Tensor) or not isinstance(variance, Tensor) or mean.numel() > 2:
            return {}
        low, high = (dense(mean.double() + sign * variance.sqrt()).ravel() for sign in (-4, 4))
    else:
        rows = None if x is None or isinstance(x, dict) else dense(x).astype(float)
        if rows is None or rows.ndim != 2 or rows.shape[1] > 2 or len(rows) < 2:
            return {}
        low, high = rows.min(0), rows.max(0)
        margin = 0.05 * np.where(high > low, high - low, 1.0)
        low, high = low - margin, high + margin
    axes = list(np.linspace(low, high, SIDE if len(low) == 2 else LINE, axis=1))
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))
    grid = torch.as_tensor(points).to(like.device, like.dtype)
    # as many draws as need at most 2 · 10⁷ evaluations
    index = summary.some(draws.count, max(100, 2 * 10**7 // len(grid)))
    if len(index) < draws.count:
        draws = Draws.one_chain(draws.take(index))
    draws = draws.to(like.device, like.dtype)
    if is_density:
        teacher = average(calling.stacked(draws.structure.unflatten(draws.flat)))
        events = grid[:, 0] if not teacher.event and len(axes) == 1 else grid
        both = [density.log_prob(events).exp()[:, None] for density in (teacher, student)]
    else:  # a column for each of the first four outputs
        predicted = predictive(calling, draws, grid), result.predict(grid)
        both = [prediction.mean.reshape(len(grid), -1)[:, :4] for prediction in predicted]
    kind, shape = "curve" if len(axes) == 1 else "surface", (-1, *map(len, axes))
    arrays = {f"{kind}_{name}": axis for name, axis in zip("xy", axes, strict=False)}
    for name, values in zip(pictures.MODELS, both, strict=True):
        arrays[f"{kind}_{name}"] = dense(values.double()).T.reshape(shape)
    return arrays


def report_on(saved: Saved) -> Report:
    r"""Agreement, surfaces or curves, compact weights, the largest R̂ with effective sizes."""
    content, shown = saved.content, list[Stat]()
    beside: list[Block] = ["Without the draws and inputs, nothing could be compared."]
    if (agreement := saved_agreement(content)) is not None:
        note = "t is the average over all draws, f the student; means over the inputs."
        beside = [replace(from_rich(agreement.table()), words=(0,), note=note)]
        error = f"{agreement.mean_error:.2g}"
        shown.append(Stat(error, "mean difference from the average of all draws"))
        shown.append(Stat(f"{agreement.kl:.2g}", "nats of KL(average ‖ student)"))
        ways = agreement.savings()
        shown += [ratio(way, f"{'than' if '×' in way else 'as'} the draws") for way in ways]
    if not content.get("density"):
        check = NewInputs.from_record(content.get("new_inputs")).lines()
        title, heads = "Inputs that the student has not seen", ["measure", "value"]
        beside.append(TableBlock(title, heads, list(map(list, check)), words=(0, 1)))
        beside += gallery(saved, "Worth and calibration", pictures.worth, pictures.ranks)
    counts = {name: len(saved.arrays.get(f"{name}_student", ())) for name in ("curve", "surface")}
    draws = [partial(pictures.curve, output=k) for k in range(counts["curve"])]
    both = gallery(saved, "Student and average of all draws", *draws)
    for k in range(counts["surface"]):
        each = [partial(pictures.surface, model=name, output=k) for name in pictures.MODELS]
        title = f"Output {k}" if counts["surface"] > 1 else "Surfaces"
        gap = partial(pictures.difference, output=k)
        both += gallery(saved, title, *each, gap)
    checks = content.get("diagnostics") or {"names": (), "r_hat": (), "ess": ()}
    figures = zip(checks["names"], checks["r_hat"], checks["ess"], strict=True)
    rows = [
        [name or "–", "–" if r_hat is None else f"{r_hat:.3f}", value(ess and round(ess))]
        for name, r_hat, ess in sorted(figures, key=lambda row: -(row[1] or 0.0))[:40]
    ]
    note = "R̂ above 1.05 means that chains disagree; a student cannot be better than its draws."
    table = TableBlock("Diagnostics", ["number", "R̂", "effective size"], rows, True, note)
    return shown, {
        "Teacher beside student": beside,
        "What both predict": both,
        "Compact weights": _weight_blocks(saved),
        "The draws": [table] if rows else [],
    }


def saved_agreement(content: Mapping[str, Any]) -> Agreement | None:
    r"""The comparison in a result's content."""
    saved = content.get("agreement")
    return Agreement(**saved) if saved else None


def _weight_blocks(saved: Saved) -> list[Block]:
    arrays = saved.arrays
    if "pseudo_draws" not in arrays:
        return []
    words = (
        "The student averages over these few trained draws instead of the posterior's. They need "
        "not lie where the posterior has its mass: only their joint prediction matters."
    )
    draws, blocks = arrays["pseudo_draws"], gallery(saved, "Weights", pictures.weights)
    blocks = [words, *blocks] if blocks else []
    if draws.shape[1] <= 12:
        names = ["component", "weight", *pictures.coordinate_names(saved)]
        numbers = [[f"{number:.4g}" for number in row] for row in draws.tolist()]
        shares = [f"{share:.4f}" for share in arrays["pseudo_weights"]]
        rows = [[str(k), shares[k], *row] for k, row in enumerate(numbers)]
        blocks.append(TableBlock("Pseudo-draws", names, rows))
    return blocks
