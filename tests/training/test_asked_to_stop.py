r"""A run that is asked to stop ends at a whole step, and goes on as if nothing had been."""

import threading

import pytest
import torch

import limbeck as lb
from limbeck.storage import checkpoints
from limbeck.training.callbacks import Callback
from tests.refusals import refused

X = torch.randn(40, 4, generator=torch.Generator().manual_seed(1))


def net(seed):
    return lb.MLP(4, 6, 3, generator=torch.Generator().manual_seed(seed))


def steps(student=None, teacher=None, **options):
    settings = dict(steps=12, every=3, batch_size=7, device="cpu", engine="eager", seed=3)
    student = student or net(1)
    return lb.steps(teacher or net(2), student, X, precompute=False, **settings | options)


class Asking(Callback):
    r"""Asks in the middle of a step: at a call of the teacher."""

    def __init__(self, at, error=None):
        self.at, self.error, self.calls, self.run, self.ended = at, error, 0, None, []
        self.net = net(2)

    def __call__(self, x):
        self.calls += 1
        if self.run is not None and self.run.done + 1 == self.at:
            self.run.stop("enough", self.error)
        return self.net(x).softmax(1)

    def end(self, stop_reason):
        self.ended.append(stop_reason)


def taken(asking, **options):
    r"""Steps of a run that is asked to stop within one of them."""
    numbers = []
    for step in steps(teacher=asking, callbacks=asking, **options):
        asking.run = step.run
        numbers.append(step.number)
    return numbers


def test_the_step_under_way_is_finished():
    asking = Asking(at=5)
    assert taken(asking) == [1, 2, 3, 4, 5]
    assert asking.run.stop_reason == "enough"
    assert asking.ended == ["enough"]
    assert asking.run.history["step"] == [3]


def test_between_steps_no_further_one_is_taken():
    numbers = []
    for step in steps():
        numbers.append(step.number)
        if step.number == 4:
            step.run.stop("good enough")
            step.run.stop("another reason")
    assert numbers == [1, 2, 3, 4]
    assert step.run.stop_reason == "good enough"


def test_another_thread_may_ask():
    numbers = []
    for step in steps():
        numbers.append(step.number)
        if step.number == 2:
            other = threading.Thread(target=step.run.stop, args=("time for lunch",))
            other.start()
            other.join()
    assert numbers == [1, 2]


@pytest.mark.parametrize("at", [5, 6, 12])
def test_the_same_call_goes_on_and_ends_as_without_it(tmp_path, at):
    whole, student = net(1), net(1)
    (*_, last) = steps(whole)
    assert taken(Asking(at), student=student, checkpoint=tmp_path)[-1] == at
    assert checkpoints.read(tmp_path).about["done"] == at
    (*_, resumed) = [None, *steps(student, checkpoint=tmp_path)]
    if at < 12:
        assert resumed.number == 12
        assert resumed.run.stop_reason == last.run.stop_reason
        assert resumed.run.history == last.run.history
    torch.testing.assert_close(student.state_dict(), whole.state_dict(), rtol=0, atol=0)


def test_an_error_is_raised_when_all_is_saved(tmp_path):
    asking = Asking(at=5, error=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        taken(asking, checkpoint=tmp_path)
    assert asking.ended == ["enough"]
    assert checkpoints.read(tmp_path).about["done"] == 5


def test_a_run_that_is_over_is_left_as_it_is():
    (*_, last) = steps()
    last.run.stop("too late")
    assert last.run.stop_reason == "all 12 steps done"


@pytest.mark.parametrize("wrong", [None, "", 3])
def test_a_reason_is_needed(wrong):
    (*_, last) = steps(steps=1)
    with refused("reason"):
        last.run.stop(wrong)
