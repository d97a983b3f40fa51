r"""Streams: which draws come, what is kept, how they end, and going on after an interruption."""

from __future__ import annotations

import math
import tracemalloc
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from limbeck.errors import ArgumentError, CheckpointError, LimbeckError
from limbeck.posteriors.read import as_draws
from limbeck.posteriors.stream import DIAGNOSED_CHAINS, Stream, StreamBroken, StreamEnded
from limbeck.samplers.diagnostics import r_hat
from limbeck.samplers.slice import Slice
from tests.refusals import raises_about, refused


def numbered(batches, m=4, start=0):
    r"""Draws (chain, time)."""
    for time in range(start, start + batches):
        yield torch.stack([torch.arange(float(m)), torch.full((m,), float(time))], 1)


def normal(seed=0, chains=6):
    return Slice(lambda x: -x.square().sum(1) / 2, torch.zeros(chains, 2), seed=seed)


@settings(deadline=None)
@given(st.integers(0, 5), st.integers(1, 4), st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_parallel_chains(burn_in, thin, sizes):
    stream = Stream(numbered(1000), burn_in=burn_in, thin=thin)
    draws = torch.cat([stream.next(n) for n in sizes])
    total = sum(sizes)
    index = torch.arange(total)
    assert torch.equal(draws[:, 0], (index % 4).float())
    assert torch.equal(draws[:, 1], (burn_in + thin * (index // 4)).float())
    assert stream.used == total
    assert stream.batches == burn_in + thin * ((total - 1) // 4) + 1
    assert stream.seen == 4 * stream.batches


@settings(deadline=None)
@given(
    st.integers(0, 9),
    st.integers(1, 5),
    st.lists(st.integers(1, 7), min_size=60, max_size=60),
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
)
def test_draws_that_follow_each_other(burn_in, thin, batches, sizes):
    whole = torch.arange(float(sum(batches)))[:, None]
    stream = Stream(iter(whole.split(batches)), burn_in=burn_in, thin=thin, in_time=True)
    draws = torch.cat([stream.next(n) for n in sizes if stream.used + n <= 10])
    assert torch.equal(draws, whole[burn_in::thin][: len(draws)])


@pytest.mark.parametrize("n", [1, 3, 4, 11])
@pytest.mark.parametrize("used", [0, 2, 4])
def test_a_peek_uses_no_draws(n, used):
    stream = Stream(numbered(10))
    before = [stream.next(used)] if used else []
    draws = stream.peek(n)
    assert stream.used == used
    assert torch.equal(stream.peek(n), draws)
    whole = torch.cat([*before, stream.next(20)])
    assert torch.equal(whole[used : used + n], draws)
    assert torch.equal(whole, Stream(numbered(10)).next(20 + used))
    assert stream.used == 20 + used


def test_variables_by_name():
    batch = {"alpha": np.ones((3, 2, 2)), "k": np.arange(3), "aside": np.full(3, np.nan)}
    stream = as_draws(iter([batch, batch]), var_names="~aside", dtype=torch.float32)
    assert str(stream.structure) == "alpha (2, 2), k ()"
    assert stream.used == 0
    draws = stream.next(4)
    assert draws["alpha"].shape == (4, 2, 2)
    assert draws["k"].tolist() == [0, 1, 2, 0]
    assert draws["k"].dtype == torch.float32
    assert stream.notes == ("k is of whole numbers, which become float32",)


def test_types_and_places():
    stream = as_draws(numbered(9))
    assert stream.next(1).dtype == torch.float32
    assert stream.to(dtype=torch.float64).next(1).dtype == torch.float64
    assert stream.next(9).dtype == torch.float64
    assert as_draws(x.double() for x in numbered(9)).next(1).dtype == torch.float64
    assert as_draws(numbered(9)).to("cpu", torch.float64).next(2).dtype == torch.float64
    with refused("n", "0"):
        stream.next(0)
    with refused("posterior", "a int"):
        as_draws(3)


def test_samplers_step_as_far_as_is_needed():
    sampler = normal(chains=6)
    stream = as_draws(sampler, thin=3)
    assert stream.next(20).shape == (20, 2)
    assert sampler.sweeps_done == 1 + 3 * 3
    other = normal(chains=6)
    steps = [other.step() for _ in range(10)]
    assert torch.equal(as_draws(normal(), thin=3).next(12), torch.cat([steps[0], steps[3]]))


def test_a_sampler_may_reuse_its_memory():
    def in_place():
        x = torch.zeros(2, 1)
        while True:
            yield x
            x += 1

    assert as_draws(in_place()).next(6)[:, 0].tolist() == [0, 0, 1, 1, 2, 2]
    stream = as_draws(in_place())
    first = stream.next(2)
    stream.next(2)
    assert first[:, 0].tolist() == [0, 0]


def test_one_batch_is_in_memory_at_a_time():
    alive, most = [], []

    class Held(np.ndarray):
        pass

    def batches():
        for _ in range(20):
            most.append(sum(reference() is not None for reference in alive))
            batch = np.ones((8, 5)).view(Held)
            alive.append(weakref.ref(batch))
            yield batch
            del batch

    as_draws(batches()).next(160)
    assert most == [0] * 20


def test_memory_does_not_grow_with_the_stream():
    def batches():
        while True:
            yield {"weight": np.ones((50, 20, 1000), np.float32), "bias": np.ones((50, 20))}

    stream, peaks = as_draws(batches()), []
    stream.next(10)
    tracemalloc.start()
    try:
        for draws in (100, 10_000):
            tracemalloc.reset_peak()
            for _ in range(draws // 10):
                stream.next(10)
            peaks.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
    assert peaks[1] < 1.05 * peaks[0]
    assert sum(t.numel() * 8 for t in stream._diagnostics.state_dict().values()) < 20e6


def test_the_end():
    stream = as_draws(numbered(5), thin=2)
    stream.next(10)
    with raises_about(StreamEnded, "5 batches", "20 draws", 10):
        stream.next(3)
    with pytest.raises(StreamEnded) as caught:
        stream.next(1)
    assert (caught.value.used, caught.value.seen) == (10, 20)
    assert issubclass(StreamEnded, LimbeckError)
    with raises_about(StreamEnded, "20 draws", "of which 0"):
        as_draws(numbered(5), burn_in=5).next(1)
    with refused("posterior", "an iterator without a single batch"):
        as_draws(iter([])).next(1)


def test_an_iterator_that_raises():
    def failing():
        yield from numbered(3)
        raise ZeroDivisionError("of mine")

    stream = as_draws(failing())
    stream.next(12)
    for _ in range(2):
        with raises_about(StreamBroken, "ZeroDivisionError: of mine", 3) as e:
            stream.next(1)
        assert isinstance(e.value.__cause__, ZeroDivisionError)
        assert isinstance(e.value, StreamEnded)
        assert e.value.used == 12


GOOD = {"alpha": torch.ones(4, 3), "beta": torch.ones(4)}
BAD_BATCHES = [
    (
        {**GOOD, "beta": torch.full((4,), math.nan)},
        r"\['beta'\] in batch 2: expected .*, got NaN .* 4 of 4 draws",
    ),
    (
        {**GOOD, "alpha": torch.ones(4, 2)},
        r"\['alpha'\] in batch 2: expected .*, got draws of shape \(2,\)",
    ),
    (
        {**GOOD, "beta": torch.ones(3)},
        r"\['beta'\] in batch 2: expected .*, got shape \(3,\) beside others",
    ),
    ({**GOOD, "beta": torch.tensor(1.0)}, r"\['beta'\] in batch 2: expected .*, got shape \(\)"),
    (
        {"alpha": GOOD["alpha"]},
        r"\['beta'\] in batch 2: expected draws of alpha.*, got only 'alpha'",
    ),
    ({**GOOD, "alpha": np.array(["x"])}, r"\['alpha'\] in batch 2: expected .*, got strings"),
    (torch.ones(4, 3), r"\['alpha'\] in batch 2: expected .*, got no names"),
    (
        {name: part[:0] for name, part in GOOD.items()},
        r"in batch 2: expected .*, got shape \(0, 3\)",
    ),
    ((GOOD, 1), "posterior in batch 2: expected .*, got a tuple"),
    (None, "posterior in batch 2: expected .*, got a NoneType"),
]


@pytest.mark.parametrize(("bad", "message"), BAD_BATCHES)
def test_bad_batches(bad, message):
    stream = as_draws(iter([GOOD, bad]))
    stream.next(4)
    for _ in range(2):
        with pytest.raises(StreamBroken, match=message) as caught:
            stream.next(1)
        assert isinstance(caught.value.__cause__, ArgumentError)
        assert caught.value.used == 4
    assert stream.end is caught.value


@pytest.mark.parametrize(
    ("first", "received", "expected"),
    [
        (
            torch.ones(3),
            r"shape \(3,\)",
            r"a single draw as \(1, \.\.\.\)",
        ),
        (torch.ones(2, 3, 4), r"shape \(2, 3, 4\)", ""),
        (
            torch.ones(2, 3, dtype=torch.cfloat),
            "complex64",
            "",
        ),
        (
            torch.full((2, 3), math.nan),
            "NaN .* 2 of 2 draws",
            "",
        ),
        ("posterior.csv", "^a str$", ""),
    ],
)
def test_bad_first_batches(first, received, expected):
    with refused("posterior in batch 1", received, expected=expected):
        as_draws(iter([first])).next(1)


def test_thinned_batches_need_not_be_finite():
    batches = [torch.full((2, 1), math.nan), torch.ones(2, 1)]
    assert as_draws(iter(batches), burn_in=1).next(2).tolist() == [[1], [1]]


@pytest.mark.parametrize("used", [0, 1, 6, 8, 20])
def test_going_on_with_a_sampler(used):
    stream = as_draws(normal(), thin=2, burn_in=3)
    for _ in range(used):
        stream.next(1)
    state = {name: tensor.clone() for name, tensor in stream.state_dict().items()}
    expected, worth = stream.next(40), stream.diagnostics()
    other = as_draws(normal(seed=5), thin=2, burn_in=3)
    other.next(3)
    for again in (stream, as_draws(normal(seed=7), thin=2, burn_in=3), other):
        again.load_state_dict(state)
        assert again.used == used
        assert torch.equal(again.next(40), expected)
        assert torch.equal(again.diagnostics().r_hat, worth.r_hat)


def test_going_on_with_an_iterator():
    stream = as_draws(numbered(100), thin=2)
    stream.next(10)
    state = stream.state_dict()
    expected = stream.next(30)
    again = as_draws(numbered(100), thin=2)
    again.load_state_dict(state)
    assert torch.equal(again.next(30), expected)
    with raises_about(CheckpointError, "batch 5", "batch 19"):
        again.load_state_dict(state)
    fresh = as_draws(numbered(3))
    fresh.load_state_dict(as_draws(numbered(3)).state_dict())
    assert torch.equal(fresh.next(4), next(numbered(1)))
    named = as_draws(iter([{"a": torch.ones(3)}] * 9))
    with raises_about(CheckpointError, "['']", "['a']"):
        named.load_state_dict(state)


def test_diagnostics_on_the_way():
    stream = as_draws(normal(chains=8))
    assert stream.diagnostics() is None
    draws = stream.next(8 * 200).reshape(200, 8, 2)
    found = stream.diagnostics()
    assert found.names == ["draw[0]", "draw[1]"]
    expected = r_hat(draws[: 200 // 64 * 64, :, 0].T)
    assert found.r_hat[0] == pytest.approx(expected, abs=0.02)
    assert found.ess.min() > 0


def test_a_stuck_chain_is_told():
    generator = torch.Generator().manual_seed(0)

    def batches():
        while True:
            x = torch.randn(4, 2, generator=generator)
            x[1] = 0.5
            yield x

    stream = as_draws(batches())
    stream.next(4 * 200)
    assert "1 of 4 chains have not moved" in "; ".join(stream.diagnostics().reasons)


def test_where_diagnostics_cannot_be_told():
    assert as_draws(numbered(9), layout="draws").next(20).shape == (20, 2)
    in_time = as_draws(numbered(9), layout="draws")
    in_time.next(20)
    assert in_time.diagnostics() is None
    uneven = as_draws(iter([torch.ones(3, 1), torch.ones(2, 1), torch.ones(3, 1)]))
    uneven.next(8)
    assert uneven.diagnostics() is None


def test_many_chains_and_coordinates_are_diagnosticsed_in_part():
    wide = as_draws(iter([{"a": torch.ones(1000, 70), "b": torch.ones(1000)}] * 20))
    wide.next(20_000)
    watch = wide._diagnostics
    assert watch._mean.shape[1:] == (DIAGNOSED_CHAINS, 64)
    assert wide.diagnostics().names[0] == "a[0]"
    assert wide.diagnostics().names[-1] == "b"


def test_states_of_emcee_are_batches_of_their_walkers():
    emcee = pytest.importorskip("emcee")
    start = np.random.default_rng(0).normal(size=(8, 2))
    sampler = emcee.EnsembleSampler(8, 2, lambda w: -w @ w / 2)
    found = as_draws(sampler.sample(start, iterations=5), burn_in=1).next(32)
    torch.testing.assert_close(found, torch.tensor(sampler.get_chain()[1:]).reshape(32, 2))
