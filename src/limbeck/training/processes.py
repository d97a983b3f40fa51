r"""Several processes that train one student on the mean of their gradients."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from limbeck.arrays import X, as_batch, leaves, part_of, rows
from limbeck.environment import import_extra
from limbeck.errors import ArgumentError, warn
from limbeck.inputs.base import Inputs
from limbeck.training.config import Training, launched_processes
from limbeck.training.engines import Eager
from limbeck.training.objective import Objective
from limbeck.training.update import GradientUpdate, Update

APART = 1_000_003  # between the seeds of two processes, so that each gets other inputs

# Two processes that draw from few different rows may agree on some of them by chance.
COMPARED_BATCHES, COMPARED_ROWS = 32, 8
DIFFERENT_INPUTS = (
    "inputs that differ between the processes: an IterableDataset that leaves out the rows of the "
    "others (torch.distributed.get_rank() and get_world_size()), a DataLoader with a "
    "DistributedSampler or with shuffle=True and no generator, a function that draws from the "
    "generator it is given, a source without a seed of its own"
)


def share(training: Training) -> tuple[Training, torch.device, int]:
    r"""This process's settings, device and seed; settings that need one process are refused."""
    accelerate: Any = import_extra("accelerate", "accelerate", "engine: this one needs")
    on_cpu = training.device == "cpu" or not torch.cuda.is_available()
    state = accelerate.PartialState(cpu=on_cpu)
    if (count := launched_processes()) > state.num_processes:
        received = f"'accelerate' in one of {count} processes, of {state.num_processes} known to it"
        expected = "a launch by `accelerate launch` or `torchrun`, with no Accelerate state before"
        raise ArgumentError("engine", received, expected)
    if state.num_processes == 1:
        text = "engine: 'accelerate' runs in a single process here; start the script by `accelerate"
        text += " launch --num_processes 2` or `torchrun --nproc-per-node 2` for two"
        warn(text)
    for name in ("checkpoint", "seconds"):
        if state.num_processes > 1 and getattr(training, name) is not None:
            raise ArgumentError(name, getattr(training, name), "None with several processes")
    if not state.is_main_process:
        training = replace(training, progress=False, callbacks=None)
    return training, state.device, training.seed + APART * state.process_index


class Distributed(Eager):
    r"""Runs each step in every process, on the means of gradients and floating-point buffers."""

    name = "accelerate"

    def __init__(self, update: Update, objective: Objective) -> None:
        from accelerate import PartialState
        from accelerate.utils import broadcast, reduce

        super().__init__(update)
        if not isinstance(update, GradientUpdate):
            raise ArgumentError("update", type(update).__name__, "a GradientUpdate with accelerate")
        self.processes = PartialState().num_processes
        if self.processes == 1:
            return
        for name, module in objective.student.named_modules():
            if isinstance(module, nn.SyncBatchNorm):
                received = f"the layer {name!r}, a SyncBatchNorm, which cannot be differentiated"
                expected = "a BatchNorm, whose running statistics are averaged over the processes"
                raise ArgumentError("student", received, expected)
        _refuse_equal_inputs(objective.inputs)
        before = dict(objective.named_buffers())
        with torch.no_grad():
            for tensor in (*objective.parameters(), *before.values()):
                tensor.copy_(broadcast(tensor.detach().clone()))
        floating = [name for name, buffer in before.items() if buffer.is_floating_point()]
        others = [name for name in before if name not in floating]

        def average(gradients: dict[str, Tensor], means: Tensor, buffers: dict[str, Tensor]) -> Any:
            # a mean of equal numbers can round: buffers that no process changed stay as they are
            changed = [(buffers[name] != before[name]).any().to(means) for name in floating]
            new = {name: buffers[name] for name in floating}
            gradients, means, new, changed = reduce((gradients, means, new, changed), "mean")
            for name, flag in zip(floating, changed, strict=True):
                new[name] = torch.where(flag > 0, new[name], before[name])
            return gradients, means, new | {name: broadcast(buffers[name]) for name in others}

        update.reduce = average


def _refuse_equal_inputs(source: Inputs) -> None:
    r"""Refuse inputs of which two processes draw the same rows, as with a generator of its own."""
    parts = [part for part in getattr(source, "sources", ()) if isinstance(part, Inputs)]
    for part in parts:  # of a mixture: they draw by themselves
        _refuse_equal_inputs(part)
    if parts or _all_different(_digest(as_batch(source.probe(COMPARED_ROWS)).x)):
        return
    state = {name: tensor.clone() for name, tensor in source.state_dict().items()}
    size = min(COMPARED_ROWS, len(source)) if hasattr(source, "__len__") else COMPARED_ROWS
    batches = [as_batch(source(size)).x for _ in range(COMPARED_BATCHES)]
    source.load_state_dict(state)
    different_rows = {_digest(part_of(x, i, 1)) for x in batches for i in range(rows(x))}
    if not _all_different("".join(map(_digest, batches))) and len(different_rows) > 1:
        received = f"the same rows in several processes, from {type(source).__name__} inputs"
        raise ArgumentError("inputs", received, DIFFERENT_INPUTS)


def _all_different(digest: str) -> bool:
    r"""Whether no two processes have the same; every process gets the same answer."""
    from accelerate.utils import gather_object

    gathered = gather_object([digest])
    return len(set(gathered)) == len(gathered)


def _digest(x: X) -> str:
    values = [(tuple(tensor.shape), tensor.dtype, tensor.tolist()) for tensor in leaves(x)]
    return hashlib.sha256(str(values).encode()).hexdigest()
