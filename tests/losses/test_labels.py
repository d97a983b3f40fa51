r"""The loss of independent labels: by hand, its gradient, its minimum, and what it refuses."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import limbeck as lb
from limbeck import losses
from limbeck.arrays import Batch
from limbeck.evaluation import View
from limbeck.inputs import Dataset
from limbeck.teachers.base import Teacher
from limbeck.training.objective import Objective
from tests.losses.test_gradients import agree, net
from tests.refusals import refused

LOSS = losses.multilabel_cross_entropy()
N, K = 6, 3
RNG = np.random.default_rng(0)
LOGITS, TARGETS = RNG.normal(size=(N, K)), RNG.uniform(size=(N, K))
X = torch.randn(40, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def of(z: Tensor, t: Tensor) -> Tensor:
    x = torch.zeros(len(z), 1)
    return LOSS(View(lambda _: z, x, "values"), View(lambda _: t, x, "values"), Batch(x))


def labels(x: Tensor) -> Tensor:
    r"""Three labels that do not exclude each other."""
    return torch.stack([x[:, 0], x[:, 1], 1 - x.sum(1)], 1).sigmoid()


def test_it_is_the_sum_of_the_cross_entropies_of_each_label() -> None:
    found = of(torch.tensor(LOGITS), torch.tensor(TARGETS))
    expected = [
        sum(
            -t * math.log(1 / (1 + math.exp(-z))) - (1 - t) * math.log(1 / (1 + math.exp(z)))
            for z, t in zip(*row, strict=True)
        )
        for row in zip(LOGITS, TARGETS, strict=True)
    ]
    np.testing.assert_allclose(found, expected)


def test_its_gradient_is_that_of_its_value() -> None:
    agree(LOSS, net(2, 4, K, hidden="tanh"), net(2, 5, K, seed=4, output="logistic"))


probabilities = st.floats(0, 1, allow_subnormal=False)


@settings(deadline=None, derandomize=True)
@given(probabilities, st.floats(-40, 40))
def test_its_gradient_is_the_difference_of_probabilities_and_its_minimum_the_entropy(p, z) -> None:
    t, logit = torch.tensor([[p]], dtype=torch.float64), torch.tensor([[z]], dtype=torch.float64)
    logit.requires_grad_()
    found = of(logit, t)
    found.backward()
    # torch's softplus is linear from 20 on
    assert logit.grad.item() == pytest.approx(1 / (1 + math.exp(-z)) - p, abs=3e-9)
    entropy = -sum(q * math.log(q) for q in (p, 1 - p) if q > 0)
    assert found.item() >= entropy - 3e-9


def test_certain_labels_and_far_logits_have_finite_losses() -> None:
    z = torch.tensor([[1e4, -1e4, 0.0]], requires_grad=True)
    found = of(z, torch.tensor([[0.0, 1.0, 1.0]]))
    found.backward()
    assert found.item() == pytest.approx(2e4 + math.log(2))
    torch.testing.assert_close(z.grad, torch.tensor([[1.0, -1.0, -0.5]]))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_a_student_learns_labels_that_do_not_exclude_each_other(engine) -> None:
    generator = torch.Generator().manual_seed(0)
    student = lb.MLP(2, K, dtype=torch.float64, generator=generator)
    result = lb.distill(
        labels, student, X, LOSS, steps=400, batch_size=20, lr=0.1, device="cpu", engine=engine,
        progress=False,
    )  # fmt: skip
    assert result.engine == engine
    torch.testing.assert_close(student(X).sigmoid(), labels(X), rtol=0, atol=5e-3)


def objective(teacher, student=None, **forms: str) -> Objective:
    student = net(2, 4, K) if student is None else student
    told = {"output": forms.pop("teacher_output", "auto")}
    return Objective(Teacher(teacher, **told), student, Dataset(X), LOSS, **forms)


def test_probabilities_that_sum_to_one_by_chance_are_taken_as_they_are() -> None:
    taught = objective(lambda x: torch.full((len(x), K), 1 / K, dtype=x.dtype) + 0 * x[:, :1])
    assert taught.teacher.form == "probabilities"
    assert taught.form == "values"


@pytest.mark.parametrize(
    ("teacher", "student", "forms", "argument", "received", "expected"),
    [
        (
            net(2, K),
            None,
            {},
            "teacher_output",
            "'logits'",
            "",
        ),
        (
            labels,
            net(2, K, output="softmax"),
            {},
            "student_output",
            "'probabilities'",
            "",
        ),
        (
            labels,
            None,
            {"student_output": "logits"},
            "student_output",
            "'logits'",
            "'values'",
        ),
        (labels, net(2, 4, 2), {}, "student", "2 outputs where the teacher has 3", ""),
        (
            lambda x: 3 * labels(x),
            None,
            {},
            "teacher",
            "outputs between",
            "between 0 and 1",
        ),
        (
            nn.Linear(2, K).double(),
            None,
            {"teacher_output": "logits"},
            "teacher_output",
            "'logits'",
            "",
        ),
    ],
    ids=["logits", "softmax", "said", "outputs", "range", "told"],
)
def test_models_that_do_not_fit_are_refused(
    teacher, student, forms, argument, received, expected
) -> None:
    with refused(argument, received, expected=expected):
        objective(teacher, student, **forms)
