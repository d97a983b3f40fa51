r"""Chains as inputs: what advances when, exact resumption, and samples of the target."""

from __future__ import annotations

import itertools
import math

import pytest
import scipy.stats
import torch
from torch import Tensor, nn

import limbeck as lb
from limbeck.arrays import Batch
from limbeck.errors import CheckpointError
from limbeck.models.energy import Energy
from limbeck.models.rbm import RBM
from limbeck.samplers import chains as module
from limbeck.samplers.chains import SCHEMES, Chains
from limbeck.supports import Binary, Real, Spins
from tests.refusals import raises_about, refused

CPU, DOUBLE = torch.device("cpu"), torch.float64
every_scheme = pytest.mark.parametrize("scheme", SCHEMES)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


class Counter:
    r"""A chain that counts its own sweeps, and says who was asked for how many."""

    support = Real(1)

    def __init__(self):
        self.calls: list[tuple[int, int]] = []

    def advance(self, x, sweeps=1, generator=None):
        self.calls.append((len(x), sweeps))
        return x + sweeps

    def start(self, n, generator=None):
        return torch.arange(n).float()[:, None] * 1000

    def log_unnormalized(self, x):
        return torch.zeros(len(x))


def rbm(dtype=None) -> RBM:
    return RBM.random(5, 3, scale=1.0, generator=generator(7), dtype=dtype)


def placed(given=0, **options):
    source = Chains(rbm(), 12, burn_in=5, **options)
    source.to(CPU, torch.float32, given)
    return source


def numbers(x: Tensor) -> list[tuple[int, int]]:
    r"""Which chain each row is, and how many sweeps it has made."""
    return [(int(v) // 1000, int(v) % 1000) for v in x[:, 0]]


def test_all_chains_advance_and_a_block_of_them_is_used():
    target = Counter()
    source = Chains(target, 6, scheme="all", sweeps=2, burn_in=13)
    assert numbers(source(4).x) == [(k, 13) for k in range(4)]
    assert target.calls == [(6, 10), (6, 3), (6, 2)]
    assert numbers(source(4).x) == [(k, 15) for k in (4, 5, 0, 1)]
    assert numbers(source(6).x) == [(k, 17) for k in (2, 3, 4, 5, 0, 1)]
    assert source.sweeps_done == 6 * (13 + 3 * 2)


def test_only_the_block_that_is_used_advances():
    target = Counter()
    source = Chains(target, 6, scheme="block", sweeps=3, burn_in=0)
    assert numbers(source(4).x) == [(k, 3) for k in range(4)]
    assert numbers(source(4).x) == [(4, 3), (5, 3), (0, 6), (1, 6)]
    assert numbers(source(6).x) == [(2, 6), (3, 6), (4, 6), (5, 6), (0, 9), (1, 9)]
    assert target.calls == [(4, 3), (4, 3), (6, 3)]
    assert source.sweeps_done == 3 * (4 + 4 + 6)


@every_scheme
def test_the_two_schemes_agree_where_a_chain_gets_as_many_sweeps_between_its_uses(scheme):
    r"""All by 1 or the block by count / n: a chain comes again after the same number."""
    sweeps = 1 if scheme == "all" else 3
    source = Chains(Counter(), 6, scheme=scheme, sweeps=sweeps, burn_in=0)
    seen: dict[int, list[int]] = {}
    for _ in range(9):
        for chain, made in numbers(source(2).x):
            seen.setdefault(chain, []).append(made)
    assert all(b - a == 3 for made in seen.values() for a, b in itertools.pairwise(made))


@every_scheme
def test_batches_stay_as_they_were_when_the_chains_go_on(scheme):
    source = Chains(Counter(), 6, scheme=scheme, burn_in=0)
    first = source.draw(4)
    before = first.clone()
    place = source.x.data_ptr()
    for _ in range(5):
        source.draw(4)
    assert torch.equal(first, before)
    assert source.x.data_ptr() == place, "chains stay where they are in memory"


@every_scheme
@pytest.mark.parametrize("n", [4, 5, 12])
@pytest.mark.parametrize("before", [0, 1, 4])
def test_continues_exactly_from_a_saved_state(scheme, n, before):
    source = placed(3, scheme=scheme)
    for _ in range(before):
        source(n)
    state = source.state_dict()
    kept = {name: tensor.clone() for name, tensor in state.items()}
    expected = [source(n).x for _ in range(6)]
    assert all(torch.equal(state[name], kept[name]) for name in kept)
    other = placed(9, scheme=scheme)
    other(n)
    other.load_state_dict(state)
    assert all(torch.equal(other(n).x, x) for x in expected)
    assert other.sweeps_done == source.sweeps_done


@every_scheme
def test_equal_seeds_give_equal_batches_and_a_probe_does_not_move_on(scheme):
    def drawn(source):
        return torch.stack([source(5).x for _ in range(4)])

    one, other, probed = (placed(s, scheme=scheme) for s in (1, 2, 1))
    looked = probed.probe(8)
    assert isinstance(looked, Batch)
    assert looked.x.shape == (8, 5)
    assert probed.sweeps_done == 0, "a look does not burn in"
    expected = drawn(one)
    assert torch.equal(drawn(probed), expected)
    assert not torch.equal(drawn(other), expected)
    assert torch.equal(drawn(placed(6, scheme=scheme, seed=1)), expected)
    one.to(CPU, torch.float32, 1)
    assert torch.equal(drawn(one), expected), "and starts anew where another run begins"


def test_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    placed()(4)
    assert torch.equal(torch.get_rng_state(), before)


@every_scheme
def test_its_batches_are_samples_of_the_target(scheme):
    target = rbm(DOUBLE)
    source = Chains(target, 300, scheme=scheme, sweeps=10, burn_in=50)
    source.to(CPU, torch.float32, 0)
    x = torch.cat([source(100).x for _ in range(60)])
    assert x.dtype == torch.float32
    assert source.x.dtype == DOUBLE, "chains run in the target's own precision"
    p = target.log_unnormalized(Binary(5).enumerate(0, 32, dtype=DOUBLE)).softmax(0).detach()
    found = torch.bincount(x.long() @ (2 ** torch.arange(4, -1, -1)), minlength=32)
    assert scipy.stats.chisquare(found, p * len(x)).pvalue > 1e-3


def test_given_starts_are_used_in_turn():
    starts = Binary(5).enumerate(3, 6)
    source = Chains(rbm(), 7, burn_in=0, start=starts)
    assert torch.equal(source.probe(7).x, starts[[0, 1, 2, 0, 1, 2, 0]])
    source(7)
    assert torch.equal(starts, Binary(5).enumerate(3, 6)), "and stay as they are"


def test_without_starts_the_support_gives_them():
    target = Energy(lambda x: x.sum((1, 2)), Spins(2, 3))
    source = Chains(target, 50, burn_in=2)
    x = source.probe(50).x
    assert x.shape == (50, 2, 3)
    assert set(x.unique().tolist()) == {-1.0, 1.0}


def test_burn_in_shows_a_bar_where_it_is_wanted(monkeypatch):
    labels = []

    def tracked(blocks, label, progress):
        labels.append((label, progress, list(blocks)))
        return blocks

    monkeypatch.setattr(module, "tracked", tracked)
    source = Chains(rbm(), 3, burn_in=25, progress=False)
    source(2), source(2)
    assert labels == [("burning in", False, [0, 10, 20])]


@every_scheme
@pytest.mark.parametrize("stop", [3, 7])
def test_an_interrupted_distillation_ends_bit_for_bit_where_another_ends(scheme, stop, tmp_path):
    class Bits(nn.Module):
        def __init__(self):
            super().__init__()
            self.logits = nn.Parameter(torch.zeros(5))

        def log_prob(self, x):
            return torch.distributions.Bernoulli(logits=self.logits).log_prob(x).sum(1)

    def run(steps, **options):
        student = Bits()
        source = Chains(rbm(), 12, scheme=scheme, burn_in=5)
        common = dict(batch_size=5, device="cpu", engine="eager", schedule="constant")
        lb.distill(rbm(), student, source, "kl", steps=steps, **common, **options)
        return student.logits.detach(), source

    expected, source = run(11)
    run(stop, checkpoint=tmp_path / "run")
    found, resumed = run(11, checkpoint=tmp_path / "run")
    assert torch.equal(found, expected)
    assert resumed.sweeps_done == source.sweeps_done
    assert torch.equal(resumed.x, source.x)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"chains": 11}, "chains was 12 and is 11"),
        ({"scheme": "block"}, "scheme was 'all' and is 'block'"),
        ({"sweeps": 2}, "sweeps was 1 and is 2"),
        ({"burn_in": 1}, "burn_in was 5 and is 1"),
    ],
)
def test_a_state_of_other_chains_is_refused(changed, message):
    state = placed().state_dict()
    with raises_about(CheckpointError, message):
        Chains(rbm(), **{"chains": 12, "burn_in": 5} | changed).load_state_dict(state)


class Away(Counter):
    r"""Gives events that its support does not have."""

    support = Binary(1)

    def start(self, n, generator=None):
        return torch.zeros(n, 1)


class Shrinking(Counter):
    def advance(self, x, sweeps=1, generator=None):
        return x[:1]


class Nowhere(Counter):
    def log_unnormalized(self, x):
        return torch.full((len(x),), -math.inf)


REFUSED = {
    "no target": (
        lambda: Chains(torch.zeros(3)),
        "target",
        "an object of type Tensor",
        "",
    ),
    "scheme": (
        lambda: Chains(rbm(), scheme="blok"),
        "scheme",
        "'blok'",
        "mean 'block'",
    ),
    "no chains": (lambda: Chains(rbm(), 0), "chains", "^0$", ""),
    "no sweeps": (lambda: Chains(rbm(), sweeps=0), "sweeps", "^0$", ""),
    "burn-in": (lambda: Chains(rbm(), burn_in=-1), "burn_in", "^-1$", ""),
    "starts": (
        lambda: Chains(rbm(), start=torch.full((3, 5), 0.5)),
        "start",
        "15 values such as 0.5",
        "0 and 1",
    ),
    "starts of another shape": (
        lambda: Chains(rbm(), start=torch.ones(3, 4)),
        "start",
        "^shape",
        "",
    ),
    "no starts": (
        lambda: Chains(rbm(), start=torch.ones(0, 5)),
        "start",
        "^0 events$",
        "",
    ),
    "a batch beyond the chains": (
        lambda: Chains(rbm(), 5, burn_in=0)(6),
        "batch_size",
        "^6$",
        "at most 5, the number of chains",
    ),
    "outside the support": (
        lambda: Chains(Away(), 5, burn_in=3)(2),
        "target.advance",
        "5 values such as 3",
        "0 and 1",
    ),
    "another number of chains": (
        lambda: Chains(Shrinking(), 5, burn_in=3)(2),
        "target",
        r"chains of shape \(1, 1\) from advance",
        r"the shape given, \(5, 1\)",
    ),
    "no mass": (
        lambda: Chains(Nowhere(), 5, burn_in=0)(2),
        "target",
        "a log density that is not finite at 5 of 5 chains",
        "",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_say_what_came_and_what_is_accepted(case):
    make, argument, received, expected = REFUSED[case]
    with refused(argument, received, expected=expected):
        make()


@every_scheme
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_does_all_of_it_on_an_accelerator(scheme):
    def moved(seed):
        source = Chains(rbm(), 12, scheme=scheme, burn_in=5)
        source.to(torch.device("cuda"), torch.float32, seed)
        return source

    source = moved(3)
    first = [source(5).x for _ in range(3)]
    assert all(x.device.type == "cuda" for x in first)
    again = moved(3)
    assert all(torch.equal(again(5).x, x) for x in first)
    state = {name: tensor.cpu() for name, tensor in source.state_dict().items()}
    after = [source(5).x for _ in range(3)]
    other = moved(9)
    other.load_state_dict(state)
    assert all(torch.equal(other(5).x, x) for x in after)
