r"""Over few draws: the numbers and derivatives of `torch.vmap`, whatever the function gives."""

import pytest
import torch

from limbeck.arrays import leaves
from limbeck.condensation import sample_bag as mapping
from limbeck.condensation.sample_bag import SampleBag, over_draws
from limbeck.distributions import Bernoulli, Categorical, Mixture, Normal, Poisson
from limbeck.distributions.base import broadcast

G = torch.Generator().manual_seed(0)
X = torch.randn(6, 2, generator=G, dtype=torch.float64)
VECTORS = torch.randn(5, 2, generator=G, dtype=torch.float64)
NAMED = {
    "beta": VECTORS,
    "table": torch.randn(5, 2, 3, generator=G, dtype=torch.float64),
    "sigma": torch.rand(5, generator=G, dtype=torch.float64),
}

FUNCTIONS = {
    "a vector": (lambda w: Bernoulli(logits=X @ w), VECTORS),
    "names": (lambda w: Normal(X @ w["beta"], w["sigma"]), NAMED),
    "classes": (lambda w: Categorical(logits=X @ w["table"]), NAMED),
    "the same for each draw": (lambda w: Poisson(log_rate=X[:, 0]), VECTORS),
    "a parameter that is a number": (lambda w: Normal(X @ w, 1.5), VECTORS),
    "mixtures": (
        lambda w: Mixture(torch.ones(3) / 3, Normal(X @ w["table"], w["sigma"])),
        NAMED,
    ),
}


@pytest.fixture(params=list(FUNCTIONS))
def case(request):
    function, draws = FUNCTIONS[request.param]
    return (lambda draw: broadcast(function(draw))), draws


def test_numbers_are_those_of_vmap(case):
    function, draws = case
    found, known = over_draws(function, draws), torch.vmap(function)(draws)
    assert type(found) is type(known)
    for a, b in zip(leaves(found), leaves(known), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def test_without_the_parts_that_vmap_is_made_of_vmap_is_called(case, monkeypatch):
    function, draws = case
    known = over_draws(function, draws)
    monkeypatch.setattr(mapping, "BARE", False)
    for a, b in zip(leaves(over_draws(function, draws)), leaves(known), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def test_derivatives_agree_with_finite_differences_twice():
    def means(w):
        return over_draws(lambda draw: Bernoulli(logits=(X @ draw).tanh()), w).mean

    w = VECTORS.clone().requires_grad_()
    assert torch.autograd.gradcheck(means, (w,))
    assert torch.autograd.gradgradcheck(means, (w,))


def test_it_can_be_mapped_and_differentiated_by_torch_itself():
    bag = SampleBag(lambda w, x: Bernoulli(logits=x @ w), VECTORS, 3)
    together = bag(X).mean
    torch.testing.assert_close(torch.vmap(lambda x: bag(x[None]).mean[0])(X), together)
    slope = torch.func.jacrev(lambda x: bag(x[None]).mean[0])(X[0])
    one = X[0].clone().requires_grad_()
    (known,) = torch.autograd.grad(bag(one[None]).mean[0], one)
    torch.testing.assert_close(slope, known)
    with torch.no_grad():
        torch.testing.assert_close(torch.vmap(lambda x: bag(x[None]).mean[0])(X), together)


def test_an_error_of_the_function_leaves_nothing_behind():
    def failing(draw):
        raise KeyError("the user's own")

    with pytest.raises(KeyError, match="own"):
        over_draws(failing, VECTORS)
    assert not torch._C._are_functorch_transforms_active()
    with pytest.raises(RuntimeError, match="randomness"):
        over_draws(lambda draw: Bernoulli(logits=torch.randn(3) + draw.sum()), VECTORS)
    assert not torch._C._are_functorch_transforms_active()
