r"""Tables as ONNX graphs: one named input per column."""

from __future__ import annotations

import copy
import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from limbeck import outputs as forms
from limbeck.arguments import choice
from limbeck.compression.fidelity.comparison import TASKS
from limbeck.compression.training import Answering
from limbeck.errors import ArgumentError, LimbeckError
from limbeck.export import files
from limbeck.export.portable import random_rows
from limbeck.tables.columns import Category, Column, Number
from limbeck.tables.table import Table


class Port(NamedTuple):
    r"""What an ONNX input takes."""

    dtype: type  # of its array (n, 1); object stands for strings
    missing: Any  # what stands for a missing value; None if the data had none
    unknown: Any = None  # a value that is no category; None for numbers and booleans


def port(column: Column) -> Port:
    r"""What the input of a column takes: float64 where float32 lacks digits, and for dates."""
    if isinstance(column, Number):
        kind = np.float64 if column.origin or column.kind == "date" else np.float32
        return Port(kind, np.nan if column.mask else None)
    assert isinstance(column, Category)
    kind = type(column.categories[0])
    if kind is bool:
        return Port(np.float32, np.nan, 0.5) if column.missing else Port(np.bool_, None)
    if kind is float:
        return Port(np.float64, np.nan if column.missing else None, _unused(column, 0.5, 1))
    if kind is int:
        missing = _unused(column, -(2**63), 1)
        unknown = _unused(column, missing + 1, 1)
        return Port(np.int64, missing if column.missing else None, unknown)
    missing = _unused(column, "", "<missing>") if column.missing else None
    return Port(object, missing, _unused(column, "<unknown>", "_"))


def _unused(column: Category, value: Any, step: Any) -> Any:
    r"""The first of value, value + step, ... that is no category."""
    while value in column.categories:
        value += step
    return value


def feeds(table: Table, df: object) -> dict[str, np.ndarray[Any, Any]]:
    r"""The inputs of a table's ONNX file, arrays (n, 1) by name, of a frame."""
    return _feeds(table, table.encode(df))


def _feeds(table: Table, batch: Mapping[str, Tensor]) -> dict[str, np.ndarray[Any, Any]]:
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for column in table.varying:
        takes, values = port(column), batch[column.key].numpy(force=True)
        if isinstance(column, Number):
            values = values.astype(np.float64) + column.origin
            if column.mask:
                values = np.where(batch[column.mask].numpy(force=True), np.nan, values)
        else:
            assert isinstance(column, Category)
            if takes.dtype is np.bool_ and (values > 1).any():
                received = "missing values, which the file's booleans cannot be"
                raise ArgumentError(column.argument, received, "True and False, as the data had")
            choices = np.empty(len(column.categories) + 2, dtype=object)
            choices[:] = [*column.categories, takes.unknown, takes.missing]
            values = choices[values]
        arrays[column.key] = values.astype(takes.dtype).reshape(-1, 1)
    return arrays


def _column_nodes(column: Column, outputs: list[str], prefix: str) -> list[Any]:
    r"""The ONNX nodes from a column's input (n, 1) to its tensors (n,), in `keys`' order."""
    graph = _Nodes(prefix)
    row = graph("Squeeze", column.key, graph.constant([1]))
    takes = port(column)
    if isinstance(column, Number):
        if takes.dtype is np.float64:
            row = graph("Sub", row, graph.constant(column.origin))
            row = graph("Cast", row, to=1)  # to float32
        if column.mask:  # without gaps in the data, the answer to NaN is NaN
            missing = graph("IsNaN", row, output=outputs[1])
            row = graph("Where", missing, graph.constant(column.fill, np.float32), row)
    elif takes.dtype is np.bool_:
        row = graph("Cast", row, to=7)  # to int64
    else:
        assert isinstance(column, Category)
        codes = dict(zip(column.categories, range(column.unknown), strict=True))
        as_float = takes.dtype not in (object, np.int64)
        if column.missing and not as_float:
            codes[takes.missing] = column.gone
        code = graph(
            "LabelEncoder", row, domain="ai.onnx.ml",
            keys_tensor=_tensor(list(codes), takes.dtype),
            values_tensor=_tensor(list(codes.values()), np.int64),
            default_tensor=_tensor([column.unknown], np.int64),
        )  # fmt: skip
        if as_float:  # NaN has the code of a missing value even without gaps: the answer is NaN
            code = graph("Where", graph("IsNaN", row), graph.constant(column.gone), code)
        row = code
    graph("Identity", row, output=outputs[0])
    return graph.nodes


class _Nodes:
    r"""A list of ONNX nodes; each call adds one and returns its output's name."""

    def __init__(self, prefix: str) -> None:
        self.nodes: list[Any] = []
        self.prefix = prefix

    def __call__(
        self, operator: str, *inputs: str, output: str | None = None, **attributes: Any
    ) -> str:
        from onnx import helper

        name = output or f"{self.prefix}/{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def constant(self, value: ArrayLike, dtype: Any = None) -> str:
        return self("Constant", value=_tensor(value, dtype))


def _tensor(value: ArrayLike, dtype: Any = None) -> Any:
    from onnx import numpy_helper

    return numpy_helper.from_array(np.array(value, dtype))


def to_onnx(
    student: nn.Module, table: Table, path: str | Path,
    classes: Sequence[Any] | np.ndarray[Any, Any] | None = None,
    task: str = "classification", output: str = "auto",
) -> Path:  # fmt: skip
    r"""Write a student of a table's tensors as an ONNX file, which is run and compared with torch.

    Inputs are arrays (n, 1), one for each column that varies (see `port`; `feeds` makes them of a
    frame). Outputs are "label" (the class; zeros and ones (n, K) of labels; or values (n, K)) and,
    but for regression, "probabilities" (n, K). A row that `predict` refuses has NaN for an answer,
    and for a label "", −1 (or the least number, if −1 is a class), NaN or False.
    """
    path = Path(path)
    files.check_suffix(path, ".onnx")
    files.write_files({path: table_onnx_file(student, table, classes, task, output)})
    return path


def table_onnx_file(
    student: nn.Module, table: Table, classes: Sequence[Any] | np.ndarray[Any, Any] | None,
    task: str, output: str,
) -> bytes:  # fmt: skip
    r"""The content of the ONNX file that `to_onnx` writes."""
    choice("task", task, TASKS)
    for column in table.varying:
        if column.key in ("label", "probabilities"):
            expected = "columns of other names than the outputs have: rename it"
            raise ArgumentError("table", f"a column {column.key!r}", expected)
    if any(importlib.util.find_spec(name) is None for name in ("onnxscript", "onnxruntime")):
        raise LimbeckError("export: ONNX needs the extra: pip install 'limbeck[onnx]'")
    student = copy.deepcopy(student).cpu().float().eval()  # the user's stays as it is
    module = Answering(student, task, None if output == "auto" else output)
    accepted = forms.FORMS[:2] if task == "multilabel" else forms.FORMS[:3]
    if task != "regression":
        choice("output", module.form, accepted)
    batch = random_rows(table)
    with torch.no_grad():
        expected = module(batch)
    labels = _labels(classes, expected.shape[1])
    file: bytes = _assembled(_traced(module, batch), table, task, labels).SerializeToString()
    name = "label" if task == "regression" else "probabilities"
    answers = run_onnx(file, _feeds(table, batch), [name])
    files.check_agreement("ONNX file", files.relative_difference(answers, expected))
    return file


def _labels(classes: object, outputs: int) -> np.ndarray[Any, Any] | None:
    if classes is None:
        return None
    labels = np.asarray(np.asarray(classes).tolist())  # objects become what they are
    if labels.shape != (outputs,) or labels.dtype.kind not in "Ubiuf":
        received = f"labels of shape {labels.shape} and type {labels.dtype}"
        raise ArgumentError("classes", received, f"{outputs}, one for each output")
    types = {"U": object, "b": np.bool_, "f": np.float64}
    return labels.astype(types.get(labels.dtype.kind, np.int64))


class _Unnamed(nn.Module):
    r"""A module of a table's tensors without their names, which torch's exporter runs as code."""

    def __init__(self, module: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.module, self.names = module, names

    def forward(self, parts: list[Tensor]) -> Any:
        return self.module(dict(zip(self.names, parts, strict=True)))


def _traced(module: Answering, batch: dict[str, Tensor]) -> Any:
    r"""The ONNX model of torch's part, whose inputs are the tensors of a table."""
    free = [{0: torch.export.Dim("batch")}] * len(batch)
    parts, unnamed = list(batch.values()), _Unnamed(module, list(batch)).eval()
    return trace_onnx(
        unnamed, parts, type(module.student).__name__, dynamic_shapes=(free,),
        input_names=[f"part_{k}" for k in range(len(batch))], output_names=["answer"],
    ).model_proto  # fmt: skip


def trace_onnx(module: nn.Module, x: object, name: str, **options: Any) -> Any:
    r"""The ONNX program of a module of one argument, by torch's exporter; `name` is for errors."""
    try:
        with files.quietly():
            # a last dict holds keyword arguments
            return torch.onnx.export(module, (x, {}), dynamo=True, verbose=False, **options)
    except Exception as error:  # of the exporter's many kinds
        raise files.export_error(name, "ONNX", error) from error


def _assembled(core: Any, table: Table, task: str, labels: np.ndarray[Any, Any] | None) -> Any:
    r"""Columns before torch's part, label and probabilities behind it."""
    from onnx import checker, compose, helper

    core = compose.add_prefix(core, "student/")
    answer = core.graph.output[0]
    inputs, before = [], []
    names = iter(value.name for value in core.graph.input)
    for k, column in enumerate(table.varying):
        takes = port(column)
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(takes.dtype))
        about = f"{column.kind}; missing: {takes.missing!r}"  # None: there is no such thing
        inputs.append(helper.make_tensor_value_info(column.key, kind, ["batch", 1], about))
        before += _column_nodes(column, [next(names) for _ in column.keys], f"column/{k}")
    columns = answer.type.tensor_type.shape.dim[1].dim_value
    after, outputs = _answers(task, labels, answer.name, columns)
    every_node = [*before, *core.graph.node, *after]
    graph = helper.make_graph(every_node, "student", inputs, outputs, core.graph.initializer)
    sets = {entry.domain: entry.version for entry in core.opset_import} | {"ai.onnx.ml": 4}
    model = helper.make_model(
        graph, producer_name="limbeck", ir_version=max(core.ir_version, 9),
        opset_imports=[helper.make_opsetid(domain, version) for domain, version in sets.items()],
        functions=core.functions,
    )  # fmt: skip
    classes = None if labels is None else labels.tolist()
    record = {"task": task, "classes": classes, "table": table.spec()}
    helper.set_model_props(model, {"limbeck": json.dumps(record)})
    checker.check_model(model)
    return model


def _answers(
    task: str, labels: np.ndarray[Any, Any] | None, answer: str, columns: int
) -> tuple[list[Any], list[Any]]:
    r"""Nodes from torch's answer (n, K) to outputs, and these outputs."""
    from onnx import TensorProto, helper

    graph = _Nodes("answer")
    wide: list[Any] = ["batch", columns]
    if task == "regression":
        graph("Identity", answer, output="label")
        return graph.nodes, [helper.make_tensor_value_info("label", TensorProto.FLOAT, wide)]
    graph("Identity", answer, output="probabilities")
    kind, shape = TensorProto.INT64, wide
    if task == "multilabel":
        likely = graph("Greater", answer, graph.constant(0.5, np.float32))
        label = graph("Cast", likely, to=kind)
        graph("Where", graph("IsNaN", answer), graph.constant(-1), label, output="label")
    else:
        names = np.arange(columns) if labels is None else labels
        total = graph("ReduceSum", answer, graph.constant([1]), keepdims=0)
        missing = graph("IsNaN", total)  # such a row has a label of its own, in the last place
        likely = graph("ArgMax", answer, axis=1, keepdims=0)
        place = graph("Where", missing, graph.constant(columns), likely)
        integer = np.iinfo(np.int64).min if -1 in names else -1
        no_label = {"O": "", "i": integer, "f": np.nan}.get(names.dtype.kind, False)
        choices = graph.constant(np.append(names, np.array([no_label], names.dtype)))
        graph("Gather", choices, place, output="label")
        kind, shape = helper.np_dtype_to_tensor_dtype(names.dtype), wide[:1]
    outputs = [("label", kind, shape), ("probabilities", TensorProto.FLOAT, wide)]
    return graph.nodes, [helper.make_tensor_value_info(*output) for output in outputs]


def run_onnx(
    file: str | bytes, inputs: dict[str, np.ndarray[Any, Any]], outputs: list[str] | None = None
) -> Tensor:
    r"""The first output of an ONNX file, by onnxruntime."""
    import onnxruntime

    session: Any = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return torch.as_tensor(session.run(outputs, inputs)[0])
