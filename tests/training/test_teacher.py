r"""Teachers: what serves as one, what its outputs are, and what is refused with the reason."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from torch import Tensor, distributions, nn

from limbeck import losses
from limbeck.arrays import Batch
from limbeck.errors import NotDifferentiableError
from limbeck.inputs import Dataset
from limbeck.models import MLP, Ensemble
from limbeck.teachers.base import Opaque, Teacher, as_teacher
from limbeck.teachers.stored import Stored
from limbeck.training.objective import Objective
from tests.refusals import raises_about, refused

N, D, CLASSES = 12, 2, 3
X = torch.randn(N, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
LABELS = np.arange(N) % CLASSES
DERIVATIVES = [losses.derivative_error(), losses.directional_error(torch.ones(D))]


def net(*sizes: int, seed: int = 0, **kinds) -> MLP:
    g = torch.Generator().manual_seed(seed)
    return MLP(*sizes, hidden="tanh", dtype=torch.float64, generator=g, **kinds)


def objective(teacher, loss=None, student=None, output: str = "auto") -> Objective:
    student = student or net(D, 4, CLASSES, seed=1)
    return Objective(
        as_teacher(teacher, output), student, Dataset(X), loss or losses.cross_entropy()
    )


def cross_entropy(p: Tensor, student: nn.Module, x: Tensor) -> Tensor:
    return -(p * student(x).log_softmax(1)).sum(1)


# what serves as a teacher


def test_a_teacher_passes_through_and_none_serves_losses_without_one() -> None:
    teacher = Teacher(lambda x: x)
    assert as_teacher(teacher) is teacher
    assert as_teacher(None).source is None


def test_what_cannot_teach_is_refused() -> None:
    for value in (3, "resnet", [net(2, 3)], X):
        name = type(value).__name__
        with refused("teacher", f"an object of type {name}"):
            as_teacher(value)


LOGITS = net(D, 5, CLASSES)


@pytest.mark.parametrize(
    ("teacher", "output", "form"),
    [
        (LOGITS, "auto", "logits"),
        (net(D, 5, CLASSES, output="softmax"), "auto", "probabilities"),
        (Ensemble([LOGITS, LOGITS]), "auto", "probabilities"),
        (lambda x: LOGITS(x), "logits", "logits"),
        (lambda x: LOGITS(x).softmax(1), "auto", "probabilities"),
        (lambda x: LOGITS(x).log_softmax(1), "auto", "log_probabilities"),
        (lambda x: LOGITS(x).softmax(1), "probabilities", "probabilities"),
    ],
)
def test_forms_are_said_recognised_or_asked_of_the_model(teacher, output, form) -> None:
    bound = objective(teacher, output=output)
    assert bound.teacher.form == form
    expected = cross_entropy(LOGITS(X).softmax(1), bound.student, X)
    torch.testing.assert_close(bound.at(Batch(X)), expected)


def test_log_probabilities_may_be_minus_infinity() -> None:
    certain = torch.tensor([[0.0, -math.inf, -math.inf]], dtype=torch.float64).expand(N, CLASSES)
    for output in ("auto", "log_probabilities"):
        bound = objective(lambda x: certain[: len(x)], output=output)
        assert bound.teacher.form == "log_probabilities"
        expected = -bound.student(X).log_softmax(1)[:, 0]
        torch.testing.assert_close(bound.at(Batch(X)), expected)


# what its outputs must be


@pytest.mark.parametrize(
    "teacher", [lambda x: LOGITS(x), nn.Linear(D, CLASSES).double()], ids=["function", "module"]
)
def test_ambiguous_outputs_are_refused_with_what_to_say(teacher) -> None:
    with refused(
        "teacher_output",
        "outputs that could be logits or plain values",
        expected='teacher_output="logits", "probabilities" or "log_probabilities"',
    ):
        objective(teacher)
    objective(teacher, output="logits")
    # where it makes no difference, nothing needs to be said
    student = net(D, 4, CLASSES, output_form="values")
    assert objective(teacher, losses.square_error(), student).teacher.form == "values"


@pytest.mark.parametrize(
    ("teacher", "output", "argument", "received", "expected"),
    [
        (LOGITS, "logit", "output", "'logit'", "did you mean 'logits'"),
        (LOGITS, "values", "teacher_output", "'values'", ""),
        (LOGITS, "log_density", "teacher_output", "'log_density'", ""),
        (
            lambda x: 5 * x[:, [0, 1, 1]],
            "probabilities",
            "teacher_output",
            "outputs between -",
            "",
        ),
        (
            lambda x: x[:, [0, 1, 1]] * 0 + 0.2,
            "probabilities",
            "teacher_output",
            "a row of outputs that sums to 0.6",
            "",
        ),
        (
            lambda x: x[:, [0, 1, 1]],
            "log_probabilities",
            "teacher_output",
            "outputs between",
            "",
        ),
        (
            lambda x: -(x[:, [0, 1, 1]] ** 2),
            "log_probabilities",
            "teacher_output",
            "a row of outputs that sums to",
            "",
        ),
        (
            lambda x: x[:, [0, 1, 1]] / 0,
            "logits",
            "teacher",
            "outputs with NaN or infinity",
            "",
        ),
        (
            lambda x: x[:, [0, 1, 1]] * math.nan,
            "logits",
            "teacher",
            "outputs with NaN",
            "",
        ),
        (
            lambda x: x[:, [0, 1, 1]] * math.nan,
            "probabilities",
            "teacher",
            "outputs with NaN",
            "",
        ),
        (
            lambda x: x[:, [0, 1, 1]] * math.nan,
            "log_probabilities",
            "teacher",
            "outputs with",
            "",
        ),
        (
            lambda x: x[:, [0, 1, 1]] * math.nan,
            "auto",
            "teacher",
            "outputs with NaN",
            "",
        ),
        (
            lambda x: (LOGITS(x), 1),
            "logits",
            "teacher",
            "outputs of type tuple",
            "",
        ),
        (
            lambda x: LOGITS(x).detach().numpy(),
            "logits",
            "teacher",
            "outputs of type ndarray",
            "",
        ),
        (
            lambda x: LOGITS(x).sum(),
            "logits",
            "teacher",
            r"outputs of shape \(\) for 8 inputs",
            "",
        ),
        (
            lambda x: LOGITS(x).T,
            "logits",
            "teacher",
            r"outputs of shape \(3, 8\) for 8 inputs",
            "",
        ),
        (
            net(D, 5, 4),
            "auto",
            "student",
            "3 outputs where the teacher has 4",
            "",
        ),
        (
            net(D, 5, 1),
            "auto",
            "student",
            "3 outputs where the teacher has 2",
            "",
        ),
    ],
)
def test_outputs_that_do_not_fit_are_refused(teacher, output, argument, received, expected) -> None:
    with refused(argument, received, expected=expected):
        objective(teacher, output=output)


@pytest.mark.parametrize(
    ("module", "received"),
    [
        (
            nn.Linear(3, 3).double(),
            r"inputs \(8, 2\) of torch.float64.*cannot be mult",
        ),
        (
            nn.Linear(2, 3),
            r"inputs \(8, 2\) of torch.float64.*same dtype",
        ),
    ],
)
def test_inputs_that_a_teacher_fails_on_are_named(module, received) -> None:
    with refused("teacher", received):
        objective(module, output="logits")


# derivatives


@pytest.mark.parametrize("loss", DERIVATIVES, ids=repr)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: LOGITS(x).softmax(1).detach(),
        lambda x: torch.eye(CLASSES, dtype=torch.float64)[LOGITS(x).argmax(1)],
        lambda x: torch.tensor(LOGITS(torch.tensor(x.numpy())).softmax(1).tolist()).double(),
    ],
    ids=["detached", "argmax", "numpy"],
)
def test_derivative_losses_refuse_teachers_without_derivatives(function, loss) -> None:
    with pytest.raises(NotDifferentiableError, match=r"needs input derivatives.*has none") as e:
        objective(function, loss)
    assert repr(loss) in str(e.value)
    assert "Use a loss on values" in str(e.value)
    objective(function, losses.cross_entropy())


@pytest.mark.parametrize("training", [True, False])
def test_a_teacher_is_frozen_while_it_teaches_and_given_back_as_it_came(training) -> None:
    module = nn.Sequential(nn.Linear(D, 5), nn.Dropout(), nn.BatchNorm1d(5), nn.Softmax(1))
    module = module.double().train(training)
    module[1].eval()
    modes = [m.training for m in module.modules()]
    before = {name: value.clone() for name, value in module.state_dict().items()}
    teacher = as_teacher(module)
    teacher.to(torch.device("cpu"))
    assert not any(m.training for m in module.modules())
    bound = Objective(teacher, net(D, 4, 5), Dataset(X), losses.cross_entropy())
    bound(bound.draw(5))
    bound.release()
    assert [m.training for m in module.modules()] == modes
    assert all(p.grad is None for p in module.parameters())
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert not {id(p) for p in bound.parameters()} & {id(p) for p in module.parameters()}


# live teachers


def test_a_live_teacher_gets_its_draws() -> None:
    generator, asked = torch.Generator().manual_seed(0), []

    def draw(n: int) -> dict[str, Tensor]:
        asked.append(n)
        return {"w": torch.randn(D, CLASSES, dtype=torch.float64, generator=generator)}

    teacher = Teacher(lambda x, drawn: (x @ drawn["w"]).softmax(1), exact=False, draw=draw)
    bound = objective(teacher, losses.cross_entropy() + losses.derivative_error(weight="teacher"))
    asked.clear()
    plans = [bound.draw(5), bound.draw(4)]
    assert asked == [5, 4]
    assert not torch.equal(plans[0]["teacher"]["w"], plans[1]["teacher"]["w"])
    for plan in plans:
        x = X[plan["inputs"]]
        values, derivatives = bound(plan)
        p = (x @ plan["teacher"]["w"]).softmax(1)
        torch.testing.assert_close(values, cross_entropy(p, bound.student, x))
        fixed = objective(lambda x, w=plan["teacher"]["w"]: (x @ w).softmax(1), bound.loss)
        torch.testing.assert_close(derivatives, fixed({**plan, "teacher": None})[1])


def test_a_live_teacher_that_is_a_module_keeps_its_state_in_checkpoints() -> None:
    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("at", torch.zeros(D, CLASSES, dtype=torch.float64))

        def draw(self, n: int) -> Tensor:
            self.at += 1
            return self.at.clone()

        def forward(self, x: Tensor, w: Tensor) -> Tensor:
            return (x @ w).softmax(1)

    chain = Chain()
    bound = objective(Teacher(chain, "probabilities", exact=False, draw=chain.draw))
    state = {name: value.clone() for name, value in bound.rng_state().items()}
    after = bound.draw(5)
    bound.load_rng_state(state)
    again = bound.draw(5)
    assert torch.equal(after["teacher"], again["teacher"])
    assert torch.equal(after["inputs"], again["inputs"])
    assert Teacher(chain).state_dict() == {}  # without draws there is nothing that moves


# teachers outside torch


def forest() -> RandomForestClassifier:
    return RandomForestClassifier(5, random_state=0).fit(X.numpy(), LABELS)


def test_a_forest_teaches_its_probabilities() -> None:
    model = forest()
    bound = objective(model)
    assert isinstance(bound.teacher, Opaque)
    p = torch.tensor(model.predict_proba(X.numpy()))
    torch.testing.assert_close(bound.at(Batch(X)), cross_entropy(p, bound.student, X))
    plan = bound.draw(5)  # it is asked here, outside the step
    torch.testing.assert_close(plan["teacher"], p[plan["inputs"]], rtol=1e-12, atol=1e-14)
    bound.teacher.function = None  # so the step cannot ask it again
    expected = cross_entropy(p[plan["inputs"]], bound.student, X[plan["inputs"]])
    torch.testing.assert_close(bound(plan)[0], expected)


@pytest.mark.parametrize("loss", DERIVATIVES, ids=repr)
def test_a_forest_is_refused_with_derivative_losses(loss) -> None:
    with raises_about(NotDifferentiableError, "teacher", "RandomForestClassifier"):
        objective(forest(), losses.cross_entropy() + loss)


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_regression_estimator_teaches_its_values(outputs) -> None:
    targets = X.numpy()[:, :outputs] ** 2
    model = RandomForestRegressor(3, random_state=0).fit(X.numpy(), np.squeeze(targets))
    student = net(D, 4, outputs, output_form="values")
    bound = objective(model, losses.square_error(), student)
    assert bound.teacher.form == "values"
    t = torch.tensor(model.predict(X.numpy())).reshape(N, outputs)
    torch.testing.assert_close(bound.at(Batch(X)), (student(X) - t).square().sum(1) / 2)
    with refused("teacher_output", "'values'"):
        objective(model, losses.cross_entropy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_arrays_become_tensors_of_the_inputs_type(dtype) -> None:
    seen = []

    def function(x: np.ndarray) -> np.ndarray:
        seen.append(x)
        return x[:, 0] > 0

    teacher = Opaque(function, "values")
    found = teacher.prepare(Batch(X.to(dtype)))
    assert isinstance(seen[0], np.ndarray)
    assert found.dtype == dtype
    assert torch.equal(found, (X[:, 0] > 0).to(dtype))
    assert repr(teacher) == "the teacher (function)"


def test_a_table_reaches_an_opaque_teacher_as_arrays() -> None:
    table = {"town": torch.arange(3), "age": torch.tensor([1.0, 2.0, 3.0])}
    teacher = Opaque(lambda x: x["town"] + x["age"], "values")
    assert teacher.prepare(Batch(table)).tolist() == [1.0, 3.0, 5.0]


@pytest.mark.parametrize(
    ("function", "shape"),
    [(lambda x: x[:5], r"\(5, 2\)"), (lambda x: x[:, :, None], r"\(8, 2, 1\)"), (np.sum, r"\(\)")],
)
def test_arrays_of_the_wrong_shape_are_refused(function, shape) -> None:
    with refused("teacher", rf"\(8,\) or \(8, K\), got outputs of shape {shape} for 8 rows"):
        objective(Opaque(function, "values"), losses.square_error())


# densities


class Energy(nn.Module):
    r"""A density without forward, as a Boltzmann machine has."""

    def log_unnormalized(self, x: Tensor) -> Tensor:
        return -(x**4).sum(1) / 4


class PlainEnergy:
    log_unnormalized = Energy.log_unnormalized


class Gaussian(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(D, dtype=torch.float64))

    def log_prob(self, x: Tensor) -> Tensor:
        return -(x - self.mean).square().sum(1) / 2


DENSITIES = {
    "module": Energy(),
    "object": PlainEnergy(),
    "function": lambda x: -(x**4).sum(1) / 4,
}


@pytest.mark.parametrize("name", DENSITIES)
def test_a_density_teaches_values_and_scores_in_any_guise(name) -> None:
    bound = objective(DENSITIES[name], losses.log_density_error(1.0), Gaussian())
    assert bound.teacher.form == bound.form == "log_density"
    log_f, log_p = -X.square().sum(1) / 2, -(X**4).sum(1) / 4
    torch.testing.assert_close(bound.at(Batch(X)), (log_f - log_p + 1).square() / 2)
    scores = objective(DENSITIES[name], losses.score_matching(), Gaussian()).at(Batch(X))
    torch.testing.assert_close(scores, (X**3 - X).square().sum(1) / 2)


def test_a_distribution_of_torch_serves_as_a_density() -> None:
    mean = torch.ones(D, dtype=torch.float64)
    teacher = distributions.MultivariateNormal(mean, torch.eye(D, dtype=torch.float64))
    found = objective(teacher, losses.score_matching(), Gaussian()).at(Batch(X))
    torch.testing.assert_close(found, torch.ones(N).double())


def test_predictions_are_not_taken_for_log_densities() -> None:
    with refused("teacher_output", "'logits'"):
        objective(net(D, 1), losses.score_matching(), Gaussian())
    with refused("student_output", "'logits'"):
        objective(None, losses.kl(), net(D, 1))


def test_what_is_written_of_a_teacher_names_it() -> None:
    assert repr(as_teacher(LOGITS)) == "the teacher (MLP)"
    assert repr(as_teacher(forest())) == "the teacher (RandomForestClassifier)"
    assert repr(Stored(X)) == "the teacher (stored targets)"
