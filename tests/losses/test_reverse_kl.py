r"""Reverse KL: REINFORCE with a leave-one-out baseline, against gradients by enumeration."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

import limbeck as lb
from limbeck.arrays import Batch
from limbeck.evaluation import View
from limbeck.inputs import Dataset, Function, Samples
from limbeck.teachers.base import Teacher
from limbeck.training.objective import Objective
from limbeck.training.update import GradientUpdate
from tests.refusals import refused, warns_about

STATES = 5
LOG_P = torch.tensor([9.0, 10.5, 8.0, 11.0, 7.0], dtype=torch.float64)  # far from normalised


class Table(nn.Module):
    r"""A distribution over a few events, each of which is its own number."""

    def __init__(self, scores=(0.3, -1.0, 0.8, 0.0, 0.5)):
        super().__init__()
        self.scores = nn.Parameter(torch.tensor(scores, dtype=torch.float64))

    def log_prob(self, x: Tensor) -> Tensor:
        return self.scores.log_softmax(0)[x[:, 0].long()]

    def sample(self, n, generator=None):
        p = self.scores.softmax(0)
        drawn = torch.multinomial(p, n, replacement=True, generator=generator)
        return drawn[:, None].to(p.dtype)


def target(x: Tensor) -> Tensor:
    return LOG_P[x[:, 0].long()]


def bound(student, n) -> tuple[Objective, GradientUpdate]:
    r"""The objective, whose inputs are whatever `given` says next."""
    inputs = Function(lambda n: torch.zeros(n, 1, dtype=torch.float64))
    objective = Objective(Teacher(target, "log_density"), student, inputs, lb.losses.reverse_kl())
    update = GradientUpdate()
    update.bind(objective, 1)
    return objective, update


def gradients(student, n) -> tuple[Tensor, Tensor]:
    r"""The gradient at each of all batches of n, and each batch's probability."""
    objective, update = bound(student, n)
    plan, found, chances = objective.draw(n), [], []
    with torch.no_grad():
        p = student.scores.softmax(0)
    for batch in itertools.product(range(STATES), repeat=n):
        x = torch.tensor(batch, dtype=torch.float64)[:, None]
        found.append(update.gradient({**plan, "inputs": Batch(x)})[0]["student.scores"])
        chances.append(p[list(batch)].prod())
    return torch.stack(found), torch.stack(chances)


def exact(student) -> Tensor:
    log_q = student.scores.log_softmax(0)
    divergence = log_q.exp() @ (log_q - LOG_P)
    return torch.autograd.grad(divergence, student.scores)[0]


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_its_gradient_is_that_of_the_divergence_on_the_average_over_all_batches(n):
    student = Table()
    found, chances = gradients(student, n)
    assert chances.sum().item() == pytest.approx(1)
    torch.testing.assert_close(chances @ found, exact(student))


@pytest.mark.parametrize("n", [2, 3, 4])
def test_the_baseline_takes_most_of_the_variance(n):
    student = Table()
    mean = exact(student)

    def variance(batch: int) -> float:
        found, chances = gradients(student, batch)
        return (chances @ (found - mean).square().sum(1)).item()

    without = variance(1) / n  # n independent examples without a baseline
    assert variance(n) < 0.3 * without


def test_its_values_are_differences_of_logs_whose_mean_is_the_divergence():
    student, x = Table(), torch.arange(STATES, dtype=torch.float64)[:, None]
    seen, taught = (View(m, x, "log_density") for m in (student, target))
    values = lb.losses.reverse_kl()(seen, taught, Batch(x))
    log_q = student.scores.log_softmax(0)
    torch.testing.assert_close(values, log_q - LOG_P)
    log_p = LOG_P - LOG_P.logsumexp(0)
    divergence = (log_q.exp() @ (log_q - log_p)).item()
    free_energy = LOG_P.logsumexp(0).item() - divergence
    assert (log_q.exp() @ values).item() == pytest.approx(-free_energy)


def test_training_by_it_reaches_the_target():
    student = Table()
    options = dict(steps=1500, batch_size=50, lr=0.05, engine="eager", device="cpu")
    result = lb.distill(
        target, student, Samples(student), "reverse_kl", teacher_output="log_density", **options
    )
    log_q = student.scores.detach().log_softmax(0)
    log_z = LOG_P.logsumexp(0)
    assert (log_q.exp() @ (LOG_P - log_q)).item() == pytest.approx(log_z.item(), abs=1e-3)
    assert -result.history["loss"][-1] == pytest.approx(log_z.item(), abs=0.02)
    torch.testing.assert_close(log_q.exp(), (LOG_P - log_z).exp(), atol=0.01, rtol=0)


@pytest.mark.slow
def test_compiled_and_eager_steps_agree():
    students = []
    for engine in ("eager", "compiled"):
        students.append(Table())
        result = lb.distill(
            target,
            students[-1],
            Samples(students[-1]),
            "reverse_kl",
            teacher_output="log_density",
            steps=20,
            batch_size=8,
            engine=engine,
            device="cpu",
        )
        assert result.engine == engine
    torch.testing.assert_close(students[0].scores, students[1].scores)


def test_rows_of_a_data_set_are_refused():
    x = torch.zeros(4, 1, dtype=torch.float64)
    with refused("inputs", "rows of a data set"):
        lb.distill(target, Table(), Dataset(x), "reverse_kl", steps=2, device="cpu")


def test_a_target_that_forbids_what_the_student_gives_stops_the_run():
    def forbidding(x):
        return torch.where(x[:, 0] == 2, -math.inf, 0.0).to(torch.float64)

    student = Table((0.0, 0.5, -3.0, 1.0, 0.0))
    before = student.scores.detach().clone()
    with warns_about("reverse_kl"):
        result = lb.distill(
            Teacher(forbidding, "log_density"),
            student,
            Samples(student, seed=1),
            "reverse_kl",
            steps=200,
            batch_size=8,
            device="cpu",
            engine="eager",
        )
    assert result.failure is not None
    assert result.steps == result.failure.step - 1
    assert student.scores.isfinite().all()
    assert not torch.equal(student.scores, before)
