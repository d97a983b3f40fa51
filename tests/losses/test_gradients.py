r"""Gradients with respect to the student's parameters, against finite differences."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from limbeck import losses
from limbeck.inputs import Dataset
from limbeck.models import MLP
from limbeck.teachers.base import as_teacher
from limbeck.training.objective import Objective
from limbeck.training.update import GradientUpdate

N, D = 4, 2
STEP = 1e-5
X = torch.randn(N, D, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
ONE = torch.tensor([0.6, -1.1], dtype=torch.float64)
SEVERAL = torch.tensor([[1.0, 0.5], [-0.3, 2.0]], dtype=torch.float64)
DIRECTIONS = {"one": ONE, "several": SEVERAL, "function": torch.sin, "random": "random"}


def net(*sizes: int, seed: int = 3, **kinds: str) -> MLP:
    g = torch.Generator().manual_seed(seed)
    made = MLP(*sizes, dtype=torch.float64, generator=g, **kinds)
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.8, generator=g)
    return made


class Gaussian(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.tensor([0.3, -0.4], dtype=torch.float64))
        self.log_scale = nn.Parameter(torch.tensor([0.2, -0.1], dtype=torch.float64))

    def log_prob(self, x: Tensor) -> Tensor:
        z = (x - self.mean) * (-self.log_scale).exp()
        return -(z.square() / 2 + self.log_scale).sum(1) - D / 2 * torch.log(torch.tensor(6.283))


class Quartic(nn.Module):
    r"""A density without its normalising constant."""

    def log_unnormalized(self, x: Tensor) -> Tensor:
        return -(x**4).sum(1) / 4 + x[:, 0] * x[:, 1]


def agree(loss, student: nn.Module, teacher=None, y: Tensor | None = None) -> None:
    r"""The gradient as the update takes it, against central differences of the mean loss."""
    objective = Objective(as_teacher(teacher), student, Dataset(X, y), loss)
    plan = objective.draw(N)
    update = GradientUpdate()
    update.bind(objective, 1)
    gradients, means, _ = update.gradient(plan)

    def mean_loss() -> Tensor:
        return objective.total(objective(plan)).mean()

    expected = {}
    with torch.no_grad():
        torch.testing.assert_close(means[-1], mean_loss())
        for name, parameter in update.parameters.items():
            differences, flat = [], parameter.view(-1)
            for i, value in enumerate(flat.tolist()):
                flat[i] = value + STEP
                above = mean_loss()
                flat[i] = value - STEP
                differences.append((above - mean_loss()) / (2 * STEP))
                flat[i] = value
            expected[name] = torch.stack(differences).reshape(parameter.shape)
    found = torch.cat([gradients[name].flatten() for name in expected])
    wanted = torch.cat([each.flatten() for each in expected.values()])
    assert found.norm() > 1e-3  # or there is nothing to compare
    assert (found - wanted).norm() < 1e-6 * wanted.norm()


DERIVATIVES = [
    losses.derivative_error(domain, weight, projections)
    for domain in ("log", "plain")
    for weight in ("uniform", "teacher")
    for projections in (None, 1, 2)
]
PREDICTIONS = [
    losses.square_error(),
    losses.cross_entropy(),
    losses.cross_entropy(temperature=3),
    losses.logit_error(),
    *DERIVATIVES,
    losses.cross_entropy() + 0.1 * losses.derivative_error(weight="teacher", projections=1),
]


@pytest.mark.parametrize("loss", PREDICTIONS, ids=repr)
def test_every_loss_on_predictions_has_the_gradient_of_its_value(loss) -> None:
    agree(loss, net(D, 4, 3, hidden="tanh"), net(D, 5, 3, seed=4, hidden="tanh", output="softmax"))


@pytest.mark.parametrize("domain", ["log", "plain"])
@pytest.mark.parametrize("targets", ["teacher", 0.0])
@pytest.mark.parametrize("directions", DIRECTIONS)
def test_directional_errors_have_the_gradient_of_their_value(directions, targets, domain) -> None:
    loss = losses.directional_error(DIRECTIONS[directions], targets, domain)
    teacher = net(D, 5, 3, seed=4, hidden="tanh")
    agree(loss, net(D, 4, 3, hidden="tanh"), teacher if targets == "teacher" else None)


@pytest.mark.parametrize(
    ("loss", "y"),
    [
        (losses.label_cross_entropy(), torch.tensor([0, 2, 1, 2])),
        (losses.label_cross_entropy(), torch.eye(3, dtype=torch.float64)[[0, 0, 1, 2]] * 0.7 + 0.1),
        (losses.label_square_error(), SEVERAL.sum() + torch.arange(12.0).reshape(4, 3).double()),
    ],
    ids=["numbers", "probabilities", "values"],
)
def test_losses_on_labels_have_the_gradient_of_their_value(loss, y) -> None:
    agree(loss, net(D, 4, 3, hidden="tanh"), y=y)


@pytest.mark.parametrize(
    "loss", [losses.kl(), losses.log_density_error(c=-1.5), losses.score_matching()], ids=repr
)
def test_losses_on_densities_have_the_gradient_of_their_value(loss) -> None:
    agree(loss, Gaussian(), Quartic())


@pytest.mark.parametrize("regressor", [None, nn.Sequential(nn.Linear(4, 5), nn.Tanh())])
def test_hints_have_the_gradient_of_their_value_and_train_the_regressor_along(regressor) -> None:
    loss = losses.hints("layers.0", "layers.0", regressor)
    agree(loss + losses.cross_entropy(), net(D, 4, 3, hidden="tanh"), net(D, 5, 3, hidden="tanh"))


ONE_OF_EACH = [
    losses.cross_entropy(temperature=3),
    losses.derivative_error("log", "teacher"),
    losses.derivative_error("plain", "uniform", projections=2),
    losses.directional_error(ONE, domain="log"),
]


@pytest.mark.parametrize("loss", ONE_OF_EACH, ids=repr)
@pytest.mark.parametrize("hidden", ["linear", "relu", "tanh", "logistic", "probit"])
def test_every_kind_of_hidden_layer_has_the_gradient_of_the_loss(hidden, loss) -> None:
    student = net(D, 4, 3, seed=11, hidden=hidden)
    assert student.layers[0](X).abs().min() > 0.1  # far from the kinks of relu
    agree(loss, student, net(D, 5, 3, seed=4, hidden="tanh", output="softmax"))


ON_OUTPUTS = [
    losses.square_error(),
    losses.cross_entropy(),
    losses.logit_error(),
    losses.derivative_error("log", "uniform"),
    losses.derivative_error("log", "teacher", projections=1),
    losses.derivative_error("plain", "teacher"),
    losses.directional_error(SEVERAL, domain="log"),
    losses.directional_error("random"),
]


@pytest.mark.parametrize("loss", ON_OUTPUTS, ids=repr)
@pytest.mark.parametrize(
    ("output", "count"),
    [
        ("linear", 2),
        ("softmax", 2),
        ("log_softmax", 2),
        ("linear", 1),
        ("logistic", 1),
        ("probit", 1),
    ],
)
def test_every_kind_of_output_layer_has_the_gradient_of_the_loss(output, count, loss) -> None:
    teacher = net(D, 5, 2, seed=4, hidden="tanh", output="log_softmax")
    agree(loss, net(D, 3, count, hidden="tanh", output=output), teacher)


@pytest.mark.parametrize("loss", ["square_error", "label", "plain", "directional"])
@pytest.mark.parametrize("output", ["linear", "logistic", "tanh"])
def test_regression_has_the_gradient_of_the_loss(output, loss) -> None:
    made = {
        "square_error": losses.square_error(),
        "label": losses.label_square_error(),
        "plain": losses.derivative_error("plain"),
        "directional": losses.directional_error(torch.cos),
    }[loss]
    student = net(D, 4, 1, hidden="tanh", output=output, output_form="values")
    agree(made, student, lambda x: torch.sin(x).prod(1), y=X[:, 0] ** 2)
