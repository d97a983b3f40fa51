r"""Evidence from 2,000 exact draws: coverage, errors and verdicts, beside two plain estimators.

Fresh draws for each repeat; truth by quadrature (`evidence_models.py`). Beside `lb.log_evidence`: a
bridge with one Gaussian, fitted to half of the draws, and importance sampling with a fitted
Student t. The posteriors of posteriordb are read from a folder of npz files.

    python benchmarks/evidence.py [--data DIR] [--repeats 20] [--only NAME] [--out FILE]

DIR is LIMBECK_DATA/posteriordb by default; without it, only the other posteriors are used. FILE
gets a line for each repeat; those that it has already are not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import evidence_models
import torch
from evidence_models import Problem

import limbeck as lb
from limbeck.normalization.bridge import fit_bridge
from limbeck.normalization.evidence_students import StudentT
from limbeck.posteriors.coordinates import Coordinates
from limbeck.posteriors.draws import Structure

DRAWS = 2000
OUT = Path(__file__).resolve().parent / "results" / "evidence-cpu.jsonl"


def rivals(problem: Problem, draws: Any, seed: int) -> dict[str, float]:
    r"""log Z by a bridge with one Gaussian, and by importance sampling with a Student t."""
    named = isinstance(draws, dict)
    structure = Structure.of(draws) if named else Structure(("",), ((draws.shape[1],),))
    coordinates = Coordinates(structure, problem.support)
    u = coordinates.unconstrained(structure.flatten(draws))
    u = u[torch.randperm(len(u), generator=torch.Generator().manual_seed(seed))]

    def log_p(rows: torch.Tensor) -> torch.Tensor:
        x, volume = coordinates.constrained(rows)
        log = problem.log_density(structure.unflatten(x)) + volume
        return log.nan_to_num(-math.inf, -math.inf, -math.inf)

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
    e = lb.log_evidence(
        problem.log_density, draws, support=problem.support, layout=layout, progress=False
    )
    seconds = time.process_time() - began
    low, high = e.interval()
    others = rivals(problem, draws, number)
    return {
        "posterior": problem.name, "repeat": number, "error": round(e.value - problem.log_z, 6),
        "std_error": round(e.std_error, 6), "covers": low <= problem.log_z <= high,
        "state": e.verdict.state, "student": e.diagnostics["student"], "seconds": round(seconds, 2),
        "reasons": list(e.verdict.reasons),
        "rivals": {name: round(value - problem.log_z, 6) for name, value in others.items()},
    }  # fmt: skip


def summary(name: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    trusted = [run for run in runs if run["state"] == "trustworthy"]

    def rms(errors: list[float]) -> float:
        return math.sqrt(sum(error**2 for error in errors) / len(errors))

    return {
        "posterior": name, "repeats": len(runs), "covered": sum(run["covers"] for run in runs),
        "trusted": len(trusted), "trusted_covered": sum(run["covers"] for run in trusted),
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    root = os.environ.get("LIMBECK_DATA")
    parser.add_argument("--data", type=Path, default=root and Path(root) / "posteriordb")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    lines = arguments.out.read_text().splitlines() if arguments.out.exists() else []
    runs = [json.loads(line) for line in lines]
    done = {(run["posterior"], run["repeat"]) for run in runs}
    problems = list(evidence_models.problems(arguments.data, arguments.only))
    for number in range(arguments.repeats):
        for problem in problems:
            if (problem.name, number) in done:
                continue
            runs.append(repeat(problem, number))
            with arguments.out.open("a") as file:
                file.write(json.dumps(runs[-1]) + "\n")
    for problem in problems:
        own = [run for run in runs if run["posterior"] == problem.name]
        print(json.dumps(summary(problem.name, own)), flush=True)


if __name__ == "__main__":
    main()
