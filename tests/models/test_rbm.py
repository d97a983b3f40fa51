r"""The RBM: its density by enumeration, its score, its sweeps, and what it refuses."""

from __future__ import annotations

import itertools
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from limbeck.evaluation import View
from limbeck.models.rbm import RBM
from limbeck.samplers.chains import Target
from limbeck.supports import Binary
from tests.models.nets import DOUBLE, generator, normal
from tests.refusals import refused


def all_bits(size: int) -> torch.Tensor:
    return torch.tensor(list(itertools.product([0.0, 1.0], repeat=size)), dtype=DOUBLE)


def model(visible: int = 4, hidden: int = 3, scale: float = 1.0, seed: int = 0) -> RBM:
    return RBM.random(visible, hidden, scale, generator(seed), dtype=DOUBLE)


def joint(rbm: RBM) -> torch.Tensor:
    r"""xᵀWh + a·x + b·h of all x and h, (2^I, 2^J)."""
    x, h = all_bits(rbm.visible), all_bits(rbm.hidden)
    return (x @ rbm.W @ h.T + (x @ rbm.a)[:, None] + h @ rbm.b).detach()


# the density


@given(visible=st.integers(1, 5), hidden=st.integers(1, 5), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_the_density_is_the_sum_of_the_joint_one(visible: int, hidden: int, seed: int) -> None:
    rbm = model(visible, hidden, 2.0, seed)
    both = joint(rbm)
    torch.testing.assert_close(rbm.log_unnormalized(all_bits(visible)), both.logsumexp(1))
    assert torch.equal(rbm(all_bits(visible)), rbm.log_unnormalized(all_bits(visible)))


def test_conditionals_are_those_of_the_joint_density() -> None:
    rbm = model()
    both = joint(rbm)
    expected = both.softmax(1) @ all_bits(3)
    torch.testing.assert_close(rbm.hidden_probabilities(all_bits(4)).detach(), expected)
    expected = both.softmax(0).T @ all_bits(4)
    torch.testing.assert_close(rbm.visible_probabilities(all_bits(3)).detach(), expected)


def test_large_activations_neither_overflow_nor_vanish() -> None:
    rbm = RBM([[1e4], [-1e4]], [0.0, 0.0], [0.0])
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], requires_grad=True)
    log_p = rbm.log_unnormalized(x)
    torch.testing.assert_close(log_p, torch.tensor([1e4, 0.0, math.log(2)]))
    (gradient,) = torch.autograd.grad(log_p.sum(), x)
    assert gradient.isfinite().all()


def score(rbm: RBM, x: torch.Tensor) -> torch.Tensor:
    return rbm.a + rbm.hidden_probabilities(x) @ rbm.W.T


@pytest.mark.parametrize("x", [all_bits(4), normal(7, 4), normal(1, 4), normal(0, 4)])
def test_the_score_is_the_gradient(x: torch.Tensor) -> None:
    rbm, x = model(), x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(rbm.log_unnormalized(x).sum(), x)
    torch.testing.assert_close(score(rbm, x), expected)
    view = View(rbm, x.detach(), "log_density")
    if len(x):
        torch.testing.assert_close(view.derivatives("density")[:, 0].detach(), expected)


def test_one_event_is_a_number_for_vmap() -> None:
    rbm, x = model(), all_bits(4)
    found = torch.func.vmap(torch.func.grad(rbm.log_unnormalized))(x)
    torch.testing.assert_close(found, score(rbm, x))


# sweeps


def test_it_is_a_target() -> None:
    rbm = model()
    assert isinstance(rbm, Target)
    assert rbm.support == Binary(4)
    assert (rbm.visible, rbm.hidden, rbm.output_form) == (4, 3, "log_density")
    start = rbm.start(3000, generator(1))
    rbm.support.check(start)
    assert start.dtype == DOUBLE
    assert abs(start.mean().item() - 0.5) < 4 * 0.5 / 12000**0.5


def test_a_sweep_has_the_kernel_of_block_gibbs() -> None:
    r"""Σ_h p(x'|h) p(h|x), against the frequencies of one sweep from each of two states."""
    rbm = model(3, 2, 1.5)
    both, n = joint(rbm), 20_000
    kernel = both.softmax(1) @ both.softmax(0).T  # (8, 8)
    for state in (0, 6):
        moved = rbm.advance(all_bits(3)[state].repeat(n, 1), 1, generator(3))
        number = (moved @ torch.tensor([4.0, 2.0, 1.0], dtype=DOUBLE)).long()
        frequency = torch.bincount(number, minlength=8) / n
        error = (kernel[state] * (1 - kernel[state]) / n).sqrt()
        assert ((frequency - kernel[state]).abs() < 4 * error).all()
    p = both.logsumexp(1).softmax(0)
    torch.testing.assert_close(p @ kernel, p)  # which the kernel leaves as it is


def test_many_sweeps_end_at_the_density_from_any_state() -> None:
    rbm, n = model(4, 3, 0.8).float(), 20_000
    x = rbm.advance(torch.zeros(n, 4), 50, generator(5))
    number = (x @ torch.tensor([8.0, 4.0, 2.0, 1.0])).long()
    p = joint(rbm.double()).logsumexp(1).softmax(0)
    error = (p * (1 - p) / n).sqrt()
    assert ((torch.bincount(number, minlength=16) / n - p).abs() < 4.5 * error).all()


def test_a_sweep_gives_a_new_tensor_of_the_same_type() -> None:
    rbm = model(5, 2)
    x = rbm.start(7, generator(0)).float()
    before = x.clone()
    moved = rbm.advance(x, 3, generator(1))
    assert moved.dtype == torch.float32
    assert not moved.requires_grad
    assert torch.equal(x, before)
    assert torch.equal(moved, rbm.advance(x, 3, generator(1)))
    assert not torch.equal(moved, rbm.advance(x, 3, generator(2)))
    still = rbm.advance(x, 0)
    assert torch.equal(still, x)
    assert still is not x
    assert rbm.advance(x[:0], 2).shape == (0, 5)


def test_sweeps_one_by_one_are_sweeps_at_once() -> None:
    rbm, one, other = model(6, 4), generator(1), generator(1)
    x = rbm.start(5, generator(0))
    once = rbm.advance(x, 3, one)
    for _ in range(3):
        x = rbm.advance(x, 1, other)
    assert torch.equal(once, x)


def test_impossible_bits_never_come() -> None:
    rbm = RBM(torch.zeros(2, 1), [-200.0, 200.0], [0.0])
    x = rbm.advance(rbm.start(1000, generator(0)), 1, generator(1))
    assert torch.equal(x, torch.tensor([0.0, 1.0]).expand(1000, 2))


# what it is made of


@pytest.mark.parametrize(
    ("weights", "dtype"),
    [
        (([[1, 2], [3, 4], [5, 6]], [1, 2, 3], [4, 5]), torch.float32),
        (([[1.0, 2], [3, 4], [5, 6]], [1, 2, 3], [4, 5]), torch.float32),
        ((np.arange(6.0).reshape(3, 2), np.zeros(3), np.zeros(2)), DOUBLE),
        ((np.arange(6.0, dtype=">f4").reshape(3, 2), [0, 0, 0], [0, 0]), torch.float32),
        ((np.arange(6).reshape(3, 2), np.zeros(3, bool), [0, 0]), torch.float32),
        ((torch.ones(3, 2), torch.zeros(3), torch.zeros(2, dtype=DOUBLE)), DOUBLE),
        ((torch.ones(3, 2).half(), torch.zeros(3).half(), [0, 0]), torch.float32),
        ((torch.ones(2, 3).T, torch.zeros(3), torch.zeros(2)), torch.float32),
    ],
)
def test_arrays_of_every_kind(weights: tuple, dtype: torch.dtype) -> None:
    rbm = RBM(*weights)
    assert {p.dtype for p in rbm.parameters()} == {dtype}
    assert [tuple(p.shape) for p in (rbm.W, rbm.a, rbm.b)] == [(3, 2), (3,), (2,)]
    np.testing.assert_array_equal(rbm.W.detach().numpy(), np.asarray(weights[0], dtype=float))
    assert rbm.W.is_contiguous()
    assert RBM(*weights, dtype=DOUBLE).W.dtype == DOUBLE
    assert rbm.double().log_unnormalized(torch.zeros(2, 3)).dtype == DOUBLE


def test_the_users_arrays_are_copied() -> None:
    W = torch.ones(3, 2)
    rbm = RBM(W, torch.zeros(3), torch.zeros(2))
    W.zero_()
    assert (rbm.W == 1).all()


def test_random_ones_are_seeded_and_scaled() -> None:
    rbm = RBM.random(60, 50, 0.5, generator(3))
    assert torch.equal(rbm.W, RBM.random(60, 50, 0.5, generator(3)).W)
    assert rbm.W.std().item() == pytest.approx(0.5, rel=0.05)
    assert repr(rbm) == "RBM(visible=60, hidden=50)"


# refusals

GOOD = (torch.zeros(3, 2), torch.zeros(3), torch.zeros(2))
NAN = torch.tensor([0.0, math.nan])


@pytest.mark.parametrize(
    ("weights", "argument", "received", "expected"),
    [
        ((torch.zeros(3), *GOOD[1:]), "W", r"shape \(3,\)", r"shape \(I, J\)"),
        (
            (torch.zeros(2, 3), *GOOD[1:]),
            "W",
            r"shape \(2, 3\), which looks transposed",
            "3, 2",
        ),
        ((GOOD[0], torch.zeros(4), GOOD[2]), "a", r"shape \(4,\)", r"shape \(3,\)"),
        ((GOOD[0], GOOD[1], torch.zeros(3)), "b", r"shape \(3,\)", r"shape \(2,\)"),
        ((GOOD[0], torch.zeros(1, 3), GOOD[2]), "a", r"shape \(1, 3\)", ""),
        ((torch.zeros(0, 2), torch.zeros(0), GOOD[2]), "W", "^no data", ""),
        ((torch.full((3, 2), math.inf), *GOOD[1:]), "W", "6 NaN or infinite values", ""),
        ((GOOD[0], GOOD[1], NAN), "b", "1 NaN or infinite values", ""),
        ((GOOD[0] + 0j, *GOOD[1:]), "W", "complex numbers", ""),
        (("W", *GOOD[1:]), "W", "^a str$", ""),
        (([[1, 2], [3]], *GOOD[1:]), "W", "a list that is no array", ""),
        ((GOOD[0], None, GOOD[2]), "a", "a NoneType", ""),
    ],
)
def test_weights_that_do_not_fit(weights: tuple, argument, received, expected) -> None:
    with refused(argument, received, expected=expected):
        RBM(*weights)


def test_types_that_do_not_fit() -> None:
    with refused("dtype", "torch.float16"):
        RBM(*GOOD, dtype=torch.float16)
    with refused("W", r"values of up to 1e\+300"):
        RBM(np.full((3, 2), 1e300), *GOOD[1:], dtype=torch.float32)


@pytest.mark.parametrize(
    ("x", "received", "expected"),
    [
        (torch.zeros(2, 3), r"shape \(2, 3\)", r"shape \(n, 4\)"),
        (torch.zeros(2, 2, 2), "^shape", ""),
        (torch.zeros(2, 4, dtype=torch.uint8), "a tensor of torch.uint8", ""),
        (np.zeros((2, 4)), "^a.*rray", ""),
        (torch.tensor(1.0), r"shape \(\)", ""),
        (torch.zeros(2, 4, device="meta"), "a tensor on meta", ""),
    ],
)
def test_events_that_do_not_fit(x: object, received, expected) -> None:
    rbm = model()
    for method in (rbm.log_unnormalized, rbm.hidden_probabilities, rbm.advance):
        with refused("x", received, expected=expected):
            method(x)


@pytest.mark.parametrize(
    ("call", "argument", "received"),
    [
        (lambda rbm: rbm.advance(rbm.start(2), -1), "sweeps", "^-1$"),
        (lambda rbm: rbm.advance(rbm.start(2), 1.5), "sweeps", "^1.5$"),
        (lambda rbm: rbm.advance(torch.zeros(4)), "x", r"shape \(4,\)"),
        (lambda rbm: rbm.start(-1), "n", "^-1$"),
        (
            lambda rbm: rbm.visible_probabilities(torch.zeros(2, 4)),
            "h",
            r"shape \(2, 4\)",
        ),
        (lambda rbm: RBM.random(0, 2), "visible", "^0$"),
        (lambda rbm: RBM.random(2, 2, scale=-1), "scale", "^-1$"),
    ],
)
def test_bad_arguments(call, argument, received) -> None:
    with refused(argument, received):
        call(model())


# the model of the text


@pytest.mark.data
def test_the_published_model() -> None:
    folder = os.environ.get("LIMBECK_DATA")
    if not folder or not (Path(folder) / "rbm_cd25_500.npz").exists():
        pytest.skip("LIMBECK_DATA names no folder with rbm_cd25_500.npz")
    rbm = RBM.load(Path(folder) / "rbm_cd25_500.npz")
    blank = rbm.log_unnormalized(torch.zeros(1, 784)).item()
    assert blank == pytest.approx(436.4938, abs=1e-4)
    packed = np.load(Path(folder) / "mnist_binarized.npz")["x_test"]
    x = torch.tensor(np.unpackbits(packed, axis=1)).float()
    with torch.no_grad():
        mean = rbm.log_unnormalized(x).double().mean().item() - 451.28
    assert mean == pytest.approx(-86.354, abs=1e-3)
