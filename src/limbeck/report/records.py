r"""`described`: what a verb gave back, as the content and the arrays of a result folder.

Every content has: verb, title, summary (the sentence to tell a colleague), command, circumstances,
seed, seconds, settings, models (name, role, parameters, bytes), history, verdicts, notes. Beside
these, by verb, with the arrays that pictures are drawn of:

| verb | content | arrays |
|---|---|---|
| compress | fidelity (`Fidelity.to_dict`), examples, image | disagreement_rows (k, …) |
| condense | agreement, diagnostics, density | surface_x, surface_y, surface_teacher and |
| | | surface_student (K, m, m); curve_x, curve_teacher, curve_student; draws (n, dim), |
| | | pseudo_draws (K, dim), pseudo_weights (K,); points (n, 2), labels (n,) |
| normalize | log_z, divergence, held_out, image | samples_teacher, samples_student (n, d), |
| | | features_teacher, features_student (k, d), log_prob_teacher, log_prob_student (n,) |
| logz | log_z, exact | – |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from limbeck.arguments import whole_number
from limbeck.environment import environment
from limbeck.errors import ArgumentError
from limbeck.report.record_compress import compressed
from limbeck.report.record_condense import condensed
from limbeck.report.record_normalize import estimated, normalized
from limbeck.storage.folder import FORMAT, VERBS

__all__ = ["described"]

Found = tuple[dict[str, Any], dict[str, np.ndarray]]

MAKERS: dict[str, Callable[..., Found]] = {
    "compress": compressed,
    "condense": condensed,
    "normalize": normalized,
    "logz": estimated,
}


def described(
    result: Any,
    *,
    verb: str,
    command: str = "",
    title: str | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    verdicts: Any = (),
    notes: Any = (),
    **evidence: Any,
) -> Found:
    r"""What a verb gave back, ready for `limbeck.storage.write`.

    Arguments:
        result: What the verb gave back; for "logz", one estimate of log Z or several by name.
        verb: "compress", "condense", "normalize" or "logz".
        command: The line that repeats the run.
        title: What it is called; None takes one from the models.
        seed: What the run was seeded with; None takes the result's own.
        settings: What was asked for, shown before what the result says of itself.
        verdicts: Further verdicts, such as of requirements; see `limbeck.report.summary.required`.
        notes: Further remarks, a sentence each.
        evidence: What else the verb's pictures need: see `compressed`, `condensed`, `normalized`
            and `estimated` beside this function.
    """
    if verb not in VERBS:
        raise ArgumentError.unknown("verb", verb, VERBS)
    own, arrays = MAKERS[verb](result, **evidence)
    named = own.pop("settings", {})
    found = seed if seed is not None else named.get("seed", getattr(result, "seed", None))
    seed = None if found is None else whole_number("seed", found, "a whole number from 0", 0)
    content = {
        "format": FORMAT,
        "verb": verb,
        "title": own.pop("title") if title is None else title,
        "summary": own.pop("summary"),
        "command": command,
        "circumstances": environment(own.pop("device", "cpu")),
        "seed": seed,
        "seconds": own.pop("seconds"),
        "settings": {**dict(settings or {}), **named},
        "models": own.pop("models", []),
        "history": own.pop("history", {}),
        "verdicts": [*own.pop("verdicts", []), *verdicts],
        "notes": [*own.pop("notes", []), *notes],
    }
    own.pop("title", None)
    return {**content, **own}, arrays
