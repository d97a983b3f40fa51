r"""What is concluded from chapter 2's numbers: the text's own must bear its conclusions out."""

import numpy as np
import pytest

from reproduction.chapter2 import CELLS
from reproduction.chapter2_findings import (
    QUANTITIES,
    Comparison,
    Figure,
    conclusions,
    figures,
    verdict,
)
from reproduction.thesis import CHAPTER_2


def as_runs(changes=None, seeds=2):
    r"""Runs with the text's numbers, changed where asked."""
    runs = []
    for seed in range(seeds):
        for cell, text in CHAPTER_2.items():
            entry = {"cell": cell, "seed": seed}
            for name in QUANTITIES[:2]:
                number = getattr(text, name)
                entry[name] = [(changes or {}).get((cell, name), number.value), number.bar / 2]
            if text.difference_accuracy is not None:
                entry["difference"] = {
                    name: [
                        getattr(text, f"difference_{name}").value,
                        getattr(text, f"difference_{name}").bar / 2,
                    ]
                    for name in QUANTITIES[:2]
                }
            runs.append(entry)
    return runs


def held(runs):
    return {each.letter: each.held for each in conclusions(figures(runs))}


def test_the_texts_cells_are_ours():
    assert list(CHAPTER_2) == list(CELLS)
    for name, text in CHAPTER_2.items():
        assert (text.difference_accuracy is None) == name.startswith("labels")


def test_the_texts_differences_are_those_of_its_tables():
    for name, text in CHAPTER_2.items():
        if text.difference_accuracy is not None:
            direct = CHAPTER_2[f"labels-{CELLS[name].share}"]
            apart = text.accuracy.value - direct.accuracy.value
            assert text.difference_accuracy.value == pytest.approx(apart, abs=0.011)
            apart = text.log_prob.value - direct.log_prob.value
            assert text.difference_log_prob.value == pytest.approx(apart, abs=0.0021)


def test_the_texts_numbers_bear_out_its_conclusions():
    assert held(as_runs()) == dict.fromkeys("abcde", True)


@pytest.mark.parametrize(
    ("cell", "value", "lost"),
    [
        ("noise-all-ce", 97.5, {"a"}),
        ("mnist-all-dse", 97.9, {"c"}),
        ("mnist-tenth-ce", 96.65, {"d", "e"}),
        ("nade-tenth-ce", 94.6, {"e"}),
    ],
)
def test_other_numbers_do_not(cell, value, lost):
    found = held(as_runs({(cell, "accuracy"): value}))
    assert {letter for letter, word in found.items() if not word} == lost


def test_what_was_not_run_is_not_judged():
    runs = [entry for entry in as_runs() if "tenth" in entry["cell"]]
    found = held(runs)
    assert (found["c"], found["d"]) == (None, True)
    assert set(held([]).values()) == {None}


def test_a_difference_must_be_two_standard_errors():
    assert Comparison("one", "two", "accuracy", 0.3, 0.149).holds
    assert not Comparison("one", "two", "accuracy", 0.3, 0.151).holds
    assert not Comparison("one", "two", "accuracy", -1.0, 0.1).holds


def test_figures_are_means_over_seeds_with_their_standard_errors():
    values = [97.0, 97.4, 97.9, 96.8]
    runs = [
        {"cell": "labels-all", "seed": seed, "accuracy": [value, 0.2], "log_prob": [-0.1, 0.01]}
        for seed, value in enumerate(values)
    ]
    figure = figures(runs)["labels-all"]["accuracy"]
    assert figure.mean == pytest.approx(np.mean(values))
    assert figure.error == pytest.approx(np.std(values, ddof=1) / 2)
    assert (figure.low, figure.high, figure.seeds) == (96.8, 97.9, 4)
    assert figure.bar == pytest.approx(0.4)
    alone = figures(runs[:1])["labels-all"]["accuracy"]
    assert alone.error == pytest.approx(0.2)  # of one seed, that over test examples


@pytest.mark.parametrize(
    ("mean", "word"), [(97.46, "within"), (97.16, "within"), (97.10, "below"), (97.8, "better")]
)
def test_verdicts(mean, word):
    assert verdict("mnist-all-ce", "accuracy", Figure(mean, 0.1, 0, 0, 0, 5)) == word
