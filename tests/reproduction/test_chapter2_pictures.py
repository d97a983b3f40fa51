r"""The pictures of chapter 2, from numbers made up."""

import numpy as np
import pytest

from reproduction.chapter2_pictures import Point, cells, curves, drawn, sheets
from tests.refusals import refused

pytest.importorskip("matplotlib")


def run(cell, seed=0, last=97.0):
    found = {"cell": cell, "seed": seed}
    curve = {
        "samples": [200, 2000, 20_000],
        "accuracy": [55.0, 90.0, last],
        "log_prob": [-1.8, -0.4, -0.1],
    }
    return found | {"curve": curve}


def test_curves_of_every_generator_and_the_teachers_level(tmp_path):
    runs = [run(f"{g}-all-ce", last=v) for g, v in (("mnist", 97.1), ("noise", 91.5))]
    alt = curves(runs, tmp_path / "a.png", "accuracy", ("teacher", 98.7))
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "cross entropy, all images: MNIST ends at 97.1; Gaussian noise ends at 91.5." in alt
    assert "derivative square error, all images: nothing was run." in alt
    assert "10% of the images" not in alt
    assert alt.endswith("Dashed: teacher, 98.7.")
    alt = curves([*runs, run("nade-tenth-dse")], tmp_path / "b.svg", "log_prob")
    assert "derivative square error, 10% of the images: NADE ends at -0.1." in alt


def test_of_each_student_the_first_curve_is_drawn():
    runs = [{"cell": "mnist-all-ce"}, run("mnist-all-ce", 3, 96.0), run("mnist-all-ce", 4, 97.0)]
    assert drawn([*runs, run("labels-all")])["mnist-all-ce"]["accuracy"][-1] == 96.0
    assert list(drawn([*runs, run("labels-all")])) == ["mnist-all-ce"]


def test_nothing_to_draw_is_refused(tmp_path):
    with refused("runs", "no curves"):
        curves([{"cell": "mnist-all-ce"}], tmp_path / "a.png", "accuracy")
    with refused("measure", expected="did you mean 'accuracy'"):
        curves([run("mnist-all-ce")], tmp_path / "a.png", "acuracy")
    with refused("points", "nothing"):
        cells({"accuracy": {}}, tmp_path / "a.png")
    with refused("groups", "nothing"):
        sheets({}, tmp_path / "a.png")


def test_cells_beside_the_texts(tmp_path):
    points = {
        "accuracy": {"MNIST, all": Point(97.2, 0.1, 97.46, 0.31)},
        "log_prob": {"MNIST, all": Point(-0.108, 0.002, -0.110, 0.017)},
    }
    alt = cells(points, tmp_path / "cells.png")
    assert "MNIST, all 97.2 (the text 97.46 ± 0.31)" in alt
    assert "MNIST, all -0.108 (the text -0.11 ± 0.017)" in alt


def test_sheets_of_arrays_and_of_text_are_the_same_picture(tmp_path):
    rows = np.array([[0, 5, 10, 15, 15, 0]]) / 15
    for name, given in (("array", rows), ("text", ["05aff0"])):
        alt = sheets({"samples": given}, tmp_path / f"{name}.png", (2, 3))
        assert "1 images of 2 by 3 pixels" in alt
    assert (tmp_path / "array.png").read_bytes() == (tmp_path / "text.png").read_bytes()


def test_long_titles_of_sheets_take_two_lines(tmp_path):
    rows = np.zeros((1, 6))
    long = "NADE from 10% of the images, probabilities"
    sheets({"NADE, bits": rows, long: rows}, tmp_path / "long.svg", (2, 3))
    drawn = (tmp_path / "long.svg").read_text().partition("</metadata>")[2]
    assert ">NADE from 10% of the images,<" in drawn
    assert ">probabilities<" in drawn
    sheets({"NADE, bits": rows}, tmp_path / "short.svg", (2, 3))
    assert ">NADE, bits<" in (tmp_path / "short.svg").read_text()


def test_no_room_is_left_above_what_can_be_reached(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(
        "reproduction.chapter2_pictures.save",
        lambda figure, *more: kept.append(figure.axes[0].get_ylim()),
    )
    for measure in ("accuracy", "log_prob"):
        curves([run("mnist-all-ce")], tmp_path / "a.png", measure, ("teacher", 0.0))
    assert kept == [pytest.approx((60, 101.2)), pytest.approx((-1.5, 0.045))]
