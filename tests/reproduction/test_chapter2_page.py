r"""Chapter 2's page, table and pictures, from results made of the text's own numbers."""

import pytest
from rich.console import Console

from reproduction.chapter2 import CELLS, Settings
from reproduction.chapter2_output import pictures, table
from reproduction.chapter2_page import page
from reproduction.thesis import CHAPTER_2
from tests.report.written import assert_written
from tests.reproduction.test_chapter2_findings import as_runs


def results(changes=None, **more):
    runs = [entry | {"seconds": 10.0} for entry in as_runs(changes)]
    for entry in runs[: len(CELLS)]:
        entry["curve"] = {
            "samples": [200, 2000, 20_000],
            "accuracy": [50.0, 90.0, entry["accuracy"][0]],
            "log_prob": [-2.0, -0.5, entry["log_prob"][0]],
        }
    return {
        "hardware": "a GPU", "torch": "2.9", "settings": vars(Settings(seeds=(0, 1))),
        "teachers": [{"accuracy": [98.71, 0.11], "log_prob": [-0.049, 0.004], "digest": "a"}],
        "nades": [], "samples": {"all": {"bits": ["0f" * 392], "probabilities": ["7a" * 392]}},
        "runs": runs, "seconds": 1234.0, "shape": [28, 28], **more,
    }  # fmt: skip


def rows(text, title):
    part = text.split(f"### {title}")[1].split("###")[0]
    return [line for line in part.splitlines() if line.startswith("| ")][1:]


def test_every_table_has_every_cell_with_the_texts_number():
    text = page(results())
    assert text.startswith("# Reproduction\n\n## Chapter 2")
    for title, quantity, digits in (
        ("Accuracy on the test set", "accuracy", 2),
        ("Average log probability", "log_prob", 3),
        ("Difference in accuracy", "difference_accuracy", 2),
        ("Difference in log probability", "difference_log_prob", 3),
    ):
        lines = rows(text, title)
        students = {n: t for n, t in CHAPTER_2.items() if not n.startswith("labels")}
        assert len(lines) == len(students) == 12
        for line, printed in zip(lines, students.values(), strict=True):
            number = getattr(printed, quantity)
            shown = f"| {number.value:.{digits}f} ± {number.bar:.{digits}f} "
            assert f"{shown}| {number.value:.{digits}f} |" in line
            assert line.endswith("| within |")
    assert len(rows(text, "The same net trained on the labels alone")) == 4
    assert "28 are within the text's error bar, 0 are better and 0 are below it." in text
    assert "98.71 ± 0.22%" in text


def test_what_is_below_the_text_is_named_with_its_seeds():
    text = page(results({("nade-tenth-ce", "accuracy"): 95.81}))
    assert "27 are within the text's error bar, 0 are better and 1 are below it:" in text
    (line,) = [line for line in text.splitlines() if line.startswith("- NADE, 10%")]
    assert "accuracy 95.81, 0.83 below the text, or 2.3 of its error bars" in line


def test_conclusions_stand_with_their_rules_and_numbers():
    text = page(results({("mnist-tenth-dse", "accuracy"): 94.0}))
    lines = [line for line in text.splitlines() if line.startswith("- **(")]
    assert [line[4:7] for line in lines] == [f"({letter})" for letter in "abcde"]
    words = ["Did not hold" if "Did not hold" in line else "Held" for line in lines]
    assert words == ["Held", "Held", "Held", "Did not hold", "Held"]
    assert "accuracy -0.63" in lines[3]
    assert all("*Rule:*" in line for line in lines)


def test_a_note_several_teachers_and_shorter_runs_are_told():
    found = results(note="Two runs joined.")
    found["teachers"] *= 2
    found["settings"] = found["settings"] | {"steps_factor": 0.1}
    text = page(found)
    assert text.endswith("Two runs joined.\n")
    assert "These runs have 2 teachers" in text
    assert "multiplied by 0.1" in text


def test_some_of_the_cells_will_do():
    found = results(teachers=[], samples={})
    found["runs"] = [run for run in found["runs"] if run["cell"] == "nade-all-ce"]
    text = page(found)
    assert len(rows(text, "Accuracy on the test set")) == 1
    assert text.count("**Not run**") == 5
    assert "The same net trained on the labels alone" not in text


def test_the_table_on_the_terminal_has_every_cell():
    console = Console(width=100, record=True)
    console.print(table(results()["runs"]))
    shown = console.export_text()
    for name in CELLS:
        assert name in shown
    assert "97.46±0.00" in shown


@pytest.mark.slow
def test_every_picture_is_written_and_described(tmp_path):
    pytest.importorskip("matplotlib")
    said = pictures(results(), tmp_path)
    assert_written(tmp_path, said, ["accuracy.png", "cells.png", "log-probability.png", "nade.png"])
    assert "NADE ends at 97.6" in said["accuracy.png"]
    assert "Dashed: teacher, 98.71." in said["accuracy.png"]
    assert "MNIST, 10%, derivative square error 96.36 (the text 96.36 ± 0.37)" in said["cells.png"]
    bare = pictures(results(runs=[], samples={}, teachers=[]), tmp_path)
    assert bare == {}
