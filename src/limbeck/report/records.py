r"""`to_record`: a verb's result as the content and the arrays of a result folder.

Every content has: verb, title, summary (one sentence), command, circumstances, seed, seconds,
settings, models (name, role, parameters, bytes), history, verdicts, notes. By verb, it also has:

| verb | content | arrays |
|---|---|---|
| compress | fidelity (`Fidelity.to_dict`), examples, image | disagreement_rows (k, …), if images |
| condense | agreement, diagnostics, density | surface_x, surface_y, surface_teacher and |
| | | surface_student (K, m, m); curve_x, curve_teacher, curve_student; draws (n, dim), |
| | | pseudo_draws (K, dim), pseudo_weights (K,); points (n, 2), labels (n,) |
| normalize | log_z, divergence, held_out, image | samples_teacher, samples_student (n, d), |
| | | features_teacher, features_student (k, d), log_prob_teacher, log_prob_student (n,) |
| logz, evidence | log_z, exact | – |
"""

from __future__ import annotations

import copy
from typing import Annotated, Any

from limbeck.arguments import Choice, Seed, Text, UserObject, checked_arguments
from limbeck.environment import environment
from limbeck.errors import ArgumentError
from limbeck.report import compression, condensation, normalization
from limbeck.report.summary import Arrays
from limbeck.storage import EMPTY, FORMAT, VERBS

# by verb: the function that makes a record, and that which reports on it
REPORTS: dict[str, tuple[Any, Any]] = {
    "compress": (compression.compressed, compression.report_on),
    "condense": (condensation.condensed, condensation.report_on),
    "normalize": (normalization.normalized, normalization.report_on),
    **dict.fromkeys(("logz", "evidence"), (normalization.estimated, normalization.report_on)),
}


@checked_arguments
def to_record(
    result: UserObject[object], *, verb: Annotated[str, Choice(*VERBS)], command: Text = "",
    seed: Seed | None = None, **evidence: Any,
) -> tuple[dict[str, Any], Arrays]:  # fmt: skip
    r"""A verb's result, ready for `limbeck.storage.write`.

    Change the content before it is written to add a title, settings, notes or verdicts.

    Arguments:
        result: The result of the verb; for "logz" and "evidence", one estimate or several by name.
        verb: "compress", "condense", "normalize", "logz" or "evidence".
        command: The command that repeats the run. Default: "".
        seed: The seed of the run. Default: None, the result's own.
        evidence: Data for the comparison: arguments of `compressed`, `condensed`, `normalized` or
            `estimated`.
    """
    kind = {"compress": "Compressed", "condense": "Condensed", "normalize": "Result"}.get(verb)
    if kind is not None and kind not in (cls.__name__ for cls in type(result).__mro__):
        raise ArgumentError("result", f"a {type(result).__name__}", f"the result of {verb}")
    record, arrays = REPORTS[verb][0](result, **evidence)
    content = {**copy.deepcopy(EMPTY), "format": FORMAT, "verb": verb, **record}
    if seed is None:
        seed = content["settings"].get("seed", getattr(result, "seed", None))
    circumstances = environment(content.pop("device", "cpu"))
    return content | {"command": command, "seed": seed, "circumstances": circumstances}, arrays
