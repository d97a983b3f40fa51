r"""MUNGE, by its definition."""

import numpy as np
import pytest
import torch
from scipy import stats

from limbeck.inputs import Munge
from tests.refusals import refused


def drawn(source, n):
    r"""A large draw, with the rows and neighbours that it came from."""
    draw = source.draw(n)
    return source.build(draw).x, draw["row"], draw["neighbour"]


@pytest.mark.parametrize("columns", [1, 50])
@pytest.mark.parametrize("local_variance", [0.5, 4.0])
def test_replaced_attributes_are_normal_around_the_neighbours(columns, local_variance):
    x = torch.randn(20, columns, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    source = Munge(x, swap=0.3, local_variance=local_variance, seed=1)
    new, row, neighbour = drawn(source, 200_000 // columns)
    own, other = x[row], x[neighbour]
    changed = new != own
    share = changed.double().mean().item()
    assert abs(share - 0.3) < 4 * (0.3 * 0.7 / changed.numel()) ** 0.5
    deviation = (own - other).abs() / local_variance
    standard = ((new - other) / deviation)[changed]
    assert stats.kstest(standard.numpy(), "norm").pvalue > 1e-3


@pytest.mark.parametrize(("swap", "share"), [(0.0, 0.0), (1.0, 1.0)])
def test_the_extremes_of_the_swap_probability(swap, share):
    x = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
    new, row, _ = drawn(Munge(x, swap=swap), 500)
    assert (new != x[row]).double().mean() == share


def test_attributes_are_replaced_independently():
    x = torch.randn(10, 2, generator=torch.Generator().manual_seed(0))
    new, row, _ = drawn(Munge(x, seed=0), 20_000)
    changed = (new != x[row]).long()
    counts = (changed[:, 0] * 2 + changed[:, 1]).bincount(minlength=4)
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_thousands_of_columns():
    x = torch.randn(5, 3000)
    assert Munge(x)(8).x.shape == (8, 3000)


def test_categories_come_from_the_row_or_its_neighbour():
    x = torch.arange(9)[:, None] * torch.tensor([0.37, 0.21, 0.5])
    for categorical in ([2], [-1]):
        new, row, neighbour = drawn(Munge(x, categorical=categorical, seed=0), 5000)
        own, other = x[row, 2], x[neighbour, 2]
        assert ((new[:, 2] == own) | (new[:, 2] == other)).all()
        differ = own != other
        assert abs((new[:, 2] == other)[differ].double().mean().item() - 0.5) < 0.05
        assert (new[:, :2] != x[neighbour, :2]).double().mean() > 0.9  # all others are numbers
        assert not torch.isin(new[:, 0], x[:, 0]).all()


def test_integer_and_boolean_parts_are_categorical():
    rng = np.random.default_rng(0)
    x = {
        "image": rng.normal(size=(12, 3, 2)),
        "codes": rng.integers(0, 100, (12, 5)),
        "flag": rng.random(12) < 0.5,
        "grade": rng.integers(0, 3, 12) * 1.5,
    }
    source = Munge(x, categorical=["grade"], seed=0)
    new, row, neighbour = drawn(source, 1000)
    for name in ("codes", "flag", "grade"):
        part = torch.from_numpy(x[name])
        assert new[name].dtype == part.dtype
        assert ((new[name] == part[row]) | (new[name] == part[neighbour])).all()
    assert new["image"].shape == (1000, 3, 2)
    assert 0.4 < (new["image"] != torch.from_numpy(x["image"])[row]).double().mean() < 0.6
    assert Munge({"codes": x["codes"]})(3).x["codes"].dtype == torch.int64
    assert Munge(x["codes"])(3).x.dtype == torch.int64


def test_duplicates_and_constants_stay_as_they_are():
    x = torch.tensor([[1.0, 2.0]]).repeat(6, 1)
    assert torch.equal(Munge(x, swap=1.0)(4).x, x[:4])


def test_batches_may_be_larger_than_the_data_and_have_no_index():
    batch = Munge(torch.randn(3, 2))(50)
    assert batch.x.shape == (50, 2)
    assert batch.index is None
    assert batch.y is None


def test_one_attribute_without_a_column_axis():
    x = torch.tensor([0.0, 1.0, 5.0])
    assert Munge(x)(7).x.shape == (7,)
    assert torch.isin(Munge(x, categorical=[0])(50).x, x).all()


@pytest.mark.parametrize(
    ("arguments", "argument", "received", "expected"),
    [
        ({"X": [[1.0]]}, "X", "^1 row$", ""),
        ({"swap": 1.5}, "swap", "^1.5$", "a number from 0 to 1"),
        ({"local_variance": 0.0}, "local_variance", "^0.0$", ""),
        ({"categorical": [2]}, "categorical", "^2$", "column numbers below 2"),
        ({"categorical": ["a"]}, "categorical", "'a'", r"X of shape \(3, 2\)"),
        ({"categorical": "a"}, "categorical", "'a'", r"X of shape \(3, 2\)"),
        ({"categorical": [0.5]}, "categorical", "0.5", r"X of shape \(3, 2\)"),
        (
            {"X": np.zeros((2, 2, 2)), "categorical": [1]},
            "categorical",
            "^1$",
            "X of shape",
        ),
        (
            {"X": {"town": [1.0, 2.0]}, "categorical": ["twon"]},
            "categorical",
            "'twon'",
            "did you mean 'town'",
        ),
        ({"X": {"town": [1.0, 2.0]}, "categorical": [0]}, "categorical", "^0$", "'town'"),
    ],
)
def test_bad_arguments_are_refused(arguments, argument, received, expected):
    with refused(argument, received, expected=expected):
        Munge(**{"X": torch.zeros(3, 2)} | arguments)
