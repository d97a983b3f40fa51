r"""Nets and trees of limbeck's own as ONNX graphs of few nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from limbeck.compression.fast_path import indicators
from limbeck.export.parts import Array, Parts
from limbeck.models.tree import SURE, Trees

KINDS = {
    "linear": "", "relu": "Relu", "tanh": "Tanh", "logistic": "Sigmoid", "softmax": "Softmax",
    "log_softmax": "LogSoftmax",
}  # fmt: skip


class Graph:
    r"""A list of ONNX nodes; each call adds one and returns its output's name.

    `keys` and `coded` name the numbers (n, N) and the codes (n, C) of a student, in order.
    """

    def __init__(self, keys: list[str], coded: list[str], prefix: str = "node") -> None:
        self.nodes: list[Any] = []
        self.keys, self.coded, self.prefix = keys, coded, prefix

    def __call__(
        self, operator: str, *inputs: str, output: str | None = None, **attributes: Any
    ) -> str:
        from onnx import helper

        name = output or f"{self.prefix}/{len(self.nodes)}"
        names = [name, f"{name}/rest"] if operator == "Split" else [name]
        self.nodes.append(helper.make_node(operator, list(inputs), names, **attributes))
        return name

    def constant(self, value: ArrayLike, dtype: Any = None) -> str:
        return self("Constant", value=tensor(value, dtype))

    def single(self, value: ArrayLike) -> str:
        return self.constant(value, np.float32)

    def joined(self, parts: list[str]) -> str:
        r"""Tensors side by side."""
        return self("Concat", *parts, axis=1) if len(parts) > 1 else "".join(parts)

    def student(self, parts: Parts, x: str, codes: str) -> str:
        r"""Add the nodes of a student from numbers and codes to answers (n, K)."""
        self.parts, self.encoder = parts, parts.encoder
        trees = self.parts.network if isinstance(self.parts.network, Trees) else None
        end, gone = last_operator(self.parts), ""
        if self.encoder is not None and self.encoder.masks:
            fill = {n.key: n.fill for n in self.encoder.numbers if n.mask is not None}
            gone = self("IsNaN", x)  # where nothing was missing, NaN stays NaN
            x = self("Where", gone, self.single([fill.get(key, np.nan) for key in self.keys]), x)
            gone = self("Cast", gone, to=1)
        if trees is None:
            y, check = self._net(x, gone, codes)
        else:
            y = self._trees(trees, x, gone, codes)
            tables = [] if self.encoder is None else self.encoder.categories
            nothing = [np.zeros((category.size + 2, 0)) for category in tables]
            check = self._categories(codes, nothing, np.zeros(0))[1] if self.coded else ""
        if trees is not None and trees.kind == "labels":
            y, end = self("Clip", y, self.single(SURE), self.single(1 - SURE)), ""
        if self.keys:
            zeros = self.single(np.zeros((len(self.keys), 1)))
            check = self("Gemm", x, zeros, *filter(None, [check]))
        return self("Add", self(end, y) if end else y, check)

    @property
    def place(self) -> Array:
        r"""Where the numbers of the student are among the given ones."""
        numbers = self.keys if self.encoder is None else [n.key for n in self.encoder.numbers]
        return np.array([self.keys.index(key) for key in numbers], int)

    def _features(self, x: str) -> str:
        r"""The features (n, F) of numbers."""
        features = self.parts.features
        if features is None:
            return x
        at = self.place[features.which]
        if not np.array_equal(at, np.arange(len(self.keys))):
            x = self("Gather", x, self.constant(at), axis=1)
        x = self("Sub", x, self.single(features.shift))
        x = self("Div", x, self.single(features.scale))
        if features.clips:
            x = self("Max", x, self.single(features.low))
            x = self("Min", x, self.single(features.high))
        return x

    def _categories(self, codes: str, tables: list[Array], bias: Array) -> tuple[str, str]:
        r"""A bias (n, outputs) with what categories add to it, and (n, 1): 0, or NaN to refuse."""
        assert self.encoder is not None
        pairs = {pair[0].key: pair for pair in zip(self.encoder.categories, tables, strict=True)}
        rows, sizes, outputs = [], [], bias.size
        for category, table in (pairs[key] for key in self.coded):
            check = np.zeros((category.size + 2, 1))
            check[-1] = 0 if category.missing else np.nan
            unknown = [category.size]  # is what other codes are
            every = [*unknown, *range(category.size + 2), *unknown]
            rows.append(np.hstack([table + bias, check])[every])
            bias = np.zeros_like(bias)
            sizes.append(category.size)
        starts = np.cumsum([0, *map(len, rows[:-1])]) + 1
        code = self("Max", codes, self.constant(-1))
        code = self("Min", code, self.constant(np.array(sizes) + 2))
        code = self("Add", code, self.constant(starts))
        picked = self("Gather", self.single(np.concatenate(rows)), code, axis=0)
        total = self("ReduceSum", picked, self.constant([1]), keepdims=0)
        if not outputs:
            return "", total
        added = self("Split", total, self.constant([outputs, 1]), axis=1)
        return added, f"{added}/rest"

    def _net(self, x: str, gone: str, codes: str) -> tuple[str, str]:
        r"""The nodes of a net."""
        features, added, check = self.parts.features, "", ""
        for k, (weight, bias, kind, tables) in enumerate(self.parts.layers):
            if k == 0 and features is not None and self.keys:
                x, count = self._features(x), len(features.which)
                if gone:
                    masks = np.zeros((len(self.keys), weight.shape[1]))
                    masks[self.place[: len(weight) - count]] = weight[count:]
                    x, weight = self.joined([x, gone]), np.vstack([weight[:count], masks])
            if tables:
                added, check = self._categories(codes, tables, bias)
            added = added if tables else self.single(bias)
            x = self("Gemm", x, self.single(weight), added) if k or self.keys else added
            x = self(KINDS[kind], x) if KINDS[kind] else x
        return x, check

    def _trees(self, trees: Trees, x: str, gone: str, codes: str) -> str:
        r"""The nodes of trees."""
        encoder, parts = self.encoder, list[str]()
        if self.keys:
            parts.append(self._features(x))
        if encoder is not None and gone:
            masked = self.constant(self.place[: len(encoder.masks)])
            parts.append(self("Gather", gone, masked, axis=1))
        if encoder is not None and len(encoder.slots):
            place, slots = indicators(encoder, self.coded)
            code = self("Gather", codes, self.constant(place), axis=1)
            parts.append(self("Cast", self("Equal", code, self.constant(slots)), to=1))
        for key, table in [] if encoder is None else self.parts.embeddings:
            code = self("Gather", codes, self.constant(self.coded.index(key)), axis=1)
            code = self("Min", self("Max", code, self.constant(-1)), self.constant(len(table)))
            rows = table[[len(table) - 2, *range(len(table)), len(table) - 2]]  # others are unknown
            code = self("Add", code, self.constant(1))
            parts.append(self("Gather", self.single(rows), code, axis=0))
        leaf, left = trees.is_leaf.cpu().numpy(), trees.left.cpu().numpy()
        feature, value = trees.feature.cpu().numpy(), trees.value.detach().cpu().numpy()
        tree = np.searchsorted(trees.roots.cpu().numpy(), np.arange(len(left)), "right") - 1
        node, output = np.nonzero(leaf[:, None] & np.ones(value.shape[1], bool))
        below = np.where(leaf, 0, left)
        return self(
            "TreeEnsembleRegressor", self.joined(parts), domain="ai.onnx.ml",
            n_targets=value.shape[1], base_values=trees.base.tolist(),
            nodes_treeids=tree.tolist(), nodes_nodeids=list(range(len(left))),
            nodes_featureids=np.where(leaf, 0, feature % trees.inputs).tolist(),
            nodes_values=np.where(leaf, 0, trees.threshold.cpu().numpy()).tolist(),
            nodes_modes=["LEAF" if end else "BRANCH_LEQ" for end in leaf],
            nodes_truenodeids=below.tolist(), nodes_falsenodeids=(below + ~leaf).tolist(),
            nodes_missing_value_tracks_true=(feature < trees.inputs).astype(int).tolist(),
            target_treeids=tree[node].tolist(), target_nodeids=node.tolist(),
            target_ids=output.tolist(), target_weights=value[node, output].tolist(),
        )  # fmt: skip


def last_operator(parts: Parts) -> str | None:
    r"""The operator from outputs to answers, "" if they are equal; None if there is no graph."""
    layers = [] if isinstance(parts.network, Trees) else parts.layers
    known = KINDS.keys() >= {parts.answer, *(layer.kind for layer in layers)}
    single = next(parts.network.parameters()).dtype == torch.float32
    if parts.task is None or parts.scales_outputs or parts.both or not known or not single:
        return None
    return KINDS[parts.answer]


def tensor(value: ArrayLike, dtype: Any = None) -> Any:
    r"""A tensor of ONNX."""
    from onnx import numpy_helper

    return numpy_helper.from_array(np.array(value, dtype))
