r"""Tables as ONNX graphs: one named input a column."""

from __future__ import annotations

import copy
import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from limbeck import outputs as forms
from limbeck.compression.training import only_finite
from limbeck.errors import ArgumentError, LimbeckError
from limbeck.export.portable import (
    TOLERANCE,
    check_agreement,
    export_error,
    quietly,
    random_rows,
    relative_difference,
)
from limbeck.tables.columns import Category, Column, Number
from limbeck.tables.table import Table

__all__ = ["Nodes", "Port", "feed", "feeds", "nodes", "port", "to_onnx"]


class Port(NamedTuple):
    r"""What an ONNX input takes.

    Attributes:
        dtype: The NumPy type of its array (n, 1); object stands for strings.
        missing: What stands for a missing value; None where there is no such thing, since the
            data had none.
        unknown: Something that is none of the categories; None for numbers and booleans.
    """

    dtype: type
    missing: Any
    unknown: Any = None


def port(column: Column) -> Port:
    r"""What the input of a column takes.

    Numbers are float32, or float64 where float32 lacks digits; dates are seconds since 1970, in
    UTC, as float64; a missing one is NaN. Categories are strings (a missing one is the empty
    string), int64 (the least one), float64 (NaN) or booleans; booleans of which some are missing
    are float32 (NaN). Where the data had no gaps, nothing stands for a missing value: a number or
    category that is NaN makes the answer NaN.
    """
    if isinstance(column, Number):
        kind = np.float64 if column.origin or column.kind == "date" else np.float32
        return Port(kind, np.nan if column.mask else None)
    assert isinstance(column, Category)
    kind = type(column.categories[0])
    if kind is bool:
        return Port(np.float32, np.nan, 0.5) if column.missing else Port(np.bool_, None)
    gaps = column.missing > 0
    if kind is float:
        unknown = _free(column, 0.5, lambda value: value + 1)
        return Port(np.float64, np.nan if gaps else None, unknown)
    if kind is int:
        least = _free(column, -(2**63), lambda value: value + 1)
        unknown = _free(column, least + 1, lambda value: value + 1)
        return Port(np.int64, least if gaps else None, unknown)
    gone = _free(column, "", lambda text: text + "<missing>") if gaps else None
    return Port(object, gone, _free(column, "<unknown>", lambda text: text + "_"))


def _free(column: Category, value: Any, following: Any) -> Any:
    r"""The first of some values that is no category."""
    while value in column.categories:
        value = following(value)
    return value


def feed(column: Column, batch: Mapping[str, Tensor]) -> np.ndarray[Any, Any]:
    r"""What the input of a column is given, (n, 1), for its tensors."""
    takes = port(column)
    parts = {key: batch[key].numpy(force=True) for key in column.keys}
    if isinstance(column, Number):
        values = parts[column.key].astype(np.float64) + column.origin
        if column.mask:
            values = np.where(parts[column.mask], np.nan, values)
    else:
        assert isinstance(column, Category)
        if takes.dtype is np.bool_ and (parts[column.key] > 1).any():
            received = "missing values, which the file's booleans cannot be"
            raise ArgumentError(column.argument, received, "True and False, as the data had")
        choices = np.empty(len(column.categories) + 2, dtype=object)
        choices[:] = [*column.categories, takes.unknown, takes.missing]
        values = choices[parts[column.key]]
    return values.astype(takes.dtype).reshape(-1, 1)


def nodes(column: Column, name: str, outputs: list[str], inside: str) -> list[Any]:
    r"""The ONNX nodes from an input (n, 1) to the tensors (n,) of its column.

    Arguments:
        column: The column.
        name: The input's name.
        outputs: The names of its tensors, in the order of `column.keys`.
        inside: What names of intermediate results begin with.
    """
    made = Nodes(inside)
    row = made("Squeeze", name, made.constant(np.array([1])))
    takes = port(column)
    if isinstance(column, Number):
        if takes.dtype is np.float64:
            row = made("Sub", row, made.constant(np.array(column.origin)))
            row = made("Cast", row, to=1)  # to float32
        if not column.mask:  # the answer to NaN is NaN, where the data had no gaps
            made("Identity", row, output=outputs[0])
            return made.nodes
        gone = made("IsNaN", row)
        made(
            "Where", gone, made.constant(np.array(column.fill, np.float32)), row, output=outputs[0]
        )
        made("Identity", gone, output=outputs[1])
        return made.nodes
    assert isinstance(column, Category)
    if takes.dtype is np.bool_:
        made("Cast", row, to=7, output=outputs[0])  # to int64
        return made.nodes
    known = dict(zip(column.categories, range(column.unknown), strict=True))
    if takes.dtype in (object, np.int64):
        gaps = {takes.missing: column.gone} if column.missing else {}
        codes = made.lookup(row, known | gaps, takes.dtype, column.unknown)
    else:  # floats without gaps have the code of a missing value all the same: the answer is NaN
        codes = made.lookup(row, known, takes.dtype, column.unknown)
        codes = made("Where", made("IsNaN", row), made.constant(np.array(column.gone)), codes)
    made("Identity", codes, output=outputs[0])
    return made.nodes


class Nodes:
    r"""A list of ONNX nodes that grows by calls, each of which gives its output's name."""

    def __init__(self, inside: str) -> None:
        self.nodes: list[Any] = []
        self.inside = inside

    def __call__(
        self, operator: str, *inputs: str, output: str | None = None, **attributes: Any
    ) -> str:
        from onnx import helper

        name = output or f"{self.inside}/{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def constant(self, value: np.ndarray[Any, Any]) -> str:
        from onnx import numpy_helper

        return self("Constant", value=numpy_helper.from_array(value))

    def lookup(self, row: str, known: dict[Any, int], dtype: type, default: int) -> str:
        r"""Codes of values, by a table of all that is known."""
        from onnx import numpy_helper

        def tensor(values: Any, dtype: type) -> Any:
            return numpy_helper.from_array(np.array(list(values), dtype=dtype))

        return self(
            "LabelEncoder",
            row,
            domain="ai.onnx.ml",
            keys_tensor=tensor(known, dtype),
            values_tensor=tensor(known.values(), np.int64),
            default_tensor=tensor([default], np.int64),
        )


TASKS = ("classification", "multilabel", "regression")
CORE = "student/"  # what all names inside the student's graph begin with


def to_onnx(
    student: nn.Module,
    table: Table,
    path: str | Path,
    classes: Sequence[Any] | np.ndarray[Any, Any] | None = None,
    task: str = "classification",
    output: str = "auto",
) -> Path:
    r"""Write a student of a table's tensors as an ONNX file, which is run and compared with torch.

    Inputs are arrays (n, 1), one for each column that varies, by its name: see `port` for their
    types and for what stands for missing values; `feeds` makes them of a frame. The file's
    metadata say the same as JSON. Outputs are

    * "label": in classification (n,) the most probable class, a string or number of `classes`, or
      its number; in multilabel tasks (n, K) zeros and ones; in regression the values (n, K);
    * "probabilities": (n, K), but for regression.

    A row with NaN or infinity in a column where the data had no gaps has NaN for probabilities and
    values, since a file cannot refuse it; its label is the empty string, −1 (or the least number,
    if −1 is a class), NaN or, of booleans, False. A category that the data did not have is taken
    as unknown.

    Arguments:
        student: A module from a dict of tensors, as `table.encode` gives it, to outputs (n, K).
        table: The table.
        path: The file, whose name ends in .onnx.
        classes: The K labels, all strings, all whole numbers or all booleans.
        task: "classification", "multilabel" or "regression".
        output: What the outputs are: "logits", "probabilities" or "log_probabilities"; "auto"
            asks the student, and takes logits if it does not say.
    """
    path = Path(path)
    if path.suffix != ".onnx":
        raise ArgumentError("path", str(path), "a name that ends in .onnx")
    if task not in TASKS:
        raise ArgumentError.unknown("task", task, TASKS)
    for column in table.varying:
        if column.key in ("label", "probabilities"):
            expected = "columns of other names than the outputs have: rename it"
            raise ArgumentError("table", f"a column {column.key!r}", expected)
    if any(importlib.util.find_spec(name) is None for name in ("onnxscript", "onnxruntime")):
        raise LimbeckError("export: ONNX needs the extra: pip install 'limbeck[onnx]'")
    form = getattr(student, "output_form", None) or "logits" if output == "auto" else output
    own = copy.deepcopy(student).cpu().float().eval()  # the user's stays where and as it is
    whole = _Whole(own, list(table.groups()), task, form)
    batch = random_rows(table)
    with torch.no_grad():
        expected = whole(tuple(batch.values()))
    labels = _labels(classes, expected.shape[1])
    model = _assembled(_traced(whole, tuple(batch.values())), table, task, labels)
    _check(model, expected, _feeds(table, batch), task)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return path


def feeds(table: Table, df: object) -> dict[str, np.ndarray[Any, Any]]:
    r"""What an ONNX file of a student of this table is given for a frame, by input."""
    return _feeds(table, table.encode(df))


class _Whole(nn.Module):
    r"""From the tensors of a table, in order, to probabilities or values (n, K)."""

    def __init__(self, student: nn.Module, keys: list[str], task: str, form: str) -> None:
        super().__init__()
        self.student, self.keys, self.task, self.form = student, keys, task, form
        if task != "regression" and form not in forms.FORMS[:3]:
            raise ArgumentError.unknown("output", form, forms.FORMS[:3])

    def forward(self, parts: tuple[Tensor, ...]) -> Tensor:
        x = dict(zip(self.keys, parts, strict=True))
        return only_finite(self.student, x, self._answers(forms.values(self.student(x))))

    def _answers(self, y: Tensor) -> Tensor:
        if self.task == "regression":
            return y
        if self.task == "multilabel":
            return torch.sigmoid(y) if self.form == "logits" else forms.probabilities(y, self.form)
        p = forms.probabilities(y, self.form)
        return forms.columns(1 - p, p) if p.shape[1] == 1 else p


def _labels(classes: object, outputs: int) -> np.ndarray[Any, Any] | None:
    if classes is None:
        return None
    labels = np.asarray(np.asarray(classes).tolist())  # objects become what they are
    if labels.shape != (outputs,) or labels.dtype.kind not in "Ubiuf":
        received = f"labels of shape {labels.shape} and type {labels.dtype}"
        raise ArgumentError("classes", received, f"{outputs}, one for each output")
    types = {"U": object, "b": np.bool_, "f": np.float64}
    return labels.astype(types.get(labels.dtype.kind, np.int64))


def _traced(whole: _Whole, parts: tuple[Tensor, ...]) -> Any:
    r"""The ONNX model of torch's part."""
    rows = torch.export.Dim("batch")
    try:
        with quietly():
            program: Any = torch.onnx.export(
                whole, (parts,), dynamo=True, verbose=False, output_names=["answer"],
                input_names=[f"part_{k}" for k in range(len(parts))],
                dynamic_shapes=(tuple({0: rows} for _ in parts),),
            )  # fmt: skip
    except Exception as error:  # of the exporter's many kinds
        raise export_error(type(whole.student).__name__, "ONNX", error) from error
    return program.model_proto


def _assembled(core: Any, table: Table, task: str, labels: np.ndarray[Any, Any] | None) -> Any:
    r"""Columns before torch's part, label and probabilities behind it."""
    from onnx import checker, compose, helper

    core = compose.add_prefix(core, CORE)
    answer = core.graph.output[0]
    inputs, before = [], []
    given = iter(value.name for value in core.graph.input)
    for k, column in enumerate(table.varying):
        takes = port(column)
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(takes.dtype))
        about = f"{column.kind}; missing: {takes.missing!r}"  # None: there is no such thing
        inputs.append(helper.make_tensor_value_info(column.key, kind, ["batch", 1], about))
        before += nodes(column, column.key, [next(given) for _ in column.keys], f"column/{k}")
    columns = answer.type.tensor_type.shape.dim[1].dim_value
    behind, outputs = _answers(task, labels, answer.name, columns)
    shape = ["batch", columns]
    graph = helper.make_graph(
        [*before, *core.graph.node, *behind],
        "student",
        inputs,
        [
            helper.make_tensor_value_info(name, kind, shape if wide else shape[:1])
            for name, kind, wide in outputs
        ],
        core.graph.initializer,
    )
    sets = {entry.domain: entry.version for entry in core.opset_import} | {"ai.onnx.ml": 4}
    model = helper.make_model(
        graph,
        producer_name="limbeck",
        ir_version=max(core.ir_version, 9),
        opset_imports=[helper.make_opsetid(domain, version) for domain, version in sets.items()],
        functions=core.functions,
    )
    names = None if labels is None else labels.tolist()
    described = {"task": task, "classes": names, "table": table.spec()}
    helper.set_model_props(model, {"limbeck": json.dumps(described)})
    checker.check_model(model)
    return model


def _answers(
    task: str, labels: np.ndarray[Any, Any] | None, answer: str, columns: int
) -> tuple[list[Any], list[tuple[str, int, bool]]]:
    r"""Nodes from torch's answer to outputs; of these name, type and whether they are (n, K)."""
    from onnx import TensorProto, helper

    made = Nodes("answer")
    if task == "regression":
        made("Identity", answer, output="label")
        return made.nodes, [("label", TensorProto.FLOAT, True)]
    made("Identity", answer, output="probabilities")
    kind = TensorProto.INT64
    if task == "multilabel":
        likely = made("Greater", answer, made.constant(np.array(0.5, np.float32)))
        label, none = made("Cast", likely, to=kind), np.array(-1)
        made("Where", made("IsNaN", answer), made.constant(none), label, output="label")
    else:
        names = np.arange(columns) if labels is None else labels
        # a row without an answer has a label of its own, in the last place
        gone = made("IsNaN", made("ReduceSum", answer, made.constant(np.array([1])), keepdims=0))
        place = made(
            "Where",
            gone,
            made.constant(np.array(columns)),
            made("ArgMax", answer, axis=1, keepdims=0),
        )
        made("Gather", made.constant(np.append(names, _no_label(names))), place, output="label")
        kind = helper.np_dtype_to_tensor_dtype(names.dtype)
    return made.nodes, [("label", kind, task == "multilabel"), ("probabilities", 1, True)]


def _no_label(names: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    r"""What stands for no label among labels of a type, as an array (1,) of it."""
    if names.dtype == object:
        return np.array([""], object)
    if names.dtype.kind in "iu":
        free = -1 if -1 not in names else np.iinfo(np.int64).min
        return np.array([free], names.dtype)
    return np.array([np.nan if names.dtype.kind == "f" else False], names.dtype)


def _feeds(table: Table, batch: dict[str, Tensor]) -> dict[str, np.ndarray[Any, Any]]:
    return {column.key: feed(column, batch) for column in table.varying}


def _check(model: Any, expected: Tensor, inputs: dict[str, np.ndarray], task: str) -> None:
    r"""Run the file, and compare it with torch before anything is written."""
    import onnxruntime

    session: Any = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    name = "label" if task == "regression" else "probabilities"
    answers = torch.as_tensor(session.run([name], inputs)[0])
    check_agreement("ONNX file", relative_difference(answers, expected), TOLERANCE)
