r"""Training of RBMs: it learns, its gradient is that of the likelihood, and what it refuses."""

from __future__ import annotations

import io
import itertools
import math

import numpy as np
import pytest
import torch

from limbeck.models import rbm_training
from limbeck.models.rbm import RBM
from limbeck.models.rbm_training import Centred, TemperedChains, annealed_log_z, train_rbm
from limbeck.supports import Binary
from tests.models.nets import DOUBLE, generator
from tests.refusals import refused, warns_about

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


@pytest.mark.parametrize("settings", [{}, {"temperatures": 3, "sweeps": 2}])
def test_it_learns_bars_and_stripes(settings) -> None:
    r"""Independent bits have −9 log 2 = −6.24 nats, and no model more than −log 14 = −2.64."""
    data = bars_and_stripes()
    assert len(data) == 14
    rbm = train_rbm(data.repeat(10, 1), 12, epochs=500, weight_decay=0.0, **settings, **SETTINGS)
    found = likelihood(rbm, data)
    assert -3.2 < found < -math.log(14)
    assert rbm.stop_reason == "all epochs done"
    best = max(rbm.history["log_likelihood"])
    assert math.isclose(best, found, abs_tol=1e-3)  # exact, and the best of all evaluations
    assert rbm.history["std_error"] == [0.0] * len(rbm.history["step"])


def independent(data: torch.Tensor, other: torch.Tensor) -> float:
    r"""The mean log likelihood of other rows under independent bits as in the data."""
    odds = torch.log((data.sum(0) + 1) / (len(data) - data.sum(0) + 1))
    return float((other * odds - torch.nn.functional.softplus(odds)).sum(1).mean())


def contrast(rbm: RBM, data: torch.Tensor, model: torch.Tensor) -> tuple[torch.Tensor, ...]:
    centred = Centred(rbm, data.mean(0))
    W, a, b = centred.gradient(data, model)
    return W + torch.outer(centred.x, b) + torch.outer(a, centred.h), a, b


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


def test_the_centred_gradient_is_that_of_centred_parameters() -> None:
    r"""p̃ = exp((x − m)ᵀ W (h − m') + a'·x + b'·h), by W, a' = a + W m' and b' = b + Wᵀ m."""
    rbm = RBM.random(3, 2, 0.8, generator(1), dtype=DOUBLE)
    data = rbm.start(20, generator(2))
    every = Binary(3).enumerate(0, 8, dtype=DOUBLE)
    chance = (rbm(every) - rbm(every).logsumexp(0)).exp()
    model = every[torch.multinomial(chance, 400_000, replacement=True, generator=generator(3))]
    with torch.no_grad():
        W, a, b = Centred(rbm, data.mean(0)).gradient(data, model)
    exact = exact_gradient(rbm, data)
    m, h = data.mean(0), rbm.hidden_probabilities(data).mean(0)
    expected = exact[0] - torch.outer(m, exact[2]) - torch.outer(exact[1], h)
    torch.testing.assert_close(W, expected, atol=0.005, rtol=0)
    torch.testing.assert_close(a, exact[1], atol=0.005, rtol=0)
    torch.testing.assert_close(b, exact[2], atol=0.005, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam])
def test_a_step_changes_centred_parameters_as_the_optimizer_says(make) -> None:
    rbm = RBM.random(3, 2, 0.8, generator(1), dtype=DOUBLE)
    parameters = (rbm.W, rbm.a, rbm.b)
    centred = Centred(rbm, torch.tensor([0.2, 0.5, 0.9], dtype=DOUBLE))
    slopes = centred.gradient(rbm.start(20, generator(2)), rbm.start(30, generator(3)))
    W, a, b = rbm.W, rbm.a + rbm.W @ centred.h, rbm.b + centred.x @ rbm.W
    copies = [part.clone().requires_grad_() for part in (W, a, b)]
    for optimizer, group in (
        (make(parameters, lr=0.1), parameters),
        (make(copies, lr=0.1), copies),
    ):
        for parameter, slope in zip(group, slopes, strict=True):
            parameter.grad = slope
        centred.step(optimizer) if group is parameters else optimizer.step()
    found = rbm.W, rbm.a + rbm.W @ centred.h, rbm.b + centred.x @ rbm.W
    for mine, exact in zip(found, copies, strict=True):
        torch.testing.assert_close(mine, exact.detach())


def test_training_does_not_depend_on_which_state_is_called_one() -> None:
    data = (torch.rand(500, 1, generator=generator(1)) < torch.tensor([0.2, 0.5, 0.9])).float()
    data = torch.cat(
        [data, (data - (torch.rand(500, 3, generator=generator(2)) < 0.1).float()).abs()], 1
    )
    found = []
    for rows in (data, 1 - data):
        rbm = RBM.fit(rows, 4, epochs=60, **SETTINGS)
        found.append(float(rbm.log_likelihood(rows)))
    assert found[0] == pytest.approx(found[1], abs=0.03)


def test_tempered_chains_leave_the_rbm_invariant() -> None:
    r"""Strong weights, so that one temperature alone would stay where it began."""
    rbm = RBM(8 * torch.eye(3, 2) + 4, [-9.0, -8, -6], [-9.0, -10])
    base = torch.tensor([0.5, -0.5, 0.0])
    chains = TemperedChains(rbm, torch.zeros(2000, 3), 6, base, generator(1))
    with torch.no_grad():
        for _ in range(60):
            x = chains.advance(1)
        counts = torch.zeros(8)
        for _ in range(40):
            counts += (chains.advance(1) @ torch.tensor([4.0, 2, 1])).long().bincount(minlength=8)
        every = Binary(3).enumerate(0, 8)
        chance = (rbm(every) - rbm(every).logsumexp(0)).exp()
    assert x.shape == (2000, 3)
    torch.testing.assert_close(counts / counts.sum(), chance, atol=0.02, rtol=0)


def test_the_annealed_log_z_and_its_contradiction() -> None:
    rbm = RBM.random(12, 20, 0.7, generator(1))
    base = torch.zeros(12)
    chains = rbm.advance(rbm.start(100, generator(2)), 200, generator(3))
    with torch.no_grad():
        log_z, error, contradiction = annealed_log_z(rbm, chains, base, generator(4))
        assert abs(log_z - rbm._exact_log_z()) < 4 * error < 1
        assert contradiction < 0.2
        least = Binary(12).enumerate(0, 4096)[rbm(Binary(12).enumerate(0, 4096)).argmin()]
        strong = RBM(4 * rbm.W, rbm.a, rbm.b)
        stuck = least.repeat(100, 1)  # no samples of the RBM
        assert annealed_log_z(strong, stuck, base, generator(4))[2] > 0.3


def test_early_stopping_on_held_out_rows() -> None:
    r"""Noise cannot be learned: held-out rows stop it, and the best parameters are returned."""
    data, other = ((torch.rand(n, 12, generator=generator(n)) < 0.5).float() for n in (30, 300))
    rbm = train_rbm(data, 20, held_out=other, patience=2, weight_decay=0.0, **SETTINGS)
    assert "stopped improving" in rbm.stop_reason
    assert rbm.history["step"][-1] < 2000
    assert likelihood(rbm, other.double()) > independent(data, other) - 0.05


def test_a_time_limit(monkeypatch) -> None:
    clock = itertools.count(step=0.01)
    monkeypatch.setattr(rbm_training.time, "monotonic", lambda: next(clock))
    rbm = train_rbm(bars_and_stripes(), 3, seconds=2.0, **SETTINGS)
    assert rbm.stop_reason == "time limit of 2 s reached"
    assert 50 < rbm.history["step"][-1] < 250


def test_biases_start_at_the_log_odds_of_the_data() -> None:
    data = torch.zeros(99, 3)
    data[:49, 1], data[:, 2] = 1, 1
    rbm = train_rbm(data, 2, epochs=1, lr=1e-12, **SETTINGS)
    odds = torch.tensor([1 / 100, 50 / 51, 100.0])
    torch.testing.assert_close(rbm.a.detach().exp(), odds)
    assert 0 < rbm.W.abs().max() < 0.06


def test_equal_seeds_give_equal_models() -> None:
    data = bars_and_stripes()
    settings = dict(epochs=7, batch_size=4, **SETTINGS)
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
    plain = Centred.gradient
    monkeypatch.setattr(
        Centred, "gradient", lambda self, data, model: seen.append(data) or plain(self, data, model)
    )
    data = Binary(4).enumerate(0, 16)
    train_rbm(data, 2, epochs=2, batch_size=5, **SETTINGS)
    assert sorted(len(batch) for batch in seen) == [1, 1] + [5] * 6
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


def test_divergence_is_an_error() -> None:
    with refused("lr", r"1e\+38, .* diverged at step \d"):
        train_rbm(bars_and_stripes(), 3, lr=1e38, epochs=3, **SETTINGS)


@pytest.mark.parametrize("hidden", [6, 20])
def test_divergence_is_told_and_recovered_from(hidden) -> None:
    r"""With one temperature and such a rate, the chains do not follow the model."""
    data = bars_and_stripes(5 if hidden == 20 else 4)
    with warns_about("lr:", 20):
        rbm = train_rbm(data, hidden, lr=20.0, temperatures=1, epochs=500, **SETTINGS)
    with torch.no_grad():
        found = rbm(data).mean() - rbm._exact_log_z()
    assert found > independent(data, data)


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
        (lambda: train_rbm(DATA, 2, temperatures=0), "temperatures", "^0$", ""),
        (lambda: train_rbm(DATA, 2, held_out=[[0, 1, 1]]), "held_out", r"shape \(1, 3\)", ""),
        (lambda: train_rbm(DATA, 2, held_out=[[0, 7]]), "held_out", "1 values such as 7", ""),
        (lambda: train_rbm(DATA, 2, patience=0), "patience", "^0$", ""),
        (lambda: train_rbm(DATA, 2, seconds=0), "seconds", "^0$", ""),
        (lambda: train_rbm(DATA, 2, chains=0), "chains", "^0$", ""),
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
