r"""Students as ONNX graphs: of arrays, of named columns, or of encoded numbers and codes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from limbeck.arguments import choice
from limbeck.errors import ArgumentError
from limbeck.export.onnx_graph import Graph, last_operator, tensor
from limbeck.export.parts import Array, Parts, categories_of, encoded_inputs, parts_of
from limbeck.export.portable import Portable, exporting
from limbeck.tables.columns import Category, Column, Number
from limbeck.tables.table import Table

COLUMNS = ("named", "encoded")


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


def feeds(table: Table, df: object, columns: str = "named") -> dict[str, Array]:
    r"""The inputs of a table's ONNX file of a frame: arrays (n, 1) by name, or encoded ones."""
    choice("columns", columns, COLUMNS)
    return batch_feeds(table, table.encode(df), columns)


def batch_feeds(table: Table | None, batch: Any, columns: str) -> dict[str, Array]:
    r"""The inputs of an ONNX file of a table's tensors, or without a table of rows."""
    if table is None:
        return {"x": batch.numpy(force=True)}
    if columns == "encoded":
        return encoded_inputs(table, batch)
    arrays: dict[str, Array] = {}
    for column in table.varying:
        takes, values = port(column), batch[column.key].numpy(force=True)
        if isinstance(column, Number):
            values = column.values(batch) + column.origin
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


def _code_node(graph: Graph, column: Category) -> str:
    r"""The ONNX nodes from a column's input (n, 1) to its codes (n, 1)."""
    takes = port(column)
    if takes.dtype is np.bool_:
        return graph("Cast", column.key, to=7)  # to int64
    codes = dict(zip(column.categories, range(column.unknown), strict=True))
    as_float = takes.dtype not in (object, np.int64)
    if column.missing and not as_float:
        codes[takes.missing] = column.gone
    code = graph(
        "LabelEncoder", column.key, domain="ai.onnx.ml",
        keys_tensor=tensor(list(codes), takes.dtype),
        values_tensor=tensor(list(codes.values()), np.int64),
        default_tensor=tensor([column.unknown], np.int64),
    )  # fmt: skip
    if as_float:  # NaN has the code of a missing value even without gaps: the answer is NaN
        code = graph("Where", graph("IsNaN", column.key), graph.constant(column.gone), code)
    return code


def _ordered(table: Table, columns: str) -> list[Number]:
    r"""Numbers in the order in which a student gets them: those named in float64 come last."""
    if columns == "encoded":
        return list(table.numbers)
    return sorted(table.numbers, key=lambda column: port(column).dtype is np.float64)


def _front(graph: Graph, model: Portable, core: Any) -> tuple[str, str, list[Any]]:
    r"""Add the nodes from a file's inputs to a student's numbers and codes; and these inputs."""
    if (table := model.table) is None:
        x = "x" if core.origin is None else graph("Sub", "x", graph.constant(core.origin))
        dtype = np.float64 if model.dtype == torch.float64 else np.float32
        return graph("Cast", x, to=1), "", [_value("x", dtype, len(graph.keys))]
    columns = model.columns
    numbers, categories = _ordered(table, columns), categories_of(table)
    wide = [column for column in numbers if port(column).dtype is np.float64]
    if columns == "encoded":
        x, codes, about = "numbers", "codes", "see the model card"
        number = np.float64 if wide else np.float32
        given: list[Any] = [(x, number, len(numbers), about)]
        given.append((codes, np.int64, len(categories), about))
        if wide:
            origin = [column.origin for column in numbers]
            x = graph("Cast", graph("Sub", x, graph.constant(origin, np.float64)), to=1)
    else:
        takes = [(column, port(column)) for column in table.varying]  # missing: None if impossible
        given = [(c.key, p.dtype, 1, f"{c.kind}; missing: {p.missing!r}") for c, p in takes]
        parts = [column.key for column in numbers if column not in wide]
        if wide:
            x = graph.joined([column.key for column in wide])
            x = graph("Sub", x, graph.constant([column.origin for column in wide], np.float64))
            parts.append(graph("Cast", x, to=1))  # to float32
        x = graph.joined(parts)
        codes = graph.joined([_code_node(graph, column) for column in categories])
    return x, codes, [_value(*entry) for entry in given if entry[2]]


def _value(name: str, dtype: Any, width: int | None, about: str = "") -> Any:
    r"""An input or output of a file: (batch, width), or (batch,)."""
    from onnx import helper

    kind, shape = helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), ["batch", width]
    return helper.make_tensor_value_info(name, kind, shape if width else shape[:1], about)


def student_graph(model: Portable, batch: Any) -> Any:
    r"""The ONNX model of a student of a table, or of rows (n, D); None of other rows and students.

    From rows it leads from "x" to "y" (n, K). Of a table, with a batch of its tensors, inputs are
    arrays (n, 1), one for each column that varies (see `port`; `feeds` makes them of a frame).
    Outputs are "label" (the class; zeros and ones (n, K) of labels; or values (n, K)) and, but for
    regression, "probabilities" (n, K). With `columns="encoded"` inputs are "numbers" (n, N) and
    "codes" (n, C), and "y" (n, K) is the output. A row that `predict` refuses has NaN for an
    answer, and for a label "", −1 (or the least number, if −1 is a class), NaN or False.
    """
    parts = parts_of(model.module)
    core: Any = None if parts is None or last_operator(parts) is None else parts
    if model.table is None:
        if core is None or core.encoder is not None or len(model.shape or ()) != 1:
            return None
        return _assembled(core, model, model.module(batch).shape[1])
    for column in model.table.varying:
        if column.key in ("label", "probabilities") and model.columns == "named":
            expected = "columns of other names than the outputs have: rename it"
            raise ArgumentError("table", f"a column {column.key!r}", expected)
    return _assembled(core or _traced(model, batch), model, model.module(batch).shape[1])


def _labels(classes: Sequence[Any] | None, outputs: int) -> Array:
    labels = np.arange(outputs) if classes is None else np.asarray(classes)
    if labels.shape != (outputs,) or labels.dtype.kind not in "Ubiuf":
        received = f"labels of shape {labels.shape} and type {labels.dtype}"
        raise ArgumentError("classes", received, f"{outputs}, one for each output")
    types = {"U": object, "b": np.bool_, "f": np.float64}
    return labels.astype(types.get(labels.dtype.kind, np.int64))


class _Encoded(nn.Module):
    r"""A module of a table's tensors as one of numbers and codes, without names of columns.

    torch's exporter runs names as code.
    """

    def __init__(self, module: nn.Module, numbers: list[Number], codes: list[Category]) -> None:
        super().__init__()
        self.module, self.numbers, self.codes = module, numbers, codes

    def forward(self, parts: list[Tensor]) -> Any:
        batch: dict[str, Tensor] = {}
        for k, column in enumerate(self.numbers):
            value = parts[0][:, k]
            if column.mask is not None:
                batch[column.mask] = value.isnan()
                value = torch.where(value.isnan(), column.fill, value)
            batch[column.key] = value
        for k, category in enumerate(self.codes):
            batch[category.key] = parts[-1][:, k]
        return self.module(batch)


def _traced(model: Portable, batch: dict[str, Tensor]) -> Any:
    r"""The ONNX model of torch's part, of numbers and codes."""
    assert model.table is not None
    numbers, codes = _ordered(model.table, model.columns), categories_of(model.table)
    values = []
    for column in numbers:
        gone = batch[column.mask] if column.mask else torch.tensor(False)
        values.append(torch.where(gone, torch.nan, batch[column.key]))
    lists = {"numbers": values, "codes": [batch[column.key] for column in codes]}
    inputs = {name: torch.stack(columns, 1) for name, columns in lists.items() if columns}
    return trace_onnx(
        _Encoded(model.module, numbers, codes).eval(), list(inputs.values()), model.name,
        dynamic_shapes=([{0: torch.export.Dim("batch")}] * len(inputs),),
        input_names=list(inputs), output_names=["answer"],
    ).model_proto  # fmt: skip


def trace_onnx(module: nn.Module, x: object, name: str, **options: Any) -> Any:
    r"""The ONNX program of a module of one argument, by torch's exporter; `name` is for errors."""
    with exporting(name, "ONNX"):  # a last dict holds keyword arguments
        return torch.onnx.export(module, (x, {}), dynamo=True, verbose=False, **options)


def _assembled(core: Any, model: Portable, outputs: int) -> Any:
    r"""Inputs before a student (its parts or a traced model), label and probabilities behind."""
    from onnx import checker, compose, helper

    table, sets, options = model.table, {"": 18, "ai.onnx.ml": 4}, dict[str, Any](ir_version=9)
    if table is None:
        graph = Graph(list(map(str, range(*(model.shape or ())))), [])
    else:
        numbers = [column.key for column in _ordered(table, model.columns)]
        graph = Graph(numbers, [column.key for column in categories_of(table)])
        while any(column.key.startswith(graph.prefix) for column in table.varying):
            graph.prefix += "_"
    x, codes, inputs = _front(graph, model, core)
    weights: Any = ()
    if isinstance(core, Parts):
        answer = graph.student(core, x, codes)
    else:
        core = compose.add_prefix(core, f"{graph.prefix}/student/")
        for entry in core.graph.input:  # "numbers" and "codes", or one of them
            graph("Identity", codes if entry.name.endswith("codes") else x, output=entry.name)
        graph.nodes += core.graph.node
        answer, weights = core.graph.output[0].name, core.graph.initializer
        sets |= {entry.domain: entry.version for entry in core.opset_import if not entry.domain}
        options = {"ir_version": max(core.ir_version, 9), "functions": core.functions}
    results = _answers(graph, model, answer, outputs)
    program = helper.make_model(
        helper.make_graph(graph.nodes, "student", inputs, results, weights),
        producer_name="limbeck",
        opset_imports=[helper.make_opsetid(*entry) for entry in sets.items()], **options,
    )  # fmt: skip
    if table is not None:
        record = {"task": model.task, "classes": model.classes, "table": table.spec()}
        helper.set_model_props(program, {"limbeck": json.dumps(record)})
    checker.check_model(program)
    return program


def answer_name(model: Portable) -> str:
    r"""The name of the output with probabilities or values."""
    if model.table is None or model.columns == "encoded":
        return "y"
    return "label" if model.task == "regression" else "probabilities"


def _answers(graph: Graph, model: Portable, answer: str, count: int) -> list[Any]:
    r"""Add the nodes from a student's answer (n, K) to outputs, and return these."""
    if (name := answer_name(model)) != "probabilities":
        return [_value(graph("Identity", answer, output=name), np.float32, count)]
    graph("Identity", answer, output="probabilities")
    dtype: Any = np.int64
    if model.task == "multilabel":
        likely = graph("Greater", answer, graph.constant(0.5, np.float32))
        label = graph("Cast", likely, to=7)  # to int64
        graph("Where", graph("IsNaN", answer), graph.constant(-1), label, output="label")
    else:
        names = _labels(model.classes, count)
        total = graph("ReduceSum", answer, graph.constant([1]), keepdims=0)
        missing = graph("IsNaN", total)  # such a row has a label of its own, in the last place
        likely = graph("ArgMax", answer, axis=1, keepdims=0)
        place = graph("Where", missing, graph.constant(count), likely)
        integer = np.iinfo(np.int64).min if -1 in names else -1
        no_label = {"O": "", "i": integer, "f": np.nan}.get(names.dtype.kind, False)
        choices = graph.constant(np.append(names, np.array([no_label], names.dtype)))
        graph("Gather", choices, place, output="label")
        dtype = names.dtype
    label_width = count if model.task == "multilabel" else None
    return [_value("label", dtype, label_width), _value("probabilities", np.float32, count)]
