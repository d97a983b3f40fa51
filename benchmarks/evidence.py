r"""Evidence from 2,000 exact draws: coverage, errors and verdicts, beside two plain estimators.

Fresh draws for each repeat; truth by quadrature (`evidence_models.py`). Beside `lb.log_evidence`: a
bridge with one Gaussian, fitted to half of the draws, and importance sampling with a fitted
Student t. The posteriors of posteriordb are read from a folder of npz files.

    python benchmarks/evidence.py [--data DIR] [--repeats 20] [--only NAME] [--workers 2]

DIR is LIMBECK_DATA/posteriordb by default; without it, only the other posteriors are used.
The file `--out` gets a line for each repeat, so that an interrupted run continues.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "benchmarks")]

import evidence_models
from evidence_models import Problem
from parallel import add_options, run_all

import limbeck as lb
from limbeck.normalization.bridge import fit_bridge
from limbeck.normalization.evidence_students import StudentT
from limbeck.posteriors.coordinates import Coordinates
from limbeck.posteriors.draws import Structure

DRAWS = 2000
LogDensity = Callable[[torch.Tensor], torch.Tensor]
OUT = ROOT / "benchmarks" / "results" / "evidence-cpu.jsonl"


def unconstrained(problem: Problem, draws: Any) -> tuple[torch.Tensor, LogDensity]:
    r"""Draws as rows of real numbers, and the log density of such rows, its volume included."""
    named = isinstance(draws, dict)
    structure = Structure.of(draws) if named else Structure(("",), ((draws.shape[1],),))
    coordinates = Coordinates(structure, problem.support)

    def log_p(rows: torch.Tensor) -> torch.Tensor:
        x, volume = coordinates.constrained(rows)
        log = problem.log_density(structure.unflatten(x)) + volume
        return log.nan_to_num(-math.inf, -math.inf, -math.inf)

    return coordinates.unconstrained(structure.flatten(draws)), log_p


def rivals(problem: Problem, draws: Any, seed: int) -> dict[str, float]:
    r"""log Z by a bridge with one Gaussian, and by importance sampling with a Student t."""
    u, log_p = unconstrained(problem, draws)
    u = u[torch.randperm(len(u), generator=torch.Generator().manual_seed(seed))]
    g, half = torch.Generator().manual_seed(seed), len(u) // 2
    gaussian, t = StudentT(u[:half], math.inf), StudentT(u, 5.0)
    x, rows = gaussian.sample(half, g), u[half:]
    fit = fit_bridge((log_p(rows) - gaussian.log_prob(rows))[None], log_p(x) - gaussian.log_prob(x))
    x = t.sample(2 * len(u), g)
    weights = log_p(x) - t.log_prob(x)
    return {
        "gaussian bridge": fit.log_z,
        "student t importance": float(weights.logsumexp(0)) - math.log(len(x)),
    }


def repeat(problem: Problem, number: int) -> dict[str, Any]:
    draws = problem.sample(DRAWS, torch.Generator().manual_seed(1000 + number))
    layout = "draws" if isinstance(draws, dict) else "auto"
    began = time.process_time()
    about = {"posterior": problem.name, "repeat": number}
    try:
        e = lb.log_evidence(
            problem.log_density, draws, support=problem.support, layout=layout, progress=False
        )
    except lb.LimbeckError as error:
        return about | {"state": "refused", "reasons": [str(error)]}
    seconds = time.process_time() - began
    low, high = e.interval()
    others = rivals(problem, draws, number)
    return about | {
        "error": round(e.value - problem.log_z, 6), "std_error": round(e.std_error, 6),
        "covers": low <= problem.log_z <= high,
        "state": e.verdict.state, "student": e.diagnostics["student"], "seconds": round(seconds, 2),
        "reasons": list(e.verdict.reasons),
        "rivals": {name: round(value - problem.log_z, 6) for name, value in others.items()},
    }  # fmt: skip


def summary(name: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    refused = [run["reasons"][0] for run in runs if run["state"] == "refused"]
    runs = [run for run in runs if run["state"] != "refused"]
    trusted = [run for run in runs if run["state"] == "trustworthy"]

    def rms(errors: list[float]) -> float:
        return math.sqrt(sum(error**2 for error in errors) / len(errors))

    return {
        "posterior": name, "repeats": len(runs), "refused": refused,
        "covered": sum(run["covers"] for run in runs), "trusted": len(trusted),
        "trusted_covered": sum(run["covers"] for run in trusted),
        "mean_std_error": sum(run["std_error"] for run in runs) / len(runs),
        "largest_std_error": max(run["std_error"] for run in runs),
        "largest_z_trusted": max((abs(r["error"]) / r["std_error"] for r in trusted), default=None),
        "seconds": sum(run["seconds"] for run in runs) / len(runs),
        "rms": {
            "limbeck": rms([run["error"] for run in runs]),
            **{key: rms([run["rivals"][key] for run in runs]) for key in runs[0]["rivals"]},
        },
        "students": sorted({run["student"] for run in runs}),
        "reasons": sorted({reason for run in runs for reason in run["reasons"]}),
    }  # fmt: skip


@cache
def problem_of(name: str, folder: Path | None) -> Problem:
    return next(p for p in evidence_models.problems(folder, name) if p.name == name)


def run_repeat(name: str, folder: Path | None, number: int) -> dict[str, Any]:
    return repeat(problem_of(name, folder), number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    root = os.environ.get("LIMBECK_DATA")
    parser.add_argument("--data", type=Path, default=root and Path(root) / "posteriordb")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path, default=OUT, help="a file of lines")
    add_options(parser)
    options = parser.parse_args()
    names = [problem.name for problem in evidence_models.problems(options.data, options.only)]
    jobs = {
        f"{name}, repeat {number}": (name, options.data, number)
        for number in range(options.repeats)
        for name in names
    }
    results = run_all(
        run_repeat, jobs, options.out, workers=options.workers, stop_after=options.stop_after,
        fresh=options.fresh,
    )  # fmt: skip
    for name in names:
        if runs := [run for run in results.values() if run["posterior"] == name]:
            print(json.dumps(summary(name, runs)), flush=True)


if __name__ == "__main__":
    main()
