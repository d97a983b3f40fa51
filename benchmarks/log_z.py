r"""log Z of CD25(500): standard error against seconds, annealing beside distil-then-bridge.

All on one machine in one run: AIS batched over all chains, bridge with an existing student, and
bridge with the distillation of its student counted in. One JSON line an estimate, then the times
at which each way reaches given errors.

    python benchmarks/log_z.py --data DIR [--device cuda] [--quick]
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
from timing import machine, report

import limbeck as lb

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the root, for `reproduction`
from reproduction import data

ERRORS = (0.1, 0.05, 0.03, 0.02, 0.01)
r"""Three standard errors to be reached."""


def ais(rbm: lb.RBM, chains: int, schedule: str | int, seed: int) -> dict[str, Any]:
    z = lb.log_partition(
        rbm, method="ais", samples=chains, schedule=schedule, seed=seed, progress=False
    )
    return shown(z, "AIS", f"{chains:,} chains, {schedule} temperatures", z.seconds)


def student(rbm: lb.RBM, steps: int, batch: int, seed: int) -> tuple[Any, float]:
    r"""A NADE started at the RBM's weights, and the seconds that it took."""
    began = time.perf_counter()
    result = lb.normalize(
        rbm, steps=steps, batch_size=batch, chains=10 * batch, seed=seed,
        device=rbm.W.device, progress=False,
    )  # fmt: skip
    return result.student, time.perf_counter() - began


def bridge(
    rbm: lb.RBM, nade: Any, samples: int, seed: int, before: float, way: str, **how: Any
) -> dict[str, Any]:
    z = lb.log_partition(
        rbm,
        nade,
        method="bridge",
        samples=samples,
        burn_in="auto",
        seed=seed,
        progress=False,
        **how,
    )
    chains = how.get("chains", samples)
    checked = "one start" if how.get("second_start", "auto") is None else "two starts"
    what = (
        f"{samples:,} + {samples:,} samples, {chains:,} chains, "
        f"burn-in {z.diagnostics['burn_in']}, {checked}"
    )
    return shown(z, way, what, before + z.seconds)


def shown(z: lb.LogPartition, way: str, what: str, seconds: float) -> dict[str, Any]:
    figure = {
        "way": way,
        "what": what,
        "log_z": f"{z.value:.4f}",
        "three_errors": 3 * z.std_error,
        "seconds": seconds,
        "trustworthy": z.verdict.trustworthy,
        "reasons": list(z.verdict.reasons),
    }
    report("log Z", **figure)
    return figure


def reached(way: str, figures: list[dict[str, Any]], error: float) -> tuple[float, str] | None:
    r"""The least seconds to that error.

    AIS takes as many chains as it needs: errors fall as one over the root of their number, so a
    run that missed by a factor f needs f² as long. Bridge needs longer burn-ins for smaller errors,
    so only runs that reached it count; where none did, the most precise one is continued.
    """
    good = [f for f in figures if f["trustworthy"] and math.isfinite(f["three_errors"])]
    there = good if way == "AIS" else [f for f in good if f["three_errors"] <= error]
    nearest = sorted(good, key=lambda f: f["three_errors"])[:1]
    times = [
        (f["seconds"] * max(1.0, (f["three_errors"] / error) ** 2), f["what"])
        for f in there or nearest
    ]
    return min(times, default=None)


def summary(found: dict[str, list[dict[str, Any]]]) -> None:
    r"""The seconds to each error, by way."""
    for error in ERRORS:
        times = {way: reached(way, figures, error) for way, figures in found.items()}
        hand, annealed = times["bridge"], times["AIS"]
        report(
            f"seconds to 3 s.e. of {error}",
            **{way: None if best is None else best[0] for way, best in times.items()},
            ratio=None if hand is None or annealed is None else annealed[0] / hand[0],
            how=None if hand is None else hand[1],
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="a few small runs only")
    options = parser.parse_args()
    rbm = data.rbm(options.data).to(options.device)
    report("machine", **machine())
    few = options.quick or options.device == "cpu"
    found: dict[str, list[dict[str, Any]]] = {"AIS": [], "bridge": [], "cold": []}
    lb.log_partition(rbm, method="ais", samples=100, schedule=20, progress=False)  # warm up
    student(rbm, 6000 if options.device == "cuda" else 20, 50 if few else 200, 0)  # compile
    for chains in (100,) if few else (2500, 10_000, 40_000):
        found["AIS"].append(ais(rbm, chains, 1000 if few else "2008", 0))
    few_samples: list[tuple[int, dict[str, Any]]] = [(1000, {})]
    several = {"chains": 25_000, "thin": 50}  # the burn-in is paid for once
    more = {"chains": 50_000, "thin": 50}
    many_samples = [(10_000, {}), (50_000, {}), (200_000, several), (400_000, several)]
    many_samples += [(400_000, more), (500_000, more)]
    nade = None
    for steps in (50, 200) if few else (1000, 6000, 20_000):
        nade, took = student(rbm, steps, 50 if few else 200, 1)
        for samples, how in few_samples if few else many_samples:
            way = "distil, then bridge"
            found["cold"].append(bridge(rbm, nade, samples, 2, took, way, **how))
    way = "bridge, existing student"
    for samples, how in few_samples if few else many_samples:
        for start in ("auto", None):
            figure = bridge(rbm, nade, samples, 3, 0.0, way, second_start=start, **how)
            found["bridge"].append(figure)
    summary(found)


if __name__ == "__main__":
    main()
