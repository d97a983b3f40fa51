r"""Random nets and inputs that the tests of models share."""

from __future__ import annotations

import torch

from limbeck.models.mlp import LAYER_KINDS, MLP, BatchedMLP

DOUBLE = torch.float64
KINDS = sorted(LAYER_KINDS)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, dtype=DOUBLE, generator=generator(seed))


def score(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    r"""∂log p(x)/∂x, as if x were continuous."""
    return torch.func.grad(lambda x: model.log_prob(x, check=False).sum())(x)


def batch_of(nets: list[MLP]) -> BatchedMLP:
    r"""The nets, all of one shape, as one BatchedMLP with copies of their weights."""
    fields = {**nets[0].spec(), "type": "BatchedMLP", "members": len(nets)}
    batched = BatchedMLP.from_spec(fields)
    for index, net in enumerate(nets):
        torch._foreach_copy_(batched._tensors(index), net._tensors())
    return batched.train(nets[0].training)


def randomised(net: torch.nn.Module) -> torch.nn.Module:
    r"""Biases start at zero, where a test would not see them."""
    g = generator(5)
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.7, generator=g)
    return net
