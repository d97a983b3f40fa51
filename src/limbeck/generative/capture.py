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
        self._graph = torch.cuda.CUDAGraph()
        self._graph.register_generator_state(generator)
        state = generator.get_state()
        self._start()
        with torch.cuda.stream(self.stream), tensor_float(), torch.no_grad():
            target.advance(x, sweeps, generator)  # so that libraries have chosen their kernels
        self.stream.synchronize()
        with torch.cuda.graph(self._graph, stream=self.stream), tensor_float(), torch.no_grad():
            x.copy_(target.advance(x, sweeps, generator))
        generator.set_state(state)

    def __call__(self) -> None:
        r"""Start on the next sweeps, once what was asked for before is done."""
        self._start()
        with torch.cuda.stream(self.stream):
            self._graph.replay()

    def wait(self) -> None:
        r"""Make whatever is asked for from now on wait for the chains."""
        torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)

    def _start(self) -> None:
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
