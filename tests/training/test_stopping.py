r"""Stopping: at the last step, on a plateau with the best student, or on time."""

import copy
import math

import pytest
import torch

import limbeck as lb
from limbeck.training.loop import Plateau
from tests.refusals import refused

DOUBLE = torch.float64
X = torch.randn(60, 4, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))
OTHER = torch.randn(30, 4, dtype=DOUBLE, generator=torch.Generator().manual_seed(2))


def net(seed):
    generator = torch.Generator().manual_seed(seed)
    return lb.MLP(4, 6, 3, hidden="tanh", dtype=DOUBLE, generator=generator)


def distilled(student, teacher=None, **options):
    settings = dict(steps=400, batch_size=10, every=5, device="cpu", engine="eager") | options
    return lb.distill(teacher or net(2), student, X, **settings)


def looks(measures):
    plateau = Plateau()
    return [plateau.update(measure) for measure in measures], plateau


def test_a_measure_that_falls_is_a_new_best_each_time():
    found, plateau = looks([5.0, 4.0, 3.0, -2.0, -4.0])
    assert all(found)
    assert (plateau.best, plateau.since) == (-4.0, 0)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_measures_are_counted_since_the_last_best(count):
    _, plateau = looks([3.0, 4.0, 2.0])
    for number in range(1, count + 1):
        assert not plateau.update(2.0 + number)
    assert (plateau.best, plateau.since) == (2.0, count)


@pytest.mark.parametrize(("best", "better"), [(100.0, 99.9), (-100.0, -100.1)])
def test_a_best_must_be_beaten_by_a_fraction_of_its_size(best, better):
    found, plateau = looks([best, better + 0.01, better - 0.01])
    assert found == [True, False, True]
    assert plateau.best == better - 0.01


def test_measures_that_are_not_finite_are_never_a_best():
    found, plateau = looks([math.nan, math.inf, math.nan])
    assert not any(found)
    assert plateau.since == 3
    assert plateau.update(1.0)


@pytest.mark.parametrize("patience", [0, -1, 2.0, "3"])
def test_a_patience_that_is_no_whole_number_is_refused(patience):
    with refused("patience", expected="a whole number from 1"):
        distilled(net(1), held_out=OTHER, patience=patience)


def test_patience_needs_something_to_watch():
    with refused("held_out", "None"):
        distilled(net(1), patience=3)


def restless(student, **options):
    r"""A run whose rate is far too high, so that its held-out loss soon gets worse."""
    return distilled(
        student,
        optimizer="sgd",
        lr=30.0,
        schedule="constant",
        held_out=OTHER,
        patience=4,
        **options,
    )


def held_out_loss(student):
    with torch.no_grad():
        targets = net(2)(OTHER).softmax(1)
        return -(targets * student(OTHER).log_softmax(1)).sum(1).mean().item()


def test_a_plateau_stops_the_run_and_gives_the_best_student_back():
    student, seen = net(1), []
    result = restless(
        student, metrics={"keep": lambda s: seen.append(copy.deepcopy(s.state_dict())) or 0.0}
    )
    history = result.history["held_out"]
    assert result.steps == 5 * len(history) < 400
    best = min(range(len(history)), key=history.__getitem__)
    assert len(history) - 1 - best == 4
    assert history[-1] > history[best]
    assert held_out_loss(student) == pytest.approx(history[best], rel=1e-12)
    torch.testing.assert_close(student.state_dict(), seen[best], rtol=0, atol=0)
    expected = f"plateau: the held-out loss (best {history[best]:.4g}) stopped improving"
    assert result.stop_reason == expected


@pytest.mark.parametrize("limit", [dict(steps=15), dict(seconds=1e-9, every=1), {}])
def test_with_patience_every_run_gives_the_best_student_back(limit):
    student = net(1)
    result = restless(student, **limit)
    assert held_out_loss(student) == pytest.approx(min(result.history["held_out"]), rel=1e-12)


def test_a_run_that_was_prolonged_goes_on_from_its_last_student(tmp_path):
    whole, options = net(1), dict(checkpoint=tmp_path)
    first = restless(net(1), steps=15, **options)
    assert first.history["held_out"][-1] > min(first.history["held_out"])
    history = restless(net(7), steps=20, **options).history
    assert history == restless(whole, steps=20).history
    again = net(7)
    restless(again, steps=20, **options)
    torch.testing.assert_close(again.state_dict(), whole.state_dict(), rtol=0, atol=0)


def test_a_run_without_patience_goes_on_to_its_last_step():
    result = distilled(net(1), lr=30.0, optimizer="sgd", schedule="constant", held_out=OTHER)
    assert result.stop_reason == "all 400 steps done"
    assert len(result.history["held_out"]) == 80


def test_a_held_out_loss_that_was_never_finite_stops_the_run_as_well():
    def teacher(x):
        return x[:, :3] if len(x) != 30 else x[:, :3] * torch.nan

    result = distilled(
        net(1), teacher, teacher_output="logits", held_out=OTHER, patience=2, precompute=False
    )
    assert result.steps == 10
    assert result.stop_reason.startswith("plateau: the held-out loss (best inf)")


def test_time_stops_the_run_between_two_steps():
    result = distilled(net(1), seconds=1e-9)
    assert result.steps == 1
    assert result.stop_reason == "time limit of 1e-09 s reached at step 1"
    assert result.seconds >= 1e-9


def test_steps_stop_a_run_that_has_time_left():
    result = distilled(net(1), steps=7, seconds=3600.0)
    assert result.steps == 7
    assert result.stop_reason == "all 7 steps done"


@pytest.mark.parametrize("seconds", [0, -1.0, math.nan, "60"])
def test_seconds_that_are_no_positive_number_are_refused(seconds):
    with refused("seconds", expected="a number above zero"):
        distilled(net(1), seconds=seconds)


def test_large_numbers_of_steps_are_said_with_commas():
    result = distilled(net(1), steps=1200, batch_size=2, every=600)
    assert result.stop_reason == "all 1,200 steps done"
