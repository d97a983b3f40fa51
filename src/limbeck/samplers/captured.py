r"""Sweeps of chains as a CUDA graph on a separate stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from limbeck.arrays import tensor_float

if TYPE_CHECKING:
    from limbeck.samplers.chains import ChainTarget


class CapturedAdvance:
    r"""Advances chains in place, in parallel with the GPU's other work; `advance` must not wait."""

    def __init__(self, target: ChainTarget, x: Tensor, sweeps: int, generator: torch.Generator):
        self.stream = torch.cuda.Stream(x.device)
        self._ready, self._done, self._pending = torch.cuda.Event(), torch.cuda.Event(), False
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
        r"""Start the next sweeps after all that the current stream has to do so far."""
        here = torch.cuda.current_stream(self.stream.device)
        self._ready.record(here)
        self._ready.wait(self.stream)
        torch.cuda.set_stream(self.stream)  # a context manager costs as much as the replay
        try:
            self._graph.replay()
        finally:
            torch.cuda.set_stream(here)
        self._done.record(self.stream)
        self._pending = True

    def wait(self) -> None:
        r"""Make the current stream wait for the chains."""
        if self._pending:
            self._done.wait(torch.cuda.current_stream(self.stream.device))
            self._pending = False
