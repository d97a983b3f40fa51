r"""An ensemble: the average of its members' probabilities, with stable logarithms."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from limbeck import arguments as arg
from limbeck.arrays import Batch, X, as_numbers, float_tensor
from limbeck.errors import ArgumentError, shown
from limbeck.inputs import Dataset
from limbeck.losses.base import Loss
from limbeck.models.checks import Specified
from limbeck.models.mlp import INITS, OUTPUT_FORMS, BatchedMLP
from limbeck.outputs import check_class_axis, log_probabilities, probabilities
from limbeck.training.config import PRESETS, Training
from limbeck.training.distill import train

Member: TypeAlias = nn.Module | Callable[[X], Tensor]


class _Function(nn.Module):
    r"""A callable as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.log_probabilities = getattr(function, "log_probabilities", None)
        self.output_form = getattr(function, "output_form", None)

    def forward(self, x: X) -> Tensor:
        return self.function(x)


class Ensemble(Specified):
    r"""Averages the probabilities of its members, or their values in regression.

    Members may mix logits, probabilities and log probabilities; one output is that of class 1.

    Arguments:
        models: A list of modules or callables on tensors, or one BatchedMLP.
        weights: One positive number for each member, normalised here. Default: equal weights.
        output_forms: The output form of members without such an attribute, or one for each, as
            in `MLP`. Default: None.

    >>> from limbeck.models.mlp import MLP
    >>> ensemble = Ensemble([MLP(4, 3), MLP(4, 8, 3, output="softmax")])
    >>> ensemble.output_form, ensemble(torch.zeros(2, 4)).shape
    ('probabilities', torch.Size([2, 3]))
    """

    fields: ClassVar[Mapping[str, Any]] = dict(
        models=list[Any] | dict[str, Any], weights=list[float] | None
    )

    @arg.checked_arguments
    def __init__(
        self, models: arg.UserObject[Sequence[Member] | nn.ModuleList | BatchedMLP],
        weights: arg.UserObject[Sequence[float] | Tensor | None] = None,
        output_forms: arg.Text | arg.Items[Sequence[str | None]] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._is_batch = isinstance(models, BatchedMLP)
        members: list[Any] = [models] if isinstance(models, BatchedMLP) else _check_models(models)
        modules = [m if isinstance(m, nn.Module) else _Function(m) for m in members]
        self.models: Any = models if self._is_batch else nn.ModuleList(modules)
        self.kinds = _output_forms(members, output_forms)
        self.output_form = "values" if self.kinds[0] == "values" else "probabilities"
        self.weights: Tensor | None
        self.register_buffer("weights", None)
        if weights is not None:
            w = as_numbers(weights, "weights").to("cpu", torch.float64)
            if w.shape != (len(self),) or not bool((w > 0).all()):
                expected = f"{len(self)} positive finite numbers, one for each member"
                raise ArgumentError("weights", w.tolist(), expected)
            self.weights = (w / w.sum()).to(float_tensor(self, w))

    def forward(self, x: arg.UserObject[X]) -> Tensor:
        r"""The average (n, classes) of the members' probabilities, or of their values (n, ...)."""
        y = self._stacked(x, False)
        if self.weights is None:
            return y.mean(1)
        return torch.tensordot(y, self.weights.to(y), dims=([1], [0]))

    def log_probabilities(self, x: arg.UserObject[X]) -> Tensor:
        r"""Logs (n, classes) of the average, finite also where all probabilities underflow."""
        if self.output_form == "values":
            raise ArgumentError("output_form", "'values'", "an ensemble of classifiers")
        logs = self._stacked(x, True)
        if self.weights is None:
            return torch.logsumexp(logs, 1) - math.log(len(self))
        return torch.logsumexp(logs + self.weights.to(logs).log().unsqueeze(1), 1)

    def _stacked(self, x: X, logs: bool) -> Tensor:
        r"""The members' values, probabilities or `logs` of these, (n, members, ...)."""
        convert = log_probabilities if logs else probabilities
        if self._is_batch:
            nets = self.models
            return nets.log_probabilities(x) if logs else convert(nets(x), self.kinds[0])
        outputs: list[Tensor] = []
        for model, kind in zip(self.models, self.kinds, strict=True):
            # a member's log_probabilities are more exact than logs of its outputs
            method: Any = getattr(model, "log_probabilities", None) if logs else None
            own = callable(method) and getattr(model, "output_form", None) == kind
            y = method(x) if own else model(x)
            if not isinstance(y, Tensor):
                raise ArgumentError("models", f"a member that gave a {type(y).__name__}", "tensors")
            y = y if kind == "values" else check_class_axis(y, "models")
            outputs.append(y if own else convert(y, kind))
        if any(y.shape != outputs[0].shape for y in outputs):
            received = f"outputs of shapes {', '.join(str(tuple(y.shape)) for y in outputs)}"
            raise ArgumentError("models", received, "equal shapes")
        return torch.stack(outputs, dim=1)

    def __len__(self) -> int:
        return self.models.members if self._is_batch else len(self.models)

    def __getitem__(self, index: int) -> Member:
        r"""A member; of a BatchedMLP, an MLP with its own copy of the weights."""
        if type(index) is not int or not -len(self) <= index < len(self):
            raise ArgumentError("index", shown(index), f"an int from 0 to {len(self) - 1}")
        if self._is_batch:
            return self.models.member(index)
        model = self.models[index]
        return model.function if isinstance(model, _Function) else model

    def __iter__(self) -> Iterator[Member]:
        return (self[index] for index in range(len(self)))

    @classmethod
    @arg.checked_arguments
    def train_bootstrap(
        cls, sizes: arg.Items[Sequence[int]], X: arg.UserObject[np.ndarray | Tensor],
        y: arg.UserObject[np.ndarray | Tensor], members: arg.Count = 30, *, epochs: arg.Count = 20,
        batch_size: arg.Count | arg.Auto = "auto", bootstrap: arg.Flag = True,
        preset: Annotated[str, arg.Choice(*PRESETS)] = "thesis", seed: arg.Seed = 0,
        device: arg.Device | arg.Auto = "auto", init: Annotated[str, arg.Choice(*INITS)] = "he",
        **options: Any,
    ) -> Ensemble:  # fmt: skip
        r"""Train equal nets on the labels, each on its own resample of the rows, all at once.

        Arguments:
            sizes: The sizes of each MLP, such as (784, 500, 300, 10).
            X: Inputs (N, ...), a tensor or an array.
            y: Class numbers (N,).
            members: The number of nets. Default: 30.
            epochs: Passes over the data. Default: 20.
            batch_size: Rows of each net in a step. Default: "auto", as the preset has it.
            bootstrap: Whether each net has its own resample, or all have all rows. Default: True.
            preset: "thesis" (ADADELTA, batches of 20) or "auto" (Adam, 200). Default: "thesis".
            seed: The seed of resamples, their order and the nets. Default: 0.
            device: The device to train on. Default: "auto", a GPU if there is one.
            init: The initialisation of the nets' weights, as in `MLP`. Default: "he".
            options: Further settings of `limbeck.distill`.
        """
        data = Resamples(X, y, members, bootstrap)
        if not isinstance(data.x, Tensor) or data.y is None or data.y.is_floating_point():
            raise ArgumentError("y", "no class numbers", "whole numbers (N,) for inputs X (N, ...)")
        net = BatchedMLP(members, *sizes, generator=torch.Generator().manual_seed(seed), init=init)
        low, high, classes = data.y.min(), data.y.max(), net.sizes[-1]
        if data.y.ndim != 1 or low < 0 or high >= classes:
            received = f"labels of shape {tuple(data.y.shape)} from {low} to {high}"
            raise ArgumentError("y", received, f"class numbers (N,) from 0 to {classes - 1}")
        size = PRESETS[preset]["batch_size"] if batch_size == "auto" else batch_size
        size = min(int(size), len(data))
        training = Training.from_options(
            options, (), cls.train_bootstrap, steps=max(1, epochs * len(data) // size),
            batch_size=size, preset=preset, seed=seed, device=device,
        )  # fmt: skip
        train(None, net, data, members_cross_entropy(), training)
        return cls(net)

    def spec(self) -> dict[str, Any]:
        r"""All but the members' weights, for JSON; members must be models of limbeck."""
        for model in [self.models] if self._is_batch else self.models:
            if getattr(model, "output_form", None) not in OUTPUT_FORMS:
                raise ArgumentError("models", f"a {type(model).__name__}", "limbeck's own models")
        weights = None if self.weights is None else self.weights.tolist()
        return super().spec() | {"weights": weights}

    def extra_repr(self) -> str:
        weighted = "" if self.weights is None else ", weighted"
        return f"{len(self)} members{weighted}, output_form={self.output_form!r}"


def _check_models(models: Sequence[Member] | nn.ModuleList) -> list[Member]:
    # nn.Sequential can be iterated too, but its layers are no ensemble
    if not isinstance(models, list | tuple | nn.ModuleList):
        raise ArgumentError("models", f"a {type(models).__name__}", "a list, or one BatchedMLP")
    if not len(models):
        raise ArgumentError("models", "an empty list", "one model or more")
    for model in models:
        if not callable(model) or isinstance(model, BatchedMLP | type):
            expected = "modules or callables on tensors; a BatchedMLP only by itself"
            raise ArgumentError("models", f"a {type(model).__name__} in the list", expected)
    return list(models)


def _output_forms(models: list[Any], forms: str | Sequence[str | None] | None) -> tuple[str, ...]:
    r"""Each member's output form: its attribute's, or the user's where it has none."""
    listed = [forms] * len(models) if forms is None or isinstance(forms, str) else list(forms)
    if len(listed) != len(models):
        expected = f"one name, or a list of {len(models)}"
        raise ArgumentError("output_forms", f"{len(listed)} names", expected)
    kinds: list[str] = []
    for number, (model, form) in enumerate(zip(models, listed, strict=True)):
        if form is not None and form not in OUTPUT_FORMS:
            raise ArgumentError.unknown("output_forms", form, OUTPUT_FORMS)
        attribute = getattr(model, "output_form", None)
        kind = attribute if attribute in OUTPUT_FORMS else form
        if kind is None:
            received = f"nothing about models[{number}], a {type(model).__name__}: it is ambiguous"
            raise ArgumentError("output_forms", received, ", ".join(map(repr, OUTPUT_FORMS)))
        if form not in (None, kind):
            received = f"{form!r} for models[{number}], whose output_form is {kind!r}"
            expected = f"{kind!r}, or None to leave it to itself"
            raise ArgumentError("output_forms", received, expected)
        kinds.append(kind)
    if "values" in kinds and set(kinds) != {"values"}:
        raise ArgumentError("models", f"members that give {sorted(set(kinds))}", "'values' in all")
    return tuple(kinds)


class Resamples(Dataset):
    r"""Shuffled passes of M members, each over its own resample of the rows: x (n, M, ...)."""

    STATE = (*Dataset.STATE, "rows")

    def __init__(
        self, X: Any, y: Any, members: int, bootstrap: bool = True, seed: int | None = None
    ) -> None:
        super().__init__(X, y, seed=seed)
        self.members, self.bootstrap = members, bootstrap
        self.rows = torch.empty(0)  # the resamples (M, N), drawn when the seed is known

    def to(self, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        super().to(device, dtype, seed)
        options: Any = {"generator": self.generator, "device": self.device}
        shape = (self.members, len(self))
        if self.bootstrap:
            self.rows = torch.randint(len(self), shape, **options)
        else:  # all rows, in an order of each member's own
            self.rows = torch.rand(shape, **options).argsort(1)

    def draw(self, n: int) -> Tensor:
        r"""Row numbers (M, n)."""
        return self.rows[:, super().draw(n)]

    def build(self, drawn: Tensor) -> Batch:
        assert isinstance(self.x, Tensor)
        assert self.y is not None
        return Batch(self.x[drawn.T], self.y[drawn.T].long())


class members_cross_entropy(Loss):  # noqa: N801 - losses are written as functions of their settings
    r"""−Σ_m log f_m(y_m | x_m) over members, which share no parameters: each is trained alone."""

    def __call__(self, student: Any, teacher: Any, batch: Batch, drawn: Any = None) -> Tensor:
        logits = student.raw()  # (n, M, I)
        assert batch.y is not None
        losses = F.cross_entropy(logits.flatten(0, 1), batch.y.flatten(), reduction="none")
        return losses.unflatten(0, batch.y.shape).sum(1)
