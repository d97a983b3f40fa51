r"""Targets of the user's own that are not what they seem.

An argument called `beta` that was taken for limbeck's multiplier; an energy with dropout, noise or
batch statistics, which is another one at every call. Each gave a trusted number that was wrong.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributions import Bernoulli

import limbeck as lb
from tests.normalization.small import RBMPath
from tests.refusals import refused

SIDE, TEMPERATURE = 4, 2.269
BLACK = ((torch.arange(SIDE)[:, None] + torch.arange(SIDE)) % 2).bool()


def lattice(x):
    return -(x * x.roll(1, 1) + x * x.roll(1, 2)).sum((1, 2))


def heat_bath(x, sweeps, generator, inverse):
    r"""Sweeps of a checkerboard, which leave exp(−inverse · lattice) invariant."""
    for _ in range(sweeps):
        for half in (BLACK, ~BLACK):
            field = x.roll(1, 1) + x.roll(-1, 1) + x.roll(1, 2) + x.roll(-1, 2)
            up = torch.rand(x.shape, generator=generator) < torch.sigmoid(2 * inverse * field)
            x = torch.where(half, 2.0 * up - 1, x)
    return x


def ising(advance=None, **settings):
    support = lb.Spins(SIDE, SIDE)
    return lb.Energy(lattice, support, temperature=TEMPERATURE, advance=advance, **settings)


def annealed(target, **settings):
    settings = {"samples": 300, "schedule": 100, "progress": False} | settings
    return lb.log_partition(target, method="ais", **settings)


def tempered(target):
    return lb.log_partition(target, method="tempering", samples=2000, progress=False)


def physical(x, sweeps, generator, beta=1 / TEMPERATURE):
    return heat_bath(x, sweeps, generator, beta)


def multiplied(x, sweeps, generator, beta=1.0):
    return heat_bath(x, sweeps, generator, beta / TEMPERATURE)


@pytest.mark.parametrize("advance", [None, physical, multiplied])
@pytest.mark.parametrize("method", ["ais", "tempering"])
def test_an_argument_called_beta_is_left_alone(advance, method):
    exact = lb.exact_log_z(ising(), progress=False)
    target = ising(advance)
    z = annealed(target, samples=500) if method == "ais" else tempered(target)
    assert z.verdict.trustworthy, z.verdict
    assert z.value == pytest.approx(exact, abs=4.5 * z.std_error)


def test_an_advance_without_the_generator_is_refused():
    def global_numbers(x, sweeps, generator):
        return heat_bath(x, sweeps, None, 1 / TEMPERATURE)

    with refused("advance", "runs would not repeat"):
        annealed(ising(global_numbers), samples=500)


def test_a_path_that_does_not_end_at_the_target_is_refused():
    one, other = (lb.RBM.random(6, 4, 1.0, torch.Generator().manual_seed(k)) for k in (0, 1))
    with refused("path", "not that of the target"):
        annealed(one, path=RBMPath(other))
    assert annealed(one, path=RBMPath(one)).value == pytest.approx(lb.exact_log_z(one), abs=0.3)


# Energies that are another one at every call


class Net(nn.Module):
    r"""An energy of eight bits with one layer in the middle that depends on the mode."""

    def __init__(self, layer):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(8, 16), layer, nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x):
        return 2 * self.layers(x)[:, 0]


LAYERS = {"dropout": lambda: nn.Dropout(0.3), "batch norm": lambda: nn.BatchNorm1d(16)}
COINS = Bernoulli(torch.full((8,), 0.5))


def estimated(target, method):
    settings = {"samples": 1000, "burn_in": 20, "schedule": 50, "progress": False}
    return lb.log_partition(target, COINS, method=method, **settings)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_module_is_in_eval_mode_for_the_time_of_the_estimate(layer):
    net = Net(LAYERS[layer]())
    target = lb.Energy(net, lb.Binary(8))
    state = {name: value.clone() for name, value in net.state_dict().items()}
    exact = [estimated(target, "exact").value for _ in range(2)]
    assert exact[0] == exact[1]
    events = lb.Binary(8).enumerate(0, 256)
    net.eval()
    with torch.no_grad():
        assert exact[0] == pytest.approx(float((-net(events)).logsumexp(0)), abs=1e-4)
    net.train()
    for method in ("bridge", "importance", "ais"):
        z = estimated(target, method)
        assert z.verdict.trustworthy, z.verdict
        assert z.value == pytest.approx(exact[0], abs=4.5 * z.std_error)
    lb.normalize(target, steps=3, chains=20, batch_size=10, burn_in=2, progress=False)
    assert all(module.training for module in net.modules())
    for name, value in net.state_dict().items():  # nor have batch statistics changed
        assert torch.equal(value.cpu(), state[name].cpu()), name


def noisy(x):
    return x.sum(1) + 0.1 * torch.randn(len(x))


def rarely_noisy(x):
    return x.sum(1) + (torch.rand(len(x)) < 0.05)


def of_the_batch(x):
    return x.sum(1) - x.mean()


class Counting:
    r"""An energy that grows a little at every call."""

    def __init__(self):
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        return x.sum(1) + 0.01 * self.calls


def functions():
    net, norm = Net(nn.Dropout(0.3)), Net(nn.BatchNorm1d(16))
    return [lambda x: net(x), lambda x: norm(x), noisy, rarely_noisy, of_the_batch, Counting()]


@pytest.mark.parametrize("method", ["exact", "bridge", "importance", "ais"])
@pytest.mark.parametrize("which", range(6))
def test_an_energy_that_changes_from_call_to_call_is_refused(which, method):
    torch.manual_seed(1)
    target = lb.Energy(functions()[which], lb.Binary(8))
    with refused("target", "log densities that d(iffer|epend)"):
        estimated(target, method)


@pytest.mark.parametrize("which", range(6))
def test_neither_is_it_normalized_or_summed(which):
    torch.manual_seed(1)
    target = lb.Energy(functions()[which], lb.Binary(8))
    for verb in (lb.exact_log_z, lambda target: lb.normalize(target, steps=2, progress=False)):
        with refused("target", "log densities that d"):
            verb(target)


def test_an_energy_that_its_own_sampler_changes_is_refused():
    heat = [1.0]

    def advance(x, sweeps, generator):
        heat[0] *= 1.01
        return (torch.rand(x.shape, generator=generator) < 0.5).to(x)

    target = lb.Energy(lambda x: 0.1 * heat[0] * x.sum(1), lb.Binary(8), advance=advance)
    with refused("target", "log densities that differ"):
        estimated(target, "bridge")


def test_a_proposal_with_dropout_that_nobody_can_switch_off_is_refused():
    class Student:
        r"""Coins whose log probabilities are noisy."""

        def sample(self, n, generator=None):
            return (torch.rand(n, 8, generator=generator) < 0.5).float()

        def log_prob(self, x):
            return COINS.log_prob(x).sum(1) + 0.1 * torch.randn(len(x))

    with refused("proposal", "log densities that differ"):
        lb.log_partition(ising_of_bits(), Student(), method="importance", progress=False)


def ising_of_bits():
    return lb.Energy(lambda x: -(x[:, 1:] * x[:, :-1]).sum(1), lb.Binary(8))
