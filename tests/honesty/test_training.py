r"""Runs that are prolonged: a schedule that depends on the number of steps keeps that number.

A checkpoint of a run of 100 steps was continued to 200 with whatever learning rates the schedule
has in the middle of 200 steps: after a cosine that had ended at zero came one at its half. A run is
continued with another number of steps only if the steps done would have been the same.
"""

import functools

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import limbeck as lb
from limbeck.cli import app
from limbeck.condensation.stepwise_em import StepwiseEM
from limbeck.inputs import Dataset
from limbeck.training.update import GradientUpdate
from tests.refusals import raises_about

X = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))


def teacher(x):
    return x[:, :1] * x[:, 1:2]


def net(seed=0):
    return lb.MLP(3, 8, 1, generator=torch.Generator().manual_seed(seed))


def run(folder, steps, student=None, **options):
    settled = dict(batch_size=10, every=5, device="cpu", seed=3, lr=0.02, progress=False)
    student = net() if student is None else student
    return lb.distill(
        teacher, student, Dataset(X), "square_error", steps=steps, checkpoint=folder,
        **settled | options,
    )  # fmt: skip


def falling(t, total):
    return 1 - t / total


def stepped(t, total):
    return 0.1 if t > total / 2 else 1.0  # of single numbers only


def decayed(t, total):
    return 0.98**t


def switched(t, total):
    return 0.5 if t > 5 else 1.0


def warmed(t, total, warmup):
    return torch.clamp((t + 1) / warmup, max=1)


def name_of(schedule):
    return getattr(schedule, "__name__", str(schedule) if isinstance(schedule, str) else "object")


DEPENDENT = ["cosine", "linear", "logarithmic", lb.schedules.Cosine(warmup=0.2), falling, stepped]
INDEPENDENT = [
    "constant", "robbins-monro", None, lb.schedules.RobbinsMonro(5.0), decayed, switched,
    functools.partial(warmed, warmup=10),
]  # fmt: skip


@pytest.mark.parametrize("steps", [40, 12])
@pytest.mark.parametrize("schedule", DEPENDENT, ids=name_of)
def test_a_schedule_that_knows_its_end_is_not_given_another(tmp_path, schedule, steps):
    run(tmp_path, 20, schedule=schedule)
    student = net(7)
    before = [p.clone() for p in student.parameters()]
    with raises_about(lb.CheckpointError, "20 steps", "steps=20"):
        run(tmp_path, steps, student, schedule=schedule)
    assert all(map(torch.equal, before, student.parameters()))
    assert run(tmp_path, 20, schedule=schedule).steps == 20


@pytest.mark.parametrize("schedule", INDEPENDENT, ids=name_of)
def test_a_schedule_without_an_end_is_continued_exactly(tmp_path, schedule):
    run(tmp_path, 20, schedule=schedule)
    longer = run(tmp_path, 40, net(7), schedule=schedule)
    whole = run(None, 40, schedule=schedule)
    assert longer.history["loss"] == pytest.approx(whole.history["loss"])
    assert longer.steps == 40


def test_a_run_stopped_early_may_be_given_another_end_if_nothing_differs_yet(tmp_path):
    schedule = lambda t, total: torch.where(t < total - 10, 1.0, 0.1)  # noqa: E731
    stopped = run(tmp_path, 1000, schedule=schedule, seconds=1e-9)
    assert stopped.steps == 1
    longer, whole = run(tmp_path, 30, net(7), schedule=schedule), run(None, 30, schedule=schedule)
    assert longer.history["loss"] == pytest.approx(whole.history["loss"])


def test_an_update_that_does_not_know_keeps_its_number_of_steps(tmp_path):
    class Silent(GradientUpdate):
        same_until = None

    run(tmp_path, 20, lr=None, update=Silent("sgd", "constant", lr=0.01))
    with raises_about(lb.CheckpointError, "20 steps"):
        run(tmp_path, 40, lr=None, update=Silent("sgd", "constant", lr=0.01))


def test_averages_of_stepwise_em_start_by_the_number_of_steps(tmp_path):
    x = torch.randn(200, 1, generator=torch.Generator().manual_seed(0))

    def fit(steps, average):
        update = StepwiseEM("robbins-monro", restarts=1, average=average)
        return lb.distill(
            None, lb.GaussianMixture(2, 1), x, "kl", steps=steps, update=update, device="cpu",
            checkpoint=tmp_path / str(average), progress=False,
        )  # fmt: skip

    fit(20, 0.5)
    with raises_about(lb.CheckpointError, "20 steps"):
        fit(40, 0.5)
    fit(20, 0.0)
    assert fit(40, 0.0).steps == 40


def test_compress_does_not_prolong_a_cosine(tmp_path):
    def compressed(steps, **options):
        settled = dict(student=(4,), inputs="data", task="regression", device="cpu", seed=0)
        return lb.compress(
            teacher, X.numpy(), steps=steps, checkpoint=tmp_path, progress=False,
            **settled, **options,
        )  # fmt: skip

    compressed(20)
    with raises_about(lb.CheckpointError, "20 steps"):
        compressed(40)


def test_condense_does_not_prolong_a_cosine(tmp_path):
    draws = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))

    def condensed(steps, schedule):
        return lb.condense(
            draws, lambda w, x: lb.Bernoulli(logits=x @ w), X, components=2, steps=steps,
            device="cpu", checkpoint=tmp_path / schedule, schedule=schedule, progress=False,
        )  # fmt: skip

    condensed(20, "cosine")
    with raises_about(lb.CheckpointError, "20 steps"):
        condensed(40, "cosine")
    condensed(20, "constant")
    assert condensed(40, "constant").steps == 40


@pytest.mark.parametrize("loss", ["kl", "square_error"])
def test_normalize_does_not_prolong_a_cosine(tmp_path, loss):
    rbm = lb.RBM.random(4, 3, generator=torch.Generator().manual_seed(0))

    def normalized(steps):
        return lb.normalize(
            rbm, lb.NADE(4, 3), loss=loss, steps=steps, chains=20, burn_in=5, batch_size=10,
            device="cpu", checkpoint=tmp_path, progress=False,
        )  # fmt: skip

    normalized(20)
    with raises_about(lb.CheckpointError, "20 steps"):
        normalized(40)


def test_the_command_line_refuses_other_steps_in_the_same_folder(tmp_path):
    np.savez(tmp_path / "rbm.npz", W=np.zeros((4, 3)), a=np.zeros(4), b=np.zeros(3))
    asked = ["normalize", str(tmp_path / "rbm.npz"), "--out", str(tmp_path / "out"), "--quiet"]
    small = ["--chains", "20", "--batch-size", "10", "--device", "cpu"]
    first = CliRunner().invoke(app, [*asked, *small, "--steps", "20"])
    assert (tmp_path / "out" / "result.json").exists(), first.output
    again = CliRunner().invoke(app, [*asked, *small, "--steps", "40"])
    assert again.exit_code not in (0, 3)
