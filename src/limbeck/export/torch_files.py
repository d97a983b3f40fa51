r"""Files of torch's exporters, ONNX and torch.export: run and compared before they are written."""

from __future__ import annotations

import importlib.util
import io
import json
import math
import re
import zipfile
from collections.abc import Callable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from limbeck.arguments import Dict, PathLike, UserObject, checked_arguments
from limbeck.arrays import map_tensors
from limbeck.condensation.predict_function import Means
from limbeck.condensation.sample_bag import SampleBag
from limbeck.errors import ArgumentError, LimbeckError
from limbeck.evaluation import evaluating
from limbeck.export import files
from limbeck.export.portable import Portable, portable
from limbeck.export.table_onnx import array_graph, run_onnx, table_onnx_file, trace_onnx
from limbeck.models.deep_nade import DeepNADE
from limbeck.models.kernels import nade_blocks, segments
from limbeck.models.mixture import GaussianMixture
from limbeck.models.nade import NADE


def plain(module: nn.Module) -> nn.Module:
    r"""The same function without operations of limbeck's own; any other module as it is."""
    if isinstance(module, GaussianMixture):
        return _Mixture(module)
    if isinstance(module, Means) and isinstance(module.student, SampleBag):
        return _Formula(module.student, _bag_means)
    if isinstance(module, NADE | DeepNADE):
        return _Formula(module, _nade_log_prob)
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


class _Formula(nn.Module):
    r"""A function of a module and x, as a module."""

    def __init__(self, model: nn.Module, formula: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.formula = model, formula

    def forward(self, x: Tensor) -> Tensor:
        return self.formula(self.model, x)


def _bag_means(bag: SampleBag, x: Tensor) -> Tensor:
    r"""The means of a bag, one component after the other: tracers do not follow every vmap."""
    all_draws, x = bag._draws, x.to(bag.free.dtype)
    draws = (map_tensors(itemgetter(k), all_draws) for k in range(bag.components))
    means = torch.stack([bag.predict(draw, x).mean for draw in draws])  # (components, n, ...)
    return torch.tensordot(bag.weights, means, 1)


def _nade_log_prob(model: Any, x: Tensor) -> Tensor:
    r"""The log probabilities of a NADE, deep or not, by its formula."""
    count, codes = model.support.count, model._codes(x, False)
    if isinstance(model, NADE) and count == 2:
        log_prob: Tensor = nade_blocks.log_prob(codes, *model.parts, model.mean)
        return log_prob
    states = torch.arange(count, dtype=codes.dtype, device=codes.device)
    one_hot = (codes.unsqueeze(2) == states).to(codes.dtype)  # (n, I, q)
    if isinstance(model, NADE):
        w, c, u, b = model.parts
        parts = (w.flatten(0, 1), c, u.flatten(0, 1))
        z = nade_blocks.formula(one_hot.flatten(1), *parts, period=count) + b.flatten()
        z = z.unflatten(1, (-1, count))
    else:
        z = _deep_logits(model, codes.unsqueeze(2) if count == 2 else one_hot)
    if count == 2:
        return (codes * z.squeeze(2) - F.softplus(z.squeeze(2))).sum(1)
    return (z.log_softmax(2) * one_hot).sum((1, 2))


def _deep_logits(model: Any, features: Tensor) -> Tensor:
    r"""Logits (n, I, o) of a deep NADE at features (n, I, f)."""
    inputs, hidden = model.inputs, model.hidden
    w, v, u = (part.reshape(inputs, -1, hidden) for part in (model.w, model.v, model.u))
    y = features - model.mean.reshape(inputs, -1)
    ends = [k * model.run for k in range(1, model.runs)]
    sums = [y[:, :end].flatten(1) @ w[:end].flatten(0, 1) for end in ends]
    sums = [0 * (y[:, 0] @ w[0]), *sums]  # nothing is before the first run
    starts = model._deep(torch.stack(sums))  # (runs, n, J)
    return segments.formula(y, starts, v, u, model.b.reshape(inputs, -1), model.run)


@checked_arguments
def to_onnx(
    student: nn.Module, path: PathLike, input_shape: Dict[dict[str, list[int]]] | None
) -> Path:
    r"""Write a module of one tensor as an ONNX file with a free batch size.

    If onnxruntime is there, the file is run at random inputs and must agree with torch.

    Arguments:
        student: The module.
        path: The file, whose name ends in .onnx.
        input_shape: The shape of one input under the name "", as in a result's settings.
    """
    if not input_shape or set(input_shape) != {""}:
        raise ArgumentError("student", f"inputs {input_shape}", "a student of one tensor, for ONNX")
    files.write_files(onnx_file(Portable(student, tuple(input_shape[""])), Path(path))[0])
    return Path(path)


def onnx_file(model: Portable, path: Path) -> tuple[dict[Path, bytes], float | None]:
    r"""A student as an ONNX file; its difference from torch, None if unknown."""
    files.check_suffix(path, ".onnx")
    if model.table is not None:
        assert model.student is not None
        assert model.task is not None
        output = "logits" if model.task == "multilabel" else "auto"
        content = table_onnx_file(
            model.student, model.table, model.classes, model.task, output, model.columns
        )
        return {path: content}, files.TOLERANCE
    if importlib.util.find_spec("onnxscript") is None:
        raise LimbeckError("export: ONNX needs the extra: pip install 'limbeck[onnx]'")
    x, module = model.rows(), plain(model.module)
    with evaluating(module), torch.no_grad():
        program = array_graph(model) or trace_onnx(
            module, x, model.name, input_names=["x"], output_names=["y"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
        ).model_proto  # fmt: skip
        content = program.SerializeToString()
        if importlib.util.find_spec("onnxruntime") is None:
            return {path: content}, None
        try:
            worst = files.largest_difference(
                lambda rows: run_onnx(content, {"x": rows.cpu().numpy()}), module, x
            )
        except Exception as error:  # of onnxruntime's many kinds
            reason = f"onnxruntime cannot run the file ({' '.join(str(error).split())})"
            raise LimbeckError(f"export: {reason}; {files.FREE}") from error
        files.check_agreement("ONNX file", worst)
        return {path: content}, worst


@checked_arguments
def to_pt2(
    thing: UserObject[object],
    path: PathLike,
    input_shape: UserObject[int | Sequence[int] | None] = None,
) -> Path:
    r"""Write a result or a module as a program of torch.export, with a free batch size.

    Load it with `torch.export.load(path).module()`, which does not need limbeck. limbeck itself
    never reads such files.

    Arguments:
        thing: As of `limbeck.export.export`.
        path: The file, whose name ends in .pt2.
        input_shape: The shape of one row, if the module does not define it. Default: None.
    """
    files.write_files(program_file(portable(thing, input_shape), Path(path))[0])
    return Path(path)


def program_file(model: Portable, path: Path) -> tuple[dict[Path, bytes], float]:
    r"""A student as a program's file; its difference from torch's own outputs."""
    files.check_suffix(path, ".pt2")
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
    with evaluating(module), torch.no_grad():
        program = _traced(model.name, module, x, dynamic)
        for node in program.graph.nodes:  # it must run where limbeck is not
            if node.op == "call_function" and str(node.target).startswith("limbeck"):
                error = LimbeckError(f"it needs limbeck's own operation {node.target}")
                raise files.export_error(model.name, "a program", error)
        with files.quietly():
            torch.export.save(program, file, extra_files={"limbeck.json": text})
            file.seek(0)
            loaded = torch.export.load(file).module()
            worst = files.largest_difference(
                lambda rows: loaded(map_tensors(Tensor.clone, rows)), module, x
            )
        files.check_agreement("program", worst if zipfile.is_zipfile(file) else math.inf)
    return {path: file.getvalue()}, worst


def _traced(name: str, module: nn.Module, x: Any, dynamic: Any) -> Any:
    r"""The program of a module, by the first of torch's two ways of tracing that can do it."""
    errors = []
    for strict in (False, True):
        try:
            with files.quietly():
                return torch.export.export(module, (x,), dynamic_shapes=(dynamic,), strict=strict)
        except Exception as error:  # of the exporter's many kinds
            errors.append(error)
    raise files.export_error(name, "a program", errors[0]) from errors[0]
