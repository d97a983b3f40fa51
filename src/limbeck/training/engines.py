r"""How steps run: eagerly, as one compiled function, or as one CUDA graph."""

from __future__ import annotations

import time
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd import Function

from limbeck.arrays import leaves, map_tensors, tensor_float
from limbeck.training.objective import Plan
from limbeck.training.update import Update

__all__ = ["Compiled", "Eager", "Engine", "Graph", "functions_of", "shapes_of"]


class Engine(Protocol):
    r"""Runs steps.

    Attributes:
        name: "eager", "compiled" or "accelerate", as in results.
        processes: The number of processes that take each step together.
        compile_seconds: Wall-clock seconds of compilation, over all sittings.
    """

    @property
    def name(self) -> str: ...

    @property
    def processes(self) -> int: ...

    @property
    def compile_seconds(self) -> float: ...

    def step(self, plan: Plan) -> None:
        r"""Run one step; its effects are in the student and in the update's progress."""

    def state(self) -> dict[str, Any]:
        r"""What a checkpoint holds, so that a resumed run takes its steps in the same way."""

    def load(self, state: dict[str, Any]) -> None:
        r"""Go on from what `state` gave; an empty dict is the state of a checkpoint without one."""


class Eager:
    r"""Runs each step as it is written."""

    name = "eager"
    processes = 1

    def __init__(self, update: Update) -> None:
        self.update = update
        self.compile_seconds = 0.0

    def step(self, plan: Plan) -> None:
        self.update.step(plan, False)

    def state(self) -> dict[str, Any]:
        return {"engine": self.name, "compile_seconds": self.compile_seconds}

    def load(self, state: dict[str, Any]) -> None:
        self.compile_seconds = state.get("compile_seconds", 0.0)


def functions_of(update: Update, plan: Plan) -> list[str]:
    r"""Names of the functions with a backward of their own that a step calls.

    Under `torch.func` the compiler traces a function's forward and differentiates that: it says
    nothing, and a straight-through estimator, say, would train on other gradients. Functions that
    hide themselves from the compiler, and so keep their derivatives, say `traceable = True`.
    """
    gradient = getattr(update, "gradient", None)
    if gradient is None:
        return []
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices), _watched() as seen:
        gradient(plan)
    return sorted({each.__name__ for each in seen if not getattr(each, "traceable", False)})


@contextmanager
def _watched() -> Iterator[list[Any]]:
    r"""What functions are applied as long as it lasts."""
    seen: list[Any] = []
    usual = Function.__dict__["apply"]

    def apply(cls: Any, *arguments: Any, **named: Any) -> Any:
        seen.append(cls)
        return usual.__get__(None, cls)(*arguments, **named)

    Function.apply = classmethod(apply)  # type: ignore[method-assign, assignment]
    try:
        yield seen
    finally:
        Function.apply = usual  # type: ignore[method-assign]


Call = tuple[Callable[..., Any], tuple[Any, ...]]

CONSTANTS, SEQUENCES = (int, float, str), (tuple, list)
r"""Made once: the shapes of plans are compared at each step."""


class Compiled(Eager):
    r"""Traces the step once and calls the compiled graph directly from then on.

    A step changes tensors in place that never move (parameters, optimizer state, progress). So
    nothing needs to be looked up at each call: the graph's arguments are those of the first call,
    with the plan's tensors replaced. At a batch of twenty that look-up would cost as much as the
    arithmetic.

    The graph is made for the shapes of one plan, the first. A plan of other shapes (the short last
    batch of a pass, batches padded to their longest row) runs eagerly, on the same tensors. Which
    steps are compiled is therefore a function of the plans alone: a checkpoint holds the shapes,
    so that a resumed run compiles for the same ones.

    Arguments:
        update: How the student changes.
        layout: The shapes to compile for, as text of what `shapes_of` gives; None takes those of
            the first plan.
    """

    name = "compiled"

    def __init__(self, update: Update, layout: str | None = None) -> None:
        super().__init__(update)
        self._layout = layout
        self._shapes: Any = None  # the same, as it is compared at each step
        self._graph: Callable[..., Any] | None = None
        self._after_other = self._warned = False

    def step(self, plan: Plan) -> None:
        if self.name == "eager":  # it could not be compiled
            return self._eagerly(plan)
        shapes = shapes_of(plan)
        if self._shapes is None and self._layout in (None, str(shapes)):
            self._shapes, self._layout = shapes, str(shapes)
        if shapes != self._shapes:
            self._tell_of_shapes(shapes)
            return self._eagerly(plan)
        self._after_other = False
        return self._fitting(plan)

    def _fitting(self, plan: Plan) -> None:
        r"""A step on a plan of the graph's shapes."""
        if self._graph is None:
            return self._first(map_tensors(Tensor.contiguous, plan))  # the graph counts on it
        tensors = leaves(plan)
        for slot, leaf in self._slots:
            self._arguments[slot] = tensors[leaf].contiguous()
        self._graph(*self._arguments)
        return None

    def _eagerly(self, plan: Plan) -> None:
        super().step(plan)

    def state(self) -> dict[str, Any]:
        return super().state() | {"layout": self._layout}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        self._layout = state.get("layout")

    def _first(self, plan: Plan) -> None:
        began = time.monotonic()
        calls: list[Call] = []
        reason = self._compile(plan, calls)
        self.compile_seconds += time.monotonic() - began
        if reason is not None:
            return self._give_up(plan, f"the step cannot be compiled ({reason})")
        self._graph, arguments = calls[0]
        self._arguments = list(arguments)
        where = {id(argument): slot for slot, argument in enumerate(arguments)}
        self._slots = [
            (where[id(leaf)], number)
            for number, leaf in enumerate(leaves(plan))
            if id(leaf) in where
        ]
        return None

    def _compile(self, plan: Plan, calls: list[Call]) -> str | None:
        r"""Compile the step and run it once; why not, if it fails, with everything as before."""
        if names := functions_of(self.update, plan):
            return f"the compiler would not see the backward of {', '.join(names)}"
        before = map_tensors(torch.clone, self._changing())
        try:
            with warnings.catch_warnings():  # what compilers say of themselves
                warnings.simplefilter("ignore")
                self._trace(plan, calls)
            if len(calls) != 1:
                raise AssertionError(f"one graph expected, {len(calls)} were called")
        except Exception as error:  # one that is not the compiler's comes again in the eager step
            now = self._changing()
            with torch.no_grad():
                for name, value in before.items():
                    now[name].copy_(value)
            lines = [line for line in str(error).splitlines() if line.strip()]
            return " ".join(lines[:2]) or type(error).__name__  # the first may only name a backend
        return None

    def _changing(self) -> dict[str, Tensor]:
        r"""Everything that a step changes."""
        objective: Any = getattr(self.update, "objective", nn.Module())
        held = dict(objective.named_parameters()) | dict(objective.named_buffers())
        held |= {f"update {name}": tensor for name, tensor in self.update.tensors().items()}
        return {name: tensor.detach() for name, tensor in held.items()}

    def _give_up(self, plan: Plan, reason: str) -> None:
        r"""Run this step and all that follow eagerly, and say so."""
        warnings.warn(f"engine: {reason}; running eagerly", stacklevel=3)
        self.name, self._graph = "eager", None
        self._eagerly(plan)

    def _tell_of_shapes(self, shapes: Any) -> None:
        r"""Warn once of batches whose shapes change.

        One batch of fewer rows among full ones is the last of a pass, and as it should be.
        """
        short = not self._after_other and _fewer_rows(self._shapes, shapes)
        self._after_other = True
        if short or self._warned or self._shapes is None:
            return
        self._warned = True
        warnings.warn(
            "engine: the shapes of the batches change, and a step is compiled for one shape; steps "
            "on batches of other shapes run eagerly (pad all batches to one length, or choose "
            "engine='eager')",
            stacklevel=3,
        )

    def _trace(self, plan: Plan, calls: list[Call]) -> None:
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


def shapes_of(tree: Any) -> Any:
    r"""What a graph takes for granted of a plan, beside the numbers in its tensors."""
    if tree is None or isinstance(tree, CONSTANTS):  # a compiler takes them as they are
        return tree
    if isinstance(tree, Tensor):
        return tree.shape, tree.dtype
    if isinstance(tree, dict):
        return tuple([(key, shapes_of(value)) for key, value in tree.items()])
    if isinstance(tree, SEQUENCES):
        return tuple([shapes_of(value) for value in tree])
    return type(tree)


def _fewer_rows(full: Any, other: Any) -> bool:
    r"""Whether shapes differ in nothing but the number of rows, of which the other has fewer."""
    pairs: set[tuple[int, int]] = set()
    first = False

    def compare(a: Any, b: Any) -> bool:
        nonlocal first
        if isinstance(a, torch.Size) and isinstance(b, torch.Size) and len(a) == len(b):
            changed = [i for i, (old, new) in enumerate(zip(a, b, strict=True)) if old != new]
            first = first or 0 in changed
            pairs.update((a[i], b[i]) for i in changed)
            return len(changed) <= 1
        if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
            return all(map(compare, a, b))
        return bool(a == b)

    return compare(full, other) and first and len(pairs) == 1 and all(b < a for a, b in pairs)


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
