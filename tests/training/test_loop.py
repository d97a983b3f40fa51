r"""The loop: what a run does at each step, what it writes down, and what it leaves as it was."""

import copy
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import limbeck as lb
from limbeck.inputs import Dataset
from limbeck.losses.base import Loss
from limbeck.storage import checkpoints
from limbeck.training import loop
from limbeck.training.config import Training
from limbeck.training.distill import prepare
from tests.refusals import warns_about

DOUBLE = torch.float64
X = torch.randn(60, 4, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))
CE, SE = lb.losses.cross_entropy, lb.losses.square_error


def net(seed):
    generator = torch.Generator().manual_seed(seed)
    return lb.MLP(4, 6, 3, hidden="tanh", dtype=DOUBLE, generator=generator)


def settings(**options):
    return dict(steps=20, batch_size=7, device="cpu", engine="eager", seed=3) | options


def distilled(student=None, inputs=X, teacher=None, **options):
    return lb.distill(teacher or net(2), student or net(1), inputs, **settings(**options))


def same(one, other):
    torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=0, atol=0)


def test_steps_give_numbers_losses_and_terms():
    student = net(1)
    loss = CE() + 0.5 * SE()
    seen = [
        (step.number, step.loss, step.terms, step.student)
        for step in lb.steps(net(2), student, X, loss, **settings())
    ]
    assert [number for number, *_ in seen] == list(range(1, 21))
    for _, total, terms, trained in seen:
        assert set(terms) == {"cross_entropy", "square_error"}
        assert total == pytest.approx(terms["cross_entropy"] + 0.5 * terms["square_error"])
        assert trained is student
    assert len({total for _, total, *_ in seen}) == 20


def test_the_loss_of_a_step_is_that_of_its_batch_before_the_step():
    student, teacher = net(1), net(2)
    data = Dataset(X, seed=3)
    before = copy.deepcopy(student)
    for step in lb.steps(teacher, student, X, CE(), **settings(steps=5)):
        x = data(7).x
        expected = -(teacher(x).softmax(1) * before(x).log_softmax(1)).sum(1).mean()
        assert step.loss == pytest.approx(expected.item(), rel=1e-12)
        before = copy.deepcopy(student)


def test_steps_taken_one_by_one_are_those_of_a_distillation():
    student = net(1)
    for _ in lb.steps(net(2), student, X, **settings()):
        pass
    same(distilled().student, student)


def test_a_distillation_trains_the_student_in_place():
    student = net(1)
    result = distilled(student)
    assert result.student is student
    assert not torch.equal(student.layers[0].weight, net(1).layers[0].weight)
    assert result.steps == 20
    assert result.stop_reason == "all 20 steps done"
    assert result.seconds > 0


def test_equal_seeds_give_equal_runs_and_others_do_not():
    same(distilled(seed=5).student, distilled(seed=5).student)
    with pytest.raises(AssertionError):
        same(distilled(seed=5).student, distilled(seed=6).student)


@pytest.mark.parametrize(("steps", "every"), [(20, 5), (20, 6), (20, 1), (3, 50)])
def test_the_history_has_the_mean_loss_of_each_interval(steps, every):
    taken = list(lb.steps(net(2), net(1), X, CE() + SE(), **settings(steps=steps, every=every)))
    history = taken[0].run.history
    losses, terms = [], []
    for step in lb.steps(net(2), net(1), X, CE() + SE(), **settings(steps=steps, every=10**6)):
        losses.append(step.loss)
        terms.append(step.terms["square_error"])
    ends = sorted({*range(every, steps + 1, every), steps})
    starts = [0, *ends[:-1]]
    assert history["step"] == ends
    means = [np.mean(losses[a:b]) for a, b in zip(starts, ends, strict=True)]
    assert history["loss"] == pytest.approx(means, rel=1e-12)
    means = [np.mean(terms[a:b]) for a, b in zip(starts, ends, strict=True)]
    assert history["square_error"] == pytest.approx(means, rel=1e-12)


def test_all_columns_of_the_history_have_equal_length():
    history = distilled(
        loss=CE() + SE(), every=6, held_out=X[:9], metrics={"size": lambda s: 1.0}
    ).history
    expected = ["step", "loss", "cross_entropy", "square_error", "gradient_norm", "held_out"]
    assert list(history) == [*expected, "size"]
    assert {len(history[name]) for name in history} == {4}
    assert repr(history) == f"History(4 evaluations of {', '.join(history)})"


def test_a_run_is_looked_at_fifty_times_unless_said_otherwise():
    assert distilled(steps=200).history["step"] == list(range(4, 201, 4))


def test_terms_of_the_same_name_are_numbered():
    history = distilled(loss=CE() + CE(temperature=2.0), every=20).history
    assert {"cross_entropy_1", "cross_entropy_2"} <= set(history)


class Five(Loss):
    r"""A loss of the user's own, without a name."""

    def __call__(self, student, teacher, batch, drawn=None):
        return 0 * student.raw().sum(1) + 5.0


def test_a_nameless_term_does_not_take_the_place_of_the_total():
    result = distilled(loss=CE() + Five(), every=1)
    totals = [value + 5 for value in result.history["cross_entropy"]]
    assert result.history["loss"] == pytest.approx(totals)


def test_metrics_are_taken_of_the_student_at_each_look():
    student, seen = net(1), []

    def weight(trained):
        assert trained is student
        seen.append(trained.layers[0].weight[0, 0].item())
        return torch.tensor(seen[-1])

    result = distilled(student, every=5, metrics={"weight": weight})
    assert result.history["weight"] == pytest.approx(seen)
    assert len(set(seen)) == 4
    assert seen[-1] == student.layers[0].weight[0, 0].item()


def test_the_held_out_loss_is_that_of_a_usual_evaluation():
    held_out = torch.randn(1030, 4, dtype=DOUBLE)  # more than one block of it
    teacher, student = net(2), net(1)
    result = distilled(student, teacher=teacher, held_out=held_out)
    expected = -(teacher(held_out).softmax(1) * student(held_out).log_softmax(1)).sum(1).mean()
    assert result.history["held_out"][-1] == pytest.approx(expected.item(), rel=1e-12)


@pytest.mark.parametrize(
    "loss",
    [CE(), lb.losses.derivative_error(), lb.losses.derivative_error(projections=2)],
    ids=["values", "derivatives", "projections"],
)
def test_looking_changes_nothing(loss):
    plain = distilled(loss=loss, every=10**6).student
    looked = distilled(
        loss=loss, every=1, held_out=X[:10], metrics={"out": lambda s: s(X).sum().item()}
    ).student
    same(plain, looked)


def mixed_modes():
    torch.manual_seed(0)
    student = nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Tanh(), nn.Linear(6, 3)
    ).to(DOUBLE)
    student[1].eval()
    return student


def test_layers_keep_their_modes_through_looks_which_see_evaluation_mode():
    student = mixed_modes()
    modes = [module.training for module in student.modules()]
    seen = []

    def metric(trained):
        seen.append([module.training for module in trained.modules()])
        trained.train()  # and a metric may leave any mode behind
        return 0.0

    distilled(student, student_output="logits", held_out=X[:5], metrics={"metric": metric})
    assert not any(any(each) for each in seen)
    assert [module.training for module in student.modules()] == modes
    assert modes.count(False) == 1
    assert student[1].num_batches_tracked == 0


def test_the_statistics_of_a_student_are_those_of_its_steps_alone():
    student = mixed_modes().train()
    distilled(student, student_output="logits", held_out=X[:5], steps=6)
    assert student[1].num_batches_tracked == 6


def dropping():
    return nn.Sequential(net(2), nn.Identity(), nn.Dropout(0.5))


@pytest.mark.parametrize("precompute", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_the_teacher_is_asked_in_evaluation_mode_and_given_back_in_its_own(precompute, training):
    teacher = dropping().train(training)
    teacher[1].train(not training)
    before = copy.deepcopy(teacher.state_dict())
    options = dict(teacher_output="logits", precompute=precompute)
    result = distilled(teacher=teacher, **options)
    assert teacher.training == teacher[2].training == training
    assert teacher[1].training != training
    torch.testing.assert_close(teacher.state_dict(), before, rtol=0, atol=0)
    assert all(p.grad is None and p.requires_grad for p in teacher.parameters())
    same(result.student, distilled(teacher=dropping().eval(), **options).student)


@pytest.mark.parametrize(
    "options", [dict(optimizer="nope"), dict(engine="nope"), dict(clip=-1.0), dict(held_out=[[0]])]
)
def test_a_refusal_gives_the_teacher_back_too(options):
    teacher = dropping()
    with pytest.raises(lb.LimbeckError):
        distilled(teacher=teacher, teacher_output="logits", **options)
    assert all(module.training for module in teacher.modules())


def test_hooks_are_taken_off_both_models():
    loss = CE() + lb.losses.hints("layers.0", "layers.0")
    teacher, student = net(2), net(1)
    distilled(student, teacher=teacher, loss=loss)
    for engine in ("nope", "eager"):
        try:
            distilled(student, teacher=teacher, loss=loss, engine=engine, steps=1)
        except lb.ArgumentError:
            assert engine == "nope"
        for model in (teacher, student):
            assert not any(module._forward_hooks for module in model.modules())


def test_importance_weights_multiply_the_losses():
    weight = torch.rand(60, dtype=DOUBLE, generator=torch.Generator().manual_seed(2)) * 3
    student, expected, teacher = net(1), net(1), net(2)
    distilled(
        student, Dataset(X, weight=weight), teacher, schedule="constant", optimizer="sgd", lr=0.3
    )
    data = Dataset(X, seed=3)
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.3)
    for _ in range(20):
        batch = data(7)
        targets = teacher(batch.x).softmax(1).detach()
        losses = -(targets * expected(batch.x).log_softmax(1)).sum(1)
        optimizer.zero_grad()
        (weight[batch.index] * losses).mean().backward()
        optimizer.step()
    torch.testing.assert_close(student.state_dict(), expected.state_dict(), rtol=0, atol=1e-12)


def fall(asynchronous, **options):
    r"""A run into a bad row; on a GPU nobody asks at each step whether all is well."""
    data = X.clone()
    data[40, 0] = 30.0

    def teacher(x):
        return torch.where(x[:, :1] == 30.0, torch.nan, x[:, :3])

    given = settings(steps=80, every=80, teacher_output="logits", precompute=False, **options)
    run = prepare(teacher, net(1), data, CE(), Training(**given))
    run._asynchronous = asynchronous
    with warns_about("non-finite") as caught:
        numbers = [step.number for step in run]
    assert len(caught) == 1
    return run, numbers


def test_a_late_look_finds_the_student_as_it_was_before_the_bad_step():
    (early, steps), (late, more) = fall(False), fall(True)
    same(early.objective.student, late.objective.student)
    assert early.done == late.done == len(steps) < len(more)
    assert str(early.failure) == str(late.failure)


def test_a_bad_step_is_found_before_time_is_up(monkeypatch):
    expected, _ = fall(False)
    clock = SimpleNamespace(monotonic=itertools.count().__next__)  # it ticks when it is looked at
    monkeypatch.setattr(loop, "time", clock)
    late, steps = fall(True, seconds=20)
    assert expected.done < len(steps) < 20
    assert late.stop_reason == expected.stop_reason


@pytest.mark.parametrize("asynchronous", [True, False])
def test_no_checkpoint_is_of_steps_after_a_bad_one(tmp_path, asynchronous):
    options = dict(checkpoint=tmp_path, checkpoint_every=10)
    run, _ = fall(asynchronous, **options)
    about = checkpoints.read(tmp_path).about
    assert about["done"] == run.done < 10
    assert about["stop_reason"] == run.stop_reason


def test_a_run_broken_off_unnoticed_after_a_bad_step_is_saved_as_it_was_before(tmp_path):
    expected, _ = fall(False)
    data = X.clone()
    data[40, 0] = 30.0
    steps = lb.steps(
        lambda x: torch.where(x[:, :1] == 30.0, torch.nan, x[:, :3]), net(1), data, CE(),
        **settings(steps=80, every=80, teacher_output="logits", precompute=False),
        checkpoint=tmp_path,
    )  # fmt: skip
    first = next(steps)
    first.run._asynchronous = True
    for _ in range(20):
        next(steps)
    with warns_about("non-finite"):
        steps.close()
    about = checkpoints.read(tmp_path).about
    assert (about["done"], about["stop_reason"]) == (expected.done, expected.stop_reason)
