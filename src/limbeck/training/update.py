r"""Updates: how a student changes at a step. Gradient descent by any torch optimizer is one."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from itertools import chain, product
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.func import functional_call, grad

from limbeck.arguments import Number, Positive, UserObject, checked_arguments
from limbeck.errors import ArgumentError
from limbeck.storage.files import copy_into
from limbeck.training.objective import Objective, Plan, keep_buffers
from limbeck.training.schedules import Schedule, as_schedule, same_until

Tensors: TypeAlias = dict[str, Tensor]  # by name


class Progress:
    r"""What an update records at each step, as tensors that stay in place."""

    def __init__(self, terms: int, device: torch.device, dtype: torch.dtype) -> None:
        # None is 0-d float64: torch's compiler takes those for numbers and drops writes to them.
        # steps that changed the student, which also drive schedules
        self.done = torch.zeros(1, dtype=torch.float64, device=device)
        # all losses and gradients were finite so far; if not, the student no longer changes
        self.finite = torch.ones((), dtype=torch.bool, device=device)
        # mean of each loss term at the last step, then the total; and the sums since last read
        self.last = torch.zeros(terms + 1, dtype=dtype, device=device)
        self.sums = torch.zeros(terms + 1, dtype=torch.float64, device=device)
        self.norm = torch.zeros(1, dtype=dtype, device=device)  # of the last step's gradient

    def tensors(self) -> Tensors:
        return dict(vars(self))

    def record(self, good: Tensor, means: Tensor, norm: Tensor) -> None:
        r"""Add a step: whether it was finite, the means of its terms and of the total, its norm."""
        self.last.copy_(means)
        self.norm.copy_(norm.reshape(1))
        self.sums.add_(torch.where(good, means.to(torch.float64), 0.0))
        self.done.add_(good.to(torch.float64))
        self.finite.copy_(good)


class Update(Protocol):
    r"""The update of a student at each step."""

    progress: Progress  # made by bind
    compilable: bool  # whether step can be compiled

    def bind(self, objective: Objective, steps: int) -> None:
        r"""Prepare a run with this number of steps."""

    def step(self, plan: Plan, traced: bool) -> None:
        r"""Change the student in place and record the progress; traced, never read tensors."""

    def same_until(self, done: int, total: int) -> bool:
        r"""Whether the first `done` steps are the same in a run of `total` steps. Optional."""

    def tensors(self) -> Tensors:
        r"""Everything that a checkpoint must hold beside the student, by name."""

    def load(self, tensors: Tensors, path: Path) -> None:
        r"""Continue from the `tensors` of a checkpoint at that path."""


class GradientUpdate:
    r"""Stochastic gradient descent by any torch optimizer.

    Arguments:
        optimizer: A name in `torch.optim`, or an instance with the student's parameters. Default:
            "adam".
        schedule: A name, or the learning rate's factor as a function of (steps done, total).
            Default: "cosine".
        clip: The largest norm of the gradient. Default: no clipping.
        options: Options of the optimizer by name, such as `lr=1e-3`.
    """

    @checked_arguments
    def __init__(
        self,
        optimizer: UserObject[str | torch.optim.Optimizer] = "adam",
        schedule: UserObject[str | Schedule | None] = "cosine",
        *,
        clip: Positive | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(options.get("lr"), Tensor | None):
            options["lr"] = Number(above=0)("lr", options["lr"])
        self.requested, self.options, self.clip = optimizer, options, clip
        # over processes, if there are several: from gradients, means, buffers to their averages
        self.reduce: Callable[[Any, Any, Any], Any] | None = None
        self.schedule = as_schedule(schedule)

    def bind(self, objective: Objective, steps: int) -> None:
        self.objective, self.steps = objective, steps
        named = objective.named_parameters()
        self.parameters: Tensors = {name: p for name, p in named if p.requires_grad}
        if not self.parameters:
            received = "no parameters that require gradients"
            raise ArgumentError("student", received, "a trainable module")
        if isinstance(self.requested, torch.optim.Optimizer):
            known = _parameter_ids(self.requested)
            if extras := [p for p in objective.extras.parameters() if id(p) not in known]:
                self.requested.add_param_group({"params": extras})
        self.optimizer = make_optimizer(self.requested, self.parameters.values(), self.options)
        self.compilable = has_functional_form(self.optimizer)
        self._leaves = {name: p.detach() for name, p in self.parameters.items()}
        if self.compilable:
            self._apply = FunctionalOptimizer(self.optimizer, self.parameters, self._leaves)
        self._buffers = dict(objective.named_buffers())
        first = next(iter(self._leaves.values()))
        self.progress = Progress(len(objective.terms), first.device, first.dtype)

    def gradient(self, plan: Plan, traced: bool = False) -> tuple[Tensors, Tensor, Tensors]:
        r"""The gradient, the means of all terms and the total, and the buffers after the step."""

        def mean_loss(terms: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
            total = self.objective.total(terms).mean()
            return total, torch.stack([*(term.mean() for term in terms), total])

        def traced_loss(leaves: Tensors) -> tuple[Tensor, Any]:
            buffers = {name: b.clone() for name, b in self._buffers.items()}
            terms = functional_call(self.objective, {**leaves, **buffers}, (plan,))
            total, means = mean_loss(terms)
            return total, (means, buffers)

        if traced:
            gradients, (means, buffers) = grad(traced_loss, has_aux=True)(self._leaves)
            return gradients, means, buffers
        # without torch.func, which takes longer than the arithmetic of a small student
        with torch.enable_grad(), keep_buffers(self.objective) if self._buffers else nullcontext():
            total, means = mean_loss(self.objective(plan))
            leaves = list(self.parameters.values())
            values = torch.autograd.grad(total, leaves, materialize_grads=True)
            places = self.objective.named_buffers(remove_duplicate=False) if self._buffers else ()
            after = {n: b.detach().clone() for n, b in places if n in self._buffers}
        return dict(zip(self.parameters, values, strict=True)), means.detach(), after

    @torch.no_grad()
    def step(self, plan: Plan, traced: bool) -> None:
        progress = self.progress
        gradients, means, buffers = self.gradient(plan, traced)
        if self.reduce is not None:
            gradients, means, buffers = self.reduce(gradients, means, buffers)
        if traced:
            norm = torch.stack([g.square().sum() for g in gradients.values()]).sum().sqrt()
        else:
            norm = torch.stack(torch._foreach_norm(list(gradients.values()))).norm()
        good = progress.finite & norm.isfinite() & means.isfinite().all()
        if traced:  # a bad step is one with zero gradients and a zero rate: nothing moves
            gradients = {name: torch.where(good, g, 0.0) for name, g in gradients.items()}
            buffers = {n: torch.where(good, b, self._buffers[n]) for n, b in buffers.items()}
        if traced or good:
            if self.clip is not None:
                scale = (self.clip / norm).clamp_max(1)
                scale = torch.where(good, scale, 0.0) if traced else scale
                gradients = {name: g * scale for name, g in gradients.items()}
            if traced:
                factor = self.schedule(progress.done[0], self.steps) * good.to(torch.float64)
                self._apply(gradients, factor.to(norm.dtype))
            else:
                self._step_eager(gradients)
            for name, buffer in buffers.items():
                self._buffers[name].copy_(buffer)
        progress.record(good, means, norm)

    def _step_eager(self, gradients: Tensors) -> None:
        factor = float(self.schedule(self.progress.done[0].cpu(), self.steps))
        if self.compilable:
            return self._apply(gradients, factor)
        rates = [group["lr"] for group in self.optimizer.param_groups]
        for group in self.optimizer.param_groups:
            group["lr"] = group["lr"] * factor
        for name, p in self.parameters.items():
            p.grad = gradients[name]
        try:
            self.optimizer.step()
        finally:
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
            self.optimizer.zero_grad()

    def same_until(self, done: int, total: int) -> bool:
        return same_until(self.schedule, done, self.steps, total)

    def tensors(self) -> Tensors:
        tensors = {f"progress.{name}": t for name, t in self.progress.tensors().items()}
        for owner, entries in self._optimizer_state().items():
            for key, value in entries.items():
                if isinstance(value, Tensor):
                    tensors[f"{owner}.{key}"] = value
                elif isinstance(value, int | float) and not isinstance(value, bool):
                    dtype = torch.float64 if isinstance(value, float) else torch.int64
                    tensors[f"number.{owner}.{key}"] = torch.tensor(value, dtype=dtype)
        extras = self.objective.extras.state_dict()
        return tensors | {f"extras.{name}": extra for name, extra in extras.items()}

    def load(self, tensors: UserObject[Tensors], path: Path) -> None:
        state = self._optimizer_state()
        for name, value in tensors.items():
            owner, _, key = name.removeprefix("number.").rpartition(".")
            if owner not in state:
                continue
            if name.startswith("number."):
                state[owner][key] = value.item()
            else:  # many optimizers make their state at the first step only
                state[owner].setdefault(key, value.to(self.progress.done.device, copy=True))
        copy_into(self.tensors(), tensors, path)

    def _optimizer_state(self) -> dict[str, dict[str, Any]]:
        r"""The optimizer's dicts of what changes from step to step, by name."""
        state = {f"optimizer.{n}": self.optimizer.state[p] for n, p in self.parameters.items()}
        groups = [] if self.compilable else self.optimizer.param_groups  # some count steps
        return state | {f"group.{i}": group for i, group in enumerate(groups)}


def _parameter_ids(optimizer: torch.optim.Optimizer) -> set[int]:
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


# learning rates where torch's default would mislead; ADADELTA's is 1 by its definition
DEFAULT_RATES = {"Adadelta": 1.0, "SGD": 0.1, "Adagrad": 1e-2}
FUNCTIONAL = ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "SGD")
# argument of the functional form: name in the optimizer's state
PLURALS = "square_avg acc_delta exp_avg exp_avg_sq max_exp_avg_sq exp_inf mu_product grad_avg"
OTHERS = {"state_sums": "sum", "momentum_buffer_list": "momentum_buffer", "state_steps": "step"}
STATE = {f"{name}s": name for name in PLURALS.split()} | OTHERS
WIDE = (torch.float32, torch.float64)
MODES = ("params", "capturable", "foreach", "fused", "differentiable")  # change no results
ONLY_IF = {"max_exp_avg_sq": "amsgrad", "grad_avg": "centered", "momentum_buffer": "momentum"}


def make_optimizer(
    optimizer: str | torch.optim.Optimizer, parameters: Iterable[Tensor], options: dict[str, Any]
) -> torch.optim.Optimizer:
    r"""An optimizer by name with its options, or the user's, checked to have the parameters."""
    parameters = list(parameters)
    if isinstance(optimizer, torch.optim.Optimizer):
        if missing := len({id(p) for p in parameters} - _parameter_ids(optimizer)):
            received = f"an instance that lacks {missing} of {len(parameters)} trained parameters"
            expected = "an optimizer made with the student's own parameters, or a name"
            raise ArgumentError("optimizer", received, expected)
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            received = f"{type(optimizer).__name__}, which evaluates the loss several times a step"
            raise ArgumentError("optimizer", received, "an optimizer whose step() needs no closure")
        return optimizer
    classes = [kind for kind in vars(torch.optim).values() if inspect.isclass(kind)]
    known = {k.__name__.lower(): k for k in classes if issubclass(k, torch.optim.Optimizer)}
    known = {name: known[name] for name in known.keys() - {"optimizer", "lbfgs", "sparseadam"}}
    if not isinstance(optimizer, str) or optimizer.lower() not in known:
        raise ArgumentError.unknown("optimizer", optimizer, known)
    kind = known[optimizer.lower()]
    if kind.__name__ in DEFAULT_RATES:
        options = {"lr": DEFAULT_RATES[kind.__name__], **options}
    try:
        instance: torch.optim.Optimizer = kind(parameters, **options)
    except (TypeError, ValueError) as error:
        expected = f"what torch.optim.{kind.__name__} takes ({error})"
        raise ArgumentError("optimizer", f"options {options}", expected) from None
    return instance


def has_functional_form(optimizer: torch.optim.Optimizer) -> bool:
    r"""Whether torch gives this optimizer as a function of tensors that limbeck can call."""
    if any(g.get("dampening") or g.get("differentiable") for g in optimizer.param_groups):
        return False
    return type(optimizer) in [getattr(torch.optim, name) for name in FUNCTIONAL]


class FunctionalOptimizer:
    r"""One step of a torch optimizer as a function of tensors; everything changes in place."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, parameters: Tensors, leaves: Tensors
    ) -> None:
        # gradients are taken at `leaves`, too: compilers fail at two tensors in one memory
        name = type(optimizer).__name__.lower()
        self.function = getattr(importlib.import_module(f"torch.optim.{name}"), name)
        self.arguments = list(inspect.signature(self.function).parameters)
        self.capturable = "capturable" in self.arguments
        names = {id(p): name for name, p in parameters.items()}
        self.groups: list[tuple[Tensors, list[list[Any]], dict[str, Any], Any]] = []
        state_names = [STATE[argument] for argument in self.arguments if argument in STATE]
        for group in optimizer.param_groups:
            keys = [key for key in state_names if key not in ONLY_IF or group.get(ONLY_IF[key])]
            for p, key in product(group["params"], keys):  # before the first step
                if key in ("step", "mu_product"):
                    # Powers of decays are taken of it, in the precision of the parameters. If it is
                    # only counted up, it must not be float64: torch's compiler drops such writes.
                    counter = name in ("adadelta", "rmsprop")
                    wide = torch.promote_types(p.dtype, torch.float32)
                    dtype = torch.float32 if counter else wide
                    first = torch.tensor(float(key == "mu_product"), dtype=dtype, device=p.device)
                else:
                    value = group.get("initial_accumulator_value", 0.0)
                    first = torch.full_like(p, value, requires_grad=False)
                optimizer.state[p][key] = optimizer.state[p].get(key, first).to(first)
            trained = [p for p in group["params"] if id(p) in names]
            lists: list[list[Any]]
            lists = [[optimizer.state[p][k] for p in trained if k in keys] for k in state_names]
            if "nesterov" in group and not lists[0]:
                lists[0] = [None] * len(trained)  # SGD needs a place for each momentum
            settings = {a: group[a] for a in self.arguments if a in group.keys() - {"lr", *MODES}}
            if "betas" in group:
                settings["beta1"], settings["beta2"] = group["betas"]
            own_leaves = {names[id(p)]: leaves[names[id(p)]] for p in trained}
            self.groups.append((own_leaves, lists, settings, group))
        tensors = [t for own, lists, *_ in self.groups for t in chain(own.values(), *lists)]
        # one operation for all tensors, which goes by their memory, so that it must be in order
        self.fused = name in ("adam", "adamw") and all(
            t.device.type == "cpu" and t.dtype in WIDE and t.is_contiguous() for t in tensors
        )

    def __call__(self, gradients: Tensors, factor: Tensor | float) -> None:
        r"""Step with each group's learning rate times the factor, a tensor in compiled steps."""
        modes: dict[str, bool] = {}
        if isinstance(factor, Tensor):
            modes = {"foreach": False} | ({"capturable": True} if self.capturable else {})
        elif self.fused:
            modes = {"foreach": False, "fused": True}
            gradients = {name: gradient.contiguous() for name, gradient in gradients.items()}
        for leaves, lists, settings, group in self.groups:
            if leaves:
                ordered = [gradients[name] for name in leaves]
                # the lists by position: by name, torch would not compile them on a GPU
                rate = group["lr"] * factor
                self.function(list(leaves.values()), ordered, *lists, lr=rate, **settings, **modes)
