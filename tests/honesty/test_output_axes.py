r"""Outputs with more axes than (n, classes): a class loss must know which axis holds the classes.

A net that labels each position of a sequence gives (n, positions, classes), one that labels each
pixel (n, classes, height, width). Flattened, one softmax would run over positions and classes
together: the loss falls, and the student learns something else. Class losses refuse such outputs;
plain values are compared number by number, whatever their shape.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import limbeck as lb
from limbeck import losses
from limbeck.evaluation import evaluate
from limbeck.teachers.stored import Stored
from tests.refusals import refused

SHAPES = [(3, 4), (2, 3, 3), (3, 1), (1, 3), (4, 1, 1)]
CLASS_LOSSES = {
    "cross_entropy": losses.cross_entropy,
    "with a temperature": lambda: losses.cross_entropy(temperature=3.0),
    "logit_error": losses.logit_error,
    "log derivatives": losses.derivative_error,
    "projected derivatives": lambda: losses.derivative_error(projections=2),
    "weighted derivatives": lambda: losses.derivative_error(domain="plain", weight="teacher"),
    "a sum": lambda: losses.cross_entropy() + 0.1 * losses.logit_error(),
    "square error of probabilities": losses.square_error,
}
REASON = r"class outputs of shape \(\d+, "


def net(*shape, seed=0):
    torch.manual_seed(seed)
    size = torch.Size(shape).numel()
    return nn.Sequential(nn.Linear(5, size), nn.Unflatten(1, shape))


def rows(n=32, seed=0):
    return torch.randn(n, 5, generator=torch.Generator().manual_seed(seed))


def distilled(teacher, student, loss, **options):
    settled = dict(steps=3, batch_size=8, device="cpu", progress=False)
    return lb.distill(teacher, student, rows(), loss, **settled | options)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("form", ["logits", "log_probabilities"])
def test_cross_entropy_of_several_positions_is_refused(shape, form):
    given = net(*shape)
    if form == "log_probabilities":
        given = nn.Sequential(given, nn.LogSoftmax(-1))
    with refused("teacher", REASON, expected=r"\(n,\) or \(n, classes\)"):
        distilled(given, net(*shape), "cross_entropy", teacher_output=form, student_output="logits")


@pytest.mark.parametrize("name", CLASS_LOSSES)
def test_every_loss_on_classes_refuses_several_positions(name):
    said = dict(teacher_output="logits", student_output="logits")
    argument = "student" if name == "square error of probabilities" else "teacher"
    with refused(argument, REASON, expected=r"\(n,\) or \(n, classes\)"):
        distilled(net(3, 4), net(3, 4, seed=1), CLASS_LOSSES[name](), **said)


def test_the_student_alone_may_be_the_one_with_positions():
    said = dict(teacher_output="logits", student_output="logits")
    with refused("student", REASON, expected=r"\(n,\) or \(n, classes\)"):
        distilled(lb.MLP(5, 12), net(3, 4), "cross_entropy", **said)
    data = lb.inputs.Dataset(rows(), torch.zeros(32, dtype=torch.long))
    with refused("student", REASON, expected=r"\(n,\) or \(n, classes\)"):
        lb.distill(
            None, net(3, 4), data, "label_cross_entropy", student_output="logits", progress=False
        )


def test_the_axes_are_refused_before_the_form_is_asked_for():
    with refused("teacher", REASON, expected=r"\(n,\) or \(n, classes\)"):
        distilled(net(3, 4), net(3, 4), "cross_entropy")


@pytest.mark.parametrize("axis", [1, -1])
def test_auto_does_not_compare_probabilities_of_positions_as_values(axis):
    teacher = nn.Sequential(net(3, 4, 2), nn.Softmax(axis))
    with refused("teacher", REASON, expected=r"\(n,\) or \(n, classes\)"):
        distilled(teacher, net(3, 4, 2), "auto")


def test_an_ensemble_of_such_nets_is_refused():
    ensemble = lb.Ensemble([net(4, 3, 3), net(4, 3, 3, seed=1)], output_forms="logits")
    for call in (ensemble, ensemble.log_probabilities):
        with refused("models", REASON, expected=r"\(n,\) or \(n, classes\)"):
            call(rows())
    with refused("teacher", "class outputs of shape"):
        distilled(ensemble, net(4, 3, 3), "auto")
    averaged = lb.Ensemble([net(4, 3), net(4, 3, seed=1)], output_forms="values")
    assert averaged(rows()).shape == (32, 4, 3)


def test_stored_targets_of_several_positions_are_refused():
    stored = Stored(torch.randn(32, 3, 4), "logits")
    with refused("teacher", REASON, expected=r"\(n,\) or \(n, classes\)"):
        distilled(stored, lb.MLP(5, 12), "cross_entropy")


def test_compress_refuses_a_torch_teacher_of_several_positions():
    for options in ({"teacher_output": "logits"}, {"task": "regression"}, {}):
        with refused("teacher", r"shape \(\d+, 3, 4\)"):
            lb.compress(net(3, 4), rows().numpy(), student=(4,), progress=False, **options)


def test_values_of_any_shape_are_compared_number_by_number():
    said = dict(teacher_output="values", student_output="values")
    teacher, student = net(3, 4), net(3, 4, seed=1)
    with torch.no_grad():
        expected = (student(rows()) - teacher(rows())).square().sum((1, 2)).mean() / 2
    result = distilled(teacher, student, "square_error", steps=1, batch_size=32, **said)
    assert result.history["loss"][0] == pytest.approx(float(expected), rel=1e-5)
    held_out = distilled(teacher, net(3, 4), "auto", held_out=rows(seed=1), **said)
    assert held_out.steps == 3
    flat = distilled(teacher, lb.MLP(5, 12), "square_error", teacher_output="values")
    assert flat.steps == 3


def test_values_in_another_order_of_axes_are_refused():
    for loss in ("square_error", losses.derivative_error(domain="plain")):
        with refused("student", r"\(8, 4, 3\) where the teacher's are \(8, 3"):
            distilled(net(3, 4), net(4, 3), loss)
    data = lb.inputs.Dataset(rows(), torch.randn(32, 3, 4))
    with refused("y", r"shape \(8, 3, 4\)"):
        lb.distill(None, net(4, 3), data, "label_square_error", progress=False)


def test_hints_look_at_layers_of_any_shape():
    hint = losses.hints("0", "0")
    assert distilled(net(3, 4), net(3, 4, seed=1), hint).steps == 3


def test_a_loss_that_knows_its_axes_is_not_refused():
    class per_position(losses.square_error):
        def bind(self, probe):
            return None

        def __call__(self, student, teacher, batch, drawn=None):
            targets = F.softmax(teacher.raw(), -1)
            return -(targets * F.log_softmax(student.raw(), -1)).sum((1, 2))

    said = dict(teacher_output="logits", student_output="logits")
    teacher, student = net(3, 4), net(3, 4, seed=1)
    result = distilled(teacher, student, per_position(), steps=300, lr=0.05, **said)
    gap = F.softmax(student(rows()), -1) - F.softmax(teacher(rows()), -1)
    assert result.steps == 300
    assert gap.abs().max() < 0.05


def test_evaluate_refuses_them_too():
    for domain in ("plain", "log"):
        with refused("model", REASON, expected=r"\(n,\) or \(n, classes\)"):
            evaluate(net(3, 4), rows(), output="logits", domain=domain)
    assert evaluate(net(3, 4), rows()).values.shape == (32, 12)
