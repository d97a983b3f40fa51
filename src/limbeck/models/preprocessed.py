r"""A network that includes its scaling: raw inputs, and outputs in their own units."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from limbeck import outputs as forms
from limbeck.arguments import Choice, UserObject, checked_arguments, integer
from limbeck.arrays import X, as_numbers
from limbeck.errors import ArgumentError, shown
from limbeck.models.checks import Inner, Sizes, Specified
from limbeck.models.mlp import OUTPUT_FORMS

SHAPES = ("inputs", "outputs", "origin")  # fields of a spec
FARTHEST = 20.0  # the most deviations that a scaled row is away from the mean

Numbers = Tensor | np.ndarray | Sequence[float] | float | None
Buffers = dict[str, Tensor | None]


class Preprocessed(Specified):
    r"""A network with fixed linear transformations of its inputs and outputs.

    x becomes (x − shift) · scale, the network's y becomes y · out_scale + out_shift. The numbers
    are buffers, which are saved and exported with the network.

    Arguments:
        network: A module on tensors of the features' shape.
        shift: Subtracted from the features, of their shape. Default: none.
        scale: Multiplies them afterwards, of the same shape; a feature with scale 0 is ignored,
            whatever its values. Default: none.
        out_shift: For regression, added to the outputs (outputs,). Default: none.
        out_scale: Multiplies the outputs before (outputs,). Default: none.
        encoder: A module from raw inputs to features, trained with the network. Default: none.
        output_form: The form of the outputs, as in `MLP`; "values" with `out_shift` or `out_scale`.
            Default: the network's.
        origin: Subtracted from raw inputs in float64, before anything else: for columns whose
            numbers float32 cannot distinguish, such as time stamps. Default: none.

    >>> Preprocessed(nn.Linear(2, 1), [50.0, 0.0], [0.1, 0.0])(
    ...     torch.tensor([[50.0, torch.inf]])
    ... ).shape
    torch.Size([1, 1])
    """

    fields: ClassVar[Mapping[str, Any]] = {
        "network": Inner, "encoder": Inner | None, "output_form": str | None,
        **dict.fromkeys(SHAPES, Sizes | None),
    }  # fmt: skip
    optional: ClassVar[Sequence[str]] = ("origin",)
    shift: Tensor | None
    scale: Tensor | None
    out_shift: Tensor | None
    out_scale: Tensor | None
    origin: Tensor | None

    @checked_arguments
    def __init__(
        self, network: nn.Module, shift: UserObject[Numbers] = None,
        scale: UserObject[Numbers] = None, out_shift: UserObject[Numbers] = None,
        out_scale: UserObject[Numbers] = None, encoder: nn.Module | None = None,
        output_form: Annotated[str, Choice(*OUTPUT_FORMS)] | None = None,
        origin: UserObject[Numbers] = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.network, self.encoder = network, encoder
        if origin is not None:
            like = next(network.parameters(), torch.empty(0))
            origin = as_numbers(origin, "origin").to(like.device, torch.float64, copy=True)
        self.register_buffer("origin", origin)
        # None takes inputs in the network's own type
        self.input_dtype: torch.dtype | None = None if origin is None else torch.float64
        scaled = out_shift is not None or out_scale is not None
        natural = "values" if scaled else getattr(network, "output_form", None)
        self.output_form = output_form or natural
        if self.output_form not in (*OUTPUT_FORMS, None):
            raise ArgumentError.unknown("output_form", self.output_form, OUTPUT_FORMS)
        for name, value in _pair(network, shift, scale).items():
            self.register_buffer(name, value)
        self.set_outputs(out_shift, out_scale)

    def set_outputs(self, shift: UserObject[Numbers], scale: UserObject[Numbers]) -> None:
        r"""Give outputs y · scale + shift from now on; only values can have such units."""
        buffers = _pair(self.network, shift, scale, "out_")
        added, factor = buffers.values()
        if added is not None and factor is not None:
            if not bool(added.any()) and bool((factor == 1).all()):
                buffers = dict.fromkeys(buffers)
            elif self.output_form not in ("values", None):
                expected = "'values' for outputs that are shifted or scaled"
                raise ArgumentError("output_form", shown(self.output_form), expected)
            else:
                self.output_form = "values"
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        exact = self.origin
        super()._apply(fn, recurse)
        if exact is not None and self.origin is not None:  # a cast would lose its digits
            self.origin = exact.to(self.origin.device)
        return self

    def features(self, x: X) -> Tensor:
        r"""The network's inputs, of raw inputs."""
        if isinstance(x, Tensor) and (self.origin is not None or self.input_dtype is not None):
            like = next((p for p in self.network.parameters() if p.is_floating_point()), None)
            x = x if self.origin is None else x.double() - self.origin
            x = x.to(torch.float32 if like is None else like.dtype)
        h: Any = x if self.encoder is None else self.encoder(x)
        if self.shift is None or self.scale is None:
            return h
        if not isinstance(h, Tensor):
            raise ArgumentError("x", f"a {type(h).__name__}", "a tensor, since there is no encoder")
        if h.shape[1:] != self.shift.shape:
            expected = f"shape (n{''.join(f', {size}' for size in self.shift.shape)})"
            raise ArgumentError("x", f"shape {tuple(h.shape)}", expected)
        scaled = (h.to(self.shift.dtype) - self.shift) * self.scale
        return torch.where(self.scale == 0, 0.0, scaled)  # infinity or NaN times 0 would be NaN

    def forward(self, x: UserObject[X]) -> Tensor:
        y = self.network(self.features(x))
        if self.out_shift is None or self.out_scale is None:
            return y
        if y.ndim > 1 and y.shape[1:] != self.out_shift.shape:
            received = f"{tuple(self.out_shift.shape)} numbers for outputs {tuple(y.shape)}"
            raise ArgumentError("out_shift", received, "one for each output")
        return y * self.out_scale + self.out_shift

    def log_probabilities(self, x: UserObject[X]) -> Tensor:
        r"""Log probabilities (n, classes), by the network's method for them if it has one."""
        method = getattr(self.network, "log_probabilities", None)
        if method is not None and getattr(self.network, "output_form", None) == self.output_form:
            return method(self.features(x))
        return forms.log_probabilities(self(x), self.output_form or "values")

    def spec(self) -> dict[str, Any]:
        tensors = {"inputs": self.shift, "outputs": self.out_shift, "origin": self.origin}
        shapes = {name: None if t is None else list(t.shape) for name, t in tensors.items()}
        return super().spec() | shapes

    @staticmethod
    def _least_size(fields: Mapping[str, Any]) -> int:
        shapes = {name: fields.get(name) or () for name in SHAPES}
        for name, shape in shapes.items():
            for size in shape:
                integer(f"spec.{name}", size, "sizes from 0", least=0)
        return sum(map(math.prod, shapes.values()))

    @classmethod
    def _make(cls, fields: dict[str, Any]) -> Self:
        shapes = [fields.get(name) for name in SHAPES]
        inputs, outputs, origin = (None if s is None else torch.zeros(s) for s in shapes)
        network, encoder, form = (fields[name] for name in ("network", "encoder", "output_form"))
        return cls(network, inputs, inputs, outputs, outputs, encoder, form, origin)


def _pair(network: nn.Module, shift: Numbers, scale: Numbers, prefix: str = "") -> Buffers:
    r"""Shift and scale of one shape by name, or both None; one of them may be left out."""
    of_shift, of_scale = f"{prefix}shift", f"{prefix}scale"
    values = {of_shift: shift, of_scale: scale}.items()
    given = {name: as_numbers(value, name) for name, value in values if value is not None}
    if not given:
        return dict.fromkeys((of_shift, of_scale))
    first = next(iter(given.values()))
    pair = {of_shift: torch.zeros_like(first), of_scale: torch.ones_like(first)} | given
    if pair[of_shift].shape != pair[of_scale].shape:
        received = f"shape {tuple(pair[of_scale].shape)} beside {tuple(pair[of_shift].shape)}"
        raise ArgumentError(of_scale, received, f"the shape of {of_shift}")
    like = next((p for p in network.parameters() if p.is_floating_point()), torch.empty(0))
    pair = {name: v.detach().to(like.device, like.dtype, copy=True) for name, v in pair.items()}
    for name, value in pair.items():
        if not bool(value.isfinite().all()):
            raise ArgumentError(name, "NaN or infinity", "finite numbers")
    return {**pair}


def standardising(x: Tensor) -> tuple[Tensor, Tensor]:
    r"""Shift and scale, of x's shape but for rows, that give columns mean 0 and deviation 1."""
    # not finite numbers do not count, constant columns have scale 0, rows are within `FARTHEST`
    if len(x) == 0:
        raise ArgumentError("x", "no rows", "one row or more")
    rows = x.detach().to(torch.float32).to(torch.float64)  # with a student's digits
    finite = rows.isfinite()
    count = finite.sum(0).clamp_min(1)
    known = torch.where(finite, rows, 0.0)
    shift = known.sum(0) / count
    apart = torch.where(finite, rows - shift, 0.0)
    spread = (apart.square().sum(0) / count).sqrt()
    single = torch.finfo(torch.float32)
    constant = spread <= (single.eps * known.abs().amax(0)).clamp_min(single.tiny)
    spread = torch.maximum(spread, apart.abs().amax(0) / FARTHEST)
    scale = torch.where(constant, 0.0, 1 / torch.where(constant, 1.0, spread))
    return shift.to(torch.float32), scale.to(torch.float32)


def origin_of(x: Tensor) -> Tensor | None:
    r"""The origin of float64 columns, so that float32 can distinguish their numbers, or None."""
    if x.dtype != torch.float64:
        return None
    low, high, whole = x.amin(0), x.amax(0), (x == x.round()).all(0)
    top = torch.maximum(-low, high)
    far = (top > 1000 * (high - low)) & (high > low) | (top > 2**24) & whole
    middle = low + (high - low) / 2
    middle = torch.where(whole, middle.round(), middle)
    return torch.where(far, middle, 0.0) if bool(far.any()) else None
