r"""Teachers that are torch modules or ONNX files."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from limbeck.arrays import X as Inputs
from limbeck.arrays import part_of
from limbeck.errors import ArgumentError
from limbeck.evaluation import evaluating
from limbeck.teachers import fingerprints
from limbeck.teachers.base import output_form
from limbeck.teachers.keys import count
from limbeck.teachers.output_spec import (
    OutputKind,
    OutputSpec,
    as_outputs,
    infer_output,
    to_targets,
)
from limbeck.teachers.row_teacher import ModelFile, RawTeacher, dense, first_rows

__all__ = ["NetworkTeacher", "OnnxTeacher"]

BLOCK = 1024  # rows that go through the module together


class NetworkTeacher(RawTeacher):
    r"""A torch module.

    Arrays become tensors on the module's device and of its floating type; integers stay integers
    only if the module has embeddings to look them up in.
    """

    def __init__(
        self, module: nn.Module, X: Any, spec: OutputSpec, name: str | None = None
    ) -> None:
        self.module: nn.Module = module
        self.looks_up = any(isinstance(p, nn.Embedding | nn.EmbeddingBag) for p in module.modules())
        if spec.task != "regression":  # the module has a word, too
            spec = spec._replace(output=output_form("output", module, spec.output))
        spec.checked()
        raw = self.raw(first_rows(X, "what the module gives"))
        self.kind = infer_output(raw, spec, network=True)
        if self.kind.form == "labels":
            raise ArgumentError("teacher", "a module of labels", "a module of floating outputs")
        self.module_form = self.kind.form
        self.raw_columns = raw.reshape(len(raw), -1).shape[1]
        columns = to_targets(raw, self.kind).shape[1]
        name = name or type(module).__name__
        super().__init__(name, self.kind.task, columns, None, spec.classes)

    def content(self) -> str | None:
        return fingerprints.of_module(self.module)

    def bytes(self) -> int | None:
        return super().bytes() or fingerprints.module_bytes(self.module)

    def raw(self, X: Any) -> np.ndarray:
        n, x = count(X), self.tensors(X)
        with evaluating(self.module), torch.no_grad():
            blocks = []
            for start in range(0, n, BLOCK):
                size = min(BLOCK, n - start)
                blocks.append(_output(self.module(part_of(x, start, size)), size))
        return np.concatenate(blocks)

    def tensors(self, X: Any) -> Inputs:
        r"""Rows as the module takes them."""
        if isinstance(X, dict):
            return {name: self.tensors(part) for name, part in X.items()}  # type: ignore[misc]
        held = chain(self.module.parameters(), self.module.buffers())
        one = next((t for t in held if t.is_floating_point()), torch.empty(0))
        x = _as_tensor(X)
        whole = self.looks_up and not x.is_floating_point()
        return x.to(one.device) if whole else x.to(one.device, one.dtype)


def _output(y: Any, n: int) -> np.ndarray:
    if not isinstance(y, Tensor):
        expected = "a module of one tensor (n, K): wrap it in one that picks it"
        raise ArgumentError("teacher", f"outputs of type {type(y).__name__}", expected)
    return as_outputs(y, n)


def _as_tensor(X: Any) -> Tensor:
    if isinstance(X, Tensor):
        return X.detach()
    array = dense(X)
    if array.dtype.kind not in "biuf":
        received = f"columns of type {array.dtype}, for a torch teacher"
        raise ArgumentError("X", received, "numbers")
    return torch.as_tensor(np.ascontiguousarray(array))


TYPES: dict[str, Any] = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
    "tensor(string)": object,
}

# rows at which names of classes are looked for, where a file tells them by its labels only
NAMES_SOUGHT = 1000


class OnnxTeacher(RawTeacher):
    r"""An ONNX model of labels and probabilities (as skl2onnx writes it), or of one tensor."""

    def __init__(self, session: Any, file: ModelFile, X: Any, spec: OutputSpec) -> None:
        task, output, classes = spec
        self.session, self.file = session, file
        self.inputs = {put.name: put for put in session.get_inputs()}
        self.told, self.scores = _outputs(session.get_outputs())
        self.keys: list[Any] | None = None
        raw, *labels = self._run(first_rows(X, "what the file gives"))
        if self.told is None:
            self.kind = infer_output(raw, spec, network=True)
        else:
            several = labels[0].ndim == 2 and labels[0].shape[1] > 1
            found = "multilabel" if several else "classification"
            if task not in ("auto", found) or output not in ("auto", "probabilities"):
                received = f"task={task!r}, output={output!r}"
                expected = f"{found!r} with probabilities, which is what the file gives"
                raise ArgumentError("task", received, expected)
            self.kind = OutputKind(found, "probabilities")
        self.labels = classes if self.kind.form == "labels" else None
        columns = to_targets(raw, self.kind, self.labels).shape[1]
        own = self.labels if self.keys is None else self.keys
        if own is None and classes is None and labels and self.kind.task == "classification":
            own = self._names(first_rows(X, "names of classes", NAMES_SOUGHT), columns)
        super().__init__(file.path.name, self.kind.task, columns, own, classes)

    def raw(self, X: Any) -> np.ndarray:
        return self._run(X)[0]

    def content(self) -> str | None:
        assert self.file is not None
        return self.file.digest

    def _run(self, X: Any) -> list[np.ndarray]:
        r"""Scores (n, K) and, if there are any, labels."""
        n, feed = count(X), self._feed(X)
        wanted = [self.scores] if self.told is None else [self.scores, self.told]
        fixed = next(iter(self.inputs.values())).shape[0]
        size = fixed if isinstance(fixed, int) else n
        blocks = []
        for start in range(0, n, size):
            index = np.minimum(np.arange(start, start + size), n - 1)  # the last is filled up
            part = feed if size == n else {name: array[index] for name, array in feed.items()}
            scores, *labels = self.session.run(wanted, part)
            found = [self._scores(scores, size), *map(np.asarray, labels)]
            blocks.append([array[: n - start] for array in found])
        return [np.concatenate(parts) for parts in zip(*blocks, strict=True)]

    def _scores(self, found: Any, n: int) -> np.ndarray:
        if isinstance(found, list) and found and isinstance(found[0], dict):  # a ZipMap
            self.keys = self.keys or list(found[0])
            found = [[row[key] for key in self.keys] for row in found]
        return as_outputs(found, n)

    def _feed(self, X: Any) -> dict[str, np.ndarray]:
        if len(self.inputs) == 1 and not isinstance(X, dict):
            (put,) = self.inputs.values()
            return {put.name: _cast(dense(X), put)}
        known = list(X) if isinstance(X, dict) else list(getattr(X, "columns", ()))
        missing = [name for name in self.inputs if name not in known]
        if missing:
            received = f"rows without {', '.join(map(repr, missing))}"
            expected = f"a data frame with the file's inputs, {', '.join(map(repr, self.inputs))}"
            raise ArgumentError("X", received, expected)
        feed = {}
        for name, put in self.inputs.items():
            array = _cast(dense(X[name]), put)
            column = array.ndim == 1 and len(put.shape) == 2
            feed[name] = array[:, None] if column else array
        return feed

    def _names(self, X: Any, columns: int) -> list[Any] | None:
        r"""Names of the classes, as labels tell them beside probabilities; None if numbers."""
        raw, labels = self._run(X)
        best = to_targets(raw, self.kind).argmax(1)
        if labels.dtype.kind in "iu" and np.array_equal(labels, best):
            return None
        pairs = set(zip(best.tolist(), labels.reshape(-1).tolist(), strict=True))
        told = dict(pairs)
        if len(pairs) == len(told) == columns:
            return [told[place] for place in range(columns)]
        received = f"None, and the file tells {len(told)} of {columns} names by its labels at X"
        expected = "names of the classes, in the order of the file's probabilities"
        raise ArgumentError("classes", received, expected)


def _outputs(outputs: list[Any]) -> tuple[str | None, str]:
    r"""The names of the outputs for labels, if there are any, and for scores."""
    floats = [put.name for put in outputs if put.type in list(TYPES)[:3]]
    maps = [put.name for put in outputs if put.type.startswith("seq(map")]
    rest = [put.name for put in outputs if put.name not in floats + maps]
    probable = [name for name in floats if "prob" in name.lower()]
    scores = maps or (floats if len(floats) == 1 else probable) or (rest if not floats else [])
    if len(scores) != 1:
        received = f"a file with the outputs {', '.join(repr(put.name) for put in outputs)}"
        expected = "one output, or labels and probabilities"
        raise ArgumentError("teacher", received, expected)
    labels = [name for name in rest if name != scores[0]]
    return (labels[0] if labels else None), scores[0]


def _cast(array: np.ndarray, put: Any) -> np.ndarray:
    if put.type not in TYPES:
        raise ArgumentError("teacher", f"a file with an input of {put.type}", ", ".join(TYPES))
    try:
        return np.ascontiguousarray(array.astype(TYPES[put.type]))
    except (TypeError, ValueError):
        received = f"values of {array.dtype} that do not fit"
        raise ArgumentError("X", received, f"the file's input {put.name!r}, {put.type}") from None
