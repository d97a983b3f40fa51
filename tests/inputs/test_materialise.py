r"""Map-style torch data sets read into arrays."""

import numpy as np
import pytest
import torch
from torch.utils import data

from limbeck.inputs.dataset import materialise
from tests.refusals import refused


class Items(data.Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class Endless(data.Dataset):
    def __getitem__(self, i):
        return torch.zeros(2)


def test_items_are_stacked_with_their_labels():
    x, y = materialise(Items([(torch.full((2,), float(i)), i) for i in range(4)]), "X")
    assert torch.equal(x, torch.arange(4.0)[:, None].repeat(1, 2))
    np.testing.assert_array_equal(y, np.arange(4))


def test_items_without_labels_and_structured_items():
    x, y = materialise(Items([np.float64(i) for i in range(3)]), "X")
    np.testing.assert_array_equal(x, [0.0, 1.0, 2.0])
    assert y is None
    x, y = materialise(Items([({"a": torch.tensor(i), "b": [i, i]}, i) for i in range(3)]), "X")
    assert torch.equal(x["a"], torch.arange(3))
    assert x["b"].shape == (3, 2)


def test_tensor_datasets_are_taken_whole():
    x, y = torch.randn(5, 2), torch.arange(5)
    assert materialise(data.TensorDataset(x, y), "X") == (x, y)
    assert materialise(data.TensorDataset(x), "X") == (x, None)


@pytest.mark.parametrize(
    ("dataset", "received"),
    [
        (Items([]), "^no data"),
        (
            Items([torch.zeros(2), torch.zeros(3)]),
            "items that cannot be stacked",
        ),
        (Items([(1.0, 2), 1.0]), "items with and without labels"),
        (Items([(1.0, 2, 3)]), "items of 3 things"),
        (Endless(), "a Endless without a length"),
    ],
)
def test_what_has_no_rows_is_refused(dataset, received):
    with refused("X", received):
        materialise(dataset, "X")
