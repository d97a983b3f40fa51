r"""Ready-made functions of one draw and all inputs: regressions, and a Bayesian network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, cast

import torch
from torch import Tensor
from torch.func import functional_call

from limbeck.arguments import Choice, Whole, checked_arguments, choice
from limbeck.arrays import X
from limbeck.distributions.base import Distribution
from limbeck.distributions.discrete import Bernoulli, Categorical, Poisson
from limbeck.distributions.gaussians import Normal
from limbeck.errors import ArgumentError
from limbeck.models.mlp import MLP
from limbeck.models.mlp import _log_ndtr as log_ndtr
from limbeck.posteriors.draws import Structure

FAMILIES: dict[str, Callable[[Tensor, Any], Any]] = {  # of z, and the scale of y
    "linear": lambda z, scale: _normal(z, scale),
    "logistic": lambda z, scale: Bernoulli(logits=z),
    "probit": lambda z, scale: Bernoulli(logits=log_ndtr(z) - log_ndtr(-z)),
    "poisson": lambda z, scale: Poisson(log_rate=z),
    "softmax": lambda z, scale: Categorical(logits=z),
}


@checked_arguments
@dataclass(frozen=True)
class Regression:
    r"""A generalised linear model: y at x has a distribution in z = x·weights + bias.

    A draw may be a dict, whose variables are named here, or a vector: the weights, then the bias,
    if there is a number for it, then the scale, if it is not a known number.

    Arguments:
        family: "linear", "logistic", "probit", "poisson" or "softmax".
        weights: The name of the weights: (D,), or (D, K) for K classes.
        bias: The name of the bias: a number, or (K,); a model may have none.
        scale: Of a linear model, the name of the deviation of y, or its value.
        classes: Of softmax, the number of classes, which a vector does not tell.
    """

    family: Annotated[str, Choice(*FAMILIES)]
    weights: str = "beta"
    bias: str = "alpha"
    scale: str | float = "sigma"
    classes: Annotated[int, Whole(2)] | None = None

    def __call__(self, draw: X, x: Tensor) -> Any:
        r"""The distribution of y at each of the inputs x (n, D); of one variable, (n,) will do."""
        if not isinstance(x, Tensor):
            raise ArgumentError("inputs", f"a {type(x).__name__}", f"a tensor, for {self.family}")
        x = x.unsqueeze(1) if x.ndim == 1 else x.flatten(1)
        weights, bias, scale = self.parts(draw, x.shape[1])
        shape, ndim = ("(D, classes)", 2) if self.family == "softmax" else ("(D,)", 1)
        if weights.ndim != ndim or len(weights) != x.shape[1]:
            received = f"weights of shape {tuple(weights.shape)} for inputs of {x.shape[1]} numbers"
            raise ArgumentError("posterior", received, f"weights {shape}, for {self.family}")
        return FAMILIES[self.family](x @ weights + bias, scale)

    def parts(self, draw: X, size: int) -> tuple[Tensor, Any, Any]:
        r"""Weights, bias and scale of a draw: those of a dict by name, of a vector by number."""
        if isinstance(draw, dict):
            named = [self.scale] if isinstance(self.scale, str) else []
            _check_names(draw, self.weights, *(named if self.family == "linear" else []))
            scale = draw.get(named[0]) if named else self.scale
            return draw[self.weights], draw.get(self.bias, 0.0), scale
        columns = 1 if self.family != "softmax" else self.classes
        if columns is None:
            expected = "the number of classes, for draws that are vectors"
            raise ArgumentError("classes", None, expected)
        scaled = int(self.family == "linear" and isinstance(self.scale, str))
        least = size * columns + scaled
        biases = len(draw) - least
        if biases not in (0, columns):
            expected = f"{least} or {least + columns}, for inputs of {size} numbers"
            raise ArgumentError("posterior", f"draws of {len(draw)} numbers", expected)
        weights, bias, scale = draw.split([size * columns, biases, scaled])
        if columns > 1:
            weights = weights.reshape(size, columns)
        elif biases:
            bias = bias[0]
        return weights, bias if biases else 0.0, scale[0] if scaled else self.scale


def _normal(z: Tensor, scale: Any) -> Normal:
    return Normal(z, scale if isinstance(scale, Tensor) else z.new_full((), scale))


def linear(weights: str = "beta", bias: str = "alpha", scale: str | float = "sigma") -> Regression:
    r"""Linear regression, y ~ N(x·weights + bias, scale²); see `Regression`.

    >>> linear()(torch.tensor([1.0, 10.0, 0.5]), torch.tensor([[2.0]])).interval(0.95)
    (tensor([11.0200]), tensor([12.9800]))
    """
    return Regression("linear", weights, bias, scale)


def logistic(weights: str = "beta", bias: str = "alpha") -> Regression:
    r"""Logistic regression, p(y = 1) = σ(x·weights + bias); see `Regression`."""
    return Regression("logistic", weights, bias)


def probit(weights: str = "beta", bias: str = "alpha") -> Regression:
    r"""Probit regression, p(y = 1) = Φ(x·weights + bias); see `Regression`."""
    return Regression("probit", weights, bias)


def poisson(weights: str = "beta", bias: str = "alpha") -> Regression:
    r"""Poisson regression, y ~ Poisson(exp(x·weights + bias)); see `Regression`."""
    return Regression("poisson", weights, bias)


def softmax(
    weights: str = "beta", bias: str = "alpha", *, classes: int | None = None
) -> Regression:
    r"""Softmax regression, p(y = k) ∝ exp(x·weights_k + bias_k); see `Regression`."""
    return Regression("softmax", weights, bias, classes=classes)


class MLPRegression:
    r"""A network whose weights are drawn.

    A draw is a vector of all weights, in the order of `lb.MLP(*sizes).parameters()`, or a dict of
    them by their names there, such as "layers.0.weight". With one output y is 0 or 1, with more a
    class; with a scale, y is a real number about the only output.

    Arguments:
        sizes: Numbers of inputs, of units in each hidden layer, and of outputs.
        hidden: The kind of the hidden layers.
        scale: For real numbers, the deviation of y, or the name of its variable in a dict; in a
            vector it comes last.

    >>> mlp(2, 3, 1).structure.dim
    13
    """

    def __init__(self, sizes: tuple[int, ...], hidden: str, scale: str | float | None) -> None:
        self._net = MLP(*sizes, hidden=hidden, generator=torch.Generator()).requires_grad_(False)
        if scale is not None and sizes[-1] != 1:
            raise ArgumentError("sizes", sizes, "one output, where there is a scale")
        self.scale = scale
        self._weights = dict(self._net.named_parameters())
        drawn = {scale: torch.empty(())} if isinstance(scale, str) else {}
        self.structure = Structure.of(self._weights | drawn, leading=0)

    def __call__(self, draw: X, x: Tensor) -> Any:
        if isinstance(draw, Tensor):
            if len(draw) != self.structure.dim:
                expected = f"{self.structure.dim}, the weights of {self._net}"
                raise ArgumentError("posterior", f"draws of {len(draw)} numbers", expected)
            draw = cast("dict[str, Tensor]", self.structure.unflatten(draw))
        _check_names(draw, *self.structure.names)
        scale = draw[self.scale] if isinstance(self.scale, str) else self.scale
        z = functional_call(self._net, {name: draw[name] for name in self._weights}, (x,))
        if scale is not None:
            return _normal(z[:, 0], scale)
        return Bernoulli(logits=z[:, 0]) if z.shape[1] == 1 else Categorical(logits=z)


def _check_names(draw: Mapping[str, Tensor], *names: str) -> None:
    for name in set(names) - draw.keys():
        received = f"no variable {name!r} among {', '.join(map(repr, draw))}"
        raise ArgumentError("posterior", received, f"draws that have {name!r}")


def mlp(*sizes: int, hidden: str = "tanh", scale: str | float | None = None) -> MLPRegression:
    r"""A Bayesian network; see `MLPRegression`."""
    return MLPRegression(sizes, hidden, scale)


def model_spec(predict: object) -> dict[str, Any] | None:
    r"""A ready-made model by its name and settings; None of any other function."""
    if type(predict) is Regression:
        spec = {"model" if name == "family" else name: v for name, v in vars(predict).items()}
    elif type(predict) is MLPRegression:
        net = predict._net.spec()
        spec = {"model": "mlp", "sizes": list(net["sizes"]), "hidden": net["hidden"]}
        spec["scale"] = predict.scale
    else:
        return None
    if (scale := spec.get("scale")) is not None and not isinstance(scale, str):
        if getattr(scale, "ndim", 0):  # a scale for each input is not saved
            return None
        spec["scale"] = float(scale)
    return spec


def named_model(spec: dict[str, Any] | None) -> Callable[..., Distribution] | None:
    r"""The model of a `model_spec`; only limbeck's own are ever made."""
    if spec is None:
        return None
    options = dict(spec)
    name = options.pop("model", None)
    if name == "mlp":
        return mlp(*options.pop("sizes", ()), **options)
    choice("model", name, (*FAMILIES, "mlp"))
    return Regression(name, **options)
