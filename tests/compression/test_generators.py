r"""Inputs made of the user's rows: what each name gives."""

import numpy as np
import pytest
import torch

from limbeck.compression.generators import GENERATORS, candidates, fit_nade, fresh, generator
from limbeck.compression.rows import ArrayFormat, read_rows
from tests.refusals import refused

CPU = torch.device("cpu")


def correlated(n=400, seed=0):
    g = torch.Generator().manual_seed(seed)
    a = torch.randn(n, 1, generator=g)
    return torch.cat([a, 2 * a + 0.2 * torch.randn(n, 1, generator=g)], 1)


def correlation(x):
    return float(torch.corrcoef(x.T)[0, 1])


def drawn(name, x, count=600, seed=0):
    return fresh(name, ArrayFormat(tuple(x.shape[1:])), x, count, seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(GENERATORS.keys() - {"flow"}))
def test_as_many_as_asked_of_the_same_kind_and_the_same_again(name):
    x = correlated(120).sigmoid() if name == "nade" else correlated(120)  # shades
    one, two = drawn(name, x, 250), drawn(name, x, 250)
    assert one.shape == (250, 2)
    assert one.dtype == torch.float32
    assert one.isfinite().all()
    assert torch.equal(one, two)
    assert not torch.equal(one, drawn(name, x, 250, seed=1))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("munge", 0.9), ("noise", 0.85), ("mixture", 0.9)])
def test_columns_stay_together(name, least):
    x = correlated()
    found = drawn(name, x)
    assert correlation(found) > least
    torch.testing.assert_close(found.mean(0), x.mean(0), atol=0.3, rtol=0)
    torch.testing.assert_close(found.std(0), x.std(0), atol=0.3, rtol=0.2)


def test_columns_on_their_own_are_independent_and_of_the_data():
    x = correlated()
    found = drawn("columns", x, 2000)
    assert abs(correlation(found)) < 0.1
    for k in range(2):
        assert torch.isin(found[:, k], x[:, k]).all()


def test_bits_stay_bits():
    g = torch.Generator().manual_seed(0)
    first = torch.rand(300, 1, generator=g).round()
    x = torch.cat([first, first, torch.rand(300, 1, generator=g).round()], 1)
    for name in ("munge", "columns", "nade"):
        found = drawn(name, x)
        assert ((found == 0) | (found == 1)).all()
    together = drawn("nade", x)
    assert (together[:, 0] == together[:, 1]).float().mean() > 0.9


def test_shades_are_conditional_probabilities():
    g = torch.Generator().manual_seed(0)
    x = (torch.rand(300, 4, 4, generator=g) < 0.3).float() * 0.99
    x[:, 0, 0] = 0.5
    found = fit_nade(x, 0, False)(50, g)
    assert found.shape == (50, 4, 4)
    assert ((found > 0) & (found < 1)).all()
    assert len(found.unique()) > 20


def test_a_nade_is_of_bits_or_shades():
    with refused("inputs", "'nade' for numbers"):
        drawn("nade", correlated())


def test_names_and_tables():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": np.arange(40.0), "b": list("xyxy") * 10})
    frame.loc[3, "a"] = None
    rows = read_rows(frame)
    assert candidates(rows.format, rows.x) == ["data", "munge", "columns"]
    for name in ("data", "munge", "columns", "noise"):
        found = rows.format.decode(fresh(name, rows.format, rows.x, 60, 0))
        assert list(found.columns) == ["a", "b"]
        assert set(found["b"]) <= {"x", "y"}
        assert found["a"].isna().mean() < 0.3
    with refused("inputs", expected="munge"):
        generator("nade", rows.format, rows.x, seed=0)
    with refused("inputs", expected="did you mean"):
        generator("noize", rows.format, rows.x, seed=0)


def test_one_row_is_only_itself():
    assert candidates(ArrayFormat((2,)), torch.ones(1, 2)) == ["data"]


def test_auto_fits_no_density():
    x = torch.randn(600, 3, generator=torch.Generator().manual_seed(0))
    assert candidates(ArrayFormat((3,)), x) == ["data", "munge", "noise"]
    assert candidates(ArrayFormat((3,)), (x > 0).float()) == ["data", "munge", "columns"]
