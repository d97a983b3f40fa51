r"""The multi-layer perceptron, and many equal ones evaluated together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from limbeck import arguments as arg
from limbeck.errors import ArgumentError, shown
from limbeck.models import checks
from limbeck.models.checks import Device, Generator, Specified, flat
from limbeck.outputs import FORMS, columns, log_probabilities

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


class Feedforward(Specified):
    r"""The common base of MLP and BatchedMLP: settings, layer kinds, output form, spec."""

    fields: ClassVar[Mapping[str, Any]] = {
        "sizes": checks.Sizes, "hidden": tuple[str, ...], "output": str, "bias": bool,
        "output_form": str, "dtype": checks.DtypeName,
    }  # fmt: skip
    members = 1
    _allocate: Any  # (dtype, device) creates the parameters
    preactivation: Any  # (x) gives the last layer's outputs before its nonlinearity

    @arg.checked_arguments
    def __init__(
        self, *sizes: arg.Count, hidden: arg.Text | arg.Items[Sequence[str]] = "relu",
        output: Annotated[str, arg.Choice(*LAYER_KINDS)] = "linear", bias: arg.Flag = True,
        output_form: Annotated[str, arg.Choice(*OUTPUT_FORMS)] | None = None,
        dtype: torch.dtype | None = None, device: Device = None, generator: Generator = None,
        init: Annotated[str, arg.Choice(*INITS)] = "he",
    ) -> None:  # fmt: skip
        super().__init__()
        if len(sizes) < 2:
            expected = "at least two ints of 1 or more, as in (784, 50, 30, 10)"
            raise ArgumentError("sizes", tuple(sizes), expected)
        count = len(sizes) - 2
        kinds = [hidden] if isinstance(hidden, str) else list(hidden)
        names = kinds * count if isinstance(hidden, str) else kinds
        for name in kinds:
            arg.choice("hidden", name, LAYER_KINDS)
        if len(names) != count:
            raise ArgumentError("hidden", f"{len(names)} names", f"one name, or {count}")
        if "softmax" in output and sizes[-1] == 1:
            expected = "'logistic' or 'linear' with one output, where softmax is constant"
            raise ArgumentError("output", shown(output), expected)
        if dtype is not None and not dtype.is_floating_point:
            raise ArgumentError("dtype", dtype, "a floating-point type")
        self.sizes, self.hidden = tuple(sizes), tuple(names)
        self.output, self.bias = output, bias
        self.output_form = output_form or self._natural_form()
        self._allocate(dtype, torch.get_default_device() if device is None else device)
        for member in range(self.members):
            for index, values in enumerate(self._tensors(member)):
                layer = index // (1 + self.bias)
                kind = (*self.hidden, output)[layer]
                _initialise(values, self.sizes[layer], kind, generator, init)

    def _tensors(self, member: int = 0) -> list[Tensor]:
        r"""Views of a net's weights (out, in) and biases (out,), layer by layer."""
        return [parameter.detach() for parameter in self.parameters()]

    def _natural_form(self) -> str:
        if self.output in ("logistic", "probit"):
            return "probabilities" if self.sizes[-1] == 1 else "values"
        forms = {"linear": "logits", "softmax": "probabilities", "log_softmax": "log_probabilities"}
        return forms.get(self.output, "values")

    @staticmethod
    def _least_size(fields: Mapping[str, Any]) -> int:
        pairs = itertools.pairwise(fields["sizes"])
        return fields.get("members", 1) * sum(inputs * outputs for inputs, outputs in pairs)

    def forward(self, x: Tensor) -> Tensor:
        return LAYER_KINDS[self.output](self.preactivation(x))

    def log_probabilities(self, x: Tensor) -> Tensor:
        r"""Log probabilities (..., classes), finite where probabilities underflow."""
        if self.output_form == "values":
            expected = "a net that gives logits, probabilities or log_probabilities"
            raise ArgumentError("output_form", "'values'", expected)
        z = self.preactivation(x)
        if self.output_form != self._natural_form():
            return log_probabilities(LAYER_KINDS[self.output](z), self.output_form)
        if self.output == "probit":
            return columns(_log_ndtr(-z), _log_ndtr(z))
        return log_probabilities(z, "logits")

    @classmethod
    def _make(cls, fields: dict[str, Any]) -> Self:
        members = [fields.pop("members")] if "members" in fields else []
        return cls(*members, *fields.pop("sizes"), **fields)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, parameters={sum(p.numel() for p in self.parameters()):,}"


def _initialise(values: Tensor, inputs: int, kind: str, generator: Generator, init: str) -> None:
    r"""Draw a layer's first weights (out, in) or biases (out,), as `MLP` says of `init`."""
    # drawn on the generator's device: a CPU generator gives equal nets everywhere
    drawn = values.zero_().to(values.device if generator is None else generator.device)
    if init == "lecun":
        nn.init.normal_(drawn, std=(inputs + 1) ** -0.5, generator=generator)
    elif values.dim() == 2 and kind == "relu":
        nn.init.kaiming_normal_(drawn, nonlinearity="relu", generator=generator)
    elif values.dim() == 2:
        nn.init.xavier_uniform_(drawn, generator=generator)
    values.copy_(drawn)


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
        init: "he" (He's normal weights before relus, Glorot's uniform ones before others, biases of
            zero) or "lecun" (normal, of variance 1 / (inputs of the layer + 1)). Default: "he".

    >>> MLP(784, 50, 30, 10)(torch.zeros(2, 28, 28)).shape
    torch.Size([2, 10])
    """

    def _allocate(self, dtype: torch.dtype | None, device: Device) -> None:
        kind: dict[str, Any] = {"bias": self.bias, "dtype": dtype, "device": device}
        self.layers = nn.ModuleList(
            nn.utils.skip_init(nn.Linear, inputs, outputs, **kind)  # draws nothing
            for inputs, outputs in itertools.pairwise(self.sizes)
        )

    def preactivation(self, x: Tensor) -> Tensor:
        r"""The last layer's outputs (n, outputs) before its nonlinearity."""
        h = flat(x)
        if h.shape[1] != self.sizes[0]:
            raise ArgumentError("x", f"shape {tuple(x.shape)}", f"shape (n, {self.sizes[0]})")
        for k, kind in enumerate(self.hidden):  # all layers but the last; torch 2.9 traces no zip
            h = LAYER_KINDS[kind](self.layers[k](h))
        return self.layers[-1](h)


class BatchedMLP(Feedforward):
    r"""Equal perceptrons evaluated together, as one batched matrix product a layer.

    Inputs are (n, inputs) or (n, members, inputs), outputs (n, members, outputs). Weights
    (members, out, in) and biases (members, out) are drawn as by that many MLPs in turn.

    Arguments:
        members: The number of nets.
        sizes: As in `MLP`.
        options: The keyword arguments of `MLP`.

    >>> BatchedMLP(30, 784, 50, 10)(torch.zeros(2, 784)).shape
    torch.Size([2, 30, 10])
    """

    fields: ClassVar[Mapping[str, Any]] = {**Feedforward.fields, "members": int}

    @arg.checked_arguments
    def __init__(self, members: arg.Count, *sizes: arg.Count, **options: Any) -> None:
        self.members = members
        super().__init__(*sizes, **options)

    def _allocate(self, dtype: torch.dtype | None, device: Device) -> None:
        def empty(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(self.members, *shape, dtype=dtype, device=device))

        pairs = list(itertools.pairwise(self.sizes))
        self.weights = nn.ParameterList(empty(outputs, inputs) for inputs, outputs in pairs)
        self.biases = nn.ParameterList(empty(outputs) for _, outputs in pairs if self.bias)

    def _tensors(self, member: int = 0) -> list[Tensor]:
        layers = zip(self.weights, self.biases, strict=True) if self.bias else zip(self.weights)
        return [parameter.detach()[member] for layer in layers for parameter in layer]

    def preactivation(self, x: Tensor) -> Tensor:
        r"""The last layer's outputs (n, members, outputs) before its nonlinearity."""
        rows, inputs = flat(x), self.sizes[0]
        if rows.shape[1] == inputs:
            h = self._product(0, rows.T.expand(self.members, -1, -1))
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

    @arg.checked_arguments
    def member(self, index: Annotated[int, arg.Whole()]) -> MLP:
        r"""One of the nets, with its own copy of the weights."""
        if not -self.members <= index < self.members:
            raise ArgumentError("index", shown(index), f"an int from 0 to {self.members - 1}")
        fields = {**self.spec(), "type": "MLP"}
        del fields["members"]
        net = MLP.from_spec(fields, device="meta").to_empty(device=self.weights[0].device)
        torch._foreach_copy_(net._tensors(), self._tensors(index))
        return net.train(self.training)
