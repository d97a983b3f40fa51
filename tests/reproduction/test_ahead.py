r"""Samples drawn ahead: fresh, independent, and the same again after an interruption."""

import pytest
import torch

import limbeck as lb
from limbeck.arrays import Batch
from reproduction.ahead import Ahead
from tests.refusals import refused

CPU = torch.device("cpu")


def numbers(n, generator):
    return torch.rand(n, 2, generator=generator)


def source(block=10, seed=0):
    ahead = Ahead(numbers, block)
    ahead.to(CPU, torch.float32, seed)
    return ahead


def test_no_sample_is_given_twice():
    ahead = source()
    x = torch.cat([ahead(4).x for _ in range(20)])
    assert len(x.unique(dim=0)) == 80
    assert abs(x.mean() - 0.5) < 0.1


def test_a_block_is_handed_out_in_order_and_its_rest_dropped():
    drawn = torch.Generator().manual_seed(3)
    first, second = numbers(10, drawn), numbers(10, drawn)
    ahead = source(seed=3)
    got = [ahead(4).x for _ in range(3)]
    assert torch.equal(torch.cat(got), torch.cat([first[:8], second[:4]]))


def test_a_batch_may_be_larger_than_a_block():
    assert source(block=3)(7).x.shape == (7, 2)


@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_it_goes_on_where_it_was(before):
    one, two = source(), source(seed=9)
    for _ in range(before):
        one(4)
    two.load_state_dict(one.state_dict())
    for _ in range(5):
        assert torch.equal(one(4).x, two(4).x)


def test_a_look_beforehand_changes_nothing():
    one, two = source(), source()
    assert isinstance(one.probe(8), Batch)
    assert torch.equal(one(4).x, two(4).x)


def test_a_student_learns_from_it():
    student = lb.MLP(2, 8, 1, output_form="values")
    teacher = lb.Teacher(lambda x: x.sum(1, keepdim=True), "values")
    result = lb.distill(
        teacher, student, Ahead(numbers, 100), steps=300, batch_size=20, lr=1e-2, device="cpu",
        progress=False,
    )  # fmt: skip
    assert result.history["loss"][-1] < 0.1 * result.history["loss"][0]


def test_an_empty_block_is_refused():
    with refused("block", "^0$"):
        Ahead(numbers, 0)
