r"""Teachers that are torch modules or ONNX files; files of models, by their endings."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from limbeck.arrays import X as Inputs
from limbeck.arrays import float_tensor, part_of, safe_scale
from limbeck.environment import import_extra
from limbeck.errors import ArgumentError, refuse_unreadable, require_path
from limbeck.evaluation import evaluate, evaluating
from limbeck.teachers import fingerprints
from limbeck.teachers.base import as_outputs, output_form
from limbeck.teachers.keys import Array, count, dense, first_rows
from limbeck.teachers.row_teacher import ModelFile, OutputSpec, RawTeacher, RowTeacher

BLOCK = 1024  # rows that go through the module together
MOST = 2**31  # bytes that all derivatives may take in memory


class NetworkTeacher(RawTeacher):
    r"""A torch module; it gets integers only if it has embeddings to look them up in."""

    def __init__(
        self, module: nn.Module, X: object, spec: OutputSpec, name: str | None = None
    ) -> None:
        self.module: nn.Module = module
        self.looks_up = any(isinstance(p, nn.Embedding | nn.EmbeddingBag) for p in module.modules())
        if spec.task != "regression":  # a module may declare the form of its outputs
            spec = spec._replace(output=output_form("teacher_output", module, spec.output))
        raw = self.raw(first_rows(X, "what the module gives"))
        self.kind = spec.infer(raw, network=True)
        if self.kind.form == "labels":
            raise ArgumentError("teacher", "a module of labels", "a module of floating outputs")
        super().__init__(name or type(module).__name__, raw, spec)

    def content(self) -> str | None:
        return fingerprints.of_module(self.module)

    def bytes(self) -> int | None:
        return super().bytes() or fingerprints.module_bytes(self.module)

    def raw(self, X: object) -> np.ndarray:
        n, x = count(X), self.tensors(X)
        with evaluating(self.module), torch.no_grad():
            blocks = []
            for start in range(0, n, BLOCK):
                size = min(BLOCK, n - start)
                y = self.module(part_of(x, start, size))
                if not isinstance(y, Tensor):
                    expected = "a module of one tensor (n, K): wrap it in one that picks it"
                    raise ArgumentError("teacher", f"outputs of type {type(y).__name__}", expected)
                blocks.append(as_outputs(y, size))
        return np.concatenate(blocks)

    def tensors(self, X: object) -> Inputs:
        r"""Rows as the module takes them."""
        if isinstance(X, dict):
            return {name: self.tensors(part) for name, part in X.items()}  # type: ignore[misc]
        array = X.detach() if isinstance(X, Tensor) else dense(X)
        if isinstance(array, np.ndarray) and array.dtype.kind not in "biuf":
            received = f"columns of type {array.dtype}, for a torch teacher"
            raise ArgumentError("X", received, "numbers")
        x = array if isinstance(array, Tensor) else torch.as_tensor(np.ascontiguousarray(array))
        like = float_tensor(self.module, torch.empty(0))
        codes = self.looks_up and not x.is_floating_point()
        return x.to(like.device) if codes else x.to(like)


class ScaledTeacher(nn.Module):
    r"""A torch teacher in the inputs' precision, with values as (y − shift) / scale."""

    shift: Tensor  # (K,)
    scale: Tensor  # (K,), 1 where the values are constant

    def __init__(self, teacher: RowTeacher, shift: Tensor, scale: Tensor) -> None:
        super().__init__()
        assert isinstance(teacher, NetworkTeacher)
        self.module, self.task, self.form = teacher.module, teacher.task, teacher.kind.form
        self.dtype = getattr(float_tensor(self.module, None), "dtype", None)
        self.output_form = self.form if self.task == "classification" else "values"
        self.register_buffer("shift", shift)
        self.register_buffer("scale", safe_scale(scale))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.module(x.to(self.dtype or x.dtype)).to(x.dtype)
        if self.task == "classification":
            return y
        if self.task == "multilabel" and self.form != "probabilities":
            return y.sigmoid() if self.form == "logits" else y.exp()
        return (y.reshape(len(y), -1) - self.shift) / self.scale


class Derivatives:
    r"""A teacher's derivatives (n, K · D) with respect to D inputs, of log or plain outputs."""

    def __init__(self, teacher: NetworkTeacher, domain: str, inputs: int) -> None:
        self.teacher, self.domain, self.inputs = teacher, domain, inputs
        self.classes, self.outputs = teacher.classes, teacher.outputs * inputs
        self.cache_kind, self.fingerprint = f"derivatives, {domain}", teacher.fingerprint

    def check_size(self, n: int) -> None:
        r"""Refuse numbers of rows whose derivatives would not fit into memory."""
        total = 8 * n * self.outputs
        if total > MOST:
            received = f"{n:,} inputs, whose derivatives take {total / 2**30:.0f} GiB"
            expected = f"at most {MOST // (8 * self.outputs):,}; without a cache, any number"
            raise ArgumentError("pool", received, expected)

    def __call__(self, X: object) -> Array:
        x = self.teacher.tensors(X)
        assert isinstance(x, Tensor)
        one = torch.ones(self.teacher.outputs, device=x.device, dtype=x.dtype)
        model = ScaledTeacher(self.teacher, torch.zeros_like(one), one)
        blocks = [
            evaluate(model, part, "derivatives", output=model.output_form, domain=self.domain)
            .derivatives.double().cpu().numpy()  # type: ignore[union-attr]
            for part in torch.split(x, 256)
        ]  # fmt: skip
        return np.concatenate(blocks).reshape(count(X), self.outputs)


TYPES: dict[str, Any] = {
    "tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16,
    "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_,
    "tensor(string)": object,
}  # fmt: skip


class OnnxTeacher(RawTeacher):
    r"""An ONNX model of labels and probabilities (as skl2onnx writes it), or of one tensor."""

    def __init__(self, session: Any, file: ModelFile, X: object, spec: OutputSpec) -> None:
        self.session, self.file = session, file
        self.inputs = {port.name: port for port in session.get_inputs()}
        outputs = session.get_outputs()
        floats = [port.name for port in outputs if port.type in list(TYPES)[:3]]
        maps = [port.name for port in outputs if port.type.startswith("seq(map")]
        rest = [port.name for port in outputs if port.name not in floats + maps]
        probable = [name for name in floats if "prob" in name.lower()]
        scores = maps or (floats if len(floats) == 1 else probable) or (rest if not floats else [])
        if spec.onnx_output is not None:
            scores = [name for name in floats + maps + rest if name == spec.onnx_output]
        if len(scores) != 1:
            listed = ", ".join(f"{port.name!r} ({port.type})" for port in outputs)
            none = "None, for a file with several outputs"
            received = none if spec.onnx_output is None else repr(spec.onnx_output)
            expected = f"the name of one of the file's outputs: {listed}"
            raise ArgumentError("onnx_output", received, expected)
        # labels last, which name the classes of probabilities
        labels_of = rest if spec.onnx_output is None or scores[0] in maps + probable else []
        self.names = [*scores, *[name for name in labels_of if name != scores[0]][:1]]
        self.keys: list[Any] | None = None
        raw, *labels = self._run(first_rows(X, "what the file gives"))
        if not labels:
            self.kind = spec.infer(raw, network=True)
        else:
            several = labels[0].ndim == 2 and labels[0].shape[1] > 1
            task = "multilabel" if several else "classification"
            self.kind = spec.expect(task, file.path.name)
        names, unnamed = self.keys, self.keys is None and spec.classes is None
        if unnamed and labels and self.kind.task == "classification":
            names = self._class_names(first_rows(X, "names of classes", 1000))
        super().__init__(file.path.name, raw, spec, names)

    def raw(self, X: object) -> np.ndarray:
        return self._run(X)[0]

    def _run(self, X: object) -> list[np.ndarray]:
        r"""Scores (n, K) and, if there are any, labels."""
        n, feed = count(X), self._feed(X)
        fixed = next(iter(self.inputs.values())).shape[0]
        size = fixed if isinstance(fixed, int) else n
        blocks = []
        for start in range(0, n, size):
            index = np.minimum(np.arange(start, start + size), n - 1)  # the last is filled up
            part = feed if size == n else {name: array[index] for name, array in feed.items()}
            scores, *labels = self.session.run(self.names, part)
            if isinstance(scores, list) and scores and isinstance(scores[0], dict):  # a ZipMap
                self.keys = self.keys or list(scores[0])
                scores = [[row[key] for key in self.keys] for row in scores]
            arrays = [as_outputs(scores, size), *map(np.asarray, labels)]
            blocks.append([array[: n - start] for array in arrays])
        return [np.concatenate(parts) for parts in zip(*blocks, strict=True)]

    def _feed(self, X: object) -> dict[str, np.ndarray]:
        if len(self.inputs) == 1 and not isinstance(X, dict):
            (port,) = self.inputs.values()
            return {port.name: _cast(dense(X), port)}
        known = list(X if isinstance(X, dict) else getattr(X, "columns", ()))
        if missing := [name for name in self.inputs if name not in known]:
            received = f"rows without {', '.join(map(repr, missing))}"
            listed = ", ".join(f"{name!r} ({port.type})" for name, port in self.inputs.items())
            raise ArgumentError("X", received, f"a data frame with the file's inputs, {listed}")
        feed = {}
        for name, port in self.inputs.items():
            array = _cast(dense(X[name]), port)  # type: ignore[index]
            column = array.ndim == 1 and len(port.shape) == 2
            feed[name] = array[:, None] if column else array
        return feed

    def _class_names(self, X: object) -> list[Any] | None:
        r"""Names of the classes, as labels tell them beside probabilities; None if numbers."""
        raw, labels = self._run(X)
        targets = self.targets(raw)
        best, columns = targets.argmax(1), targets.shape[1]
        if labels.dtype.kind in "iu" and np.array_equal(labels, best):
            return None
        pairs = set(zip(best.tolist(), labels.reshape(-1).tolist(), strict=True))
        names = dict(pairs)
        if len(pairs) == len(names) == columns:
            return [names[column] for column in range(columns)]
        received = f"None, and the file's labels at X show {len(names)} of {columns} names"
        expected = "names of the classes, in the order of the file's probabilities"
        raise ArgumentError("classes", received, expected)


def _cast(array: np.ndarray, port: Any) -> np.ndarray:
    if port.type not in TYPES:
        raise ArgumentError("teacher", f"a file with an input of {port.type}", ", ".join(TYPES))
    kind, expected = TYPES[port.type], f"the file's input {port.name!r}, {port.type}"
    try:
        if kind is object:  # numbers among strings, as in one array of all columns
            words = np.array([str(value) for value in array.flat], object)
            return np.ascontiguousarray(words.reshape(array.shape))
        with np.errstate(invalid="ignore"):
            cast = np.ascontiguousarray(array.astype(kind))
    except (TypeError, ValueError):
        raise ArgumentError("X", f"values of {array.dtype} that do not fit", expected) from None
    if cast.dtype.kind in "biu" and not (cast == array).all():
        raise ArgumentError("X", "fractions or gaps for whole numbers", expected)
    return cast


FORMATS = {
    ".onnx": "ONNX", ".json": "XGBoost", ".ubj": "XGBoost", ".txt": "LightGBM", ".cbm": "CatBoost"
}  # fmt: skip


PROBES = {  # what a library does with the file `path`, in Python
    "xgboost": "m = xgboost.Booster(model_file=path); m.inplace_predict(zeros(m.num_features()))",
    "lightgbm": "m = lightgbm.Booster(model_file=path); m.predict(zeros(m.num_feature()))",
}
LIMITS = """
import sys, numpy, {library}
try:
    import resource; resource.setrlimit(resource.RLIMIT_AS, (2**34, 2**34))
except (ImportError, ValueError): pass
path, zeros = sys.argv[1], lambda columns: numpy.zeros((2, min(columns, 10**6)))
"""


@functools.cache
def _probe(digest: str, path: Path, library: str) -> None:
    r"""Read a booster's file in another process first: some damaged ones end their reader."""
    script = LIMITS.format(library=library) + PROBES[library]
    command = [sys.executable, "-c", script, str(path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    seconds = 30 + path.stat().st_size / 2e6  # several times what a sound file takes
    options: Any = {"env": environment, "timeout": seconds, "capture_output": True}
    try:
        code = subprocess.run(command, check=False, **options).returncode
        reason = f"dies (exit code {code})"
    except subprocess.TimeoutExpired:
        code, reason = -1, "does not end"
    if code not in (0, 1):  # 1 is a Python exception, which comes here again
        received = f"{str(path)!r}, damaged: a process that reads it {reason}"
        raise ArgumentError("teacher", received, "a model as its library writes it")


def _check_external_data(path: Path) -> None:
    r"""Refuse an ONNX file whose weights are in a file outside of its folder."""
    folder, content = path.resolve().parent, path.read_bytes()
    for match in re.finditer(rb"\x0a\x08location\x12(?=(.)(.))", content, re.DOTALL):
        low, high = match[1][0], match[2][0]  # of the length, in one byte or in two
        start, size = match.end() + 1, low
        if low >= 128:
            start, size = start + 1, low - 128 + 128 * high
        place = content[start : start + size].decode(errors="replace")
        if not (folder / place).resolve().is_relative_to(folder):
            received = f"{str(path)!r}, with weights in {place!r}"
            raise ArgumentError("teacher", received, "weights in the folder of the file")


def open_model(path: str | Path) -> tuple[Any, ModelFile]:
    r"""The model in an .onnx, .json or .ubj (XGBoost), .txt (LightGBM) or .cbm (CatBoost) file."""
    path = Path(path)
    name = FORMATS[require_path(path, "teacher", "a loaded model, or a file", "file", FORMATS)]
    library, extra = ("onnxruntime", "onnx") if name == "ONNX" else (name.lower(), "boosting")
    module: Any = import_extra(library, extra, "teacher: this file needs")
    if library in PROBES:
        _probe(fingerprints.of_files([path]), path, library)
    with refuse_unreadable("teacher", path, f"a model as {name} writes it"):
        if name == "ONNX":
            _check_external_data(path)
            model = module.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        elif name == "CatBoost":
            model = module.CatBoost().load_model(str(path))
        else:
            model = module.Booster(model_file=str(path))
    files = [path]
    if name == "ONNX":  # files beside it, to which it refers, may hold large weights
        content = path.read_bytes()
        others = [f for f in sorted(path.parent.iterdir()) if f.is_file() and f != path]
        files += [other for other in others if other.name.encode() in content]
    digest = fingerprints.of_files(files)
    return model, ModelFile(path, digest, sum(file.stat().st_size for file in files))
