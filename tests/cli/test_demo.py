r"""`limbeck demo`: what it prints, and what it refuses."""

import json
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

from limbeck import cli
from limbeck import demo as demos


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    out = str(tmp_path_factory.mktemp("demo"))
    arguments = ("demo", "--steps", "30", "--members", "2", "--json", "--quiet", "--out", out)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "posterior: R̂")  # of thirty steps, rightly
        return CliRunner().invoke(cli.app, arguments)


@pytest.fixture(scope="module")
def contents(demo):
    assert demo.exit_code == 0, demo.output
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
    where = demo.stderr.split("The report on all parts is ")[1].split(". Next")[0]
    page = Path("".join(where.split()))
    text = page.read_text(encoding="utf-8")
    for verb, content in contents.items():
        assert (page.parent / verb / "result.json").exists()
        assert f"limbeck demo {verb}" in text
        assert (
            content["summary"] in json.loads((page.parent / "report.json").read_text())["findings"]
        )
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


def test_an_unknown_part_of_the_demo_is_refused(refused):
    assert "did you mean 'normalize'?" in refused("demo", "normalise")


def test_a_bad_number_is_refused(limbeck):
    found = limbeck("demo", "compress", "--members", "0", "--quiet")
    assert found.code == 2
    (line,) = found.err.splitlines()
    assert line.startswith("limbeck: Invalid value for '--members': ")


@pytest.mark.parametrize("wrong", [("--steps", "0"), ("--members", "0"), ("--seed", "-1")], ids=str)
def test_numbers_that_make_no_sense_are_refused(limbeck, tmp_path, wrong):
    found = limbeck("demo", "condense", *wrong, "--out", tmp_path / "demo")
    assert found.code == 2
    assert f"Invalid value for '{wrong[0]}'" in found.err
    assert not (tmp_path / "demo").exists()
