r"""Which losses may learn from one random draw of a teacher at a time, and which are refused."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from limbeck import losses
from limbeck.errors import InexactTeacherError
from limbeck.inputs import Dataset, Function
from limbeck.models import MLP, Ensemble
from limbeck.teachers.base import Teacher
from limbeck.training.objective import Objective
from limbeck.training.update import GradientUpdate
from tests.refusals import raises_about

N, D, CLASSES, DRAWS = 3, 2, 3, 4
X = torch.randn(N, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
V = torch.tensor([0.5, -1.0], dtype=torch.float64)
SIGNS = torch.tensor(list(itertools.product([0.0, 1.0], repeat=CLASSES)))


def net(seed: int, **kinds: str) -> MLP:
    g = torch.Generator().manual_seed(seed)
    made = MLP(D, 5, CLASSES, hidden="tanh", dtype=torch.float64, generator=g, **kinds)
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=1.2, generator=g)
    return made


class Gaussian(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        self.mean = nn.Parameter(torch.randn(D, dtype=torch.float64, generator=g))

    def log_prob(self, x: Tensor) -> Tensor:
        return -(x - self.mean).square().sum(1) / 2 - math.log(2 * math.pi)


class Mixture(nn.Module):
    r"""The average of densities."""

    def __init__(self, members: list[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def log_prob(self, x: Tensor) -> Tensor:
        logs = torch.stack([member.log_prob(x) for member in self.members])
        return logs.logsumexp(0) - math.log(len(logs))


class Mean(nn.Module):
    def __init__(self, members: list[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([member(x) for member in self.members]).mean(0)


def members(loss) -> list[nn.Module]:
    if loss.needs == "density":
        return [Gaussian(10 + w) for w in range(DRAWS)]
    nets = [net(10 + w, output="softmax") for w in range(DRAWS)]
    return [nn.Sequential(each.layers[0]) for each in nets] if "hidden" in loss.requires else nets


def average(loss) -> nn.Module:
    if loss.needs == "density":
        return Mixture(members(loss))
    return (
        nn.Sequential(Mean(members(loss))) if "hidden" in loss.requires else Ensemble(members(loss))
    )


def objective(loss, teacher: nn.Module, exact: bool = True) -> Objective:
    student = Gaussian(0) if loss.needs == "density" else net(0)
    inputs = Dataset(X, torch.tensor([0, 2, 1]))
    if loss.name == "reverse_kl":
        inputs = Function(lambda n: X[torch.arange(n) % N])
    if loss.name == "label_square_error":
        inputs = Dataset(X, torch.ones(N, CLASSES, dtype=torch.float64))
    return Objective(Teacher(teacher, exact=exact), student, inputs, loss)


def gradient(loss, teacher: nn.Module) -> Tensor:
    r"""The gradient; of random projections, its mean over all of them."""
    bound, update = objective(loss, teacher), GradientUpdate()
    update.bind(bound, 1)
    plan = bound.draw(N)
    plans = [plan]
    if loss.projections is not None:
        plans = [{**plan, "loss": [signs.expand(1, N, CLASSES)]} for signs in SIGNS]
    found = [torch.cat([g.flatten() for g in update.gradient(p)[0].values()]) for p in plans]
    return torch.stack(found).mean(0).detach()


AFFINE = [
    losses.square_error(),
    losses.cross_entropy(),
    losses.label_cross_entropy(),
    losses.label_square_error(),
    losses.multilabel_cross_entropy(),
    losses.derivative_error("log", "teacher"),
    losses.derivative_error("log", "teacher", projections=1),
    losses.derivative_error("plain", "uniform"),
    losses.derivative_error("plain", "uniform", projections=1),
    losses.directional_error(V),
    losses.directional_error("random"),
    losses.directional_error(V, 0.0, "log"),
    losses.hints("0", "layers.0", nn.Linear(5, 5)),
    losses.kl(),
]
NOT_AFFINE = [
    losses.cross_entropy(3),
    losses.cross_entropy(0.5),
    losses.logit_error(),
    losses.derivative_error("log", "uniform"),
    losses.derivative_error("log", "uniform", projections=1),
    losses.derivative_error("plain", "teacher"),
    losses.derivative_error("plain", "teacher", projections=1),
    losses.directional_error(V, domain="log"),
    losses.log_density_error(),
    losses.reverse_kl(),
    losses.score_matching(),
]
ALL = AFFINE + NOT_AFFINE


def test_every_loss_is_here() -> None:
    assert {loss.name for loss in ALL} == set(losses.__all__)
    assert not any(loss.bias for loss in AFFINE)
    assert all(loss.bias for loss in NOT_AFFINE)


@pytest.mark.parametrize("loss", ALL, ids=repr)
def test_gradients_at_single_draws_average_to_that_at_the_average_iff_affine(loss) -> None:
    wanted = gradient(loss, average(loss))
    single = torch.stack([gradient(loss, draw) for draw in members(loss)])
    assert wanted.norm() > 1e-3
    if loss.requires:
        assert (single - wanted).norm(dim=1).min() > 1e-2 * wanted.norm()  # draws do differ
    difference = (single.mean(0) - wanted).norm() / wanted.norm()
    assert difference < 1e-12 if not loss.bias else difference > 1e-3


@pytest.mark.parametrize("loss", AFFINE, ids=repr)
def test_affine_losses_take_a_teacher_that_gives_one_draw_at_a_time(loss) -> None:
    objective(loss, members(loss)[0], exact=False)


@pytest.mark.parametrize("loss", NOT_AFFINE, ids=repr)
def test_other_losses_are_refused_with_the_reason_and_a_way_out(loss) -> None:
    with pytest.raises(InexactTeacherError) as caught:
        objective(0.1 * loss, members(loss)[0], exact=False)
    message = str(caught.value)
    assert len(loss.bias) > 20
    assert message.startswith(f"loss: {loss!r} is biased")
    assert loss.bias in message
    assert "Accepted: cross_entropy at temperature 1" in message
    objective(loss, members(loss)[0], exact=True)


def test_one_term_that_is_not_affine_spoils_a_sum() -> None:
    teacher = members(AFFINE[0])[0]
    with raises_about(InexactTeacherError, "logit_error"):
        objective(losses.cross_entropy() + 0.1 * losses.logit_error(), teacher, exact=False)


@pytest.mark.parametrize("weight", ["teacher", "uniform"])
def test_one_output_is_affine_with_the_weights_of_the_teacher_only(weight) -> None:
    r"""The online form of the text's chapter 3: exact, where its weights are those of the draw."""

    def logistic(seed: int) -> MLP:
        g = torch.Generator().manual_seed(seed)
        made = MLP(D, 1, output="logistic", dtype=torch.float64, generator=g)
        nn.init.normal_(made.layers[0].weight, std=2.0, generator=g)
        return made

    loss, draws = losses.derivative_error(weight=weight), [logistic(w) for w in range(DRAWS)]

    def binary(teacher: nn.Module) -> Tensor:
        update = GradientUpdate()
        bound = Objective(Teacher(teacher), logistic(9), Dataset(X), loss)
        update.bind(bound, 1)
        return torch.cat([g.flatten() for g in update.gradient(bound.draw(N))[0].values()])

    wanted = binary(Ensemble(draws))
    difference = torch.stack([binary(draw) for draw in draws]).mean(0) - wanted
    relative = difference.norm() / wanted.norm()
    assert relative < 1e-12 if weight == "teacher" else relative > 1e-3
