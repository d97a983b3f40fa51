r"""Batched nets: equal to their members in values, gradients and draws."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call, grad, jacrev, vmap

from limbeck.models import MLP, BatchedMLP
from tests.models.nets import DOUBLE, KINDS, batch_of, generator, normal, randomised
from tests.refusals import refused


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sizes", [(4, 3), (4, 5, 1), (4, 5, 6, 3)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shared", [True, False])
def test_batch_equals_its_members(kind: str, sizes: tuple, bias: bool, shared: bool) -> None:
    output = "linear" if sizes[-1] == 1 else kind
    batched = BatchedMLP(7, *sizes, hidden=kind, output=output, bias=bias, dtype=DOUBLE)
    randomised(batched)
    members = [batched.member(i) for i in range(7)]
    x = normal(5, 4) if shared else normal(5, 7, 4)
    x.requires_grad_()
    separate = torch.stack([net(x if shared else x[:, i]) for i, net in enumerate(members)], dim=1)
    y = batched(x)
    assert y.shape == (5, 7, sizes[-1])
    torch.testing.assert_close(y, separate, rtol=1e-12, atol=1e-12)
    direction = normal(*y.shape, seed=2)
    mine = torch.autograd.grad(y, [x, *batched.parameters()], direction)
    theirs = torch.autograd.grad(
        separate, [x, *(p for net in members for p in net.parameters())], direction
    )
    torch.testing.assert_close(mine[0], theirs[0], rtol=1e-12, atol=1e-12)
    count = len(sizes) - 1
    stride = 2 if bias else 1
    for layer in range(count):
        of_weights = torch.stack(theirs[1 + stride * layer :: stride * count])
        torch.testing.assert_close(mine[1 + layer], of_weights, rtol=1e-12, atol=1e-12)
        if bias:
            of_biases = torch.stack(theirs[2 + stride * layer :: stride * count])
            torch.testing.assert_close(mine[1 + count + layer], of_biases, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("outputs", "output"), [(3, "softmax"), (1, "probit"), (1, "linear")])
def test_batched_log_probabilities(outputs: int, output: str) -> None:
    batched = BatchedMLP(4, 3, 5, outputs, output=output, dtype=DOUBLE)
    x = normal(6, 3)
    separate = [batched.member(i).log_probabilities(x) for i in range(4)]
    torch.testing.assert_close(batched.log_probabilities(x), torch.stack(separate, dim=1))


@pytest.mark.parametrize("init", ["he", "lecun"])
def test_batch_draws_as_separate_nets_do(init: str) -> None:
    g, h = generator(2), generator(2)
    batched = BatchedMLP(3, 4, 5, 2, hidden="tanh", init=init, generator=g)
    for i in range(3):
        net = MLP(4, 5, 2, hidden="tanh", init=init, generator=h)
        for p, q in zip(batched.member(i).parameters(), net.parameters(), strict=True):
            assert torch.equal(p, q)


def test_batches_of_members_and_back_are_copies() -> None:
    nets = [MLP(4, 5, 2, output="softmax", dtype=DOUBLE).eval() for _ in range(3)]
    batched = batch_of(nets)
    assert not batched.training
    assert batched.spec() == {**nets[0].spec(), "type": "BatchedMLP", "members": 3}
    for net, i in zip(nets, (0, 1, -1), strict=True):
        member = batched.member(i)
        assert member.spec() == net.spec()
        for p, q in zip(member.parameters(), net.parameters(), strict=True):
            assert torch.equal(p, q)
            assert p.requires_grad
    torch.nn.init.zeros_(nets[0].layers[0].weight)
    torch.nn.init.zeros_(batched.member(1).layers[0].weight)
    assert (batched.weights[0] != 0).all()


def test_images_are_shared_and_separate_inputs_told_apart() -> None:
    batched = BatchedMLP(2, 6, 3, dtype=DOUBLE)
    images, many = normal(5, 2, 3), normal(5, 2, 2, 3)
    assert torch.equal(batched(images), batched(images.flatten(1)))
    torch.testing.assert_close(batched(many), batched(many.flatten(2)))
    assert batched(torch.zeros(0, 6, dtype=DOUBLE)).shape == (0, 2, 3)
    assert batched(torch.zeros(0, 2, 6, dtype=DOUBLE)).shape == (0, 2, 3)
    for shape in ((5, 3, 6), (5, 12), (5, 2, 5)):
        with refused("x", expected=r"shape \(n, 6\) or \(n, 2, 6\)"):
            batched(normal(*shape))


def test_batched_jacobians_and_gradients_under_vmap() -> None:
    batched = BatchedMLP(3, 4, 5, 2, hidden="tanh", dtype=DOUBLE)
    x = normal(6, 4)
    jacobians = vmap(jacrev(lambda row: batched(row[None])[0]))(x)  # (n, members, outputs, inputs)
    for i in range(3):
        net = batched.member(i)
        torch.testing.assert_close(
            jacobians[:, i], vmap(jacrev(lambda row, net=net: net(row[None])[0]))(x)
        )
    parameters = dict(batched.named_parameters())
    per_row = vmap(
        grad(lambda p, row: functional_call(batched, p, (row[None],)).square().sum()), (None, 0)
    )(parameters, x)
    batched(x).square().sum().backward()
    for name, parameter in parameters.items():
        torch.testing.assert_close(per_row[name].sum(0), parameter.grad)


@pytest.mark.parametrize("members", [0, -1, 2.0, "3", True])
def test_bad_member_counts(members: object) -> None:
    with refused("members"):
        BatchedMLP(members, 4, 3)


def test_bad_members() -> None:
    for index, expected in ((3, "from 0 to 2"), (-4, "from 0 to 2"), (0.0, "a whole number")):
        with refused("index", expected=expected):
            BatchedMLP(3, 4, 3).member(index)
