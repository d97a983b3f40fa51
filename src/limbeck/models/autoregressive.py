r"""Autoregressive models: one conditional per variable. The base of NADE, DeepNADE and MADE."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from limbeck import losses
from limbeck.arguments import Count, PathLike, UserObject, checked_arguments, choice
from limbeck.arrays import as_numbers, as_part, floating, random
from limbeck.errors import ArgumentError, shown
from limbeck.inputs.base import Inputs
from limbeck.models.checks import Device, DtypeName, Generator, Specified, count_numbers
from limbeck.records import of_file, read_value
from limbeck.storage import files
from limbeck.supports import Binary, Discrete, Spins, States
from limbeck.training.config import Training
from limbeck.training.distill import train
from limbeck.training.result import FORMAT, Result

Order = Sequence[int] | Tensor | str | None  # a permutation of the variables, "random" or None

SUPPORTS: dict[str, type[Discrete]] = {"Binary": Binary, "Spins": Spins, "States": States}

NUMBERS = {"cpu": 2**20, "cuda": 2**26}  # hidden units of all rows together while sampling


class Autoregressive(Specified):
    r"""p(x) = Π_i p(x_i | x_<i) over discrete events, each conditional from a network's logits.

    Inside, events are codes 0 … q−1, (n, I), in the order of conditioning; `order` (I,) has the
    variable at each position. Subclasses give `_logits` and `_draw`, both in this order.
    """

    output_form = "log_density"
    fields: ClassVar[Mapping[str, Any]] = {
        "inputs": int, "order": tuple[int, ...] | None, "support": tuple[str | int, ...],
        "dtype": DtypeName,
    }  # fmt: skip
    _units: int  # hidden units that a row needs at once while sampling
    _logits: Any  # (codes) gives logits of the conditionals: (n, I) of two states, (n, I, q) of q
    _draw: Any  # (uniforms) gives the codes (n, I) that these draw, and the conditionals there

    def __init__(
        self, inputs: Count, order: UserObject[Order], support: Discrete | None,
        dtype: torch.dtype | None, device: Device, generator: Generator,
    ) -> None:  # fmt: skip
        super().__init__()
        self.inputs = inputs
        self.support = Binary(self.inputs) if support is None else support
        if type(self.support) not in SUPPORTS.values() or self.support.size != self.inputs:
            expected = f"Binary, Spins or States of {self.inputs:,} variables"
            raise ArgumentError("support", shown(support), expected)
        self._dtype = floating(dtype)
        device = torch.get_default_device() if device is None else torch.device(device)
        self.order = nn.Buffer(_permutation(self.inputs, order, generator).to(device))
        # of two states a variable has one input and one output, of q states q
        self._states = () if self.support.count == 2 else (self.support.count,)

    def log_prob(self, x: Tensor, check: UserObject[bool] = True) -> Tensor:
        r"""log p(x), (n,), of events x (n, *shape).

        Arguments:
            x: Events of the support.
            check: Whether to refuse values outside the support, unless compiled. Default: True.
        """
        codes = self._codes(x, check)
        z, targets = self._logits(codes), self._features(codes)
        terms = (z.log_softmax(2) * targets).sum(2) if self._states else targets * z - F.softplus(z)
        return terms.sum(1, dtype=torch.float64).to(z.dtype)

    forward = log_prob

    def logits(self, x: Tensor) -> Tensor:
        r"""Logits of the conditionals, (n, *shape); of q states (n, *shape, q)."""
        return self._events(self._logits(self._codes(x, True)))

    def conditionals(self, x: Tensor) -> Tensor:
        r"""p(x_i = 1 | x_<i), (n, *shape), for the larger of two states; of q states (…, q)."""
        z = self.logits(x)
        return z.softmax(-1) if self._states else z.sigmoid()

    @checked_arguments
    def sample(self, n: Count, generator: Generator = None) -> Tensor:
        r"""Independent events (n, *shape), exactly from p."""
        return self.support.decode(self._events(self._draws(n, generator)[0]))

    @checked_arguments
    def sample_probabilities(self, n: Count, generator: Generator = None) -> Tensor:
        r"""Conditionals at the events that `sample` draws with a generator in the same state."""
        return self._events(self._draws(n, generator)[1])

    @torch.no_grad()
    def _draws(self, n: int, generator: Generator) -> tuple[Tensor, Tensor]:
        like = next(self.parameters())
        uniforms = random(torch.rand, (n, self.inputs), like, generator)
        rows = max(1, NUMBERS.get(like.device.type, NUMBERS["cpu"]) // self._units)
        parts = [self._draw(block) for block in uniforms.split(rows)]
        codes, probabilities = map(torch.cat, zip(*parts, strict=True))
        return codes, probabilities

    def _draw_run(
        self, uniforms: Tensor, a: Tensor, w: Tensor, u: Tensor, b: Tensor, mean: Tensor
    ) -> tuple[Tensor, Tensor]:
        r"""As `_draw`, of a run of NADE's variables with activations a (n, J) at its start."""
        draws = []
        for uniform, w_i, u_i, b_i, mean_i in zip(uniforms.T, w, u, b, mean, strict=True):
            draws.append(choose(uniform, a.sigmoid() @ (u_i.T if self._states else u_i) + b_i))
            y = self._features(draws[-1][0]) - mean_i
            a = torch.addmm(a, y.view(len(a), -1), w_i.view(-1, a.shape[1]))
        codes, probabilities = (torch.stack(parts, 1) for parts in zip(*draws, strict=True))
        return codes, probabilities

    @checked_arguments
    def fit(
        self, data: UserObject[Inputs | np.ndarray | Tensor], steps: Count = 10_000, **options: Any
    ) -> Result:
        r"""Maximum likelihood: minimise the mean of −log p over the data, in place.

        Arguments:
            data: Events (n, *shape) as a tensor or an array, or any inputs of `limbeck.distill`.
            steps: The number of steps. Default: 10,000.
            options: Further settings of `limbeck.distill`.
        """
        if hasattr(data, "__array__"):
            events = as_part(data, "data").values
            data = self.support.check(events.to(next(self.parameters()).dtype), "data")
        training = Training.from_options(options, (), type(self).fit, steps=steps)
        return train(None, self, data, losses.kl(), training)

    def spec(self) -> dict[str, Any]:
        natural = torch.equal(self.order.cpu(), torch.arange(self.inputs))
        order = None if natural else self.order.tolist()
        support = [type(self.support).__name__, self.support.count, *self.support.shape]
        return super().spec() | {"order": order, "support": support}

    @classmethod
    def _make(cls, fields: dict[str, Any]) -> Self:
        return super()._make(fields | {"support": _support(fields["support"])})

    @staticmethod
    def _width(fields: Mapping[str, Any]) -> int:
        r"""Inputs of a net for events: one for a variable of two states, else one for each."""
        count = _support(fields["support"]).count
        return fields["inputs"] * (1 if count == 2 else count)

    @checked_arguments
    def save(self, path: PathLike) -> Path:
        r"""Write parameters and spec as one safetensors file."""
        return files.write(path, self.state_dict(), {"spec": self.spec()}, FORMAT)

    @classmethod
    @checked_arguments
    def load(cls, path: PathLike, device: Device = None) -> Self:
        r"""Read what `save` wrote."""
        tensors, about = files.read(path, FORMAT)
        with of_file(path):
            most = count_numbers(tensors)
            model = cls.from_spec(about.get("spec") or {}, most, device=device)
        files.load_weights(model, tensors, Path(path))
        return model

    def _normal(self, generator: Generator, scale: float, *shape: int) -> nn.Parameter:
        # on the generator's device: a CPU generator gives equal nets everywhere
        source = torch.device("cpu") if generator is None else generator.device
        drawn = torch.randn(*shape, generator=generator, dtype=self._dtype, device=source)
        return nn.Parameter((scale * drawn).to(self.order.device))

    def _zeros(self, *shape: int) -> nn.Parameter:
        return nn.Parameter(torch.zeros(*shape, dtype=self._dtype, device=self.order.device))

    def _codes(self, x: Tensor, check: bool) -> Tensor:
        r"""Events as codes (n, I) in order; `check` reads their values, where possible."""
        dtype, shape = next(self.parameters()).dtype, self.support.shape
        tensor = isinstance(x, Tensor)
        if not tensor or x.dtype != dtype or x.shape[1:] != shape:
            received = f"{x.dtype} of shape {tuple(x.shape)}" if tensor else f"a {type(x).__name__}"
            expected = f"{dtype} of shape (n, {', '.join(map(str, shape))})"
            raise ArgumentError("x", received, expected)
        codes = self.support.encode(x.flatten(1).index_select(1, self.order))
        if check is False or torch.compiler.is_compiling():
            return codes
        if not (x.is_cuda and torch.cuda.is_current_stream_capturing()):
            with contextlib.suppress(RuntimeError):  # under vmap there are no values
                if self.support.count > 2 or not torch.equal(codes * codes, codes):
                    self.support.check(x)
        return codes

    def _features(self, codes: Tensor) -> Tensor:
        r"""Codes of two states as they are, of q states one number for each state, (…, q)."""
        if not self._states:
            return codes
        states = torch.arange(self.support.count, dtype=codes.dtype, device=codes.device)
        return (codes.unsqueeze(-1) == states).to(codes.dtype)

    def _events(self, values: Tensor) -> Tensor:
        r"""(n, I, …) in order as (n, *shape, …)."""
        events = torch.empty_like(values).index_copy(1, self.order, values)
        return events.unflatten(1, self.support.shape)


def choose(uniform: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    r"""The codes (n,) that uniform numbers (n,) choose, and the probabilities."""
    if logits.ndim == 1:
        p = logits.sigmoid()
        return (uniform < p).to(p.dtype), p
    p = logits.softmax(1)
    passed = (uniform.unsqueeze(1) >= p.cumsum(1)).sum(1)
    return passed.clamp_max(p.shape[1] - 1).to(p.dtype), p  # rounded sums may stay below one


def _support(spec: Sequence[str | int]) -> Discrete:
    kind, *sizes = spec or ("nothing",)
    choice("spec.support[0]", kind, SUPPORTS)
    count, *shape = read_value(sizes, tuple[int, ...], "spec.support") or (0,)
    return States(count, *shape) if kind == "States" else SUPPORTS[str(kind)](*shape)


def _permutation(inputs: int, order: Order, generator: Generator) -> Tensor:
    if order is None:
        return torch.arange(inputs)
    expected = f"None, 'random' or a permutation of 0 … {inputs - 1}"
    if isinstance(order, str):
        if order != "random":
            raise ArgumentError("order", shown(order), expected)
        device = None if generator is None else generator.device
        return torch.randperm(inputs, generator=generator, device=device)
    numbers = as_numbers(order, "order").cpu()
    whole = not numbers.is_floating_point() and numbers.dtype != torch.bool
    if not whole or not torch.equal(numbers.long().sort().values, torch.arange(inputs)):
        received = f"numbers of shape {tuple(numbers.shape)} that are not one"
        raise ArgumentError("order", received, expected)
    return numbers.long().clone()
