r"""How steps run: eagerly, as one compiled function or CUDA graph; and the choice between them."""

from __future__ import annotations

import contextlib
import shutil
import time
import types
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.utils._python_dispatch import TorchDispatchMode

from limbeck.arrays import leaves, map_tensors, tensor_float
from limbeck.errors import warn
from limbeck.training.objective import Objective, Plan
from limbeck.training.update import Update


class Eager:
    r"""Runs each step as it is written, and is the base class of the other engines."""

    name = "eager"  # or "compiled" or "accelerate", as in results
    processes = 1  # that take each step together
    saved: tuple[str, ...] = ("compile_seconds",)  # attributes that a checkpoint holds

    def __init__(self, update: Update) -> None:
        self.update = update
        self.compile_seconds = 0.0  # with those before the run was resumed

    def step(self, plan: Plan) -> None:
        r"""Run one step; its effects are in the student and in the update's progress."""
        self.update.step(plan, False)

    def state(self) -> dict[str, Any]:
        r"""For a checkpoint: a resumed run takes its steps in the same way."""
        return {"engine": self.name} | {name: getattr(self, name) for name in self.saved}

    def load(self, state: dict[str, Any]) -> None:
        r"""Resume from what `state` gave, or from an empty dict."""
        for name in self.saved:
            setattr(self, name, state.get(name, getattr(self, name)))


def _opaque_functions(update: Update, plan: Plan) -> list[str]:
    r"""Functions of a step whose custom backward the compiler does not see (not `traceable`)."""
    gradient = getattr(update, "gradient", None)
    if gradient is None:
        return []
    names: set[str] = set()
    original = Function.__dict__["apply"]

    def apply(cls: type[Function], *args: object, **kwargs: object) -> object:
        if not getattr(cls, "traceable", False):
            names.add(cls.__name__)
        return original.__get__(None, cls)(*args, **kwargs)

    cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if cuda else []):
        Function.apply = classmethod(apply)  # type: ignore[method-assign, assignment]
        try:
            gradient(plan)
        finally:
            Function.apply = original  # type: ignore[method-assign]
    return sorted(names)


Costs = tuple[float, float, float]  # in seconds, the latter two by torch operation of a step:
# of any compilation, of compilation, and what each compiled step saves. They were measured with
# MLPs, a convolutional net and transformers; only the ratios matter.
CPU, CUDA = (8.0, 0.05, 10e-6), (5.0, 0.03, 20e-6)


def pays(costs: Costs, operations: int, steps: float, seconds: float | None = None) -> bool:
    r"""Whether compiling so many steps shortens a run and takes up to half its time limit."""
    compilation = costs[0] + costs[1] * operations
    in_time = seconds is None or compilation <= seconds / 2
    return in_time and compilation < steps * operations * costs[2]


Forecast = tuple[Costs, int, float | None]  # with the steps of the run, and its time limit
Call = tuple[Callable[..., Any], tuple[Any, ...]]  # a graph and its arguments
SHAPES = "the shapes of the batches change, and a step is compiled for one shape"


class Compiled(Eager):
    r"""Traces the step for plans of one layout, and then calls the compiled graph directly.

    A step changes tensors in place that never move, so the graph's arguments are those of the first
    call with the plan's tensors replaced: looking the others up can cost as much as the arithmetic.

    With a forecast, it first runs a few steps eagerly, and then compiles if that pays; the choice
    needs no timing, so that equal calls run equally.
    """

    saved = ("compile_seconds", "layout", "layouts", "operations")
    # of the compiler: no threads for loops that end before a second one has woken up
    options: Mapping[str, Any] = {"cpp_wrapper": True, "cpp.min_chunk_size": 4096}

    def __init__(self, update: Update, forecast: Forecast | None = None) -> None:
        super().__init__(update)
        self.name = "eager" if forecast else "compiled"
        self._forecast = forecast  # until the choice
        self.layouts, self.operations = list[str](), 0  # of the steps before the choice
        self.layout: str | None = None  # the shapes to compile for; by default the first plan's
        self._shapes: object = None  # the same, as it is compared at each step
        self._graph: Callable[..., Any] | None = None
        self._steps = self._others = 0  # all steps, and those on plans of other shapes

    def step(self, plan: Plan) -> None:
        if self._forecast is not None:
            if len(self.layouts) < 8:  # enough to see that shapes change
                counter = _Operations()  # type: ignore[no-untyped-call]
                with contextlib.nullcontext() if self.layouts else counter:
                    super().step(plan)
                self.operations = self.operations or counter.number
                return self.layouts.append(str(shapes_of(plan)))
            self._choose(self._forecast)
        if self.name == "eager":
            return super().step(plan)
        shapes = shapes_of(plan)
        if self._shapes is None and self.layout in (None, str(shapes)):
            self._shapes, self.layout = shapes, str(shapes)
        self._steps += 1
        if shapes == self._shapes:
            return self._run_graph(plan)
        self._others += 1
        if self._others == 8 and self._steps < 16:  # not just the short last batches of passes
            advice = "pad all batches to one length, or choose engine='eager'"
            text = f"engine: {SHAPES}; steps on batches of other shapes run eagerly ({advice})"
            warn(text)
        return self._run_eagerly(plan)

    def _choose(self, forecast: Forecast) -> None:
        (costs, steps, seconds), self._forecast = forecast, None
        layout, count = Counter(self.layouts).most_common(1)[0]
        if pays(costs, self.operations, steps * count / len(self.layouts), seconds):
            self.name, self.layout = "compiled", layout
        elif pays(costs, self.operations, steps, seconds):
            advice = "batches that are all padded to one length can be compiled"
            warn(f"engine: {SHAPES}; running eagerly ({advice})")

    def state(self) -> dict[str, Any]:
        return super().state() | ({} if self._forecast is None else {"engine": "auto"})

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        name = state.get("engine", "auto")
        if self._forecast is not None and name != "auto":  # chosen before the run was resumed
            self.name, self._forecast = name, None

    def _run_graph(self, plan: Plan) -> None:
        r"""A step on a plan of the graph's shapes."""
        if self._graph is None:
            return self._compile(map_tensors(Tensor.contiguous, plan))  # as the graph assumes
        tensors = leaves(plan)
        for slot, leaf in self._slots:
            self._arguments[slot] = tensors[leaf].contiguous()
        self._graph(*self._arguments)

    def _run_eagerly(self, plan: Plan) -> None:
        super().step(plan)

    def _compile(self, plan: Plan) -> None:
        r"""Compile the step and run it once; if that fails, undo it and run eagerly."""
        began, opaque = time.monotonic(), _opaque_functions(self.update, plan)
        calls, before = list[Call](), [tensor.clone() for tensor in self._changed_tensors()]
        try:
            if opaque:
                raise TypeError(f"the compiler would not see the backward of {', '.join(opaque)}")
            with warnings.catch_warnings():  # of the compilers themselves
                warnings.simplefilter("ignore")
                self._trace(plan, calls)
            if len(calls) != 1:
                raise AssertionError(f"one graph expected, {len(calls)} were called")
        except Exception as error:  # one that is not the compiler's comes again in the eager step
            for tensor, value in zip(self._changed_tensors(), before, strict=True):
                tensor.copy_(value)
            return self._give_up(plan, "compiled", error)
        finally:
            self.compile_seconds += time.monotonic() - began
        self._graph, arguments = calls[0]
        self._arguments = list(arguments)
        slots, tensors = {id(a): slot for slot, a in enumerate(arguments)}, enumerate(leaves(plan))
        self._slots = [(slots[id(leaf)], i) for i, leaf in tensors if id(leaf) in slots]

    def _changed_tensors(self) -> list[Tensor]:
        r"""Everything that a step changes."""
        objective: nn.Module = getattr(self.update, "objective", nn.Module())
        tensors = (*objective.parameters(), *objective.buffers(), *self.update.tensors().values())
        return [tensor.detach() for tensor in tensors]

    def _give_up(self, plan: Plan, participle: str, error: Exception) -> None:
        r"""Run this step and all later ones eagerly, with a warning."""
        lines = [line for line in str(error).splitlines() if line.strip()]
        reason = " ".join(lines[:2]) or type(error).__name__  # the first may only name a backend
        text = f"engine: the step cannot be {participle} ({reason}); running eagerly"
        warn(text)
        self.name, self._graph = "eager", None
        super().step(plan)

    def _trace(self, plan: Plan, calls: list[Call]) -> None:
        # torch.compile's own, which has no public name; without it steps run eagerly
        from torch._inductor.compile_fx import compile_fx

        def backend(module: torch.fx.GraphModule, examples: list[Tensor]) -> Callable[..., Any]:
            graph: Any = compile_fx(module, examples, config_patches=dict(self.options))

            def run(*arguments: object) -> object:
                calls.append((graph, arguments))
                return graph(*arguments)

            return run

        def step(plan: Plan) -> None:
            self.update.step(plan, True)

        # The compiler caches by code object, and gives up after a few variants of one: with a code
        # object for each run, a run starts afresh and its cache is freed with it.
        code = step.__code__.replace(co_name=f"step_{id(self)}")
        function = types.FunctionType(code, globals(), closure=step.__closure__)
        torch.compile(function, backend=backend, fullgraph=True, dynamic=False)(plan)


SEQUENCES, CONSTANTS = (tuple, list), (int, float, str)  # made once: used at each step


def shapes_of(tree: object) -> object:
    r"""The layout that a graph is compiled for: shapes and types of tensors, and constants."""
    if isinstance(tree, Tensor):
        return tree.shape, tree.dtype
    if isinstance(tree, dict):
        return tuple([(key, shapes_of(value)) for key, value in tree.items()])
    if isinstance(tree, SEQUENCES):
        return tuple([shapes_of(value) for value in tree])
    return tree if tree is None or isinstance(tree, CONSTANTS) else type(tree)


class Graph(Compiled):
    r"""Replays one captured CUDA graph a step, with TF32 for float32 matrix products."""

    # one kernel for what many small parameters have in common
    options: Mapping[str, Any] = {"combo_kernels": True}
    _captured: torch.cuda.CUDAGraph | None = None
    _calls = 0

    def _run_graph(self, plan: Plan) -> None:
        if self._captured is not None:
            for place, tensor in zip(self._places, leaves(plan), strict=True):
                place.copy_(tensor)
            self._captured.replay()
            return None
        with tensor_float():
            if self._calls < 3:  # so that libraries choose their kernels and workspaces
                self._calls += 1
                return super()._run_graph(plan)
            try:  # record the step without running it
                self._places: list[Tensor] = leaves(map_tensors(torch.clone, plan))
                for slot, leaf in self._slots:
                    self._arguments[slot] = self._places[leaf]
                assert self._graph is not None
                torch.cuda.synchronize()
                captured = torch.cuda.CUDAGraph()
                with torch.cuda.graph(captured):
                    self._graph(*self._arguments)
                self._captured = captured
            except Exception as error:
                return self._give_up(plan, "captured", error)
        return self._run_graph(plan)

    def _run_eagerly(self, plan: Plan) -> None:
        with tensor_float():
            super()._run_eagerly(plan)


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    r"""Counts torch operations within a `with` block."""

    number = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: object, args: Any = (), kwargs: Any = None
    ) -> object:
        self.number += 1
        return func(*args, **(kwargs or {}))


def make_engine(
    name: str, objective: Objective, update: Update, steps: int, seconds: float | None = None
) -> Eager:
    r"""The engine by name; "auto" chooses after a few steps where steps can be compiled."""
    obstacle = None if name == "eager" else _obstacle(objective, update)
    cuda = objective.device.type == "cuda"
    compiled = Graph if cuda else Compiled
    if name == "compiled" and obstacle is None:
        return compiled(update)
    if name == "compiled":
        warn(f"engine: {obstacle}; running eagerly")
    compiler = cuda or shutil.which("g++") or shutil.which("clang++")
    if name == "auto" and obstacle is None and compiler:
        return compiled(update, (CUDA if cuda else CPU, steps, seconds))
    return Eager(update)


def _obstacle(objective: Objective, update: Update) -> str | None:
    r"""Why a step cannot be compiled, if that is known in advance."""
    if not update.compilable:
        return f"{type(getattr(update, 'optimizer', update)).__name__} has no compiled form"
    # torch's compiler takes 0-d float64 tensors for Python numbers, and drops what is written
    for name, tensor in (*objective.named_parameters(), *objective.named_buffers()):
        if tensor.ndim == 0 and tensor.dtype == torch.float64 and tensor.device.type == "cpu":
            return f"a compiled step would not change {name!r}, a float64 number of no dimension"
    return None
