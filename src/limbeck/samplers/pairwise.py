r"""Densities whose sites interact in pairs: their couplings, and sweeps of many sites at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from limbeck.supports import Discrete

TRIPLES = 64  # whose third differences must vanish
RANDOM_EVENTS = 256  # at which the couplings must give the log density
EVALUATED_TOGETHER = 2**22  # numbers of events


@dataclass(frozen=True)
class Pairwise:
    r"""log p̃(x) = c + Σ hᵢ(xᵢ) + Σ Jᵢⱼ(xᵢ, xⱼ) over a discrete support.

    Features are indicators of the values of a site, but for its first value. Sites are put into
    groups without couplings among them, such as the colours of a chessboard. Given the others, the
    sites of a group are independent, so that a sweep changes a group at a time.

    Attributes:
        support: The support, of N sites with q values.
        constant: c, log p̃ of the event of first values.
        fields: h, (M,) with M = N (q − 1), of features in the order of the groups.
        couplings: J, (M, M), in the same order.
        sites: The sites (N,) in the order of the groups.
        groups: The first and last place of each group in that order, and of the sites it acts on.
        blocks: The couplings of each group with the sites that it acts on.
    """

    support: Discrete
    constant: float
    fields: Tensor
    couplings: Tensor
    sites: Tensor
    groups: tuple[tuple[int, int, int, int], ...]

    @cached_property
    def blocks(self) -> tuple[Tensor, ...]:
        others, blocks = self.support.count - 1, list[Tensor]()
        for begin, end, low, high in self.groups:
            block = self.couplings[begin * others : end * others, low * others : high * others]
            sparse = block.numel() > 256 and float((block != 0).double().mean()) < 0.1
            blocks.append(block.to_sparse() if sparse and not block.is_cuda else block.contiguous())
        return tuple(blocks)

    @classmethod
    @torch.no_grad()
    def of(
        cls, log_density: Callable[[Tensor], Tensor], support: Discrete, like: Tensor,
        end: float = math.inf,
    ) -> Pairwise | None:  # fmt: skip
        r"""The couplings of a log density of events as in `like`; None if others are needed.

        It takes about M² / 2 evaluations, and M where sites are independent. None, too, if these
        would not end before a time on the monotonic clock.
        """
        size = support.size * (support.count - 1)
        if size > 6000 or support.size < 2:  # too many features, or one alone
            return None
        evaluate = _Evaluation(log_density, support, like)
        generator = torch.Generator().manual_seed(0)
        if _has_triples(evaluate, generator):
            return None
        q, sites = support.count, torch.arange(support.size)
        single = torch.stack(
            [sites.repeat_interleave(q - 1), torch.arange(1, q).repeat(len(sites))]
        )
        constant = evaluate(torch.zeros(1, support.size, dtype=torch.long))
        if (h := evaluate.at(single[:1], single[1:], end)) is None:
            return None
        h -= constant
        codes = torch.randint(q, (RANDOM_EVENTS, support.size), generator=generator)
        codes = torch.cat([codes, torch.arange(min(q, 16))[:, None].expand(-1, support.size)])
        x = support.decode(codes.to(like.dtype)).reshape(-1, *support.shape).to(like.device)
        log_p = evaluate(codes)
        J = h.new_zeros(size, size)
        if h.isfinite().all():
            groups = ((0, support.size, 0, 0),)  # nothing acts on any
            independent = cls(support, float(constant), h, J, sites, groups).to(like)
            if independent.agrees(x, log_p):
                return independent
        if size > 1100:  # couplings of more would take too many evaluations
            return None
        one, other = torch.triu_indices(size, size, 1)
        apart = single[0, one] != single[0, other]
        one, other = one[apart], other[apart]
        both = torch.stack([one, other])
        if (logs := evaluate.at(single[0][both], single[1][both], end)) is None:
            return None
        J[one, other] = logs - h[one] - h[other] - constant
        J += J.T.clone()
        if not (h.isfinite().all() and J.isfinite().all()):
            return None
        J[J.abs() < 16 * evaluate.eps * max(1.0, float(logs.abs().max()))] = 0.0  # of rounding
        pairs = cls._grouped(support, float(constant), h, J).to(like)
        return pairs if pairs.agrees(x, log_p) else None

    @classmethod
    def _grouped(cls, support: Discrete, constant: float, h: Tensor, J: Tensor) -> Pairwise:
        n, others = support.size, support.count - 1
        coupled = (J.reshape(n, others, n, others) != 0).any(3).any(1)
        groups = list[list[int]]()
        near = [set(row.nonzero()[:, 0].tolist()) for row in coupled]
        for site in sorted(range(n), key=lambda i: -len(near[i])):
            free = next((group for group in groups if near[site].isdisjoint(group)), None)
            groups.append([site]) if free is None else free.append(site)
        sites = torch.tensor([site for group in groups for site in group])
        features = (sites[:, None] * others + torch.arange(others)).flatten()
        h, J = h[features], J[features][:, features]
        places, begin = list[tuple[int, int, int, int]](), 0
        for group in groups:
            end = begin + len(group)
            acted = (J[:, begin * others : end * others] != 0).any(1).nonzero()[:, 0] // others
            low, high = (int(acted[0]), int(acted[-1]) + 1) if len(acted) else (0, 0)
            places.append((begin, end, low, high))
            begin = end
        return cls(support, constant, h, J, sites, tuple(places))

    def to(self, like: Tensor) -> Pairwise:
        r"""The same with the device and type of a tensor."""
        tensors = self.fields.to(like), self.couplings.to(like), self.sites.to(like.device)
        return Pairwise(self.support, self.constant, *tensors, self.groups)

    def log_unnormalized(self, x: Tensor) -> Tensor:
        r"""log p̃(x), (n,), of events (n, *shape)."""
        return self.log_density(self.features(x))

    def log_density(self, state: Tensor) -> Tensor:
        r"""log p̃ (n,) of features (M, n)."""
        total = state.new_full((state.shape[1],), self.constant)
        for k in range(len(self.groups)):
            here, odds = self.odds(k, state)
            total += (state[here] * odds.add_(self.fields[here, None])).sum(0) / 2
        return total

    def agrees(self, x: Tensor, log_p: Tensor) -> bool:
        r"""Whether it gives log densities (n,) of events, but for rounding."""
        if not log_p.isfinite().all():
            return False
        gap = (self.log_unnormalized(x).double() - log_p.double()).abs().max()
        eps = torch.finfo(min(x.dtype, log_p.dtype, key=lambda t: torch.finfo(t).bits)).eps
        return bool(gap <= 20 * eps * max(1.0, float(log_p.abs().max())) * len(self.fields) ** 0.5)

    @torch.no_grad()
    def sweep(
        self, x: Tensor, sweeps: int = 1, generator: torch.Generator | None = None,
        beta: float | Tensor = 1.0,
    ) -> Tensor:  # fmt: skip
        r"""Chains (n, *shape) after sweeps of Gibbs sampling that leave exp(β log p̃) invariant.

        β is a number, or one for each chain (n,).
        """
        state = self.features(x)
        beta = beta.to(state) if isinstance(beta, Tensor) else beta
        for _ in range(sweeps):
            for k in range(len(self.groups)):
                here, odds = self.odds(k, state)
                draw_values(odds.mul_(beta), self.support.count - 1, generator, state[here])
        return self.events(state)

    def odds(self, group: int, state: Tensor) -> tuple[slice, Tensor]:
        r"""Which features a group has, and their log odds (features, n) given the other sites."""
        others = self.support.count - 1
        begin, end, low, high = (place * others for place in self.groups[group])
        here = slice(begin, end)
        if low == high:
            return here, self.fields[here, None].repeat(1, state.shape[1])
        return here, torch.mm(self.blocks[group], state[low:high]).add_(self.fields[here, None])

    def events(self, state: Tensor) -> Tensor:
        r"""The events (n, *shape) that have features (M, n)."""
        others, n = self.support.count - 1, state.shape[1]
        codes = torch.empty(self.support.size, n, dtype=state.dtype, device=state.device)
        values = torch.arange(1, others + 1, dtype=state.dtype, device=state.device)
        codes[self.sites] = torch.einsum("sqn,q->sn", state.reshape(-1, others, n), values)
        return self.support.decode(codes.T).reshape(n, *self.support.shape)

    def features(self, x: Tensor) -> Tensor:
        r"""The features (M, n) of events."""
        codes = self.support.encode(x).flatten(1).T[self.sites]
        if self.support.count == 2:
            return codes.contiguous()
        values = torch.arange(1, self.support.count, dtype=x.dtype, device=x.device)
        return (codes[:, None] == values[:, None]).to(x.dtype).flatten(0, 1)


def draw_values(odds: Tensor, others: int, generator: torch.Generator | None, out: Tensor) -> None:
    r"""Write features of new values of sites, drawn by log odds (sites · others, n), into `out`."""
    shape = len(odds) // others, odds.shape[1]
    at = torch.rand(shape, generator=generator, device=odds.device, dtype=odds.dtype)
    if others == 1:
        torch.lt(at, odds.sigmoid(), out=out)
        return
    logits = odds.reshape(shape[0], others, -1)
    top = logits.amax(1, keepdim=True).clamp_min(0)
    upto = (logits - top).exp().cumsum(1)  # weights of the values so far
    at = (at * (upto[:, -1] + (-top[:, 0]).exp()))[:, None]
    below = at < upto
    below[:, 1:] ^= below[:, :-1].clone()  # only the first of them, whatever the rounding
    out.copy_(below.flatten(0, 1))


def _has_triples(evaluate: _Evaluation, generator: torch.Generator) -> bool:
    r"""Whether three sites, of a few at random, interact in another way than in pairs."""
    support = evaluate.support
    if support.size < 3:
        return False
    base = torch.randint(support.count, (TRIPLES, support.size), generator=generator)
    sites = torch.rand(TRIPLES, support.size, generator=generator).argsort(1)[:, :3]
    turns = torch.randint(1, support.count, (TRIPLES, 3), generator=generator)
    corners = torch.cartesian_prod(*[torch.arange(2)] * 3)[:, None]  # (8, 1, 3)
    values = (base.gather(1, sites) + turns * corners) % support.count  # (8, TRIPLES, 3)
    codes = base.expand(8, -1, -1).scatter(2, sites.expand(8, -1, -1), values)
    log_p = evaluate(codes.flatten(0, 1)).reshape(8, TRIPLES)
    differences = ((-1.0) ** corners.sum(2) * log_p).sum(0)
    scale = max(1.0, float(log_p.abs().max()))
    return not (log_p.isfinite().all() and differences.abs().max() <= 40 * evaluate.eps * scale)


class _Evaluation:
    r"""A log density of events by their codes (n, N), in float64 where it can be."""

    def __init__(
        self, log_density: Callable[[Tensor], Tensor], support: Discrete, like: Tensor
    ) -> None:
        self.log_density, self.support = log_density, support
        self.device, self.dtype = like.device, torch.float64
        codes = torch.zeros(2, support.size, dtype=torch.long)
        try:
            log_p = self._log_density(codes)
        except (RuntimeError, TypeError):  # its own tensors are of another type
            self.dtype = torch.float32 if like.dtype == torch.float64 else like.dtype
            log_p = self._log_density(codes)
        self.eps = torch.finfo(log_p.dtype).eps

    def __call__(self, codes: Tensor) -> Tensor:
        rows = max(1, EVALUATED_TOGETHER // self.support.size)
        return torch.cat([self._log_density(part).double().cpu() for part in codes.split(rows)])

    def at(self, sites: Tensor, values: Tensor, end: float) -> Tensor | None:
        r"""log p̃ (n,) of first values but for some sites (k, n), which have values (k, n).

        None where it would not end before a time on the monotonic clock.
        """
        rows, parts = max(1, EVALUATED_TOGETHER // self.support.size), list[Tensor]()
        began, count = time.monotonic(), math.ceil(sites.shape[1] / rows)
        for site, value in zip(sites.split(rows, 1), values.split(rows, 1), strict=True):
            codes = torch.zeros(site.shape[1], self.support.size, dtype=torch.long)
            parts.append(self(codes.scatter_(1, site.T, value.T)))
            if (time.monotonic() - began) / len(parts) * count > end - began:
                return None
        return torch.cat(parts)

    def _log_density(self, codes: Tensor) -> Tensor:
        x = self.support.decode(codes.to(self.device, self.dtype))
        return self.log_density(x.reshape(-1, *self.support.shape))
