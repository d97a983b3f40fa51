r"""Updates: what a step changes, what it leaves alone, and what a checkpoint must hold of it."""

import copy

import pytest
import torch
from torch import nn

import limbeck as lb
from limbeck.inputs import Dataset
from tests.refusals import refused

DOUBLE = torch.float64
X = torch.randn(60, 4, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))


def net(seed, *sizes):
    generator = torch.Generator().manual_seed(seed)
    return lb.MLP(*(sizes or (4, 6, 3)), hidden="tanh", dtype=DOUBLE, generator=generator)


def take(student, steps=1, **options):
    settings = dict(steps=steps, batch_size=60, device="cpu", engine="eager") | options
    (*_, last) = lb.steps(net(2), student, settings.pop("inputs", X), **settings)
    return last.run


def flat(student):
    return nn.utils.parameters_to_vector(student.parameters()).detach().clone()


def moved(**options):
    r"""How far one step of plain descent at rate 1 goes: the gradient, as it was used."""
    student = net(1)
    before = flat(student)
    update = lb.GradientUpdate("sgd", "constant", lr=1.0, **options)
    run = take(student, update=update)
    return before - flat(student), run


def test_a_step_goes_along_the_gradient_of_the_mean_loss():
    student = net(1)
    loss = -(net(2)(X).softmax(1).detach() * student(X).log_softmax(1)).sum(1).mean()
    loss.backward()
    gradient = torch.cat([p.grad.flatten() for p in student.parameters()])
    step, run = moved()
    torch.testing.assert_close(step, gradient, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(run.update.progress.norm[0], gradient.norm(), rtol=1e-12, atol=0)
    torch.testing.assert_close(run.update.progress.last[-1], loss.detach(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.999])
def test_clipping_shortens_a_long_gradient_and_keeps_its_direction(part):
    whole, _ = moved()
    clipped, run = moved(clip=part * whole.norm().item())
    torch.testing.assert_close(clipped, part * whole, rtol=1e-12, atol=1e-15)
    assert run.update.progress.norm.item() == pytest.approx(whole.norm().item(), rel=1e-12)


@pytest.mark.parametrize("part", [1.001, 50.0])
def test_clipping_leaves_a_short_gradient_alone(part):
    whole, _ = moved()
    clipped, _ = moved(clip=part * whole.norm().item())
    assert torch.equal(clipped, whole)


def test_clipping_survives_a_gradient_of_zero():
    student = net(2)
    before = flat(student)
    run = take(student, clip=0.1, loss="square_error", optimizer="sgd")
    assert run.update.progress.norm.item() < 1e-14
    torch.testing.assert_close(flat(student), before, rtol=0, atol=1e-14)


@pytest.mark.parametrize("clip", [0, -1.0, float("nan"), "1", True])
def test_a_clip_that_is_no_positive_number_is_refused(clip):
    with refused("clip", expected="a number above zero"):
        lb.GradientUpdate(clip=clip)


@pytest.mark.parametrize("rate", [0, -1e-3, float("nan"), float("inf"), "fast", True])
def test_a_rate_that_is_no_positive_number_is_refused(rate):
    with refused("lr", expected="a number above zero"):
        lb.GradientUpdate(lr=rate)


def test_parameters_that_need_no_gradient_stay():
    student = net(1)
    student.layers[0].weight.requires_grad_(False)
    before = copy.deepcopy(student.state_dict())
    take(student, steps=5)
    changed = {k for k, v in student.state_dict().items() if not torch.equal(v, before[k])}
    assert changed == {"layers.0.bias", "layers.1.weight", "layers.1.bias"}


def test_a_student_with_nothing_to_train_is_refused():
    with refused("student", "no parameters that require gradients"):
        take(net(1).requires_grad_(False))


def test_shared_parameters_are_trained_once():
    student = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 3)).double()
    student[2].weight = student[0].weight
    before = student[0].weight.detach().clone()
    take(student, steps=5, student_output="logits")
    assert student[2].weight is student[0].weight
    assert not torch.equal(student[0].weight, before)


def test_no_gradients_are_left_behind():
    for optimizer in ("adam", "rprop"):
        student = net(1)
        take(student, steps=3, optimizer=optimizer)
        assert all(p.grad is None for p in student.parameters())


def test_progress_counts_steps_and_sums_each_term():
    loss = lb.losses.cross_entropy() + 2.0 * lb.losses.square_error()
    student, seen = net(1), []
    for step in lb.steps(
        net(2), student, X, loss, steps=7, batch_size=10, every=100, device="cpu", engine="eager"
    ):
        seen.append([*step.terms.values(), step.loss])
        if step.number == 5:
            break
    progress = step.run.update.progress
    assert progress.done.item() == 5
    sums = torch.tensor(seen, dtype=DOUBLE).sum(0)
    torch.testing.assert_close(progress.sums, sums, rtol=1e-12, atol=0)
    torch.testing.assert_close(sums[2], sums[0] + 2 * sums[1], rtol=1e-12, atol=0)


def hinted():
    return lb.losses.cross_entropy() + lb.losses.hints("layers.0", "layers.0")


def test_what_a_loss_trains_along_is_trained_and_kept_in_the_checkpoint():
    loss = hinted()
    run = take(net(1), steps=5, loss=loss)
    regressor = run.objective.extras[0]
    start = take(net(1), steps=1, loss=hinted(), schedule=lambda t, total: 0 * t)
    assert not torch.equal(regressor.weight, start.objective.extras[0].weight)
    kept = run.update.tensors()
    assert torch.equal(kept["extras.0.weight"], regressor.weight)
    assert "optimizer.extras.0.weight.exp_avg" in kept


def test_an_instance_is_given_what_a_loss_trains_along():
    student = net(1)
    optimizer = torch.optim.Adam(student.parameters(), lr=0.01)
    loss = lb.losses.hints("layers.0", "layers.0", nn.Linear(6, 6))
    for _ in range(2):  # the second time it has them already
        take(student, steps=2, loss=loss, optimizer=optimizer)
    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert len(held) == len(set(map(id, held))) == 6
    assert optimizer.state[loss.regressor.weight]["step"] == 4


class Counting(torch.optim.Optimizer):
    r"""A user's optimizer that keeps numbers, among its state and among its settings."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.3, "calls": 0, "scale": 1.0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["calls"] += 1
            group["scale"] *= 0.9
            for p in group["params"]:
                state = self.state[p]
                state["steps"] = state.get("steps", 0) + 1
                mean = state.setdefault("mean", torch.zeros_like(p))
                mean.lerp_(p.grad, 1 / state["steps"])
                p.sub_(group["lr"] * group["scale"] * mean)


@pytest.mark.parametrize(
    "kind", [Counting, torch.optim.Rprop, torch.optim.ASGD, torch.optim.Adafactor]
)
def test_an_optimizer_that_makes_its_state_late_resumes_bit_for_bit(tmp_path, kind):
    def run(student, steps, **options):
        settings = dict(optimizer=kind(student.parameters()), schedule="constant", batch_size=10)
        take(student, steps, **settings, **options)
        return flat(student)

    expected = run(net(1), 20)
    run(net(1), 8, checkpoint=tmp_path)
    assert torch.equal(run(net(5), 20, checkpoint=tmp_path), expected)


class Recorder:
    r"""An update of the user's own: it needs nothing but the contract."""

    compilable = False

    def bind(self, objective, steps):
        self.objective, self.steps = objective, steps
        self.progress = lb.training.update.Progress(len(objective.terms), objective.device, DOUBLE)

    def step(self, plan, traced):
        with torch.no_grad():
            found = self.objective(plan)
            for p in self.objective.student.parameters():
                p.mul_(0.5)
        self.progress.last.copy_(torch.stack([found[0].mean(), found[0].mean()]))
        self.progress.sums.add_(self.progress.last)
        self.progress.done.add_(1)

    def tensors(self):
        return self.progress.tensors()


def test_an_update_of_the_users_own_takes_the_optimizers_place():
    student = net(1)
    before = flat(student)
    run = take(student, steps=3, update=Recorder())
    assert torch.equal(flat(student), before / 8)
    assert run.history["step"] == [1, 2, 3]
    assert run.stop_reason == "all 3 steps done"


def test_a_dataset_and_a_bare_tensor_give_the_same_step():
    ends = []
    for inputs in (X, Dataset(X)):
        student = net(1)
        take(student, steps=4, batch_size=7, inputs=inputs)
        ends.append(flat(student))
    assert torch.equal(*ends)
