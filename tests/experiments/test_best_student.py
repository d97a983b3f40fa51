r"""The search for the best student, in small: it chooses, goes on, and keeps to its budget."""

import json
import runpy
from pathlib import Path

import pytest
import torch

from reproduction import data, keeping
from tests.reproduction.digits import SETTINGS, small

pytestmark = pytest.mark.slow  # of pages and studies, not of the library

PATH = Path(__file__).parents[2] / "experiments" / "best_student.py"


@pytest.fixture
def script(monkeypatch):
    found = runpy.run_path(str(PATH), run_name="best_student")
    monkeypatch.setattr(data, "mnist", lambda folder: small())
    names = found["main"].__globals__
    names["STAGES"] = (("strength", (0.2, 0.4)), ("derivatives", (0.0, 1e-3)), ("nade", (0.0, 0.5)),
                       ("labels", (0.0, 1.0)))  # fmt: skip
    names["BASE"] = names["BASE"] | {"batch": 20, "lr": 1e-2}
    return names


def call(script, out, *more):
    arguments = ["--out", str(out), "--device", "cpu", "--quiet", "--search-steps", "30",
                 "--steps", "60", "--seeds", "3", "--crowd", "2", *more]  # fmt: skip
    return script["main"](arguments, SETTINGS)


def test_from_search_to_test_figures(script, tmp_path, capsys):
    found = call(script, tmp_path, "--with-labels", "--together", "2")
    assert json.loads((tmp_path / "best-student.json").read_text()) == found
    searched = [entry for entry in found["trained"] if entry["phase"] == "search"]
    assert len(searched) == 2 * 5  # values met before are not trained again
    assert all(len(entry["last"]["accuracy"]) == 2 for entry in searched)
    assert [(each["share"], each["labels"]) for each in found["final"]] == [
        ("all", False), ("all", True), ("tenth", False), ("tenth", True),
    ]  # fmt: skip
    for each in found["final"]:
        assert len(each["test"]["accuracy"]) == 3
        assert bool(each["config"]["labels"]) == each["labels"]
        assert each["mean"]["accuracy"] == pytest.approx(sum(each["test"]["accuracy"]) / 3)
        known = [e for e in searched if e["share"] == each["share"]]
        judged = [
            script["score"](e)[0] for e in known if bool(e["config"]["labels"]) == each["labels"]
        ]
        assert each["validation"] == max(judged)
    assert "nothing is left to do" in capsys.readouterr().out


def test_the_figures_are_those_of_the_saved_students(script, tmp_path):
    found = call(script, tmp_path, "--share", "all")
    (final,) = found["final"]
    digits = small()
    for seed in range(3):
        file = tmp_path / "students" / f"all-{final['weights']}-{seed}.safetensors"
        crowd, _ = keeping.read(file, "cpu")
        with torch.no_grad():
            right = crowd(digits.test)[:, 0].argmax(1) == digits.test_labels
        accuracy = 100 * right.float().mean().item()
        assert final["test"]["accuracy"][seed] == pytest.approx(accuracy, abs=1e-3)


def test_students_of_the_search_see_no_image_that_they_are_judged_on(script, tmp_path):
    ask = script["argparse"].Namespace(out=tmp_path, device="cpu", quiet=True, teacher=None)
    bench = script["Bench"](ask, small(), SETTINGS)
    held_out = bench.parts.x[bench.seen :]
    assert len(held_out) == 33
    for share in ("all", "tenth"):
        rows = bench.split.rows[share]
        source = bench._inputs(bench.split, share, rows, script["BASE"])
        assert not any((image == source.data.x).all(1).any() for image in held_out)
    assert bench.split.rows["tenth"] == bench.parts.rows["tenth"] == 20


def test_a_budget_is_kept_and_the_next_call_goes_on(script, tmp_path, capsys):
    assert call(script, tmp_path, "--seconds-budget", "0", "--share", "all")["trained"] == []
    assert "call again to go on" in capsys.readouterr().out
    first = call(script, tmp_path, "--share", "all", "--phase", "search")
    assert {entry["phase"] for entry in first["trained"]} == {"search"}
    second = call(script, tmp_path, "--share", "all", "--phase", "final")
    assert second["trained"][: len(first["trained"])] == first["trained"]
    third = call(script, tmp_path, "--share", "all", "--seconds-budget", "0")  # all is there
    assert third["trained"] == second["trained"]
    assert third["final"] == second["final"]


def test_a_pool_holds_the_source_s_own_inputs_and_what_the_teacher_says_of_them(script, tmp_path):
    ask = script["argparse"].Namespace(out=tmp_path, device="cpu", quiet=True, teacher=None)
    bench = script["Bench"](ask, small(), SETTINGS)
    config = script["BASE"] | {"original": 1.0, "labels": 1.0}  # copies that are the images
    loss = script["crowd_error"](labels=1.0)
    source = bench._inputs(bench.parts, "all", 200, config)
    stored, data = bench._pooled(source, 500, loss, seed=3)
    assert data.x.shape == (500, 20)
    images = {tuple(x.tolist()): y for x, y in zip(bench.parts.x, bench.parts.y, strict=True)}
    assert all(images[tuple(x.tolist())] == y for x, y in zip(data.x, data.y, strict=True))
    with torch.no_grad():
        torch.testing.assert_close(stored.values, bench.teacher.log_probabilities(data.x))
    found = call(script, tmp_path, "--share", "all", "--pool", "300", "--with-labels")
    assert all(entry["config"]["pool"] == 300 for entry in found["trained"])
    assert [each["labels"] for each in found["final"]] == [False, True]
