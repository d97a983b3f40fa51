r"""How steps run: eagerly, as one compiled function or CUDA graph; and which of these pays."""

from __future__ import annotations

import os
import shutil
import time
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.utils._python_dispatch import TorchDispatchMode

from limbeck.arrays import leaves, map_tensors, tensor_float
from limbeck.errors import ArgumentError
from limbeck.training.objective import Objective, Plan
from limbeck.training.update import Update

__all__ = [
    "CPU",
    "CUDA",
    "Automatic",
    "Compiled",
    "Costs",
    "Eager",
    "Engine",
    "Graph",
    "launched_processes",
    "make_engine",
    "shapes_of",
]


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


WATCHED_STEPS = 8  # eager steps before the choice: enough to see that shapes change


class Costs(NamedTuple):
    r"""What compilation costs and saves, by the number of torch operations in an eager step.

    Measured coarsely, on a CPU and on a GPU, with MLPs (also with derivative losses), a
    convolutional net and transformers. Only the ratio of the numbers matters, which differs less
    between machines than the numbers do.

    Attributes:
        start: Seconds that any compilation takes.
        per_operation: Seconds of compilation an operation.
        saved: Seconds that a compiled step saves an operation.
    """

    start: float
    per_operation: float
    saved: float

    def compilation(self, operations: int) -> float:
        r"""Seconds that the compilation of a step is forecast to take."""
        return self.start + self.per_operation * operations

    def pay(self, operations: int, steps: float, seconds: float | None = None) -> bool:
        r"""Whether a run is forecast to be shorter with compilation than without.

        Arguments:
            operations: The number of torch operations in an eager step.
            steps: The number of steps that would be compiled.
            seconds: The time limit of the run; compilation may take half of it.
        """
        compilation = self.compilation(operations)
        in_time = seconds is None or compilation <= seconds / 2
        return in_time and compilation < steps * operations * self.saved


CPU = Costs(start=8.0, per_operation=0.05, saved=10e-6)
CUDA = Costs(start=5.0, per_operation=0.03, saved=20e-6)


class Automatic:
    r"""Runs a few steps eagerly, then chooses once: eager or compiled.

    The choice follows from the operations counted in the first step, the shapes of the first
    batches, the number of steps and the time limit, never from a clock, so that equal calls run
    equally. A checkpoint holds the choice, or what was seen so far.

    Arguments:
        update: How the student changes.
        compiled: Makes the compiled engine, for the shapes in writing.
        costs: What compilation costs and saves on this device.
        steps: The number of steps of the run.
        seconds: Its time limit, if any.
    """

    processes = 1

    def __init__(
        self,
        update: Update,
        compiled: Callable[[str | None], Compiled],
        costs: Costs,
        steps: int,
        seconds: float | None = None,
    ) -> None:
        self._eager = Eager(update)
        self._engine: Eager | None = None
        self._compiled, self._costs = compiled, costs
        self._steps, self._seconds = steps, seconds
        self._layouts: list[str] = []
        self._operations = 0

    @property
    def name(self) -> str:
        return (self._engine or self._eager).name

    @property
    def compile_seconds(self) -> float:
        return (self._engine or self._eager).compile_seconds

    def step(self, plan: Plan) -> None:
        if self._engine is None and len(self._layouts) == WATCHED_STEPS:
            self._engine = self._choose()
        if self._engine is not None:
            return self._engine.step(plan)
        if not self._layouts:
            with _Operations() as counted:
                self._eager.step(plan)
            self._operations = counted.number
        else:
            self._eager.step(plan)
        self._layouts.append(str(shapes_of(plan)))
        return None

    def _choose(self) -> Eager:
        layout, count = Counter(self._layouts).most_common(1)[0]
        fitting = self._steps * count / len(self._layouts)
        if self._costs.pay(self._operations, fitting, self._seconds):
            return self._compiled(layout)
        if self._costs.pay(self._operations, self._steps, self._seconds):
            warnings.warn(
                "engine: the shapes of the batches change, and a step is compiled for one shape; "
                "running eagerly (batches that are all padded to one length can be compiled)",
                stacklevel=3,
            )
        return self._eager

    def state(self) -> dict[str, Any]:
        if self._engine is not None:
            return self._engine.state()
        seen = {"layouts": list(self._layouts), "operations": self._operations}
        return self._eager.state() | {"engine": "auto"} | seen

    def load(self, state: dict[str, Any]) -> None:
        name = state.get("engine")
        if name == "auto":
            self._layouts, self._operations = list(state["layouts"]), state["operations"]
        elif name is not None:  # chosen in an earlier sitting
            self._engine = self._compiled(None) if name == "compiled" else self._eager
            self._engine.load(state)


class _Operations(TorchDispatchMode):
    r"""Counts torch operations for as long as it lasts."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += 1
        return func(*args, **(kwargs or {}))


NAMES = ("auto", "eager", "compiled", "accelerate")


def make_engine(
    name: str, objective: Objective, update: Update, steps: int, seconds: float | None = None
) -> Engine:
    r"""The engine by name; "auto" chooses after a few steps, as `Automatic` says."""
    if name not in NAMES:
        raise ArgumentError.unknown("engine", name, NAMES)
    cuda = objective.device.type == "cuda"
    compiled = partial(Graph if cuda else Compiled, update)
    if name == "auto":
        compiler = cuda or shutil.which("g++") or shutil.which("clang++")
        if not compiler or _obstacle(objective, update) is not None:
            return Eager(update)
        return Automatic(update, compiled, CUDA if cuda else CPU, steps, seconds)
    if name == "compiled":
        if (reason := _obstacle(objective, update)) is None:
            return compiled()
        warnings.warn(f"engine: {reason}; running eagerly", stacklevel=2)
    return Eager(update)


def _obstacle(objective: Objective, update: Update) -> str | None:
    r"""Why a step cannot be compiled whole, if that can be known beforehand."""
    if not update.whole:
        return f"{type(getattr(update, 'optimizer', update)).__name__} has no compiled form"
    # torch's compiler takes 0-d float64 tensors for Python numbers, and drops what is written
    for name, tensor in (*objective.named_parameters(), *objective.named_buffers()):
        if tensor.ndim == 0 and tensor.dtype == torch.float64 and tensor.device.type == "cpu":
            return f"a compiled step would not change {name!r}, a float64 number of no dimension"
    return None


def launched_processes() -> int:
    r"""The number of processes started with this one, as far as torch or a launcher knows."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size()
    # set by torchrun and accelerate launch, and by kinds of mpirun
    variables = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
    counts = (os.environ.get(name, "") for name in variables)
    return max((int(count) for count in counts if count.isdecimal()), default=1)
