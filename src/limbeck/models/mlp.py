r"""Feedforward nets: one multi-layer perceptron, or many equal ones as batched tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from limbeck.core.forms import FORMS, columns, log_probabilities
from limbeck.errors import ArgumentError

__all__ = ["LAYER_KINDS", "MLP", "OUTPUT_KINDS", "BatchedMLP"]

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

OUTPUT_KINDS = FORMS[:4]


def _log_ndtr(z: Tensor) -> Tensor:
    # as torch.special.log_ndtr, which has no batching rule for vmap, and whose derivative
    # exp(-z²/2 - log_ndtr(z)) cancels in the left tail: in float32 it is 4% off at z = -1e3
    left, right = z.clamp_max(-1.0), z.clamp_min(-1.0)
    tail = (torch.special.erfcx(-left * math.sqrt(0.5)) / 2).log() - left.square() / 2
    return torch.where(z < -1, tail, torch.log1p(-torch.erfc(right * math.sqrt(0.5)) / 2))


class _Feedforward(nn.Module):
    r"""What one net and a batch of nets share: layer kinds, output kind, spec."""

    def __init__(
        self,
        sizes: Sequence[int],
        hidden: str | Sequence[str],
        output: str,
        bias: bool,
        output_kind: str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        if len(sizes) < 2 or not all(map(_counts, sizes)):
            accepted = "at least two ints of 1 or more, as in (784, 50, 30, 10)"
            raise ArgumentError("sizes", tuple(sizes), accepted)
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
            accepted = "'logistic' or 'linear' with one output, where softmax is constant"
            raise ArgumentError("output", repr(output), accepted)
        if output_kind is not None and output_kind not in OUTPUT_KINDS:
            raise ArgumentError.unknown("output_kind", output_kind, OUTPUT_KINDS)
        if dtype is not None and not dtype.is_floating_point:
            raise ArgumentError("dtype", dtype, "a floating-point type")
        self.sizes, self.hidden = tuple(map(int, sizes)), tuple(names)
        self.output = output
        self.bias = bool(bias)
        self._output_kind = output_kind or self._natural_kind()

    def _natural_kind(self) -> str:
        if self.output in ("logistic", "probit"):
            return "probabilities" if self.sizes[-1] == 1 else "values"
        kinds = {
            "linear": "logits",
            "softmax": "probabilities",
            "log_softmax": "log_probabilities",
        }
        return kinds.get(self.output, "values")

    @property
    def output_kind(self) -> str:
        r"""What the outputs are: one of `OUTPUT_KINDS`."""
        return self._output_kind

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
        if self.output_kind == "values":
            accepted = "a net that gives logits, probabilities or log_probabilities"
            raise ArgumentError("output_kind", "'values'", accepted)
        z = self.preactivation(x)
        if self.output_kind == self._natural_kind():
            if self.output == "probit":
                return columns(_log_ndtr(-z), _log_ndtr(z))
            return log_probabilities(z, "logits")
        return log_probabilities(LAYER_KINDS[self.output](z), self.output_kind)

    def spec(self) -> dict[str, Any]:
        r"""All but the weights, as JSON can hold it."""
        return {
            "type": type(self).__name__,
            "sizes": list(self.sizes),
            "hidden": list(self.hidden),
            "output": self.output,
            "bias": self.bias,
            "output_kind": self.output_kind,
            "dtype": str(next(self.parameters()).dtype).removeprefix("torch."),
        }

    @classmethod
    def from_spec(
        cls,
        spec: Mapping[str, Any],
        *,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
    ) -> Self:
        r"""A net of the same shape, freshly initialised."""
        fields = dict(spec)
        wanted = {"type", "sizes", "hidden", "output", "bias", "output_kind", "dtype"}
        wanted |= {"members"} if issubclass(cls, BatchedMLP) else set()
        if set(fields) != wanted or fields.pop("type") != cls.__name__:
            raise ArgumentError("spec", dict(spec), f"what {cls.__name__}.spec() gives")
        dtype = getattr(torch, fields.pop("dtype"))
        first = [fields.pop("members")] if "members" in fields else []
        build: Any = cls
        sizes = (*first, *fields.pop("sizes"))
        return build(*sizes, **fields, dtype=dtype, device=device, generator=generator)

    def extra_repr(self) -> str:
        return (
            f"{', '.join(map(str, self.sizes))}, hidden={self.hidden}, output={self.output!r}, "
            f"output_kind={self.output_kind!r}, parameters={self.parameters_count:,}"
        )


class MLP(_Feedforward):
    r"""A multi-layer perceptron.

    Layer kinds are "linear", "relu", "tanh", "logistic", "probit", "softmax" and "log_softmax".
    Relu layers start with He's normal weights, the others with Glorot's uniform ones; biases
    start at zero.

    Arguments:
        sizes: Numbers of inputs, of units in each hidden layer, and of outputs.
        hidden: The kind of the hidden layers, or one for each.
        output: The kind of the output layer.
        bias: Whether layers have biases.
        output_kind: What the outputs are ("logits", "probabilities", "log_probabilities" or
            "values"); None reads it off `output`. Say "values" for regression.
        dtype: The weights' floating-point type.
        device: Where the weights live.
        generator: Where the weights are drawn from; None is torch's global one.

    >>> MLP(784, 50, 30, 10)(torch.zeros(2, 28, 28)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        *sizes: int,
        hidden: str | Sequence[str] = "relu",
        output: str = "linear",
        bias: bool = True,
        output_kind: str | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(sizes, hidden, output, bias, output_kind, dtype)
        device = torch.get_default_device() if device is None else torch.device(device)
        self.layers = nn.ModuleList()
        for inputs, outputs, kind in _shapes(self):
            # nn.Linear's own initialisation would draw from the global generator
            layer = nn.utils.skip_init(
                nn.Linear, inputs, outputs, bias=self.bias, dtype=dtype, device=device
            )
            _initialise(layer.weight, kind, generator)
            if self.bias:
                nn.init.zeros_(layer.bias)
            self.layers.append(layer)

    def preactivation(self, x: Tensor) -> Tensor:
        r"""The last layer's outputs (n, outputs) before its nonlinearity."""
        h = _flat(x)
        if h.shape[1] != self.sizes[0]:
            raise ArgumentError("x", f"shape {tuple(x.shape)}", f"shape (n, {self.sizes[0]})")
        for layer, kind in zip(self.layers, self.hidden, strict=False):  # all but the last
            h = LAYER_KINDS[kind](layer(h))
        return self.layers[-1](h)


class BatchedMLP(_Feedforward):
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

    def __init__(
        self,
        members: int,
        *sizes: int,
        hidden: str | Sequence[str] = "relu",
        output: str = "linear",
        bias: bool = True,
        output_kind: str | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(sizes, hidden, output, bias, output_kind, dtype)
        if not _counts(members):
            raise ArgumentError("members", repr(members), "an int of 1 or more")
        self.members = int(members)
        shapes = _shapes(self)
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for inputs, outputs, _ in shapes:
            weight = torch.empty(members, outputs, inputs, dtype=dtype, device=device)
            self.weights.append(nn.Parameter(weight))
            if self.bias:
                bias_ = torch.zeros(members, outputs, dtype=dtype, device=device)
                self.biases.append(nn.Parameter(bias_))
        for member in range(self.members):
            for weight, (_, _, kind) in zip(self.weights, shapes, strict=True):
                _initialise(weight.detach()[member], kind, generator)

    def preactivation(self, x: Tensor) -> Tensor:
        r"""The last layer's outputs (n, members, outputs) before its nonlinearity."""
        flat, inputs = _flat(x), self.sizes[0]
        if flat.shape[1] == inputs:
            # one product for all members: (n, inputs) with (inputs, members * out)
            bias = self.biases[0].flatten() if self.bias else None
            h = F.linear(flat, self.weights[0].flatten(0, 1), bias)
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


def _shapes(net: _Feedforward) -> list[tuple[int, int, str]]:
    # of each layer: inputs, outputs, kind
    return list(zip(net.sizes[:-1], net.sizes[1:], (*net.hidden, net.output), strict=True))


def _initialise(weight: Tensor, kind: str, generator: torch.Generator | None) -> None:
    # drawn where the generator lives, so that a CPU generator gives equal nets on every device
    device = weight.device if generator is None else generator.device
    drawn = weight if device == weight.device else torch.empty_like(weight, device=device)
    if kind == "relu":
        nn.init.kaiming_normal_(drawn, nonlinearity="relu", generator=generator)
    else:
        nn.init.xavier_uniform_(drawn, generator=generator)
    if drawn is not weight:
        weight.detach().copy_(drawn)


def _counts(size: object) -> bool:
    return isinstance(size, Integral) and not isinstance(size, bool) and int(size) >= 1


def _flat(x: Tensor) -> Tensor:
    # (n, ...) to (n, features); plain Python on static shapes, so that tracers follow it
    if not isinstance(x, Tensor):
        raise ArgumentError("x", f"a {type(x).__name__}", "a tensor (n, ...)")
    if x.dim() == 0 or not x.is_floating_point():
        received = f"{x.dtype} of shape {tuple(x.shape)}"
        raise ArgumentError("x", received, "floating-point values (n, ...)")
    return x.flatten(1) if x.dim() > 1 else x.unsqueeze(1)
