r"""Evidence from the draws of `evidence.py` by harmonic and morphZ, and by nested sampling.

harmonic and morphZ get the same 2,000 exact draws and repeats as `lb.log_evidence` in
`evidence.py`, as real numbers with the volume in the density. dynesty and nautilus sample by
themselves, from a prior or a wide box with the same normalizer; so does limbeck beside them, by
HMC that begins at draws of that prior. Seconds are CPU seconds; evaluations are points at which the
density, or its gradient, was evaluated.

    python benchmarks/evidence_rivals.py [--repeats 5] [--nested 2] [--only NAME]

It needs harmonic, morphZ, dynesty and nautilus-sampler. A run that is interrupted continues.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Normal
from torch.special import ndtri

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "benchmarks")]

import evidence_models
from evidence import DRAWS, problem_of, unconstrained
from evidence_priors import PROBLEMS, Function, prior_of, schools
from parallel import add_options, run_all

import limbeck as lb

OUT = ROOT / "benchmarks" / "results" / "evidence_rivals-cpu.jsonl"
GROUPS = (2, 3)  # morphZ's orders of groups
EPOCHS = 50  # harmonic's; 100 change nothing on the banana


class Counted:
    r"""A function of rows that counts them, and takes arrays too: a point or rows of them."""

    def __init__(self, function: Function) -> None:
        self.function, self.count = function, 0

    def tensors(self, rows: Tensor) -> Tensor:
        self.count += len(rows)
        return self.function(rows)

    def __call__(self, x: np.ndarray) -> Any:
        with torch.no_grad():  # −∞ is cut off, as some of the methods leave such points out
            values = self.tensors(torch.as_tensor(np.atleast_2d(x))).clamp_min(-1e10).numpy()
        return values[0] if x.ndim == 1 else values


def cpu_seconds() -> float:
    return sum(os.times()[:4])  # those of morphZ's processes too


def harmonic(u: np.ndarray, log_p: Counted, seed: int) -> tuple[float, float]:
    r"""A spline flow learnt from half of the chains, the mean of 1 / p at the others."""
    import harmonic as hm
    import jax

    chains = hm.Chains(u.shape[1])
    shape = (100, -1)  # the standard error is that between chains
    chains.add_chains_3d(u.reshape(*shape, u.shape[1]), log_p(u).reshape(shape))
    train, test = hm.utils.split_data(chains, 0.5)
    model = hm.model.RQSplineModel(u.shape[1], standardize=True, temperature=0.8)
    model.fit(train.samples, epochs=EPOCHS, key=jax.random.PRNGKey(seed))
    evidence = hm.Evidence(test.nchains, model)
    evidence.add_chains(test)
    log_inverse = float(evidence.ln_evidence_inv)
    return -log_inverse, math.exp(float(evidence.ln_evidence_inv_var) / 2 - log_inverse)


def morphz(u: np.ndarray, log_p: Counted, seed: int) -> tuple[float, float]:
    r"""The order of groups with the least error by its own account."""
    import morphZ

    np.random.seed(seed)
    values = log_p(u)
    results = [
        morphZ.evidence(
            u, log_p, values, n_resamples=5000, tol=1e-4, morph_type=f"{order}_group",
            show_progress=False,
        )[0]
        for order in GROUPS if order <= u.shape[1]
    ]  # fmt: skip
    value, error = min(results, key=lambda result: result[1])
    return float(value), float(error)


def dynesty(dim: int, transform: Counted, log_p: Counted, seed: int) -> tuple[float, float]:
    from dynesty import NestedSampler

    sampler = NestedSampler(
        log_p, transform, dim, nlive=500, sample="rwalk", rstate=np.random.default_rng(seed)
    )
    sampler.run_nested(print_progress=False)
    return float(sampler.results.logz[-1]), float(sampler.results.logzerr[-1])


def nautilus(dim: int, transform: Counted, log_p: Counted, seed: int) -> tuple[float, float]:
    from nautilus import Sampler

    sampler = Sampler(transform, log_p, n_dim=dim, n_live=1000, vectorized=True, seed=seed)
    sampler.run()
    return float(sampler.log_z), float(1 / math.sqrt(sampler.n_eff))  # it has none of its own


def from_scratch(name: str, seed: int) -> tuple[lb.LogPartition, int]:
    r"""Evidence from 100 chains of HMC: 200 sweeps of burn-in, then every tenth of 200."""
    dim, transform, log_likelihood = prior_of(name)
    start = torch.rand(100, dim, generator=torch.Generator().manual_seed(seed))
    if name == "eight schools":  # in normal variables: not centred, as nested sampling sees it
        start = ndtri(start)
        normal = Normal(0.0, 1.0)
        log_p = Counted(lambda z: log_likelihood(schools(z)) + normal.log_prob(z).sum(1))
    else:
        start = transform(start)
        log_p = Counted(evidence_models.OTHERS[name]().log_density)
    sampler = lb.samplers.HMC(log_p.tensors, start, seed=seed).burn_in(200)
    sweeps = [sampler.step() for _ in range(10 * DRAWS // len(start))]
    chains = torch.stack(sweeps[9::10], 1)
    e = lb.log_evidence(log_p.tensors, chains, layout="chains", seed=seed, progress=False)
    return e, log_p.count


def run(name: str, method: str, number: int) -> dict[str, Any]:
    logging.disable(logging.WARNING)
    problem = problem_of(name, None)
    draws = problem.sample(DRAWS, torch.Generator().manual_seed(1000 + number))
    u, log_p = unconstrained(problem, draws)
    about: dict[str, Any] = {"posterior": name, "method": method, "repeat": number}
    counted, began = Counted(log_p), cpu_seconds()
    if method == "limbeck":
        e, count = from_scratch(name, number)
        value, error, (low, high) = e.value, e.std_error, e.interval()
        about |= {"state": e.verdict.state, "reasons": list(e.verdict.reasons)}
    else:
        if method in FROM_DRAWS:
            value, error = FROM_DRAWS[method](u.numpy(), counted, number)
        else:
            dim, transform, log_likelihood = prior_of(name)
            counted = Counted(log_likelihood)
            value, error = NESTED[method](dim, Counted(transform), counted, number)
        count, low, high = counted.count, value - 1.96 * error, value + 1.96 * error
    return about | {
        "error": round(value - problem.log_z, 6), "std_error": round(error, 6),
        "covers": low <= problem.log_z <= high, "evaluations": count,
        "seconds": round(cpu_seconds() - began, 2),
    }  # fmt: skip


Method = Callable[..., tuple[float, float]]
FROM_DRAWS: dict[str, Method] = {"harmonic": harmonic, "morphZ": morphz}
NESTED: dict[str, Method] = {"dynesty": dynesty, "nautilus": nautilus}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--nested", type=int, default=2, help="repeats of nested sampling")
    parser.add_argument("--only", default="", help="a part of a job's name")
    parser.add_argument("--out", type=Path, default=OUT, help="a file of lines")
    add_options(parser)
    options = parser.parse_args()
    drawn = product(FROM_DRAWS, evidence_models.OTHERS, range(options.repeats))
    nested = product(("limbeck", *NESTED), PROBLEMS, range(options.nested))
    jobs = {
        key: (name, method, number)
        for method, name, number in (*drawn, *nested)
        if options.only in (key := f"{name}, {method}, repeat {number}")
    }
    run_all(
        run, jobs, options.out, workers=options.workers, stop_after=options.stop_after,
        fresh=options.fresh,
    )  # fmt: skip


if __name__ == "__main__":
    main()
