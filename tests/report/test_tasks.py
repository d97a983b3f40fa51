r"""Pages of every task, and of sizes that are not usual."""

import numpy as np
import pytest

from limbeck import storage
from limbeck.compression.fidelity.report import fidelity
from limbeck.report import page, pictures
from tests.report.test_page import Checked

pytest.importorskip("matplotlib")

RNG = np.random.default_rng(0)
LONG = "a class with a very long name " * 6


def written(report, tmp_path, **more):
    content = {"verb": "compress", "fidelity": report.to_dict(), "summary": report.sentence()}
    storage.write(tmp_path, {**content, **more})
    return Checked(page.write(tmp_path).read_text(encoding="utf-8"))


def probabilities(n, k):
    return RNG.dirichlet(np.ones(k), n)


def test_several_labels(tmp_path):
    p, s = RNG.random((2, 40, 3))
    y = (p > 0.4).astype(int)
    found = written(fidelity("multilabel", p, s, y, classes=["x", "y<", "z"]), tmp_path)
    assert "only the teacher predicts it" in found.said
    assert "y<" in found.said


def test_several_targets(tmp_path):
    t = RNG.normal(size=(30, 2))
    found = written(fidelity("regression", t, t + 0.1, t, classes=["u", "v"]), tmp_path)
    assert "each target" in found.said


def test_many_classes_with_long_names(tmp_path):
    k = 60
    p, s = probabilities(80, k), probabilities(80, k)
    names = [f"{LONG}{place}" for place in range(k)]
    y = [names[place] for place in p.argmax(1)]
    found = written(fidelity("classification", p, s, y, classes=names), tmp_path)
    assert "rows differ" in found.said


def test_one_row_without_labels(tmp_path):
    p = probabilities(1, 2)
    found = written(fidelity("classification", p, p), tmp_path)
    assert "Both agree on every row." in found.said
    assert "Calibration" not in found.said


def test_a_history_of_one_look_or_with_gaps(tmp_path):
    report = fidelity("classification", probabilities(9, 2), probabilities(9, 2))
    one = written(report, tmp_path / "one", history={"step": [1], "loss": [2.0]})
    assert "How it learned" not in one.said
    gaps = {"step": [1, 2, 3], "loss": [2.0, float("nan"), 1.0], "kl": [1e3, 1e2, 1e1]}
    assert "How it learned" in written(report, tmp_path / "two", history=gaps).said


def test_long_names_of_groups_stay_apart(tmp_path):
    p, s = probabilities(90, 2), probabilities(90, 2)
    groups = {LONG: [f"{LONG}{place % 3}" for place in range(90)]}
    report = fidelity("classification", p, s, groups=groups)
    written(report, tmp_path)
    drawn = pictures.subgroups(storage.read(tmp_path))
    labels = [tick.get_text() for tick in drawn.get_yticklabels()]
    assert len(set(labels)) == 3
    assert max(map(len, labels)) < 40
