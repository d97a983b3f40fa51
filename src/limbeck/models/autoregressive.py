r"""Densities given by the logits of their conditionals, whatever network these come from."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from limbeck.errors import ArgumentError
from limbeck.models.ordered import Ordered

__all__ = ["Autoregressive", "choose"]

NUMBERS = {"cpu": 2**20, "cuda": 2**26}
r"""Hidden units of all rows together while sampling."""


class Autoregressive(Ordered):
    r"""p(x) = Π_i p(x_i | x_<i), each conditional from the logits of a network.

    Subclasses give `_logits` and `_draw`, both in the order of the variables.
    """

    def _logits(self, codes: Tensor) -> Tensor:
        r"""Logits of the conditionals at codes (n, I): (n, I) of two states, (n, I, q) of q."""
        raise NotImplementedError

    def _draw(self, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        r"""Codes (n, I) that uniform numbers (n, I) lead to, and the probabilities met."""
        raise NotImplementedError

    def log_prob(self, x: Tensor, check: bool = True) -> Tensor:
        codes = self._codes(x, check)
        z = self._logits(codes)
        if self.support.count == 2:
            terms = codes * z - F.softplus(z)
        else:
            terms = (z.log_softmax(2) * self._one_hot(codes)).sum(2)
        return terms.sum(1, dtype=torch.float64).to(z.dtype)

    def expected_log_prob(self, x: Tensor, expected: Tensor) -> Tensor:
        r"""Σ_i E log p(x_i | x_<i), (n,), where x_i is drawn anew with given probabilities.

        If x comes with something h that makes its variables independent, as the hidden units of
        an RBM do, then at expected = P(x_i = 1 | h) this has the mean of `log_prob`, and less
        variance: the noise of x_i given h is averaged out.

        Arguments:
            x: Events (n, *shape), whose variables are conditioned on.
            expected: The probabilities of the larger of two states, of x's shape; of q states,
                those of each, (n, *shape, q).
        """
        each = () if self.support.count == 2 else (self.support.count,)
        if expected.shape != (*x.shape, *each):
            accepted = f"shape {(*x.shape, *each)}"
            raise ArgumentError("expected", f"shape {tuple(expected.shape)}", accepted)
        wanted = expected.flatten(1, len(self.support.shape)).index_select(1, self.order)
        z = self._logits(self._codes(x, True))
        if self.support.count == 2:
            terms = wanted * z - F.softplus(z)
        else:
            terms = (z.log_softmax(2) * wanted).sum(2)
        return terms.sum(1, dtype=torch.float64).to(z.dtype)

    def logits(self, x: Tensor) -> Tensor:
        r"""Logits of the conditionals, (n, *shape); of q states (n, *shape, q)."""
        return self._events(self._logits(self._codes(x, True)))

    def conditionals(self, x: Tensor) -> Tensor:
        r"""p(x_i = 1 | x_<i), (n, *shape), for the larger of two states; of q states (…, q).

        Each stands where its variable stands in x; which ones come before, `order` says.
        """
        z = self.logits(x)
        return z.sigmoid() if self.support.count == 2 else z.softmax(-1)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        r"""Independent events (n, *shape), exactly from p."""
        return self.support.decode(self._events(self._draws(n, generator)[0]))

    def sample_probabilities(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        r"""The conditional probabilities that were met in drawing n events, as `conditionals`.

        They belong to the events that `sample` gives for a generator in the same state.
        """
        return self._events(self._draws(n, generator)[1])

    @torch.no_grad()
    def _draws(self, n: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        uniforms = self._uniforms(n, generator)
        rows = NUMBERS.get(uniforms.device.type, NUMBERS["cpu"]) // self._units
        found = [self._draw(some) for some in uniforms.split(max(1, rows))]
        codes, met = zip(*found, strict=True)
        return torch.cat(codes), torch.cat(met)

    @property
    def _units(self) -> int:
        r"""The hidden units that a row needs at once."""
        raise NotImplementedError

    def _one_hot(self, codes: Tensor) -> Tensor:
        every = torch.arange(self.support.count, dtype=codes.dtype, device=codes.device)
        return (codes.unsqueeze(-1) == every).to(codes.dtype)


def choose(uniform: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    r"""The codes (n,) that uniform numbers (n,) fall on, and the probabilities.

    Arguments:
        uniform: Numbers in [0, 1).
        logits: Of two states (n,), of q states (n, q).
    """
    if logits.ndim == 1:
        p = logits.sigmoid()
        return (uniform < p).to(p.dtype), p
    p = logits.softmax(1)
    passed = (uniform.unsqueeze(1) >= p.cumsum(1)).sum(1)
    return passed.clamp_max(p.shape[1] - 1).to(p.dtype), p  # rounded sums may stay below one
