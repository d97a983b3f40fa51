r"""ONNX files: one input or one a column, labels beside probabilities, names of classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from limbeck.compression.dispatch import as_row_teacher
from limbeck.export import export
from limbeck.models import MLP
from tests.refusals import refused

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from onnx import TensorProto, helper  # noqa: E402

X = np.random.default_rng(0).normal(size=(40, 3))
FLOAT, DOUBLE, INT64, STRING = (
    TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64, TensorProto.STRING,
)  # fmt: skip


def write(path: Path, nodes, inputs, outputs) -> Path:
    graph = helper.make_graph(nodes, "model", inputs, outputs)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), str(path))
    return path


def tensor(name: str, kind: int, *shape):
    return helper.make_tensor_value_info(name, kind, shape)


def classifier(path: Path, names, *, zipmap: bool = False, rows=None) -> Path:
    r"""Softmax of x, with the labels that a scikit-learn converter would write."""
    strings = isinstance(names[0], str)
    key = "classlabels_strings" if strings else "classlabels_int64s"
    nodes = [
        helper.make_node("Softmax", ["x"], ["p"], axis=1),
        helper.make_node(
            "LinearClassifier", ["x"], ["label", "unused"], domain="ai.onnx.ml",
            coefficients=np.eye(3).ravel().tolist(), intercepts=[0.0] * 3, multi_class=1,
            **{"classlabels_strings" if strings else "classlabels_ints": names},
        ),
    ]  # fmt: skip
    outputs = [tensor("label", STRING if strings else INT64, rows)]
    if zipmap:
        nodes.append(
            helper.make_node(
                "ZipMap", ["p"], ["probabilities"], domain="ai.onnx.ml", **{key: names}
            )
        )
        outputs.append(helper.make_empty_tensor_value_info("probabilities"))
        kind = helper.make_map_type_proto(
            STRING if strings else INT64, helper.make_tensor_type_proto(FLOAT, [])
        )
        outputs[1].type.CopyFrom(helper.make_sequence_type_proto(kind))
    else:
        nodes.append(helper.make_node("Identity", ["p"], ["probabilities"]))
        outputs.append(tensor("probabilities", FLOAT, rows, 3))
    return write(path, nodes, [tensor("x", FLOAT, rows, 3)], outputs)


def softmax(x: np.ndarray) -> np.ndarray:
    return torch.as_tensor(x).softmax(1).numpy()


def test_a_student_of_our_own(tmp_path) -> None:
    student = MLP(3, 4, 5, generator=torch.Generator().manual_seed(0))
    path = export(student, tmp_path / "student.onnx", input_shape=3, card=False)
    with refused("task", expected='teacher_output="logits"'):
        as_row_teacher(path, X)
    teacher = as_row_teacher(str(path), X, teacher_output="logits")
    np.testing.assert_allclose(teacher(X), as_row_teacher(student, X)(X), atol=1e-6)
    assert (teacher.name, teacher.task, teacher.outputs) == ("student.onnx", "classification", 5)
    assert (teacher.module, teacher.bytes()) == (None, path.stat().st_size)
    values = as_row_teacher(path, X, task="regression")
    assert (values.form, values.outputs) == ("values", 5)
    assert values.fingerprint() != teacher.fingerprint()  # the same file, read in two ways


@pytest.mark.parametrize("names", [["ant", "bee", "cat"], [3, 5, 9], [0, 1, 2]])
@pytest.mark.parametrize("zipmap", [False, True])
def test_labels_and_probabilities(names, zipmap, tmp_path) -> None:
    teacher = as_row_teacher(classifier(tmp_path / "m.onnx", names, zipmap=zipmap), X)
    assert (teacher.task, teacher.classes.tolist()) == ("classification", names)
    np.testing.assert_allclose(teacher(X), softmax(X), atol=1e-6)
    np.testing.assert_array_equal(teacher.predict(X), np.array(names)[X.argmax(1)])


def test_names_that_no_label_tells_are_asked_for(tmp_path) -> None:
    path = classifier(tmp_path / "m.onnx", ["ant", "bee", "cat"])
    some = X[X.argmax(1) != 1]
    with refused("classes", "None, and the file's labels at X show 2 of 3 names"):
        as_row_teacher(path, some)
    teacher = as_row_teacher(path, some, classes=["ant", "bee", "cat"])
    assert teacher.classes.tolist() == ["ant", "bee", "cat"]


def test_what_is_said_must_agree_with_labels_and_probabilities(tmp_path) -> None:
    path = classifier(tmp_path / "m.onnx", [0, 1, 2])
    for said in ({"task": "regression"}, {"task": "multilabel"}, {"teacher_output": "logits"}):
        ((argument, value),) = said.items()
        known = "classification" if argument == "task" else "probabilities"
        with refused(argument, f"'{value}' for m.onnx", expected=f"'{known}'"):
            as_row_teacher(path, X, **said)


def test_several_labels(tmp_path) -> None:
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["probabilities"]),
        helper.make_node("Round", ["probabilities"], ["r"]),
        helper.make_node("Cast", ["r"], ["label"], to=INT64),
    ]
    outputs = [tensor("label", INT64, None, 3), tensor("probabilities", FLOAT, None, 3)]
    path = write(tmp_path / "m.onnx", nodes, [tensor("x", FLOAT, None, 3)], outputs)
    teacher = as_row_teacher(path, X)
    assert teacher.task == "multilabel"
    np.testing.assert_allclose(teacher(X), 1 / (1 + np.exp(-X)), atol=1e-6)


@pytest.mark.parametrize("zipmap", [False, True])
def test_a_fixed_number_of_rows_is_filled_up(zipmap, tmp_path) -> None:
    path = classifier(tmp_path / "m.onnx", ["ant", "bee", "cat"], zipmap=zipmap, rows=7)
    np.testing.assert_allclose(as_row_teacher(path, X)(X), softmax(X), atol=1e-6)


def test_inputs_come_in_the_files_own_type(tmp_path) -> None:
    nodes = [helper.make_node("Mul", ["x", "x"], ["y"])]
    for kind, rows in ((DOUBLE, X), (INT64, (9 * X).astype(int))):
        path = write(
            tmp_path / "m.onnx", nodes, [tensor("x", kind, None, 3)], [tensor("y", kind, None, 3)]
        )
        teacher = as_row_teacher(path, rows, task="regression")
        np.testing.assert_array_equal(teacher(rows), np.square(rows))
    with refused("X", "values of"):
        teacher(np.array([["a", "b", "c"]]))


def test_one_input_a_column(tmp_path) -> None:
    pandas = pytest.importorskip("pandas")
    nodes = [
        helper.make_node(
            "LabelEncoder", ["colour"], ["code"], domain="ai.onnx.ml", keys_strings=["red", "blue"],
            values_floats=[1.0, -1.0], default_float=0.0,
        ),
        helper.make_node("Mul", ["size", "code"], ["y"]),
    ]  # fmt: skip
    inputs = [tensor("size", FLOAT, None, 1), tensor("colour", STRING, None, 1)]
    path = write(tmp_path / "m.onnx", nodes, inputs, [tensor("y", FLOAT, None, 1)])
    frame = pandas.DataFrame(
        {"colour": ["red", "blue", "green"], "more": [0, 0, 0], "size": [2.0, 3.0, 4.0]}
    )
    teacher = as_row_teacher(path, frame, task="regression")
    assert teacher.predict(frame).tolist() == [2, -3, 0]
    columns = {name: frame[name].to_numpy() for name in ("size", "colour")}
    assert teacher.predict(columns).tolist() == [2, -3, 0]
    for rows in (X, frame[["size"]]):
        with refused("X", "rows without .*'colour'"):
            teacher(rows)


def test_one_of_several_outputs_is_named(tmp_path) -> None:
    nodes = [helper.make_node("Identity", ["x"], ["a"]), helper.make_node("Neg", ["x"], ["b"])]
    outputs = [tensor(name, FLOAT, None, 3) for name in ("a", "b")]
    path = write(tmp_path / "m.onnx", nodes, [tensor("x", FLOAT, None, 3)], outputs)
    with refused("onnx_output", "None", expected=r"'a' \(tensor\(float\)\), 'b'"):
        as_row_teacher(path, X)
    with refused("onnx_output", "'c'", expected="'a'"):
        as_row_teacher(path, X, onnx_output="c")
    teacher = as_row_teacher(path, X, task="regression", onnx_output="b")
    np.testing.assert_allclose(teacher(X), -X, atol=1e-6)
    with refused("onnx_output", "'b' for a teacher that is not an ONNX file"):
        as_row_teacher(lambda x: x, X, onnx_output="b")


def test_one_of_several_outputs_keeps_its_class_names(tmp_path) -> None:
    for zipmap in (False, True):
        path = classifier(tmp_path / "m.onnx", ["ant", "bee", "cat"], zipmap=zipmap)
        teacher = as_row_teacher(path, X, onnx_output="probabilities")
        assert teacher.classes.tolist() == ["ant", "bee", "cat"]


def test_whole_numbers_are_not_cut_off(tmp_path) -> None:
    path = write(
        tmp_path / "m.onnx", [helper.make_node("Mul", ["x", "x"], ["y"])],
        [tensor("x", INT64, None, 3)], [tensor("y", INT64, None, 3)],
    )  # fmt: skip
    for rows in (X, np.full((2, 3), np.nan)):
        with refused("X", "fractions or gaps", expected="'x'"):
            as_row_teacher(path, rows, task="regression")


def test_labels_alone(tmp_path) -> None:
    nodes = [helper.make_node("ArgMax", ["x"], ["y"], axis=1, keepdims=0)]
    path = write(
        tmp_path / "m.onnx", nodes, [tensor("x", FLOAT, None, 3)], [tensor("y", INT64, None)]
    )
    with refused("teacher", "labels without probabilities"):
        as_row_teacher(path, X)
    sure = as_row_teacher(path, X, task="classification", classes=[0, 1, 2])
    np.testing.assert_array_equal(sure.predict(X), X.argmax(1))
    assert set(sure(X).ravel()) == {0.0, 1.0}


def test_weights_in_another_file_belong_to_the_content(tmp_path) -> None:
    found = []
    for value in (1.0, 2.0):
        weight = onnx.numpy_helper.from_array(np.full(1000, value, np.float32), "w")
        folder = tmp_path / str(value)
        folder.mkdir()
        graph = helper.make_graph(
            [helper.make_node("Mul", ["x", "w"], ["y"])], "model", [tensor("x", FLOAT, None, 1000)],
            [tensor("y", FLOAT, None, 1000)], [weight],
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        onnx.save(model, str(folder / "m.onnx"), save_as_external_data=True, location="weights.bin")
        (folder / "notes.md").write_text(f"nothing to do with it: {value}")
        rows = np.ones((2, 1000))
        found.append(as_row_teacher(folder / "m.onnx", rows, task="regression"))
    one, two = found
    assert (folder / "m.onnx").read_bytes() == (tmp_path / "1.0" / "m.onnx").read_bytes()
    assert one.fingerprint() != two.fingerprint()
    assert one.bytes() > 4000
    files = [tmp_path / "1.0" / name for name in ("m.onnx", "weights.bin")]
    assert one.bytes() == sum(file.stat().st_size for file in files)
