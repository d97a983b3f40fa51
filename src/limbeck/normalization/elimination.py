r"""Exact log Z of targets whose sites interact in pairs: sites are summed out one by one."""

from __future__ import annotations

import heapq
import math
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from limbeck.evaluation import evaluating
from limbeck.models.rbm import RBM
from limbeck.normalization.densities import Densities, place_of
from limbeck.normalization.mode_search import ModeSearch
from limbeck.progress import tracked
from limbeck.samplers.chains import Target
from limbeck.samplers.pairwise import RANDOM_EVENTS, Pairwise
from limbeck.supports import Discrete

ENTRY_SECONDS = 3e-8  # of an entry of a table, about
CHAINS, SWEEPS = 200, 200  # of the events at which couplings are compared with the target

Factor = tuple[tuple[int, ...], Tensor]  # sites, and a table with one axis of q values for each


@dataclass(frozen=True)
class Elimination:
    r"""An order of the sites of a target in which they are summed out.

    Attributes:
        pairs: The target's couplings, in float64.
        order: The sites.
        largest_table: The number of entries of the largest table.
        compared: The number of events at which couplings and target agree.
        hurried: Whether there was no time to compare them where climbs lead.
    """

    pairs: Pairwise
    order: list[int]
    largest_table: int
    compared: int
    hurried: bool = False

    def log_z(self, progress: bool = True) -> float:
        r"""log Z: each site is summed out of the product of the tables that it occurs in."""
        pairs, q = self.pairs, self.pairs.support.count
        n, others = pairs.support.size, q - 1
        fields = pairs.fields.reshape(n, others)
        couplings = pairs.couplings.reshape(n, others, n, others)
        place = {site: k for k, site in enumerate(self.order)}
        factors: dict[int, list[Factor]] = {site: [] for site in place}  # by what is summed first

        def add(sites: tuple[int, ...], table: Tensor) -> None:
            factors[min(sites, key=place.__getitem__)].append((sites, table))

        for one in range(n):
            add((one,), F.pad(fields[one], (1, 0)))
            for other in (couplings[one] != 0).any(2).any(0).nonzero()[:, 0].tolist():
                if one < other:
                    add((one, other), F.pad(couplings[one, :, other], (1, 0, 1, 0)))
        total = fields.new_tensor(pairs.constant)
        for site in tracked(self.order, "summing sites out", progress):
            tables = factors.pop(site)
            rest = {s for sites, _ in tables for s in sites} - {site}
            axes = (site, *sorted(rest, key=place.__getitem__))
            product = fields.new_zeros([q] * len(axes))
            for sites, table in tables:
                in_order = sorted(range(len(sites)), key=lambda k: axes.index(sites[k]))
                shape = [q if axis in sites else 1 for axis in axes]
                product += table.permute(in_order).reshape(shape)
            summed = product.logsumexp(0)
            if len(axes) > 1:
                add(axes[1:], summed)
            else:
                total = total + summed
        return float(total)


def find_elimination(target: Target, limit: int, end: float = math.inf) -> Elimination | None:
    r"""How to sum a discrete target's sites out, with tables of at most `limit` entries.

    None if its sites do not interact in pairs, if tables are larger, if sums would not end before a
    time on the monotonic clock, or for few events, all of which may be summed as they are.
    """
    support = getattr(target, "support", None)
    if not isinstance(support, Discrete) or isinstance(target, RBM):
        return None
    if support.count**support.size <= limit:
        return None
    with torch.no_grad(), evaluating(target):
        like = torch.empty(0, dtype=torch.float64, device=place_of(target)[0])
        pairs = Pairwise.of(target.log_unnormalized, support, like, end)
        if pairs is None:
            return None
        order, largest, entries = _order(pairs, limit)
        if support.count**largest > limit or entries * ENTRY_SECONDS > end - time.monotonic():
            return None
        compared, hurried = _compare(target, pairs, end)
    if not compared:
        return None
    return Elimination(pairs, order, support.count**largest, compared, hurried)


def _order(pairs: Pairwise, limit: int) -> tuple[list[int], int, int]:
    r"""Sites in an order that keeps tables small, the sites of the largest, and all entries.

    The site that connects the fewest pairs of neighbours anew comes first. It stops where a table
    has more entries than `limit`.
    """
    q, n, others = pairs.support.count, pairs.support.size, pairs.support.count - 1
    coupled = (pairs.couplings.reshape(n, others, n, others) != 0).any(3).any(1)
    near = {site: set(row.nonzero()[:, 0].tolist()) for site, row in enumerate(coupled)}
    order, largest, entries = list[int](), min(map(len, near.values())) + 1, 0
    if q**largest > limit:
        return order, largest, entries

    def cost(site: int) -> tuple[int, int, int]:
        around = near[site]
        return sum(len(around - near[other]) - 1 for other in around), len(around), site

    costs = {site: cost(site) for site in near}
    queue = sorted(costs.values())
    while queue and q**largest <= limit:
        site = (first := heapq.heappop(queue))[2]
        if costs.get(site) != first:  # it has changed, or is in the order
            continue
        del costs[site]
        around = near.pop(site)
        largest, entries = max(largest, len(around) + 1), entries + q ** (len(around) + 1)
        for other in around:
            near[other] |= around
            near[other] -= {site, other}
        for changed in around.union(*(near[other] for other in around)):
            costs[changed] = cost(changed)
            heapq.heappush(queue, costs[changed])
        order.append(site)
    return order, largest, entries


def _compare(target: Target, pairs: Pairwise, end: float) -> tuple[int, bool]:
    r"""The number of events at which couplings and target were compared; 0 if they differ.

    They are where chains of the couplings are, and where climbs of the target itself lead to.
    The second value is whether there was no time for climbs.
    """
    densities = Densities(target)
    densities.deadline = end
    generator = densities.generator("couplings")
    x = pairs.support.start(CHAINS, generator, densities.device, densities.dtype)
    x = pairs.to(x).sweep(x, SWEEPS, generator)
    search = ModeSearch(densities, x)
    x = torch.cat([x, search.likely_events()[1]])
    if not pairs.to(x).agrees(x, target.log_unnormalized(x)):
        return 0, False
    return RANDOM_EVENTS + len(x), search.hurried
