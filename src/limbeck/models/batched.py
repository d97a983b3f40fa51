r"""Many equal perceptrons as batched tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from limbeck.core.checks import whole_number
from limbeck.errors import ArgumentError
from limbeck.models.feedforward import (
    LAYER_KINDS,
    Feedforward,
    flat,
    initialise,
    shapes,
)
from limbeck.models.mlp import MLP

__all__ = ["BatchedMLP"]


class BatchedMLP(Feedforward):
    r"""Equal perceptrons evaluated together, as one batched matrix product a layer.

    Inputs are (n, inputs) for all members, or (n, members, inputs) with one for each; outputs
    are (n, members, outputs). Weights are `weights[l]` (members, out, in) and `biases[l]`
    (members, out), drawn as that many MLPs in turn would draw them.

    Arguments:
        members: The number of nets.
        sizes: As of `MLP`, and so are the keywords.

    >>> BatchedMLP(30, 784, 50, 10)(torch.zeros(2, 784)).shape
    torch.Size([2, 30, 10])
    """

    _more = frozenset({"members"})

    def __init__(
        self,
        members: int,
        *sizes: int,
        hidden: str | Sequence[str] = "relu",
        output: str = "linear",
        bias: bool = True,
        output_form: str | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
        init: str = "he",
    ) -> None:
        super().__init__(sizes, hidden, output, bias, output_form, dtype, init)
        self.members = members = whole_number("members", members, "an int of 1 or more", least=1)
        layers = shapes(self)
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for inputs, outputs, _ in layers:
            weight = torch.empty(members, outputs, inputs, dtype=dtype, device=device)
            self.weights.append(nn.Parameter(weight))
            if self.bias:
                bias_ = torch.empty(members, outputs, dtype=dtype, device=device)
                self.biases.append(nn.Parameter(bias_))
        for member in range(self.members):
            for layer, (weight, (_, _, kind)) in enumerate(zip(self.weights, layers, strict=True)):
                offset = self.biases[layer].detach()[member] if self.bias else None
                initialise(weight.detach()[member], offset, kind, generator, init)

    def preactivation(self, x: Tensor) -> Tensor:
        r"""The last layer's outputs (n, members, outputs) before its nonlinearity."""
        rows, inputs = flat(x), self.sizes[0]
        if rows.shape[1] == inputs:
            # one product for all members: (n, inputs) with (inputs, members * out)
            bias = self.biases[0].flatten() if self.bias else None
            h = F.linear(rows, self.weights[0].flatten(0, 1), bias)
            h = h.unflatten(1, (self.members, self.sizes[1])).permute(1, 2, 0)
        elif x.dim() > 2 and x.shape[1] == self.members and math.prod(x.shape[2:]) == inputs:
            h = self._product(0, x.flatten(2).permute(1, 2, 0))
        else:
            accepted = f"shape (n, {inputs}) or (n, {self.members}, {inputs})"
            raise ArgumentError("x", f"shape {tuple(x.shape)}", accepted)
        for layer, kind in enumerate(self.hidden, start=1):
            h = LAYER_KINDS[kind](h.transpose(1, 2)).transpose(1, 2)  # a softmax is over units
            h = self._product(layer, h)
        return h.permute(2, 0, 1)

    def _product(self, layer: int, h: Tensor) -> Tensor:
        # (members, out, in) with (members, in, n): weights come first, so that their gradients
        # lie in memory as they do
        if self.bias:
            return torch.baddbmm(self.biases[layer].unsqueeze(2), self.weights[layer], h)
        return torch.bmm(self.weights[layer], h)

    def _in_order(self) -> list[Tensor]:
        # as MLP.parameters() gives them: weight, bias, weight, bias, ...
        if not self.bias:
            return list(self.weights)
        return [p for pair in zip(self.weights, self.biases, strict=True) for p in pair]

    def member(self, index: int) -> MLP:
        r"""One of the nets, with its own copy of the weights."""
        if type(index) is not int or not -self.members <= index < self.members:
            raise ArgumentError("index", repr(index), f"an int from 0 to {self.members - 1}")
        fields = {**self.spec(), "type": "MLP"}
        del fields["members"]
        net = MLP.from_spec(fields, device="meta").to_empty(device=self.weights[0].device)
        with torch.no_grad():
            for copy, batch in zip(net.parameters(), self._in_order(), strict=True):
                copy.copy_(batch[index])
        return net.train(self.training)

    @classmethod
    def from_members(cls, members: Sequence[MLP]) -> Self:
        r"""Copies of separate nets, all of one shape, as a batch."""
        members = list(members)
        if not members or any(type(net) is not MLP for net in members):
            received = [type(net).__name__ for net in members]
            raise ArgumentError("members", received, "one or more MLPs")
        fields = members[0].spec()
        for net in members:
            if net.spec() != fields:
                raise ArgumentError("members", f"{net.spec()} beside {fields}", "equal MLPs")
        fields |= {"type": cls.__name__, "members": len(members)}
        device = next(members[0].parameters()).device
        batched = cls.from_spec(fields, device="meta").to_empty(device=device)
        with torch.no_grad():
            for index, net in enumerate(members):
                for batch, own in zip(batched._in_order(), net.parameters(), strict=True):
                    batch[index] = own
        return batched.train(members[0].training)

    def spec(self) -> dict[str, Any]:
        return {**super().spec(), "members": self.members}

    def extra_repr(self) -> str:
        return f"members={self.members}, {super().extra_repr()}"
