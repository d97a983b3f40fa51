r"""Hints: by hand, the regressor that is trained along, and refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from limbeck import losses
from limbeck.arrays import Batch
from limbeck.inputs import Dataset
from limbeck.models import MLP
from limbeck.teachers.base import as_teacher
from limbeck.training.objective import Objective
from limbeck.training.update import GradientUpdate
from tests.refusals import refused

X = torch.randn(6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
PATH = {"teacher_layer": "layers.0", "student_layer": "layers.1"}


def net(*sizes: int, seed: int = 0) -> MLP:
    g = torch.Generator().manual_seed(seed)
    return MLP(*sizes, hidden="tanh", dtype=torch.float64, generator=g)


def objective(loss, student: nn.Module | None = None, seed: int = 0) -> Objective:
    student = net(2, 3, 4, 3, seed=1) if student is None else student
    return Objective(as_teacher(net(2, 5, 3)), student, Dataset(X), loss, seed=seed)


@pytest.mark.parametrize("regressor", [None, nn.Linear(4, 5, bias=False)])
def test_hints_by_hand(regressor) -> None:
    loss = losses.hints(**PATH, regressor=regressor)
    bound = objective(loss)
    found = bound.at(Batch(X))
    assert found.shape == (6,)
    student, teacher = bound.student.layers, net(2, 5, 3).layers
    expected = []
    for x in X.numpy():
        hidden = np.tanh(_apply(student[0], x))  # what layers.1 gives is before its tanh
        predicted = _apply(loss.regressor, _apply(student[1], hidden))
        expected.append(sum((predicted - _apply(teacher[0], x)) ** 2) / 2)
    np.testing.assert_allclose(found.detach(), expected)


def _apply(layer: nn.Linear, x: np.ndarray) -> np.ndarray:
    y = layer.weight.detach().numpy() @ x
    return y if layer.bias is None else y + layer.bias.detach().numpy()


def test_layers_of_any_shape_are_compared_flat() -> None:
    image = torch.randn(6, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    teacher = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))
    student = nn.Sequential(nn.Conv2d(1, 3, 2), nn.Flatten(), nn.Linear(27, 3))
    loss = losses.hints("0", "0")
    bound = Objective(as_teacher(teacher), student, Dataset(image), loss)
    assert loss.regressor.weight.shape == (8, 27)
    with torch.no_grad():
        difference = loss.regressor(student[0](image).flatten(1)) - teacher[0](image).flatten(1)
    torch.testing.assert_close(bound.at(Batch(image)), difference.square().sum(1) / 2)


def test_the_regressor_is_trained_along_and_no_part_of_the_student() -> None:
    loss = losses.hints(**PATH)
    bound = objective(loss)
    names = {name for name, _ in bound.named_parameters()}
    assert {"extras.0.weight", "extras.0.bias"} <= names
    update = GradientUpdate(lr=0.01)
    update.bind(bound, 1)
    gradients, *_ = update.gradient(bound.draw(6))
    assert gradients["extras.0.weight"].norm() > 1e-3
    assert not any("regressor" in name or "extras" in name for name in bound.student.state_dict())


def test_the_regressor_starts_by_the_seed_and_leaves_the_global_generator_alone() -> None:
    def start(seed: int) -> torch.Tensor:
        torch.rand(3)  # wherever the global generator is
        before = torch.get_rng_state()
        bound = objective(losses.hints(**PATH), seed=seed)
        assert torch.equal(before, torch.get_rng_state())
        return bound.extras[0].weight

    first = start(0)
    assert torch.equal(first, start(0))
    assert not torch.equal(first, start(1))


def test_a_loss_that_is_used_again_starts_with_a_new_regressor_that_fits() -> None:
    loss = losses.hints(**PATH)
    objective(loss)
    used = loss.regressor
    objective(loss, net(2, 3, 7, 3))
    assert loss.regressor is not used
    assert loss.regressor.weight.shape == (5, 7)


def test_hooks_are_taken_off_again() -> None:
    bound = objective(losses.hints(**PATH))
    assert bound.student.layers[1]._forward_hooks
    bound.release()
    for model in (bound.student, bound.teacher.source):
        assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("loss", "argument", "received", "expected"),
    [
        (
            losses.hints("layers.7", "layers.0"),
            "hints",
            "'layers.7'",
            "",
        ),
        (
            losses.hints("layers.0", "layer.0"),
            "hints",
            "'layer.0'",
            "did you mean 'layers.0'",
        ),
        (
            losses.hints(**PATH, regressor=nn.Linear(4, 6)),
            "regressor",
            "6 outputs",
            "5 outputs",
        ),
        (
            losses.hints(**PATH, regressor=nn.Linear(3, 5)),
            "regressor",
            "a module that fails on the units of",
            "takes 4 inputs",
        ),
    ],
)
def test_layers_and_regressors_that_do_not_fit_are_refused(
    loss, argument, received, expected
) -> None:
    with refused(argument, received, expected=expected):
        objective(loss)


def test_a_teacher_without_layers_is_refused() -> None:
    teacher = as_teacher(lambda x: x.softmax(1))
    with refused("hints", "a model of type function"):
        Objective(teacher, net(2, 3, 4, 2), Dataset(X), losses.hints(**PATH))
