r"""Batches of a loader, regrouped."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import data

from limbeck.inputs import Loader
from tests.refusals import refused


class Stream(data.IterableDataset):
    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


def numbers(rows, size, **options):
    return data.DataLoader(data.TensorDataset(torch.arange(rows)), batch_size=size, **options)


@settings(deadline=None, max_examples=50)
@given(
    st.integers(1, 20),
    st.integers(1, 8),
    st.lists(st.integers(1, 30), min_size=1, max_size=5),
    st.integers(0, 10),
)
def test_rows_come_in_order_however_they_are_grouped(rows, size, draws, peek):
    source = Loader(numbers(rows, size))
    seen = []
    for n in draws:
        if peek:
            source.probe(peek)
        seen.append(source(n).x)
        assert len(seen[-1]) == n
    seen = torch.cat(seen)
    assert torch.equal(seen, torch.arange(len(seen)) % rows)
    copy = Loader(numbers(rows, size))
    copy.load_state_dict(source.state_dict())
    assert torch.equal(copy(9).x, source(9).x)


def test_every_pass_is_shuffled_anew():
    x = Loader(numbers(10, 3, shuffle=True), seed=0)(20).x
    assert x[:10].sort().values.tolist() == x[10:].sort().values.tolist() == list(range(10))
    assert not torch.equal(x[:10], x[10:])


def test_streams_of_single_items():
    source = Loader(Stream([({"a": torch.full((2,), i)}, i) for i in range(100)]))
    batch = source(150)
    assert torch.equal(batch.x["a"][:, 0], torch.arange(150) % 100)
    assert torch.equal(batch.y, torch.arange(150) % 100)


def test_workers_are_taken():
    source = Loader(numbers(10, 3, num_workers=1))
    assert source(12).x.tolist() == [*range(10), 0, 1]


@pytest.mark.parametrize(
    ("loader", "received"),
    [
        ([1, 2], "^a list$"),
        (Stream([]), "no items in a pass"),
        (Stream([(1, 2, 3)]), "items of 3 things"),
        (Stream([torch.tensor(torch.nan)]), "1 NaN or infinite"),
    ],
)
def test_bad_loaders_are_refused(loader, received):
    with refused("loader", received):
        Loader(loader)(2)


def test_batches_of_different_kinds_are_refused():
    loader = data.DataLoader([torch.zeros(2, 1), torch.zeros(2, 3)], batch_size=None)
    with refused("loader", r"a batch of \(n, 1\) .* of \(n, 3\)"):
        Loader(loader)(4)
