r"""Exported students of tables: what the file says of a frame is what torch says."""

import importlib.util
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import limbeck as lb
from limbeck.compression.training import Answering
from limbeck.export import Portable, export
from limbeck.export import table_onnx as table_export
from limbeck.export.table_onnx import feeds
from limbeck.tables.table import Table
from tests.refusals import raises_about, refused
from tests.tables.frames import frame

pd = pytest.importorskip("pandas")
needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnxscript", "onnxruntime")),
    reason="needs the extra limbeck[onnx]",
)


TABLE = Table(frame(), categories=["code", "share", "street"])


def net(outputs, table=TABLE, seed=0):
    encoder = table.encoder()
    mlp = lb.MLP(encoder.width, 6, outputs, generator=torch.Generator().manual_seed(seed))
    return nn.Sequential(encoder, mlp)


def ready(module, table, classes=None, task="classification"):
    classes = None if classes is None else np.asarray(classes).tolist()
    return Portable(module, None, "probabilities", classes, task, table, module.student)


def to_onnx(student, table, path, classes=None):
    result = SimpleNamespace(
        portable=lambda: ready(Answering(student, "classification"), table, classes)
    )
    return export(result, path, "onnx", card=False)


def session(path):
    import onnxruntime

    path = path if isinstance(path, bytes) else str(path)
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


@needs_onnx
def test_one_named_input_a_column_and_labels_out(tmp_path):
    student = net(3)
    path = to_onnx(student, TABLE, tmp_path / "new" / "s.onnx", classes=["rot", "grün", "blau"])
    assert [file.name for file in path.parent.iterdir()] == ["s.onnx"]
    assert student.training
    file = session(path)
    types = {entry.name: entry.type for entry in file.get_inputs()}
    assert types == {
        "age": "tensor(float)", "pay in €": "tensor(float)", "town": "tensor(string)",
        "street": "tensor(string)", "flag": "tensor(bool)", "maybe": "tensor(float)",
        "code": "tensor(int64)", "share": "tensor(double)", "day": "tensor(double)",
        "3": "tensor(float)",
    }  # fmt: skip
    about = json.loads(file.get_modelmeta().custom_metadata_map["limbeck"])
    assert Table.from_spec(about["table"]).spec() == TABLE.spec()
    # a frame with rows that the table has never seen, written down by hand
    given = {
        "age": np.array([[30], [41]], np.float32),
        "pay in €": np.array([[np.nan], [2e4]], np.float32),
        "town": np.array([["<missing>"], [""]], object),
        "street": np.array([["3. Straße"], ["elsewhere"]], object),
        "flag": np.array([[True], [False]]),
        "maybe": np.array([[np.nan], [1]], np.float32),
        "code": np.array([[20], [99]]),
        "share": np.array([[np.nan], [0.25]]),
        "day": np.array([[1577923200], [1577923200]], np.float64),
        "3": np.array([[0.5], [-2]], np.float32),
    }
    df = pd.DataFrame(
        {
            "age": [30, 41],
            "pay in €": [np.nan, 2e4],
            "town": [None, ""],
            "street": ["3. Straße", "elsewhere"],
            "flag": [True, False],
            "maybe": pd.array([None, True], dtype="boolean"),
            "code": [20, 99],
            "share": [np.nan, 0.25],
            "day": pd.to_datetime(["2020-01-02"] * 2),
            3: [0.5, -2],
        }
    )
    expected = student(TABLE.encode(df)).softmax(1).detach().numpy()
    label, probabilities = file.run(["label", "probabilities"], given)
    np.testing.assert_allclose(probabilities, expected, atol=1e-6)
    assert label.tolist() == [["rot", "grün", "blau"][k] for k in probabilities.argmax(1)]
    given["age"][1] = np.nan  # where the data had no gaps
    none, answers = file.run(["label", "probabilities"], given)
    assert none.tolist() == [label[0], ""]
    np.testing.assert_allclose(answers[0], expected[0], atol=1e-6)
    assert np.isnan(answers[1]).all()
    # and what `feeds` makes of a frame
    other = frame(7, seed=1)
    found = file.run(["probabilities"], feeds(TABLE, other))[0]
    np.testing.assert_allclose(
        found, student(TABLE.encode(other)).softmax(1).detach().numpy(), atol=1e-6
    )


SMALL = pd.DataFrame({"x": [1.0, 2.0, 4.0, 3.0], "c": ["a", "b", "a", "b"]})


@pytest.fixture(scope="module")
def traced():
    r"""The part of the graph that torch writes, once for several tests."""
    table = Table(SMALL)
    whole = Answering(net(3, table), "classification", "logits")
    batch = table.encode(SMALL)
    with torch.no_grad():
        return table_export._traced(ready(whole, table), batch), whole(batch), whole


@needs_onnx
@pytest.mark.parametrize(
    "classes", [None, ["u", "v", "w"], [True, False, True], [7, -5, 9], [0.5, 1.5, -2.0],
                np.array([7, -5, 9], dtype=object), pd.Index(["é", "", "w"])]
)  # fmt: skip
def test_labels_are_of_the_users_own_kind(traced, classes):
    core, p, whole = traced
    table = Table(SMALL)
    model = table_export._assembled(core, ready(whole, table, classes), 3)
    label, found = session(model.SerializeToString()).run(None, feeds(table, SMALL))
    np.testing.assert_allclose(found, p, atol=1e-6)
    names = np.arange(3) if classes is None else np.asarray(classes)
    assert label.tolist() == [names[k] for k in found.argmax(1)]


@needs_onnx
def test_several_labels_are_ones_and_zeros_and_values_stay(traced):
    core, p, whole = traced
    table = Table(SMALL)
    several, values = (
        session(
            table_export._assembled(core, ready(whole, table, None, task), 3).SerializeToString()
        )
        for task in ("multilabel", "regression")
    )
    label = several.run(["label"], feeds(table, SMALL))[0]
    assert (p - 0.5).abs().min() > 1e-4, "so rounding decides nothing"
    assert label.tolist() == (p > 0.5).long().tolist()
    assert [(entry.name, entry.shape) for entry in values.get_outputs()] == [
        ("label", ["batch", 3])
    ]
    np.testing.assert_allclose(values.run(None, feeds(table, SMALL))[0], p, atol=1e-6)


class Only(nn.Module):
    def forward(self, x):
        return x["y"]


Z = torch.tensor([[0.5, -1.0], [2.0, 3.0]])


@pytest.mark.parametrize(
    ("task", "form", "y", "expected"),
    [
        ("classification", "logits", Z, Z.softmax(1)),
        ("classification", "log_probabilities", Z.log_softmax(1), Z.softmax(1)),
        ("classification", "probabilities", Z.softmax(1), Z.softmax(1)),
        ("classification", "logits", Z[:, 0], torch.stack([-Z[:, 0], Z[:, 0]], 1).sigmoid()),
        ("multilabel", "logits", Z, Z.sigmoid()),
        ("multilabel", "logits", Z[:, :1], Z[:, :1].sigmoid()),
        ("multilabel", "probabilities", Z.sigmoid(), Z.sigmoid()),
        ("regression", "values", Z, Z),
        ("regression", "logits", Z[:, 0], Z[:, :1]),
    ],
)
def test_outputs_become_probabilities_or_values(task, form, y, expected):
    torch.testing.assert_close(Answering(Only(), task, form)({"y": y}), expected)


@needs_onnx
def test_a_file_that_disagrees_is_not_left_behind(tmp_path, monkeypatch, traced):
    monkeypatch.setattr(table_export, "_traced", lambda model, batch: traced[0])
    table = Table(SMALL)
    student = net(3, table).double()
    to_onnx(student, table, tmp_path / "s.onnx")
    assert student[1].layers[0].weight.dtype == torch.float64  # the user's own is as it was
    (tmp_path / "s.onnx").unlink()
    with raises_about(lb.LimbeckError, "ONNX", "disagrees"):
        to_onnx(net(3, table, seed=1), table, tmp_path / "s.onnx")
    assert not list(tmp_path.iterdir())


@needs_onnx
def test_a_student_that_cannot_be_exported_is_refused_with_the_reason(tmp_path, monkeypatch):
    def refuse(*args, **options):
        raise RuntimeError("a reason\nand more")

    monkeypatch.setattr(torch.onnx, "export", refuse)
    table = Table(SMALL)
    with raises_about(lb.LimbeckError, "Sequential", "a reason"):
        to_onnx(net(2, table), table, tmp_path / "s.onnx")
    assert not list(tmp_path.iterdir())


def test_bad_arguments_are_refused(tmp_path, monkeypatch):
    table = Table(SMALL)
    student, path = net(2, table), tmp_path / "s.onnx"
    with refused("path", expected=r"a name that ends in \.onnx"):
        to_onnx(student, table, tmp_path / "s.pt")
    labelled = Table(SMALL.rename(columns={"x": "label"}))
    with refused("table", "a column 'label'"):
        to_onnx(net(2, labelled), labelled, path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with raises_about(lb.LimbeckError, "limbeck[onnx]"):
        to_onnx(student, table, path)


@needs_onnx
def test_labels_must_fit(tmp_path):
    table = Table(SMALL)
    with refused("classes", r"labels of shape \(3,\)"):
        to_onnx(net(2, table), table, tmp_path / "s.onnx", classes=[1, 2, 3])


def test_a_boolean_that_cannot_be_missing_is_not_invented():
    df = pd.DataFrame({"flag": [True, False, True]})
    table = Table(df)
    with refused("df['flag']", "1 missing values"):
        feeds(table, pd.DataFrame({"flag": pd.array([True, None], dtype="boolean")}))
