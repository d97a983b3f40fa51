r"""Torch's optimizers as functions of tensors, so that they can be compiled with the step."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from limbeck.errors import ArgumentError

__all__ = ["FunctionalOptimizer", "has_functional_form", "make", "prepare"]

DEFAULT_RATES = {"Adadelta": 1.0, "SGD": 0.1, "Adagrad": 1e-2}
r"""Learning rates where torch's own default would mislead; ADADELTA's is 1 by its definition."""

FUNCTIONAL = ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "SGD")

STATE = {  # argument of the functional form: name in the optimizer's state
    "square_avgs": "square_avg",
    "acc_deltas": "acc_delta",
    "state_sums": "sum",
    "exp_avgs": "exp_avg",
    "exp_avg_sqs": "exp_avg_sq",
    "max_exp_avg_sqs": "max_exp_avg_sq",
    "exp_infs": "exp_inf",
    "mu_products": "mu_product",
    "grad_avgs": "grad_avg",
    "momentum_buffer_list": "momentum_buffer",
    "state_steps": "step",
}

MODES = ("params", "lr", "capturable", "foreach", "fused", "differentiable")

ONLY_IF = {"max_exp_avg_sq": "amsgrad", "grad_avg": "centered", "momentum_buffer": "momentum"}


def make(
    optimizer: str | torch.optim.Optimizer, parameters: Iterable[Tensor], options: dict[str, Any]
) -> torch.optim.Optimizer:
    r"""An optimizer by name with its options, or the user's own checked to hold the student."""
    parameters = list(parameters)
    if isinstance(optimizer, torch.optim.Optimizer):
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if missing := sum(id(p) not in held for p in parameters):
            raise ArgumentError(
                "optimizer",
                f"an instance that lacks {missing} of {len(parameters)} trained parameters",
                "an optimizer made with the student's own parameters, or a name",
            )
        if "closure" in _required(optimizer.step):
            raise ArgumentError(
                "optimizer",
                f"{type(optimizer).__name__}, which evaluates the loss several times a step",
                "an optimizer whose step() needs no closure",
            )
        return optimizer
    known = {
        name.lower(): kind
        for name, kind in vars(torch.optim).items()
        if inspect.isclass(kind)
        and issubclass(kind, torch.optim.Optimizer)
        and name not in ("Optimizer", "LBFGS", "SparseAdam")
    }
    if not isinstance(optimizer, str) or optimizer.lower() not in known:
        raise ArgumentError.unknown("optimizer", optimizer, known)
    kind = known[optimizer.lower()]
    options = {
        **({"lr": DEFAULT_RATES[kind.__name__]} if kind.__name__ in DEFAULT_RATES else {}),
        **options,
    }
    try:
        return kind(parameters, **options)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            "optimizer", f"options {options}", f"what torch.optim.{kind.__name__} takes ({error})"
        ) from None


def has_functional_form(optimizer: torch.optim.Optimizer) -> bool:
    r"""Whether torch gives this optimizer as a function of tensors that limbeck can call."""
    kind = type(optimizer)
    return (
        kind.__name__ in FUNCTIONAL
        and kind is getattr(torch.optim, kind.__name__)  # not the user's own of the same name
        and not any(
            group.get("dampening") or group.get("differentiable")
            for group in optimizer.param_groups
        )
    )


def prepare(optimizer: torch.optim.Optimizer) -> None:
    r"""Make the optimizer's state before the first step, on the device of the parameters."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            state = optimizer.state[p]
            for key in _state_keys(optimizer, group):
                like = _initial(optimizer, key, p, group)
                state[key] = state.get(key, like).to(like)


def _state_keys(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> list[str]:
    named = (STATE[a] for a in _signature(optimizer).parameters if a in STATE)
    return [key for key in named if key not in ONLY_IF or group.get(ONLY_IF[key])]


def _initial(
    optimizer: torch.optim.Optimizer, key: str, p: Tensor, group: dict[str, Any]
) -> Tensor:
    if key in ("step", "mu_product"):
        # Powers of decays are taken of it, in the precision of the parameters. Where it is only
        # counted up, it must not be float64: torch's compiler drops what is written to such.
        only_counted = type(optimizer).__name__ in ("Adadelta", "RMSprop")
        dtype = torch.float32 if only_counted else torch.promote_types(p.dtype, torch.float32)
        return torch.tensor(float(key == "mu_product"), dtype=dtype, device=p.device)
    return torch.full_like(p, group.get("initial_accumulator_value", 0.0), requires_grad=False)


def _required(function: Any) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.default is p.empty]


def _signature(optimizer: torch.optim.Optimizer) -> inspect.Signature:
    return inspect.signature(_function(optimizer))


def _function(optimizer: torch.optim.Optimizer) -> Any:
    name = type(optimizer).__name__.lower()
    return getattr(importlib.import_module(f"torch.optim.{name}"), name)


class FunctionalOptimizer:
    r"""One step of a torch optimizer as a function of tensors; everything changes in place.

    Arguments:
        optimizer: An optimizer that has a functional form; its state is made here.
        names: The trained parameters by name; others that the optimizer holds stay as they are.
        leaves: The same detached: the tensors that gradients are taken at. They must be the very
            same objects, since to a compiler two tensors in one memory are a puzzle.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        names: dict[str, Tensor],
        leaves: dict[str, Tensor],
    ) -> None:
        prepare(optimizer)
        self.leaves = leaves
        self.function = _function(optimizer)
        self.capturable = "capturable" in _signature(optimizer).parameters
        by_id = {id(p): name for name, p in names.items()}
        self.groups = [self._group(optimizer, group, by_id) for group in optimizer.param_groups]

    def _group(
        self, optimizer: torch.optim.Optimizer, group: dict[str, Any], by_id: dict[int, str]
    ) -> tuple[list[str], list[Tensor], list[list[Any]], dict[str, Any], dict[str, Any]]:
        held = [p for p in group["params"] if id(p) in by_id]
        keys, arguments = _state_keys(optimizer, group), _signature(optimizer).parameters
        lists: list[list[Any]] = [
            [optimizer.state[p][STATE[a]] for p in held] if STATE[a] in keys else []
            for a in arguments
            if a in STATE
        ]
        if "nesterov" in group and not lists[0]:
            lists[0] = [None] * len(held)  # SGD wants a place for each momentum
        settings = {a: group[a] for a in arguments if a in group and a not in MODES}
        if "betas" in group:
            settings["beta1"], settings["beta2"] = group["betas"]
        return (
            [by_id[id(p)] for p in held],
            [self.leaves[by_id[id(p)]] for p in held],
            lists,
            settings,
            group,
        )

    def __call__(self, gradients: dict[str, Tensor], factor: Tensor | float) -> None:
        r"""Step along gradients with each group's learning rate times the factor.

        A factor that is a tensor stays one all through, as compilation needs.
        """
        modes: dict[str, Any] = {}
        if isinstance(factor, Tensor):
            modes = {"foreach": False} | ({"capturable": True} if self.capturable else {})
        for names, parameters, lists, settings, group in self.groups:
            if parameters:
                ordered = [gradients[name] for name in names]
                # the lists by position: by name, torch would not compile them on a GPU
                rate = group["lr"] * factor
                self.function(parameters, ordered, *lists, lr=rate, **settings, **modes)
