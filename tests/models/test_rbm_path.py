r"""The annealing path of an RBM: both ends by enumeration, its kernels, and what it refuses."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from limbeck.models.rbm import RBM, RBMPath, base_biases
from limbeck.supports import Binary
from tests.models.nets import DOUBLE, generator, normal
from tests.refusals import refused

X = Binary(4).enumerate(0, 16, dtype=DOUBLE)
BASE = normal(4, seed=7)


def model(scale: float = 1.5) -> RBM:
    return RBM.random(4, 3, scale, generator(2), dtype=DOUBLE)


def density(rbm: RBM, beta: float, base: torch.Tensor) -> torch.Tensor:
    r"""log p̃_β of all x, as a sum over hidden states."""
    h = Binary(3).enumerate(0, 8, dtype=DOUBLE)
    visible = X @ ((1 - beta) * base + beta * rbm.a)
    joint = visible[:, None] + beta * (X @ rbm.W @ h.T + h @ rbm.b)
    return joint.logsumexp(1).detach()


@pytest.mark.parametrize("base", [None, BASE, BASE.numpy(), BASE.tolist()])
def test_the_start_has_the_stated_normaliser(base) -> None:
    path = model().path(base)
    assert isinstance(path, RBMPath)
    assert path.log_unnormalized(X, 0.0).logsumexp(0).item() == pytest.approx(path.log_z, rel=1e-12)
    if base is None:
        assert path.log_z == pytest.approx(7 * math.log(2))


@pytest.mark.parametrize("base", [None, BASE])
@pytest.mark.parametrize("beta", [0.0, 1e-3, 0.3, 1.0])
def test_every_density_is_a_sum_over_hidden_states(beta, base) -> None:
    rbm = model()
    expected = density(rbm, beta, torch.zeros(4, dtype=DOUBLE) if base is None else base)
    torch.testing.assert_close(rbm.path(base).log_unnormalized(X, beta), expected)
    tensor = torch.tensor(beta, dtype=DOUBLE)
    torch.testing.assert_close(rbm.path(base).log_unnormalized(X, tensor), expected)


def test_the_end_is_the_model() -> None:
    rbm = model()
    torch.testing.assert_close(rbm.path(BASE).log_unnormalized(X, 1.0), rbm(X).detach())


def test_samples_of_the_start_are_independent_bits() -> None:
    n = 20_000
    x = model().path(BASE).sample(n, generator(1))
    assert torch.equal(x, model().path(BASE).sample(n, generator(1)))
    p = torch.sigmoid(BASE)
    assert ((x.mean(0) - p).abs() < 4 * (p * (1 - p) / n).sqrt()).all()
    correlation = torch.corrcoef(x.T) - torch.eye(4, dtype=DOUBLE)
    assert correlation.abs().max() < 4.5 / n**0.5


@pytest.mark.parametrize("tensor", [False, True])
@pytest.mark.parametrize("beta", [0.0, 0.6, 1.0])
def test_a_sweep_leaves_its_density_as_it_is_and_is_reversible(beta, tensor) -> None:
    r"""The frequencies of moves between pairs of states are symmetric, their margins p_β."""
    path, n = model().path(BASE), 40_000
    p = path.log_unnormalized(X, beta).softmax(0)
    start = torch.multinomial(p, n, replacement=True, generator=generator(4))
    given = torch.tensor(beta, dtype=DOUBLE) if tensor else beta
    _, moved = path.climb(X[start], given, given, generator(5))
    end = (moved @ torch.tensor([8.0, 4.0, 2.0, 1.0], dtype=DOUBLE)).long()
    pairs = torch.bincount(16 * start + end, minlength=256).reshape(16, 16).double()
    margin = pairs.sum(0) / n
    assert ((margin - p).abs() < 4.5 * (p * (1 - p) / n).sqrt()).all()
    odd, total = pairs - pairs.T, (pairs + pairs.T).clamp_min(1)
    assert (odd.abs() < 5 * total.sqrt()).all()


@pytest.mark.parametrize(("before", "after"), [(0.0, 0.25), (0.25, 1.0), (0.8, 0.1), (0.4, 0.4)])
def test_climbing_is_a_gain_and_a_sweep(before, after) -> None:
    path = model().path(BASE)
    x = path.sample(50, generator(1))
    kept = x.clone()
    gain, moved = path.climb(x, before, after, generator(2))
    expected = path.log_unnormalized(x, after) - path.log_unnormalized(x, before)
    torch.testing.assert_close(gain, expected)
    assert torch.equal(x, kept)
    tensors = [torch.tensor(beta, dtype=DOUBLE) for beta in (before, after)]
    again, same = path.climb(x, *tensors, generator(2))
    torch.testing.assert_close(again, expected)
    assert torch.equal(same, moved)


def test_single_precision_gains_add_up_in_double() -> None:
    rbm = RBM.random(784, 500, 0.1, generator(0))
    path = rbm.path()
    x = path.sample(20, generator(1))
    betas = torch.linspace(0, 1, 1001).tolist()
    total = sum(path.climb(x, b, a, generator(2))[0] for b, a in itertools.pairwise(betas))
    assert total.dtype == DOUBLE
    exact = rbm.double().path()
    expected = exact.log_unnormalized(x, 1.0) - exact.log_unnormalized(x, 0.0)
    torch.testing.assert_close(total, expected, atol=5e-3, rtol=0)


def test_annealing_finds_log_z() -> None:
    rbm = model(1.0)
    path, n = rbm.path(), 2000
    x, log_w = path.sample(n, generator(1)), torch.zeros(n, dtype=DOUBLE)
    betas = torch.linspace(0, 1, 31).tolist()
    stream = generator(3)
    for before, after in itertools.pairwise(betas):
        gain, x = path.climb(x, before, after, stream)
        log_w += gain
    w = (log_w - log_w.max()).exp()
    found = path.log_z + log_w.max() + w.mean().log()
    error = w.std() / w.mean() / n**0.5
    truth = rbm(X).logsumexp(0)
    assert abs(found - truth) < 4 * error
    assert error < 0.05


def test_the_path_keeps_the_parameters_it_was_made_of() -> None:
    rbm = model()
    path = rbm.path()
    before = path.log_unnormalized(X, 0.5)
    torch.nn.init.zeros_(rbm.W)
    assert torch.equal(path.log_unnormalized(X, 0.5), before)


@pytest.mark.parametrize("kind", [bool, np.uint8, np.float32, np.int64])
def test_base_biases_are_log_odds_of_the_data(kind) -> None:
    data = np.array([[0, 1, 1], [0, 1, 0], [0, 1, 0]]).astype(kind)
    expected = np.log([1 / 4, 4 / 1, 2 / 3])
    np.testing.assert_allclose(base_biases(data).numpy(), expected, rtol=1e-6)
    np.testing.assert_allclose(base_biases(torch.tensor(data)).numpy(), expected, rtol=1e-6)
    flat = base_biases(data, smoothing=1e6)
    assert flat.abs().max() < 1e-5


@pytest.mark.parametrize(
    ("call", "argument", "received", "expected"),
    [
        (lambda: model().path(torch.zeros(3)), "base", r"shape \(3,\)", r"shape \(4,\)"),
        (lambda: model().path([0, 0, 0, math.nan]), "base", "^1 NaN", ""),
        (lambda: model().path().climb(X, 0.5, 1.5), "after", "^1.5$", "a number from 0"),
        (lambda: model().path().climb(X, -0.5, 1), "before", "^-0.5$", ""),
        (lambda: model().path().sample(-1), "n", "^-1$", ""),
        (
            lambda: base_biases([[0, 0.5]]),
            "data",
            "1 values such as 0.5",
            "",
        ),
        (
            lambda: base_biases(np.zeros((2, 3, 3))),
            "data",
            r"shape \(2, 3, 3\)",
            "",
        ),
        (lambda: base_biases([[0, 1]], smoothing=0), "smoothing", "^0$", ""),
    ],
)
def test_bad_arguments(call, argument, received, expected) -> None:
    with refused(argument, received, expected=expected):
        call()
