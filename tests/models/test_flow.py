r"""The neural spline flow: a density that integrates to one, whose samples are its own."""

import math
import sys

import numpy as np
import pytest
import torch

import limbeck as lb
from limbeck.errors import LimbeckError
from limbeck.models.flow import Flow
from tests.refusals import raises_about, refused

pytest.importorskip("zuko")


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def small():
    made = Flow(2, (16,), transforms=2, generator=seeded(), dtype=torch.float64)
    with torch.no_grad():
        for parameter in made.parameters():  # far from what it starts as
            parameter.mul_(1.5)
    return made.start_from(torch.randn(500, 2, generator=seeded(1)) * 2 + torch.tensor([1.0, -3.0]))


@pytest.fixture
def grid(small):
    r"""Points over the plane, and the probability of the square about each."""
    axis = torch.linspace(-14, 14, 401, dtype=torch.float64)
    points = torch.cartesian_prod(axis, axis)
    with torch.no_grad():
        return points, small.log_prob(points).exp() * (axis[1] - axis[0]) ** 2


def test_it_integrates_to_one(grid):
    assert float(grid[1].sum()) == pytest.approx(1, abs=5e-3)


def test_as_many_samples_as_the_density_says(small, grid):
    x = small.sample(20_000, seeded(2))
    points, probability = grid
    shares = []
    for low in torch.cartesian_prod(torch.arange(-6, 6, 3), torch.arange(-9, 3, 3)):
        inside = [((part >= low) & (part < low + 3)).all(1) for part in (x, points)]
        shares.append([float(inside[0].double().mean()), float(probability[inside[1]].sum())])
    found, expected = np.array(shares).T
    assert expected.max() > 0.1
    np.testing.assert_allclose(found, expected, atol=0.02)


def test_samples_come_back_as_what_they_were_made_of(small):
    x = small.sample(50, seeded(4))
    z = torch.randn(50, 2, generator=seeded(4), dtype=torch.float64)
    with torch.no_grad():
        found = small.flow().transform((x - small.shift) / small.scale)
    torch.testing.assert_close(found, z, atol=1e-6, rtol=1e-6)


def test_equal_generators_give_equal_flows_and_samples():
    state = torch.random.get_rng_state()
    one, two = (Flow(3, (8,), generator=seeded(5)) for _ in "ab")
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(one.sample(4, seeded(1)), two.sample(4, seeded(1)))
    other = Flow(3, (8,), generator=seeded(6))
    assert not torch.equal(one.sample(4, seeded(1)), other.sample(4, seeded(1)))


@pytest.mark.parametrize("dim", [1, 3, 20])
def test_any_number_of_variables(dim):
    made = Flow(dim, (8,), generator=seeded())
    x = made.sample(5, seeded())
    assert x.shape == (5, dim)
    assert made(x).shape == (5,)
    again = Flow.from_spec(made.spec())
    again.load_state_dict(made.state_dict())
    torch.testing.assert_close(again.log_prob(x), made.log_prob(x))


def test_it_is_a_student_of_distill():
    x = (torch.randn(300, 1, generator=seeded()) / 2).exp()  # a log-normal variable
    made = Flow(1, (16,), generator=seeded()).start_from(x)
    before = made.log_prob(x).detach().mean()
    lb.distill(
        None, made, x, lb.losses.kl(), steps=250, lr=5e-2, progress=False, engine="eager",
        device="cpu",
    )  # fmt: skip
    logs = -2 * x.log().square() - math.log(math.sqrt(2 * math.pi) / 2) - x.log()
    assert before < logs.mean() - 0.1
    assert made.log_prob(x).detach().mean() > logs.mean() - 0.08


@pytest.mark.parametrize(
    ("call", "argument", "received"),
    [
        (lambda: Flow(0), "dim", "^0$"),
        (lambda: Flow(2, "wide"), "hidden", "'wide'"),
        (lambda: Flow(2, (0,)), "hidden", "^0$"),
        (lambda: Flow(2, bins=1), "bins", "^1$"),
        (lambda: Flow(2).log_prob(torch.zeros(3, 4)), "x", r"shape \(3, 4\)"),
        (lambda: Flow(2).log_prob(np.zeros((3, 2))), "x", "ndarray"),
        (
            lambda: Flow(2).start_from(torch.eye(3)[:, [0, 0]] * 0 + 5),
            "x",
            "variable 0 never changes",
        ),
        (lambda: Flow.from_spec({"type": "Flow"}), "spec.dim", "nothing"),
    ],
)
def test_what_is_refused(call, argument, received):
    with refused(argument, received):
        call()


def test_without_zuko_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "zuko", None)
    with raises_about(LimbeckError, "flow", "limbeck[flows]"):
        Flow(2)
