r"""Normalised densities and estimates of log Z: the record of a result, and the report on it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from limbeck.arguments import integer
from limbeck.errors import ArgumentError
from limbeck.normalization.densities import place_of
from limbeck.normalization.estimate import NAMES, LogPartition, mean_bound, with_error
from limbeck.report import pictures, summary
from limbeck.report.blocks import Block, Report, Stat, TableBlock, gallery, value
from limbeck.samplers.chains import Target
from limbeck.storage import Saved
from limbeck.supports import Discrete
from limbeck.teachers.keys import dense
from limbeck.training.result import Result

Estimates = LogPartition | Mapping[str, LogPartition]
SHEET, EVENTS = 100, 2000  # samples and events with log probabilities that are stored
MODELS = pictures.MODELS


def estimated(
    result: Estimates, *, target: object = None, proposal: object = None, exact: float | None = None
) -> tuple[dict[str, Any], summary.Arrays]:
    r"""Content of estimates of log Z, with the target and the proposal that they were made with."""
    named, log_z, verdicts = estimates(result)
    first = next(iter(named.values()))
    name = "the target" if target is None else type(target).__name__
    models = [summary.model(name, "teacher", target)]
    if proposal is not None:
        models.append(summary.model(type(proposal).__name__, "student", proposal))
    content = {
        "title": f"log Z of {name}", "summary": " ".join(z.sentence() for z in named.values()),
        "seconds": sum(z.seconds for z in named.values()), "device": str(place_of(target)[0]),
        "models": models, "log_z": log_z, "verdicts": verdicts,
        "settings": {"samples": first.samples, "seed": first.seed, "methods": ", ".join(named)},
    }  # fmt: skip
    return content | ({} if exact is None else {"exact": float(exact)}), {}


def estimates(result: Estimates) -> tuple[dict[str, LogPartition], list[Any], list[Any]]:
    r"""Estimates by name, a single one by its method; their records, and the verdicts on them."""
    given = result if isinstance(result, Mapping) else {getattr(result, "method", ""): result}
    named = {str(name): z for name, z in given.items()}
    kinds = [type(z).__name__ for z in named.values() if not isinstance(z, LogPartition)]
    if kinds or not named:
        received = f"a {kinds[0]}" if kinds else "no estimate"
        raise ArgumentError("log_z", received, "a result of log_partition, or several by name")
    records, verdicts = [], []
    for name, z in named.items():
        records.append({"name": name, **z.to_dict()})
        words = f"All checks passed for log Z by {NAMES.get(z.method, z.method)}."
        if not z.verdict:
            words = f"{z.verdict.state.capitalize()}: {'; '.join(z.verdict.reasons)}."
        verdicts.append(summary.verdict(f"log Z, {name}", z.verdict.trustworthy, words))
    return named, records, verdicts


@torch.no_grad()
def normalized(
    result: Result,
    *,
    target: Target | None = None,
    data: object = None,  # events (n, *shape), best held out; else samples of the target
    log_z: Estimates | None = None,
    exact: float | None = None,
    sweeps: int = 200,  # of the target's chains, which start at samples of the student
) -> tuple[dict[str, Any], summary.Arrays]:
    r"""Content and arrays of a tractable student; without the target, only what needs none."""
    sweeps = integer("sweeps", sweeps, "a whole number from 0", least=0)
    student: Any = result.student
    content = summary.run_summary(result)
    name = "the target" if target is None else type(target).__name__
    student_record = summary.model(type(student).__name__, "student", student)
    content["models"] = [summary.model(name, "teacher", target), student_record]
    content["title"] = f"{name}, normalized"
    if (doubt := content["settings"].pop("doubt", None)) is not None:
        content["verdicts"].append(summary.verdict("chains", False, f"Doubtful: {doubt}."))
    log_z_used = exact
    if log_z is not None:
        named, content["log_z"], verdicts = estimates(log_z)
        content["verdicts"] += verdicts
        if exact is None:
            log_z_used = next((z.value for z in named.values() if z.verdict), None)
    content |= {} if exact is None else {"exact": float(exact)}
    arrays, chains = summary.Arrays(), None
    if callable(getattr(student, "sample", None)):
        generator = torch.Generator(next(student.parameters()).device).manual_seed(0)
        count = EVENTS if target is not None else SHEET
        samples: Tensor = student.sample(2 * count, generator=generator)
        arrays["samples_student"] = dense(samples[:count])
        if callable(advance := getattr(target, "advance", None)):  # from other samples
            chains = arrays["samples_teacher"] = dense(advance(samples[count:], sweeps, generator))
    events = chains if data is None else dense(data).astype(float)
    if events is not None:
        events = events[summary.some(len(events), EVENTS)]
        log_p, log_q = _log_densities(student, target, events)
        arrays["log_prob_student"] = log_q
        where = "samples of the target" if data is None else "held-out events"
        held_out = {"events": len(events), "where": where, "student": float(log_q.mean())}
        content["held_out"] = held_out
        if log_p is not None:
            shift = float((log_p - log_q).mean()) if log_z_used is None else log_z_used
            arrays["log_prob_teacher"] = log_p - shift
            content["log_z_used"] = log_z_used
            if log_z_used is not None:
                held_out["teacher"] = float(arrays["log_prob_teacher"].mean())
    if target is not None and log_z_used is not None and chains is not None:
        log_p, log_q = _log_densities(student, target, chains)
        bound = mean_bound(torch.as_tensor(log_p - log_q))
        content["divergence"] = {"value": bound - log_z_used, "std_error": bound.std_error}
    for key in arrays.keys() & {"samples_teacher", "samples_student"}:
        arrays[key] = arrays[key][:SHEET]
    arrays |= _features(target, "teacher") | _features(student, "student")
    content |= summary.image_of(arrays.get("samples_student"))
    content["summary"] = _sentence(content, name if target is None else f"the {name}")
    return content, arrays


def _log_densities(student: Any, target: Any, events: np.ndarray) -> tuple[Any, np.ndarray]:
    r"""Unnormalised log densities by the target, None without it, and those by the student."""
    x = torch.as_tensor(events).to(next(student.parameters()))
    x = x if target is None else x.reshape(len(x), *target.support.shape)
    log_p = None if target is None else dense(target.log_unnormalized(x).double())
    return log_p, dense(student.log_prob(x).double())


def _features(of: object, name: str) -> summary.Arrays:
    r"""Weights of hidden units (k, d), those of greatest norm first."""
    tensor = getattr(of, "W", getattr(of, "w", None))
    support = getattr(of, "support", None)
    if not isinstance(tensor, Tensor) or tensor.ndim != 2 or not isinstance(support, Discrete):
        return {}
    weights, order = dense(tensor), getattr(of, "order", None)
    if isinstance(order, Tensor) and len(order) == len(weights):  # back to the events' order
        weights = weights[np.argsort(dense(order))]
    if len(weights) != math.prod(support.shape):
        return {}
    columns = weights.T[np.argsort(-np.linalg.norm(weights, axis=0), kind="stable")]
    return {f"features_{name}": columns[:100]}


def _sentence(content: dict[str, Any], teacher: str) -> str:
    student = content["models"][1]["name"]
    article = "An" if student[:1].lower() in "aeiou" else "A"
    text = f"{article} {student}, distilled from {teacher} in {content['seconds']:.0f} s"
    held_out = content.get("held_out")
    if held_out is None:
        return f"{text}; its log probabilities are exact."
    log_prob = f"a log probability of {held_out['student']:.2f} nats on average"
    text += f", gives {held_out['where']} {log_prob}"
    if "teacher" in held_out:
        text += f" ({teacher} itself {held_out['teacher']:.2f})"
    for z in [entry for entry in content.get("log_z", []) if entry["value"] is not None][:1]:
        low, high = z["interval_95"]
        width = (high - low) / 2 if high is not None else math.inf
        trust = "" if z["trustworthy"] else f", which is {z['state']}"
        text += f"; with it, log Z is {z['value']:.3f} ± {width:.3f} (95%, by {z['method']}){trust}"
    return text + "."


def report_on(saved: Saved) -> Report:
    r"""Log probabilities, the divergence, log Z; samples and features."""
    content, shown = saved.content, list[Stat]()
    if held_out := content.get("held_out"):
        teacher = f", the teacher {held_out['teacher']:.2f}" if "teacher" in held_out else ""
        label = f"nats, mean log probability of {held_out['events']:,} {held_out['where']}{teacher}"
        shown.append(Stat(f"{held_out['student']:.2f}", label))
    if divergence := content.get("divergence"):
        figure = _with_error_or_dash(divergence["value"], divergence["std_error"])
        shown.append(Stat(figure, "nats of KL(teacher ‖ student)"))
    for z in (content.get("log_z") or [])[:2]:
        label = f"log Z, {z['name']}{'' if z['trustworthy'] else ', ' + z['state']}"
        shown.append(Stat(_with_error_or_dash(z["value"], z["std_error"]), label))
    if content.get("exact") is not None:
        shown.append(Stat(f"{content['exact']:.4f}", "log Z, exact"))
    names = MODELS if content.get("image") else MODELS[:1]  # other samples are in one picture
    samples = (partial(pictures.samples, model=name) for name in names)
    features = (partial(pictures.features, model=name) for name in MODELS)
    sheets = gallery(saved, "Samples", *samples)
    words = (
        "The student's samples are independent and exact. The teacher's are the states of chains "
        "that began at other samples of the student: modes that the student lacks may be missing "
        "there too."
    )
    return shown, {
        "Samples": [words, *sheets] if sheets else [],
        "Features": gallery(saved, "Weights of hidden units", *features),
        "Log probabilities": gallery(saved, "Sorted log probabilities", pictures.log_probabilities),
        "log Z": _log_z_blocks(saved),
    }


def _log_z_blocks(saved: Saved) -> list[Block]:
    if not (entries := saved.content.get("log_z")):
        return []
    rows = []
    for entry in entries:
        bounds = [(entry.get("bounds") or {}).get(side) for side in ("lower", "upper")]
        limits = [_with_error_or_dash(*(bound or ())) for bound in bounds]
        log_z = _with_error_or_dash(entry["value"], entry["std_error"])
        ends = ("∞" if end is None else f"{end:.4f}" for end in entry["interval_95"])
        row = [entry["name"], entry["state"], log_z, " … ".join(ends), *limits]
        rows.append([*row, f"{entry['seconds']:.2f}"])
    heads = ["estimate", "verdict", "log Z", "95% interval", "lower bound", "upper bound"]
    note = "± is one standard error. Bounds hold in expectation, each with its own error."
    table = TableBlock("Estimates of log Z", [*heads, "seconds"], rows, True, note, (0, 1))
    diagnostics = [entry.get("diagnostics") or {} for entry in entries]
    titles = {"ess": "effective size", "r_hat": "R̂", "pareto_k": "Pareto k̂", "burn_in": "burn-in"}
    rows = [
        [titles.get(n, n.replace("_", " ")), *(value(e[n]) if n in e else "" for e in diagnostics)]
        for n in dict.fromkeys(name for numbers in diagnostics for name in numbers)
    ]
    columns = ["diagnostic", *(entry["name"] for entry in entries)]
    further = [TableBlock("Diagnostics", columns, rows, sortable=False)] if rows else []
    return [*gallery(saved, "Estimates", pictures.log_z), table, *further]


def _with_error_or_dash(mean: float | None = None, error: float | None = None) -> str:
    if mean is None:
        return "–"
    return f"{mean:.4f}" if error is None else with_error(mean, error)
