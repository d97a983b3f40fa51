r"""The pictures of chapter 4, from results made up."""

import numpy as np
import pytest

from reproduction.chapter4_pictures import pictures, sheets
from tests.refusals import refused
from tests.report.written import assert_written

pytest.importorskip("matplotlib")

REFERENCE = ("AIS, 2008", 451.28, 450.97, 451.52)


def results():
    rng = np.random.default_rng(0)
    teacher = rng.normal(-86, 20, 500)

    def run(hidden, loss, seed):
        found = {
            "hidden": hidden, "loss": loss, "seed": seed,
            "bridge": {"value": 451.27, "std_error": 0.03, "trustworthy": True, "bounds": {}},
            "importance": {"value": 450.9, "std_error": 0.2, "trustworthy": False, "bounds": {}},
            "progress": {"step": [200, 400, 600], "test": [-300.0, -120.0, -94.5]},
        }  # fmt: skip
        return found | ({"sorted": (teacher - 7).tolist()} if seed == 0 else {})

    runs = [run(h, loss, seed) for seed in (0, 1) for h in (250, 500) for loss in ("kl", "se")]
    return {"rbm": {"sorted": teacher.tolist()}, "runs": runs}


def test_every_picture_is_written_and_described(tmp_path):
    said = pictures(results(), tmp_path, reference=REFERENCE)
    assert_written(tmp_path, said, ["log-z.png", "progress.png", "sorted.png"])
    assert said["progress.png"].count("ends at -94.50") == 4
    assert said["sorted.png"].count("on average 7.00 nats below") == 4
    assert said["log-z.png"].count("(doubtful)") == 4
    assert "bridge, square error, 500 451.270 ± 0.090" in said["log-z.png"]


def test_some_of_the_runs_will_do(tmp_path):
    some = results()
    some["runs"] = [run for run in some["runs"] if (run["hidden"], run["loss"]) != (500, "se")]
    assert "square error, 500" not in pictures(some, tmp_path, reference=REFERENCE)["log-z.png"]
    some["runs"] = [run for run in some["runs"] if run["loss"] == "kl"]
    assert "square error" not in pictures(some, tmp_path, reference=REFERENCE)["progress.png"]


@pytest.mark.parametrize("empty", [{}, {"runs": []}])
def test_no_results_are_refused(tmp_path, empty):
    with refused("results", "no finished runs"):
        pictures(empty, tmp_path, reference=REFERENCE)


@pytest.mark.parametrize("count", [1, 3, 5])
def test_sheets_of_several_models(tmp_path, count):
    groups = {f"NADE {i}": np.zeros((9, 784)) for i in range(count)}
    alt = sheets(groups, tmp_path / "samples.png", what="samples")
    assert alt.count("9 samples of 28 by 28 pixels") == count
    assert (tmp_path / "samples.png").stat().st_size > 1000


def test_no_sheets_are_refused(tmp_path):
    with refused("groups", "nothing to draw"):
        sheets({}, tmp_path / "samples.png")
