r"""MADE, the masked autoencoder for distribution estimation: all conditionals in one pass."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from limbeck.arguments import Choice, Count, Flag, UserObject, checked_arguments, integer
from limbeck.models.autoregressive import Autoregressive, Order, choose
from limbeck.models.checks import Device, Generator, Sizes
from limbeck.supports import Discrete

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "tanh": torch.tanh}


class MADE(Autoregressive):
    r"""A feedforward net whose weights are masked so that output i depends on x_<i alone.

    Every hidden unit has a degree, the number of variables (in order) that it may depend on.
    Degrees grow evenly along a layer from 1 to I − 1. A hidden layer as wide as the one before adds
    to it instead of replacing it: f ← f + W gelu(f). The last layer starts at zero. For q > 2
    states every variable has an input for each state and a softmax of q outputs.

    Arguments:
        inputs: The number of variables I.
        hidden: The numbers of units of the hidden layers. Default: (1000, 1000).
        order: As in `NADE`, like `support`, `dtype`, `device` and `generator`.
        skip: Whether there are direct weights from inputs to outputs. Default: True.
        activation: "gelu", or "tanh", where two states enter as −1 and +1: after the same time on
            a lattice of spins, its KL divergence is half that of "gelu". Default: "gelu".

    >>> made = MADE(784, (400, 400), generator=torch.Generator().manual_seed(0))
    >>> made.log_prob(torch.zeros(3, 784)).detach().round()
    tensor([-543., -543., -543.])
    """

    fields: ClassVar[Mapping[str, Any]] = {
        **Autoregressive.fields, "hidden": Sizes, "skip": bool,
        "activation": Literal["gelu", "tanh"],
    }  # fmt: skip
    optional: ClassVar[Sequence[str]] = ("activation",)

    @checked_arguments
    def __init__(
        self, inputs: Count, hidden: UserObject[int | Sequence[int]] = (1000, 1000),
        order: UserObject[Order] = None, support: Discrete | None = None, skip: Flag = True,
        dtype: torch.dtype | None = None, device: Device = None, generator: Generator = None,
        activation: Annotated[str, Choice(*ACTIVATIONS)] = "gelu",
    ) -> None:  # fmt: skip
        super().__init__(inputs, order, support, dtype, device, generator)
        expected = "whole numbers from 1, such as (1000, 1000)"
        widths = hidden if isinstance(hidden, Sequence) and hidden else [hidden]
        self.hidden = tuple(integer("hidden", width, expected, least=1) for width in widths)
        self.activation, self._activate = activation, ACTIVATIONS[activation]
        self.skip, self._units = bool(skip), 2 * sum(self.hidden)
        self._each = 1 if not self._states else self.support.count  # inputs of a variable
        sizes = (self.inputs * self._each, *self.hidden)
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for layer, (before, width) in enumerate(itertools.pairwise(sizes)):
            mask = self._mask(layer)
            scale = 0.1 if self._residual(layer) else 1.0  # residual layers start small
            weights = self._normal(generator, scale, width, before)
            weights.detach().mul_((2 / mask.sum(1, keepdim=True).clamp_min(1)).sqrt()).mul_(mask)
            self.weights.append(weights)
            self.biases.append(self._zeros(width))
        self.out, self.bias = self._zeros(sizes[0], sizes[-1]), self._zeros(sizes[0])
        self.direct = self._zeros(sizes[0], sizes[0]) if self.skip else None

    def _logits(self, codes: Tensor) -> Tensor:
        f = x = self._inputs(codes)
        for layer, (weights, biases) in enumerate(zip(self.weights, self.biases, strict=True)):
            new = F.linear(self._activate(f) if layer else x, weights * self._mask(layer), biases)
            f = f + new if self._residual(layer) else new
        z = F.linear(self._activate(f), self.out * self._mask(len(self.hidden)), self.bias)
        if self.direct is not None:
            z = z + F.linear(x, self.direct * self._mask(len(self.hidden), -1))
        return z if self._each == 1 else z.unflatten(1, (self.inputs, -1))

    def _draw(self, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        r"""Every unit is computed once, when all variables that it depends on are drawn."""
        rows, width = len(uniforms), self._each  # inputs of a variable
        x = uniforms.new_zeros(rows, self.inputs * width)
        layers = [x.new_zeros(rows, units) for units in self.hidden]  # activations
        active = [torch.zeros_like(f) for f in layers]
        ends = [self._reaches(layer) for layer in range(len(self.hidden))]
        codes, probabilities = torch.empty_like(uniforms), []
        for i in range(self.inputs):
            start, span = i * width, slice(i * width, (i + 1) * width)
            for layer, (f, end) in enumerate(zip(layers, ends, strict=True)):
                new = slice(end[i - 1] if i else 0, end[i])
                before = x[:, :start] if layer == 0 else active[layer - 1][:, : ends[layer - 1][i]]
                weights = self.weights[layer][new, : before.shape[1]]
                f[:, new] = F.linear(before, weights, self.biases[layer][new])
                if self._residual(layer):
                    f[:, new] += layers[layer - 1][:, new]
                active[layer][:, new] = self._activate(f[:, new])
            z = F.linear(active[-1][:, : ends[-1][i]], self.out[span, : ends[-1][i]])
            z += self.bias[span]
            if self.direct is not None:
                z += F.linear(x[:, :start], self.direct[span, :start])
            codes[:, i], p = choose(uniforms[:, i], z[:, 0] if width == 1 else z)
            x[:, span] = self._inputs(codes[:, i : i + 1])
            probabilities.append(p)
        return codes, torch.stack(probabilities, 1)

    @classmethod
    def _least_size(cls, fields: Mapping[str, Any]) -> int:
        sizes = ((width := cls._width(fields)), *fields["hidden"], width)
        direct = sizes[0] ** 2 if fields["skip"] else 0
        return direct + sum(before * after for before, after in itertools.pairwise(sizes))

    def _residual(self, layer: int) -> bool:
        return layer > 0 and self.hidden[layer] == self.hidden[layer - 1]

    def _inputs(self, codes: Tensor) -> Tensor:
        r"""The net's inputs (n, I), or with an input a state (n, I · q)."""
        if self._each > 1:
            return self._features(codes).flatten(1)
        return 2 * codes - 1 if self.activation == "tanh" else codes

    def _mask(self, layer: int, before: int | None = None) -> Tensor:
        r"""Which weights of a layer count, (its units, those of the layer before)."""
        inputs = self._degrees(layer - 1 if before is None else before)
        return self._degrees(layer).unsqueeze(1) >= inputs

    def _degrees(self, layer: int) -> Tensor:
        r"""How many variables a layer's units depend on: from −1, the inputs, to the outputs."""
        device = self.order.device
        if 0 <= layer < len(self.hidden):
            width = self.hidden[layer]
            return 1 + torch.arange(width, device=device) * (self.inputs - 1) // width
        variable = torch.arange(self.inputs * self._each, device=device) // self._each
        return variable + 1 if layer < 0 else variable

    def _reaches(self, layer: int) -> list[int]:
        r"""For each variable, how many units of a hidden layer its output may depend on."""
        variables = torch.arange(self.inputs, device=self.order.device)
        return torch.bucketize(variables, self._degrees(layer), right=True).tolist()
