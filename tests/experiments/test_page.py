r"""The page of the reproduction: chapters stand on it if their results are there."""

import json
import runpy
from pathlib import Path

import pytest

from tests.reproduction.test_chapter2_page import results

ROOT = Path(__file__).parents[2]
pytest.importorskip("matplotlib")
pytestmark = pytest.mark.slow  # of pages and studies, not of the library


@pytest.fixture
def page(tmp_path):
    found = runpy.run_path(str(ROOT / "experiments" / "page.py"), run_name="page")
    names = found["main"].__globals__
    docs = tmp_path / "docs"
    docs.mkdir()
    names["DOCS"] = docs
    for name in ("CHAPTER_2", "BEST_STUDENT", "NOISE", "NOISE_HE", "CHAPTER_3"):
        names[name] = tmp_path / names[name].name
    return names


def written(page):
    page["main"]()
    return (page["DOCS"] / "reproduction.md").read_text(encoding="utf-8")


def test_without_chapter_2_the_page_is_chapter_4s(page):
    text = written(page)
    assert text.startswith("# Reproduction\n\n## Chapter 4")
    assert "## Do the error bars hold?" in text


def test_chapter_2_and_the_best_student_come_first(page):
    page["CHAPTER_2"].write_text(json.dumps(results()))
    figures = {"accuracy": [98.4, 98.5], "log_prob": [-0.052, -0.051]}
    final = {
        "share": "tenth", "labels": False, "weights": "averaged", "steps": 150_000,
        "config": {"strength": 1.0, "lr": 0.003}, "test": figures,
        "mean": {"accuracy": 98.45, "log_prob": -0.0515},
        "std_error": {"accuracy": 0.05, "log_prob": 0.0005},
    }  # fmt: skip
    best = {
        "teacher": {"accuracy": [98.7, 0.1], "log_prob": [-0.049, 0.004]}, "final": [final],
        "trained": [{"phase": "search"}] * 3, "hardware": "a GPU",
    }  # fmt: skip
    page["BEST_STUDENT"].write_text(json.dumps(best))
    of_noise = {
        "settings": {
            "members": 3, "teacher_hidden": [20, 10], "teacher_steps": 3000, "steps": 600,
            "seeds": 2,
        },
        "scales": [{
            "scale": 0.5, "teacher": {"accuracy": 97.5, "log_prob": -0.1},
            "students": [{"accuracy": a, "log_prob": -0.4} for a in (80.0, 90.0)],
        }],
    }  # fmt: skip
    page["NOISE"].write_text(json.dumps(of_noise))
    page["NOISE_HE"].write_text(json.dumps(results()))
    text = written(page)
    parts = ("## Chapter 2", "### Why noise differs", "### The best student", "## Chapter 4")
    places = [text.index(part) for part in parts]
    assert "| × 0.5 | 97.50 | -0.1000 | 85.00 | -0.4000 |" in text
    assert "(3 nets 784-20-10-10, 3,000 steps)" in " ".join(text.split())
    assert "| 10% | DSE | accuracy | 75.17 |" in text
    assert places == sorted(places)
    assert "| 10% | none | 98.45 ± 0.05 | 98.40 | 98.50 | -0.0515 ± 0.0005 | 150,000 |" in text
    assert "among 3 trials; then 2 seeds" in " ".join(text.split())
    for name in ("accuracy.png", "cells.png", "nade.png", "log-probability.png"):
        assert f"](pictures/chapter-2/{name})" in text
        assert (page["DOCS"] / "pictures" / "chapter-2" / name).exists()
