r"""Posteriors of NumPyro and PyMC: log density, draws, supports and predictive distribution."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from limbeck.arguments import UserObject, checked_arguments
from limbeck.errors import ArgumentError, LimbeckError

# log densities (n,) and their derivatives by name, of arrays (n, ...) by name
Evaluate = Callable[[dict[str, np.ndarray]], tuple[np.ndarray, dict[str, np.ndarray]]]


@dataclass
class Program:
    r"""A posterior of another program, in the form that limbeck's functions take.

    `lb.log_evidence(program.log_density, program.draws, support=program.support)` is its evidence.

    Attributes:
        log_density: The log joint density (n,) of n draws, a dict of tensors (n, ...).
        draws: Arrays (chain, draw, ...) by name.
        support: Supports by name, of the variables that are not real.
        predictive: Posterior-predictive draws by name; arguments are those of the model (NumPyro).
    """

    log_density: Callable[[Mapping[str, Tensor]], Tensor]
    draws: dict[str, np.ndarray]
    support: dict[str, Any]
    predictive: Callable[..., Any]


class _Evaluation(torch.autograd.Function):
    r"""Numbers and derivatives of another library, for autograd."""

    @staticmethod
    def forward(ctx: Any, evaluate: Evaluate, names: tuple[str, ...], *values: Tensor) -> Tensor:
        arrays = {n: v.detach().cpu().numpy() for n, v in zip(names, values, strict=True)}
        log, slopes = evaluate(arrays)
        ctx.save_for_backward(
            *(torch.tensor(slopes[n]).to(v) for n, v in zip(names, values, strict=True))
        )
        return torch.tensor(log).to(values[0])

    @staticmethod
    def backward(ctx: Any, *weights: Tensor) -> Any:
        slopes = ctx.saved_tensors
        scaled = (s * weights[0].reshape(-1, *[1] * (s.dim() - 1)) for s in slopes)
        return (None, None, *scaled)


def _function(evaluate: Evaluate, names: tuple[str, ...]) -> Callable[..., Tensor]:
    def log_density(draws: Mapping[str, Tensor]) -> Tensor:
        log: Tensor = _Evaluation.apply(evaluate, names, *(draws[name] for name in names))
        return log

    return log_density


def _import(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise LimbeckError(f"{name} is not installed, which this posterior needs") from error


def _numpyro_support(constraint: Any, name: str) -> Any:
    r"""A constraint of NumPyro as a support; None for real numbers."""
    base = getattr(constraint, "base_constraint", None)
    if base is not None:
        return _numpyro_support(base, name)
    kind = type(constraint).__name__.strip("_")
    low, high = (getattr(constraint, end, None) for end in ("lower_bound", "upper_bound"))
    if low is not None or high is not None:
        if np.ndim(low or 0) or np.ndim(high or 0):
            raise ArgumentError(f"model[{name!r}]", "bounds that are arrays", "one bound for all")
        ends = (-np.inf if low is None else low, np.inf if high is None else high)
        return tuple(map(float, ends))
    named = {
        "Real": None, "RealVector": None, "Simplex": "simplex", "OrderedVector": "ordered",
        "CorrCholesky": torch.distributions.constraints.corr_cholesky,
    }  # fmt: skip
    if kind not in named:
        raise ArgumentError(f"model[{name!r}]", f"the support {kind}", f"one of {list(named)}")
    return named[kind]


@checked_arguments
def from_numpyro(
    model: UserObject[Any], mcmc: UserObject[Any], *args: UserObject[Any], **kwargs: Any,
) -> Program:  # fmt: skip
    r"""The posterior of a NumPyro model.

    Arguments:
        model: The model, a function.
        mcmc: A `numpyro.infer.MCMC` that has run, or draws (chain, draw, ...) by name.
        args: Arguments of the model, as in `mcmc.run`.
        kwargs: Keyword arguments of the model, with the data.
    """
    jax, numpyro = _import("jax"), _import("numpyro")
    seeded = numpyro.handlers.seed(model, jax.random.PRNGKey(0))
    trace = numpyro.handlers.trace(seeded).get_trace(*args, **kwargs)
    sites = {n: s for n, s in trace.items() if s["type"] == "sample" and not s["is_observed"]}
    samples = mcmc if isinstance(mcmc, Mapping) else mcmc.get_samples(group_by_chain=True)
    for name, site in sites.items():
        if site["fn"].is_discrete:
            raise ArgumentError(f"model[{name!r}]", "a discrete variable", "continuous ones")
        if name not in samples:
            raise ArgumentError("mcmc", f"draws without {name!r}", f"draws of {list(sites)}")

    def one(values: Any) -> Any:
        return numpyro.infer.util.log_density(model, args, kwargs, values)[0]

    many = jax.jit(jax.vmap(jax.value_and_grad(one)))

    def evaluate(arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        n = len(next(iter(arrays.values())))
        rows = np.arange(1 << (n - 1).bit_length()) % n  # few sizes, which are compiled once each
        log, slopes = many({name: array[rows] for name, array in arrays.items()})
        return np.array(log[:n]), {name: np.array(slopes[name][:n]) for name in arrays}

    def predictive(*new: Any, seed: int = 0, **new_data: Any) -> Any:
        flat = {name: np.asarray(samples[name]) for name in sites}
        flat = {name: array.reshape(-1, *array.shape[2:]) for name, array in flat.items()}
        return numpyro.infer.Predictive(model, flat)(jax.random.PRNGKey(seed), *new, **new_data)

    supports = {name: _numpyro_support(site["fn"].support, name) for name, site in sites.items()}
    return Program(
        _function(evaluate, tuple(sites)), {name: np.asarray(samples[name]) for name in sites},
        {name: support for name, support in supports.items() if support is not None}, predictive,
    )  # fmt: skip


@checked_arguments
def from_pymc(model: UserObject[Any], idata: UserObject[Any]) -> Program:
    r"""The posterior of a PyMC model, in PyMC's unconstrained coordinates.

    Arguments:
        model: The `pymc.Model`.
        idata: What `pymc.sample` returned, with a group "posterior".
    """
    pymc, pytensor = _import("pymc"), _import("pytensor")
    if model.discrete_value_vars:
        names = [variable.name for variable in model.discrete_value_vars]
        raise ArgumentError("model", f"discrete variables {names}", "continuous ones")
    draws = {}
    for variable in model.free_RVs:
        try:
            values = np.asarray(idata["posterior"][variable.name].values)
        except (KeyError, AttributeError, TypeError):
            received = f"no draws of {variable.name!r}"
            raise ArgumentError("idata", received, "what pymc.sample returned") from None
        transform, name = model.rvs_to_transforms[variable], model.rvs_to_values[variable].name
        if transform is not None:
            x = pytensor.tensor.TensorType(variable.dtype, (None,) * values.ndim)()
            forward = transform.forward(x, *variable.owner.inputs)
            values = pytensor.function([x], forward, on_unused_input="ignore")(values)
        draws[name] = values
    log, slope = model.compile_logp(), model.compile_dlogp()
    order = [variable.name for variable in model.continuous_value_vars]

    def evaluate(arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        count = len(arrays[order[0]])
        points = [{name: arrays[name][row] for name in order} for row in range(count)]
        sizes = np.cumsum([arrays[name][0].size for name in order])[:-1]
        slopes = np.split(np.stack([slope(point) for point in points]), sizes, 1)
        named = {k: v.reshape(arrays[k].shape) for k, v in zip(order, slopes, strict=True)}
        return np.array([float(log(point)) for point in points]), named

    def predictive(seed: int = 0, **options: Any) -> Any:
        with model:
            options = {"random_seed": seed, "progressbar": False, **options}
            return pymc.sample_posterior_predictive(idata, **options)

    return Program(
        _function(evaluate, tuple(order)), {name: draws[name] for name in order}, {}, predictive
    )
