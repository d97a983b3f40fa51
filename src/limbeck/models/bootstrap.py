r"""Many nets trained at once, on bootstrap samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from limbeck.arguments import whole_number
from limbeck.arrays import Batch
from limbeck.errors import ArgumentError, CheckpointError
from limbeck.inputs import Dataset
from limbeck.inputs.base import Inputs
from limbeck.losses.base import Loss, Probe
from limbeck.models.mlp import LAYER_KINDS, MLP, Feedforward, flat, initialise, shapes

__all__ = ["BatchedMLP", "Resamples", "members_cross_entropy", "train"]


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
                for batch, own in zip(batched._in_order(), net.parameters(), strict=True):
                    batch[index] = own
        return batched.train(members[0].training)

    def spec(self) -> dict[str, Any]:
        return {**super().spec(), "members": self.members}

    def extra_repr(self) -> str:
        return f"members={self.members}, {super().extra_repr()}"


def train(
    sizes: Sequence[int],
    X: Any,
    y: Any,
    members: int,
    *,
    epochs: int,
    bootstrap: bool,
    preset: str,
    seed: int,
    device: str | torch.device,
    init: str,
    **options: Any,
) -> BatchedMLP:
    r"""Train equal nets at once; `Ensemble.train_bootstrap` says what the arguments are."""
    from limbeck.arguments import whole
    from limbeck.training.config import PRESETS
    from limbeck.training.distill import distill

    data, seed = Dataset(X, y), whole_number("seed", seed, "a whole number")
    if not isinstance(data.x, Tensor) or data.y is None or data.y.is_floating_point():
        raise ArgumentError("y", "no class numbers", "whole numbers (N,) for inputs X (N, ...)")
    net = BatchedMLP(members, *sizes, generator=torch.Generator().manual_seed(seed), init=init)
    if preset not in PRESETS:
        raise ArgumentError.unknown("preset", preset, PRESETS)
    if data.y.ndim != 1 or data.y.min() < 0 or data.y.max() >= net.sizes[-1]:
        raise ArgumentError(
            "y",
            f"labels of shape {tuple(data.y.shape)} from {data.y.min()} to {data.y.max()}",
            f"class numbers (N,) from 0 to {net.sizes[-1] - 1}",
        )
    size = options.pop("batch_size", "auto")
    size = PRESETS[preset]["batch_size"] if size == "auto" else whole("batch_size", size)
    size = min(size, len(data))
    source = Resamples(data.x, data.y.long(), net.members, bootstrap)
    steps = options.pop("steps", max(1, whole("epochs", epochs) * len(data) // size))
    distill(
        None, net, source, members_cross_entropy(), steps=steps, batch_size=size, preset=preset,
        seed=seed, device=device, **options,
    )  # fmt: skip
    return net


class Resamples(Inputs):
    r"""For each of M members, shuffled passes over its own bootstrap resample of N rows.

    A batch of n has x (n, M, ...) and y (n, M): the members' own examples side by side.

    Arguments:
        X: Inputs (N, ...).
        y: Class numbers (N,).
        members: M.
        bootstrap: False to give every member all rows.
        seed: Seeds resamples and passes; None takes the run's.
    """

    def __init__(
        self, X: Tensor, y: Tensor, members: int, bootstrap: bool = True, seed: int | None = None
    ) -> None:
        super().__init__(seed)
        self.x, self.y, self.members, self.bootstrap = X, y, members, bootstrap
        self.rows = torch.empty(0)  # (M, N): the resamples, made when the seed is known
        self.order = torch.empty(0)  # (M, N): the present pass
        self.position = 0

    def __len__(self) -> int:
        return len(self.x)

    def to(self, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        super().to(device, dtype, seed)
        self.x, self.y = self.x.to(self.device, dtype), self.y.to(self.device)
        size = (self.members, len(self))
        if self.bootstrap:
            self.rows = torch.randint(len(self), size, generator=self.generator, device=self.device)
        else:
            self.rows = torch.arange(len(self), device=self.device).expand(size)
        self._shuffle()

    def _shuffle(self) -> None:
        places = torch.rand(self.rows.shape, generator=self.generator, device=self.device).argsort(
            1
        )
        self.order, self.position = self.rows.gather(1, places), 0

    def draw(self, n: int) -> Tensor:
        r"""Row numbers (M, n)."""
        if n > len(self):
            raise ArgumentError("batch_size", n, f"at most {len(self)}, the rows of the data")
        left = self.order[:, self.position : self.position + n]
        self.position += left.shape[1]
        if left.shape[1] == n:
            return left
        self._shuffle()
        self.position = n - left.shape[1]
        return torch.cat([left, self.order[:, : self.position]], 1)

    def build(self, drawn: Tensor) -> Batch:
        return Batch(self.x[drawn.T], self.y[drawn.T])

    def state_dict(self) -> dict[str, Tensor]:
        position = torch.tensor(self.position)
        return super().state_dict() | {"rows": self.rows, "order": self.order, "position": position}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        if state["rows"].shape != self.rows.shape:
            raise CheckpointError("checkpoint: it is of another number of members or rows")
        super().load_state_dict(state)
        self.rows, self.order = state["rows"].to(self.device), state["order"].to(self.device)
        self.position = int(state["position"])


class members_cross_entropy(Loss):  # noqa: N801 - losses are written as functions of their settings
    r"""−Σ_m log f_m(y_m | x_m): each member's loss at its own example, summed over members.

    Members share no parameters, so each is trained as if it were alone.
    """

    name = "members_cross_entropy"

    def bind(self, probe: Probe) -> nn.Module | None:
        classes = probe.student.raw().shape[2]  # type: ignore[attr-defined]
        if probe.batch.y is None or probe.batch.y.max() >= classes or probe.batch.y.min() < 0:
            raise ArgumentError(
                "y", "labels out of range", f"class numbers from 0 to {classes - 1}"
            )
        return None

    def __call__(self, student: Any, teacher: Any, batch: Batch, drawn: Any = None) -> Tensor:
        logits = student.raw()  # (n, M, I)
        assert batch.y is not None
        found = F.cross_entropy(logits.flatten(0, 1), batch.y.flatten(), reduction="none")
        return found.unflatten(0, batch.y.shape).sum(1)
