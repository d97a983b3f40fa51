r"""The user's own functions, called so that equal seeds give equal results."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.random import mtrand
from torch import nn

from limbeck.errors import ArgumentError

__all__ = ["SeededCall", "fresh_seed", "parameters_of", "seeded"]

SPARE = np.random.MT19937(0)
r"""Stands in for NumPy's global generator, whose own state is slow to copy."""


class SeededCall:
    r"""A function without gradients whose randomness comes from a given generator.

    A function with a parameter `generator` is handed one; any other runs with the global
    generators of torch, NumPy and Python seeded for the call and restored after it.

    Arguments:
        function: The user's function.
        argument: The name of the argument that it came as.
    """

    def __init__(self, function: Callable[..., Any], argument: str) -> None:
        if not callable(function):
            raise ArgumentError(argument, f"a {type(function).__name__}", "a callable")
        self.function = function
        self.takes_generator = "generator" in parameters_of(function)

    def __call__(self, generator: torch.Generator, *arguments: Any) -> Any:
        with torch.no_grad():
            if self.takes_generator:
                return self.function(*arguments, generator=self._near(generator))
            with seeded(generator):
                return self.function(*arguments)

    def _near(self, generator: torch.Generator) -> torch.Generator:
        # A module can only draw on its own device, which need not be the student's.
        owner = getattr(self.function, "__self__", self.function)
        if isinstance(owner, nn.Module):
            tensors = [*owner.parameters(), *owner.buffers()][:1]
            if tensors and tensors[0].device.type != generator.device.type:
                near = torch.Generator(tensors[0].device)
                return near.manual_seed(fresh_seed(generator))
        return generator


@contextmanager
def seeded(generator: torch.Generator) -> Iterator[None]:
    r"""The global generators of torch, NumPy and Python, seeded here and restored afterwards."""
    seed = fresh_seed(generator)
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    python, numpy = random.getstate(), mtrand.get_bit_generator()
    with torch.random.fork_rng(devices=devices):
        try:
            # torch.manual_seed would put a call aside for every kind of device that is not in use.
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
    r"""The names of the parameters that can be given by name; none where Python cannot say."""
    if isinstance(function, nn.Module):
        function = function.forward
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [parameter.name for parameter in parameters if parameter.kind in named]
