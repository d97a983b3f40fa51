r"""R-hat and effective sizes of draws that are not kept: on the fly, in constant memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from limbeck.arguments import number, whole_number
from limbeck.errors import ArgumentError, CheckpointError

__all__ = ["Running"]

BATCHES = 100
r"""Batches that an effective size is taken from where there are so many: an error near 15%."""

LONG_ENOUGH = 10
r"""Draws that a batch has at least, unless it is a whole chain."""

FEW = 100
r"""Effective draws below which `reasons` complains."""


class Running:
    r"""What the draws (chains, dim) of sweep after sweep are worth.

    Each chain is cut into blocks of equal length, and of each block the mean and the sum of
    squares about it are kept. When there is no place for another block, neighbours are merged:
    from then on blocks are twice as long. So memory stays the same, 2 × blocks numbers for each
    coordinate of each chain.

    R̂ is that of `samplers.r_hat`, Gelman and Rubin's with each chain cut in halves, of all draws
    in whole blocks. Chains that agree and have e effective draws each have about 1 + 1/e, however
    many chains there are: those of a few draws cannot be told from chains that disagree.

    The effective size is that of the mean over all chains, by batch means (Flegal and Jones,
    2010): the variance of draws over the variance of means of batches. There are a hundred
    batches if possible, so a hundred chains are a batch each, and then nothing is assumed of their
    autocorrelation. Fewer chains are cut into batches, which must be long: with τ draws for an
    effective one, batches of b draws give a size too large by a part of about τ/2b. So longer
    batches are tried too, up to whole chains, and count where they vary by more than their own
    error above the others: slow chains are found out, and chains that never meet.

    Arguments:
        names: What to call the coordinates in `reasons`; None is their numbers.
        blocks: Blocks kept, an even number from 4. A single chain is better off with more.

    >>> running = Running()
    >>> for draws in torch.randn(500, 4, 2, generator=torch.Generator().manual_seed(0)):
    ...     running.update(draws)
    >>> running.count, running.reasons()
    (500, [])
    """

    def __init__(self, names: Sequence[str] | None = None, blocks: int = 64) -> None:
        self.blocks = whole_number("blocks", blocks, "an even number from 4", least=4)
        if self.blocks % 2:
            raise ArgumentError("blocks", blocks, "an even number from 4")
        self.names = None if names is None else [str(name) for name in names]
        self._full, self._partial, self._length = 0, 0, 1  # blocks, draws in the next, in each
        self._mean = self._squares = torch.empty(0)  # (blocks, chains, dim)

    @property
    def count(self) -> int:
        r"""Draws of each chain so far."""
        return self._full * self._length + self._partial

    def update(self, draws: Any) -> None:
        r"""Take notice of one more draw of each chain, (chains, dim)."""
        x = self._checked(draws)
        mean, squares = self._mean[self._full], self._squares[self._full]
        self._partial += 1
        change = x - mean
        mean += change / self._partial  # Welford's way
        squares += change * (x - mean)
        if self._partial == self._length:
            self._full, self._partial = self._full + 1, 0
        if self._full == self.blocks:
            merged = _pooled(self._mean, self._squares, self._length, 2)
            self._full, self._length = self.blocks // 2, 2 * self._length
            for kept, new in zip((self._mean, self._squares), merged, strict=True):
                kept[: self._full] = new
                kept[self._full :] = 0

    @property
    def r_hat(self) -> Tensor:
        r"""R̂ of each coordinate, (dim,): 1 where chains agree; NaN below four draws."""
        mean, squares = self._blocks()
        half = self._full // 2
        n = half * self._length
        if n < 2:
            return mean.new_full(mean.shape[2:], math.nan)
        pairs = (slice(half), slice(self._full - half, None))
        halves = [_pooled(mean[at], squares[at], self._length, half) for at in pairs]
        mean, squares = (torch.cat(each).flatten(0, 1) for each in zip(*halves, strict=True))
        ratio = _ratio(mean.var(0), (squares / (n - 1)).mean(0), mean, constant=1 / n)
        return ((n - 1) / n + ratio).sqrt()

    @property
    def ess(self) -> Tensor:
        r"""The effective size of each coordinate's draws, all chains together, (dim,).

        NaN until it can be told.
        """
        mean, squares = self._blocks()
        chains, dim = mean.shape[1:]
        size = self._full // math.ceil(BATCHES / chains) or 1  # blocks in a batch
        if not self._full or (chains < BATCHES and size * self._length < LONG_ENOUGH):
            return mean.new_full((dim,), math.nan)
        n = mean.shape[0] * self._length * chains
        apart = (mean - mean.mean((0, 1))).square().sum((0, 1))
        variance = (squares.sum((0, 1)) + self._length * apart) / max(n - 1, 1)
        of_means, shortest = torch.zeros_like(variance), size
        while (batches := self._full // size * chains) > 1:
            error = math.sqrt(2 / (batches - 1)) if size > shortest else 0.0
            of_means = torch.maximum(of_means, self._of_batches(size) / (1 + error))
            if size == self._full:
                break
            size = min(2 * size, self._full)
        drawn = self.count * chains
        share = _ratio(variance, of_means, mean.flatten(0, 1), constant=1.0)
        return (drawn * share).clamp_max(drawn * math.log10(max(drawn, 11)))

    def reasons(self, r_hat: float = 1.05) -> list[str]:
        r"""What there is to distrust in the draws so far, a sentence each; none if all seems well.

        Arguments:
            r_hat: How much R̂ may be.
        """
        limit = number("r_hat", r_hat, "a number above 1", lambda r: r > 1)
        found, sizes = self.r_hat, self.ess
        reasons = self._stuck()
        if (found > limit).any():
            worst = int(found.argmax())
            reasons.append(
                f"R̂ of {self._name(worst)} is {float(found[worst]):.3g} (above {limit:g} for "
                f"{int((found > limit).sum())} of {len(found)}): after {self.count:,} draws the "
                f"chains disagree or are too short to tell; chain {self._odd(worst)} is furthest "
                "from the others"
            )
        if (sizes < FEW).any():
            worst = int(sizes.nan_to_num(math.inf).argmin())
            size = float(sizes[worst])
            reasons.append(
                f"the draws of {self._name(worst)} are worth {size:.0f} independent ones"
            )
        return reasons

    def state_dict(self) -> dict[str, Tensor]:
        r"""All that is needed to go on as if never interrupted: tensors only."""
        position = torch.tensor([self._full, self._partial, self._length])
        return {"mean": self._mean.clone(), "squares": self._squares.clone(), "position": position}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        r"""Go on from where `state_dict` was taken."""
        blocks = len(state["mean"])
        if blocks not in (0, self.blocks):
            raise CheckpointError(f"checkpoint: it has {blocks} blocks, and here {self.blocks}")
        self._mean, self._squares = state["mean"].clone(), state["squares"].clone()
        self._full, self._partial, self._length = state["position"].tolist()

    def _blocks(self) -> tuple[Tensor, Tensor]:
        r"""Means and sums of squares of the whole blocks, (full, chains, dim) each."""
        if not len(self._mean):
            raise ArgumentError("draws", "none yet", "one or more, by `update`")
        return self._mean[: self._full], self._squares[: self._full]

    def _of_batches(self, size: int) -> Tensor:
        r"""The variance of means of batches of so many blocks, times the draws in one, (dim,)."""
        batches = self._full // size
        latest = self._mean[self._full - batches * size : self._full]
        means = latest.unflatten(0, (batches, size)).mean(1)  # (batches, chains, dim)
        return size * self._length * means.flatten(0, 1).var(0)

    def _checked(self, draws: Any) -> Tensor:
        try:
            x = torch.as_tensor(draws).detach().double()
        except (TypeError, ValueError, RuntimeError):
            raise ArgumentError("draws", repr(draws), "numbers (chains, dim)") from None
        shape = tuple(x.shape)
        wanted = tuple(self._mean.shape[1:])
        if len(shape) != 2 or 0 in shape or (wanted and shape != wanted):
            raise ArgumentError("draws", f"shape {shape}", f"shape {wanted or '(chains, dim)'}")
        if self.names is not None and len(self.names) != shape[1]:
            received = f"{len(self.names)} names"
            raise ArgumentError("names", received, f"{shape[1]}, one for each coordinate")
        if not x.isfinite().all():
            chain = int((~x.isfinite()).any(1).nonzero()[0])
            raise ArgumentError("draws", f"NaN or infinite numbers in chain {chain}", "numbers")
        if not wanted:
            self._mean = x.new_zeros(self.blocks, *shape)
            self._squares = torch.zeros_like(self._mean)
        return x

    def _stuck(self) -> list[str]:
        r"""Chains that have stayed at a point since half-time, told in a sentence, if there are."""
        mean, squares = self._blocks()
        late = slice(self._full // 2, self._full)
        draws = (self._full - self._full // 2) * self._length
        if draws < LONG_ENOUGH:
            return []
        moved = (squares[late] > 0) | (mean[late] != mean[-1])
        still = (~moved.any(0).any(1)).nonzero()[:, 0].tolist()
        if not still:
            return []
        names = ", ".join(map(str, still[:5])) + (", …" if len(still) > 5 else "")
        return [
            f"{len(still)} of {mean.shape[1]} chains have not moved in {draws:,} draws: {names}"
        ]

    def _odd(self, coordinate: int) -> int:
        r"""The chain whose mean is furthest from the others' median."""
        mean = self._blocks()[0][:, :, coordinate].mean(0)
        return int((mean - mean.median()).abs().argmax())

    def _name(self, coordinate: int) -> str:
        return f"coordinate {coordinate}" if self.names is None else self.names[coordinate]


def _pooled(mean: Tensor, squares: Tensor, length: int, size: int) -> tuple[Tensor, Tensor]:
    r"""Means and sums of squares of blocks put together, so many (`size`) neighbours each."""
    parts = mean.unflatten(0, (-1, size))
    whole = parts.mean(1)
    apart = length * (parts - whole[:, None]).square().sum(1)
    return whole, squares.unflatten(0, (-1, size)).sum(1) + apart


def _ratio(one: Tensor, other: Tensor, x: Tensor, constant: float) -> Tensor:
    r"""A ratio of variances (dim,) of values like x (n, dim); given where both are rounding."""
    rounding = (1e-14 * x.abs().amax(0)).square()
    one, other = (torch.where(v <= rounding, 0.0, v) for v in (one, other))
    return torch.where((one == 0) & (other == 0), constant, one / other)
