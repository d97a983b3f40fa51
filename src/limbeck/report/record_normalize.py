r"""What a result of `normalize` holds: samples, features, log probabilities, log Z."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from limbeck.arguments import whole_number
from limbeck.errors import ArgumentError
from limbeck.normalization.estimate import NAMES, LogPartition
from limbeck.report.summary import as_array, device_of, image_shape, model, some, story, verdict
from limbeck.supports import Discrete
from limbeck.training.result import Result

__all__ = ["by_name", "estimated", "estimates", "normalized"]

Several = LogPartition | Mapping[str, LogPartition]


def estimated(
    result: Several, *, target: Any = None, proposal: Any = None, exact: float | None = None
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    r"""Content of one or several estimates of log Z.

    Arguments:
        result: An estimate, or several by name.
        target: What was normalised.
        proposal: The student that it was estimated with, if there was one.
        exact: The true value, where it is known, drawn beside.
    """
    found = by_name(result)
    first = next(iter(found.values()))
    name = "the target" if target is None else type(target).__name__
    models = [model(name, "teacher", target)]
    if proposal is not None:
        models.append(model(type(proposal).__name__, "student", proposal))
    summary = " ".join(z.sentence() for z in found.values())
    own: dict[str, Any] = {
        "title": f"log Z of {name}",
        "summary": summary,
        "seconds": sum(z.seconds for z in found.values()),
        "device": device_of(target),
        "models": models,
        "settings": {"samples": first.samples, "seed": first.seed, "methods": ", ".join(found)},
    }
    entries, verdicts = estimates(found)
    own |= {"log_z": entries, "verdicts": verdicts}
    if exact is not None:
        own["exact"] = float(exact)
    return own, {}


def estimates(found: Mapping[str, LogPartition]) -> tuple[list[Any], list[Any]]:
    r"""Estimates as results keep them, and the verdicts on them."""
    entries, verdicts = [], []
    for name, z in found.items():
        known = z.to_dict()
        low, high = known["interval_95"]
        entries.append({"name": name, "low": low, "high": high, **known})
        reasons = "; ".join(z.verdict.reasons)
        how = NAMES.get(z.method, z.method)
        words = f"No check speaks against log Z by {how}."
        if not z.verdict:
            words = f"{z.verdict.state.capitalize()}: {reasons}."
        verdicts.append(verdict(f"log Z, {name}", z.verdict.trustworthy, words))
    return entries, verdicts


def by_name(result: Any) -> dict[str, LogPartition]:
    r"""Estimates by name; several without names are called by their methods."""
    if isinstance(result, LogPartition):
        return {result.method: result}
    if isinstance(result, Mapping):
        found = {str(name): z for name, z in result.items()}
    else:
        several, found = list(result or ()), dict[str, LogPartition]()
        for z in several:
            name = getattr(z, "method", "?")
            found[f"{name} {len(found) + 1}" if name in found else name] = z
    for z in found.values():
        if not isinstance(z, LogPartition):
            expected = "what log_partition gives back, or several of these by name"
            raise ArgumentError("log_z", f"a {type(z).__name__}", expected)
    if not found:
        raise ArgumentError("log_z", "no estimate", "one or more")
    return found


IMAGES, EVENTS, FEATURES = 100, 2000, 100
r"""Samples, events with their log probabilities, and features that are kept."""


@torch.no_grad()
def normalized(
    result: Result,
    *,
    target: Any = None,
    data: Any = None,
    log_z: Any = None,
    exact: float | None = None,
    sweeps: int = 200,
    image: Any = "auto",
    by_column: bool = False,
    seed: int = 0,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    r"""Content and arrays of a tractable student of an unnormalised density.

    Arguments:
        result: What `normalize` gave back.
        target: The density; None leaves out what needs it.
        data: Events (n, *shape), best such as neither has seen; None takes samples of the target.
        log_z: Estimates of log Z by the student: one, or several by name.
        exact: The true log Z, where it is known.
        sweeps: Of the chains, started at samples of the student, that stand for the target.
        image: Height and width, where events are images; "auto" guesses, None is for no images.
        by_column: Whether the numbers of a flat image go down its columns, one after the other.
        seed: Of the samples.
    """
    sweeps = whole_number("sweeps", sweeps, "a whole number from 0", least=0)
    own, student = story(result), result.student
    teacher_name = "the target" if target is None else type(target).__name__
    own["models"] = [
        model(teacher_name, "teacher", target),
        model(type(student).__name__, "student", student),
    ]
    own["title"] = f"{teacher_name}, normalized"
    if (doubt := own["settings"].pop("doubt", None)) is not None:
        own["verdicts"].append(verdict("chains", False, f"Doubtful: {doubt}."))
    value = exact
    if log_z is not None:
        found = by_name(log_z)
        own["log_z"], verdicts = estimates(found)
        own["verdicts"] += verdicts
        trusted = [z.value for z in found.values() if z.verdict]
        value = trusted[0] if value is None and trusted else value
    if exact is not None:
        own["exact"] = float(exact)
    arrays = _samples(student, target, sweeps, seed)
    events = arrays.get("samples_teacher") if data is None else as_array(data).astype(float)
    if events is not None:
        chosen = events[some(len(events), EVENTS, seed)]
        own |= _log_probabilities(student, target, chosen, value, data is not None, arrays)
    if value is not None and "samples_teacher" in arrays:
        own["divergence"] = _divergence(student, target, arrays["samples_teacher"], value)
    for name in ("samples_teacher", "samples_student"):
        if name in arrays:
            arrays[name] = arrays[name][:IMAGES]
    arrays |= _features(target, "teacher") | _features(student, "student")
    shown = next((arrays[n] for n in ("samples_student", "samples_teacher") if n in arrays), None)
    shape = None if shown is None else image_shape(shown, image)
    if shape is not None:
        own |= {"image": list(shape), "by_column": bool(by_column)}
    own["summary"] = _summary(own, teacher_name, target, result)
    return own, arrays


def _samples(student: Any, target: Any, sweeps: int, seed: int) -> dict[str, np.ndarray]:
    r"""Samples of the student, and where chains of the target went from others of them."""
    if not callable(getattr(student, "sample", None)):
        return {}
    like = next(student.parameters())
    generator = torch.Generator(like.device).manual_seed(seed)
    count = EVENTS if target is not None else IMAGES
    drawn: Tensor = student.sample(2 * count, generator=generator)
    arrays = {"samples_student": _plain(drawn[:count])}
    if callable(advance := getattr(target, "advance", None)):
        arrays["samples_teacher"] = _plain(advance(drawn[count:], sweeps, generator))
    return arrays


def _log_probabilities(
    student: Any,
    target: Any,
    events: np.ndarray,
    log_z: float | None,
    given: bool,
    arrays: dict[str, np.ndarray],
) -> dict[str, Any]:
    x = _events(student, target, events)
    arrays["log_prob_student"] = _plain(student.log_prob(x).double())
    where = "held-out events" if given else "samples of the target"
    found: dict[str, Any] = {
        "held_out": {
            "events": len(events),
            "where": where,
            "student": float(arrays["log_prob_student"].mean()),
        }
    }
    if target is None:
        return found
    logs = _plain(target.log_unnormalized(x).double())
    shift = float((logs - arrays["log_prob_student"]).mean()) if log_z is None else log_z
    arrays["log_prob_teacher"] = logs - shift
    found["log_z_used"] = log_z
    if log_z is None:
        return found
    found["held_out"]["teacher"] = float(arrays["log_prob_teacher"].mean())
    return found


def _divergence(student: Any, target: Any, events: np.ndarray, log_z: float) -> dict[str, float]:
    r"""KL(p ‖ q) as the mean of log p − log q over samples of the target, with its error."""
    x = _events(student, target, events)
    gap = _plain(target.log_unnormalized(x).double() - log_z - student.log_prob(x).double())
    return {"value": float(gap.mean()), "std_error": float(gap.std(ddof=1) / math.sqrt(len(gap)))}


def _events(student: Any, target: Any, events: np.ndarray) -> Tensor:
    like = next(student.parameters())
    x = torch.as_tensor(events).to(like.device, like.dtype)
    return x if target is None else x.reshape(len(x), *target.support.shape)


def _features(of: Any, name: str) -> dict[str, np.ndarray]:
    r"""Weights of hidden units (k, d), those of greatest norm first."""
    held = getattr(of, "W", getattr(of, "w", None))
    support = getattr(of, "support", None)
    if not isinstance(held, Tensor) or held.ndim != 2 or not isinstance(support, Discrete):
        return {}
    weights = _plain(held)
    order = getattr(of, "order", None)
    if isinstance(order, Tensor) and len(order) == len(weights):  # back to the events' own places
        weights = weights[np.argsort(_plain(order))]
    if len(weights) != math.prod(support.shape):
        return {}
    columns = weights.T[np.argsort(-np.linalg.norm(weights, axis=0), kind="stable")]
    return {f"features_{name}": columns[:FEATURES]}


def _summary(own: dict[str, Any], name: str, target: Any, result: Result) -> str:
    kind = own["models"][1]["name"]
    name = name if target is None else f"the {name}"
    said = f"{_an(kind)}, distilled from {name} in {result.seconds:.0f} s"
    held = own.get("held_out")
    if held is None:
        return f"{said}; its log probabilities are exact."
    said += f", gives {held['where']} a log probability of {held['student']:.2f} nats on average"
    if "teacher" in held:
        said += f" ({name} itself {held['teacher']:.2f})"
    for z in [each for each in own.get("log_z", []) if each["value"] is not None][:1]:
        width = (z["high"] - z["low"]) / 2 if z["high"] is not None else math.inf
        trust = "" if z["trustworthy"] else ", which should not be relied on"
        trust = ", which is unchecked" if z["state"] == "unchecked" else trust
        said += f"; with it, log Z is {z['value']:.3f} ± {width:.3f} (95%, by {z['method']}){trust}"
    return said + "."


def _an(word: str) -> str:
    r"""A name with its article."""
    return f"{'An' if word[:1].lower() in 'aeiou' else 'A'} {word}"


def _plain(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()
