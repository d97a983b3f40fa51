r"""Bounds: means of log p̃ − log q on the right side of log Z, with the right errors."""

from __future__ import annotations

import math

import pytest
import torch

from limbeck.normalization.estimate import mean_bound
from limbeck.samplers.diagnostics import effective_size
from tests.normalization.small import generator, random_rbm, student, table


def test_means_are_log_z_less_and_more_the_two_divergences():
    rbm = random_rbm(scale=1.0)
    _x, log, log_z = table(rbm)
    q = student(rbm, noise=0.3)
    ratio, p = log - q.log_q, (log - log_z).exp()
    lower, upper = float(q.log_q.exp() @ ratio), float(p @ ratio)
    assert lower < log_z < upper
    z = []
    for seed in range(100):
        n = 300
        at_q = mean_bound(ratio[q.log_q.exp().multinomial(n, True, generator=generator(seed))])
        at_p = mean_bound(ratio[p.multinomial(n, True, generator=generator(1000 + seed))])
        z += [(at_q - lower) / at_q.std_error, (at_p - upper) / at_p.std_error]
    assert torch.tensor(z).mean() == pytest.approx(0, abs=0.25)
    assert torch.tensor(z).std() == pytest.approx(1, abs=0.2)


def test_errors_take_the_effective_size():
    r = torch.randn(5, 20, generator=generator()).repeat_interleave(4, 1)
    error = float(r.std()) / math.sqrt(effective_size(r))
    assert mean_bound(r).std_error == pytest.approx(error)
    assert error > 1.5 * mean_bound(r.flatten()).std_error


def test_missing_mass_makes_a_bound_useless():
    assert mean_bound(torch.tensor([1.0, -math.inf])) == -math.inf
    assert mean_bound(torch.tensor([1.0, math.inf])) == math.inf
    assert mean_bound(torch.tensor([1.0, math.inf])).std_error == math.inf
    assert mean_bound(torch.tensor([2.0])).std_error == math.inf
