r"""Posterior predictive teachers: the average over stored draws, or one fresh draw an input."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from limbeck.core.batch import Batch, X, leaves, map_tensors, rows
from limbeck.core.evaluation import Evaluated
from limbeck.core.teacher import Opaque, Teacher
from limbeck.draws.stored import Draws
from limbeck.errors import NotDifferentiableError
from limbeck.predictive.calling import Predict, class_logs, mean_logs
from limbeck.predictive.pairing import unpaired
from limbeck.predictive.posteriors import DrawSource

__all__ = ["AT_ONCE", "Average", "OneDraw", "average_teacher", "one_draw", "refuse_derivatives"]

AT_ONCE = 2**26
r"""Bytes that predictions of a block of draws may take, 64 MiB."""


class Average(nn.Module):
    r"""log ⟨p(y|x, w)⟩ over stored draws w: of all classes y, (n, K), or at given y, (n,).

    Draws are gone through in blocks, so that memory stays bounded for any number of them.

    Arguments:
        predict: The user's function.
        draws: The draws, all of which are kept in memory.
        pairs: Whether inputs are pairs of x and y, as `limbeck.predictive.pairing` has them.
    """

    flat: Tensor

    def __init__(self, predict: Predict, draws: Draws, pairs: bool = False) -> None:
        super().__init__()
        self.predict, self.structure, self.pairs = predict, draws.structure, pairs
        self.register_buffer("flat", draws.flat, persistent=False)

    def forward(self, x: X) -> Tensor:
        blocks = [self.logs(x, block) + math.log(share) for block, share in self.blocks(rows(x))]
        return blocks[0] if len(blocks) == 1 else torch.stack(blocks).logsumexp(0)

    def blocks(self, n: int) -> Iterator[tuple[Tensor, float]]:
        r"""Rows of draws (size, dim), with the share of all draws that they are."""
        each = n * self.predict.numbers * self.flat.element_size()
        count = len(self.flat)
        pieces = max(1, math.ceil(count * each / AT_ONCE))
        for block in self.flat.split(math.ceil(count / pieces)):
            yield block, len(block) / count

    def logs(self, x: X, block: Tensor) -> Tensor:
        r"""The logarithm of the average over a block of draws."""
        draws = self.structure.unflatten(block)
        if not self.pairs:
            return mean_logs(self.predict.stacked(draws, x))
        pair = unpaired(x)
        logs = self.predict.stacked(draws, pair.x).log_prob(pair.y)
        return logs.logsumexp(0) - math.log(len(block))


class BlockView(Evaluated):
    r"""An `Average` at a batch, whose derivatives are taken block by block too.

    ∂log t = Σ_b w_b ∂log t_b with w_b the share of block b in t: so each block is pulled back by
    itself, and no more than one is kept for derivatives.
    """

    model: Average

    def _linear(self, domain: str) -> Any:
        blocks = list(self.model.blocks(rows(self.x)))
        if len(blocks) == 1:
            return super()._linear(domain)
        outputs = self.outputs(domain)

        def pull(cotangent: Tensor) -> Any:
            total: dict[str, Tensor] = {}
            for block, share in blocks:
                own = Evaluated(lambda x, block=block: self.model.logs(x, block), self.x, self.form)
                values, back = own._linear(domain)
                weight = share if domain == "plain" else share * (values - outputs).exp()
                parts = back(cotangent * weight)[0]
                total = {name: total.get(name, 0) + part for name, part in parts.items()}
            return (total,)

        return outputs, pull


class AverageTeacher(Teacher):
    r"""The posterior predictive distribution as a teacher, exact on the draws that are stored."""

    source: Average

    def view(self, batch: Batch, drawn: Any = None) -> BlockView:
        return BlockView(self.source, batch.x, self.form)

    def __repr__(self) -> str:
        return f"the average over {len(self.source.flat):,} draws"


def average_teacher(predict: Predict, draws: Draws, pairs: bool = False) -> Teacher:
    r"""A teacher that averages predictions over all stored draws.

    Arguments:
        predict: The user's function.
        draws: The draws.
        pairs: Whether to teach the density of pairs of x and y in place of all classes.
    """
    source, form = Average(predict, draws, pairs), "log_density" if pairs else "log_probabilities"
    if predict.mapped:
        return AverageTeacher(source, form)
    return Outside(predict, source, form)


class OneDraw:
    r"""log p(y|x, w) of all classes y, (n, K), with one draw w an input, or the mean of a few.

    Arguments:
        predict: The user's function.
        source: Where draws come from.
        share: How many of the n draws each input is predicted by. The mean is the same for any
            number; a larger one takes noise away, for predictions and not for draws.
    """

    def __init__(self, predict: Predict, source: DrawSource, share: int = 1) -> None:
        self.predict, self.source, self.share = predict, source, share

    def draw(self, n: int) -> X:
        r"""The next n draws."""
        return self.source.next(n)

    def __call__(self, x: X, drawn: X) -> Tensor:
        n = rows(x)
        share = min(self.share, n)
        if share == 1:
            return class_logs(self.predict.paired(drawn, x))
        places = torch.arange(n, device=leaves(x)[0].device)
        turned = ((places + places[:share, None]) % n).flatten()  # (share · n,)
        draws = map_tensors(lambda part: part[turned], drawn)
        again = map_tensors(lambda part: part.repeat(share, *[1] * (part.ndim - 1)), x)
        logs = class_logs(self.predict.paired(draws, again)).unflatten(0, (share, n))
        return logs.logsumexp(0) - math.log(share)

    def state_dict(self) -> dict[str, Tensor]:
        return self.source.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.source.load_state_dict(state)


def one_draw(predict: Predict, source: DrawSource, share: int = 1) -> Teacher:
    r"""A teacher that answers with one fresh draw an input, or a few, in memory for a minibatch.

    Its answers are those of the average in the mean alone: losses whose gradients are not affine
    in the targets are refused.

    Arguments:
        predict: The user's function.
        source: Where draws come from.
        share: How many of a minibatch's draws each input is predicted by; see `OneDraw`.
    """
    answer = OneDraw(predict, source, share)
    if predict.mapped:
        return Teacher(answer, "log_probabilities", exact=False, draw=answer.draw)
    function = lambda x: answer(x, source.next(rows(x)))  # noqa: E731
    return Outside(predict, function, "log_probabilities", source)


def refuse_derivatives(predict: Predict, loss: str) -> None:
    r"""Say that a derivative loss cannot be used, if so, and why."""
    if not predict.mapped:
        raise NotDifferentiableError(
            f"{predict.argument}: {loss} asks for input derivatives, and this function has none, "
            f"since torch cannot map it over draws ({predict.reason}). Use a loss on values, or "
            "write the function in torch."
        )


class Outside(Opaque):
    r"""A teacher whose function torch cannot map: it is called outside the step."""

    def __init__(
        self, predict: Predict, function: Any, form: str, source: DrawSource | None = None
    ) -> None:
        super().__init__(function, form, exact=source is None)
        self.predict, self.draws = predict, source

    def _call(self, x: X) -> Tensor:
        with torch.no_grad():
            found: Tensor = self.function(x)
        return found

    def refuse_derivatives(self, loss: str) -> None:
        refuse_derivatives(self.predict, loss)

    def state_dict(self) -> dict[str, Tensor]:
        return {} if self.draws is None else self.draws.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        if self.draws is not None and state:
            self.draws.load_state_dict(state)
