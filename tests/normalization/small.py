r"""Small targets with a known log Z, and students of any quality, for the tests of estimates."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import Bernoulli

from limbeck.models.energy import Energy
from limbeck.models.rbm import RBM
from limbeck.supports import Binary, Support

MODES = 16  # bits of the target with two modes
HALF = 16 * math.log1p(math.exp(-4))  # log Z of one of its modes


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_rbm(seed: int = 0, visible: int = 12, hidden: int = 8, scale: float = 0.5) -> RBM:
    return RBM.random(visible, hidden, scale, generator(seed), dtype=torch.float64)


def table(target) -> tuple[Tensor, Tensor, float]:
    r"""All events, their log p̃, and log Z."""
    x = target.support.enumerate(0, 2**target.support.size, dtype=torch.float64)
    with torch.no_grad():
        log = target.log_unnormalized(x)
    return x, log, float(log.logsumexp(0))


class Tabular:
    r"""A student that is any list of log probabilities over bits."""

    def __init__(self, log_q: Tensor, support: Support | None = None) -> None:
        self.log_q = log_q.double() - log_q.double().logsumexp(0)
        size = round(math.log2(len(log_q)))
        self.support = support or Binary(size)
        self.place = 2.0 ** torch.arange(size - 1, -1, -1, dtype=torch.float64)

    def log_prob(self, x: Tensor) -> Tensor:
        return self.log_q[(x.double() @ self.place).long()]

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        rows = torch.multinomial(self.log_q.exp(), n, True, generator=generator)
        return (rows[:, None] // self.place.long() % 2).double()


def student(target, faith: float = 0.0, noise: float = 0.0, seed: int = 0) -> Tabular:
    r"""Independent bits with the right means (faith 0), the target itself (1), or between."""
    x, log, log_z = table(target)
    means = ((log - log_z).exp() @ x).clamp(1e-3, 1 - 1e-3)
    independent = x @ means.log() + (1 - x) @ (1 - means).log()
    rough = noise * torch.randn(len(x), generator=generator(seed), dtype=torch.float64)
    return Tabular((1 - faith) * independent + faith * log + rough)


def two_modes() -> RBM:
    r"""Two modes of equal mass, nearly all zeros and nearly all ones; Gibbs never crosses over."""
    W = torch.full((MODES, 1), 8.0, dtype=torch.float64)
    a = torch.full((MODES,), -4.0, dtype=torch.float64)
    return RBM(W, a, torch.tensor([-4.0 * MODES], dtype=torch.float64))


def one_mode_student() -> Bernoulli:
    r"""Covers the zeros only: of the ones it has e^−64."""
    return Bernoulli(logits=torch.full((MODES,), -4.0, dtype=torch.float64))


class RBMPath:
    r"""p̃(x)^β of an RBM, from independent bits."""

    def __init__(self, rbm: RBM) -> None:
        self.rbm, self.support, self.log_z = rbm, rbm.support, rbm.visible * math.log(2)

    def sample(self, n, generator=None):
        return self.rbm.start(n, generator)

    def log_unnormalized(self, x, beta):
        return beta * self.rbm.log_unnormalized(x).detach()

    def climb(self, x, before, after, generator=None):
        gain = self.log_unnormalized(x, after) - self.log_unnormalized(x, before)
        energy = Energy(lambda x: -self.rbm.log_unnormalized(x), self.support)
        with torch.no_grad():
            return gain, energy.sites(x, 1, generator, beta=after)
