r"""Samples of models."""

import numpy as np
import pytest
import torch
from sklearn.neighbors import KernelDensity
from torch import distributions, nn

from limbeck.arrays import Batch
from limbeck.inputs import Samples
from tests.refusals import refused


class Model(nn.Module):
    def __init__(self, give):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.give = give

    def sample(self, n):
        return self.give(self, n)


class Shaped:
    def sample(self, sample_shape):
        return torch.zeros(*sample_shape, 2)


def test_distributions_of_torch_are_asked_for_a_shape():
    mean, scale = torch.tensor([1.0, -1.0]), torch.tensor([0.5, 2.0])
    x = Samples(distributions.Normal(mean, scale), seed=0)(20_000).x
    torch.testing.assert_close(x.mean(0), mean, rtol=0, atol=0.06)
    torch.testing.assert_close(x.std(0), scale, rtol=0.05, atol=0)
    assert Samples(Shaped())(3).x.shape == (3, 2)


def test_samples_have_no_gradients():
    assert not Samples(Model(lambda m, n: m.weight * torch.rand(n, 2)))(3).x.requires_grad


def test_arrays_become_the_students_type():
    source = Samples(KernelDensity().fit(np.zeros((3, 2))), seed=0)
    source.to(torch.device("cpu"), torch.float32, 0)
    assert source(4).x.dtype == torch.float32


@pytest.mark.parametrize(
    ("give", "argument", "received", "expected"),
    [
        (lambda m, n: torch.zeros(n + 1, 2), "model", "^5 rows$", "as many rows as.*: 4"),
        (
            lambda m, n: torch.full((n, 2), torch.nan),
            "model",
            "8 NaN or infinite values",
            "",
        ),
        (
            lambda m, n: (torch.zeros(n), torch.zeros(n)),
            "model",
            "a draw of type tuple",
            "",
        ),
        (lambda m, n: Batch(torch.zeros(n)), "model", "a Batch of samples", ""),
        (
            lambda m, n: {"a": torch.zeros(n), "b": torch.zeros(2)},
            "model['b']",
            "^2 rows$",
            "",
        ),
    ],
)
def test_bad_samples_are_refused(give, argument, received, expected):
    with refused(argument, received, expected=expected):
        Samples(Model(give))(4)


def test_a_model_without_the_method_is_refused():
    with refused("model", "a float", expected="a method sample"):
        Samples(3.0)
