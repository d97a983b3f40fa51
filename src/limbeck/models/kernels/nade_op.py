r"""NADE's recursion as operators for all devices, differentiable to any order, and traceable.

The variables are cut into K runs of B (the last may be shorter). With activations s_k at the start
of run k, the logits of its variables are, but for their biases,

    z_i = Σ_j u_ij σ(s_kj + Σ_{i' < i, in run k} w_i'j v_i').

Matrix products carry a NADE's activations into all runs at once. Kernels (Triton on a GPU, plain
torch, or C++ for all of a NADE on a CPU) compute values and first derivatives, hidden from tracers
in operators of torch; higher derivatives are those of `formula`.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from limbeck.models.kernels import nade_native

_LIBRARY = torch.library.Library("limbeck", "FRAGMENT")
Four = tuple[Tensor, Tensor, Tensor, Tensor]
WORTH_NATIVE = 2**16  # activations from which C++ kernels are worth a second of compilation
NUMBERS = {"cpu": 2**19, "cuda": 2**26}  # activations at a time: to stay in cache, to fill a GPU
empty = functools.partial(torch.empty_like, memory_format=torch.contiguous_format)
TOGETHER = {"cpu": 2**22, "cuda": 2**26}  # the same at starts, and where the formula is used


def formula(v: Tensor, starts: Tensor, w: Tensor, u: Tensor, run: int) -> Tensor:
    r"""z (n, I) of v (n, I), starts (K, n, J), w and u (I, J), in plain torch.

    Of variables with q inputs and outputs it is (n, I, q), of v (n, I, q), w and u (I, q, J).
    """
    one = v.dim() == 2
    steps = v.unsqueeze(2) * w if one else torch.einsum("nif,ifj->nij", v, w)  # (n, I, J)
    z = []
    for start, inside, u_k in zip(starts, steps.split(run, 1), u.split(run), strict=True):
        h = torch.cat([start.unsqueeze(1), inside[:, :-1]], 1).cumsum(1).sigmoid()
        z.append((h * u_k).sum(2) if one else torch.einsum("nij,ioj->nio", h, u_k))
    return torch.cat(z, 1)


def carried(v: Tensor, w: Tensor, run: int) -> Tensor:
    r"""Σ w_i v_i over the variables before each run, (K, n, J); as in `formula`."""
    q = math.prod(v.shape[2:])
    padding = -len(w) % run * q
    v, w = v.flatten(1), w.reshape(-1, w.shape[-1])
    if padding:
        v, w = F.pad(v, (0, padding)), F.pad(w, (0, 0, 0, padding))
    v, w = v.unflatten(1, (-1, run * q)), w.unflatten(0, (-1, run * q))
    with torch.autocast(v.device.type, enabled=False):
        sums = torch.bmm(v.transpose(0, 1), w)  # of each run
        before = v.new_ones(len(sums), len(sums)).tril(-1)
        return (before @ sums.flatten(1)).view_as(sums)


def logits(x: Tensor, w: Tensor, c: Tensor, u: Tensor, b: Tensor) -> Tensor:
    r"""The logits of a NADE, with biases, (n, I), or of q states (n, I, q); as in `formula`."""
    _refuse_tracing()
    if torch.compiler.is_exporting():  # a file has no operators of limbeck's own
        return run_logits(x, (0 * x.flatten(1)[:, :1] + c).unsqueeze(0), w, u, b, x.shape[1])
    if use_native(x, w):
        period = math.prod(x.shape[2:])
        w, u = (tensor.reshape(-1, w.shape[-1]) for tensor in (w, u))
        return _native(x.flatten(1), w, c, u, period).view_as(x) + b
    run = _run(x)
    numbers = (x.shape[1] if x.dim() > 2 else -(-x.shape[1] // run)) * w.shape[-1]
    rows = max(1, TOGETHER.get(x.device.type, TOGETHER["cpu"]) // numbers)
    if len(x) > rows:
        return torch.cat([logits(part, w, c, u, b) for part in x.split(rows)])
    return run_logits(x, carried(x, w, run) + c, w, u, b, run)


def run_logits(v: Tensor, starts: Tensor, w: Tensor, u: Tensor, b: Tensor, run: int) -> Tensor:
    r"""Logits with biases of runs with given activations at their starts; as in `formula`."""
    _refuse_tracing()
    function = _runs if v.dim() == 2 and not torch.compiler.is_exporting() else formula
    return function(v, starts, w, u, run) + b


def _refuse_tracing() -> None:
    if torch.compiler.is_dynamo_compiling():  # inlined, operators would lose their derivatives
        raise RuntimeError("prepare_tracing() must come before NADE's operator is compiled")


@functools.cache
def prepare_tracing() -> None:
    r"""Let torch's compiler leave the operators in its graph; its import takes seconds."""
    torch.compiler.allow_in_graph(logits)
    torch.compiler.allow_in_graph(run_logits)


def _run(x: Tensor) -> int:
    r"""The number of variables in a run; more examples fill a GPU with fewer runs."""
    most = 64 if x.is_cuda and len(x) > 64 else 32
    return next((size for size in range(most, most // 2, -1) if x.shape[1] % size == 0), most)


def use_native(x: Tensor, w: Tensor) -> bool:
    r"""Whether the C++ kernels are there, and worth it."""
    large = x.dtype in nade_native.NAMES and x.numel() * w.shape[-1] >= WORTH_NATIVE
    return large and x.device.type == "cpu" and nade_native.available()


@functools.cache
def triton_kernels() -> ModuleType | None:
    r"""The kernels for a GPU; None on platforms without Triton."""
    try:
        return importlib.import_module("limbeck.models.kernels.nade_triton")
    except ImportError:
        return None


def gpu_kernels(x: Tensor) -> ModuleType | None:
    r"""The kernels for a GPU, if they can be used."""
    return triton_kernels() if x.is_cuda and x.dtype == torch.float32 else None


def _value(v: Tensor, starts: Tensor, w: Tensor, u: Tensor, run: int) -> Tensor:
    if (gpu := gpu_kernels(v)) is not None:
        return gpu.logits(v, starts, w, u, run)

    def of_rows(v: Tensor, starts: Tensor, w: Tensor, u: Tensor) -> tuple[Tensor]:
        return (formula(v, starts, w, u, run),)

    return _by_rows(of_rows, (v, starts, w, u), (0, 1, None, None), (0,))[0]


def _pull(
    d: Tensor, v: Tensor, starts: Tensor, w: Tensor, u: Tensor, run: int, wants_v: bool
) -> Four:
    r"""The pull-back of d (n, I): to v, (0,) if not wanted, and to starts, w and u."""
    if (gpu := gpu_kernels(v)) is not None and not wants_v:
        return v.new_empty(0), *gpu.gradients(d, v, starts, w, u, run)
    gv = torch.empty_like(v) if wants_v else v.new_empty(0)
    at_starts, gw, gu = torch.empty_like(starts), torch.zeros_like(w), torch.zeros_like(u)
    size = max(1, NUMBERS.get(v.device.type, NUMBERS["cpu"]) // (run * w.shape[1]))
    for k, i in enumerate(range(0, len(w), run)):
        part = slice(i, i + run)
        # whether an input comes before a variable of the run, (B, 1, B)
        earlier = v.new_ones(len(w[part]), len(w[part])).tril(-1).unsqueeze(1)
        for r in range(0, len(v), size):
            rows = slice(r, r + size)
            before = v[rows, part] * earlier  # (B, r, B)
            a = (before.flatten(0, 1) @ w[part]).view(*before.shape[:2], -1)
            h = a.add_(starts[k, rows]).sigmoid_()  # (B, r, J)
            at_z = d[rows, part].T  # (B, r)
            gu[part] += torch.bmm(at_z.unsqueeze(1), h).squeeze(1)
            at_a = (at_z.unsqueeze(2) * u[part].unsqueeze(1)).mul_(h).mul_(1 - h)
            at_starts[k, rows] = at_a.sum(0)
            gw[part].addmm_(before.flatten(0, 1).T, at_a.flatten(0, 1))
            if wants_v:
                gv[rows, part] = (at_a @ w[part].T).mul_(earlier).sum(0)
    return gv, at_starts, gw, gu


def _operator(
    name: str, value: Callable[..., Tensor], pull: Callable[..., Four],
    formula: Callable[..., Tensor], second: int | None,
) -> Callable[..., Any]:  # fmt: skip
    r"""A differentiable function (n, I) of x (n, I), three more tensors and a whole number.

    Value and pull-back are from kernels, all else from the formula, by blocks of rows: these are
    the axis `second` of the second tensor, and the last two have none.
    """
    names = "Tensor x, Tensor one, Tensor two, Tensor three, int size"
    value = _define(f"{name}_logits", f"({names}) -> Tensor", value, lambda x, *_: empty(x))
    pull = _define(
        f"{name}_pull", f"(Tensor d, {names}, bool wants_x) -> (Tensor, Tensor, Tensor, Tensor)",
        pull, lambda d, x, *rest: (empty(x) if rest[-1] else x.new_empty(0), *map(empty, rest[:3])),
    )  # fmt: skip
    axes = (0, second, None, None)

    def logits(size: int, *tensors: Tensor) -> tuple[Tensor]:
        return (formula(*tensors, size),)

    def gradients(size: int, d: Tensor, *tensors: Tensor) -> Any:
        return torch.func.vjp(functools.partial(logits, size), *tensors)[1]((d,))

    return _function(value, logits, axes, (0,), _function(pull, gradients, (0, *axes), axes))


def _function(
    kernel: Callable[..., Any], formula: Callable[..., Any], axes: Sequence[int | None],
    results: Sequence[int | None], pull: Callable[..., Any] | None = None,
) -> Callable[..., Any]:  # fmt: skip
    r"""A kernel that autograd differentiates, by the formula where there is no operator `pull`.

    The arguments of `pull` end with whether the gradient of the first tensor is wanted.
    """
    count = len(axes)

    class Function(torch.autograd.Function):
        traceable = True  # the compiler is kept out by `logits` and `run_logits`
        forward = staticmethod(kernel)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.save_for_backward(*inputs[:count])
            ctx.save_for_forward(*inputs[:count])
            ctx.formula = functools.partial(formula, inputs[count])
            ctx.size, ctx.unwanted = inputs[count], inputs[count + 1 :] == (False,)
            if ctx.unwanted:
                ctx.mark_non_differentiable(output[0])

        @staticmethod
        def backward(ctx: Any, *v: Any) -> tuple[Any, ...]:
            tensors, needs = ctx.saved_tensors, ctx.needs_input_grad
            if pull is not None:
                each = zip(pull(*v, *tensors, ctx.size, needs[0]), needs, strict=False)
                return *(g if need else None for g, need in each), None
            v = (torch.zeros_like(tensors[1]), *v[1:]) if ctx.unwanted else v

            def back(*both: Tensor) -> Any:
                return torch.func.vjp(ctx.formula, *both[:count])[1](both[count:])

            return *_by_rows(back, (*tensors, *v), (*axes, *results), axes), None, None

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            def along(*both: Tensor) -> Any:  # a pull-back is linear, and this is its pull-back
                value, back = torch.func.vjp(ctx.formula, *both[:count])[:2]
                return torch.func.vjp(back, tree_map(torch.zeros_like, value))[1](both[count:])[0]

            both = (*ctx.saved_tensors, *tangents[:count])
            first, *rest = _by_rows(along, both, (*axes, *axes), results)
            return (None if ctx.unwanted else first, *rest) if rest else first

        @classmethod
        def vmap(cls, info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> Any:
            values = []  # one by one
            for n in range(info.batch_size):
                pairs = zip(arguments, in_dims, strict=True)
                values.append(cls.apply(*(a if d is None else a.select(d, n) for a, d in pairs)))
            if pull is not None:
                return torch.stack(values), 0
            return tuple(map(torch.stack, zip(*values, strict=True))), (0,) * len(results)

    return Function.apply


def _define(
    name: str, schema: str, function: Callable[..., Any], fake: Callable[..., Any]
) -> Callable[..., Any]:
    r"""An operator of torch that calls a function; `fake` gives empty tensors to tracers."""

    def in_full_precision(*inputs: Any) -> Any:
        with torch.autocast(inputs[0].device.type, enabled=False):
            return function(*inputs)

    _LIBRARY.define(name + schema)
    _LIBRARY.impl(name, in_full_precision, "CompositeExplicitAutograd")
    torch.library.register_fake(f"limbeck::{name}", fake)
    operator = getattr(torch.ops.limbeck, name).default
    return lambda *inputs: operator(*inputs)  # its signature is read faster than an operator's


def _by_rows(
    function: Callable[..., Any], tensors: Sequence[Tensor],
    axes: Sequence[int | None], results: Sequence[int | None],
) -> tuple[Tensor, ...]:  # fmt: skip
    r"""A function of blocks of rows: results along an axis are joined, others are added up."""
    x = tensors[0]
    numbers = TOGETHER.get(x.device.type, TOGETHER["cpu"]) // (x.shape[1] * tensors[-1].shape[-1])
    parts = []
    for r in range(0, max(len(x), 1), rows := max(1, numbers)):
        size = min(rows, len(x) - r)
        pairs = zip(tensors, axes, strict=True)
        parts.append(function(*(t if a is None else t.narrow(a, r, size) for t, a in pairs)))
    if len(parts) == 1:
        return tuple(parts[0])
    joined = zip(zip(*parts, strict=True), results, strict=True)
    return tuple(sum(each) if axis is None else torch.cat(each, axis) for each, axis in joined)


def nade_formula(x: Tensor, w: Tensor, c: Tensor, u: Tensor, period: int = 1) -> Tensor:
    r"""The logits (n, I) of a NADE but for biases, in plain torch; `period` inputs a variable."""
    w, u = (each.unflatten(0, (-1, period)) for each in (w, u))
    x = x.unflatten(1, (-1, period))
    return formula(x, c.expand(1, len(x), -1), w, u, len(w)).flatten(1)


_runs = _operator("nade_runs", _value, _pull, formula, 1)
_native = _operator("nade", nade_native.logits, nade_native.pull, nade_formula, None)
