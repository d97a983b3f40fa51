r"""A chain of another library, condensed while it runs: posteriors' SGLD, BlackJAX's NUTS.

    pip install 'limbeck[chains]'       # posteriors and BlackJAX
    python examples/running_chain.py --chain sgld

`lb.condense` accepts a chain as an object with one method: `step()` returns the next draws, one of
each parallel chain, (chains, dim). Copy `Langevin` and `Hamiltonian` below for your own chains. The
example samples the weights of a small Bayesian net that separates two classes, and distils its
predictions into ten sets of weights. There are never more draws in memory than chains.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import limbeck as lb
from limbeck.condensation.models import mlp

SIZES = (2, 10, 2)
KINDS = {"sgld": (2000, 5), "nuts": (300, 1), "slice": (50, 1)}  # burn-in and steps between draws
REACH = 6.0  # inputs are drawn from a square, this far from the origin


class Langevin:
    r"""Stochastic gradient Langevin dynamics of `posteriors`, on many chains at once.

    Independent chains are one chain whose posterior is the product of theirs: gradients and noise
    separate into those of each chain. So the library sees one tensor.

    Arguments:
        log_posterior: Of weights (chains, dim) and a batch of data, estimates (chains,) of the
            log posterior.
        batches: Returns the next batch; draws from the generator it is called with.
        start: Where the chains start, (chains, dim).
        rate: The step size, or a function of the number of steps done.
        thin: Steps between draws.
        seed: For the library's noise, which comes from torch's global generator, whose state is
            restored afterwards.
        temperature: The power 1 / temperature of the posterior is sampled.
    """

    def __init__(
        self,
        log_posterior: Callable[[Tensor, Any], Tensor],
        batches: Callable[[torch.Generator], Any],
        start: Tensor,
        rate: float | Callable[[Tensor], float | Tensor],
        thin: int = 1,
        seed: int = 0,
        temperature: float = 1.0,
    ) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # tensordict's, about posteriors
            from posteriors import sgmcmc

        def of_all(w: Tensor, batch: Any) -> tuple[Tensor, Tensor]:
            return log_posterior(w, batch).sum(), w.new_empty(0)

        self._transform = sgmcmc.sgld.build(of_all, lr=rate, temperature=temperature)
        self._state = self._transform.init(start.clone())
        self._batches, self._thin = batches, thin
        self._generator = torch.Generator().manual_seed(seed)
        self._noise = torch.Generator().manual_seed(seed + 1).get_state()

    def step(self) -> Tensor:
        r"""The next draws, (chains, dim)."""
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._noise)
            for _ in range(self._thin):
                batch = self._batches(self._generator)
                self._state, _ = self._transform.update(self._state, batch)
            self._noise = torch.get_rng_state()
        draws: Tensor = self._state.params
        return draws


class Hamiltonian:
    r"""The no-U-turn sampler of BlackJAX on many chains, each with its own step size.

    Arguments:
        log_density: The log posterior of one vector (dim,), in JAX.
        start: Where the chains start, (chains, dim).
        warm_up: Steps in which step sizes and masses are tuned.
        thin: Steps between draws.
        seed: Seeds everything.
    """

    def __init__(
        self,
        log_density: Callable[[Any], Any],
        start: Any,
        warm_up: int = 500,
        thin: int = 1,
        seed: int = 0,
    ) -> None:
        import blackjax
        import jax

        self._jax, self._thin = jax, thin
        self._key, key = jax.random.split(jax.random.key(seed))
        points = jax.numpy.asarray(start)
        tuning = blackjax.window_adaptation(blackjax.nuts, log_density)
        keys = jax.random.split(key, len(points))
        tuned, _ = jax.jit(jax.vmap(lambda k, p: tuning.run(k, p, num_steps=warm_up)))(keys, points)
        self._state, self._parameters = tuned.state, tuned.parameters
        kernel = blackjax.nuts.build_kernel()

        def one(key: Any, state: Any, parameters: Any) -> Any:
            return kernel(key, state, log_density, **parameters)[0]

        self._step = jax.jit(jax.vmap(one))

    def step(self) -> Tensor:
        r"""The next draws, (chains, dim)."""
        for _ in range(self._thin):
            self._key, key = self._jax.random.split(self._key)
            keys = self._jax.random.split(key, len(self._state.position))
            self._state = self._step(keys, self._state, self._parameters)
        return torch.tensor(self._jax.device_get(self._state.position))


def data(seed: int = 0) -> tuple[Tensor, Tensor]:
    r"""Ten points of each of two classes, that a line nearly separates."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(20) % 2
    return torch.randn(20, 2, generator=generator) + (3.0 * y[:, None] - 1.5), y


def log_posterior(predict: Any, x: Tensor, y: Tensor, scale: float) -> Callable[[Tensor], Tensor]:
    r"""(chains,) of weights (chains, dim): all data, and a normal prior of a standard deviation."""

    def of_chains(w: Tensor) -> Tensor:
        logs = torch.vmap(lambda draw: predict(draw, x).log_prob(y))(w)  # (chains, 20)
        return logs.sum(1) - w.square().sum(1) / (2 * scale**2)

    return of_chains


def log_density(
    x: Tensor, y: Tensor, scale: float, sizes: tuple[int, ...] = SIZES
) -> Callable[[Any], Any]:
    r"""The same posterior of one vector of weights, in JAX, for nets of one hidden layer."""
    import jax
    import jax.numpy as jnp

    inputs, hidden, outputs = sizes
    x, y = jnp.asarray(x.numpy()), jnp.asarray(y.numpy())
    ends = (hidden * inputs, hidden * (inputs + 1), hidden * (inputs + 1 + outputs))

    def of_one(w: Any) -> Any:
        first, bias, second, last = jnp.split(w, ends)
        h = jax.nn.relu(x @ first.reshape(hidden, inputs).T + bias)
        logs = jax.nn.log_softmax(h @ second.reshape(outputs, hidden).T + last)
        return logs[jnp.arange(len(y)), y].sum() - (w**2).sum() / (2 * scale**2)

    return of_one


def chain(
    kind: str,
    chains: int = 100,
    thin: int | None = None,
    burn_in: int | None = None,
    scale: float = 1.0,
    seed: int = 0,
) -> Any:
    r"""A chain that is past its burn-in.

    Arguments:
        kind: "sgld", "nuts", or limbeck's own "slice".
        chains: Parallel chains.
        thin: Steps between draws; 5 for SGLD, whose steps are small, and else 1.
        burn_in: Steps before the first draw; 2,000 for SGLD, 300 for NUTS, 50 for slices.
        scale: The prior's standard deviation.
        seed: Seeds everything.
    """
    if kind not in KINDS:
        raise lb.ArgumentError.unknown("chain", kind, KINDS)
    x, y = data()
    predict = mlp(*SIZES, hidden="relu")
    generator = torch.Generator().manual_seed(seed)
    start = scale * torch.randn(chains, predict.structure.dim, generator=generator)
    steps, between = KINDS[kind]
    steps, thin = (steps if burn_in is None else burn_in), thin or between
    if kind == "nuts":
        return Hamiltonian(log_density(x, y, scale), start.numpy(), steps, thin, seed)
    of_chains = log_posterior(predict, x, y, scale)
    if kind == "slice":
        return lb.samplers.Slice(of_chains, start, seed=seed).burn_in(steps)
    found = Langevin(lambda w, _: of_chains(w), lambda _: None, start, 0.01, thin, seed)
    for _ in range(steps // thin):
        found.step()
    return found


def main(
    kind: str = "sgld",
    components: int = 10,
    steps: int = 2000,
    chains: int = 100,
    draws: int = 2000,
    seed: int = 0,
) -> Any:
    r"""Condense a running chain, and compare the student with further draws of it.

    Arguments:
        kind: "sgld", "nuts", or "slice".
        components: Sets of weights that the student has.
        steps: Steps of the distillation.
        chains: Parallel chains: as many draws are in memory at once.
        draws: Draws to compare with.
        seed: Seeds everything but the data.
    """
    inputs = lb.inputs.Function(
        lambda n, generator: REACH * (2 * torch.rand(n, 2, generator=generator) - 1)
    )
    running = chain(kind, chains=chains, seed=seed)
    result = lb.condense(
        running,
        mlp(*SIZES, hidden="relu"),
        inputs,
        components=components,
        steps=steps,
        batch_size=100,
        seed=seed,
        device="cpu",
    )
    side = torch.linspace(-REACH, REACH, 41)
    report = result.report(torch.cartesian_prod(side, side), draws=draws)
    print(result)
    print(report)
    return result, report


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chain", dest="kind", default="sgld", choices=tuple(KINDS))
    parser.add_argument("--components", type=int, default=10)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--chains", type=int, default=100)
    parser.add_argument("--draws", type=int, default=2000, help="to compare with")
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
