r"""Chains on a GPU: a sweep of all of them as one CUDA graph, on a stream of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from limbeck.engine.precision import tensor_float

__all__ = ["Captured"]


class Captured:
    r"""Advances chains in place, beside whatever else the GPU is doing.

    Factors of float32 products are rounded to TF32, as in training; estimates advance their
    chains elsewhere, at full precision.

    Arguments:
        target: A target whose `advance` never waits for the GPU.
        x: The chains, which stay where they are.
        sweeps: Sweeps at each call.
        generator: Where random numbers come from; it goes on as if nothing were captured.
    """

    def __init__(self, target: Any, x: Tensor, sweeps: int, generator: torch.Generator) -> None:
        self.stream = torch.cuda.Stream(x.device)
        self._asked, self._done = torch.cuda.Event(), torch.cuda.Event()
        self._pending = False
        self._graph = torch.cuda.CUDAGraph()
        self._graph.register_generator_state(generator)
        state = generator.get_state()
        self.stream.wait_stream(torch.cuda.current_stream(x.device))
        with torch.cuda.stream(self.stream), tensor_float(), torch.no_grad():
            target.advance(x, sweeps, generator)  # so that libraries have chosen their kernels
        self.stream.synchronize()
        with torch.cuda.graph(self._graph, stream=self.stream), tensor_float(), torch.no_grad():
            x.copy_(target.advance(x, sweeps, generator))
        generator.set_state(state)

    def __call__(self) -> None:
        r"""Start on the next sweeps, once what was asked for before is done."""
        here = torch.cuda.current_stream(self.stream.device)
        self._asked.record(here)
        self._asked.wait(self.stream)
        torch.cuda.set_stream(self.stream)  # a context manager costs as much as the replay
        try:
            self._graph.replay()
        finally:
            torch.cuda.set_stream(here)
        self._done.record(self.stream)
        self._pending = True

    def wait(self) -> None:
        r"""Make whatever is asked for from now on wait for the chains."""
        if self._pending:
            self._done.wait(torch.cuda.current_stream(self.stream.device))
            self._pending = False
