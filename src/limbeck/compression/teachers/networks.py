r"""Torch modules as teachers on arrays: in evaluation mode, without gradients, in blocks."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from limbeck.compression.asking.keys import count
from limbeck.compression.teachers import fingerprints
from limbeck.compression.teachers.predictors import RawPredictor, look
from limbeck.compression.teachers.readings import Said, as_outputs, read, settle
from limbeck.compression.teachers.rows import dense
from limbeck.core.batch import X as Inputs
from limbeck.core.batch import part_of
from limbeck.core.modes import evaluating
from limbeck.core.teacher import output_form
from limbeck.errors import ArgumentError

__all__ = ["Network"]

BLOCK = 1024
r"""Rows that go through the module together."""


class Network(RawPredictor):
    r"""A torch module.

    Arrays become tensors on the module's device and of its floating type; integers stay integers
    only if the module has embeddings to look them up in.

    Arguments:
        module: The module, of a tensor or of a dict of tensors.
        X: A few rows, at which its outputs are looked at.
        said: What the user said of its outputs.
        name: For tables; None is the name of the module's class.
    """

    def __init__(self, module: nn.Module, X: Any, said: Said, name: str | None = None) -> None:
        self.module: nn.Module = module
        self.looks_up = any(isinstance(p, nn.Embedding | nn.EmbeddingBag) for p in module.modules())
        if said.task != "regression":  # the module has a word, too
            said = said._replace(output=output_form("output", module, said.output))
        said.checked()
        raw = self.raw(look(X, "what the module gives"))
        self.reading = settle(raw, said, network=True)
        if self.reading.form == "labels":
            raise ArgumentError("teacher", "a module of labels", "a module of floating outputs")
        self.module_form = self.reading.form
        self.raw_columns = raw.reshape(len(raw), -1).shape[1]
        columns = read(raw, self.reading).shape[1]
        name = name or type(module).__name__
        super().__init__(name, self.reading.task, columns, None, said.classes)

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
        accepted = "a module of one tensor (n, K): wrap it in one that picks it"
        raise ArgumentError("teacher", f"outputs of type {type(y).__name__}", accepted)
    return as_outputs(y, n)


def _as_tensor(X: Any) -> Tensor:
    if isinstance(X, Tensor):
        return X.detach()
    array = dense(X)
    if array.dtype.kind not in "biuf":
        received = f"columns of type {array.dtype}, for a torch teacher"
        raise ArgumentError("X", received, "numbers")
    return torch.as_tensor(np.ascontiguousarray(array))
