r"""Chapter 3 in small: the whole way from the settings to JSON, page, pictures and tables."""

import io
import json

import pytest
from rich.console import Console

from reproduction import (
    chapter3,
    chapter3_logistic,
    chapter3_output,
    chapter3_remarks,
)
from reproduction.chapter3_findings import figures, logistic, mixtures
from reproduction.chapter3_remarks import Trial
from reproduction.command import reproduce
from reproduction.record import Asked
from tests.refusals import refused

SETTINGS = chapter3.Settings(
    sizes=(2, 5), chains=4, repeats=2, burn_in=20, draws=200, samples=100, batch=20, steps=10,
    remarks=(5,), data_sets=2, wide_sets=1, counted_sets=1, counts=(1, 2), components=3,
    bag_steps=20, bag_batch=5,
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def few_sweeps():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chapter3_logistic, "THINNED", (100, 10, 2))
        yield


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    pytest.importorskip("matplotlib")
    out = tmp_path_factory.mktemp("chapter-3")
    console = Console(record=True, width=200, file=io.StringIO())
    with pytest.MonkeyPatch.context() as patch:
        few = (Trial("plain", batch=20), Trial("two chains", batch=10, chains=2))
        patch.setattr(chapter3_remarks, "TRIALS", few)
        chapter3_output.report(Asked(None, out, "cpu", False), SETTINGS, console)
    found = json.loads((out / chapter3.FILE).read_text())
    return found, out, console.export_text()


@pytest.mark.slow
def test_every_mixture_is_there_with_its_students(small):
    found = small[0]
    assert found["settings"]["sizes"] == [2, 5]
    assert [each["observations"] for each in found["mixtures"]] == [2, 5]
    for each in found["mixtures"]:
        assert each["pooled"]["draws"] == 4 * 200
        kinds = {name: len(own["kl"]) for name, own in each["students"].items()}
        assert kinds == {
            "batch, text": 2, "online, text": 2, "batch, parallel": 1, "online, parallel": 1
        }  # fmt: skip
        for own in each["students"].values():
            assert own["mean"] == pytest.approx(sum(own["kl"]) / len(own["kl"]))
            assert min(own["kl"]) > 0
        assert each["bytes"] == {"batch": 200 * 24, "online": 20 * 24, "student": 72}
        assert each["pooled"]["kl"] < each["chain"]["highest"]
    assert [each["observations"] for each in found["remarks"]] == [5]
    assert list(found["remarks"][0]["trials"]) == ["plain", "two chains"]


@pytest.mark.slow
def test_every_data_set_is_there_with_its_students(small):
    first, second = small[0]["logistic"]
    wide = [name for name in first["errors"] if "100·I" in name]
    assert len(wide) == 4
    assert set(first["errors"]) - set(second["errors"]) == set(wide)
    ways = ("DSE online", "DSE online, shared draws", "CE online, independent draws")
    assert {"CE batch", *ways, "limbeck", "MCMC", "EP", "EP, MacKay"} <= set(second["errors"])
    for mean, highest, near in second["errors"].values():
        assert 0 < mean < highest < 1
        assert 0 < near < highest
    assert list(first["components"]) == ["1", "2"]
    assert "components" not in second
    assert "shown" in first
    assert "shown" not in second
    assert second["bytes"] == {
        "MCMC": 200 * 8, "online": 5 * 8, "bag": 3 * 8, "weighted bag": 3 * 12, "EP": 48
    }  # fmt: skip
    assert len(first["shown"]["weights"]["limbeck"]["share"].split()) == 3


@pytest.mark.slow
def test_pictures_page_and_tables_are_made_of_the_results(small):
    found, out, told = small
    names = {path.name for path in out.glob("*.png")}
    assert names == {
        "posteriors.png", "densities.png", "divergences.png", "setup.png", "weights.png",
        "surfaces.png", "components.png",
    }  # fmt: skip
    page = (out / "page.md").read_text()
    judged = mixtures(found["mixtures"]) + logistic(figures(found["logistic"]))
    assert len(judged) == 10
    for finding in judged:
        assert f"- {finding.claim}: **{'yes' if finding.held else 'no'}**" in page
    for row in ("| 2 | ", "| 5 | ", "| CE batch | ", "| EP, MacKay | ", "| plain | "):
        assert row in page
    held = sum(finding.held for finding in judged)
    assert f"{held} of 10 claims hold. 7 pictures" in told
    assert "Mixtures: KL from the exact density" in told
    assert "Logistic regression: |t − f|" in told


@pytest.mark.slow
def test_one_part_is_run_alone_and_equal_seeds_give_equal_numbers(small, tmp_path):
    settings = chapter3.Settings(**vars(SETTINGS) | {"parts": ("logistic",), "data_sets": 1})
    found = chapter3.run(tmp_path, settings, progress=False)
    assert "mixtures" not in found
    assert len(found["logistic"]) == 1
    first = small[0]["logistic"][0]
    for name, own in found["logistic"][0]["errors"].items():
        assert list(own) == pytest.approx(first["errors"][name], rel=1e-5), name


@pytest.mark.parametrize(
    ("options", "argument", "received", "expected"),
    [
        ({"parts": ["mixture"]}, "parts", "'mixture'", "did you mean 'mixtures'"),
        ({"parts": []}, "parts", "^none$", ""),
        ({"cells": ["a"]}, "cells", r"^\['a'\]$", "no such option for chapter-3"),
    ],
)
def test_other_options_are_refused(options, argument, received, expected, tmp_path):
    with refused(argument, received, expected=expected):
        reproduce("chapter-3", Asked(None, tmp_path, "cpu", False), **options)
    with refused("sizes", "0"):
        chapter3.Settings(sizes=(0,))
