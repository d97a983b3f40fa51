r"""Schedules: what they are at their ends, and what theory asks of them."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

import limbeck as lb
from limbeck.training.schedules import NAMES, as_schedule, same_until
from tests.refusals import refused

TOTAL = 1000


def at(schedule, t, total=TOTAL):
    return float(as_schedule(schedule)(torch.tensor(float(t), dtype=torch.float64), total))


@pytest.mark.parametrize(
    ("schedule", "start", "middle", "end"),
    [
        ("constant", 1, 1, 1),
        (None, 1, 1, 1),
        ("linear", 1, 0.5, 0),
        ("logarithmic", 1, 1e-3**0.5, 1e-3),
        (lb.schedules.Logarithmic(final=0.04), 1, 0.2, 0.04),
        (lb.schedules.Logarithmic(final=1.0), 1, 1, 1),
        ("cosine", 1, 0.5, 0),
        ("robbins-monro", 1, 501**-0.6, 1001**-0.6),
        (lb.schedules.RobbinsMonro(t0=100.0, beta=1.0), 1, 1 / 6, 1 / 11),
    ],
)
def test_values_at_the_start_in_the_middle_and_at_the_end(schedule, start, middle, end):
    found = [at(schedule, t) for t in (0, TOTAL / 2, TOTAL)]
    assert found == pytest.approx([start, middle, end], rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("name", ["linear", "logarithmic", "cosine"])
def test_factors_fall_all_the_way_and_stay_where_they_end(name):
    factors = [at(name, t) for t in range(TOTAL + 1)]
    assert all(a > b for a, b in pairwise(factors))
    assert at(name, 2 * TOTAL) == factors[-1]


@pytest.mark.parametrize("warmup", [0.1, 0.25, 0.999])
def test_a_warm_up_rises_in_equal_steps_and_then_a_cosine_falls(warmup):
    schedule, start = lb.schedules.Cosine(warmup=warmup), round(warmup * TOTAL)
    rise = [at(schedule, t) for t in range(start)]
    assert rise == pytest.approx([(t + 1) / start for t in range(start)], rel=1e-9)
    assert at(schedule, start) == pytest.approx(1, abs=1e-12)
    middle = start + (TOTAL - start) / 2
    assert at(schedule, middle) == pytest.approx(0.5, abs=1e-12)
    assert at(schedule, TOTAL) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("t0", [1.0, 50.0])
@pytest.mark.parametrize("beta", [0.51, 0.6, 0.75, 1.0])
def test_robbins_and_monro_are_satisfied(t0, beta):
    r"""The sum grows without bound with its integral; the sum of squares stays under its own."""
    t = torch.arange(100_000, dtype=torch.float64)
    factors = lb.schedules.RobbinsMonro(t0=t0, beta=beta)(t, len(t))
    sums, squares = factors.cumsum(0), factors.square().cumsum(0)
    for n in (10, 1_000, 100_000):
        integral = (
            t0 * math.log1p(n / t0)
            if beta == 1
            else t0 / (1 - beta) * ((1 + n / t0) ** (1 - beta) - 1)
        )
        assert integral <= sums[n - 1] <= 1 + integral
    assert squares[-1] <= 1 + t0 / (2 * beta - 1)  # the integral to infinity


@pytest.mark.parametrize("beta", [0.3, 0.5])
def test_up_to_one_half_the_sum_of_squares_diverges(beta):
    t = torch.arange(100_000, dtype=torch.float64)
    squares = lb.schedules.RobbinsMonro(beta=beta)(t, len(t)).square().cumsum(0)
    for n in (10, 1_000, 100_000):
        assert squares[n - 1] >= math.log1p(n)  # the integral at one half, and more below


@pytest.mark.parametrize("name", NAMES)
def test_names_stand_for_schedules_that_take_tensors(name):
    t = torch.tensor([0.0, 10.0, 100.0])
    found = as_schedule(name)(t, 100)
    assert found.shape == t.shape
    assert found[0] == 1


@pytest.mark.parametrize(
    ("make", "argument", "received", "expected"),
    [
        (lambda: lb.schedules.Logarithmic(final=0.0), "final", "^0.0$", ""),
        (lambda: lb.schedules.Logarithmic(final=1.5), "final", "^1.5$", ""),
        (lambda: lb.schedules.Logarithmic(final=math.nan), "final", "^nan$", ""),
        (lambda: lb.schedules.Cosine(warmup=1.0), "warmup", "^1.0$", ""),
        (lambda: lb.schedules.Cosine(warmup=-0.1), "warmup", "^-0.1$", ""),
        (lambda: lb.schedules.RobbinsMonro(t0=0.0), "t0", "^0.0$", ""),
        (lambda: lb.schedules.RobbinsMonro(t0=math.nan), "t0", "^nan$", ""),
        (lambda: lb.schedules.RobbinsMonro(beta=0.0), "beta", "^0.0$", ""),
        (lambda: lb.schedules.RobbinsMonro(beta=1.1), "beta", "^1.1$", ""),
        (lambda: as_schedule(3), "schedule", "^3$", ""),
        (
            lambda: as_schedule("cosin"),
            "schedule",
            "'cosin'",
            "did you mean 'cosine'",
        ),
        (
            lambda: as_schedule("Robbins-Monroe"),
            "schedule",
            "'Robbins-Monroe'",
            "did you mean 'robbins-monro'",
        ),
    ],
)
def test_bad_settings_are_refused(make, argument, received, expected):
    with refused(argument, received, expected=expected):
        make()


def descend(schedule, steps=6):
    r"""How far each step goes where every gradient is −1: the factors that were used."""
    student = nn.Linear(1, 1, bias=False).double()
    nn.init.zeros_(student.weight)
    x = torch.ones(4, 1, dtype=torch.float64)
    update = lb.GradientUpdate("sgd", schedule, lr=1.0)
    weights = [0.0]
    for step in lb.steps(
        None, student, x, Ascent(), steps=steps, batch_size=2, update=update, device="cpu"
    ):
        weights.append(step.student.weight.item())
    return [b - a for a, b in pairwise(weights)]


class Ascent(lb.losses.square_error.__base__):
    name = "ascent"

    def __call__(self, student, teacher, batch, drawn=None):
        return -student.raw()[:, 0]


@pytest.mark.parametrize("name", ["constant", "linear", "cosine", "logarithmic", "robbins-monro"])
def test_the_rate_of_step_t_is_the_factor_after_t_steps(name):
    assert descend(name) == pytest.approx([at(name, t, 6) for t in range(6)], rel=1e-12)


def test_a_function_of_ones_own_is_asked_with_the_steps_done_and_all_steps():
    asked = []

    def halves(t, total):
        asked.append((t.item(), total))
        return 0.5**t

    assert descend(halves) == [1, 0.5, 0.25, 0.125, 0.0625, 0.03125]
    assert asked == [(t, 6) for t in range(6)]


def test_a_function_may_give_plain_numbers():
    assert descend(lambda t, total: 0.25) == [0.25] * 6


def test_schedules_of_two_totals_are_compared_at_the_steps_done():
    def late(t, total):
        return torch.where(t < total - 5, 1.0, 0.0)

    def of_one_number(t, total):
        return 0.1 if t > total / 2 else 1.0

    assert same_until(late, 15, 20, 40)
    assert not same_until(late, 16, 20, 40)
    assert same_until(of_one_number, 0, 20, 40)
    assert same_until(of_one_number, 10, 20, 40)
    assert not same_until(of_one_number, 50_000, 50_000, 60_000)
    assert same_until(lambda t, total: 1.0, 50_000, 50_000, 60_000)
    for name in NAMES:
        assert same_until(as_schedule(name), 9, 10, 20) == (name in ("constant", "robbins-monro"))
