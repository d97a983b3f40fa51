r"""MUNGE on tables: columns stay whole, whatever is missing."""

import numpy as np
import pytest
import torch

from limbeck.tables.table import Table
from tests.refusals import refused

pd = pytest.importorskip("pandas")


def frame(n=60, seed=0):
    g = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "x": np.where(g.random(n) < 0.4, np.nan, g.normal(size=n)),
            "y": g.normal(size=n),
            "count": g.integers(0, 50, n),
            "bit": g.integers(0, 2, n),
            "town": g.choice(["Ulm", "Bonn", None], n),
            "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(g.integers(0, 900, n), unit="D"),
        }
    )


def pairs():
    r"""Pairs of neighbours, in some of which one value of x is missing and in some both are."""
    x = [1.0, np.nan, np.nan, 2.0, 5.0, 7.5, np.nan, np.nan]
    pair = np.repeat(["a", "b", "c", "d"], 2)
    return pd.DataFrame({"x": x, "p": pair, "q": pair, "r": pair})


def drawn(n=20_000, df=None, **options):
    df = frame() if df is None else df
    table = Table(df)
    source = table.munge(df, seed=3, **options)
    draw = source.draw(n)
    data = source.data.x
    own = {key: part[draw["row"]] for key, part in data.items()}
    other = {key: part[draw["neighbour"]] for key, part in data.items()}
    return table, source.build(draw).x, own, other


def test_a_value_and_its_mask_come_from_the_same_row():
    table, new, own, other = drawn(df=pairs())
    mask = "x__missing"
    mixed = own[mask] != other[mask]
    assert 0.4 < mixed.double().mean() < 0.6
    from_own = (new["x"] == own["x"]) & (new[mask] == own[mask])
    from_other = (new["x"] == other["x"]) & (new[mask] == other[mask])
    assert (from_own | from_other)[mixed].all()
    assert abs(from_other[mixed].double().mean().item() - 0.5) < 0.02
    fill = next(c.fill for c in table.columns if c.name == "x")
    assert (new["x"][new[mask]] == fill).all()


def test_present_values_are_replaced_as_munge_says():
    _, new, own, other = drawn(local_variance=2.0)
    present = ~own["x__missing"] & ~other["x__missing"]
    for key, rows in {"x": present, "y": torch.ones_like(present)}.items():
        changed = rows & (new[key] != own[key])
        standard = (new[key] - other[key]) / ((own[key] - other[key]).abs() / 2)
        assert abs(changed[rows].double().mean().item() - 0.5) < 0.03
        assert abs(standard[changed].mean().item()) < 0.05
        assert abs(standard[changed].std().item() - 1) < 0.05


def test_the_student_sees_what_the_teacher_sees():
    table, new, _, _ = drawn(2000)
    again = table.encode(table.to_frame(new))
    assert all(torch.equal(again[key], part) for key, part in new.items())
    assert (new["count"] == new["count"].round()).all()
    assert set(new["bit"].tolist()) == {0, 1}
    assert not torch.isin(new["count"], table.encode(frame())["count"]).all()


def test_equal_seeds_give_equal_draws_and_tensors_will_do():
    table = Table(frame())
    batch = table.encode(frame())
    for given in (frame(), batch):
        one, two = table.munge(given, seed=1)(50).x, table.munge(batch, seed=1)(50).x
        assert all(torch.equal(one[key], two[key]) for key in one)


@pytest.mark.parametrize(
    ("options", "argument", "received"),
    [({"swap": 2}, "swap", "^2$"), ({"local_variance": 0}, "local_variance", "^0$")],
)
def test_bad_arguments_are_refused(options, argument, received):
    with refused(argument, received):
        Table(frame()).munge(frame(), **options)
    with refused("X", expected="two rows or more"):
        Table(frame()).munge(frame()[:1])
