r"""Model cards tell what it is, what goes in and out, how it was made, and when to doubt."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import limbeck as lb
from limbeck.export import card, export
from limbeck.text import markdown
from tests.export.students import net, seeded
from tests.refusals import warns_about

X = torch.randn(60, 4, generator=seeded())
HEADINGS = [
    "Use", "Inputs", "Outputs", "How it was made", "How faithful it is", "Checks", "Intended use",
    "When not to trust it", "Versions",
]  # fmt: skip


def compressed(**options):
    from sklearn.ensemble import RandomForestClassifier

    x = X.numpy()
    teacher = RandomForestClassifier(3, random_state=0).fit(x, np.where(x[:, 0] > 0, "ja", "nein"))
    return lb.compress(
        teacher, x, student=(3,), inputs="data", steps=5, pool=60, device="cpu", progress=False,
        **options,
    )  # fmt: skip


def sections(text):
    return re.findall(r"^## (.*)$", text, re.MULTILINE)


def test_a_card_of_a_compressed_teacher(tmp_path):
    result = compressed(seed=7)
    report = result.report(X.numpy(), time=False)
    result.export(tmp_path / "s.npz", report=report, title="Of the forest")
    text = (tmp_path / "s.npz.md").read_text()
    assert sections(text) == HEADINGS
    assert text.startswith("# Of the forest\n")
    assert "like its teacher, RandomForestClassifier, for classification: MLP." in text
    assert "| x | (n, 4) |" in text
    assert "probabilities, from 0 to 1" in text
    assert "`ja`, `nein`" in text
    assert "| seed | 7 |" in text
    assert report.shipped({p.name: p.stat().st_size for p in result.exported}).sentence() in text
    assert f"| torch | {torch.__version__} |" in text
    assert "| limbeck |" in text
    assert "from s import predict" in text


def test_what_is_not_known_is_said():
    text = card(net(), "s.pt2", "pt2")
    assert sections(text) == HEADINGS
    assert "Not known." in text
    assert "No report was passed" in text
    assert "logits: a softmax" in text
    assert "Not run" in card(net(), "s.onnx", "onnx", None)


def test_doubts_of_the_result_are_in_its_card():
    stuck = torch.cat([torch.zeros(200, 5), torch.ones(200, 5)]).reshape(2, 200, 5)
    stuck = stuck + 1e-3 * torch.randn(2, 200, 5, generator=seeded())
    predict = lambda draw, x: lb.Bernoulli(logits=x @ draw["w"][:4])  # noqa: E731
    with warns_about("R̂"):
        result = lb.condense(
            {"w": stuck}, predict, X, components=2, steps=2, device="cpu", progress=False
        )
    assert result.diagnostics.reasons
    text = card(result)
    doubts = text.split("## When not to trust it")[1]
    for reason in result.diagnostics.reasons:
        assert markdown(reason) in doubts
    assert "chains that had not mixed" in doubts


def test_plain_notes_are_no_doubts():
    result = replace(compressed(), notes=["Note: numbers are codes.", "Doubtful: it is far off."])
    text = card(result)
    doubts = text.split("## When not to trust it")[1]
    assert "it is far off" in doubts
    assert "numbers are codes" not in doubts
    assert "numbers are codes" in text.split("## How it was made")[1].split("## ")[0]


def test_columns_of_a_table_are_told_for_each_format(tmp_path):
    pd = pytest.importorskip("pandas")
    df = pd.DataFrame({"a|b": [1.0, 2.0, np.nan, 3.0], "town": ["x", "y", "x", "y"]})
    result = lb.compress(
        lambda rows: np.asarray(rows["town"] == "x", float), df, student=(2,), inputs="data",
        steps=2, pool=4, task="regression", device="cpu", progress=False,
    )  # fmt: skip
    assert "| a&#124;b | (n, 1) float32 |" in card(result, "s.onnx", "onnx")
    assert r"| a&#124;b\_\_missing | (n,) bool |" in card(result, "s.pt2", "pt2")
    text = card(result, "s.npz", "numpy")
    assert "| town | n values | category: 'x', 'y'" in text
    assert "values, in the units of the teacher" in text
    assert "treated as unknown" in text


def test_no_card_if_none_is_wanted(tmp_path):
    export(net(), tmp_path / "s.pt2", card=False)
    assert [file.name for file in tmp_path.iterdir()] == ["s.pt2"]
