r"""Files of torch's exporters, ONNX and torch.export: run and compared before they are written."""

from __future__ import annotations

import copy
import importlib.util
import io
import json
import math
import re
import zipfile
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from limbeck.arrays import map_tensors
from limbeck.condensation.predict_function import Means
from limbeck.condensation.sample_bag import SampleBag
from limbeck.errors import ArgumentError, LimbeckError
from limbeck.evaluation import evaluating
from limbeck.export.portable import FREE, Portable, exporting, largest_difference
from limbeck.export.table_onnx import answer_name, batch_feeds, student_graph, trace_onnx
from limbeck.models.mixture import GaussianMixture


def plain(module: nn.Module) -> nn.Module:
    r"""The same function without operations of limbeck's own; any other module as it is."""
    if isinstance(module, GaussianMixture):
        return _Mixture(module)
    if isinstance(module, Means) and isinstance(module.student, SampleBag):
        return _BagMeans(module.student)
    return module


def whitened(mixture: GaussianMixture) -> tuple[Tensor, Tensor, Tensor]:
    r"""A_k (K, D, D), m_k (K, D), c_k (K,) with log p(x) = log Σ_k exp(c_k − ½|A_k (x − m_k)|²)."""
    factors = mixture.scale.detach().double()
    if not mixture.matrices:  # one scale for each variable, or one for all
        factors = torch.diag_embed(factors.expand(-1, mixture.dim))
    eye = torch.eye(mixture.dim, dtype=torch.float64, device=factors.device)
    inverse = torch.linalg.solve_triangular(factors, eye.expand_as(factors), upper=False)
    logs = factors.diagonal(dim1=1, dim2=2).log().sum(1)
    constant = mixture.logits.detach().double().log_softmax(0) - logs
    constant = constant - mixture.dim * math.log(2 * math.pi) / 2
    return inverse, mixture.means.detach().double(), constant


class _Mixture(nn.Module):
    r"""A mixture of Gaussians by products only: triangular systems are not in ONNX."""

    inverse: Tensor
    means: Tensor
    constant: Tensor

    def __init__(self, mixture: GaussianMixture) -> None:
        super().__init__()
        names = ("inverse", "means", "constant")
        for name, value in zip(names, whitened(mixture), strict=True):
            self.register_buffer(name, value.to(mixture.means.dtype))

    def forward(self, x: Tensor) -> Tensor:
        apart = x.unsqueeze(0) - self.means.unsqueeze(1)  # (K, n, D)
        z = apart @ self.inverse.mT
        return (self.constant.unsqueeze(1) - z.square().sum(2) / 2).logsumexp(0)


class _BagMeans(nn.Module):
    r"""The means of a bag, one component after the other: tracers do not follow every vmap."""

    def __init__(self, bag: SampleBag) -> None:
        super().__init__()
        self.bag = bag

    def forward(self, x: Tensor) -> Tensor:
        bag, all_draws = self.bag, self.bag._draws
        draws = (map_tensors(itemgetter(k), all_draws) for k in range(bag.components))
        x = x.to(bag.free.dtype)
        means = torch.stack([bag.predict(draw, x).mean for draw in draws])  # (components, n, ...)
        return torch.tensordot(bag.weights, means, 1)


def onnx_file(model: Portable, path: Path) -> tuple[dict[Path, bytes], float]:
    r"""A student as an ONNX file; its difference from torch."""
    if any(importlib.util.find_spec(name) is None for name in ("onnxscript", "onnxruntime")):
        raise LimbeckError("export: ONNX needs the extra: pip install 'limbeck[onnx]'")
    import onnxruntime

    table, columns, name = model.table, model.columns, answer_name(model)
    if table is not None:  # the user's stays as it is
        model = replace(model, module=copy.deepcopy(model.module).cpu().float())
    x, module = model.rows(), plain(model.module)
    with evaluating(module), torch.no_grad():
        program = student_graph(model, x) or trace_onnx(
            module, x, model.name, input_names=["x"], output_names=["y"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
        ).model_proto  # fmt: skip
        content = program.SerializeToString()
        try:
            session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

            def run(rows: Any) -> Tensor:
                return torch.as_tensor(session.run([name], batch_feeds(table, rows, columns))[0])

            worst = largest_difference(run, module, x)
        except Exception as error:  # of onnxruntime's many kinds
            reason = f"onnxruntime cannot run the file ({' '.join(str(error).split())})"
            raise LimbeckError(f"export: {reason}; {FREE}") from error
    return {path: content}, worst


def program_file(model: Portable, path: Path) -> tuple[dict[Path, bytes], float]:
    r"""A student as a program's file; its difference from torch's own outputs."""
    x, module = model.rows(), plain(model.module)
    for name in x if isinstance(x, dict) else ():
        if re.search(r"[\"'\\{}\x00-\x1f]", name):  # torch runs code that has these names in it
            expected = "names without quotes, backslashes and braces, in a .pt2 file: rename it"
            raise ArgumentError("table", f"a column {name!r}", expected)
    rows = torch.export.Dim("batch")
    dynamic = {name: {0: rows} for name in x} if isinstance(x, dict) else {0: rows}
    about = {
        "student": model.name, "form": model.form, "task": model.task, "classes": model.classes,
        "shape": None if model.shape is None else list(model.shape),
        "table": None if model.table is None else model.table.spec(),
    }  # fmt: skip
    text = json.dumps(about, ensure_ascii=False, default=str)
    file = io.BytesIO()
    with evaluating(module), torch.no_grad(), exporting(model.name, "a program"):
        program = torch.export.export(module, (x,), dynamic_shapes=(dynamic,))
        for node in program.graph.nodes:  # it must run where limbeck is not
            if node.op == "call_function" and str(node.target).startswith("limbeck"):
                raise LimbeckError(f"it needs limbeck's own operation {node.target}")
        torch.export.save(program, file, extra_files={"limbeck.json": text})
        file.seek(0)
        loaded = torch.export.load(file).module()
        worst = largest_difference(lambda rows: loaded(map_tensors(Tensor.clone, rows)), module, x)
    return {path: file.getvalue()}, worst if zipfile.is_zipfile(file) else math.inf
