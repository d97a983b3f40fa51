r"""Losses on derivatives: by hand, by all random projections, and where they are zero."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad

from limbeck import losses
from limbeck.arrays import Batch
from limbeck.evaluation import View
from limbeck.losses.base import Draws, Probe
from limbeck.models import MLP
from limbeck.teachers.base import Teacher
from tests.refusals import refused

N, D, CLASSES = 4, 2, 3
RNG = np.random.default_rng(1)
X = RNG.normal(size=(N, D))
BATCH = Batch(torch.tensor(X))
WEIGHTS = [(d, w) for d in ("log", "plain") for w in ("uniform", "teacher")]
SIGNS = torch.tensor(list(itertools.product([0.0, 1.0], repeat=CLASSES)))  # (8, I)


class Linear:
    r"""softmax(Wx + b) or Wx + b, with derivatives by hand."""

    def __init__(self, classes: int = CLASSES) -> None:
        self.W, self.b = RNG.normal(size=(classes, D)), RNG.normal(size=classes)

    def probabilities(self, x: np.ndarray) -> np.ndarray:
        e = np.exp(self.W @ x + self.b)
        return e / e.sum()

    def derivatives(self, x: np.ndarray, domain: str) -> np.ndarray:
        p = self.probabilities(x)
        logs = np.array([w - sum(q * v for q, v in zip(p, self.W, strict=True)) for w in self.W])
        return logs if domain == "log" else p[:, None] * logs  # (I, D)

    def view(self, form: str = "logits") -> View:
        module = nn.Linear(D, len(self.b), dtype=torch.float64)
        module.load_state_dict({"weight": torch.tensor(self.W), "bias": torch.tensor(self.b)})
        return View(module, BATCH.x, form)


F, T = Linear(), Linear()


def of(loss, student: View, teacher: View, drawn=None, batch: Batch = BATCH):
    found = loss(student, teacher, batch, drawn)
    assert found.shape == (len(batch.x),)
    return found.detach().numpy()


def by_hand(domain: str, weight: str) -> list[float]:
    found = []
    for x in X:
        f, t, total = F.derivatives(x, domain), T.derivatives(x, domain), 0.0
        a = T.probabilities(x) if weight == "teacher" else np.full(CLASSES, 1 / CLASSES)
        for i in range(CLASSES):
            total += a[i] * sum((f[i, d] - t[i, d]) ** 2 for d in range(D)) / 2
        found.append(total)
    return found


@pytest.mark.parametrize(("domain", "weight"), WEIGHTS)
def test_derivative_error_by_hand(domain, weight) -> None:
    found = of(losses.derivative_error(domain, weight), F.view(), T.view())
    np.testing.assert_allclose(found, by_hand(domain, weight))


@pytest.mark.parametrize(("domain", "weight"), WEIGHTS)
def test_one_projection_by_hand(domain, weight) -> None:
    signs = SIGNS[torch.tensor([5, 1, 2, 6])]  # one for each example
    expected = []
    for x, s in zip(X, 2 * signs.numpy() - 1, strict=True):
        a = T.probabilities(x) if weight == "teacher" else np.full(CLASSES, 1 / CLASSES)
        residual = F.derivatives(x, domain) - T.derivatives(x, domain)
        r = sum(s[i] * np.sqrt(a[i]) * residual[i] for i in range(CLASSES))
        expected.append(r @ r / 2)
    loss = losses.derivative_error(domain, weight, projections=1)
    np.testing.assert_allclose(of(loss, F.view(), T.view(), signs[None]), expected)


def test_in_regression_the_plain_domain_is_that_of_the_outputs() -> None:
    expected = [((F.W - T.W) ** 2).sum() / (2 * CLASSES)] * N
    found = of(losses.derivative_error("plain"), F.view("values"), T.view("values"))
    np.testing.assert_allclose(found, expected)


# random projections, by enumeration of all signs


def student_and_teacher() -> tuple[MLP, View]:
    g = torch.Generator().manual_seed(0)
    kinds = {"hidden": "tanh", "dtype": torch.float64, "generator": g}
    return MLP(D, 5, CLASSES, **kinds), View(MLP(D, 6, CLASSES, **kinds), BATCH.x, "logits")


def gradient(loss, student: nn.Module, teacher: View, drawn=None) -> torch.Tensor:
    def mean(parameters: dict) -> torch.Tensor:
        def forward(x):
            return functional_call(student, parameters, (x,))

        return loss(View(forward, BATCH.x, "logits"), teacher, BATCH, drawn).mean()

    found = grad(mean)({name: p.detach() for name, p in student.named_parameters()})
    return torch.cat([g.flatten() for g in found.values()]).detach()


@pytest.mark.parametrize(("domain", "weight"), WEIGHTS)
def test_the_mean_over_all_signs_is_the_full_loss_and_so_is_its_gradient(domain, weight) -> None:
    student, teacher = student_and_teacher()
    seen = View(student, BATCH.x, "logits")
    full, one = (losses.derivative_error(domain, weight, k) for k in (None, 1))
    draws = [s.expand(1, N, CLASSES) for s in SIGNS]
    values = np.array([of(one, seen, teacher, s) for s in draws])
    assert values.std(0).min() > 1e-4  # single projections do differ
    np.testing.assert_allclose(values.mean(0), of(full, seen, teacher), rtol=1e-12)
    gradients = torch.stack([gradient(one, student, teacher, s) for s in draws])
    wanted = gradient(full, student, teacher)
    assert wanted.norm() > 1e-3
    torch.testing.assert_close(gradients.mean(0), wanted, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("domain", "weight"), WEIGHTS)
def test_several_projections_are_averaged(domain, weight) -> None:
    student, teacher = student_and_teacher()
    seen = View(student, BATCH.x, "logits")
    drawn = SIGNS[:, None].expand(len(SIGNS), N, CLASSES)
    found = of(losses.derivative_error(domain, weight, len(SIGNS)), seen, teacher, drawn)
    np.testing.assert_allclose(found, of(losses.derivative_error(domain, weight), seen, teacher))


def test_probabilities_that_rounding_put_below_zero_weigh_nothing() -> None:
    p = torch.tensor([[1.0005, -0.0005, 0.0]] * N, dtype=torch.float64)
    teacher = View(lambda x: p + 0 * x[:, :1], BATCH.x, "probabilities")
    signs = torch.ones(1, N, CLASSES)
    loss = losses.derivative_error("log", "teacher", projections=1)
    expected = [1.0005 * sum(F.derivatives(x, "log")[0] ** 2) / 2 for x in X]
    np.testing.assert_allclose(of(loss, F.view(), teacher, signs), expected)


def test_signs_are_drawn_evenly_and_anew_for_each_example_output_and_projection() -> None:
    generator = torch.Generator().manual_seed(0)
    draws = Draws(2000, CLASSES, BATCH.x, Teacher(None).signs, generator)
    signs = losses.derivative_error(projections=2).draw(draws)
    assert signs.shape == (2, 2000, CLASSES)
    assert set(signs.unique().tolist()) == {0, 1}
    numbers = (signs * torch.tensor([1, 2, 4])).sum(2)  # of the sign vector
    counts = (numbers[0] + 8 * numbers[1]).long().bincount(minlength=64)
    assert ((counts - 2000 / 64).square() / (2000 / 64)).sum() < 110  # chi² of 63, p = 2e-4


# one output: the binary form of the text


@pytest.mark.parametrize("form", ["logits", "probabilities"])
def test_weights_of_a_one_output_teacher_give_the_binary_form_of_the_text(form) -> None:
    f, t = Linear(1), Linear(1)

    def p_and_derivative(model: Linear, x: np.ndarray) -> tuple[float, np.ndarray]:
        p = 1 / (1 + np.exp(-(model.W[0] @ x + model.b[0])))
        return p, p * (1 - p) * model.W[0]

    expected = []
    for x in X:
        (pf, df), (pt, dt) = p_and_derivative(f, x), p_and_derivative(t, x)
        of_1 = sum((df / pf - dt / pt) ** 2) / 2
        of_0 = sum((-df / (1 - pf) + dt / (1 - pt)) ** 2) / 2
        expected.append(pt * of_1 + (1 - pt) * of_0)
    teacher = t.view()
    if form == "probabilities":
        teacher = View(lambda x, z=teacher.model: torch.sigmoid(z(x)), BATCH.x, form)
    found = of(losses.derivative_error(weight="teacher"), f.view(), teacher)
    np.testing.assert_allclose(found, expected)


# where it is zero


def softmax_line(a: list[float], b: list[list[float]]) -> View:
    r"""log f = log softmax(a + b x) at x = 0, where f = softmax(a)."""
    p, slopes = torch.tensor(a).double(), torch.tensor(b).double()
    zero = torch.zeros(1, slopes.shape[1], dtype=torch.float64)
    return View(lambda x: p.log() + x @ slopes.T, zero, "logits")


@pytest.mark.parametrize("weight", ["uniform", "teacher"])
@pytest.mark.parametrize("projections", [None, 8])
def test_it_is_zero_if_and_only_if_the_log_derivatives_are_equal(weight, projections) -> None:
    loss = losses.derivative_error("log", weight, projections)
    drawn = None if projections is None else SIGNS[:, None]
    at_zero = Batch(torch.zeros(1, 1))

    def error(student: View, teacher: View) -> float:
        return of(loss, student, teacher, drawn, at_zero).item()

    # slopes of rank 1 and their means zero under both: equal log derivatives, other values
    t, f = ([0.4, 0.4, 0.2], [[1], [-1], [0]]), ([0.2, 0.2, 0.6], [[1], [-1], [0]])
    assert error(softmax_line(*t), softmax_line(*t)) == 0
    assert error(softmax_line(*f), softmax_line(*t)) == pytest.approx(0, abs=1e-30)
    # another slope
    assert error(softmax_line(t[0], [[1], [-1], [0.1]]), softmax_line(*t)) > 1e-4
    # slopes of rank I - 1: log derivatives are equal only if the values are
    full = [[1, 0], [-1, 0.5], [0, -1]]
    assert error(softmax_line(t[0], full), softmax_line(t[0], full)) == 0
    assert error(softmax_line(f[0], full), softmax_line(t[0], full)) > 1e-3


@pytest.mark.parametrize(("domain", "weight"), WEIGHTS)
def test_a_class_that_is_all_but_impossible_keeps_loss_and_gradient_finite(domain, weight) -> None:
    z = torch.tensor([[0.0, -1e4, 1e4]], dtype=torch.float64)
    x = torch.zeros(1, 1, dtype=torch.float64)
    slopes = torch.tensor([[1.0, 2.0, -3.0]], dtype=torch.float64)
    own = torch.tensor([[2.0, 5.0, 4.0]], dtype=torch.float64, requires_grad=True)
    teacher = View(lambda x: z + x @ slopes, x, "logits")
    student = View(lambda x: -z + x @ own, x, "logits")
    found = losses.derivative_error(domain, weight)(student, teacher, Batch(x))
    found.sum().backward()
    assert own.grad.isfinite().all()
    # log derivatives are slopes less those of the certain class, plain ones are zero
    residuals = (own - own[:, 1:2]) - (slopes - slopes[:, 2:])
    scale = {"uniform": residuals.square().mean(), "teacher": residuals[0, 2].square()}[weight]
    assert found.item() == pytest.approx(scale.item() / 2 if domain == "log" else 0)


# directions

ONE, SEVERAL = RNG.normal(size=D), RNG.normal(size=(3, D))


def along(directions: np.ndarray, domain: str, targets=None) -> list[float]:
    r"""By hand: directions (n, m, D)."""
    found = []
    for x, several in zip(X, directions, strict=True):
        total = 0.0
        for v in several:
            t = T.derivatives(x, domain) @ v if targets is None else targets
            total += ((F.derivatives(x, domain) @ v - t) ** 2).mean() / 2
        found.append(total / len(several))
    return found


@pytest.mark.parametrize("domain", ["log", "plain"])
@pytest.mark.parametrize("targets", ["teacher", 0.0, 0.7])
def test_directional_error_by_hand(targets, domain) -> None:
    number = None if targets == "teacher" else targets

    def error(directions, drawn=None):
        loss = losses.directional_error(directions, targets, domain)
        return of(loss, F.view(), T.view(), drawn)

    one, several = np.broadcast_to(ONE, (N, 1, D)), np.broadcast_to(SEVERAL, (N, 3, D))
    np.testing.assert_allclose(error(torch.tensor(ONE)), along(one, domain, number))
    np.testing.assert_allclose(error(torch.tensor(SEVERAL)), along(several, domain, number))
    own = np.sin(X)[:, None]
    np.testing.assert_allclose(error(torch.sin), along(own, domain, number))
    np.testing.assert_allclose(error("random", {"": BATCH.x}), along(X[:, None], domain, number))


def test_targets_may_differ_by_output() -> None:
    targets = RNG.normal(size=CLASSES)
    loss = losses.directional_error(torch.tensor(ONE), torch.tensor(targets))
    expected = along(np.broadcast_to(ONE, (N, 1, D)), "plain", targets)
    np.testing.assert_allclose(of(loss, F.view(), T.view()), expected)


@pytest.mark.parametrize("domain", ["log", "plain"])
def test_random_directions_are_a_contractive_penalty(domain) -> None:
    r"""The mean of (v·∂f)² is ‖∂f‖² for any v with ⟨v vᵀ⟩ = 1; here exactly, along ±√D e."""
    axes = [torch.eye(D, dtype=torch.float64)[d].mul(D**0.5).expand(N, D) for d in range(D)]
    loss = losses.directional_error("random", 0.0, domain)
    found = np.mean([of(loss, F.view(), T.view(), {"": v}) for v in axes], 0)
    expected = [(F.derivatives(x, domain) ** 2).sum() / (2 * CLASSES) for x in X]
    np.testing.assert_allclose(found, expected)


def test_random_directions_are_standard_normal_and_cover_the_floating_parts() -> None:
    x = {"a": torch.zeros(5000, 2, dtype=torch.float64), "town": torch.zeros(5000).long()}
    draws = Draws(5000, CLASSES, x, Teacher(None).signs, torch.Generator().manual_seed(0))
    drawn = losses.directional_error("random").draw(draws)
    assert drawn.keys() == {"a"}
    assert drawn["a"].dtype == torch.float64
    moment = drawn["a"].T @ drawn["a"] / 5000
    torch.testing.assert_close(moment, torch.eye(2).double(), atol=0.1, rtol=0)  # 5 deviations


def test_directions_by_part_leave_the_other_parts_alone() -> None:
    def model(x):
        return torch.stack([x["a"][:, 0] * x["b"], x["a"][:, 1] + 3 * x["b"]], 1)

    g = torch.Generator().manual_seed(0)
    x = {"a": torch.randn(N, 2, generator=g).double(), "b": torch.randn(N, generator=g).double()}
    seen = View(model, x, "values")
    loss = losses.directional_error(lambda x: {"b": x["b"] * 0 + 2}, 0.0)
    expected = ((2 * x["a"][:, 0]) ** 2 + 36) / 4
    torch.testing.assert_close(loss(seen, seen, Batch(x)), expected)


# refusals


@pytest.mark.parametrize(
    ("make", "argument", "received", "expected"),
    [
        (lambda: losses.derivative_error("logs"), "domain", "'logs'", "did you mean 'log'"),
        (
            lambda: losses.derivative_error(weight="techer"),
            "weight",
            "'techer'",
            "did you mean 'teacher'",
        ),
        (
            lambda: losses.derivative_error(projections=0),
            "projections",
            "^0$",
            "from 1",
        ),
        (
            lambda: losses.derivative_error(projections=1.5),
            "projections",
            "^1.5$",
            "from 1",
        ),
        (lambda: losses.directional_error("rnd"), "directions", "'rnd'", "'random'"),
        (
            lambda: losses.directional_error("random", "teach"),
            "targets",
            "'teach'",
            "did you mean 'teacher'",
        ),
        (lambda: losses.directional_error("random", domain="plan"), "domain", "'plan'", "'plain'"),
        (
            lambda: losses.directional_error(torch.tensor([1.0, torch.nan])),
            "directions",
            "NaN",
            "",
        ),
    ],
)
def test_unknown_settings_are_refused_with_a_suggestion(make, argument, received, expected) -> None:
    with refused(argument, received, expected=expected):
        make()


PARTS = {"a": torch.zeros(N, D, dtype=torch.float64), "town": torch.zeros(N).long()}


@pytest.mark.parametrize(
    ("directions", "x", "received", "expected"),
    [
        (torch.zeros(D + 1), BATCH.x, r"shape \(3,\)", r"\(2,\)"),
        (torch.zeros(3, D, 1), BATCH.x, r"shape \(3, 2, 1\)", ""),
        (torch.zeros(D), PARTS, "a tensor where x is a dict", ""),
        (lambda x: x["a"], PARTS, "''", "'a'"),
        (lambda x: {"aa": x["a"]}, PARTS, "'aa'", "did you mean 'a'"),
        (lambda x: {"town": x["town"]}, PARTS, "'town'", "'a'"),
    ],
)
def test_directions_that_do_not_fit_the_inputs_are_refused(
    directions, x, received, expected
) -> None:
    loss = losses.directional_error(directions, 0.0)
    with refused("directions", received, expected=expected):
        loss.bind(Probe(F.view(), T.view(), Batch(x)))


@pytest.mark.parametrize(
    "loss",
    [
        losses.derivative_error(),
        losses.derivative_error("plain"),
        losses.directional_error("random"),
        losses.directional_error("random", domain="log"),
    ],
    ids=repr,
)
def test_models_with_different_numbers_of_outputs_are_refused(loss) -> None:
    with refused("student", "2 outputs where the teacher has 3"):
        loss.bind(Probe(Linear(2).view(), T.view(), BATCH))
