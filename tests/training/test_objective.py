r"""The objective: what is bound, what is drawn, and what is refused before the first step."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from limbeck import losses
from limbeck.arrays import Batch
from limbeck.inputs import Dataset, Function
from limbeck.inputs.base import Inputs
from limbeck.models import MLP
from limbeck.teachers.base import Teacher, as_teacher
from limbeck.training.objective import Objective
from limbeck.training.update import GradientUpdate
from tests.refusals import refused

N, D, CLASSES = 12, 2, 3
X = torch.randn(N, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.arange(N) % CLASSES
CROSS, DERIVATIVE = losses.cross_entropy(), losses.derivative_error()


def net(*sizes: int, seed: int = 0, **kinds) -> MLP:
    g = torch.Generator().manual_seed(seed)
    return MLP(*sizes, hidden="tanh", dtype=torch.float64, generator=g, **kinds)


def objective(loss=CROSS, teacher="net", student=None, inputs=None, **options) -> Objective:
    teacher = net(D, 5, CLASSES) if teacher == "net" else teacher
    student = net(D, 4, CLASSES, seed=1) if student is None else student
    inputs = Dataset(X) if inputs is None else inputs
    return Objective(as_teacher(teacher), student, inputs, loss, **options)


# what it is a function of


def test_its_parameters_are_the_students_and_never_the_teachers() -> None:
    bound = objective()
    names = {name for name, _ in bound.named_parameters()}
    assert names == {f"student.{name}" for name, _ in bound.student.named_parameters()}
    assert names == set(bound.state_dict())


def test_it_is_a_pure_function_of_the_plan_and_the_parameters() -> None:
    loss = CROSS + losses.derivative_error(projections=1) + losses.directional_error("random")
    bound = objective(loss, inputs=Dataset(X, replace=True))
    plan = bound.draw(5)
    first, second = bound(plan), bound(plan)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    parameters = {name: 2 * p.detach() for name, p in bound.named_parameters()}
    moved = functional_call(bound, parameters, (plan,))
    assert not any(torch.allclose(a, b) for a, b in zip(first, moved, strict=True))
    again = bound(plan)  # the student is as it was
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_draws_differ_by_step_and_by_seed_and_agree_for_equal_seeds() -> None:
    loss = losses.derivative_error(projections=1)

    def signs(seed: int) -> list[Tensor]:
        bound = objective(loss, seed=seed)
        return [bound.draw(8)["loss"][0] for _ in range(2)]

    first, second = signs(0)
    assert not torch.equal(first, second)
    assert all(torch.equal(a, b) for a, b in zip(signs(0), (first, second), strict=True))
    assert not torch.equal(signs(1)[0], first)


def test_draws_go_on_from_a_saved_state() -> None:
    bound = objective(losses.derivative_error(projections=2) + losses.directional_error("random"))
    bound.draw(5)
    state = {name: value.clone() for name, value in bound.rng_state().items()}
    one = bound.draw(5)
    bound.load_rng_state(state)
    other = bound.draw(5)
    assert torch.equal(one["inputs"], other["inputs"])
    assert torch.equal(one["loss"][0], other["loss"][0])
    assert torch.equal(one["loss"][1][""], other["loss"][1][""])


def test_the_gradient_by_transforms_is_that_by_autograd() -> None:
    bound = objective(CROSS + 0.1 * losses.derivative_error(weight="teacher"))
    plan = bound.draw(5)
    leaves = {name: p.detach() for name, p in bound.named_parameters()}
    found = grad(lambda p: bound.total(functional_call(bound, p, (plan,))).mean())(leaves)
    bound.total(bound(plan)).mean().backward()
    for name, parameter in bound.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad)


def test_a_step_changes_the_student_and_leaves_the_teacher() -> None:
    bound, update = objective(CROSS + DERIVATIVE), GradientUpdate(lr=0.1)
    teacher, student = bound.teacher.source, bound.student
    before = [p.detach().clone() for model in (teacher, student) for p in model.parameters()]
    update.bind(bound, 1)
    update.step(bound.draw(5), traced=False)
    after = [p for model in (teacher, student) for p in model.parameters()]
    same = [torch.equal(a, b) for a, b in zip(before, after, strict=True)]
    assert same == [True] * 4 + [False] * 4
    assert all(p.grad is None for p in teacher.parameters())


def test_the_present_loss_of_any_batch_is_that_of_a_step_without_weights() -> None:
    weight = torch.rand(N, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    bound = objective(CROSS + 2 * DERIVATIVE, inputs=Dataset(X, weight=weight))
    plan = bound.draw(5)
    rows, found = plan["inputs"], bound.at(bound.batch(plan))
    assert not found.requires_grad
    torch.testing.assert_close(weight[rows] * found, bound.total(bound(plan)).detach())


def test_inputs_are_told_how_to_ask_for_the_present_loss() -> None:
    class Curious(Inputs):
        def bind(self, loss_of) -> None:
            self.loss_of = loss_of

        def draw(self, n: int) -> Tensor:
            return X[:n]

        def build(self, drawn: Tensor) -> Batch:
            return Batch(drawn)

    inputs = Curious()
    bound = objective(inputs=inputs)
    assert torch.equal(inputs.loss_of(Batch(X)), bound.at(Batch(X)))


def test_looking_at_a_student_leaves_it_and_the_inputs_as_they_were() -> None:
    torch.manual_seed(0)
    student = nn.Sequential(nn.Linear(D, 4), nn.BatchNorm1d(4), nn.Linear(4, CLASSES)).double()
    before = {name: value.clone() for name, value in student.state_dict().items()}
    inputs = Dataset(X)
    bound = objective(student=student, inputs=inputs, student_output="logits")
    bound.at(Batch(X))
    assert all(torch.equal(before[name], value) for name, value in student.state_dict().items())
    assert all(module.training for module in student.modules())
    assert torch.equal(inputs.draw(5), Dataset(X).draw(5))


# the outputs of the student


@pytest.mark.parametrize(
    ("student", "output", "argument", "received", "expected"),
    [
        (
            nn.Linear(D, CLASSES).double(),
            "auto",
            "student_output",
            "outputs that could be",
            'student_output="logits"',
        ),
        (None, "logit", "student_output", "'logit'", "did you mean 'logits'"),
        (None, "values", "student_output", "'values'", ""),
        (None, "probabilities", "student_output", "outputs between", ""),
        (None, "log_probabilities", "student_output", "outputs between", ""),
        (net(D, 4), "auto", "student", "4 outputs where the teacher has 3", ""),
        (net(D, 1), "auto", "student", "2 outputs where the teacher has 3", ""),
        (nn.LSTM(D, CLASSES).double(), "logits", "student", "outputs of type tuple", ""),
        (
            nn.Flatten(0),
            "logits",
            "student",
            r"outputs of shape \(16,\) for 8 inputs",
            "",
        ),
    ],
)
def test_a_students_outputs_that_do_not_fit_are_refused(
    student, output, argument, received, expected
) -> None:
    with refused(argument, received, expected=expected):
        objective(student=student, student_output=output)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("loss", [CROSS, losses.kl()], ids=repr)
def test_a_student_that_starts_with_nan_or_infinity_is_refused(loss, bad) -> None:
    student = net(D, CLASSES if loss is CROSS else 1)
    nn.init.constant_(student.layers[0].bias, bad)
    output = "logits" if loss is CROSS else "log_density"
    with refused("student", "outputs with NaN or infinity"):
        objective(loss, student=student, student_output=output)


LOSSES = [losses.square_error(), CROSS, losses.logit_error(), DERIVATIVE]


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_every_loss_refuses_other_numbers_of_outputs(loss) -> None:
    with refused("student", "4 outputs where the teacher has 3"):
        objective(loss, student=net(D, 5, 4))


# the inputs


@pytest.mark.parametrize(
    ("student", "x", "argument", "received", "expected"),
    [
        (
            nn.Linear(30, 3),
            torch.zeros(9, 20),
            "student",
            r"inputs \(8, 20\) of torch.float32",
            "",
        ),
        (
            MLP(30, 3),
            torch.zeros(9, 20),
            "student",
            r"x: expected shape \(n, 30\).*, got shape \(8, 20\)",
            "",
        ),
        (
            nn.Linear(20, 3),
            torch.zeros(9, 20).double(),
            "inputs",
            "torch.float64",
            "float32",
        ),
        (
            nn.Linear(20, 3),
            torch.zeros(9, 20).half(),
            "inputs",
            "torch.float16",
            "float32",
        ),
    ],
)
def test_inputs_that_do_not_fit_the_student_are_named(
    student, x, argument, received, expected
) -> None:
    def teacher(x: Tensor) -> Tensor:
        return x[:, :3].softmax(1)

    with refused(argument, received, expected=expected):
        objective(teacher=teacher, student=student, inputs=Dataset(x), student_output="logits")


LABELS = losses.label_square_error()


class ByAge(nn.Linear):
    def forward(self, x: dict[str, Tensor]) -> Tensor:
        return super().forward(x["age"][:, None])


def test_parts_of_a_table_are_named_too() -> None:
    table = {"town": torch.arange(N), "age": torch.zeros(N)}
    student = ByAge(1, 3).double()
    with refused("inputs['age']", "torch.float32"):
        objective(teacher=None, student=student, inputs=Dataset(table, Y), loss=LABELS)
    with refused("student", r"inputs town \(8,\) of torch.int64, age"):
        objective(teacher=None, student=ByAge(2, 3), inputs=Dataset(table, Y), loss=LABELS)


def test_a_table_with_a_plain_number_has_derivatives() -> None:
    age = torch.linspace(-1, 1, N).double()
    loss = losses.derivative_error("plain")
    student = ByAge(1, 2).double()
    bound = objective(
        loss,
        lambda x: torch.stack([x["age"].sin(), x["age"] * x["town"]], 1),
        student,
        Dataset({"town": torch.arange(N), "age": age}),
    )
    slopes = torch.stack([age.cos(), torch.arange(N).double()], 1)
    expected = (student.weight[:, 0] - slopes).square().mean(1) / 2
    found = bound.at(Batch({"town": torch.arange(N), "age": age}))
    torch.testing.assert_close(found, expected.detach())


# teachers and labels that are missing


@pytest.mark.parametrize(
    "loss",
    [*LOSSES, losses.directional_error("random"), losses.hints("a", "b"), losses.score_matching()],
    ids=repr,
)
def test_a_loss_that_compares_with_a_teacher_needs_one(loss) -> None:
    with refused("teacher", "None") as e:
        objective(0.5 * loss, teacher=None)
    assert repr(loss) in str(e.value)


def test_losses_without_a_teacher_never_ask_it() -> None:
    def fails(x: Tensor) -> Tensor:
        raise AssertionError("asked")

    loss = losses.label_cross_entropy() + losses.directional_error("random", 0.0)
    for teacher in (None, Teacher(fails)):
        bound = objective(loss, teacher, inputs=Dataset(X, Y))
        assert len(bound(bound.draw(5))) == 2
        assert bound.at(Batch(X, Y)).shape == (N,)


@pytest.mark.parametrize("name", ["label_cross_entropy", "label_square_error"])
def test_missing_labels_are_named(name) -> None:
    with refused("inputs", "no labels"):
        objective(getattr(losses, name)(), teacher=None)


# batch normalisation


@pytest.mark.parametrize(
    "loss",
    [DERIVATIVE, losses.derivative_error(projections=1), losses.directional_error("random", 0.0)],
    ids=repr,
)
def test_students_that_mix_examples_are_refused_with_derivative_losses(loss) -> None:
    torch.manual_seed(0)
    student = nn.Sequential(nn.Linear(D, 4), nn.BatchNorm1d(4), nn.Linear(4, CLASSES)).double()
    with refused("student", "the layer '1', which mixes", expected=r"LayerNorm, or .*eval\(\)"):
        objective(CROSS + loss, student=student, student_output="logits")
    objective(CROSS, student=student, student_output="logits")
    student[1].eval()
    objective(CROSS + loss, student=student, student_output="logits")


# sources of inputs


def test_any_number_of_inputs_serves_for_a_look() -> None:
    for n in (1, 3):
        bound = objective(DERIVATIVE, inputs=Dataset(X[:n]))
        assert bound(bound.draw(n))[0].shape == (n,)
    bound = objective(DERIVATIVE, inputs=Function(lambda n: X.new_ones(n, D)))
    assert bound(bound.draw(50))[0].shape == (50,)


def test_a_student_without_parameters_takes_the_type_of_its_inputs() -> None:
    bound = objective(student=nn.Softmax(1), teacher=lambda x: x.softmax(1), loss=DERIVATIVE)
    torch.testing.assert_close(bound.at(Batch(X)), torch.zeros(N).double())


# what a student's outputs are, in the light of the teacher's


def test_a_net_that_ends_in_a_linear_layer_gives_values_beside_a_teacher_of_values() -> None:
    bound = objective(losses.square_error(), Teacher(lambda x: x.sum(1), "values"), net(D, 4, 1))
    plan = bound.draw(5)
    x = bound.batch(plan).x
    by_hand = (bound.student(x)[:, 0] - x.sum(1)).square() / 2
    assert torch.allclose(bound(plan)[0], by_hand)


def test_a_net_on_labels_of_a_regression_gives_values() -> None:
    bound = objective(losses.label_square_error(), None, net(D, 4, 1), Dataset(X, X.sum(1)))
    plan = bound.draw(5)
    batch = bound.batch(plan)
    by_hand = (bound.student(batch.x)[:, 0] - batch.y).square() / 2
    assert torch.allclose(bound(plan)[0], by_hand)


def test_what_the_user_says_of_the_student_stands() -> None:
    teacher = Teacher(lambda x: x, "values")
    bound = objective(losses.square_error(), teacher, net(D, 4, D), student_output="logits")
    assert bound.form == "logits"


def test_a_student_of_unknown_outputs_is_refused_beside_a_teacher_of_probabilities() -> None:
    teacher = Teacher(lambda x: torch.softmax(x, 1), "probabilities")
    with refused("student_output", "outputs that could be logits"):
        objective(losses.square_error(), teacher, nn.Linear(D, D).double())


def test_a_teacher_that_draws_is_inexact_unless_it_says_otherwise() -> None:
    assert not Teacher(lambda x, w: x, "values", draw=torch.zeros).exact
    assert Teacher(lambda x, w: x, "values", draw=torch.zeros, exact=True).exact
    assert Teacher(lambda x: x, "values").exact
