r"""The CSV logger: every look is a row, also across interruptions and runs."""

import csv
import json

import pytest

import limbeck as lb
from limbeck.training.callbacks import CSVLogger
from tests.refusals import refused
from tests.training.short import CutError, distilled


def read(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_rows_are_the_history(tmp_path):
    result = distilled(CSVLogger(tmp_path / "new" / "log.csv"))
    rows = read(tmp_path / "new" / "log.csv")
    assert set(rows[0]) == {"run", *result.history}
    for name, values in result.history.items():
        assert [float(row[name]) for row in rows] == values
    (settings,) = json.loads((tmp_path / "new" / "log.json").read_text()).values()
    assert settings["seed"] == 0
    assert settings["loss"] == result.settings["loss"]


def test_a_run_that_goes_on_has_every_step_once(tmp_path):
    path = tmp_path / "log.csv"
    with pytest.raises(CutError):  # at the look of step 8; the checkpoint is of step 4
        distilled(CSVLogger(path), tmp_path / "c", 12, cut=3)
    assert [row["step"] for row in read(path)] == ["2", "4", "6"]
    with open(path, "a") as file:
        file.write("MLP-1,8")  # and a row that was cut off
    result = distilled(CSVLogger(path), tmp_path / "c", 12)
    rows = read(path)
    assert [int(row["step"]) for row in rows] == result.history["step"] == [2, 4, 6, 8, 10, 12]
    assert [float(row["loss"]) for row in rows] == result.history["loss"]


def test_other_runs_stay_and_the_same_is_replaced(tmp_path):
    path = tmp_path / "log.csv"
    for seed in (0, 1, 0):
        distilled(CSVLogger(path), seed=seed)
    distilled(CSVLogger(path), seed=2, held_out=lb.inputs.Dataset([[1.0, 2.0, 3.0, 4.0]]))
    rows = read(path)
    runs = [row["run"] for row in rows]
    assert len(rows) == 12
    assert len(set(runs)) == 3
    assert rows[0]["held_out"] == ""
    assert float(rows[-1]["held_out"]) > 0
    assert len(json.loads((tmp_path / "log.json").read_text())) == 3


def test_files_of_others_are_not_touched(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("a,b\n1,2\n")
    with refused("callbacks", "which is another file"):
        distilled(CSVLogger(path))
    assert path.read_text() == "a,b\n1,2\n"
    with refused("path", expected=r"does not end in \.json"):
        CSVLogger(tmp_path / "log.json")
    with refused("callbacks", "CSVLogger"):
        distilled(CSVLogger(tmp_path / "data.csv" / "log.csv"))
