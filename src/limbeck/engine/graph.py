r"""The CUDA engine: the compiled step, captured as one CUDA graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from limbeck.core.batch import leaves, map_tensors
from limbeck.core.objective import Plan
from limbeck.core.update import Update
from limbeck.engine.compiled import Compiled
from limbeck.engine.precision import tensor_float

__all__ = ["Graph"]

WARM_UP = 3
r"""Steps run before the capture, so that libraries have chosen their kernels and workspaces."""


class Graph(Compiled):
    r"""Replays one captured graph a step; the plan's tensors are copied into fixed places.

    Factors of float32 matrix products are rounded to TF32, as is usual in training; nothing but
    the steps themselves is touched by it.
    """

    def __init__(self, update: Update, layout: str | None = None) -> None:
        super().__init__(update, layout)
        self._captured: torch.cuda.CUDAGraph | None = None
        self._calls = 0

    def _fitting(self, plan: Plan) -> None:
        if self._captured is not None:
            self._refill(plan)
            self._captured.replay()
        elif self._calls < WARM_UP:
            self._calls += 1
            with tensor_float():
                super()._fitting(plan)
        else:
            with tensor_float():
                try:
                    self._capture(plan)
                except Exception as error:
                    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                    return self._give_up(plan, f"the step cannot be captured ({reason})")
            self._fitting(plan)
        return None

    def _eagerly(self, plan: Plan) -> None:
        with tensor_float():
            super()._eagerly(plan)

    def _capture(self, plan: Plan) -> None:
        r"""Capturing records the step without running it."""
        self._places: list[Tensor] = leaves(map_tensors(torch.clone, plan))
        for slot, leaf in self._slots:
            self._arguments[slot] = self._places[leaf]
        assert self._graph is not None
        torch.cuda.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            self._graph(*self._arguments)
        self._captured = captured

    def _refill(self, plan: Plan) -> None:
        for place, tensor in zip(self._places, leaves(plan), strict=True):
            place.copy_(tensor)

    def _options(self) -> dict[str, Any]:
        return {"combo_kernels": True}  # one kernel for what many small parameters have in common
