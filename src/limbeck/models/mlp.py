r"""The multi-layer perceptron."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from limbeck.errors import ArgumentError
from limbeck.models.feedforward import LAYER_KINDS, Feedforward, flat, initialise, shapes

__all__ = ["MLP"]


class MLP(Feedforward):
    r"""A multi-layer perceptron.

    Layer kinds are "linear", "relu", "tanh", "logistic", "probit", "softmax" and "log_softmax".

    Arguments:
        sizes: Numbers of inputs, of units in each hidden layer, and of outputs.
        hidden: The kind of the hidden layers, or one for each.
        output: The kind of the output layer.
        bias: Whether layers have biases.
        output_form: What the outputs are ("logits", "probabilities", "log_probabilities" or
            "values"); None reads it off `output`. Say "values" for regression.
        dtype: The weights' floating-point type.
        device: Where the weights live.
        generator: Where the weights are drawn from; None is torch's global one.
        init: What the weights start at. "he": before relus at He's normal ones, before others at
            Glorot's uniform ones, biases at zero. "lecun": all weights and biases at normal ones
            of variance 1 / (inputs of the layer + 1).

    >>> MLP(784, 50, 30, 10)(torch.zeros(2, 28, 28)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
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
        device = torch.get_default_device() if device is None else torch.device(device)
        self.layers = nn.ModuleList()
        for inputs, outputs, kind in shapes(self):
            # nn.Linear's own initialisation would draw from the global generator
            layer = nn.utils.skip_init(
                nn.Linear, inputs, outputs, bias=self.bias, dtype=dtype, device=device
            )
            initialise(layer.weight, layer.bias, kind, generator, init)
            self.layers.append(layer)

    def preactivation(self, x: Tensor) -> Tensor:
        r"""The last layer's outputs (n, outputs) before its nonlinearity."""
        h = flat(x)
        if h.shape[1] != self.sizes[0]:
            raise ArgumentError("x", f"shape {tuple(x.shape)}", f"shape (n, {self.sizes[0]})")
        for layer, kind in zip(self.layers, self.hidden, strict=False):  # all but the last
            h = LAYER_KINDS[kind](layer(h))
        return self.layers[-1](h)
