r"""Several processes that train one student on the mean of their gradients."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import torch
from torch import Tensor, nn

from limbeck.arrays import as_batch, leaves, part_of, rows
from limbeck.errors import ArgumentError, LimbeckError
from limbeck.inputs.base import Inputs
from limbeck.training.engines import Eager
from limbeck.training.objective import Objective
from limbeck.training.update import GradientUpdate, Update

__all__ = ["APART", "Distributed", "launched_processes", "processes", "refuse_wrapped"]

APART = 1_000_003
r"""How far the seeds of two processes are apart, so that each sees other inputs."""

LAUNCHED = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
r"""Where launchers (torchrun, accelerate launch, mpirun) say how many processes they started."""

WRAPPERS = {
    "torch": ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"),
    "deepspeed": ("DeepSpeedEngine",),
}
r"""Classes of modules that spread their work over processes, by package."""

COMPARED_BATCHES, COMPARED_ROWS = 32, 8
r"""How many batches of how many rows processes compare before they are taken for the same: two
processes that draw from few different rows may agree on some of them by chance."""


def processes(cpu: bool) -> Any:
    r"""Accelerate's word on how many processes there are, which this is, and its device."""
    try:
        from accelerate import PartialState
    except ImportError:
        raise LimbeckError(
            "engine: 'accelerate' needs the extra: pip install 'limbeck[accelerate]'"
        ) from None
    return PartialState(cpu=cpu)


def launched_processes() -> int:
    r"""How many processes this one was started with, as far as torch or a launcher knows."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size()
    named = (os.environ.get(name, "") for name in LAUNCHED)
    return max((int(number) for number in named if number.isdecimal()), default=1)


def refuse_wrapped(student: nn.Module) -> None:
    r"""Refuse a student, or a part of it, that already spreads its work over devices.

    limbeck takes gradients by `torch.func`, which passes by the hooks of such wrappers: without
    them each process would train on its own.
    """
    for name, module in student.named_modules():
        kind = _wrapper(module)
        if kind is not None:
            where = f"the part {name!r}, " if name else ""
            raise ArgumentError(
                "student",
                f"{where}a module wrapped in {kind}, whose averaging of gradients would not run",
                "the module itself (student.module); for several processes engine='accelerate', "
                "which averages gradients and buffers",
            )
    for name, tensor in (*student.named_parameters(), *student.named_buffers()):
        if hasattr(tensor, "placements") and hasattr(tensor, "device_mesh"):  # a DTensor
            raise ArgumentError(
                "student",
                f"{name!r}, which is sharded over devices ({type(tensor).__name__})",
                "a module that is whole in each process; for several processes engine='accelerate'",
            )


def _wrapper(module: nn.Module) -> str | None:
    r"""The name of the wrapper that a module is, if it is one."""
    if isinstance(module, nn.DataParallel):
        return "DataParallel" if len(module.device_ids) > 1 else None
    for kind in type(module).__mro__:
        package = kind.__module__.split(".")[0]
        if kind.__name__ in WRAPPERS.get(package, ()):
            return kind.__name__
    return None


class Distributed(Eager):
    r"""Runs each step in every process, on the mean of their gradients.

    The same script runs with and without `accelerate launch`. All processes start from the first
    one's student (parameters and buffers) and stay equal, since they take equal steps. Each
    process normalises by its own batch (BatchNorm). After each step the floating-point buffers,
    such as running statistics, are averaged over the processes; others are those of the first.
    """

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
        _refuse_synchronized(objective.student)
        _refuse_equal_inputs(objective.inputs, objective._like)
        before = dict(objective.named_buffers())
        with torch.no_grad():
            for tensor in (*objective.parameters(), *before.values()):
                tensor.copy_(broadcast(tensor.detach().clone()))
        floating = [name for name, buffer in before.items() if buffer.is_floating_point()]
        others = [name for name in before if name not in floating]

        def average(gradients: Any, means: Tensor, buffers: dict[str, Tensor]) -> Any:
            # a mean of equal numbers can round: buffers that no process changed stay as they are
            changed = [(buffers[name] != before[name]).any().to(means) for name in floating]
            new = {name: buffers[name] for name in floating}
            gradients, means, new, changed = reduce((gradients, means, new, changed), "mean")
            for name, flag in zip(floating, changed, strict=True):
                new[name] = torch.where(flag > 0, new[name], before[name])
            return gradients, means, new | {name: broadcast(buffers[name]) for name in others}

        update.reduce = average


def _refuse_synchronized(student: nn.Module) -> None:
    for name, module in student.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            raise ArgumentError(
                "student",
                f"the layer {name!r}, a SyncBatchNorm, which torch.func cannot differentiate",
                "a BatchNorm, whose running statistics are averaged over the processes",
            )


def _refuse_equal_inputs(source: Inputs, probe: Any) -> None:
    r"""Refuse inputs of which two processes draw the same rows.

    Sources that draw from the generator they are given differ by its seed. An IterableDataset, a
    loader in a fixed order, a function with a generator of its own or a source with a seed of its
    own gives every process the same rows, which would then count several times.
    """
    parts = [part for part in getattr(source, "sources", ()) if isinstance(part, Inputs)]
    for part in parts:  # of a mixture: they draw by themselves
        _refuse_equal_inputs(part, as_batch(part.probe(COMPARED_ROWS)).x)
    if parts or _all_different(_digest(probe)):
        return
    state = {name: tensor.clone() for name, tensor in source.state_dict().items()}
    size = min(COMPARED_ROWS, len(source)) if hasattr(source, "__len__") else COMPARED_ROWS
    digests: list[str] = []
    different_rows: set[str] = set()
    for _ in range(COMPARED_BATCHES):
        x = as_batch(source(size)).x
        digests.append(_digest(x))
        different_rows.update(_digest(part_of(x, i, 1)) for i in range(rows(x)))
    source.load_state_dict(state)
    if _all_different("".join(digests)) or len(different_rows) == 1:
        return
    raise ArgumentError(
        "inputs",
        f"the same rows in several processes, from {type(source).__name__} inputs",
        "inputs that differ between the processes: an IterableDataset that leaves out the rows of "
        "the others (torch.distributed.get_rank() and get_world_size()), a DataLoader with a "
        "DistributedSampler or with shuffle=True and no generator, a function that draws from the "
        "generator it is given, a source without a seed of its own",
    )


def _all_different(digest: str) -> bool:
    r"""Whether no two processes have the same; every process gets the same answer."""
    from accelerate.utils import gather_object

    gathered = gather_object([digest])
    return len(set(gathered)) == len(gathered)


def _digest(x: Any) -> str:
    found = hashlib.sha256()
    for tensor in leaves(x):
        found.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        found.update(
            tensor.detach().cpu().flatten().contiguous().view(torch.uint8).numpy().tobytes()
        )
    return found.hexdigest()
