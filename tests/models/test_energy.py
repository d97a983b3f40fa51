r"""Energies as targets: sign and temperature, kernels, the annealing path, and refusals."""

from __future__ import annotations

import itertools
import math

import pytest
import scipy.stats
import torch
from torch import Tensor, nn

import limbeck as lb
from limbeck.models.energy import Energy
from limbeck.normalization.paths import SitePath
from limbeck.samplers.chains import Target
from limbeck.supports import Binary, Real, Spins, States
from tests.refusals import refused

DOUBLE = torch.float64


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def ring(x: Tensor) -> Tensor:
    r"""A ring of spins in a field."""
    return -(x * x.roll(1, 1)).sum(1) - 0.3 * x.sum(1)


class Quadratic(nn.Module):
    def __init__(self):
        super().__init__()
        self.couplings = nn.Parameter(torch.randn(4, 4, dtype=DOUBLE, generator=generator(1)))

    def forward(self, x):
        return ((x @ self.couplings) * x).sum(1)


def number(x: Tensor, support) -> Tensor:
    codes = support.encode(x.reshape(len(x), -1)).long()
    return codes @ (support.count ** torch.arange(support.size - 1, -1, -1))


def chi_square(x: Tensor, target) -> float:
    r"""The p-value of independent samples x under the target's own probabilities."""
    support = target.support
    events = support.enumerate(0, support.count**support.size, dtype=x.dtype)
    p = target.log_unnormalized(events).double().softmax(0).detach()
    found = torch.bincount(number(x, support), minlength=len(p)).double()
    return scipy.stats.chisquare(found, p * len(x)).pvalue


def test_low_energies_are_likely_and_temperature_divides():
    energy = Energy(ring, Spins(4), temperature=2.5)
    x = Spins(4).enumerate(0, 16)
    torch.testing.assert_close(energy.log_unnormalized(x), -ring(x) / 2.5)
    torch.testing.assert_close(energy(x), -ring(x) / 2.5)
    assert energy.log_unnormalized(x).argmax() == 15, "all up"
    assert isinstance(energy, Target)
    assert energy.exact
    assert not Energy(ring, Spins(4), exact=False).exact


@pytest.mark.parametrize(
    "energy",
    [
        Energy(ring, Spins(4), temperature=1.5),
        Energy(Quadratic(), Binary(4), temperature=3.0),
        Energy(lambda x: (x[:, 0] - 2 * x[:, 1]).abs(), States(4, 2)),
    ],
    ids=["spins", "module", "states"],
)
def test_chains_come_to_the_density(energy):
    x = energy.support.start(2000, generator(3), dtype=DOUBLE)
    x = energy.advance(x, 30, generator(4))
    assert chi_square(x, energy) > 1e-3
    assert chi_square(energy.support.start(2000, generator(3)).double(), energy) < 1e-6


def test_sweeps_one_by_one_or_together():
    energy, x = Energy(ring, Spins(4)), Spins(4).start(9, generator())
    before, g = x.clone(), generator(1)
    one_by_one = energy.advance(energy.advance(x, 1, g), 2, g)
    assert torch.equal(energy.advance(x, 3, generator(1)), one_by_one)
    assert torch.equal(x, before)
    assert torch.equal(energy.advance(x, 0), x)


def test_the_users_own_sweeps_are_used_for_the_target_and_not_for_its_powers():
    calls = []

    def still(x, sweeps, generator):
        calls.append((sweeps, generator))
        return x.clone()

    energy, g = Energy(ring, Spins(4), advance=still), generator()
    x = Spins(4).start(50, generator(1))
    assert torch.equal(energy.advance(x, 7, g), x)
    assert calls == [(7, g)]
    assert not torch.equal(SitePath(energy, Spins(4)).advance(x, 0.5, g), x)
    assert len(calls) == 1


def test_the_path_goes_from_uniform_to_the_target():
    energy = Energy(ring, Spins(4), temperature=1.3)
    path, x = SitePath(energy, Spins(4)), Spins(4).enumerate(0, 16, dtype=DOUBLE)
    assert path.log_z == pytest.approx(4 * math.log(2))
    base, log = path.parts(x)
    torch.testing.assert_close(base, torch.zeros(16, dtype=DOUBLE))
    torch.testing.assert_close(log, -ring(x) / 1.3)
    assert (
        chi_square(path.sample(3000, generator()), Energy(lambda x: 0 * x.sum(1), Spins(4))) > 0.001
    )
    gain, moved = path.climb(x, 0.2, 0.7, generator(5))
    torch.testing.assert_close(gain, -0.5 * ring(x) / 1.3)
    assert torch.equal(moved, path.advance(x, 0.7, generator(5)))


def test_the_kernels_of_the_path_leave_its_densities_invariant():
    energy, beta = Energy(ring, Spins(4)), 0.6
    start = torch.multinomial(
        (-beta * ring(Spins(4).enumerate(0, 16))).softmax(0), 5000, True, generator=generator(6)
    )
    x = Spins(4).enumerate(0, 16, dtype=DOUBLE)[start]
    x = SitePath(energy, Spins(4)).advance(x, beta, generator(7))
    assert chi_square(x, Energy(ring, Spins(4), temperature=1 / beta)) > 1e-3


def test_annealing_by_hand_finds_the_exact_constant():
    energy = Energy(Quadratic(), Binary(4))
    path, g, betas = SitePath(energy, Binary(4)), generator(8), torch.linspace(0, 1, 21).tolist()
    x, weight = path.sample(4000, g), torch.zeros(4000, dtype=DOUBLE)
    assert x.dtype == DOUBLE, "the type that the energy computes with"
    for before, after in itertools.pairwise(betas):
        gain, x = path.climb(x, before, after, g)
        weight += gain
    found = path.log_z + weight.logsumexp(0).item() - math.log(4000)
    exact = energy.log_unnormalized(Binary(4).enumerate(0, 16, dtype=DOUBLE)).logsumexp(0).item()
    assert found == pytest.approx(exact, abs=0.05)


def test_forbidden_events_on_the_path():
    def no_neighbours(x):
        return torch.where((x * x.roll(1, 1)).sum(1) > 0, math.inf, -x.sum(1))

    energy = Energy(no_neighbours, Binary(5))
    path, x = SitePath(energy, Binary(5)), Binary(5).enumerate(0, 32)
    for before in (0.0, 0.5):
        gain, moved = path.climb(x, before, 1.0, generator())
        assert not gain.isnan().any()
        assert ((gain == -math.inf) == (no_neighbours(x) == math.inf)).all()
        assert not moved.isnan().any()
    x = energy.advance(torch.zeros(4000, 5), 40, generator())
    assert no_neighbours(x).isfinite().all()


@pytest.mark.slow
def test_it_is_a_teacher_on_values_and_on_derivatives():
    class Bell(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean = nn.Parameter(torch.zeros(2))

        def log_prob(self, x):
            return -(x - self.mean).square().sum(1) / 2 - math.log(2 * math.pi)

    def bowl(x):
        return (x - 1.5).square().sum(1)

    inputs = lb.inputs.Noise(2, scale=2.0)
    error = lb.losses.log_density_error(math.log(2 * math.pi))
    for engine, loss in (("eager", lb.losses.score_matching()), ("compiled", error)):
        student = Bell()
        energy = Energy(bowl, Real(2), temperature=2.0)
        options = dict(steps=300, lr=0.05, engine=engine, device="cpu", progress=False)
        result = lb.distill(energy, student, inputs, loss, **options)
        assert result.engine == engine
        torch.testing.assert_close(student.mean.detach(), torch.full((2,), 1.5), atol=0.05, rtol=0)


def test_numbers_move_by_slice_sampling_unasked():
    scale = torch.tensor([[0.2, 1.0], [1.0, 5.0]], dtype=torch.float64)
    energy = Energy(lambda x: (x / scale).square().sum((1, 2)), Real(2, 2), temperature=2.0)
    start = torch.zeros(2000, 2, 2, dtype=torch.float64)
    moved = energy.advance(start, 8, torch.Generator().manual_seed(0))
    assert not start.any()
    torch.testing.assert_close(moved.std(0), scale, rtol=0.1, atol=0)  # known to 1.6%
    assert (moved.mean(0) / scale).abs().max() < 0.1
    torch.testing.assert_close(moved, energy.advance(start, 8, torch.Generator().manual_seed(0)))
    assert energy.advance(start, 0) is not start
    assert energy.advance(start, 1).any()  # without a generator too


REFUSED = {
    "no function": (lambda: Energy(3, Binary(2)), "fn", "^a int$", ""),
    "no support": (lambda: Energy(ring, 784), "support", "^784$", ""),
    "cold": (lambda: Energy(ring, Binary(2), 0), "temperature", "^0$", ""),
    "negative": (lambda: Energy(ring, Binary(2), -1.0), "temperature", "^-1.0$", ""),
    "infinite": (lambda: Energy(ring, Binary(2), math.inf), "temperature", "^inf$", ""),
    "advance is no function": (
        lambda: Energy(ring, Binary(2), advance=1),
        "advance",
        "^1: .*not a callable",
        "",
    ),
    "advance without sweeps": (
        lambda: Energy(ring, Binary(2), advance=lambda x: x),
        "advance",
        "function.*: too many positional arguments",
        r"advance\(x, sweeps, generator\)",
    ),
    "a sum over all": (
        lambda: Energy(torch.sum, Binary(2))(torch.zeros(3, 2)),
        "fn",
        r"a Tensor of shape \(\)",
        r"shape \(3,\)",
    ),
    "a column": (
        lambda: Energy(lambda x: x[:, :1], Binary(2))(torch.zeros(3, 2)),
        "fn",
        r"a Tensor of shape \(3, 1\)",
        "",
    ),
    "a number": (
        lambda: Energy(lambda x: 1.0, Binary(2))(torch.zeros(3, 2)),
        "fn",
        "a float",
        "",
    ),
    "NaN": (
        lambda: Energy(lambda x: x.sum(1) * math.nan, Binary(2)).advance(torch.zeros(3, 2)),
        "fn",
        "energies that are NaN or −∞",
        "",
    ),
    "chains of another shape": (
        lambda: Energy(ring, Binary(2), advance=lambda x, s, g: x[:1]).advance(torch.zeros(3, 2)),
        "advance",
        r"a tensor \(1, 2\)",
        r"chains as it was given them, \(3, 2\)",
    ),
    "chains that are none": (
        lambda: Energy(ring, Binary(2), advance=lambda x, s, g: None).advance(torch.zeros(3, 2)),
        "advance",
        "a NoneType",
        "",
    ),
    "sweeps back in time": (
        lambda: Energy(ring, Binary(2)).advance(torch.zeros(3, 2), -1),
        "sweeps",
        "^-1$",
        "",
    ),
    "real numbers site by site": (
        lambda: Energy(ring, Real(2)).sites(torch.zeros(3, 2)),
        "advance",
        r"None over Real\(2\)",
        r"advance\(x, sweeps, generator\)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_say_what_came_and_what_is_accepted(case):
    make, argument, received, expected = REFUSED[case]
    with refused(argument, received, expected=expected):
        make()


def test_sparse_chains_and_known_log_densities_of_others_are_refused():
    energy = lb.Energy(lambda x: x.square().sum(1), support=lb.Binary(3))
    with refused("x", "torch.sparse_coo"):
        energy.advance(torch.zeros(2, 3).to_sparse())
    with refused("known", r"shape \(2, 3\)"):
        energy.sites(torch.zeros(2, 3), known=torch.zeros(2, 3))
