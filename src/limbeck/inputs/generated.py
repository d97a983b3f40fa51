r"""Inputs that are generated: noise, functions, samples of a model; and how calls are seeded."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.random import mtrand
from torch import Tensor, nn
from torch.distributions import Distribution

from limbeck.arguments import Finite, Positive, Seed, UserObject, checked_arguments, integer
from limbeck.arrays import Batch, float_tensor
from limbeck.errors import ArgumentError
from limbeck.inputs.base import Inputs

SPARE = np.random.MT19937(0)  # in place of NumPy's global generator, whose state is slow to copy


class SeededCall:
    r"""A user's function: it receives `generator`, or the global generators are seeded for it."""

    def __init__(self, function: Callable[..., Any], argument: str) -> None:
        if not callable(function):
            raise ArgumentError(argument, f"a {type(function).__name__}", "a callable")
        self.function, names = function, parameters_of(function)
        self.takes_generator = "generator" in names
        of_torch = isinstance(getattr(function, "__self__", None), Distribution)
        self.takes_shape = of_torch or names[:1] in (["sample_shape"], ["shape"])

    def __call__(self, generator: torch.Generator, *arguments: object) -> Any:
        if not self.takes_generator:
            with torch.no_grad(), seeded(generator):
                return self.function(*arguments)
        owner = getattr(self.function, "__self__", self.function)
        if isinstance(owner, nn.Module):  # whose device need not be the student's
            like = float_tensor(owner, generator)
            if like.device.type != generator.device.type:
                generator = torch.Generator(like.device).manual_seed(fresh_seed(generator))
        with torch.no_grad():
            return self.function(*arguments, generator=generator)

    def sample(self, generator: torch.Generator, n: int) -> Any:
        r"""Of a method `sample`: n samples."""
        return self(generator, (n,) if self.takes_shape else n)


@contextmanager
def seeded(generator: torch.Generator) -> Iterator[None]:
    r"""The global generators of torch, NumPy and Python, seeded here and restored afterwards."""
    seed = fresh_seed(generator)
    cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = list(range(torch.cuda.device_count())) if cuda else []
    python, numpy = random.getstate(), mtrand.get_bit_generator()
    with torch.random.fork_rng(devices=devices):
        try:
            # torch.manual_seed would queue a call for every kind of device that is not in use
            torch.default_generator.manual_seed(seed)
            if devices:
                torch.cuda.manual_seed_all(seed)
            random.seed(seed)
            mtrand.set_bit_generator(SPARE)
            np.random.seed(seed)
            yield
        finally:
            random.setstate(python)
            mtrand.set_bit_generator(numpy)


def fresh_seed(generator: torch.Generator) -> int:
    r"""A seed below 2³² drawn from a generator."""
    return int(torch.randint(2**32, (), generator=generator, device=generator.device))


def parameters_of(function: Callable[..., Any]) -> list[str]:
    r"""The names of the parameters that can be given by name; none where they are not known."""
    if isinstance(function, nn.Module):
        function = function.forward
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [parameter.name for parameter in parameters if parameter.kind in named]


class Noise(Inputs):
    r"""Independent draws from a normal distribution.

    Arguments:
        shape: The shape of one input, or its length.
        scale: The standard deviation. Default: 1.
        mean: The mean. Default: 0.
        seed: The generator's seed. Default: the seed of the distillation.

    >>> Noise((2, 3), scale=0.1)(5).x.shape
    torch.Size([5, 2, 3])
    """

    @checked_arguments
    def __init__(
        self,
        shape: UserObject[int | tuple[int, ...]],
        scale: Positive = 1.0,
        mean: Finite = 0.0,
        seed: Seed | None = None,
    ) -> None:
        super().__init__(seed)
        expected = "a positive integer, or a tuple of them"
        sizes = shape if isinstance(shape, tuple | list) else (shape,)
        self.shape = tuple(integer("shape", size, expected, least=1) for size in sizes)
        self.scale, self.mean = scale, mean

    def draw(self, n: int) -> Tensor:
        return torch.randn(
            n, *self.shape, generator=self.generator, device=self.device, dtype=self.dtype
        )

    def build(self, drawn: Tensor) -> Batch:
        return Batch(self.mean + self.scale * drawn)


class Function(Inputs):
    r"""The inputs that a function of n returns.

    Arguments:
        fn: A function of n, or of n and `generator` (on the student's device), that returns a
            Batch, a tensor (n, ...) or a dict of such, all finite.
        seed: The generator's seed. Default: the seed of the distillation.
    """

    @checked_arguments
    def __init__(self, fn: UserObject[Callable[..., Any]], seed: Seed | None = None) -> None:
        super().__init__(seed)
        self.fn = SeededCall(fn, "fn")

    def draw(self, n: int) -> Batch:
        return self._checked(self.fn(self.generator, n), n, "fn")


class Samples(Function):
    r"""Samples of a model, without gradients.

    Arguments:
        model: Anything with a method `sample` that takes n, or the shape (n,) as those of
            torch.distributions do, and `generator` if it has this parameter; it returns x with n
            rows, a tensor or a dict. For other methods there is `Function`.
        seed: The generator's seed. Default: the seed of the distillation.
    """

    @checked_arguments
    def __init__(self, model: UserObject[Any], seed: Seed | None = None) -> None:
        function = getattr(model, "sample", None)
        if not callable(function):
            raise ArgumentError("model", f"a {type(model).__name__}", "one with a method sample")
        super().__init__(function, seed)
        self.model = model

    def draw(self, n: int) -> Batch:
        x = self.fn.sample(self.generator, n)
        if isinstance(x, Batch):
            raise ArgumentError("model", "a Batch of samples", "a tensor or a dict of tensors")
        return self._checked(x, n, "model")
