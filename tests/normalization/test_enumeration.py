r"""Exact log Z: against sums by hand, in blocks of every size, at every scale."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from limbeck.models import rbm as enumeration
from limbeck.models.energy import Energy
from limbeck.models.rbm import RBM
from limbeck.normalization.log_partition import exact_log_z
from limbeck.supports import Binary, Real, Spins, States
from tests.refusals import refused

DOUBLE = torch.float64


def model(visible: int, hidden: int, scale: float = 1.0, seed: int = 0) -> RBM:
    generator = torch.Generator().manual_seed(seed)
    return RBM.random(visible, hidden, scale, generator, dtype=DOUBLE)


def by_hand(rbm: RBM) -> float:
    r"""Over all pairs of visible and hidden states, in NumPy."""
    x, h = (Binary(n).enumerate(0, 2**n, dtype=DOUBLE).numpy() for n in (rbm.visible, rbm.hidden))
    W, a, b = (p.detach().numpy() for p in (rbm.W, rbm.a, rbm.b))
    return np.logaddexp.reduce((x @ W @ h.T + (x @ a)[:, None] + h @ b).ravel())


@given(
    visible=st.integers(1, 7),
    hidden=st.integers(1, 7),
    scale=st.sampled_from([0.0, 0.1, 1.0, 10.0, 100.0, 1e3]),
    block=st.sampled_from([None, 1, 2, 8, 30, 10**6]),
    seed=st.integers(0, 99),
)
@settings(max_examples=80, deadline=None)
def test_an_rbm_of_any_size_and_scale(visible, hidden, scale, block, seed) -> None:
    rbm = model(visible, hidden, scale, seed)
    assert exact_log_z(rbm, block=block) == pytest.approx(by_hand(rbm), rel=1e-12)


def test_no_exponential_is_left_out_too_early() -> None:
    rbm = RBM([[700.0, 0.0]], [0.0], [0.0, 21.0], dtype=DOUBLE)  # softplus(21) is 21 + 7.6e-10
    expected = np.logaddexp(math.log(2), 700.0) + 21 + math.log1p(math.exp(-21))
    assert exact_log_z(rbm) == pytest.approx(expected, rel=2e-13)


def test_either_side_is_the_smaller_one() -> None:
    rbm = model(12, 40, 0.5)
    x = Binary(12).enumerate(0, 2**12, dtype=DOUBLE)
    expected = rbm.log_unnormalized(x).logsumexp(0).item()
    turned = RBM(rbm.W.T, rbm.b, rbm.a)
    for one in (rbm, turned):
        for block in (None, 2**7, 2**11):
            assert exact_log_z(one, block=block) == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("scale", [0.3, 40.0])
def test_many_units_on_the_other_side_do_not_overflow(scale) -> None:
    r"""Products of many factors, whose logarithm is taken in time; or of none, if they are huge."""
    rbm = model(900, 13, scale)
    h = Binary(13).enumerate(0, 2**13, dtype=DOUBLE)
    expected = RBM(rbm.W.T, rbm.b, rbm.a).log_unnormalized(h).logsumexp(0).item()
    assert exact_log_z(rbm) == pytest.approx(expected, rel=1e-13)


def test_products_and_direct_sums_agree(monkeypatch) -> None:
    rbm = model(50, 9, 0.7)
    products = exact_log_z(rbm)
    monkeypatch.setattr(enumeration, "LARGEST", -1.0)
    assert exact_log_z(rbm) == pytest.approx(products, rel=1e-13)


def test_single_precision_is_summed_in_double() -> None:
    rbm = model(300, 10).float()
    assert exact_log_z(rbm) == pytest.approx(exact_log_z(rbm.double()), rel=1e-14)


def test_without_weights_the_units_are_independent() -> None:
    a, b = torch.linspace(-3, 3, 16, dtype=DOUBLE), torch.linspace(-1, 4, 30, dtype=DOUBLE)
    rbm = RBM(torch.zeros(16, 30, dtype=DOUBLE), a, b)
    expected = np.logaddexp(0, a.numpy()).sum() + np.logaddexp(0, b.numpy()).sum()
    assert exact_log_z(rbm) == pytest.approx(expected, rel=1e-13)


# other targets


@pytest.mark.parametrize("support", [Binary(9), Spins(3, 3), States(3, 5), States(5, 2, 2)])
@pytest.mark.parametrize("block", [None, 1, 7, 10**6])
def test_independent_variables_of_any_kind(support, block) -> None:
    field = torch.linspace(-1, 2, support.size, dtype=DOUBLE).reshape(support.shape)
    energy = Energy(lambda x: -(x * field).flatten(1).sum(1), support, temperature=0.5)
    values = torch.tensor(support.values, dtype=DOUBLE)
    expected = (2 * field.flatten()[:, None] * values).logsumexp(1).sum().item()
    if block is None or block > 1 or support.size < 6:
        assert exact_log_z(energy, block=block) == pytest.approx(expected, rel=1e-6)


def test_an_rbm_as_any_target() -> None:
    rbm = model(8, 5)
    other = Energy(lambda x: -rbm.log_unnormalized(x), Binary(8))
    assert exact_log_z(other) == pytest.approx(exact_log_z(rbm), rel=1e-6)


def test_forbidden_events_count_nothing() -> None:
    def fn(x):
        return torch.where(x.sum(1) == 1, 0.0, math.inf)

    assert exact_log_z(Energy(fn, Binary(5))) == pytest.approx(math.log(5))


def test_events_have_the_type_of_the_parameters() -> None:
    class Field(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.field = torch.nn.Parameter(torch.ones(3, dtype=DOUBLE))

        def forward(self, x):
            return -x @ self.field

    found = exact_log_z(Energy(Field(), Binary(3)))
    assert found == pytest.approx(3 * math.log1p(math.e), rel=1e-13)


@pytest.mark.parametrize(
    ("call", "argument", "received", "expected"),
    [
        (
            lambda: exact_log_z(RBM.random(784, 500)),
            "target",
            "784 visible and 500 hidden units",
            "25 on one",
        ),
        (
            lambda: exact_log_z(RBM.random(6, 6), limit=32),
            "target",
            "6 visible and 6 hidden units",
            "5 on",
        ),
        (
            lambda: exact_log_z(Energy(lambda x: x.prod(1) + x.sum(1), States(3, 20))),
            "target",
            r"3\^20 events",
            "",
        ),
        (
            lambda: exact_log_z(Energy(lambda x: x.sum(1), Real(2))),
            "target",
            r"Real\(2\)",
            "",
        ),
        (lambda: exact_log_z("rbm"), "target", "^a str$", ""),
        (
            lambda: exact_log_z(Energy(lambda x: x.sum(1) * math.nan, Binary(2))),
            "target",
            "log Z is nan",
            "",
        ),
        (
            lambda: exact_log_z(Energy(lambda x: x.sum(1) + math.inf, Binary(2))),
            "target",
            "log Z is -inf",
            "",
        ),
        (lambda: exact_log_z(RBM.random(2, 2), block=0), "block", "^0$", ""),
        (lambda: exact_log_z(RBM.random(2, 2), limit=0), "limit", "^0$", ""),
    ],
)
def test_bad_arguments(call, argument, received, expected) -> None:
    with refused(argument, received, expected=expected):
        call()


def test_broken_weights_are_told() -> None:
    rbm = RBM.random(4, 4)
    torch.nn.init.constant_(rbm.W, math.nan)
    with refused("target", "log Z is nan"):
        exact_log_z(rbm)


def test_a_larger_limit_is_the_users_choice() -> None:
    rbm = RBM.random(6, 6, generator=torch.Generator().manual_seed(0))
    with refused("target", expected="at most 5 on one side"):
        exact_log_z(rbm, limit=63)
    assert exact_log_z(rbm, limit=64) == exact_log_z(rbm)


@pytest.mark.parametrize("progress", [True, False])
def test_a_terminal_shows_the_blocks(monkeypatch, progress) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stderr", screen := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    exact_log_z(model(4, 3), block=4, progress=progress)
    assert ("enumerating" in screen.getvalue()) == progress
