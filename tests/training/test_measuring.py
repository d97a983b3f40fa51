r"""A look measures a run and leaves it as it is, also where a measure fails."""

import itertools

import pytest
import torch
from torch import nn

import limbeck as lb
from tests.refusals import refused

X = torch.randn(20, 4, generator=torch.Generator().manual_seed(1))


def taken(**options):
    r"""Three steps of a run, none of which has been looked at."""
    torch.manual_seed(0)
    student = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))
    loss = lb.losses.cross_entropy() + 0.1 * lb.losses.derivative_error(projections=1)
    forms = dict(teacher_output="logits", student_output="logits")
    steps = lb.steps(
        nn.Linear(4, 3), student, X, loss, steps=10, every=5, device="cpu", **forms, **options
    )
    yield from itertools.islice(steps, 3)


def test_losses_are_means_over_the_steps_since_the_last_look():
    losses, terms = [], []
    for step in taken():
        losses.append(step.loss)
        terms.append(step.terms)
        found = step.run.measure()
    assert (step.number, found["step"]) == (3, 3)
    assert found["loss"] == pytest.approx(sum(losses) / 3)
    for name in terms[0]:
        assert found[name] == pytest.approx(sum(each[name] for each in terms) / 3)
    assert set(found) == {"step", "loss", "gradient_norm", *terms[0]}


@pytest.mark.parametrize("fails", [False, True])
def test_modes_generators_and_sums_stay_as_they_were(fails):
    def metric(student):
        assert not any(module.training for module in student.modules())
        student.train()
        return 1 / (not fails)

    for step in taken(held_out=X, metrics={"metric": metric}):
        run = step.run
        before = {name: state.clone() for name, state in run.objective.rng_state().items()}
        sums = run.update.progress.sums.clone()
        run.objective.student[1].eval()
        if fails:
            with pytest.raises(ZeroDivisionError):
                run.measure()
        else:
            assert run.measure()["metric"] == 1
        modes = [module.training for module in run.objective.student.modules()]
        assert modes == [True, True, False]
        torch.testing.assert_close(run.objective.rng_state(), before, rtol=0, atol=0)
        torch.testing.assert_close(run.update.progress.sums, sums, rtol=0, atol=0)
        assert len(before) >= 2  # of the inputs and of the projections


@pytest.mark.parametrize("name", ["cross_entropy", "derivative_error", "loss", "run"])
def test_a_metric_with_the_name_of_another_column_is_refused(name):
    with refused("metrics", name):
        list(taken(metrics={name: lambda student: 1.0}))
