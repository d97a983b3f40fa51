r"""NADE's operator: one function for all devices, differentiable to any order, and traceable.

It chooses the kernels (Triton on a GPU, C++ on a CPU, or plain torch) and hides them from tracers
in torch operators. Derivatives are those of `torch.autograd.Function`, for autograd, `torch.func`
and the compiler: that of `logits` is `pull`, and those of `pull` are the R products.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from limbeck.models.checks import Maybe, Pair
from limbeck.models.kernels import nade_blocks, nade_native, triton_kernels
from limbeck.models.kernels.nade_blocks import Direction, r_logits, r_pull

_LIBRARY = torch.library.Library("limbeck", "FRAGMENT")
Outputs = tuple[Tensor, ...] | Tensor
WORTH_NATIVE = 2**16  # activations from which C++ kernels are worth a second of compilation


def define_operator(
    name: str, schema: str, function: Callable[..., Any], fake: Callable[..., Any]
) -> Callable[..., Any]:
    r"""An operator of torch that calls a function; `fake` gives empty tensors to tracers."""
    _LIBRARY.define(name + schema)
    _LIBRARY.impl(name, function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"limbeck::{name}", fake)
    operator = getattr(torch.ops.limbeck, name).default
    return lambda *inputs: operator(*inputs)  # its signature is read faster than an operator's


def logits(x: Tensor, w: Tensor, c: Tensor, u: Tensor, b: Tensor, period: int = 1) -> Any:
    r"""z (n, I) with p(x_i = 1 | x_<i) = σ(z_i); as `nade_blocks.formula`, biases added."""
    if torch.compiler.is_dynamo_compiling():  # inlined, it would lose its derivatives silently
        raise RuntimeError("prepare_tracing() must come before NADE's operator is compiled")
    return _Logits.apply(x, w, c, u, b, period)[0]


@functools.cache
def prepare_tracing(operator: Callable[..., Any] = logits) -> None:
    r"""Let torch's compiler leave an operator in its graph; its import takes seconds."""
    torch.compiler.allow_in_graph(operator)


@torch.no_grad()
def sample(uniforms: Tensor, w: Tensor, c: Tensor, u: Tensor, b: Tensor, m: Maybe = None) -> Pair:
    r"""x (n, I), with x_i = 1 where uniforms_i < p(x_i = 1 | x_<i), and these probabilities."""
    return (gpu_kernels(uniforms) or _cpu(uniforms, w)).sample(uniforms, w, c, u, b, m)


def _cpu(x: Tensor, w: Tensor) -> ModuleType:
    r"""The kernels in C++ or in plain torch."""
    large = x.dtype in nade_native.NAMES and x.numel() * w.shape[1] >= WORTH_NATIVE
    native = large and x.device.type == "cpu" and nade_native.available()
    return nade_native if native else nade_blocks


def gpu_kernels(x: Tensor, period: int = 1) -> ModuleType | None:
    r"""The kernels for a GPU, if they can be used."""
    return triton_kernels() if x.is_cuda and period == 1 and x.dtype == torch.float32 else None


def _value(x: Tensor, w: Tensor, c: Tensor, u: Tensor, b: Tensor, period: int) -> Pair:
    r"""z (n, I) with biases, and what the kernels carry over to the pull-back."""
    if (gpu := gpu_kernels(x, period)) is not None:
        return gpu.logits(x, w, c, u, b)
    return _cpu(x, w).logits(x, w, c, u, period).add_(b), x.new_empty(0)


def _fake_value(x: Tensor, w: Tensor, *rest: Any) -> Pair:
    gpu = gpu_kernels(x, rest[-1])
    return empty_like(x), x.new_empty((0,) if gpu is None else gpu.carry_shape(x, w))


def _pull(
    d: Tensor, x: Tensor, w: Tensor, c: Tensor, u: Tensor, carry: Tensor, period: int, wants_x: bool
) -> tuple[Tensor, ...]:
    r"""The pull-back of d (n, I) through the logits: to x, (0,) unless `wants_x`, w, c, u and b."""
    if (gpu := gpu_kernels(x, period)) is not None:
        return gpu.gradients(d, x, w, c, u, carry, wants_x)
    return *_cpu(x, w).pull(d, x, w, c, u, period, wants_x), d.sum(0)


def _fake_pull(d: Tensor, x: Tensor, w: Tensor, c: Tensor, u: Tensor, *rest: Any) -> Any:
    gx = empty_like(x) if rest[-1] else x.new_empty(0)
    return gx, *map(empty_like, (w, c, u)), w.new_empty(len(w))


def _r_logits(x: Tensor, w: Tensor, c: Tensor, u: Tensor, *rest: Any) -> Tensor:
    return r_logits(x, w, c, u, Direction(*rest[:4]), rest[4])[1]


def _r_pull(d: Tensor, rd: Any, x: Tensor, w: Tensor, c: Tensor, u: Tensor, *rest: Any) -> Any:
    return r_pull(d, rd, x, w, c, u, Direction(*rest[:4]), rest[4])


def empty_like(tensor: Tensor) -> Tensor:
    r"""A contiguous tensor of the same shape."""
    return tensor.new_empty(tensor.shape)


_VARIABLES = "Tensor x, Tensor w, Tensor c, Tensor u"
_ALONG = f"{_VARIABLES}, Tensor? vx, Tensor? vw, Tensor? vc, Tensor? vu, int period"
_logits_operator = define_operator(
    "nade_logits", f"({_VARIABLES}, Tensor b, int period) -> (Tensor, Tensor)", _value, _fake_value
)
_pull_operator = define_operator(
    "nade_pull", f"(Tensor d, {_VARIABLES}, Tensor carry, int period, bool wants_x)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)", _pull, _fake_pull,
)  # fmt: skip
_r_logits_operator = define_operator(
    "nade_r_logits", f"({_ALONG}) -> Tensor", _r_logits, lambda x, *_: empty_like(x)
)
_r_pull_operator = define_operator(
    "nade_r_pull", f"(Tensor d, Tensor? rd, {_ALONG}) -> (Tensor, Tensor, Tensor, Tensor)",
    _r_pull, lambda d, rd, *variables: tuple(map(empty_like, variables[:4])),
)  # fmt: skip


class _Function(torch.autograd.Function):
    r"""A function that runs one by one under vmap."""

    traceable = True  # the compiler is kept out by `logits`

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> Any:
        results = []
        for number in range(info.batch_size):
            pairs = zip(arguments, in_dims, strict=True)
            results.append(cls.apply(*(a if d is None else a.select(d, number) for a, d in pairs)))
        if isinstance(results[0], Tensor):
            return torch.stack(results), 0
        return tuple(map(torch.stack, zip(*results, strict=True))), (0,) * len(results[0])


class _Logits(_Function):
    r"""(z, what the kernels carry over to `pull`) of x, w, c, u, b."""

    forward = staticmethod(_logits_operator)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
        *tensors, _, ctx.period = inputs
        ctx.save_for_backward(*tensors, output[1])
        ctx.save_for_forward(*tensors)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, d: Tensor, _: Any) -> tuple[Any, ...]:
        wants_x, *needs = ctx.needs_input_grad[:5]
        gx, *gradients = _Pull.apply(d, *ctx.saved_tensors, ctx.period, wants_x)
        rest = (grad if need else None for grad, need in zip(gradients, needs, strict=True))
        return gx if wants_x else None, *rest, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, None]:
        *v, vb, _ = tangents
        rz = _RLogits.apply(*ctx.saved_tensors, *v, ctx.period)
        return rz if vb is None else rz + vb, None


class _Pull(_Function):
    r"""The pull-back of d through the logits: to x, w, c, u, b."""

    forward = staticmethod(_pull_operator)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
        *tensors, _, ctx.period, ctx.wants_x = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.set_materialize_grads(False)
        if not ctx.wants_x:
            ctx.mark_non_differentiable(output[0])

    @staticmethod
    def backward(ctx: Any, vx: Any, *rest: Any) -> tuple[Any, ...]:
        d, *tensors = ctx.saved_tensors
        *v, vb = (vx if ctx.wants_x else None, *rest)
        rz = _RLogits.apply(*tensors, *v, ctx.period)
        again = _RPull.apply(d, None, *tensors, *v, ctx.period)
        return rz if vb is None else rz + vb, *again, None, None, None

    @staticmethod
    def jvp(ctx: Any, rd: Tensor | None, *tangents: Any) -> tuple[Tensor | None, ...]:
        d, *tensors = ctx.saved_tensors
        rx, *rest = _RPull.apply(d, rd, *tensors, *tangents[:4], ctx.period)
        at_b = torch.zeros_like(d[0]) if rd is None else rd.sum(0)
        return rx if ctx.wants_x else None, *rest, at_b


def _from_formula(formula: Callable[..., Any], operator: Callable[..., Any]) -> type[_Function]:
    r"""A function of tensors, some of them None, and the period, with its formula's derivatives."""

    class FromFormula(_Function):
        forward = staticmethod(operator)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
            *tensors, ctx.period = inputs
            ctx.save_for_backward(*tensors)

        @staticmethod
        def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
            saved = ctx.saved_tensors
            present = [number for number, tensor in enumerate(saved) if tensor is not None]

            def function(*tensors: Tensor) -> Any:
                known = dict(zip(present, tensors, strict=True))
                return formula(*map(known.get, range(len(saved))), ctx.period)

            value, pull = torch.func.vjp(function, *(saved[number] for number in present))[:2]
            gradients = pull(cotangents[0] if isinstance(value, Tensor) else cotangents)
            return *map(dict(zip(present, gradients, strict=True)).get, range(len(saved))), None

    return FromFormula


_RLogits = _from_formula(_r_logits, _r_logits_operator)  # R{z} along (vx, vw, vc, vu)
_RPull = _from_formula(_r_pull, _r_pull_operator)  # R{·} of `pull` along (rd, vx, vw, vc, vu)
