r"""Training of RBMs on binary data: contrastive divergence, plain (CD-k) and persistent."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from limbeck.core.checks import number, whole_number
from limbeck.errors import ArgumentError, LimbeckError
from limbeck.models.rbm import RBM, Statistics
from limbeck.models.rbm_path import base_biases, binary
from limbeck.progress import tracked

__all__ = ["contrast", "train_rbm"]

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
    from limbeck.preparation import choose_device

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
                f"accepted: a lower rate, such as {lr / 4:g}"
            )
    return rbm


def contrast(rbm: RBM, data: Tensor, model: Tensor) -> Statistics:
    r"""The gradient of the mean log likelihood of data (n, I), by samples (m, I) of the model."""
    pairs = zip(rbm.statistics(data), rbm.statistics(model), strict=True)
    return Statistics(*(seen - imagined for seen, imagined in pairs))
