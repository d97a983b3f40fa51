r"""A frame with a column of every kind, as several tests of tables need it."""

import numpy as np
import pytest

pd = pytest.importorskip("pandas")


def frame(n=50, seed=0, street="{}. Straße"):
    g = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": g.integers(18, 90, n),
            "pay in €": np.where(g.random(n) < 0.2, np.nan, g.normal(3e4, 1e4, n)),
            "town": pd.Series(g.choice(["Köln", "", "東京"], n)).mask(g.random(n) < 0.2),
            "street": g.choice([street.format(k) for k in range(20)], n),
            "flag": g.random(n) < 0.5,
            "maybe": pd.array(g.choice([True, False, None], n), dtype="boolean"),
            "code": g.choice([10, 20, 30], n),
            "share": g.choice([0.1, 0.25, np.nan], n),
            "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(g.integers(0, 900, n), unit="D"),
            "one": "x",
            3: g.normal(size=n),
        }
    )
