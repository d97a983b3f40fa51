r"""The compiled engine: inputs, teacher, loss, gradient and optimizer as one compiled function."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from limbeck.core.batch import leaves, map_tensors
from limbeck.core.objective import Plan
from limbeck.core.update import Update
from limbeck.engine.eager import Eager
from limbeck.engine.functions import functions_of

__all__ = ["Compiled"]


class Compiled:
    r"""Traces the step once and calls the compiled graph directly from then on.

    A step changes tensors in place that never move (parameters, optimizer state, progress), and
    a plan has the same shapes at every step. So nothing needs to be looked up or guarded at each
    call: the graph's arguments are those of the first call, with the plan's tensors replaced.
    At a batch of twenty that look-up would cost as much as the arithmetic.
    """

    name = "compiled"

    def __init__(self, update: Update) -> None:
        self.update = update
        self._graph: Callable[..., Any] | None = None
        self._fallback: Eager | None = None

    def step(self, plan: Plan) -> None:
        if self._graph is not None:
            tensors = leaves(plan)
            for slot, leaf in self._slots:
                self._arguments[slot] = tensors[leaf].contiguous()
            self._graph(*self._arguments)
        elif self._fallback is not None:
            self._fallback.step(plan)
        else:
            self._first(map_tensors(Tensor.contiguous, plan))  # what the graph counts on from now

    def _first(self, plan: Plan) -> None:
        calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        if names := functions_of(self.update, plan):
            reason = f"the compiler would not see the backward of {', '.join(names)}"
            return self._eagerly(plan, reason)
        try:
            with warnings.catch_warnings():  # what compilers say of themselves
                warnings.simplefilter("ignore")
                self._trace(plan, calls)
        except Exception as error:
            if calls:  # it compiled, and then failed in running: not the compiler's fault
                raise
            return self._eagerly(plan, (str(error).strip() or type(error).__name__).splitlines()[0])
        if len(calls) != 1:
            raise AssertionError(f"one graph expected, {len(calls)} were called")
        self._graph, arguments = calls[0]
        self._arguments = list(arguments)
        where = {id(argument): slot for slot, argument in enumerate(arguments)}
        self._slots = [
            (where[id(leaf)], number)
            for number, leaf in enumerate(leaves(plan))
            if id(leaf) in where
        ]
        return None

    def _eagerly(self, plan: Plan, reason: str) -> None:
        warnings.warn(
            f"engine: the step cannot be compiled ({reason}); running eagerly", stacklevel=3
        )
        self._fallback, self.name = Eager(self.update), "eager"
        self._fallback.step(plan)

    def _trace(self, plan: Plan, calls: list[tuple[Callable[..., Any], tuple[Any, ...]]]) -> None:
        # torch.compile's own, which has no public name; without it steps run eagerly
        from torch._inductor.compile_fx import compile_fx

        def backend(module: torch.fx.GraphModule, examples: list[Tensor]) -> Callable[..., Any]:
            graph: Any = compile_fx(module, examples, config_patches=self._options())

            def run(*arguments: Any) -> Any:
                calls.append((graph, arguments))
                return graph(*arguments)

            return run

        def step(plan: Plan) -> None:
            self.update.step(plan, True)

        # The compiler keeps what it compiled, and gives up after a few variants, by code object:
        # a code object of its own lets each run start afresh and be forgotten with it.
        code = step.__code__.replace(co_name=f"step_{id(self)}")
        own = types.FunctionType(code, globals(), closure=step.__closure__)
        torch.compile(own, backend=backend, fullgraph=True, dynamic=False)(plan)

    def _options(self) -> dict[str, Any]:
        # no threads for loops that end before a second one has woken up
        return {"cpp_wrapper": True, "cpp.min_chunk_size": 4096}
