r"""The multi-layer perceptron, and many equal ones evaluated together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from limbeck.arguments import whole_number
from limbeck.arrays import dtype_name
from limbeck.errors import ArgumentError
from limbeck.models.checks import Device, Generator, flat, is_count, spec_fields
from limbeck.outputs import FORMS, columns, log_probabilities

__all__ = [
    "INITS",
    "LAYER_KINDS",
    "MLP",
    "OUTPUT_FORMS",
    "BatchedMLP",
    "Feedforward",
    "flat",
    "initialise",
    "is_count",
    "shapes",
]

LAYER_KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda z: z,
    "relu": torch.relu,
    "tanh": torch.tanh,
    "logistic": torch.sigmoid,
    # torch.special.ndtr is (1 + erf)/2, which is 0 from z = -5.5 on in float32
    "probit": lambda z: torch.erfc(-z * math.sqrt(0.5)) / 2,
    "softmax": lambda z: F.softmax(z, dim=-1),
    "log_softmax": lambda z: F.log_softmax(z, dim=-1),
}

OUTPUT_FORMS = FORMS[:4]
INITS = ("he", "lecun")


def _log_ndtr(z: Tensor) -> Tensor:
    # as torch.special.log_ndtr, which has no batching rule for vmap, and whose derivative
    # exp(-z²/2 - log_ndtr(z)) cancels in the left tail: in float32 it is 4% off at z = -1e3
    left, right = z.clamp_max(-1.0), z.clamp_min(-1.0)
    tail = (torch.special.erfcx(-left * math.sqrt(0.5)) / 2).log() - left.square() / 2
    return torch.where(z < -1, tail, torch.log1p(-torch.erfc(right * math.sqrt(0.5)) / 2))


class Feedforward(nn.Module):
    r"""What one net and a batch of nets share: settings, layer kinds, output form, spec."""

    fields: tuple[str, ...] = ("sizes", "hidden", "output", "bias", "output_form", "dtype")

    def __init__(
        self,
        *sizes: int,
        hidden: str | Sequence[str] = "relu",
        output: str = "linear",
        bias: bool = True,
        output_form: str | None = None,
        dtype: torch.dtype | None = None,
        device: Device = None,
        generator: Generator = None,
        init: str = "he",
    ) -> None:
        super().__init__()
        if init not in INITS:
            raise ArgumentError.unknown("init", init, INITS)
        if len(sizes) < 2 or not all(map(is_count, sizes)):
            expected = "at least two ints of 1 or more, as in (784, 50, 30, 10)"
            raise ArgumentError("sizes", tuple(sizes), expected)
        count = len(sizes) - 2
        names = [hidden] * count if isinstance(hidden, str) else list(hidden)
        for name in [hidden] if isinstance(hidden, str) else names:
            if name not in LAYER_KINDS:
                raise ArgumentError.unknown("hidden", name, LAYER_KINDS)
        if len(names) != count:
            raise ArgumentError("hidden", f"{len(names)} names", f"one name, or {count}")
        if output not in LAYER_KINDS:
            raise ArgumentError.unknown("output", output, LAYER_KINDS)
        if "softmax" in output and sizes[-1] == 1:
            expected = "'logistic' or 'linear' with one output, where softmax is constant"
            raise ArgumentError("output", repr(output), expected)
        if output_form is not None and output_form not in OUTPUT_FORMS:
            raise ArgumentError.unknown("output_form", output_form, OUTPUT_FORMS)
        if dtype is not None and not dtype.is_floating_point:
            raise ArgumentError("dtype", dtype, "a floating-point type")
        self.sizes, self.hidden = tuple(map(int, sizes)), tuple(names)
        self.output, self.bias = output, bool(bias)
        self._output_form = output_form or self._natural_kind()
        device = torch.get_default_device() if device is None else torch.device(device)
        self._allocate(dtype, device)
        for weight, offset, kind in self._layer_parameters():
            initialise(weight, offset, kind, generator, init)

    def _allocate(self, dtype: torch.dtype | None, device: torch.device) -> None:
        raise NotImplementedError

    def _layer_parameters(self) -> Iterator[tuple[Tensor, Tensor | None, str]]:
        r"""Weights, biases and kind of each layer, in the order in which they are drawn."""
        raise NotImplementedError

    def _natural_kind(self) -> str:
        if self.output in ("logistic", "probit"):
            return "probabilities" if self.sizes[-1] == 1 else "values"
        kinds = {"linear": "logits", "softmax": "probabilities", "log_softmax": "log_probabilities"}
        return kinds.get(self.output, "values")

    @property
    def output_form(self) -> str:
        r"""What the outputs are: one of `OUTPUT_FORMS`."""
        return self._output_form

    @property
    def parameters_count(self) -> int:
        r"""The number of adjustable parameters."""
        return sum(parameter.numel() for parameter in self.parameters())

    def preactivation(self, x: Tensor) -> Tensor:
        r"""The last layer's outputs before its nonlinearity."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return LAYER_KINDS[self.output](self.preactivation(x))

    def log_probabilities(self, x: Tensor) -> Tensor:
        r"""Log probabilities (..., classes), two classes where there is one output.

        They come from the last layer's linear phase, so they stay finite where probabilities
        underflow.
        """
        if self.output_form == "values":
            expected = "a net that gives logits, probabilities or log_probabilities"
            raise ArgumentError("output_form", "'values'", expected)
        z = self.preactivation(x)
        if self.output_form == self._natural_kind():
            if self.output == "probit":
                return columns(_log_ndtr(-z), _log_ndtr(z))
            return log_probabilities(z, "logits")
        return log_probabilities(LAYER_KINDS[self.output](z), self.output_form)

    def spec(self) -> dict[str, Any]:
        r"""All but the weights, for JSON."""
        return {
            "type": type(self).__name__,
            "sizes": list(self.sizes),
            "hidden": list(self.hidden),
            "output": self.output,
            "bias": self.bias,
            "output_form": self.output_form,
            "dtype": dtype_name(next(self.parameters())),
        }

    @classmethod
    def from_spec(
        cls, spec: Mapping[str, Any], *, device: Device = None, generator: Generator = None
    ) -> Self:
        r"""A net of the same shape, freshly initialised."""
        fields = spec_fields(cls, spec, *cls.fields)
        members = [fields.pop("members")] if "members" in fields else []
        build: Any = cls
        return build(*members, *fields.pop("sizes"), **fields, device=device, generator=generator)

    def extra_repr(self) -> str:
        return (
            f"{', '.join(map(str, self.sizes))}, hidden={self.hidden}, output={self.output!r}, "
            f"output_form={self.output_form!r}, parameters={self.parameters_count:,}"
        )


def shapes(net: Feedforward) -> list[tuple[int, int, str]]:
    r"""Inputs, outputs and kind of each layer."""
    return list(zip(net.sizes[:-1], net.sizes[1:], (*net.hidden, net.output), strict=True))


def initialise(
    weight: Tensor, bias: Tensor | None, kind: str, generator: Generator, init: str = "he"
) -> None:
    r"""Draw a layer's first weights (out, in) and biases (out,), as `MLP` says of `init`.

    They are drawn on the generator's device: a CPU generator gives equal nets everywhere.
    """
    deviation = (weight.shape[1] + 1) ** -0.5

    def draw(values: Tensor) -> None:
        source = values.device if generator is None else generator.device
        drawn = torch.empty_like(values, device=source)
        if init == "lecun":
            nn.init.normal_(drawn, std=deviation, generator=generator)
        elif kind == "relu":
            nn.init.kaiming_normal_(drawn, nonlinearity="relu", generator=generator)
        else:
            nn.init.xavier_uniform_(drawn, generator=generator)
        values.detach().copy_(drawn)

    draw(weight)
    if bias is not None and init == "lecun":
        draw(bias)
    elif bias is not None:
        nn.init.zeros_(bias)


class MLP(Feedforward):
    r"""A multi-layer perceptron.

    Layer kinds are "linear", "relu", "tanh", "logistic", "probit", "softmax" and "log_softmax".

    Arguments:
        sizes: Numbers of inputs, of units in each hidden layer, and of outputs.
        hidden: The kind of the hidden layers, or one for each. Default: "relu".
        output: The kind of the output layer. Default: "linear".
        bias: Whether layers have biases. Default: True.
        output_form: What the outputs are ("logits", "probabilities", "log_probabilities" or
            "values", as for regression). Default: what `output` implies.
        dtype: The weights' floating-point type. Default: torch's.
        device: The weights' device. Default: torch's.
        generator: Draws the weights. Default: torch's global one.
        init: "he": He's normal weights before relus, Glorot's uniform ones before others, and
            biases of zero. "lecun": normal weights and biases of variance 1 / (inputs of the
            layer + 1). Default: "he".

    >>> MLP(784, 50, 30, 10)(torch.zeros(2, 28, 28)).shape
    torch.Size([2, 10])
    """

    def _allocate(self, dtype: torch.dtype | None, device: torch.device) -> None:
        kind: dict[str, Any] = {"bias": self.bias, "dtype": dtype, "device": device}
        self.layers = nn.ModuleList(
            nn.utils.skip_init(nn.Linear, inputs, outputs, **kind)  # draws nothing
            for inputs, outputs, _ in shapes(self)
        )

    def _layer_parameters(self) -> Iterator[tuple[Tensor, Tensor | None, str]]:
        layers: Any = self.layers
        for layer, kind in zip(layers, (*self.hidden, self.output), strict=True):
            yield layer.weight, layer.bias, kind

    def preactivation(self, x: Tensor) -> Tensor:
        r"""The last layer's outputs (n, outputs) before its nonlinearity."""
        h = flat(x)
        if h.shape[1] != self.sizes[0]:
            raise ArgumentError("x", f"shape {tuple(x.shape)}", f"shape (n, {self.sizes[0]})")
        for layer, kind in zip(self.layers, self.hidden, strict=False):  # all but the last
            h = LAYER_KINDS[kind](layer(h))
        return self.layers[-1](h)


class BatchedMLP(Feedforward):
    r"""Equal perceptrons evaluated together, as one batched matrix product a layer.

    Inputs are (n, inputs) for all members, or (n, members, inputs) with one for each; outputs
    are (n, members, outputs). Weights are `weights[l]` (members, out, in) and `biases[l]`
    (members, out), drawn as that many MLPs in turn would draw them.

    Arguments:
        members: The number of nets.
        sizes: As of `MLP`.
        options: The keyword arguments of `MLP`.

    >>> BatchedMLP(30, 784, 50, 10)(torch.zeros(2, 784)).shape
    torch.Size([2, 30, 10])
    """

    fields = (*Feedforward.fields, "members")

    def __init__(self, members: int, *sizes: int, **options: Any) -> None:
        self.members = whole_number("members", members, "an int of 1 or more", least=1)
        super().__init__(*sizes, **options)

    def _allocate(self, dtype: torch.dtype | None, device: torch.device) -> None:
        def empty(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(self.members, *shape, dtype=dtype, device=device))

        pairs = list(itertools.pairwise(self.sizes))
        self.weights = nn.ParameterList(empty(outputs, inputs) for inputs, outputs in pairs)
        self.biases = nn.ParameterList(empty(outputs) for _, outputs in pairs if self.bias)

    def _layer_parameters(self) -> Iterator[tuple[Tensor, Tensor | None, str]]:
        biases = self.biases if self.bias else [None] * len(self.weights)
        for member in range(self.members):
            layers = zip(self.weights, biases, (*self.hidden, self.output), strict=True)
            for weight, bias, kind in layers:
                yield weight.detach()[member], None if bias is None else bias.detach()[member], kind

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
            expected = f"shape (n, {inputs}) or (n, {self.members}, {inputs})"
            raise ArgumentError("x", f"shape {tuple(x.shape)}", expected)
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
                for batch, parameter in zip(batched._in_order(), net.parameters(), strict=True):
                    batch[index] = parameter
        return batched.train(members[0].training)

    def spec(self) -> dict[str, Any]:
        return {**super().spec(), "members": self.members}

    def extra_repr(self) -> str:
        return f"members={self.members}, {super().extra_repr()}"
