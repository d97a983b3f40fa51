r"""`python -m reproduction` in small, as the command line calls it."""

import json

import pytest

from reproduction import chapter2, data
from reproduction.command import CHAPTERS, reproduce
from reproduction.record import Asked
from tests.reproduction.digits import SETTINGS, small


@pytest.fixture
def tiny(monkeypatch):
    r"""Chapter 2 on small images, with small nets."""
    plain = chapter2.Settings

    def settings(**options):
        return plain(**vars(SETTINGS) | options)

    monkeypatch.setattr(chapter2, "Settings", settings)
    monkeypatch.setattr(data, "mnist", lambda folder: small())


def test_chapter_2_from_the_data_to_page_and_pictures(tiny, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    out = tmp_path / "out"
    options = {
        "seeds": 1,
        "cells": ["mnist-*-ce", "nade-all-*"],
        "steps_factor": 0.5,
        "steps": None,
    }
    reproduce("chapter-2", Asked(tmp_path, out, "cpu", False), **options)
    found = json.loads((out / "chapter-2.json").read_text())
    assert [entry["cell"] for entry in found["runs"]] == [
        "labels-all", "labels-tenth", "mnist-all-ce", "mnist-tenth-ce", "nade-all-ce",
        "nade-all-dse",
    ]  # fmt: skip
    assert {entry["cell"]: entry["steps"] for entry in found["runs"]}["mnist-all-ce"] == 20
    pictures = {path.name for path in out.glob("*.png")}
    assert pictures == {
        "accuracy.png", "cells.png", "digits.png", "log-probability.png", "nade.png",
    }  # fmt: skip
    assert "## Chapter 2" in (out / "page.md").read_text()
    said = " ".join(capsys.readouterr().out.split())
    assert "figures are within the text's error bar or better" in said
    assert "5 pictures, page.md and chapter-2.json are in" in said


def test_every_chapter_says_which_options_it_takes():
    assert sorted(CHAPTERS) == ["chapter-2", "chapter-3", "chapter-4"]
    assert all("seeds" in taken for _, taken in CHAPTERS.values())
