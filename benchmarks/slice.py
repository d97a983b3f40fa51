r"""Chain-sweeps a second of the slice sampler on the source text's logistic regression.

24 points in two groups, the prior N(0, 100·I) over two weights, 256 and 10,000 chains; a sweep
updates both weights of every chain. BlackJAX's coordinate-wise sampler, with the same width and
stepping out too, takes turns with it where it is installed. One JSON line a figure.

    python benchmarks/slice.py [--threads 2]
"""

from __future__ import annotations

import argparse
import importlib.util
import os
from collections.abc import Callable

import torch
from timing import machine, report, side_by_side
from torch import Tensor
from torch.nn import functional as F

from limbeck.samplers.slice import Slice

CHAINS = (256, 10_000)
SWEEPS = 5  # a call
BURN_IN = 50
PRIOR_VARIANCE = 100.0
LARGE = 20.0  # log σ beyond is below the sum's rounding; denormal numbers take ten times as long
MUST = {10_000: "at least 50,000 on two cores, or 2 times BlackJAX"}


def signed_points() -> Tensor:
    r"""12 points of N((−4, 0), I) labelled 0, 12 of N((4, 0), I) labelled 1, times ±1: (24, 2)."""
    sign = torch.tensor([-1.0, 1.0]).repeat_interleave(12)[:, None]
    x = torch.randn(24, 2, generator=torch.Generator().manual_seed(0))
    return sign * (x + sign * torch.tensor([4.0, 0.0]))


def sampler(chains: int) -> Slice:
    points = signed_points().T.contiguous()

    def log_posterior(w: Tensor) -> Tensor:
        z = (w @ points).clamp_max_(LARGE)
        return F.logsigmoid(z).sum(1) - w.square().sum(1) / (2 * PRIOR_VARIANCE)

    return Slice(log_posterior, torch.zeros(chains, 2), seed=1).burn_in(BURN_IN)


def ours(chains: Slice) -> Callable[[], object]:
    def sweeps() -> None:
        for _ in range(SWEEPS):
            chains.step()

    return sweeps


def blackjax(chains: Slice) -> Callable[[], object]:
    r"""As many sweeps of as many chains, compiled into one function, from where ours are now."""
    import blackjax
    import jax
    from blackjax.mcmc.slice import fixed_order, stepping_out

    points = jax.numpy.asarray(signed_points().numpy())

    def log_posterior(w):
        return jax.nn.log_sigmoid(points @ w).sum() - (w**2).sum() / (2 * PRIOR_VARIANCE)

    kernel = blackjax.coordinate_slice(
        log_posterior, initial_widths=jax.numpy.asarray(chains.width.numpy()),
        interval=stepping_out, coordinate_order=fixed_order,
    )  # fmt: skip

    @jax.jit
    def run(states, key):
        def sweep(states, key):
            keys = jax.random.split(key, chains.chains)
            return jax.vmap(kernel.step)(keys, states)[0], None

        return jax.lax.scan(sweep, states, jax.random.split(key, SWEEPS))[0]

    states = jax.vmap(kernel.init)(jax.numpy.asarray(chains.step().numpy()))
    key = jax.random.key(0)

    def sweeps() -> None:
        nonlocal states, key
        key, now = jax.random.split(key)
        states = jax.block_until_ready(run(states, now))

    return sweeps


def figures(chains: int) -> None:
    ran = sampler(chains)
    contenders = {"limbeck": ours(ran)}
    if importlib.util.find_spec("blackjax"):
        contenders["blackjax"] = blackjax(ran)
    before, sweeps_before = ran.evaluations, ran.sweeps_done
    took = side_by_side(contenders, calls=1, rounds=5)
    updates = (ran.sweeps_done - sweeps_before) * chains * ran.dim
    numbers = {
        f"{name}_chain_sweeps_a_second": SWEEPS * chains / took.microseconds(name) * 1e6
        for name in contenders
    }
    if "blackjax" in contenders:
        numbers["ratio"] = took.ratio("blackjax", "limbeck")
    report(
        f"{chains:,} chains",
        **numbers,
        evaluations_an_update=(ran.evaluations - before) / updates,
        width=[round(float(w), 1) for w in ran.width],
        must=MUST.get(chains, ""),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    torch.set_num_threads(parser.parse_args().threads)
    report("machine", **machine(), load=os.getloadavg()[0])
    for chains in CHAINS:
        figures(chains)
    report("load at the end", load=os.getloadavg()[0])


if __name__ == "__main__":
    main()
