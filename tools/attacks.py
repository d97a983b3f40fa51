r"""Attacks on the verdicts of log Z: targets with known answers, swept across their transitions.

    python tools/attacks.py [--fraction 0.1] [--family "heavy tails"] [--workers 2] [--fresh]

Each target is estimated by each method with cheap settings, enumeration off. A trusted estimate
must be within four errors of the answer; a needle that nothing leads to is listed apart. Results
go to the folder `--out` as they come, so that an interrupted run continues; `--fresh` begins again.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tools")]

from attack_targets import FAMILIES, Problem, cases  # noqa: E402
from parallel import add_options, run_all  # noqa: E402

import limbeck as lb  # noqa: E402
from limbeck.models.flow import Flow  # noqa: E402
from limbeck.storage.files import write_bytes  # noqa: E402

OUT = ROOT / "experiments" / "results"
LIMIT = 4.0  # errors that a trusted estimate may be off
SETTINGS: dict[str, dict[str, Any]] = {
    "bridge": {"samples": 1000, "burn_in": 60},
    "importance": {"samples": 2000},
    "ais": {"samples": 500, "schedule": 150},
}


def student_of(problem: Problem, seed: int) -> Any:
    r"""A student by a short distillation."""
    target = problem.target
    options: dict[str, Any] = {"seed": seed, "progress": False, "chains": 300, "burn_in": 60}
    if target.support.discrete:
        return lb.normalize(target, steps=100, **options).student
    draw = torch.Generator().manual_seed(seed + 1)
    start = getattr(target, "start", None)
    x = target.support.start(1000, draw) if start is None else start(1000, draw)
    x = x[target.log_unnormalized(x).isfinite()]
    with torch.no_grad():
        some = target.advance(x, 60, draw)
    torch.manual_seed(seed)  # of the flow's first weights
    if problem.student == "score matching":
        flow = Flow(target.support.size).start_from(some)
        return lb.normalize(target, flow, "score_matching", steps=400, **options).student
    mixture = lb.GaussianMixture(5, target.support.size)
    mixture.fit(some, restarts=3, generator=draw, progress=False)
    return mixture


def estimates(family: str, name: str, seed: int) -> dict[str, dict[str, Any]]:
    r"""By method: the answer, the estimate, its verdict and seconds."""
    build = next(case.build for case in cases([family]) if case.name == name)
    problem, records = build(), dict[str, dict[str, Any]]()
    began, proposal, refusal = time.process_time(), problem.proposal, None
    if proposal is None and set(problem.methods) != {"ais"}:
        try:
            proposal = student_of(problem, seed)
        except lb.LimbeckError as error:
            refusal = str(error)
    distilled = time.process_time() - began
    for method in problem.methods:
        began = time.process_time()
        record: dict[str, Any] = {"exact": problem.log_z, "needle": problem.needle}
        if refusal is not None and method != "ais":
            record |= {"state": "refused", "reasons": [refusal]}
        else:
            q = None if method == "ais" else proposal
            record |= estimate(problem.target, q, method, seed, problem.log_z)
        record["seconds"] = round(time.process_time() - began + distilled * (method == "bridge"), 2)
        records[method] = {
            k: None if isinstance(v, float) and not math.isfinite(v) else v
            for k, v in record.items()
        }
    return records


def estimate(target: Any, proposal: Any, method: str, seed: int, exact: float) -> dict[str, Any]:
    try:
        z = lb.log_partition(
            target, proposal, method=method, seed=seed, progress=False, **SETTINGS[method]
        )
    except lb.LimbeckError as error:
        return {"state": "refused", "reasons": [str(error)]}
    error, noise = z.value - exact, z.diagnostics["sampling_error"]
    rounding = 1e-5 * max(1.0, abs(exact))  # of log densities in single precision
    # the error of a doubtful estimate includes what checks found, and would make any of them right
    right = abs(error) <= LIMIT * (z.std_error if z.verdict else noise) + rounding
    return {
        "value": z.value, "std_error": z.std_error, "sampling_error": noise,
        "z": math.copysign(max(0.0, abs(error) - rounding), error) / max(z.std_error, 1e-12),
        "state": z.verdict.state, "reasons": list(z.verdict.reasons), "right": right,
    }  # fmt: skip


def is_wrong(record: dict[str, Any]) -> bool:
    r"""Whether an estimate is trusted, and more than four errors off."""
    far = record["exact"] is None or record.get("z") is None or abs(record["z"]) > LIMIT
    return bool(record["state"] == "trustworthy" and far)


def summary(results: dict[str, Any]) -> Table:
    table = Table("family", "targets", "estimates", "trusted", "trusted and wrong", "of needles",
                  "doubtful but right", "refused", "CPU seconds")  # fmt: skip
    for family in [*FAMILIES, "all"]:
        own = {k: v for k, v in results.items() if family in ("all", k.split(" | ")[0])}
        if not own:
            continue
        records = [record for methods in own.values() for record in methods.values()]
        states = Counter(record["state"] for record in records)
        wrong = [record for record in records if is_wrong(record)]
        alarms = sum(r["state"] in ("doubtful", "unchecked") and r["right"] for r in records)
        needles = sum(record["needle"] for record in wrong)
        numbers = (len(own), len(records), states["trustworthy"], len(wrong) - needles, needles,
                   alarms, states["refused"])  # fmt: skip
        seconds = sum(record["seconds"] for record in records)
        table.add_row(family, *map(str, numbers), f"{seconds:.0f}")
    return table


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--fraction", type=float, default=1.0, help="share of the targets, evenly")
    parser.add_argument("--family", action="append", choices=list(FAMILIES), help="only this one")
    parser.add_argument("--only", default="", help="only targets whose name contains this")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=OUT, help="a folder")
    add_options(parser)
    options = parser.parse_args(arguments)
    chosen = [case for case in cases(options.family) if options.only in case.name]
    chosen = chosen[:: max(1, round(1 / options.fraction))]
    # by multiples of the golden ratio: an unfinished run has some of everything
    order = sorted(range(len(chosen)), key=lambda k: k * 0.618034 % 1)
    jobs = {
        f"{case.family} | {case.name}": (case.family, case.name, options.seed)
        for case in (chosen[k] for k in order)
    }
    results = run_all(
        estimates, jobs, options.out / "attacks.jsonl", workers=options.workers,
        stop_after=options.stop_after, fresh=options.fresh,
    )  # fmt: skip
    about = {"seed": options.seed, "settings": SETTINGS, "results": results}
    write_bytes(options.out / "attacks.json", json.dumps(about, indent=1).encode())
    console = Console(soft_wrap=True)
    console.width = max(console.width, 130)
    console.print(summary(results))
    wrong = {
        f"{key}, {method}": record
        for key, methods in results.items()
        for method, record in methods.items()
        if is_wrong(record)
    }
    for key, record in wrong.items():
        z = record.get("z")
        line = f"{'needle' if record['needle'] else 'WRONG'} {key}: z = {z}"
        console.print(line, markup=False, highlight=False)
    return int(any(not record["needle"] for record in wrong.values()))


if __name__ == "__main__":
    sys.exit(main())
