r"""Failures: a loss that is not finite stops the run, says where, and leaves the student whole."""

import copy

import pytest
import torch

import limbeck as lb
from limbeck.arrays import Batch
from limbeck.inputs import Dataset, Noise
from limbeck.losses.base import Loss
from limbeck.training.result import Failure
from tests.refusals import warns_about

DOUBLE = torch.float64
X = torch.randn(60, 4, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))
SIZE, SEED = 7, 3
CE, SE = lb.losses.cross_entropy, lb.losses.square_error


def net(seed):
    generator = torch.Generator().manual_seed(seed)
    return lb.MLP(4, 6, 3, hidden="tanh", dtype=DOUBLE, generator=generator)


BAD = 40


def met():
    r"""The step that first meets the bad row, and the place of the row in its batch."""
    data = Dataset(X, seed=SEED)
    for step in range(1, 10):
        index = data(SIZE).index.tolist()
        if BAD in index:
            return step, index.index(BAD)
    raise AssertionError("a pass over the data meets every row")


def marked(rows, mark=30.0):
    data = X.clone()
    data[rows, 0] = mark
    return data


def broken(x, value=torch.nan, mark=30.0):
    r"""A teacher that fails at marked inputs."""
    return torch.where(x[:, :1] == mark, value, x[:, :3].tanh())


def run(student, inputs, loss=None, teacher=broken, **options):
    settings = dict(
        steps=50, batch_size=SIZE, seed=SEED, schedule="constant", device="cpu", engine="eager",
        teacher_output="logits", precompute=False,
    )  # fmt: skip
    return lb.distill(teacher, student, inputs, loss or CE(), **settings | options)


def fails(student, *arguments, **options):
    with warns_about("non-finite") as caught:
        result = run(student, *arguments, **options)
    assert len(caught) == 1
    assert str(caught[0].message) == result.stop_reason
    return result


@pytest.mark.parametrize("precompute", [True, False])
@pytest.mark.parametrize("places", [[1], [0, 3, 6]])
def test_the_reason_names_the_step_the_term_the_inputs_and_the_rows(places, precompute):
    data, step = Dataset(X, seed=SEED), 3
    rows = [data(SIZE).index.tolist() for _ in range(step)][-1]
    rows = [rows[place] for place in places]
    result = fails(net(1), marked(rows), precompute=precompute)
    inputs, numbers = ", ".join(map(str, places)), ", ".join(map(str, rows))
    assert result.stop_reason == (
        f"non-finite cross_entropy at step {step}, at inputs {inputs} of the batch "
        f"(rows {numbers} of the data); the student is as it was before that step"
    )
    assert result.steps == step - 1
    failure = result.failure
    assert (failure.step, failure.terms, failure.examples) == (step, ["cross_entropy"], places)
    assert torch.equal(failure.batch.x, marked(rows)[failure.batch.index])


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "adadelta", "rprop"])
def test_the_student_is_bit_for_bit_that_of_the_steps_before(optimizer):
    step, _ = met()
    student, before = net(1), net(1)
    fails(student, marked([BAD]), optimizer=optimizer)
    run(before, marked([BAD]), optimizer=optimizer, steps=step - 1)
    torch.testing.assert_close(student.state_dict(), before.state_dict(), rtol=0, atol=0)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(student.state_dict(), net(1).state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("value", [torch.inf, -torch.inf])
def test_infinite_values_fail_like_those_that_are_no_numbers(value):
    result = fails(
        net(1),
        marked([BAD]),
        SE(),
        teacher=lambda x: broken(x, value),
        teacher_output="values",
        student_output="values",
    )
    assert result.failure.terms == ["square_error"]
    assert result.failure.step == met()[0]


def test_only_the_terms_that_failed_are_named():
    class log_of_input(Loss):
        name = "log_of_input"

        def __call__(self, student, teacher, batch, drawn=None):
            return batch.x[:, 0].clamp_min(-30).add(30).log() + 0 * student.raw().sum(1)

    data = marked([BAD], mark=-30.0)
    loss = CE() + 0.1 * log_of_input() + log_of_input()
    result = fails(net(1), data, loss, teacher=lambda x: x[:, :3].tanh())
    assert result.failure.terms == ["log_of_input_1", "log_of_input_2"]
    assert result.failure.examples == [met()[1]]
    assert result.stop_reason.startswith("non-finite log_of_input_1, log_of_input_2 at step")


class root(Loss):
    r"""√ of a square: finite everywhere, without a derivative where it is zero."""

    name = "root"

    def __call__(self, student, teacher, batch, drawn=None):
        zero = batch.x[:, 0] == 30.0
        value = student.raw()[:, 0].square()
        return torch.where(zero, value * 0, value).sqrt()


def test_a_gradient_that_is_not_finite_is_named_by_its_term():
    step, _ = met()
    student, before = net(1), net(1)
    loss = CE() + root()
    result = fails(student, marked([BAD]), loss, teacher=lambda x: x[:, :3].tanh())
    assert result.stop_reason == (
        f"non-finite gradient of root at step {step}, at the whole batch; "
        "the student is as it was before that step"
    )
    run(before, marked([BAD]), loss, teacher=lambda x: x[:, :3].tanh(), steps=step - 1)
    torch.testing.assert_close(student.state_dict(), before.state_dict(), rtol=0, atol=0)


def test_with_patience_a_failure_leaves_the_best_student():
    student, held_out = net(1), marked([])[:20]
    options = dict(held_out=held_out, patience=40, every=1, optimizer="sgd", lr=30.0)
    result = fails(student, marked([BAD]), **options)
    assert result.stop_reason.endswith("; the student is the best one measured")
    best = min(result.history["held_out"])
    assert best < result.history["held_out"][-1]
    with torch.no_grad():
        targets, logs = broken(held_out).softmax(1), student(held_out).log_softmax(1)
    assert -(targets * logs).sum(1).mean().item() == pytest.approx(best, rel=1e-12)


def test_inputs_that_are_no_rows_of_data_have_places_alone():
    result = fails(net(1), Noise(4, seed=0), teacher=lambda x: broken(x.round(), mark=2.0))
    assert result.failure.examples
    assert "of the batch; the student" in result.stop_reason
    assert "rows" not in result.stop_reason


def test_a_failure_is_not_a_step():
    with warns_about("cross_entropy"):
        numbers = [
            step.number
            for step in lb.steps(
                broken, net(1), marked([BAD]), CE(), steps=50, batch_size=SIZE, seed=SEED,
                teacher_output="logits", precompute=False, device="cpu",
            )
        ]  # fmt: skip
    assert numbers == list(range(1, met()[0]))


def test_looking_for_the_cause_leaves_running_statistics_alone():
    torch.manual_seed(0)
    student = torch.nn.Sequential(
        torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 3)
    ).to(DOUBLE)
    before = copy.deepcopy(student)
    step, _ = met()
    fails(student, marked([BAD]), student_output="logits")
    run(before, marked([BAD]), student_output="logits", steps=step - 1)
    assert student[1].num_batches_tracked == step - 1
    torch.testing.assert_close(student.state_dict(), before.state_dict(), rtol=0, atol=0)


def test_a_run_without_failure_has_none():
    result = run(net(1), X)
    assert result.failure is None
    assert result.steps == 50


def test_long_lists_are_cut_short():
    failure = Failure(4, ["cross_entropy"], list(range(10)), Batch(X, index=torch.arange(60) + 100))
    assert str(failure) == (
        "non-finite cross_entropy at step 4, at inputs 0, 1, 2, 3, 4, 5, 6, 7, … (10 in all) of "
        "the batch (rows 100, 101, 102, 103, 104, 105, 106, 107, … (10 in all) of the data)"
    )
