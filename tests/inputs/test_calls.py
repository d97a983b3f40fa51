r"""Users' functions called reproducibly."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from limbeck.inputs.generated import SeededCall, parameters_of
from tests.refusals import refused


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def anything(n):
    return [*torch.rand(n).tolist(), *np.random.rand(n), *(random.random() for _ in range(n))]


def test_global_generators_are_seeded_and_restored():
    call = SeededCall(anything, "fn")
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    assert call(generator(), 3) == call(generator(), 3)
    assert call(generator(1), 3) != call(generator(), 3)
    one = generator()
    assert call(one, 3) != call(one, 3)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all()
    assert random.getstate() == states[2]


def test_global_generators_are_restored_after_an_error():
    def fail():
        random.random()
        raise RuntimeError("user's own")

    state = random.getstate()
    with pytest.raises(RuntimeError, match="user's own"):
        SeededCall(fail, "fn")(generator())
    assert random.getstate() == state


def test_a_generator_is_handed_to_functions_that_take_one():
    class Module(nn.Module):
        def forward(self, n, *, generator):
            return torch.rand(n, generator=generator)

    def function(n, generator=None):
        return torch.rand(n, generator=generator)

    for takes in (function, Module()):
        given = generator()
        drawn = SeededCall(takes, "fn")(given, 3)
        assert torch.equal(drawn, torch.rand(3, generator=generator()))


def test_gradients_are_off():
    weight = nn.Parameter(torch.ones(2))
    assert not SeededCall(lambda n: weight * n, "fn")(generator(), 2).requires_grad


def test_functions_without_a_signature_are_taken():
    assert parameters_of(dict) == []
    assert SeededCall(max, "fn")(generator(), 1, 2) == 2


def test_what_cannot_be_called_is_refused():
    with refused("transform", "a int"):
        SeededCall(3, "transform")
