r"""What a model costs: parameters, bytes on disk; and, as it was timed, a batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from limbeck.compression.teachers import fingerprints
from limbeck.core.checks import number, whole_number
from limbeck.errors import ArgumentError

__all__ = ["Cost", "as_cost", "bytes_on_disk", "cost", "parameters"]


@dataclass(frozen=True)
class Cost:
    r"""What a model costs; None, or no entry, is not known.

    Attributes:
        parameters: Numbers that were fitted.
        bytes: Size of the file that ships.
        files: What was measured, such as "student.onnx"; nothing where it was not said.
        latency: Seconds for a batch, by its number of rows.
    """

    parameters: int | None = None
    bytes: int | None = None
    latency: Mapping[int, float] = field(default_factory=dict)
    files: str = ""


def as_cost(given: Cost | Mapping[str, Any] | None, argument: str) -> Cost:
    r"""A cost, from one or from a mapping with its fields."""
    known = {} if given is None else asdict(given) if isinstance(given, Cost) else dict(given)
    for name in known.keys() - Cost.__dataclass_fields__.keys():
        raise ArgumentError.unknown(argument, name, Cost.__dataclass_fields__)
    accepted = "whole numbers of parameters and bytes, or None"
    counts = {
        name: whole_number(f"{argument}[{name!r}]", known[name], accepted, 0)
        for name in ("parameters", "bytes")
        if known.get(name) is not None
    }
    name, accepted = f"{argument}['latency']", "seconds above 0, by numbers of rows"
    times = {
        # JSON has the numbers of rows as text
        whole_number(name, int(size) if isinstance(size, str) else size, accepted, 1): number(
            name, value, accepted, lambda s: s > 0
        )
        for size, value in dict(known.get("latency") or {}).items()
    }
    return Cost(**counts, latency=times, files=str(known.get("files") or ""))


def cost(model: Any, latency: Mapping[int, float] | None = None) -> Cost:
    r"""What a model costs; times, by the number of rows, are measured elsewhere."""
    file = getattr(model, "file", None)
    files = "" if file is None else file.path.name
    return Cost(parameters(model), bytes_on_disk(model), dict(latency or {}), files)


def parameters(model: Any) -> int | None:
    r"""How many numbers a model was fitted with, or None where that cannot be told.

    Of a module its parameters (if it has none, whatever it holds); of scikit-learn's estimators
    the coefficients of linear models and nets, two numbers for each split of a tree and its values
    for each leaf; of several models the sum.

    >>> parameters(nn.Linear(3, 2))
    8
    """
    if isinstance(model, nn.Module):
        if fingerprints.holds_other_model(model):
            return None
        count = sum(p.numel() for p in model.parameters())
        return count or _numbers(model.state_dict().values()) or None
    if fingerprints.is_wrapper(model):
        return None
    if (parts := _parts(model)) is not None:
        return _sum([parameters(part) for part in parts])
    if (tree := getattr(model, "tree_", None)) is not None:
        leaves = int(tree.n_leaves)
        return 2 * (int(tree.node_count) - leaves) + leaves * math.prod(tree.value.shape[1:])
    for names in (("coef_", "intercept_"), ("coefs_", "intercepts_")):
        held = [getattr(model, name, None) for name in names]
        if held[0] is not None:
            return _numbers(held)
    return None


def _parts(model: Any) -> list[Any] | None:
    r"""The models that one is made of."""
    if isinstance(model, list | tuple):
        return list(model)
    if isinstance(steps := getattr(model, "steps", None), list):
        return [steps[-1][-1]]  # what a pipeline fits before its last step is not counted
    for several, last in (("estimators_", "final_estimator_"), ("members", "final")):
        if (found := getattr(model, several, None)) is not None:
            over = getattr(model, last, None)
            return [
                *(found.flat if isinstance(found, np.ndarray) else found),
                *([] if over is None else [over]),
            ]
    inner = (getattr(model, name, None) for name in ("module", "best_estimator_", "estimator"))
    return next(([part] for part in inner if part is not None), None)


def _numbers(tree: Any) -> int:
    if isinstance(tree, Tensor):
        return tree.numel()
    if isinstance(tree, np.ndarray) and tree.dtype != object:
        return tree.size
    return sum(map(_numbers, tree)) if np.iterable(tree) else int(np.isscalar(tree))


def _sum(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def bytes_on_disk(model: Any) -> int | None:
    r"""The size of a model when it is saved, or None where that cannot be told.

    Of a module, its state as a safetensors file; of a file, its size; of what has a method
    `bytes`, what that says; of models of known libraries, their size when pickled; of several
    models the sum. The size of a function, of a service, or of a class that asks one is unknown.
    """
    if isinstance(model, nn.Module):
        return fingerprints.module_bytes(model)
    if isinstance(model, str | Path):
        if not Path(model).is_file():
            raise ArgumentError("model", str(model), "a file that exists")
        return Path(model).stat().st_size
    if callable(own := getattr(model, "bytes", None)):
        size: int | None = own()
        return size
    if isinstance(model, list | tuple):
        return _sum([bytes_on_disk(part) for part in model])
    if not any(hasattr(model, name) for name in ("predict", "predict_proba")):
        return None
    return fingerprints.object_bytes(model)
