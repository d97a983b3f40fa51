r"""Expected statistics: against the gradient of the enumerated log Z, with honest errors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli

from limbeck.models.rbm import RBM
from limbeck.normalization import importance as expectations
from limbeck.normalization.importance import ExpectedStatistics, expected_statistics
from limbeck.supports import Binary
from tests.refusals import refused

DOUBLE = torch.float64


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def model(scale: float = 0.7, dtype: torch.dtype = DOUBLE) -> RBM:
    return RBM.random(6, 4, scale, generator(3), dtype=dtype)


def log_p(rbm: RBM) -> tuple[Tensor, Tensor]:
    x = Binary(rbm.visible).enumerate(0, 2**rbm.visible, dtype=rbm.W.dtype)
    return x, rbm(x)


def exact(rbm: RBM) -> tuple[Tensor, ...]:
    _, logs = log_p(rbm)
    return torch.autograd.grad(logs.logsumexp(0), (rbm.W, rbm.a, rbm.b))


def samples(rbm: RBM, n: int, seed: int = 0) -> Tensor:
    r"""Exact ones."""
    x, logs = log_p(rbm)
    return x[torch.multinomial(logs.detach().softmax(0), n, True, generator=generator(seed))]


def scores(found: ExpectedStatistics, truth: tuple[Tensor, ...]) -> Tensor:
    return torch.cat(
        [
            ((mean - exact) / error).flatten()
            for mean, error, exact in zip(found.mean, found.std_error, truth, strict=True)
        ]
    )


def test_exact_samples_give_the_gradient_of_log_z() -> None:
    rbm = model()
    found = expected_statistics(rbm, samples(rbm, 20_000))
    z = scores(found, exact(rbm))
    assert z.abs().max() < 4
    assert found.std_error.W.max() < 0.005
    assert found.ess == 20_000
    assert found.verdict.trustworthy


def test_single_precision_is_summed_in_double() -> None:
    rbm = model(dtype=torch.float32)
    x = samples(rbm, 500)
    found, fine = expected_statistics(rbm, x), expected_statistics(rbm.double(), x.double())
    assert found.mean.W.dtype == DOUBLE
    torch.testing.assert_close(found.mean.W, fine.mean.W, atol=1e-6, rtol=0)
    torch.testing.assert_close(found.std_error.W, fine.std_error.W, atol=1e-6, rtol=0)


@pytest.mark.parametrize("weighted", [False, True])
def test_errors_are_those_of_repetitions(weighted) -> None:
    rbm, truth = model(), exact(model())
    found = [
        expected_statistics(rbm, proposal=Bernoulli(logits=rbm.a.detach()), samples=400, seed=seed)
        if weighted
        else expected_statistics(rbm, samples(rbm, 400, seed))
        for seed in range(100)
    ]
    z = torch.stack([scores(each, truth) for each in found])  # (100, 34)
    assert z.mean(0).abs().max() < 0.6
    assert ((z.std(0) > 0.75) & (z.std(0) < 1.3)).all()
    assert 0.93 < (z.abs() < 1.96).double().mean() < 0.97


def test_errors_by_hand() -> None:
    rbm = model()
    x = samples(rbm, 37)
    h = rbm.hidden_probabilities(x).detach()
    each = x[:, :, None] * h[:, None, :]
    found = expected_statistics(rbm, x)
    torch.testing.assert_close(found.mean.W, each.mean(0))
    torch.testing.assert_close(found.std_error.W, each.std(0) / 37**0.5)
    torch.testing.assert_close(found.std_error.a, x.std(0) / 37**0.5)
    torch.testing.assert_close(found.std_error.b, h.std(0) / 37**0.5)
    assert found.verdict.reasons == ("only 37 samples",)


def test_blocks_change_nothing(monkeypatch) -> None:
    rbm = model()
    x, coins = samples(rbm, 37), Bernoulli(torch.full((6,), 0.5))

    def all_ways() -> list[ExpectedStatistics]:
        ways = [expected_statistics(rbm, x), expected_statistics(rbm, x[:36].reshape(3, 12, 6))]
        return [*ways, expected_statistics(rbm, proposal=coins, samples=50)]

    whole = all_ways()
    monkeypatch.setattr(expectations, "EXPECTATION_BLOCK", 30)
    for one, other in zip(whole, all_ways(), strict=True):
        torch.testing.assert_close(one.mean, other.mean)
        torch.testing.assert_close(one.std_error, other.std_error)


# chains


def chains(rbm: RBM, count: int, draws: int, start: Tensor | None = None, seed: int = 5) -> Tensor:
    stream, states = generator(seed), []
    x = samples(rbm, count, seed + 1000) if start is None else start
    for _ in range(draws):
        x = rbm.advance(x, 1, stream)
        states.append(x)
    return torch.stack(states, 1)


def test_chains_of_several_draws_give_the_gradient_of_log_z() -> None:
    rbm = model(1.6)
    x = chains(rbm, 200, 50)
    found = expected_statistics(rbm, x)
    z = scores(found, exact(rbm))
    assert z.abs().max() < 4
    # the draws of a chain are alike: errors as if they were independent are too small
    careless = expected_statistics(rbm, x.flatten(0, 1))
    torch.testing.assert_close(found.mean, careless.mean)
    assert (found.std_error.W > 1.1 * careless.std_error.W).double().mean() > 0.8
    assert 100 < found.ess < 10_000
    assert found.verdict.trustworthy


def test_errors_between_chains_are_those_of_repetitions() -> None:
    rbm, truth = model(1.6), exact(model(1.6))
    found = [expected_statistics(rbm, chains(rbm, 60, 10, seed=seed)) for seed in range(60)]
    z = torch.stack([scores(each, truth) for each in found])
    assert 0.92 < (z.abs() < 2).double().mean() < 0.98
    assert 0.85 < z.std() < 1.2


def test_chains_that_disagree_are_doubtful() -> None:
    rbm = RBM(torch.full((6, 4), 6.0, dtype=DOUBLE), [-12.0] * 6, [-18.1] * 4)  # two far modes
    start = torch.cat([torch.zeros(20, 6), torch.ones(20, 6)]).double()
    found = expected_statistics(rbm, chains(rbm, 40, 20, start))
    assert not found.verdict.trustworthy
    assert any("R-hat" in reason for reason in found.verdict.reasons)


def test_few_chains_are_doubtful() -> None:
    rbm = model()
    found = expected_statistics(rbm, chains(rbm, 3, 500))
    assert any("only 3 chains" in reason for reason in found.verdict.reasons)


# weighted samples of a student


def test_weighted_samples_give_the_gradient_of_log_z() -> None:
    rbm = model()
    q = Bernoulli(torch.full((6,), 0.5))
    found = expected_statistics(rbm, proposal=q, samples=20_000, seed=1)
    z = scores(found, exact(rbm))
    assert z.abs().max() < 4
    p = log_p(rbm)[1].detach().softmax(0)
    limit = 1 / (64 * (p**2).sum())  # of ESS / n
    assert found.ess == pytest.approx(20_000 * limit.item(), rel=0.05)
    assert found.verdict.trustworthy


def test_the_model_itself_as_proposal_has_equal_weights() -> None:
    class Exact:
        def __init__(self, rbm: RBM) -> None:
            self.rbm = rbm
            self.log_z = log_p(rbm)[1].logsumexp(0)

        def log_prob(self, x):
            return self.rbm(x) - self.log_z

        def sample(self, n, generator=None):
            x, logs = log_p(self.rbm)
            return x[torch.multinomial(logs.detach().softmax(0), n, True, generator=generator)]

    rbm = model()
    found = expected_statistics(rbm, proposal=Exact(rbm), samples=500)
    assert found.ess == pytest.approx(500)
    assert scores(found, exact(rbm)).abs().max() < 4


def test_a_poor_proposal_is_doubtful() -> None:
    rbm = RBM.random(40, 20, 2.0, generator(0), dtype=DOUBLE)
    found = expected_statistics(rbm, proposal=Bernoulli(torch.full((40,), 0.5)), samples=1000)
    assert found.ess < 100
    assert any("effective samples" in reason for reason in found.verdict.reasons)


def test_equal_seeds_give_equal_estimates() -> None:
    rbm, q = model(), Bernoulli(torch.full((6,), 0.5))
    one, same, other = (
        expected_statistics(rbm, proposal=q, samples=50, seed=seed).mean.W for seed in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize(
    ("call", "argument", "received"),
    [
        (lambda: expected_statistics(model()), "x, proposal", "^neither$"),
        (
            lambda: expected_statistics(model(), torch.zeros(9, 6), proposal=Bernoulli(0.5)),
            "x, proposal",
            "^both$",
        ),
        (lambda: expected_statistics("rbm", torch.zeros(9, 6)), "rbm", "'rbm'"),
        (
            lambda: expected_statistics(model(), torch.zeros(9, 5)),
            "x",
            r"shape \(9, 5\)",
        ),
        (lambda: expected_statistics(model(), torch.zeros(6)), "x", r"shape \(6,\)"),
        (
            lambda: expected_statistics(model(), [[0.0] * 6] * 9),
            "x",
            r"\[\[0\.0, 0\.0, 0\.0, 0\.0, 0\.0, 0\.0\]",
        ),
        (
            lambda: expected_statistics(model(), torch.zeros(1, 6)),
            "x",
            "^shape",
        ),
        (
            lambda: expected_statistics(model(), torch.zeros(3, 0, 6)),
            "x",
            "shape .*0",
        ),
        (
            lambda: expected_statistics(model(), torch.full((9, 6), 0.5)),
            "x",
            "54 values",
        ),
        (
            lambda: expected_statistics(model(), proposal=Bernoulli(torch.rand(6)), samples=1),
            "samples",
            "^1$",
        ),
        (lambda: expected_statistics(model(), proposal="nade"), "proposal", "^a str"),
    ],
)
def test_bad_arguments(call, argument, received) -> None:
    with refused(argument, received):
        call()
