r"""A single tree in words: nested rules that people can read and check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from limbeck.errors import ArgumentError

if TYPE_CHECKING:
    from limbeck.models.tree import Trees

__all__ = ["rules"]

SHOWN = 5
r"""Classes at most that a leaf's line names."""

LEAST = 0.005
r"""The probability from which a class is named."""


def rules(
    tree: Trees,
    feature_names: Sequence[Any] | None,
    class_names: Sequence[Any] | None,
    thresholds: Sequence[Callable[[float], str]] | None = None,
) -> str:
    r"""The rules of a single tree; `Trees.text` says what the arguments are."""
    if len(tree) != 1:
        raise ArgumentError("trees", f"{len(tree)} trees", "a single tree, for rules in words")
    outputs = tree.value.shape[1]
    columns = _names("feature_names", feature_names, tree.inputs, "x[{}]")
    classes = _names("class_names", class_names, outputs, "{}" if outputs > 1 else "value")
    shown = thresholds or [_short] * tree.inputs
    left, leaf, share = tree.left.tolist(), tree.is_leaf.tolist(), tree.share.tolist()
    feature, threshold, value = tree.feature.tolist(), tree.threshold.tolist(), _values(tree)
    lines: list[str] = []
    rest: list[tuple[int, int, str]] = [
        (0, 0, "")
    ]  # nodes to come, their level and what leads there
    while rest:
        node, level, before = rest.pop()
        if before:
            lines.append("    " * (level - 1) + before)
        pad = "    " * level
        if leaf[node]:
            said = _said(value[node], classes, tree.kind)
            lines.append(f"{pad}{said}  ({share[node]:.1%} of rows)")
            continue
        column, missing_right = feature[node] % tree.inputs, feature[node] >= tree.inputs
        gone = " or missing" if tree.missing and not missing_right else ""
        lines.append(f"{pad}if {columns[column]} <= {shown[column](threshold[node])}{gone}:")
        rest += [(left[node] + 1, level + 1, "else:"), (left[node], level + 1, "")]
    return "\n".join(lines)


def _short(threshold: float) -> str:
    return f"{threshold:.6g}"


def _values(tree: Trees) -> list[list[float]]:
    value = (tree.base + tree.value).double()
    if tree.kind == "logits":
        value = value.softmax(1)
    elif tree.kind == "label_logits":
        value = value.sigmoid()
    return value.tolist()


def _names(argument: str, names: Sequence[Any] | None, count: int, pattern: str) -> list[str]:
    if names is None:
        return [pattern.format(k) for k in range(count)]
    if len(names) != count:
        raise ArgumentError(argument, f"{len(names)} names", f"{count} names")
    return [str(name) for name in names]


def _said(value: list[float], names: list[str], kind: str) -> str:
    if kind == "values":
        return ", ".join(f"{name} {v:.4g}" for name, v in zip(names, value, strict=True))
    best = sorted(range(len(value)), key=lambda k: -value[k])[:SHOWN]
    told = [k for k in best if value[k] >= LEAST] or best[:1]
    return ", ".join(f"{names[k]} {value[k]:.2f}" for k in told)
