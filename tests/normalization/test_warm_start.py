r"""Warm starts: a student at an RBM's weights, in its own order, with more or fewer units."""

from __future__ import annotations

import pytest
import torch

import limbeck as lb
from limbeck.models import MLP
from limbeck.models.energy import Energy
from limbeck.models.nade import NADE, DeepNADE
from limbeck.models.rbm import RBM
from limbeck.normalization.normalize import can_warm_start, warm_start
from limbeck.supports import Binary, Spins
from tests.refusals import refused

ORDER = [3, 0, 4, 1, 2]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def rbm(dtype=None) -> RBM:
    return RBM.random(5, 3, scale=1.0, generator=generator(1), dtype=dtype)


@pytest.mark.parametrize("order", [None, ORDER])
def test_weights_are_those_of_the_rbm_in_the_order_of_the_student(order):
    target, student = rbm(), NADE(5, 3, order=order, generator=generator(2))
    places = [p.data_ptr() for p in student.parameters()]
    warm_start(student, target, generator(3))
    rows = list(range(5)) if order is None else order
    torch.testing.assert_close(student.w.detach(), target.W.detach()[rows])
    torch.testing.assert_close(student.u.detach(), target.W.detach()[rows])
    torch.testing.assert_close(student.b.detach(), target.a.detach()[rows])
    mean = student.mean
    torch.testing.assert_close(student.c.detach(), target.b.detach() + mean @ target.W[rows])
    x = Binary(5).enumerate(0, 32)
    exact = target.log_unnormalized(x).softmax(0).detach() @ x[:, rows]
    torch.testing.assert_close(mean, exact, atol=0.07, rtol=0)
    assert [p.data_ptr() for p in student.parameters()] == places, "in place"
    assert torch.as_tensor(student.order).tolist() == rows
    assert all(p.requires_grad for p in student.parameters())


def test_further_units_start_small_and_the_rest_as_before():
    target = rbm()
    student = NADE(5, 9, generator=generator(2))
    warm_start(student, target, generator(3))
    sizes = student.w.detach().norm(dim=0) + student.u.detach().norm(dim=0)
    theirs = (2 * target.W.detach().norm(dim=0)).sort().values
    torch.testing.assert_close(sizes.sort().values[-3:], theirs)
    assert sizes.sort().values[-4] < 0.3 * theirs[0]
    assert (sizes > 0).all(), "units at zero would all learn the same"
    other = NADE(5, 9, generator=generator(2))
    warm_start(other, target, generator(3))
    for one, two in zip(student.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


def test_of_too_many_units_the_largest_are_kept():
    target = rbm()
    student = NADE(5, 2, generator=generator(2))
    warm_start(student, target, generator(3))
    kept = target.W.detach().norm(dim=0).topk(2).indices.sort().values
    found = student.w.detach()
    columns = target.W.detach()[:, kept]
    assert torch.allclose(found, columns) or torch.allclose(found, columns.flip(1))


def test_students_keep_their_floating_type():
    student = NADE(5, 3, dtype=torch.float64, generator=generator(2))
    warm_start(student, rbm(), generator(3))
    assert all(p.dtype == torch.float64 for p in student.parameters())
    torch.testing.assert_close(student.w.detach(), rbm().W.detach().double())


def divergence(target, student):
    x = Binary(target.visible).enumerate(0, 2**target.visible, dtype=student.b.dtype)
    log_p = target.log_unnormalized(x).log_softmax(0).detach()
    return (log_p.exp() * (log_p - student.log_prob(x).detach())).sum().item()


@pytest.mark.parametrize("seed", range(2))
def test_a_centred_start_beats_a_plain_one_before_and_after_equal_steps(seed):
    target = RBM.random(10, 8, 1.5, generator=generator(seed))
    x = Binary(10).enumerate(0, 1024)
    p = target.log_unnormalized(x).softmax(0).detach()
    data = x[torch.multinomial(p, 5000, replacement=True, generator=generator(1))]
    centred = NADE(10, 8, generator=generator(2))
    warm_start(centred, target, generator(3))
    plain = NADE.from_rbm(target, centre=None)
    students = (centred, plain)
    one, two = (divergence(target, student) for student in students)
    assert one < 0.5 * two
    for student in students:
        lb.distill(None, student, data, lb.losses.kl(), steps=60, lr=5e-3, batch_size=100,
                   engine="eager", progress=False)  # fmt: skip
    three, four = (divergence(target, student) for student in students)
    assert three < one
    assert three < 0.7 * four


def test_a_student_is_saved_with_the_centre_it_was_given(tmp_path):
    student = NADE(5, 3, ORDER, generator=generator(2))
    assert "mean" not in student.state_dict()
    warm_start(student, rbm(), generator(3))
    assert "mean" in student.state_dict()
    x = Binary(5).enumerate(0, 32)
    read = NADE.load(student.save(tmp_path / "student.safetensors"))
    assert torch.equal(read.log_prob(x), student.log_prob(x))
    before = {name: each.clone() for name, each in student.state_dict().items()}
    warm_start(student, rbm(), generator(3))
    assert all(torch.equal(each, before[name]) for name, each in student.state_dict().items())


def test_a_centre_may_be_given_or_left_out():
    target, student = rbm(), NADE(5, 3, ORDER, generator=generator(2))
    warm_start(student, target, centre=torch.full((5,), 0.25))
    assert (student.mean == 0.25).all()
    deep = DeepNADE(5, 3, generator=generator(2))
    for each in (student, deep):
        warm_start(each, target, generator(3), centre=None)
        assert torch.equal(each.c.view(-1, 3)[0], target.b)
    assert student.mean is None
    assert not deep.mean.any()


@pytest.mark.parametrize("hidden", [2, 3, 6])
def test_deep_students_start_where_nade_does(hidden):
    target = rbm()
    deep = DeepNADE(5, hidden, 7, 1, 2, ORDER, generator=generator(2))
    nade = NADE(5, hidden, ORDER, generator=generator(2))
    assert can_warm_start(deep, target)
    for student in (deep, nade):
        warm_start(student, target, generator(3))
    x = Binary(5).enumerate(0, 32)
    torch.testing.assert_close(deep.log_prob(x), nade.log_prob(x))
    assert deep.enter[0].abs().min() > 0, "residual layers can learn"


ISING = Energy(lambda x: -(x * x.roll(1, 1)).sum(1), Spins(5))
OTHERS = {
    "an energy": (
        lambda: NADE(5, 3, support=Spins(5)),
        ISING,
        r"'teacher' for NADE over Spins\(5\) of Energy",
    ),
    "another support": (
        lambda: NADE(5, 3, support=Spins(5)),
        rbm(),
        r"'teacher' for NADE over Spins\(5\) of RBM over Binary\(5\)",
    ),
    "another size": (
        lambda: NADE(4, 3),
        rbm(),
        r"'teacher' for NADE over Binary\(4\) of RBM over Binary\(5\)",
    ),
    "another student": (lambda: MLP(5, 3), rbm(), "'teacher' for MLP over nothing of RBM"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_pairs_are_refused_with_what_is_possible(case):
    make, target, received = OTHERS[case]
    assert not can_warm_start(make(), target)
    with refused("init", received):
        warm_start(make(), target)
    assert can_warm_start(NADE(5, 2, support=Binary(5)), rbm())
