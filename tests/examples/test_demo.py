r"""The demo: what it prints, and what it refuses."""

import contextlib
import html
import io
import json
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

from examples import demo as demos
from limbeck.cli.folder import folder_lock
from limbeck.report.blocks import minus


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    out, printed, said = str(tmp_path_factory.mktemp("demo")), io.StringIO(), io.StringIO()
    arguments = ["--steps", "30", "--members", "2", "--json", "--quiet", "--out", out]
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(said),
    ):
        warnings.filterwarnings("ignore", "posterior: R̂")  # of thirty steps, rightly
        demos.main(arguments)
    return SimpleNamespace(stdout=printed.getvalue(), stderr=said.getvalue())


@pytest.fixture(scope="module")
def contents(demo):
    return json.loads(demo.stdout)


@pytest.mark.slow
def test_the_demo_compresses_an_ensemble_from_few_images(contents):
    models = {model["role"]: model for model in contents["compress"]["models"]}
    sizes = [(64, 200), (200, 100), (100, 10)]
    assert models["teacher"]["parameters"] == 2 * sum((i + 1) * o for i, o in sizes)
    assert models["student"]["parameters"] == 65 * 38 + 39 * 10
    measures = contents["compress"]["fidelity"]["measures"]
    assert measures["teacher"]["accuracy"][0] > 0.9
    for name in ("accuracy", "agreement"):
        assert 0.15 < measures["student"][name][0] <= 1  # above chance, after thirty steps


@pytest.mark.slow
def test_the_demo_condenses_a_posterior_into_ten_draws(contents):
    agreement = contents["condense"]["agreement"]
    assert agreement["bytes"] == [10_000 * 2 * 4, 128]
    assert 0 < agreement["mean_error"] < agreement["max_error"] < 0.3
    assert not contents["condense"]["density"]


@pytest.mark.slow
def test_the_demo_finds_log_z(contents):
    exact, estimates = contents["normalize"]["exact"], contents["normalize"]["log_z"]
    assert [z["method"] for z in estimates] == ["bridge", "importance", "ais"]
    for z in estimates:  # after thirty steps they may be poor, but not confidently wrong
        assert abs(z["value"] - exact) < 5 * z["std_error"] or not z["trustworthy"]
    assert abs(estimates[0]["value"] - exact) < 0.2


@pytest.mark.slow
def test_the_demo_says_what_it_does_beside_the_json(demo):
    assert "Training a teacher on 1,297 images of digits: 2 nets 64-200-100-10" in demo.stderr
    assert "derivatives at 129 images, no labels" in demo.stderr
    assert "Training an RBM with 16 hidden units" in demo.stderr


@pytest.mark.slow
def test_the_demo_writes_one_page_on_all_verbs(demo, contents):
    where = demo.stderr.split("The reports are on ")[1].split(". Next")[0]
    page = Path("".join(where.split()))
    text = page.read_text(encoding="utf-8")
    for verb, content in contents.items():
        assert (page.parent / verb / "result.json").exists()
        own = (page.parent / verb / "report.html").read_text(encoding="utf-8")
        assert f"examples/demo.py {verb}" in own
        assert html.escape(minus(content["summary"])) in text
        assert f'href="{verb}/report.html"' in text
    assert "limbeck logz rbm.npz" in text


@pytest.mark.slow
def test_one_part_without_matplotlib_has_no_page(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(demos.importlib.util, "find_spec", lambda name: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of three steps, rightly
        demos.run("condense", 1, 3, 0, as_json=True, progress=False, folder=tmp_path)
    said = capsys.readouterr()
    assert list(json.loads(said.out)) == ["condense"]
    assert "A report needs jinja2 and matplotlib" in said.err
    assert [path.name for path in tmp_path.iterdir()] == ["condense"]  # the result folder


def test_an_unknown_part_is_refused(capsys):
    with pytest.raises(SystemExit):
        demos.main(["normalise"])
    assert "invalid choice: 'normalise'" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [("--steps", "0"), ("--members", "0"), ("--seed", "-1")], ids=str)
def test_numbers_that_make_no_sense_are_refused(tmp_path, wrong):
    with pytest.raises(SystemExit) as ended:
        demos.main(["compress", *wrong, "--quiet", "--out", str(tmp_path / "demo")])
    assert str(ended.value).startswith(f"demo: {wrong[0][2:]}: expected ")


def test_a_folder_that_another_run_uses_is_refused(tmp_path):
    with folder_lock(tmp_path / "out"), pytest.raises(SystemExit, match="another run is using"):
        demos.main(["condense", "--out", str(tmp_path / "out")])
