r"""Bootstrap ensembles: equal nets, each on its own resample, trained all at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from limbeck.core.batch import Batch
from limbeck.core.checks import whole_number
from limbeck.core.inputs import Inputs
from limbeck.core.loss import Loss, Probe
from limbeck.errors import ArgumentError, CheckpointError
from limbeck.inputs import Dataset
from limbeck.models.batched import BatchedMLP

__all__ = ["Resamples", "members_cross_entropy", "train"]


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
    from limbeck.distillation import distill
    from limbeck.preparation import PRESETS, whole

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
