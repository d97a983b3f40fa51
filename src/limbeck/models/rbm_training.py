r"""Training an RBM, and reading and writing its files."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from safetensors.numpy import save as safetensors_bytes
from safetensors.torch import load_file as load_safetensors
from torch import Tensor

from limbeck.arguments import number, whole_number
from limbeck.errors import ArgumentError, LimbeckError
from limbeck.models.rbm import RBM, Statistics
from limbeck.models.rbm_path import base_biases, binary
from limbeck.progress import tracked

if TYPE_CHECKING:
    from limbeck.models.rbm import RBM

    Kind = TypeVar("Kind", bound=RBM)

__all__ = ["build", "contrast", "read", "train_rbm", "write"]

NAMES = ({"W": "W", "a": "a", "b": "b"}, {"W": "vishid", "a": "visbiases", "b": "hidbiases"})
ACCEPTED = "a file with W, a and b, or vishid, visbiases and hidbiases"


def read(path: Path) -> dict[str, Any]:
    r"""The arrays W, a and b of a file, under any of the names that are in use."""
    if path.suffix.lower() not in READERS:
        raise ArgumentError("path", str(path), f"a name that ends in {', '.join(READERS)}")
    if not path.is_file():
        state = "a folder" if path.is_dir() else "which does not exist"
        raise ArgumentError("path", f"{path}, {state}", ACCEPTED)
    try:
        arrays = READERS[path.suffix.lower()](path)
    except LimbeckError:
        raise
    except Exception as error:  # of the readers' many kinds
        received = f"{path}, which cannot be read as {path.suffix.lower()} ({_line(error)})"
        raise ArgumentError("path", received, ACCEPTED) from error
    for names in NAMES:
        if all(name in arrays for name in names.values()):
            return {mine: arrays[theirs] for mine, theirs in names.items()}
    found = ", ".join(sorted(map(str, arrays))[:8]) or "nothing"
    raise ArgumentError("path", f"{path}, which holds {found}", ACCEPTED)


def build(cls: type[Kind], path: Path, arrays: Mapping[str, Any], **settings: Any) -> Kind:
    r"""An RBM of a file's arrays; what does not fit is told with the file's name."""
    flat = {**arrays, **{name: _vector(arrays[name]) for name in ("a", "b")}}
    try:
        return cls(**flat, **settings)
    except ArgumentError as error:
        if error.argument not in flat:
            raise
        received = f"{path}, whose {error.argument} has {error.received}"
        raise ArgumentError("path", received, error.expected) from error


def write(path: Path, tensors: Mapping[str, Tensor]) -> Path:
    r"""Write tensors as .npz or .safetensors; the file appears whole or not at all."""
    if path.suffix.lower() not in WRITERS:
        raise ArgumentError("path", str(path), f"a name that ends in {' or '.join(WRITERS)}")
    arrays = {name: t.detach().cpu().contiguous().numpy() for name, t in tensors.items()}
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(WRITERS[path.suffix.lower()](arrays))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise LimbeckError(f"path: writing {path} failed ({_line(error)})") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return path


def _read_npz(path: Path) -> dict[str, Any]:
    wanted = {name for names in NAMES for name in names.values()}
    with open(path, "rb") as file:  # which numpy leaves open if it is broken
        loaded = np.load(file, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise ArgumentError("path", f"{path}, which holds a single array", ACCEPTED)
        return {name: loaded[name] if name in wanted else None for name in loaded.files}


def _read_mat(path: Path) -> dict[str, Any]:
    from scipy.io import loadmat  # scikit-learn needs scipy, so it is there

    try:
        arrays = loadmat(path)
    except NotImplementedError:
        received = f"{path}, in MATLAB's format 7.3"
        raise ArgumentError("path", received, "an older one: save(name, '-v7', …)") from None
    return {name: array for name, array in arrays.items() if not name.startswith("__")}


def _npz(arrays: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _vector(array: Any) -> Any:
    r"""A row or column, as MATLAB has them, as a vector."""
    array = array if isinstance(array, Tensor) else np.asarray(array)
    return array.reshape(-1) if array.ndim == 2 and 1 in array.shape else array


def _line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


READERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    ".npz": _read_npz,
    ".safetensors": load_safetensors,
    ".mat": _read_mat,
}
WRITERS: dict[str, Callable[[dict[str, Any]], bytes]] = {
    ".npz": _npz,
    ".safetensors": safetensors_bytes,
}


SCALE = 0.01  # of the first weights
SLOW_EPOCHS, SLOW_MOMENTUM = 5, 0.5


@torch.no_grad()
def train_rbm(
    data: Any,
    hidden: int,
    *,
    sweeps: int = 1,
    persistent: bool = False,
    chains: int | None = None,
    epochs: int = 20,
    batch_size: int = 100,
    lr: float = 0.05,
    momentum: float = 0.9,
    weight_decay: float = 2e-4,
    seed: int = 0,
    device: str | torch.device = "auto",
    progress: bool = True,
) -> RBM:
    r"""An RBM trained on binary data by an approximate gradient of the log likelihood.

    The gradient is the difference of two means of the statistics xhᵀ, x and h: over the data, and
    over the model. CD-k takes the second from chains that start at the batch and run k sweeps;
    persistent CD from chains that go on throughout the training, which costs the same and comes
    closer to the model. The rate falls linearly to zero. Weights start small, visible biases at
    the log odds of the data.

    Arguments:
        data: Zeros and ones (n, I), as floats, integers or booleans.
        hidden: The number of hidden units J.
        sweeps: Sweeps of block Gibbs before each step: the k of CD-k.
        persistent: Whether chains go on from step to step.
        chains: The number of persistent chains; None is the batch size.
        epochs: Passes over the data.
        batch_size: Examples in a step.
        lr: The first learning rate; halve it if the training diverges.
        momentum: The momentum after the first five epochs, which have 0.5 at most.
        weight_decay: By how much of W its gradient is lessened.
        seed: The seed of weights, order and chains.
        device: Where to train; "auto" is a GPU if there is one. The RBM stays there.
        progress: Whether to show a bar, if a terminal is there.

    >>> data = torch.tensor([[0, 0, 1, 1], [1, 1, 0, 0]]).repeat(50, 1)
    >>> rbm = train_rbm(data, 3, epochs=30, batch_size=10, device="cpu")
    >>> bool(rbm(data[:1].float()) > rbm(torch.tensor([[0.0, 1.0, 0.0, 1.0]])))
    True
    """
    from limbeck.training.config import choose_device

    bits = binary(data)
    whole = "a whole number from 1"
    sweeps, epochs = (
        whole_number("sweeps", sweeps, whole, 1),
        whole_number("epochs", epochs, whole, 1),
    )
    batch_size = min(whole_number("batch_size", batch_size, whole, 1), len(bits))
    if chains is not None and not persistent:
        raise ArgumentError("chains", chains, "none without persistent=True")
    chains = batch_size if chains is None else whole_number("chains", chains, whole, 1)
    lr = number("lr", lr, "a number above 0", lambda rate: rate > 0)
    momentum = number("momentum", momentum, "a number from 0 to below 1", lambda m: 0 <= m < 1)
    weight_decay = number("weight_decay", weight_decay, "a number from 0", lambda d: d >= 0)
    place = choose_device(device)
    generator = torch.Generator(place).manual_seed(whole_number("seed", seed, "a whole number", 0))

    rbm = RBM.random(bits.shape[1], hidden, SCALE, generator, device=place)
    rbm.a.copy_(base_biases(bits))
    rbm.b.zero_()
    bits = bits.to(place, torch.uint8)  # a quarter of the floats' size
    parameters = (rbm.W, rbm.a, rbm.b)
    speed = [torch.zeros_like(parameter) for parameter in parameters]
    state = rbm.start(chains, generator) if persistent else None
    steps, step = epochs * -(-len(bits) // batch_size), 0
    passes: Any = range(epochs)
    for epoch, _ in enumerate(tracked(passes, "training", progress)):
        keep = min(momentum, SLOW_MOMENTUM) if epoch < SLOW_EPOCHS else momentum
        for rows in torch.randperm(len(bits), generator=generator, device=place).split(batch_size):
            batch = bits[rows].float()
            model = rbm.advance(batch if state is None else state, sweeps, generator)
            state = model if persistent else None
            gradient = contrast(rbm, batch, model)
            gradient.W.sub_(rbm.W, alpha=weight_decay)
            rate = lr * (1 - step / steps)
            for parameter, velocity, slope in zip(parameters, speed, gradient, strict=True):
                parameter.add_(velocity.mul_(keep).add_(slope, alpha=rate))
            step += 1
        if not all(parameter.isfinite().all() for parameter in parameters):
            raise LimbeckError(
                f"lr: got {lr:g}, with which the training diverged in epoch {epoch + 1}; "
                f"expected a lower rate, such as {lr / 4:g}"
            )
    return rbm


def contrast(rbm: RBM, data: Tensor, model: Tensor) -> Statistics:
    r"""The gradient of the mean log likelihood of data (n, I), by samples (m, I) of the model."""
    pairs = zip(rbm.statistics(data), rbm.statistics(model), strict=True)
    return Statistics(*(seen - imagined for seen, imagined in pairs))
