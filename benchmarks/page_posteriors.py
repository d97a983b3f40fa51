r"""The tables of `evidence.py` and `condense.py`, for `page.py`."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

from page_lines import lines

__all__ = ["condense_table", "evidence_rivals_table", "evidence_table"]

RIVALS = ("random", "kernel thinning", "Stein thinning")
LARGE = 0.01  # nats above which the verdict is to doubt a student
FROM_DRAWS = ("harmonic", "morphZ")
STATES = ("trustworthy", "unchecked", "doubtful")


def evidence_table(path: Path) -> str:
    r"""Coverage, errors and trust for each posterior, and over all."""
    runs = [json.loads(line)["result"] for line in path.read_text().splitlines()]
    known = [run for run in runs if run["state"] != "refused"]
    rows = [_evidence_row(f"*all {len(known)}*", known)]
    for name in dict.fromkeys(run["posterior"] for run in known):
        rows.append(_evidence_row(name, [run for run in known if run["posterior"] == name]))
    heads = (
        "posterior", "95% intervals cover", "trusted", "of these cover", "largest error, in s.e.",
        "largest s.e.", "rms error", "Gaussian bridge", "Student t", "seconds",
    )  # fmt: skip
    refused = f"\n\n{len(runs) - len(known)} runs were refused." if len(runs) > len(known) else ""
    return "\n".join(lines(heads, rows)) + refused


def _evidence_row(name: str, runs: list[dict[str, Any]]) -> list[str]:
    trusted = [run for run in runs if run["state"] == "trustworthy"]
    worst = max((abs(run["error"]) / run["std_error"] for run in trusted), default=0.0)
    rivals = ([run["rivals"][rival] for run in runs] for rival in runs[0]["rivals"])
    errors = [[run["error"] for run in runs], *rivals]
    return [
        name, f"{sum(run['covers'] for run in runs)} of {len(runs)}", str(len(trusted)),
        f"{sum(run['covers'] for run in trusted)}", f"{worst:.1f}",
        f"{max(run['std_error'] for run in runs):.4f}",
        *(f"{(sum(e**2 for e in each) / len(each)) ** 0.5:.4f}" for each in errors),
        f"{sum(run['seconds'] for run in runs) / len(runs):.1f}",
    ]  # fmt: skip


def evidence_rivals_table(path: Path) -> str:
    r"""Other libraries from the same draws, then nested sampling beside limbeck's own chains."""
    runs = [json.loads(line)["result"] for line in path.read_text().splitlines()]
    own = path.with_name(path.name.replace("evidence_rivals", "evidence"))
    beside = [json.loads(line)["result"] for line in own.read_text().splitlines()]
    drawn = [run for run in runs if run["method"] in FROM_DRAWS]
    shared = {(run["posterior"], run["repeat"]) for run in drawn}
    drawn += [
        run | {"method": "limbeck"}
        for run in beside
        if (run["posterior"], run["repeat"]) in shared and run["state"] != "refused"
    ]
    methods, rows, lowest = ("limbeck", *FROM_DRAWS), list[list[str]](), list[str]()
    for name in dict.fromkeys(run["posterior"] for run in drawn):
        each = [[r for r in drawn if (r["posterior"], r["method"]) == (name, m)] for m in methods]
        lowest.append(min(zip(map(_rms, each), methods, strict=True))[1])
        rows.append([
            name, *(f"{_rms(part):.4f}" for part in each), *map(_covered, each),
            *(f"{statistics.median(run['seconds'] for run in part):.1f}" for part in each),
        ])  # fmt: skip
    every = [[run for run in drawn if run["method"] == method] for method in methods]
    totals = ["*all*", *(f"{_rms(part):.4f}" for part in every), *map(_covered, every), "", "", ""]
    heads = [f"{what}{method}" for what in ("rms error, ", "covers, ", "s, ") for method in methods]
    table = lines(("posterior", *heads), [totals, *rows])
    nested = [run for run in runs if run["method"] not in FROM_DRAWS]
    rows = []
    for name, method in sorted({(run["posterior"], run["method"]) for run in nested}):
        part = [run for run in nested if (run["posterior"], run["method"]) == (name, method)]
        trusted = sum(run.get("state") == "trustworthy" for run in part)
        rows.append([
            name, method, f"{_rms(part):.4f}", f"{max(run['std_error'] for run in part):.4f}",
            _covered(part), str(trusted) if method == "limbeck" else "",
            f"{statistics.mean(run['evaluations'] for run in part):,.0f}",
            f"{statistics.mean(run['seconds'] for run in part):.1f}",
        ])  # fmt: skip
    heads = ["posterior", "method", "rms error", "largest s.e.", "covers", "trusted"]
    counts = ", ".join(f"{method}'s on {n}" for method, n in Counter(lowest).most_common())
    text = f"Of {len(lowest)} posteriors, the lowest rms error is {counts}. Sampling included:"
    return "\n".join([*table, "", text, "", *lines((*heads, "evaluations", "seconds"), rows)])


def _rms(runs: list[dict[str, Any]]) -> float:
    return math.sqrt(statistics.mean(run["error"] ** 2 for run in runs))


def _covered(runs: list[dict[str, Any]]) -> str:
    return f"{sum(run['covers'] for run in runs)} of {len(runs)}"


def condense_table(path: Path) -> str:
    r"""KL at new inputs beside thinning, for each posterior; then how the verdict did."""
    results, rows, verdicts = json.loads(path.read_text()), list[list[str]](), Counter[Any]()
    streams = list[float]()
    for name, result in results.items():
        for count, own in result["components"].items():
            verdicts[own["verdict"], own["kl"] > LARGE] += 1
            ratios = (_ratio(own[rival]) if rival in own else "" for rival in RIVALS)
            streams += [own["streamed"] / own["kl"]] if "streamed" in own else []
            streamed = f"{streams[-1]:.2f}" if "streamed" in own else ""
            rows.append([
                f"{name.replace('_', ' ')} ({result['family']}, {result['dim']})", count,
                f"{own['kl']:.2g}", *ratios, streamed, own["verdict"], f"{own['seconds']:.1f}",
            ])  # fmt: skip
    heads = (
        "posterior (family, parameters)", "components", "KL at new inputs",
        *(f"KL / {rival}" for rival in RIVALS), "streamed / stored", "verdict", "seconds",
    )  # fmt: skip
    table = lines(heads, rows)
    of_verdict = (
        [state, str(verdicts[state, False]), str(verdicts[state, True])] for state in STATES
    )
    counts = ("verdict", f"KL at new inputs up to {LARGE}", f"above {LARGE}")
    mean = statistics.geometric_mean(streams) if streams else math.nan
    text = (
        f"The geometric mean of streamed / stored over the {len(streams)} posteriors is {mean:.2f}."
    )
    return "\n".join([*table, "", text, "", *lines(counts, of_verdict)])


def _ratio(beside: dict[str, Any]) -> str:
    low, high = beside["interval"]
    return f"{beside['ratio']:.3f} ({low:.3f} … {high:.3f})"
