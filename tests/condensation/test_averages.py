r"""Averages in the log domain: the same whichever way they are taken, however far logits are."""

import pytest
import torch

from limbeck.condensation.sample_bag import SampleBag
from limbeck.distributions.base import readable
from limbeck.distributions.discrete import Bernoulli, Categorical, log_means, log_odds, visible_mean

WEIGHTS = torch.tensor([0.5, 0.3, 0.2])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def logits(scale, dtype, shape=(400, 3)):
    generator = torch.Generator().manual_seed(int(scale))
    z = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
    return (z + scale * torch.linspace(-3, 3, shape[0], dtype=torch.float64)[:, None]).to(dtype)


def exact(z, weights):
    w, z = weights.double().log(), z.double()
    one, zero = torch.nn.functional.logsigmoid(z), torch.nn.functional.logsigmoid(-z)
    return (one + w).logsumexp(-1) - (zero + w).logsumexp(-1)


@DTYPES
@pytest.mark.parametrize("scale", [1.0, 30.0, 300.0, 10_000.0])
def test_log_odds_are_exact_however_far_logits_are(scale, dtype):
    z, w = logits(scale, dtype), WEIGHTS.to(dtype)
    w = w / w.sum()
    near = {"rtol": 30 * torch.finfo(dtype).eps, "atol": 30 * torch.finfo(dtype).eps}
    torch.testing.assert_close(log_odds(z, w).double(), exact(z, w), **near)
    one, zero = log_means(z, w)
    torch.testing.assert_close((one - zero).double(), exact(z, w), **near)


def test_weights_may_differ_from_row_to_row():
    z = logits(30.0, torch.float64)
    weights = logits(1.0, torch.float64).softmax(-1)  # (rows, 3)
    one, zero = log_means(z, weights)
    near = {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(one - zero, exact(z, weights), **near)
    mixed = Bernoulli(logits=z).mix(weights.log())
    torch.testing.assert_close(mixed.logits, exact(z, weights), **near)


def test_some_of_these_logits_are_beyond_what_plain_means_can_show():
    for dtype, scale in ((torch.float32, 30.0), (torch.float64, 300.0)):
        p = logits(scale, dtype).sigmoid() @ WEIGHTS.to(dtype)
        assert 0 < (p < visible_mean(dtype)).sum() < len(p)


def test_no_rows_at_all_are_no_trouble():
    assert log_odds(torch.zeros(0, 3), WEIGHTS).shape == (0,)
    assert Categorical(logits=torch.zeros(0, 3, 4)).mix(WEIGHTS.log()).mean.shape == (0, 4)


def test_numbers_that_are_none_stay_so():
    z = torch.tensor([[0.0, float("nan"), 1.0], [0.0, 0.0, 0.0]])
    assert log_odds(z, WEIGHTS).isnan().tolist() == [True, False]


@DTYPES
@pytest.mark.parametrize("scale", [1.0, 300.0])
@pytest.mark.parametrize("kind", [Bernoulli, Categorical])
def test_mixtures_of_classes_are_the_same_with_and_without_derivatives(kind, scale, dtype):
    shape = (50, 3) if kind is Bernoulli else (50, 3, 4)
    z = scale * torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=dtype)
    log_weights = WEIGHTS.to(dtype).log()
    assert readable(z)
    assert not readable(z.clone().requires_grad_())
    found = kind(logits=z).mix(log_weights)
    known = kind(logits=z.clone().requires_grad_()).mix(log_weights)
    near = {"rtol": 100 * torch.finfo(dtype).eps, "atol": 100 * torch.finfo(dtype).eps}
    torch.testing.assert_close(found.log_probabilities, known.log_probabilities.detach(), **near)


@pytest.mark.parametrize("weighted", [True, False])
@DTYPES
def test_a_bag_says_the_same_without_gradients(weighted, dtype):
    posterior = 40 + 9 * torch.randn(
        100, 2, generator=torch.Generator().manual_seed(2), dtype=dtype
    )
    bag = SampleBag(lambda w, x: Bernoulli(logits=x @ w), posterior, 4, weighted=weighted)
    x = 20 * torch.randn(30, 2, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        found = bag(x).logits
    assert found.abs().max() > 100
    torch.testing.assert_close(found, bag(x).logits.detach(), rtol=1e-5, atol=1e-5)


def test_numbers_under_maps_and_compilers_are_not_looked_at():
    seen_there = []

    def look(z):
        seen_there.append(readable(z))
        return z + 1

    torch.vmap(look)(torch.zeros(2, 2))
    torch.func.grad(lambda z: look(z).sum())(torch.zeros(2))
    assert seen_there == [False, False]
    exported = torch.export.export(_Look(), (torch.zeros(3),)).module()
    for traced in (exported, torch.compile(_Look(), backend="eager", fullgraph=True)):
        assert torch.equal(traced(torch.zeros(3)), torch.full((3,), 2.0))
    assert torch.equal(_Look()(torch.zeros(3)), torch.ones(3))


class _Look(torch.nn.Module):
    def forward(self, z):
        return z + 1 if readable(z) else z + 2
