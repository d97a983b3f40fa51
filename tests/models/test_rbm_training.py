r"""Training of RBMs: it learns, its gradient is that of the likelihood, and what it refuses."""

from __future__ import annotations

import io
import itertools
import math

import numpy as np
import pytest
import torch

from limbeck.models import rbm as rbm_training
from limbeck.models.rbm import RBM, contrast, train_rbm
from limbeck.supports import Binary
from tests.models.nets import DOUBLE, generator
from tests.refusals import refused

SETTINGS = dict(device="cpu", progress=False)


def bars_and_stripes(side: int = 3) -> torch.Tensor:
    r"""All images of full rows, or of full columns, each once."""
    rows = torch.tensor(list(itertools.product([0.0, 1.0], repeat=side)))
    images = rows[:, :, None].expand(-1, side, side)
    both = torch.cat([images, images.transpose(1, 2)]).reshape(-1, side * side)
    return both.unique(dim=0)


def likelihood(rbm: RBM, data: torch.Tensor) -> float:
    rbm = RBM(rbm.W, rbm.a, rbm.b, dtype=DOUBLE)
    every = Binary(rbm.visible).enumerate(0, 2**rbm.visible, dtype=DOUBLE)
    return (rbm(data).mean() - rbm(every).logsumexp(0)).item()


@pytest.mark.parametrize("settings", [{"sweeps": 5}, {"persistent": True, "chains": 100}])
def test_it_learns_bars_and_stripes(settings) -> None:
    r"""Independent bits have −9 log 2 = −6.24 nats, and no model more than −log 14 = −2.64."""
    data = bars_and_stripes()
    assert len(data) == 14
    rbm = train_rbm(
        data.repeat(10, 1), 16, epochs=400, batch_size=28, lr=0.1, weight_decay=0.0, **settings,
        **SETTINGS,
    )  # fmt: skip
    found = likelihood(rbm, data)
    assert -3.4 < found < -math.log(14)


def test_more_sweeps_come_closer() -> None:
    r"""Two modes far apart: chains of one sweep do not see the mass between them."""
    data = torch.cat([torch.zeros(50, 6), torch.ones(50, 6)])
    one, ten = (
        likelihood(train_rbm(data, 4, sweeps=sweeps, epochs=300, **SETTINGS), data)
        for sweeps in (1, 10)
    )
    assert one + 1 < ten < -math.log(2)


def exact_gradient(rbm: RBM, data: torch.Tensor) -> tuple[torch.Tensor, ...]:
    every = Binary(rbm.visible).enumerate(0, 2**rbm.visible, dtype=DOUBLE)
    mean = rbm(data).mean() - rbm(every).logsumexp(0)
    return torch.autograd.grad(mean, (rbm.W, rbm.a, rbm.b))


def test_the_contrast_with_persistent_chains_is_the_gradient_on_average() -> None:
    rbm = RBM.random(5, 4, 0.7, generator(1), dtype=DOUBLE)
    data = rbm.start(30, generator(2))
    chains, stream = rbm.advance(rbm.start(500, generator(3)), 100, generator(4)), generator(5)
    means: list[list[torch.Tensor]] = []
    for _ in range(40):
        chains = rbm.advance(chains, 20, stream)
        means.append(list(contrast(rbm, data, chains)))
    for name, exact in enumerate(exact_gradient(rbm, data)):
        found = torch.stack([each[name] for each in means])
        error = found.std(0) / len(found) ** 0.5
        assert ((found.mean(0) - exact).abs() < 4 * error).all()
        assert error.max() < 0.01


def test_the_contrast_with_the_model_itself_is_the_gradient() -> None:
    r"""With every x as often as its probability, there is no sampling left."""
    rbm = RBM(torch.zeros(3, 2, dtype=DOUBLE), [0.0] * 3, [0.3, -0.2])  # uniform over x
    data = torch.tensor([[1.0, 0, 1], [0, 0, 1]], dtype=DOUBLE)
    found = contrast(rbm, data, Binary(3).enumerate(0, 8, dtype=DOUBLE))
    for mine, exact in zip(found, exact_gradient(rbm, data), strict=True):
        torch.testing.assert_close(mine, exact)


def test_biases_start_at_the_log_odds_of_the_data() -> None:
    data = torch.zeros(99, 3)
    data[:49, 1], data[:, 2] = 1, 1
    rbm = train_rbm(data, 2, epochs=1, lr=1e-12, **SETTINGS)
    odds = torch.tensor([1 / 100, 50 / 51, 100.0])
    torch.testing.assert_close(rbm.a.detach().exp(), odds)
    assert 0 < rbm.W.abs().max() < 0.05


@pytest.mark.parametrize("persistent", [False, True])
def test_equal_seeds_give_equal_models(persistent) -> None:
    data = bars_and_stripes()
    settings = dict(epochs=7, batch_size=4, persistent=persistent, **SETTINGS)
    one, same = (train_rbm(data, 3, seed=1, **settings) for _ in range(2))
    other = train_rbm(data, 3, seed=2, **settings)
    assert torch.equal(one.W, same.W)
    assert not torch.equal(one.W, other.W)


def test_every_kind_of_bits_is_taken() -> None:
    data = bars_and_stripes()
    kinds = [data, data.bool(), data.to(torch.uint8), data.double().numpy(), data.int().tolist()]
    models = [RBM.fit(kind, 3, epochs=2, batch_size=5, **SETTINGS) for kind in kinds]
    for model in models:
        assert isinstance(model, RBM)
        assert model.W.dtype == torch.float32
        assert torch.equal(model.W, models[0].W)


def test_all_rows_of_all_batches_are_used(monkeypatch) -> None:
    seen = []

    def watched(rbm, data, model):
        seen.append(data)
        return contrast(rbm, data, model)

    monkeypatch.setattr(rbm_training, "contrast", watched)
    data = Binary(4).enumerate(0, 16)
    train_rbm(data, 2, epochs=2, batch_size=5, **SETTINGS)
    assert [len(batch) for batch in seen] == [5, 5, 5, 1] * 2
    assert torch.equal(torch.cat(seen[:4]).unique(dim=0), data)
    assert not torch.equal(torch.cat(seen[:4]), torch.cat(seen[4:]))


@pytest.mark.parametrize("progress", [True, False])
def test_a_terminal_shows_the_epochs(monkeypatch, progress) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stderr", screen := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    train_rbm(bars_and_stripes(), 3, epochs=3, device="cpu", progress=progress)
    assert ("training" in screen.getvalue()) == progress


def test_divergence_is_told() -> None:
    with refused("lr", r"1e\+38, .* diverged in epoch \d"):
        train_rbm(bars_and_stripes(), 3, lr=1e38, epochs=3, **SETTINGS)


DATA = [[0, 1], [1, 0]]


@pytest.mark.parametrize(
    ("call", "argument", "received", "expected"),
    [
        (
            lambda: train_rbm([[0, 0.5]], 2),
            "data",
            "1 values such as 0.5",
            "",
        ),
        (lambda: train_rbm(np.full((2, 3), 255), 2), "data", "6 values such as 255", ""),
        (lambda: train_rbm(np.zeros((2, 3, 3)), 2), "data", r"shape \(2, 3, 3\)", ""),
        (lambda: train_rbm(np.zeros((0, 3)), 2), "data", "^no data", ""),
        (lambda: train_rbm([[0, math.nan]], 2), "data", "^1 NaN", ""),
        (lambda: train_rbm(DATA, 0), "hidden", "^0$", ""),
        (lambda: train_rbm(DATA, 2, sweeps=0), "sweeps", "^0$", ""),
        (lambda: train_rbm(DATA, 2, epochs=0), "epochs", "^0$", ""),
        (lambda: train_rbm(DATA, 2, batch_size=0), "batch_size", "^0$", ""),
        (lambda: train_rbm(DATA, 2, chains=5), "chains", "^5$", "persistent=True"),
        (lambda: train_rbm(DATA, 2, persistent=True, chains=0), "chains", "^0$", ""),
        (lambda: train_rbm(DATA, 2, lr=0), "lr", "^0$", ""),
        (lambda: train_rbm(DATA, 2, momentum=1), "momentum", "^1$", ""),
        (lambda: train_rbm(DATA, 2, weight_decay=-1), "weight_decay", "^-1$", ""),
        (lambda: train_rbm(DATA, 2, seed=-1), "seed", "^-1$", ""),
        (lambda: train_rbm(DATA, 2, device="tpu9"), "device", "'tpu9'", ""),
    ],
)
def test_bad_arguments(call, argument, received, expected) -> None:
    with refused(argument, received, expected=expected):
        call()
