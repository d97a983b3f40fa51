r"""Networks with their scaling inside: what they compute, how they train, travel and are kept."""

from __future__ import annotations

import importlib.util
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import nn
from torch.func import functional_call, jacrev, jvp, vmap

import limbeck as lb
from limbeck.errors import ArgumentError
from limbeck.evaluation import evaluate
from limbeck.export import export
from limbeck.models import MLP, Preprocessed, Trees
from limbeck.models.preprocessed import standardising
from limbeck.models.tree_fit import fit_tree
from tests.refusals import refused

DOUBLE = torch.float64
SHIFT, SCALE = torch.tensor([50.0, -3.0, 7.0]), torch.tensor([0.1, 2.0, 0.0])
X = torch.tensor([50.0, -3.0, 7.0]) + torch.tensor([10.0, 0.5, 0.0]) * torch.randn(
    60, 3, generator=torch.Generator().manual_seed(1)
)


def net(*sizes: int, **options) -> MLP:
    return MLP(*(sizes or (3, 5, 2)), generator=torch.Generator().manual_seed(0), **options)


def preprocessed(**options) -> Preprocessed:
    return Preprocessed(net(**options), SHIFT, SCALE)


def regression() -> Preprocessed:
    network = net(3, 5, 2, output_form="values")
    return Preprocessed(network, SHIFT, SCALE, torch.tensor([1e3, 0.0]), torch.tensor([50.0, 0.1]))


# what it computes


def test_it_is_the_network_between_two_linear_changes() -> None:
    model = regression()
    inner = model.network((X - SHIFT) * SCALE)
    expected = inner * torch.tensor([50.0, 0.1]) + torch.tensor([1e3, 0.0])
    torch.testing.assert_close(model(X), expected)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30])
def test_a_column_of_scale_zero_is_ignored_whatever_its_values(value) -> None:
    model, other = preprocessed(), X.clone()
    other[:, 2] = value
    torch.testing.assert_close(model(other), model(X), rtol=0, atol=0)


def test_what_is_missing_in_other_columns_stays_visible() -> None:
    x = X.clone()
    x[0, 0] = math.nan
    out = preprocessed()(x)
    assert out[0].isnan().all()
    assert out[1:].isfinite().all()


def test_derivatives_are_those_with_respect_to_raw_inputs() -> None:
    model = Preprocessed(net(hidden="tanh", dtype=DOUBLE), SHIFT, SCALE)
    x = X[:4].double()
    found = evaluate(model, x, ("values", "derivatives"), output="logits", domain="log").derivatives
    step = 1e-5
    for d in range(3):
        at = step * torch.eye(3, dtype=DOUBLE)[d]
        logs = [model(x + sign * at).log_softmax(1) for sign in (1, -1)]
        torch.testing.assert_close(found[:, :, d], (logs[0] - logs[1]) / (2 * step))
    assert not found[:, :, 2].any()
    assert found[:, :, :2].abs().min() > 0


def test_rows_by_vmap_and_tangents_and_other_parameters() -> None:
    model = preprocessed(hidden="tanh")
    rows = vmap(jacrev(lambda row: model(row[None])[0]))(X[:5])
    whole = torch.stack([jacrev(model)(row[None])[0, :, 0] for row in X[:5]])
    torch.testing.assert_close(rows, whole)
    tangent = jvp(model, (X[:5],), (torch.ones(5, 3),))[1]
    torch.testing.assert_close(tangent, whole.sum(2))
    other = net(hidden="tanh")
    nn.init.normal_(other.layers[0].weight, generator=torch.Generator().manual_seed(9))
    weights = {f"network.{name}": p for name, p in other.named_parameters()}
    expected = Preprocessed(other, SHIFT, SCALE)(X)
    torch.testing.assert_close(functional_call(model, weights, (X,)), expected)


def test_features_may_be_images_or_single_numbers() -> None:
    images = torch.rand(6, 2, 4)
    model = Preprocessed(net(8, 3), *standardising(images))
    assert model(images).shape == (6, 3)
    numbers = torch.rand(6)
    assert Preprocessed(net(1, 3), *standardising(numbers))(numbers).shape == (6, 3)


def test_whole_numbers_are_taken() -> None:
    x = torch.tensor([[50, -3, 7]])
    torch.testing.assert_close(preprocessed()(x), preprocessed()(x.float()))


class Encoder(nn.Module):
    r"""Two columns by name, one of them a code."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Embedding(3, 2)

    def forward(self, x):
        return torch.cat([x["number"][:, None], self.codes(x["code"])], 1)


TABLE = {"number": X[:, 0], "code": torch.arange(60) % 3}


def test_an_encoder_comes_first_and_is_trained_along() -> None:
    torch.manual_seed(0)
    encoder = Encoder()
    model = Preprocessed(net(), SHIFT, SCALE, encoder=encoder)
    torch.testing.assert_close(model(TABLE), preprocessed()(encoder(TABLE)))
    before = encoder.codes.weight.detach().clone()
    lb.distill(
        lambda x: torch.nn.functional.one_hot(x["code"] % 2, 2).float(), model, TABLE,
        steps=20, batch_size=20, lr=0.1, device="cpu", teacher_output="probabilities",
        progress=False,
    )  # fmt: skip
    assert not torch.equal(before[:, 0], encoder.codes.weight[:, 0])
    assert torch.equal(before[:, 1], encoder.codes.weight[:, 1])  # its feature has scale 0


# forms


@pytest.mark.parametrize("output", ["linear", "softmax", "log_softmax"])
def test_the_form_is_the_networks_and_so_are_log_probabilities(output) -> None:
    model = preprocessed(output=output)
    assert model.output_form == model.network.output_form
    far = X * 1e4  # where a probability underflows
    logs = model.log_probabilities(far)
    torch.testing.assert_close(logs, net()((far - SHIFT) * SCALE).log_softmax(1))
    assert logs.isfinite().all()
    assert logs.min() < -200


def test_forms_of_other_modules_are_said_or_unknown() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(3, 2)
    assert Preprocessed(linear).output_form is None
    told = Preprocessed(linear, output_form="logits")
    assert told.output_form == "logits"
    torch.testing.assert_close(told.log_probabilities(X), linear(X).log_softmax(1))
    with refused("output", "'values'"):
        Preprocessed(linear).log_probabilities(X)
    assert Preprocessed(net(3, 1), out_scale=[2.0]).output_form == "values"


def test_units_can_be_set_afterwards_for_values_alone() -> None:
    model = Preprocessed(net(3, 5, 2, output_form="values"), SHIFT, SCALE)
    plain = model(X)
    model.set_outputs([1.0, 2.0], [3.0, 4.0])
    torch.testing.assert_close(
        model(X), plain * torch.tensor([3.0, 4.0]) + torch.tensor([1.0, 2.0])
    )
    assert {"out_shift", "out_scale"} <= set(model.state_dict())
    model.set_outputs(torch.zeros(2), torch.ones(2))
    assert torch.equal(model(X), plain)
    logits = preprocessed()
    logits.set_outputs(torch.zeros(2), torch.ones(2))  # nothing changes
    assert (logits.output_form, logits.out_shift) == ("logits", None)
    with refused("output_form", "'logits'"):
        logits.set_outputs([1.0, 0.0], None)


# training


def linear_teacher(x):
    return 1e4 + 300 * x[:, :1] - 40 * x[:, 1:2]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_regression_in_the_teachers_own_units(engine) -> None:
    shift, scale = standardising(X)
    wanted = linear_teacher(X)
    network = net(3, 1, output_form="values")
    model = Preprocessed(network, shift, scale, wanted.mean(0), wanted.std(0))
    result = lb.distill(
        linear_teacher, model, X, lb.losses.square_error() * (1 / wanted.var().item()), steps=300,
        batch_size=20, lr=0.05, device="cpu", engine=engine, progress=False,
    )  # fmt: skip
    assert result.engine == engine
    error = (model(X) - wanted).square().mean() / wanted.var()
    assert error < 1e-4
    torch.testing.assert_close(model.shift, shift, rtol=0, atol=0)


def test_derivatives_with_respect_to_raw_inputs_are_matched() -> None:
    teacher = Preprocessed(net(3, 4, 2, hidden="tanh"), SHIFT, SCALE)
    student = preprocessed(hidden="tanh")
    loss = lb.losses.derivative_error(weight="teacher")
    result = lb.distill(
        teacher, student, X, loss, steps=200, batch_size=20, lr=0.02, device="cpu", engine="eager",
        progress=False,
    )  # fmt: skip
    history = result.history["loss"]
    assert history[-1] < 0.05 * history[0]


# away and back


@pytest.mark.parametrize("make", [preprocessed, regression], ids=["classes", "values"])
def test_it_compiles_and_exports_with_any_number_of_rows(make) -> None:
    model = make()
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    rows = ({0: torch.export.Dim("rows")},)
    program = torch.export.export(model, (X[:5],), dynamic_shapes=rows).module()
    for n in (2, 9):
        torch.testing.assert_close(compiled(X[:n]), model(X[:n]))
        torch.testing.assert_close(program(X[:n]), model(X[:n]))


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnxscript", "onnxruntime")),
    reason="needs the extra limbeck[onnx]",
)
def test_the_onnx_file_takes_raw_inputs(tmp_path) -> None:
    import onnxruntime

    model = regression()
    path = export(model, tmp_path / "student.onnx", input_shape=3, card=False)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    raw = X.clone()
    raw[3, 2] = math.nan  # an ignored column
    found = session.run(None, {"x": raw.numpy()})[0]
    np.testing.assert_allclose(found, model(raw).detach(), rtol=1e-5)


def labelled() -> Preprocessed:
    return Preprocessed(fit_tree(X, torch.eye(2)[(X[:, 0] > 50).long()]), SHIFT, SCALE)


@pytest.mark.parametrize(
    "make",
    [preprocessed, regression, lambda: Preprocessed(preprocessed(), None, [2.0, 1, 1]), labelled],
    ids=["classes", "values", "nested", "trees"],
)
def test_a_saved_student_is_read_back_without_the_users_code(tmp_path, make) -> None:
    model = make()
    history = lb.training.result.History()
    lb.Result(model, history, 0, "made by hand", 0.0).save(tmp_path / "student")
    back = lb.load(tmp_path / "student").student
    assert type(back) is Preprocessed
    assert json.loads(json.dumps(model.spec())) == back.spec()
    assert torch.equal(back(X), model(X))
    torch.testing.assert_close(back.state_dict(), model.state_dict(), rtol=0, atol=0)


def test_an_encoder_of_limbecks_own_is_read_back_too(tmp_path) -> None:
    encoders = pytest.importorskip("limbeck.models.table_encoder")
    encoder = encoders.TableEncoder([("number", None, 50.0, 10.0, 0.0)], [("code", 20, False)])
    model = Preprocessed(net(encoder.width, 5, 2), encoder=encoder)
    history = lb.training.result.History()
    lb.Result(model, history, 0, "made by hand", 0.0).save(tmp_path / "student")
    back = lb.load(tmp_path / "student").student
    assert type(back.encoder) is encoders.TableEncoder
    assert torch.equal(back(TABLE), model(TABLE))


@pytest.mark.parametrize(
    ("model", "argument", "received"),
    [
        (Preprocessed(nn.Linear(3, 2)), "network", "^a Linear$"),
        (
            Preprocessed(net(), encoder=nn.Flatten()),
            "encoder",
            "a Flatten",
        ),
    ],
    ids=["network", "encoder"],
)
def test_modules_of_the_users_own_have_no_spec(tmp_path, model, argument, received) -> None:
    with refused(argument, received):
        model.spec()
    history = lb.training.result.History()
    lb.Result(model, history, 0, "made by hand", 0.0).save(tmp_path / "student")
    with refused("student", "None"):
        lb.load(tmp_path / "student")
    back = lb.load(tmp_path / "student", model).student
    assert back is model


@pytest.mark.parametrize(
    "change",
    [
        {"type": "MLP"},
        {"colour": "red"},
        {"encoder": {"type": "Popen"}},
        {"network": {"type": "Popen"}},
        {"network": None},
    ],
)
def test_bad_specs(change) -> None:
    with pytest.raises(ArgumentError):
        Preprocessed.from_spec({**preprocessed().spec(), **change})


# refusals


@pytest.mark.parametrize(
    ("make", "argument", "received", "expected"),
    [
        (
            lambda: Preprocessed(net(), SHIFT, SCALE[:2]),
            "scale",
            r"shape \(2,\) beside \(3,\)",
            "",
        ),
        (
            lambda: Preprocessed(net(), SHIFT * math.nan),
            "shift",
            "^3 NaN",
            "",
        ),
        (
            lambda: Preprocessed(net(), out_scale=[math.inf]),
            "out_scale",
            "^1 NaN",
            "",
        ),
        (
            lambda: Preprocessed(net(), output_form="logit"),
            "output_form",
            "'logit'",
            "did you mean 'logits'",
        ),
        (
            lambda: Preprocessed(net(), out_scale=[2.0], output_form="logits"),
            "output_form",
            "'logits'",
            "'values'",
        ),
        (lambda: preprocessed()(X[:, :1]), "x", r"shape \(60, 1\)", r"shape \(n, 3\)"),
        (lambda: preprocessed()(TABLE), "x", "^a dict$", ""),
        (
            lambda: Preprocessed(net(3, 1), out_shift=[1.0, 2.0])(X),
            "out_shift",
            r"\(2,\) numbers for outputs \(60, 1\)",
            "",
        ),
        (lambda: standardising(torch.zeros(0, 3)), "x", "^no rows$", ""),
    ],
)
def test_what_does_not_fit_is_refused(make, argument, received, expected) -> None:
    with refused(argument, received, expected=expected):
        make()


# scales


columns = arrays(np.float64, (7, 3), elements=st.floats(-1e6, 1e6, width=32))


@settings(deadline=None, derandomize=True, max_examples=60)
@given(columns)
def test_scaled_columns_have_mean_zero_and_deviation_one_or_are_ignored(x) -> None:
    shift, scale = standardising(torch.tensor(x))
    scaled = ((torch.tensor(x) - shift.double()) * scale.double()).numpy()
    for k in range(3):
        if scale[k] == 0:
            assert np.ptp(x[:, k]) <= 1e-6 * np.abs(x[:, k]).max() + 1e-37
        else:
            precision = 1e-6 * np.abs(x[:, k]).max() * scale[k].item()
            assert abs(scaled[:, k].mean()) < 1e-5 + precision
            assert scaled[:, k].std() == pytest.approx(1, rel=1e-5)


def test_scales_come_from_finite_numbers_and_rare_ones_are_not_blown_up() -> None:
    x = torch.zeros(10_000, 4)
    x[0, 0] = 1.0  # rare: a hundred deviations away
    x[:, 1] = torch.nan
    x[:3, 1] = torch.tensor([1.0, 2.0, 3.0])
    x[:, 2] = torch.inf
    x[:, 3] = 0.1 + 1e-9 * torch.rand(10_000)  # constant in 32 bits
    shift, scale = standardising(x)
    assert ((x[:, 0] - shift[0]) * scale[0]).abs().max().item() == pytest.approx(20)
    assert (shift[1].item(), scale[1].item()) == pytest.approx((2.0, math.sqrt(1.5)))
    assert scale[2:].tolist() == [0.0, 0.0]
    assert shift.isfinite().all()


def test_trees_are_a_network_too() -> None:
    model = labelled()
    assert isinstance(model.network, Trees)
    assert model.output_form == "probabilities"
