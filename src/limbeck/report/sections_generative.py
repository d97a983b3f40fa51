r"""The reports on a normalised density, and on estimates of log Z."""

from __future__ import annotations

from typing import Any

from limbeck.normalization.estimate import NAMES, _with_error
from limbeck.report import pictures
from limbeck.report.blocks import Block, Prose, Section, Stat, TableBlock
from limbeck.report.drawing import Drawing
from limbeck.report.pictures_generative import MODELS, has_interval
from limbeck.report.sections import value

__all__ = ["sections", "stats"]

TITLES = {"ess": "effective size", "r_hat": "R̂", "pareto_k": "Pareto k̂", "burn_in": "burn-in"}
r"""Diagnostics whose names are not words."""

BOUNDS = {"lower bound": "lower", "upper bound": "upper"}


def stats(content: dict[str, Any]) -> list[Stat]:
    r"""Log probabilities, the divergence, log Z."""
    found = []
    if held := content.get("held_out"):
        itself = f", the teacher {held['teacher']:.2f}" if "teacher" in held else ""
        label = f"nats, mean log probability of {held['where']}{itself}"
        found.append(Stat(f"{held['student']:.2f}", label))
    if kl := content.get("divergence"):
        found.append(_stat(kl, "nats of KL(teacher ‖ student)"))
    for z in (content.get("log_z") or [])[:2]:
        trust = "" if z["trustworthy"] else f", {_state(z)}"
        found.append(_stat(z, f"log Z, {z['name']}{trust}"))
    if content.get("exact") is not None:
        found.append(Stat(f"{content['exact']:.4f}", "log Z, exact"))
    return found


def _stat(found: dict[str, Any], label: str) -> Stat:
    value, _, error = _error(found["value"], found["std_error"]).partition(" ± ")
    return Stat(value, label, f"± {error}" if error else "")


def sections(drawing: Drawing) -> list[Section]:
    r"""Models, samples, features, log probabilities, estimates of log Z."""
    return [
        Section("Teacher beside student", _beside(drawing.saved.content)),
        Section("Samples", _samples(drawing)),
        Section("Features", _features(drawing)),
        Section("Log probabilities", _log_probabilities(drawing)),
        Section("log Z", _log_z(drawing)),
    ]


def _beside(content: dict[str, Any]) -> list[Block]:
    held, kl = content.get("held_out"), content.get("divergence")
    rows = []
    if held:
        logs = ["–" if held.get(m) is None else f"{held[m]:.3f}" for m in MODELS]
        rows.append([f"mean log probability of {held['events']:,} {held['where']}", *logs])
    if kl:
        rows.append(["KL(teacher ‖ student)", "", _error(kl["value"], kl["std_error"])])
    title = "In nats"
    return [TableBlock(title, ["", *MODELS], rows, sortable=False)] if rows else []


def _samples(drawing: Drawing) -> list[Block]:
    arrays = drawing.saved.arrays
    known = [model for model in MODELS if f"samples_{model}" in arrays]
    if not drawing.pictures or not known:
        return []
    if drawing.saved.content.get("image"):
        drawn = [drawing.picture(m, pictures.samples, True, model=m) for m in known]
    elif len(known) == len(MODELS):
        drawn = [drawing.picture("Samples", pictures.samples)]
    else:
        return []
    words = (
        "The student's samples are independent and exact. The teacher's are the states of chains "
        "that began at other samples of the student: modes that the student lacks may be missing "
        "there too."
    )
    return [Prose(words), *drawing.gallery("Samples", *drawn)]


def _features(drawing: Drawing) -> list[Block]:
    if not drawing.pictures or not drawing.saved.content.get("image"):
        return []
    drawn = [
        drawing.picture(model, pictures.features, True, model=model)
        for model in MODELS
        if f"features_{model}" in drawing.saved.arrays
    ]
    return [*drawing.gallery("Weights of hidden units", *drawn)]


def _log_probabilities(drawing: Drawing) -> list[Block]:
    arrays = drawing.saved.arrays
    if not drawing.pictures or not {"log_prob_teacher", "log_prob_student"} <= arrays.keys():
        return []
    drawn = drawing.picture("Sorted log probabilities", pictures.log_probabilities)
    return [*drawing.gallery("Sorted log probabilities", drawn)]


def _log_z(drawing: Drawing) -> list[Block]:
    content = drawing.saved.content
    entries = content.get("log_z") or []
    if not entries:
        return []
    blocks: list[Block] = []
    if drawing.pictures and any(map(has_interval, entries)):
        blocks += drawing.gallery("Estimates", drawing.picture("log Z", pictures.log_z))
    heads = ["estimate", "verdict", "log Z", "95% interval", *BOUNDS, "seconds"]
    rows = []
    for each in entries:
        bounds = each.get("bounds") or {}
        rows.append([
            each["name"],
            _state(each),
            _error(each["value"], each["std_error"]),
            f"{_number(each['low'])} … {_number(each['high'])}",
            *("–" if not bounds.get(b) else _error(*bounds[b]) for b in BOUNDS.values()),
            f"{each['seconds']:.2f}",
        ])  # fmt: skip
    note = "± is one standard error. Bounds hold in expectation, each with its own error."
    blocks.append(TableBlock("Estimates of log Z", heads, rows, True, note, (0, 1)))
    for each in entries:
        if each["reasons"]:
            how, why = NAMES.get(each["method"], each["method"]), "; ".join(each["reasons"])
            blocks.append(Prose(f"{each['name']} ({how}) is {_state(each)}: {why}."))
    known = [each.get("diagnostics") or {} for each in entries]
    names = list(dict.fromkeys(name for each in known for name in each))
    rows = [
        [TITLES.get(n, n.replace("_", " ")), *(value(e[n]) if n in e else "" for e in known)]
        for n in names
    ]
    if rows:
        columns = ["diagnostic", *(each["name"] for each in entries)]
        blocks.append(TableBlock("Diagnostics", columns, rows, sortable=False))
    return blocks


def _state(estimate: dict[str, Any]) -> str:
    r"""The verdict's state; results saved by earlier versions hold only whether it is trusted."""
    trusted = "trustworthy" if estimate["trustworthy"] else "doubtful"
    return str(estimate.get("state", trusted))


def _error(number: float | None, error: float | None) -> str:
    if number is None:
        return "–"
    return f"{number:.4f}" if error is None else _with_error(number, error)


def _number(given: float | None) -> str:
    return "∞" if given is None else f"{given:.4f}"
