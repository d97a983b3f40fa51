r"""Transformed rows."""

import pytest
import torch
from torch import nn

from limbeck.inputs import Augment
from tests.refusals import refused

X = torch.arange(6.0).reshape(6, 1)


def test_labels_go_with_their_rows():
    batch = Augment(X, lambda x: x + 0.25, y=torch.arange(6))(20)
    assert torch.equal(batch.x[:, 0], batch.y + 0.25)
    assert batch.index is None


def test_the_data_are_not_changed():
    source = Augment(X.clone(), lambda x: x.mul_(0))
    assert (source(6).x == 0).all()
    assert torch.equal(source.data.x, X)


def test_modules_are_transforms_too():
    class Flip(nn.Module):
        def forward(self, x, generator):
            return torch.where(torch.rand(x.shape, generator=generator) < 0.5, -x, x)

    assert torch.equal(Augment(X, Flip(), seed=1)(6).x, Augment(X, Flip(), seed=1)(6).x)


@pytest.mark.parametrize(
    ("transform", "received", "expected"),
    [
        (None, "a NoneType", ""),
        (lambda x: x[:-1], "^3 rows$", "as many rows as were asked for: 4"),
        (lambda x: x / 0, "NaN or infinite values", ""),
        (lambda x: (x, x), "a draw of type tuple", ""),
        (lambda x: None, "a draw of type NoneType", ""),
    ],
)
def test_bad_transforms_are_refused(transform, received, expected):
    with refused("transform", received, expected=expected):
        Augment(X, transform)(4)


def test_a_transform_must_keep_the_floating_type():
    source = Augment(X, lambda x: x.double())
    source.to(torch.device("cpu"), torch.float32, 0)
    with refused("transform", r"a tensor of torch\.float64"):
        source(2)
