r"""Losses on values: by hand, and their identities."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import nn

from limbeck import losses
from limbeck.arrays import Batch
from limbeck.evaluation import View
from limbeck.losses.base import Probe
from tests.refusals import refused

N, CLASSES = 5, 3
RNG = np.random.default_rng(0)
STUDENT, TEACHER = RNG.normal(size=(2, N, CLASSES))  # logits
NUMBERS = np.array([0, 2, 1, 1, 0])
SOFT = RNG.dirichlet(np.ones(CLASSES), size=N)


def view(outputs: np.ndarray, form: str = "logits") -> View:
    r"""A model with given outputs, whatever its inputs."""
    return View(lambda x: torch.tensor(outputs), torch.zeros(len(outputs), 1), form)


def of(loss, student=STUDENT, teacher=TEACHER, form="logits", y=None) -> np.ndarray:
    y = None if y is None else torch.tensor(y)
    batch = Batch(torch.zeros(len(student), 1), y)
    found = loss(view(student, form), view(teacher, form), batch)
    assert found.shape == (len(student),)
    return found.numpy()


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max())
    return e / e.sum()


def cross(t: np.ndarray, f: np.ndarray) -> float:
    return -sum(t[i] * math.log(f[i]) for i in range(len(t)))


def test_square_error_is_half_the_square_distance_of_probabilities_or_values() -> None:
    pairs = list(zip(STUDENT, TEACHER, strict=True))
    plain = [sum((f - t) ** 2) / 2 for f, t in pairs]
    soft = [sum((softmax(f) - softmax(t)) ** 2) / 2 for f, t in pairs]
    np.testing.assert_allclose(of(losses.square_error(), form="values"), plain)
    np.testing.assert_allclose(of(losses.square_error(), form="logits"), soft)


@pytest.mark.parametrize("T", [0.5, 1, 3])
def test_cross_entropy_softens_both_and_multiplies_by_the_square_of_the_temperature(T) -> None:
    expected = [
        T**2 * cross(softmax(t / T), softmax(f / T)) for f, t in zip(STUDENT, TEACHER, strict=True)
    ]
    np.testing.assert_allclose(of(losses.cross_entropy(T)), expected)


def test_logit_error_is_half_the_square_distance_of_centred_logits() -> None:
    expected = [
        sum(((f - f.mean()) - (t - t.mean())) ** 2) / 2
        for f, t in zip(STUDENT, TEACHER, strict=True)
    ]
    np.testing.assert_allclose(of(losses.logit_error()), expected)
    np.testing.assert_allclose(of(losses.logit_error(), STUDENT + 7, TEACHER - 2), expected)


def test_losses_on_labels_by_hand() -> None:
    numbers = [-math.log(softmax(f)[y]) for f, y in zip(STUDENT, NUMBERS, strict=True)]
    soft = [cross(y, softmax(f)) for f, y in zip(STUDENT, SOFT, strict=True)]
    square = [sum((f - y) ** 2) / 2 for f, y in zip(STUDENT, SOFT, strict=True)]
    np.testing.assert_allclose(of(losses.label_cross_entropy(), y=NUMBERS), numbers)
    np.testing.assert_allclose(of(losses.label_cross_entropy(), y=SOFT), soft)
    np.testing.assert_allclose(of(losses.label_square_error(), y=SOFT, form="values"), square)


def test_a_label_of_one_number_fits_one_output() -> None:
    found = of(losses.label_square_error(), STUDENT[:, :1], form="values", y=TEACHER[:, 0])
    np.testing.assert_allclose(found, (STUDENT[:, 0] - TEACHER[:, 0]) ** 2 / 2)


def test_one_output_is_the_probability_of_class_1() -> None:
    f, t = STUDENT[:, :1], TEACHER[:, :1]
    p, q = 1 / (1 + np.exp(-f[:, 0])), 1 / (1 + np.exp(-t[:, 0]))
    expected = -(q * np.log(p) + (1 - q) * np.log(1 - p))
    np.testing.assert_allclose(of(losses.cross_entropy(), f, t), expected)
    np.testing.assert_allclose(of(losses.square_error(), f, t), (p - q) ** 2)
    np.testing.assert_allclose(of(losses.logit_error(), f, t), (f - t)[:, 0] ** 2 / 4)
    labels = of(losses.label_cross_entropy(), f, y=NUMBERS % 2)
    np.testing.assert_allclose(labels, np.where(NUMBERS % 2, -np.log(p), -np.log(1 - p)))


@pytest.mark.parametrize("form", ["probabilities", "log_probabilities"])
@pytest.mark.parametrize(
    "loss", [losses.square_error(), losses.cross_entropy(3), losses.logit_error()], ids=repr
)
def test_the_form_of_the_outputs_does_not_matter(loss, form) -> None:
    in_form = [np.apply_along_axis(softmax, 1, z) for z in (STUDENT, TEACHER)]
    in_form = in_form if form == "probabilities" else [np.log(p) for p in in_form]
    np.testing.assert_allclose(of(loss, *in_form, form=form), of(loss))


logits = arrays(np.float64, (1, 4), elements=st.floats(-30, 30))


@settings(deadline=None, derandomize=True)
@given(logits, logits)
def test_cross_entropy_less_entropy_is_a_divergence(f, t) -> None:
    entropy = of(losses.cross_entropy(), t, t)
    divergence = of(losses.cross_entropy(), f, t) - entropy
    expected = sum(softmax(t[0]) * (np.log(softmax(t[0])) - np.log(softmax(f[0]))))
    assert divergence >= -1e-12
    np.testing.assert_allclose(divergence, expected, rtol=1e-6, atol=1e-12)
    # equal up to the constant that a softmax does not see
    np.testing.assert_allclose(of(losses.cross_entropy(), t + 3, t), entropy, atol=1e-12)
    # Pinsker: a divergence is at least half the square of the L1 distance, so zero only if equal
    assert divergence >= abs(softmax(f[0]) - softmax(t[0])).sum() ** 2 / 2 - 1e-12


def gradient(loss) -> torch.Tensor:
    z = torch.tensor(STUDENT, requires_grad=True)
    student = View(lambda x: z, torch.zeros(N, 1), "logits")
    loss(student, view(TEACHER), Batch(torch.zeros(N, 1))).sum().backward()
    return z.grad


def test_hot_cross_entropy_has_the_gradient_of_the_logit_error_over_the_classes() -> None:
    difference = torch.tensor(STUDENT - TEACHER)
    centred = difference - difference.mean(1, keepdim=True)
    torch.testing.assert_close(gradient(losses.logit_error()), centred)
    limit = centred / CLASSES
    errors = [(gradient(losses.cross_entropy(T)) - limit).norm() for T in (1e2, 1e3, 1e4)]
    assert errors[2] < 1e-3 * limit.norm()
    assert errors[0] / errors[1] == pytest.approx(10, rel=0.05)  # of first order in 1/T
    assert errors[1] / errors[2] == pytest.approx(10, rel=0.05)


@pytest.mark.parametrize("temperature", [0, -1.0, math.nan, math.inf, "warm", None])
def test_a_temperature_must_be_finite_and_above_zero(temperature) -> None:
    with refused("temperature", expected="a number above zero"):
        losses.cross_entropy(temperature)


def bound(loss, student, y) -> None:
    batch = Batch(torch.zeros(len(student), 1), None if y is None else torch.as_tensor(y))
    loss.bind(Probe(view(student), view(student), batch))


@pytest.mark.parametrize(
    ("loss", "y", "argument", "received", "expected"),
    [
        ("label_cross_entropy", None, "inputs", "no labels", ""),
        ("label_square_error", None, "inputs", "no labels", ""),
        (
            "label_cross_entropy",
            [0, 1, 2, 3, 0],
            "y",
            "class numbers from 0 to 3",
            "0 to 2",
        ),
        ("label_cross_entropy", [0, -1, 2, 1, 0], "y", "class numbers from -1 to 2", ""),
        (
            "label_cross_entropy",
            [[0], [1], [2], [1], [0]],
            "y",
            r"shape \(5, 1\)",
            r"\(n,\)",
        ),
        ("label_cross_entropy", SOFT[:, :2], "y", r"shape \(5, 2\)", r"\(n, 3\)"),
        (
            "label_cross_entropy",
            [0.0, 1.0, 2.0, 1.0, 0.0],
            "y",
            r"shape \(5,\)",
            r"\(n, 3\)",
        ),
        ("label_square_error", SOFT[:, :2], "y", r"shape \(5, 2\)", r"shape \(5, 3\)"),
    ],
)
def test_labels_that_do_not_fit_are_refused(loss, y, argument, received, expected) -> None:
    with refused(argument, received, expected=expected):
        bound(getattr(losses, loss)(), STUDENT, y)


def test_numbers_as_labels_are_not_taken_for_probabilities_where_sizes_happen_to_agree() -> None:
    with refused("y", r"shape \(3,\)"):
        bound(losses.label_cross_entropy(), STUDENT[:3], [0.0, 1.0, 2.0])


def test_labels_that_fit_are_taken() -> None:
    bound(losses.label_cross_entropy(), STUDENT, NUMBERS)
    bound(losses.label_cross_entropy(), STUDENT, SOFT)
    bound(losses.label_square_error(), STUDENT, SOFT)


def test_certain_teachers_and_students_have_finite_losses_and_gradients() -> None:
    certain = torch.tensor([[0.0, 1.0, 0.0], [-torch.inf, 0.0, -torch.inf]], dtype=torch.float64)
    for row, form in zip(certain, ("probabilities", "log_probabilities"), strict=True):
        z = torch.tensor([[1e4, -1e4, 0.0]], dtype=torch.float64, requires_grad=True)
        student = View(lambda x, z=z: z, torch.zeros(1, 1), "logits")
        teacher = View(lambda x, row=row: row[None], torch.zeros(1, 1), form)
        found = losses.cross_entropy()(student, teacher, Batch(torch.zeros(1, 1)))
        assert found.item() == 2e4
        found.backward()
        torch.testing.assert_close(z.grad, torch.tensor([[1.0, -1.0, 0.0]], dtype=torch.float64))


def test_a_module_gives_what_its_outputs_give() -> None:
    linear = nn.Linear(2, CLASSES, dtype=torch.float64)
    x = torch.tensor(RNG.normal(size=(N, 2)))
    found = losses.cross_entropy()(View(linear, x, "logits"), view(TEACHER), Batch(x))
    np.testing.assert_allclose(
        found.detach(), of(losses.cross_entropy(), linear(x).detach().numpy())
    )
