r"""A crowd's loss is the sum of its members' own."""

import pytest
import torch

import limbeck as lb
from limbeck.arrays import Batch
from limbeck.evaluation import View
from limbeck.models.mlp import BatchedMLP
from limbeck.teachers.base import as_teacher
from reproduction.crowd import Average, crowd_error
from tests.refusals import refused

N, SIZES = 6, (5, 7, 4)


def seeded(seed):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def parts():
    teacher = lb.Ensemble([lb.MLP(*SIZES, generator=seeded(i)).double() for i in (10, 11)])
    crowd = BatchedMLP(3, *SIZES, generator=seeded(0)).double()
    x = torch.randn(N, SIZES[0], generator=seeded(1), dtype=torch.float64)
    batch = Batch(x, torch.arange(N) % SIZES[-1])
    return teacher, crowd, batch


def loss_of(loss, teacher, student, batch, drawn=None):
    loss.outputs = SIZES[-1]
    seen = View(student, batch.x, "logits")
    return loss(seen, as_teacher(teacher).view(batch), batch, drawn)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_values_and_labels(parts, temperature):
    teacher, crowd, batch = parts
    found = loss_of(crowd_error(temperature, labels=0.3), teacher, crowd, batch)
    wanted = 0.0
    for index in range(3):
        member = crowd.member(index)
        wanted = wanted + loss_of(lb.losses.cross_entropy(temperature), teacher, member, batch)
        wanted = wanted + 0.3 * loss_of(lb.losses.label_cross_entropy(), teacher, member, batch)
    assert torch.allclose(found, wanted)


def test_derivatives(parts):
    teacher, crowd, batch = parts
    signs = torch.randint(0, 2, (1, N, 4), generator=seeded(2)).double()
    found = loss_of(crowd_error(derivatives=0.01), teacher, crowd, batch, signs)
    wanted = 0.0
    for index in range(3):
        member = crowd.member(index)
        projected = lb.losses.derivative_error(projections=1)
        wanted = wanted + loss_of(lb.losses.cross_entropy(), teacher, member, batch)
        wanted = wanted + 0.01 * loss_of(projected, teacher, member, batch, signs)
    assert torch.allclose(found, wanted)


def test_members_learn_as_if_alone():
    teacher = lb.Ensemble([lb.MLP(*SIZES, generator=seeded(i)) for i in (10, 11)])
    x = torch.randn(40, SIZES[0], generator=seeded(1))
    crowd = BatchedMLP(2, *SIZES, generator=seeded(0))
    alone = crowd.member(1)
    options = {"steps": 30, "batch_size": 10, "device": "cpu", "engine": "eager"}
    lb.distill(teacher, crowd, x, crowd_error(), progress=False, **options)
    lb.distill(teacher, alone, x, lb.losses.cross_entropy(), progress=False, **options)
    with torch.no_grad():
        assert torch.allclose(crowd(x)[:, 1], alone(x), atol=1e-4)


def test_a_crowd_with_derivatives_can_be_trained():
    teacher = lb.Ensemble([lb.MLP(*SIZES, generator=seeded(i)) for i in (10, 11)])
    crowd = BatchedMLP(2, *SIZES, generator=seeded(0))
    source = lb.inputs.Dataset(torch.randn(40, 5, generator=seeded(1)), torch.arange(40) % 4)
    loss = crowd_error(2.0, 0.01, 0.1)
    result = lb.distill(
        teacher, crowd, source, loss, steps=200, batch_size=10, device="cpu", progress=False
    )
    assert result.history["loss"][-1] < result.history["loss"][0]


def test_what_is_no_crowd_is_refused():
    teacher = lb.Ensemble([lb.MLP(*SIZES)])
    with refused("student", "outputs of shape", expected=r"\(n, members, 4\)"):
        lb.distill(teacher, lb.MLP(*SIZES), torch.randn(9, 5), crowd_error(), device="cpu")
    crowd = BatchedMLP(2, *SIZES)
    with refused("inputs", "no labels"):
        lb.distill(teacher, crowd, torch.randn(9, 5), crowd_error(labels=1.0), device="cpu")


def test_an_average_with_a_long_memory_is_the_mean():
    value = torch.nn.Parameter(torch.tensor([7.0]))
    mean = Average([value], memory=100)
    for number in (1.0, 2.0, 6.0):
        with torch.no_grad():
            value.fill_(number)
        mean.update()
    other = torch.nn.Parameter(torch.zeros(1))
    mean.into([other])
    assert other.item() == pytest.approx(3.0)


def test_an_average_forgets():
    value = torch.nn.Parameter(torch.tensor([100.0]))
    mean = Average([value], memory=5)
    mean.update()
    with torch.no_grad():
        value.fill_(1.0)
    for _ in range(60):
        mean.update()
    assert mean.means[0].item() == pytest.approx(1.0, abs=1e-2)
