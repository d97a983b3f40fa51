r"""Gibbs sampling site by site, of any density over a discrete support, on many chains."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from limbeck.arguments import Function, Number, UserObject, checked_arguments
from limbeck.arrays import per_row
from limbeck.errors import ArgumentError
from limbeck.supports import Discrete


@torch.no_grad()
@checked_arguments
def sweep(
    log_density: Function[Callable[[Tensor], Tensor]], x: Tensor, support: Discrete,
    generator: torch.Generator | None = None, *, beta: UserObject[float | Tensor] = 1.0,
    known: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    r"""One sweep of chains over all sites: each gets a value from its conditional distribution.

    A sweep leaves exp(β log p̃) invariant. If the log density is NaN or +∞, the chain becomes NaN.

    Arguments:
        log_density: log p̃(x), (n,), of events (n, *shape).
        x: The chains (n, *shape); they are not changed.
        support: The support of x.
        generator: The source of randomness, on the chains' device. Default: torch's own.
        beta: The power β ≥ 0 of the density, or one for each chain (n,). Default: 1.0.
        known: log p̃(x) (n,) of the chains as they are. Default: it is evaluated.

    Returns:
        The new chains (n, *shape) and their log p̃, (n,).
    """
    support.check_shape(x)
    n, q = len(x), support.count
    power = torch.as_tensor(as_power(beta, n), dtype=torch.float64, device=x.device)
    x = x.reshape(n, support.size).clone()
    present = log_density(x.reshape(n, *support.shape)) if known is None else known
    worst = present = per_row(present, n, "log_density" if known is None else "known")
    shifts = torch.arange(1, q, device=x.device, dtype=x.dtype)[:, None]
    for site in range(support.size):
        now = x[:, site].clone()
        values = support.decode((support.encode(now) + shifts) % q)  # (q − 1, n), all but its own
        others = x.repeat(q - 1, 1)
        others[:, site] = values.reshape(-1)
        log = log_density(others.reshape(-1, *support.shape)).reshape(q - 1, n)
        worst = torch.maximum(worst, log.amax(0))  # NaN is larger than anything
        logs = torch.cat([present[None], log])
        # nothing is forbidden at β = 0, where −∞ · 0 would be NaN
        chosen = choose(torch.where(power > 0, logs * power.to(logs), 0.0), generator)[None]
        present = logs.gather(0, chosen)[0]
        x[:, site] = torch.cat([now[None], values]).gather(0, chosen)[0]
    x = torch.where((worst.isnan() | (worst == math.inf))[:, None], math.nan, x)
    return x.reshape(n, *support.shape), present


def choose(logs: Tensor, generator: torch.Generator | None = None) -> Tensor:
    r"""One of q for each of n, in proportion to the exponentials of (q, n); any if all are −∞."""
    at = torch.rand(logs.shape[1], generator=generator, device=logs.device, dtype=logs.dtype)
    if len(logs) == 2:
        return (at < (logs[1] - logs[0]).nan_to_num(0.0).sigmoid()).long()
    top = logs.amax(0)
    weights = torch.where(top == -math.inf, 1.0, (logs - top).exp())
    below = weights.cumsum(0)
    # rounding may lead beyond the last, back to the first
    return (at * below[-1] >= below).sum(0) % len(logs)


def as_power(beta: object, n: int) -> float | Tensor:
    r"""A power β of a density, a number from 0, or one for each of n chains."""
    if not isinstance(beta, Tensor) or beta.dim() == 0:
        return Number(0)("beta", beta, f"a number from 0, or {n} of them")
    known = beta.is_floating_point() and beta.layout == torch.strided and not beta.is_meta
    if not known or beta.shape != (n,) or not (beta >= 0).all() or not beta.isfinite().all():
        received = f"{beta.dtype} of shape {tuple(beta.shape)}"
        raise ArgumentError("beta", received, f"a number from 0, or {n} of them")
    return beta
