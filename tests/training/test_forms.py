r"""Forms of predictions: one becomes another without losing digits, extremes stay finite."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch.func import jacrev, jvp

from limbeck import outputs as forms
from tests.refusals import refused

INF = math.inf
FLOATS = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
quick = settings(deadline=None, derandomize=True)


def rows(*numbers: float | list[float], dtype=torch.float64) -> torch.Tensor:
    return torch.tensor(numbers, dtype=dtype).reshape(len(numbers), -1)


@quick
@given(arrays("float64", (2, 4), elements=st.floats(-1e4, 1e4)))
def test_log_probabilities_of_logits_are_normalised_and_differ_as_the_logits_do(z) -> None:
    z = torch.tensor(z)
    logs = forms.log_probabilities(z, "logits")
    torch.testing.assert_close(logs.logsumexp(1), torch.zeros(2).double(), atol=1e-11, rtol=0)
    torch.testing.assert_close(logs - logs[:, :1], z - z[:, :1], atol=1e-11, rtol=0)


@quick
@given(st.floats(-1e4, 1e4))
def test_one_logit_becomes_two_normalised_classes_with_it_as_their_difference(z) -> None:
    for y in (torch.tensor([z], dtype=torch.float64), torch.tensor([[z]], dtype=torch.float64)):
        logs = forms.log_probabilities(y, "logits")
        assert logs.shape == (1, 2)
        assert logs.logsumexp(1).item() == pytest.approx(0, abs=1e-11)
        assert (logs[0, 1] - logs[0, 0]).item() == pytest.approx(z, rel=1e-12, abs=1e-12)


@quick
@given(st.floats(0, 1))
def test_one_probability_becomes_two_that_sum_to_one(p) -> None:
    logs = forms.log_probabilities(rows(p), "probabilities")
    torch.testing.assert_close(logs.exp(), rows([1 - p, p]), atol=1e-15, rtol=1e-12)


@quick
@given(st.floats(-745, 0))
def test_one_log_probability_becomes_two_that_sum_to_one(y) -> None:
    logs = forms.log_probabilities(rows(y), "log_probabilities")
    assert logs[0, 1].item() == y
    if y < -1e-300:
        of_0 = math.log(-math.expm1(y)) if y > -0.5 else math.log1p(-math.exp(y))
        assert logs[0, 0].item() == pytest.approx(of_0, rel=1e-12)


@pytest.mark.parametrize("form", forms.FORMS[:3])
def test_all_forms_of_the_same_prediction_agree(form) -> None:
    z = rows([0.3, -2.0, 1.1], [4.0, 4.0, -9.0])
    y = {"logits": z, "probabilities": z.softmax(1), "log_probabilities": z.log_softmax(1)}[form]
    torch.testing.assert_close(forms.probabilities(y, form), z.softmax(1))
    torch.testing.assert_close(forms.log_probabilities(y, form), z.log_softmax(1))


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
@pytest.mark.parametrize("form", forms.FORMS[:3])
def test_one_output_stays_the_probability_of_class_1_and_its_logs_are_two_columns(
    form, shape
) -> None:
    p = torch.tensor([0.1, 0.5, 0.8], dtype=torch.float64).reshape(shape)
    y = {"logits": p.logit(), "probabilities": p, "log_probabilities": p.log()}[form]
    torch.testing.assert_close(forms.probabilities(y, form), p)
    two = torch.stack([1 - p.flatten(), p.flatten()], 1).log()
    torch.testing.assert_close(forms.log_probabilities(y, form), two)


def test_members_in_a_middle_dimension_are_kept() -> None:
    z = torch.randn(5, 4, 3, generator=torch.Generator().manual_seed(0)).double()
    torch.testing.assert_close(forms.log_probabilities(z, "logits"), z.log_softmax(2))
    torch.testing.assert_close(forms.probabilities(z, "logits"), z.softmax(2))
    one = forms.log_probabilities(z[..., :1], "logits")
    assert one.shape == (5, 4, 2)
    torch.testing.assert_close(one[..., 1].exp(), torch.sigmoid(z[..., 0]))


EXTREMES = [
    ("logits", [[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4]]),
    ("logits", [[1e4], [-1e4], [0.0]]),
    ("probabilities", [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]),
    ("probabilities", [[0.0], [1.0]]),
    ("log_probabilities", [[-INF, 0.0, -INF], [-1e4, 0.0, -1e4]]),
    ("log_probabilities", [[-INF], [0.0], [-1e-300], [-1e4]]),
]


@FLOATS
@pytest.mark.parametrize(("form", "y"), EXTREMES)
def test_extremes_have_finite_logs_and_finite_derivatives(form, y, dtype) -> None:
    y = torch.tensor(y, dtype=dtype)
    logs = forms.log_probabilities(y, form)
    assert logs.dtype == dtype
    assert logs.isfinite().all()
    assert jacrev(lambda y: forms.log_probabilities(y, form))(y).isfinite().all()
    along = jvp(lambda y: forms.log_probabilities(y, form), (y,), (torch.ones_like(y),))[1]
    assert along.isfinite().all()
    # and what they stand for is as certain as it was
    p = forms.probabilities(y, form)
    p = torch.cat([1 - p, p], 1) if p.shape[1] == 1 else p
    torch.testing.assert_close(
        logs.exp(), p, atol=1e-6 if dtype == torch.float32 else 1e-12, rtol=0
    )


@pytest.mark.parametrize("z", [-1e4, -40.0, -1.0, 0.0, 1.0, 40.0, 1e4])
def test_derivatives_of_one_logit_are_right_in_both_tails(z) -> None:
    found = jacrev(lambda y: forms.log_probabilities(y, "logits"))(rows(z))[0, :, 0, 0]
    p = torch.sigmoid(torch.tensor([z, -z], dtype=torch.float64))
    torch.testing.assert_close(found, torch.stack([-p[0], p[1]]))


@pytest.mark.parametrize("y", [-50.0, -0.7, -0.6931471805599453, -0.69, -1e-8])
def test_derivatives_of_one_log_probability_are_right_on_both_branches(y) -> None:
    found = jacrev(lambda y: forms.log_probabilities(y, "log_probabilities"))(rows(y))[0, :, 0, 0]
    assert found[0].item() == pytest.approx(math.exp(y) / math.expm1(y), rel=1e-12)
    assert found[1].item() == 1


@pytest.mark.parametrize("form", ["values", "log_density", "logit"])
def test_what_is_no_prediction_has_no_log_probabilities(form) -> None:
    with refused("output", f"'{form}'"):
        forms.log_probabilities(rows([0.5, 0.5]), form)


@pytest.mark.parametrize("shape", [(3,), (3, 1), (3, 2, 2)])
def test_values_are_a_matrix(shape) -> None:
    y = torch.arange(math.prod(shape)).reshape(shape)
    assert torch.equal(forms.values(y).flatten(), y.flatten())
    assert forms.values(y).shape[0] == 3
    assert forms.values(y).ndim == 2


# probabilities that are none


@pytest.mark.parametrize(
    "y",
    [
        rows([0.5, 0.5]),
        rows([0.5, 0.5009]),
        rows([0.5, 0.4991]),
        rows([1.0005, -0.0005]),
        rows(0.3, 1.0),
        torch.tensor([0.0, 1.0]),
        torch.full((2, 7), 1 / 7).half(),
    ],
)
def test_probabilities_within_the_tolerance_pass(y) -> None:
    forms.check_probabilities(y, "teacher_output")


@pytest.mark.parametrize(
    ("y", "received"),
    [
        (rows([0.5, 0.5], [0.5, 0.502]), "a row of outputs that sums to 1.002"),
        (rows([0.5, 0.5], [0.5, 0.498]), "a row of outputs that sums to 0.998"),
        (rows([-0.002, 1.0]), "outputs between -0.002 and 1$"),
        (rows(0.5, 1.002), "outputs between 0.5 and 1.002"),
        (rows([3.0, -2.0]), "outputs between -2 and 3"),
        (rows([math.nan, 1.0]), "outputs between nan and nan"),
    ],
)
def test_probabilities_beyond_the_tolerance_are_refused(y, received) -> None:
    with refused("student_output", received):
        forms.check_probabilities(y, "student_output")


@pytest.mark.parametrize(
    ("y", "form"),
    [
        (rows([0.2, 0.8], [1.0, 0.0]), "probabilities"),
        (rows([0.2, 0.8], [1.0, 0.0]).log(), "log_probabilities"),
        (rows([0.2, 0.7], [1.0, 0.0]), None),
        (rows([0.2, 0.8], [1.5, -0.5]), None),
        (rows([-0.2, -0.8]), None),
        (rows([3.0, -2.0]), None),
        (rows(0.2, 0.7), None),  # one output could be anything
        (rows([math.nan, 0.5]), None),
        (torch.tensor([[0, 1], [1, 0]]), None),
        (torch.tensor([[0.25, 0.25], [0.5, 0.0]]).unsqueeze(2), None),
    ],
)
def test_only_what_must_be_probabilities_is_recognised(y, form) -> None:
    assert forms.recognise(y) == form


@quick
@given(arrays("float64", (3, 4), elements=st.floats(-30, 30)))
def test_predictions_in_either_form_are_recognised(z) -> None:
    z = torch.tensor(z)
    assert forms.recognise(z.softmax(1)) == "probabilities"
    assert forms.recognise(z.log_softmax(1)) == "log_probabilities"
    assert forms.recognise(z.abs() + 1) is None
