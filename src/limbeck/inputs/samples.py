r"""Samples of a model: a teacher that can be sampled is a source of inputs."""

from __future__ import annotations

from typing import Any

from torch.distributions import Distribution

from limbeck.core.batch import Batch
from limbeck.errors import ArgumentError
from limbeck.inputs.calls import SeededCall, parameters_of
from limbeck.inputs.eager import Eager

__all__ = ["Samples"]


class Samples(Eager):
    r"""What a model's sampling method gives, without gradients.

    Arguments:
        model: Anything with a method that takes n and gives x with n rows, a tensor or a dict;
            a torch.distributions object is asked for the shape (n,).
        method: The method's name. It is handed `generator` if it has such a parameter.
        seed: The generator's seed; None takes the seed of the distillation.

    >>> import torch
    >>> Samples(torch.distributions.Poisson(torch.tensor([1.0, 9.0])))(5).x.shape
    torch.Size([5, 2])
    """

    def __init__(self, model: Any, method: str = "sample", seed: int | None = None) -> None:
        super().__init__(seed)
        function = getattr(model, method, None)
        if not callable(function):
            received = f"{method!r} of a {type(model).__name__}"
            raise ArgumentError("method", received, "a method that takes the number of samples")
        self.model = model
        self.sample = SeededCall(function, "model")
        self.takes_shape = isinstance(model, Distribution) or (
            parameters_of(function)[:1] in (["sample_shape"], ["shape"])
        )

    def draw(self, n: int) -> Batch:
        x = self.sample(self.generator, (n,) if self.takes_shape else n)
        if isinstance(x, Batch):
            raise ArgumentError("model", "a Batch of samples", "a tensor or a dict of tensors")
        return self.checked(x, n, "model")
