r"""Stored draws: taken by number, in blocks, as rows, in two parts; and what they are worth."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from limbeck.posteriors.draws import Draws, spread
from limbeck.posteriors.read import as_draws
from limbeck.samplers.diagnostics import effective_size, r_hat

CHAIN, DRAW = np.meshgrid(np.arange(3), np.arange(5), indexing="ij")
PARTS = {
    "place": np.stack([CHAIN, DRAW], -1).astype(np.float32),  # (3, 5, 2)
    "number": torch.arange(15.0).reshape(3, 5),
}
DRAWS = Draws(PARTS)


@settings(deadline=None)
@given(st.lists(st.integers(-15, 14), max_size=6))
def test_draws_by_number(index):
    taken = DRAWS.take(index)
    expected = torch.tensor(index, dtype=torch.float32) % 15
    assert torch.equal(taken["number"], expected)
    assert torch.equal(taken["place"][:, 0] * 5 + taken["place"][:, 1], expected)


def test_other_ways_to_take():
    assert DRAWS.take(7)["place"].tolist() == [1, 2]
    assert DRAWS.take(torch.arange(15) > 12)["number"].tolist() == [13, 14]
    assert DRAWS.take(np.array([3, 3]))["number"].tolist() == [3, 3]
    with pytest.raises(IndexError):
        DRAWS.take([15])


def test_what_is_taken_is_a_copy():
    for part in DRAWS.take([0, 1]).values():
        part.fill_(math.nan)
    assert torch.isfinite(DRAWS.flat).all()


@pytest.mark.parametrize("size", [1, 4, 15, 100])
def test_blocks(size):
    blocks = list(DRAWS.blocks(size))
    assert {len(block["number"]) for block in blocks[:-1]} <= {size}
    assert torch.equal(torch.cat([block["number"] for block in blocks]), torch.arange(15.0))


def test_rows():
    assert len(DRAWS) == 15
    assert DRAWS.flat.shape == (15, 3)
    assert torch.equal(DRAWS.structure.flatten(DRAWS.take(range(15))), DRAWS.flat)
    for index in range(3):
        assert torch.equal(DRAWS.series(index).reshape(15), DRAWS.flat[:, index])


def test_rows_share_the_memory_of_a_single_array():
    array = np.random.default_rng(0).normal(size=(2, 50, 3))
    for given_, expected in (
        (array, array.ctypes.data),
        (array[:1, 10:], array[0, 10:].ctypes.data),
    ):
        assert as_draws(given_).flat.data_ptr() == expected
    tensor = torch.tensor(array)
    assert as_draws(tensor).flat.data_ptr() == tensor.data_ptr()
    assert as_draws({"a": tensor}).flat.data_ptr() == tensor.data_ptr()


def test_to():
    moved = DRAWS.to("cpu", torch.float64)
    assert {part.dtype for part in moved.take([0, 5]).values()} == {torch.float64}
    assert torch.equal(moved.flat, DRAWS.flat.double())
    meta = DRAWS.to("meta")
    assert meta.take([0])["number"].device.type == "meta"


NOISE = torch.randn(4, 200, 3, generator=torch.Generator().manual_seed(0))


def test_diagnostics_are_those_of_each_number():
    found = as_draws({"a": NOISE[..., :2], "b": NOISE[..., 2]}).diagnostics()
    assert found.names == ["a[0]", "a[1]", "b"]
    for index in range(3):
        assert found.r_hat[index] == pytest.approx(r_hat(NOISE[..., index]), rel=1e-9)
        assert found.ess[index] == pytest.approx(effective_size(NOISE[..., index]), rel=1e-9)
    assert found.reasons == []
    assert found.reasons == []


def test_a_stuck_chain_is_told():
    stuck = NOISE.clone()
    stuck[2] = 0.1  # a likely place: R-hat alone would not tell
    found = as_draws({"alpha": stuck}).diagnostics()
    assert found.r_hat.max() < 1.05
    assert "1 of 4 chains are stuck (all draws of alpha[0] are the same there): 2" in "; ".join(
        found.reasons
    )


def test_chains_that_disagree_are_told():
    apart = NOISE.clone()
    apart[1, :, 1] += 10
    found = as_draws(apart).diagnostics()
    assert found.r_hat[1] > 2
    assert found.ess[1] < 20
    assert f"R̂ of draw[1] is {found.r_hat[1]:.3g} (above 1.05 for 1 of 3)" in "; ".join(
        found.reasons
    )


def test_one_chain_that_drifts_is_told():
    drifting = NOISE[0, :, :1] + torch.linspace(0, 5, 200)[:, None]
    assert "R̂ of draw[0]" in "; ".join(as_draws(drifting).diagnostics().reasons)


def test_what_is_constant_by_right_is_no_reason():
    parts = {"a": NOISE, "one": torch.ones(4, 200), "k": torch.zeros(4, 200, dtype=torch.long)}
    parts["k"][1:, ::2] = 1  # discrete, and constant in a chain
    found = as_draws(parts).diagnostics()
    assert not any("stuck" in reason for reason in found.reasons)
    assert found.r_hat[3] == 1


def test_short_chains_say_nothing():
    found = as_draws(NOISE[:, :3], layout="chains").diagnostics()
    assert found.r_hat.isnan().all()
    assert found.reasons == []


def test_a_part_of_many_coordinates():
    wide = torch.randn(2, 10, 5000, generator=torch.Generator().manual_seed(0))
    found = as_draws(wide).diagnostics(most=7)
    assert found.names[0] == "draw[0]"
    assert found.names[-1] == "draw[4999]"
    assert len(found.ess) == 7


@settings(deadline=None)
@given(st.integers(1, 100), st.integers(1, 100))
def test_spread(dim, most):
    chosen = spread(dim, most)
    assert len(set(chosen)) == len(chosen) == min(dim, most)
    assert chosen[0] == 0
    assert chosen[-1] == (dim - 1 if most > 1 else 0)
