r"""Sums of decision trees as a module, read from scikit-learn, and a single tree as rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from limbeck import arguments as arg
from limbeck.errors import ArgumentError, shown
from limbeck.models.checks import DtypeName, Specified, flat
from limbeck.teachers.estimators import is_fitted

# the forms of the sum: classes in two forms, values, or independent labels in two forms
KINDS = ("probabilities", "logits", "values", "labels", "label_logits")
SURE = 1e-6  # label probabilities stay this far from 0 and 1, so that logits are finite
SIZES = ("inputs", "outputs", "trees", "nodes", "depth")  # of a spec


class TreeArrays(NamedTuple):
    r"""One tree of N nodes, the root first; all arrays are (N,) but for value."""

    left: np.ndarray  # the child for numbers up to the threshold; −1 at leaves
    right: np.ndarray  # the child for greater numbers
    feature: np.ndarray  # the column that is compared
    threshold: np.ndarray  # as 32-bit numbers
    missing_left: np.ndarray  # whether missing numbers go to the left
    value: np.ndarray  # outputs (N, K)
    weight: np.ndarray  # the total weight of the rows at a node


class Trees(Specified):
    r"""The sum of trees over inputs (n, D) and a constant, as outputs (n, K).

    A call moves all rows down all trees, level by level. Inputs are compared as 32-bit numbers, NaN
    is a missing value, and there are no derivatives with respect to inputs. Most trees come from
    `Trees.from_sklearn`, `fit_tree` or `fit_boosted`.

    Arguments:
        trees: The trees.
        inputs: The number of columns D.
        kind: The form of the sum: "probabilities", "logits", "values", or, for independent labels,
            "labels" (probabilities) or "label_logits", both with logits as outputs.
        base: The constant (K,). Default: zero.
        factor: A factor of the trees' values. Default: 1.
        missing: Whether the text of rules says where missing values go. Default: False.
        dtype: The outputs' floating-point type. Default: float32.
    """

    fields: ClassVar[Mapping[str, Any]] = {
        **dict.fromkeys(SIZES, int), "kind": str, "missing": bool, "dtype": DtypeName,
    }  # fmt: skip

    @arg.checked_arguments
    def __init__(
        self, trees: arg.Items[Sequence[TreeArrays]], inputs: arg.Count,
        kind: Annotated[str, arg.Choice(*KINDS)], *,
        base: arg.UserObject[np.ndarray | Sequence[float] | None] = None, factor: arg.Finite = 1.0,
        missing: arg.Flag = False, dtype: torch.dtype = torch.float32,
    ) -> None:  # fmt: skip
        super().__init__()
        if not trees:
            raise ArgumentError("trees", "no trees", "one or more")
        self.inputs, self.kind, self.missing = inputs, kind, missing
        for number, tree in enumerate(trees):
            _check_arrays(tree, inputs, f"trees[{number}]")
        packed, sizes = [_pack(tree, inputs) for tree in trees], [len(tree.left) for tree in trees]
        nodes = {name: np.concatenate([tree[name] for tree in packed]) for name in packed[0]}
        roots = np.cumsum([0, *sizes[:-1]])
        left = nodes["left"] = nodes["left"] + np.repeat(roots, sizes)
        self.depth = _depth(left, roots, "trees")
        value = nodes.pop("value") * factor
        numbers = {name: torch.tensor(values) for name, values in nodes.items()}
        self.feature, self.left = (nn.Buffer(numbers[n].int()) for n in ("feature", "left"))
        self.threshold, self.share = (nn.Buffer(numbers[n].float()) for n in ("threshold", "share"))
        self.roots = nn.Buffer(torch.tensor(roots, dtype=torch.int32))
        base = np.zeros(value.shape[1]) if base is None else np.asarray(base)
        self.base: Tensor = nn.Buffer(torch.tensor(base, dtype=dtype))
        # a parameter, so that the module has a device and a type as others do
        self.value = nn.Parameter(torch.tensor(value, dtype=dtype), requires_grad=False)

    @classmethod
    @arg.checked_arguments
    def from_sklearn(
        cls, estimator: arg.UserObject[Any], *, dtype: torch.dtype = torch.float32,
    ) -> Self:  # fmt: skip
        r"""A fitted scikit-learn tree or forest; outputs are its probabilities or values."""
        if not is_tree_estimator(estimator):
            expected = ", ".join(f"{name}Classifier or -Regressor" for name in FORESTS)
            raise ArgumentError("estimator", f"a {type(estimator).__name__}", expected)
        if not is_fitted(estimator):
            received = f"a {type(estimator).__name__} that is not fitted"
            raise ArgumentError("estimator", received, "a fitted one")
        classifies = hasattr(estimator, "classes_")
        if classifies and estimator.n_outputs_ > 1:
            expected = "one with a single output; for several labels, a regressor on 0 and 1"
            raise ArgumentError("estimator", "a classifier with several outputs", expected)
        members = getattr(estimator, "estimators_", None) or [estimator]
        trees = [of_tree(member.tree_, classifies) for member in members]
        kind, inputs = "probabilities" if classifies else "values", int(estimator.n_features_in_)
        return cls(trees, inputs, kind, factor=1 / len(members), dtype=dtype)

    @property
    def output_form(self) -> str:
        r"""The form of the outputs, as in `MLP`."""
        return "values" if self.kind in ("labels", "label_logits") else self.kind

    @property
    def leaves(self) -> int:
        r"""The number of leaves of all trees together."""
        return int(self.is_leaf.sum())

    @property
    def is_leaf(self) -> Tensor:
        r"""Which nodes are leaves (nodes,): those that lead to themselves."""
        return self.left == torch.arange(len(self.left), device=self.left.device)

    def __len__(self) -> int:
        return len(self.roots)

    def forward(self, x: Tensor) -> Tensor:
        rows = flat(x.to(torch.float32) if isinstance(x, Tensor) else x)
        if rows.shape[1] != self.inputs:
            raise ArgumentError("x", f"shape {tuple(x.shape)}", f"shape (n, {self.inputs})")
        missing = rows.isnan()
        # (n, 2 D): once with missing numbers lower than all others, once with them greater
        filled = [torch.where(missing, extreme, rows) for extreme in (-torch.inf, torch.inf)]
        columns = torch.cat(filled, 1)
        feature, left = self.feature.long(), self.left.long()
        node = self.roots.long().expand(rows.shape[0], -1)  # (n, trees)
        for _ in range(self.depth):
            right = columns.gather(1, feature.take(node)) > self.threshold.take(node)
            node = left.take(node) + right  # a right child follows its sibling
        y = self.base + self.value[node].sum(1)
        if self.kind != "labels":
            return y
        p = y.clamp(SURE, 1 - SURE)
        return p.log() - (1 - p).log()

    @arg.checked_arguments
    def text(
        self, feature_names: arg.Items[Sequence[str]] | None = None,
        class_names: arg.Items[Sequence[Any]] | None = None,
        thresholds: arg.Items[Sequence[Callable[[float], str]]] | None = None,
    ) -> str:  # fmt: skip
        r"""The rules of a single tree as text, with each leaf's prediction and share of rows.

        Arguments:
            feature_names: Names of the D columns. Default: x[0], x[1], ...
            class_names: Names of the K classes, labels or values. Default: their numbers.
            thresholds: Functions that format each column's thresholds. Default: six digits.
        """
        if len(self) != 1:
            raise ArgumentError("trees", f"{len(self)} trees", "a single tree, for rules as text")
        outputs = self.value.shape[1]
        columns = _names("feature_names", feature_names, self.inputs, "x[{}]")
        classes = _names("class_names", class_names, outputs, "{}" if outputs > 1 else "value")
        formats = thresholds or ["{:.6g}".format] * self.inputs
        if len(formats) != self.inputs or not all(map(callable, formats)):
            raise ArgumentError("thresholds", shown(thresholds), f"{self.inputs} functions")
        outcome = (self.base + self.value).double()
        outcome = outcome.softmax(1) if self.kind == "logits" else outcome
        outcome = outcome.sigmoid() if self.kind == "label_logits" else outcome
        left, leaf, share = self.left.tolist(), self.is_leaf.tolist(), self.share.tolist()
        feature, threshold, value = self.feature.tolist(), self.threshold.tolist(), outcome.tolist()
        lines: list[str] = []
        pending = [(0, 0, "")]  # nodes to come, their level and the line before
        while pending:
            node, level, before = pending.pop()
            if before:
                lines.append("    " * (level - 1) + before)
            pad = "    " * level
            if leaf[node]:
                prediction = _prediction(value[node], classes, self.kind)
                lines.append(f"{pad}{prediction}  ({share[node]:.1%} of rows)")
                continue
            column, missing_left = feature[node] % self.inputs, feature[node] < self.inputs
            missing = " or missing" if self.missing and missing_left else ""
            limit = formats[column](threshold[node])
            lines.append(f"{pad}if {columns[column]} <= {limit}{missing}:")
            pending += [(left[node] + 1, level + 1, "else:"), (left[node], level + 1, "")]
        return "\n".join(lines)

    def spec(self) -> dict[str, Any]:
        sizes = (self.inputs, self.value.shape[1], len(self), len(self.left), self.depth)
        return super().spec() | dict(zip(SIZES, sizes, strict=True))

    @staticmethod
    def _least_size(fields: Mapping[str, Any]) -> int:
        return max(0, fields["nodes"]) * (4 + max(0, fields["outputs"])) + fields["trees"]

    @classmethod
    def _make(cls, fields: dict[str, Any]) -> Self:
        # the depth is computed from the loaded tensors, whatever the spec says
        inputs, outputs, count, nodes, _ = (fields.pop(name) for name in SIZES)
        inner, odd = divmod(nodes - count, 2)  # each of them has two children
        if outputs < 1 or count < 1 or inner < 0 or odd:
            received = f"{count} trees of {nodes} nodes and {outputs} outputs"
            raise ArgumentError("spec", received, "a tree or more of an odd number of nodes each")
        parts = []
        for size in [2 * inner + 1] + [1] * (count - 1):
            left = np.where(np.arange(size) < size // 2, 2 * np.arange(size) + 1, -1)
            zeros, ones = np.zeros(size, int), np.ones(size)
            right, value = np.where(left < 0, -1, left + 1), np.zeros((size, outputs))
            parts.append(TreeArrays(left, right, zeros, ones, zeros, value, ones))
        return cls(parts, inputs, **fields)

    def make_room(self, tensors: dict[str, Tensor]) -> None:
        names = ("left", "roots", "feature")
        if not all(n in tensors and tensors[n].shape == getattr(self, n).shape for n in names):
            return  # loading them says so
        left, roots, feature = (tensors[name].cpu().long().numpy() for name in names)
        if roots[0] != 0 or (np.diff(roots) < 1).any():
            raise ArgumentError("roots", "numbers that do not rise from 0", "the first nodes")
        if (feature < 0).any() or (feature >= 2 * self.inputs).any():
            received = f"columns from {feature.min()} to {feature.max()}"
            raise ArgumentError("feature", received, f"columns from 0 to {2 * self.inputs - 1}")
        self.depth = _depth(left, roots, "left")

    def extra_repr(self) -> str:
        return f"{len(self)} trees, {self.leaves} leaves, depth={self.depth}, kind={self.kind!r}"


def _check_arrays(tree: TreeArrays, inputs: int, argument: str) -> None:
    r"""Refuse arrays of different lengths, and links that are not those of one tree."""
    if not isinstance(tree, TreeArrays):
        raise ArgumentError(argument, shown(tree), "a TreeArrays")
    left, right, feature = (np.asarray(a) for a in (tree.left, tree.right, tree.feature))
    size = len(left)
    if size == 0 or left.dtype.kind not in "iu" or {len(array) for array in tree} != {size}:
        lengths = ", ".join(str(len(array)) for array in tree)
        raise ArgumentError(argument, f"arrays of {lengths}", "as many numbers in each, from 1")
    inner = left >= 0
    children = np.sort(np.concatenate([left[inner], right[inner]]))
    if not np.array_equal(children, np.arange(1, size)):
        expected = "the root first, and each other node as the child of one node"
        raise ArgumentError(argument, f"links to the nodes {children.tolist()[:8]}", expected)
    if (feature[inner] < 0).any() or (feature[inner] >= inputs).any():
        received = f"columns from {feature[inner].min()} to {feature[inner].max()}"
        raise ArgumentError(argument, received, f"columns from 0 to {inputs - 1}")


def _depth(left: np.ndarray, roots: np.ndarray, argument: str) -> int:
    r"""The number of levels below the roots; refuse links by which a row would not end."""
    inner = left[left != np.arange(len(left))]
    links = np.sort(np.concatenate([inner, inner + 1, roots]))
    reached, depth, level = len(roots), 0, roots
    if np.array_equal(links, np.arange(len(left))):  # so that no node is reached twice
        while len(level := level[left[level] != level]):
            level = np.concatenate([left[level], left[level] + 1])
            reached, depth = reached + len(level), depth + 1
    if reached < len(left):
        expected = "trees, whose nodes are each reached once from a root"
        raise ArgumentError(argument, "links that go in a circle, or to no node", expected)
    return depth


def _pack(tree: TreeArrays, inputs: int) -> dict[str, np.ndarray]:
    r"""Arrays over nodes with siblings side by side; a leaf is its own left child."""
    inner = np.flatnonzero(tree.left >= 0)
    position = np.zeros(len(tree.left), dtype=np.int64)  # of a node in the new order
    first = 1 + 2 * np.arange(len(inner))
    position[tree.left[inner]], position[tree.right[inner]] = first, first + 1
    order, here = np.argsort(position, kind="stable"), position[inner]
    left = np.arange(len(position))
    feature, threshold = np.zeros_like(left), np.full(len(left), np.inf, dtype=np.float32)
    left[here] = first
    # columns from D on have missing numbers on the right
    feature[here] = tree.feature[inner] + inputs * (tree.missing_left[inner] == 0)
    # below infinity, which stands for missing numbers
    threshold[here] = np.minimum(tree.threshold[inner], np.finfo(np.float32).max)
    share, value = tree.weight[order] / tree.weight[0], tree.value[order]
    return dict(feature=feature, threshold=threshold, left=left, share=share, value=value)


def _names(argument: str, names: Sequence[Any] | None, count: int, pattern: str) -> list[str]:
    if names is None:
        return [pattern.format(k) for k in range(count)]
    if len(names) != count:
        raise ArgumentError(argument, f"{len(names)} names", f"{count} names")
    return [str(name) for name in names]


def _prediction(value: list[float], names: list[str], kind: str) -> str:
    if kind == "values":
        return ", ".join(f"{name} {v:.4g}" for name, v in zip(names, value, strict=True))
    best = sorted(range(len(value)), key=lambda k: -value[k])[:5]
    likely = [k for k in best if value[k] >= 0.005] or best[:1]
    return ", ".join(f"{names[k]} {value[k]:.2f}" for k in likely)


FORESTS = ("DecisionTree", "ExtraTree", "RandomForest", "ExtraTrees")


def is_tree_estimator(estimator: object) -> bool:
    r"""Whether something is one of scikit-learn's trees or forests."""
    kind = type(estimator)
    name = kind.__name__.removesuffix("Classifier").removesuffix("Regressor")
    return kind.__module__.startswith("sklearn.") and name in FORESTS


def of_tree(tree: Any, classifies: bool) -> TreeArrays:
    r"""An estimator's attribute `tree_`."""
    value = tree.value[:, 0, :] if classifies else tree.value[:, :, 0]
    return TreeArrays(
        tree.children_left, tree.children_right, tree.feature, _in_32_bits(tree.threshold),
        tree.missing_go_to_left, value, tree.weighted_n_node_samples,
    )  # fmt: skip


def _in_32_bits(threshold: np.ndarray) -> np.ndarray:
    r"""Thresholds rounded down to 32 bits: a 32-bit x is above both or neither."""
    with np.errstate(over="ignore"):
        near = threshold.astype(np.float32)
    below = np.nextafter(near, np.float32(-np.inf))
    return np.where(near.astype(np.float64) > threshold, below, near)


def of_lightgbm(text: str, values: np.ndarray) -> TreeArrays:
    r"""A tree in the text of a LightGBM model, without categories, and values of its leaves."""
    lines = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    kinds = {"threshold": float, "leaf_count": float, "internal_count": float}
    names = ("left_child", "right_child", "split_feature", "decision_type", *kinds)
    left, right, feature, rule, threshold, *counts = (
        np.array(lines[name].split(), kinds.get(name, int)) for name in names
    )
    # inner nodes come first; a leaf k is the child ~k
    leaves, inner = int(lines["num_leaves"]), len(left)
    left, right = (np.where(child < 0, inner + ~child, child) for child in (left, right))
    # missing numbers have a side of their own, or are compared as 0
    missing_left = np.where(rule & 8, rule & 2, threshold >= 0) != 0
    ends, none = np.full(leaves, -1), np.zeros(leaves)
    return TreeArrays(
        np.append(left, ends), np.append(right, ends), np.append(feature, ends),
        np.append(_in_32_bits(threshold), none), np.append(missing_left, none),
        np.vstack([np.zeros((inner, values.shape[1])), values[:leaves]]),
        np.concatenate(counts[::-1]),
    )  # fmt: skip
