r"""Nearest neighbours, against brute force."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neighbors import NearestNeighbors

from limbeck.inputs.combined import nearest


def continuous(x):
    return {"": torch.zeros(x.shape[1:], dtype=torch.bool)}


@pytest.mark.parametrize(("rows", "columns"), [(2, 1), (50, 1), (300, 7), (60, 2000)])
@pytest.mark.parametrize("block", [1, 1000, 2**24])
def test_equal_scikit_learns(rows, columns, block):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, columns)) * rng.exponential(100.0, columns) + 1e3
    scaled = (x - x.min(0)) / (x.max(0) - x.min(0))
    expected = NearestNeighbors(n_neighbors=1, algorithm="brute").fit(scaled)
    expected = expected.kneighbors(return_distance=False)[:, 0]
    x = torch.from_numpy(x)
    np.testing.assert_array_equal(nearest({"": x}, continuous(x), block).numpy(), expected)


@settings(deadline=None)
@given(st.integers(2, 25), st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**20))
def test_no_other_row_is_nearer(rows, columns, categories, seed):
    # Few values make many ties and duplicates, of which any one will do.
    rng = np.random.default_rng(seed)
    numbers = torch.from_numpy(rng.integers(0, 3, (rows, columns)) * 1.5)
    codes = torch.from_numpy(rng.integers(0, categories, (rows, 2, 2)))
    flags = torch.from_numpy(rng.random(rows) < 0.5)
    parts = {"numbers": numbers, "codes": codes, "flags": flags}
    masks = {
        "numbers": torch.arange(columns) == 0,  # a column of codes in a floating type
        "codes": torch.ones(2, 2, dtype=torch.bool),
        "flags": torch.tensor(True),
    }
    found = nearest(parts, masks, block=7)

    extent = numbers.amax(0) - numbers.amin(0)
    scaled = (numbers / torch.where(extent > 0, extent, 1))[:, 1:]
    distance = (scaled[:, None] - scaled).square().sum(-1)
    distance += numbers[:, None, 0] != numbers[:, 0]
    distance += (codes[:, None] != codes).flatten(2).sum(-1)
    distance += flags[:, None] != flags
    distance.fill_diagonal_(torch.inf)
    chosen = distance[torch.arange(rows), found]
    assert (found != torch.arange(rows)).all()
    torch.testing.assert_close(chosen, distance.amin(1), rtol=0, atol=1e-9)


def test_memory_stays_within_blocks():
    x = torch.randn(3000, 2, generator=torch.Generator().manual_seed(0))
    sizes = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                sizes.append(result.numel())
            return result

    with Watch():
        nearest({"": x}, continuous(x), block=30_000)
    assert max(sizes) <= 30_000
