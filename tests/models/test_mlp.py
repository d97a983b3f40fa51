r"""Nets, one and batched: shapes, forms, stable logs, specs, tracing."""

from __future__ import annotations

import json
import math

import pytest
import scipy.special
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import functional_call, jacrev, vmap

from limbeck.models import MLP, BatchedMLP
from limbeck.models.mlp import LAYER_KINDS
from limbeck.outputs import log_probabilities, probabilities
from tests.models.nets import DOUBLE, KINDS, generator, normal
from tests.refusals import refused


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


# shapes and arguments


@pytest.mark.parametrize("n", [0, 1, 5])
def test_trailing_dimensions_are_flattened(n: int) -> None:
    net = MLP(12, 5, 3, dtype=DOUBLE)
    x = normal(n, 3, 2, 2)
    assert net(x).shape == (n, 3)
    assert torch.equal(net(x), net(x.reshape(n, 12)))


def test_one_input_may_be_a_plain_vector() -> None:
    net = MLP(1, 5, 3, dtype=DOUBLE)
    x = normal(7)
    assert torch.equal(net(x), net(x[:, None]))


@pytest.mark.parametrize(
    "sizes", [(), (3,), (3, 0), (3, -1, 2), (3, 2.0), ((3, 2),), (True, 2), ("3", 2)]
)
def test_bad_sizes(sizes: tuple) -> None:
    with refused("sizes"):
        MLP(*sizes)
    with refused("sizes"):
        BatchedMLP(2, *sizes)


@pytest.mark.parametrize(
    ("keywords", "argument", "received", "expected"),
    [
        ({"hidden": "rellu"}, "hidden", "'rellu'", "did you mean 'relu'"),
        ({"hidden": ["relu", "tanhh"]}, "hidden", "'tanhh'", "did you mean 'tanh'"),
        ({"hidden": ["relu"]}, "hidden", "^1 names$", "one name, or 2"),
        ({"output": "sofmax"}, "output", "'sofmax'", "did you mean 'softmax'"),
        ({"output_form": "logit"}, "output_form", "'logit'", "did you mean 'logits'"),
        ({"dtype": torch.int64}, "dtype", r"torch\.int64", ""),
    ],
)
def test_bad_keywords(keywords: dict, argument, received, expected) -> None:
    with refused(argument, received, expected=expected):
        MLP(4, 5, 6, 3, **keywords)


@pytest.mark.parametrize("output", ["softmax", "log_softmax"])
def test_one_softmax_output_is_refused(output: str) -> None:
    with refused("output", expected="'logistic' or 'linear'"):
        MLP(4, 1, output=output)


@pytest.mark.parametrize(
    ("x", "received", "expected"),
    [
        (torch.zeros(5, 3), r"shape \(5, 3\)", r"\(n, 4\)"),
        (torch.zeros(4), r"shape \(4,\)", r"\(n, 4\)"),
        (torch.zeros(()), r"shape \(\)", r"\(n, \.\.\.\)"),
        (torch.zeros(5, 4, dtype=torch.int64), "torch.int64", "floating-point"),
        ([[0.0] * 4], "a list", ""),
    ],
)
def test_bad_inputs(x: object, received: str, expected: str) -> None:
    with refused("x", received, expected=expected):
        MLP(4, 2)(x)
    with refused("x", received, expected=expected):
        BatchedMLP(3, 4, 2)(x)


def test_integers_of_numpy_are_sizes() -> None:
    np = pytest.importorskip("numpy")
    net = MLP(np.int64(4), np.int32(2))
    assert json.dumps(net.spec())


# kinds and logs


@pytest.mark.parametrize(
    ("outputs", "output", "kind"),
    [
        (3, "linear", "logits"),
        (1, "linear", "logits"),
        (3, "softmax", "probabilities"),
        (3, "log_softmax", "log_probabilities"),
        (1, "logistic", "probabilities"),
        (1, "probit", "probabilities"),
        (3, "logistic", "values"),
        (3, "probit", "values"),
        (1, "relu", "values"),
        (3, "tanh", "values"),
    ],
)
def test_output_form(outputs: int, output: str, kind: str) -> None:
    assert MLP(4, 5, outputs, output=output).output_form == kind
    assert BatchedMLP(2, 4, 5, outputs, output=output).output_form == kind
    assert MLP(4, 5, outputs, output=output, output_form="values").output_form == "values"


@pytest.mark.parametrize(
    ("outputs", "output", "kind"),
    [
        (3, "linear", "logits"),
        (1, "linear", "logits"),
        (3, "softmax", "probabilities"),
        (3, "log_softmax", "log_probabilities"),
        (1, "logistic", "probabilities"),
        (1, "probit", "probabilities"),
        (3, "relu", "logits"),  # said by the user
        (3, "logistic", "probabilities"),
    ],
)
def test_log_probabilities_agree_with_outputs(outputs: int, output: str, kind: str) -> None:
    net = MLP(4, 5, outputs, output=output, output_form=kind, dtype=DOUBLE)
    x = normal(6, 4)
    logs, y = net.log_probabilities(x), net(x)
    p = probabilities(y, kind)
    p = torch.cat([1 - p, p], 1) if outputs == 1 else p
    torch.testing.assert_close(logs.exp(), p, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(logs, log_probabilities(y, kind), rtol=1e-10, atol=1e-12)
    if output != "logistic" or outputs == 1:
        torch.testing.assert_close(logs.exp().sum(1), torch.ones(6, dtype=DOUBLE))


def test_values_have_no_log_probabilities() -> None:
    for net in (MLP(4, 2, output_form="values"), BatchedMLP(3, 4, 2, output="relu")):
        with refused("output_form", "'values'"):
            net.log_probabilities(torch.zeros(1, 4))


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("output", ["linear", "softmax", "log_softmax"])
def test_logs_of_far_logits(output: str, dtype: torch.dtype) -> None:
    net = MLP(2, 2, output=output, dtype=dtype)
    torch.nn.init.eye_(net.layers[0].weight)
    x = torch.tensor([[1e4, -1e4], [-1e4, 1e4]], dtype=dtype)
    expected = torch.tensor([[0, -2e4], [-2e4, 0]], dtype=dtype)
    assert torch.equal(net.log_probabilities(x), expected)
    jacobian = vmap(jacrev(lambda row: net.log_probabilities(row[None])[0]))(x)
    rows = [[[0, 0], [-1, 1]], [[1, -1], [0, 0]]]
    assert torch.equal(jacobian, torch.tensor(rows, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("output", ["linear", "logistic", "probit"])
def test_logs_of_one_far_output(output: str, dtype: torch.dtype) -> None:
    net = MLP(1, 1, output=output, dtype=dtype)
    torch.nn.init.ones_(net.layers[0].weight)
    x = torch.tensor([-1e4, -40.0, -8.0, 0.0, 8.0, 40.0, 1e4], dtype=dtype)
    log = scipy.special.log_ndtr if output == "probit" else scipy.special.log_expit
    slope = {
        # the Mills ratio, and 1 - p
        "probit": lambda z: math.sqrt(2 / math.pi) / scipy.special.erfcx(-z / math.sqrt(2)),
        "logistic": lambda z: scipy.special.expit(-z),
    }["probit" if output == "probit" else "logistic"]
    z = x.double().numpy()
    # what is below the smallest normal number of the type may be zero
    close = {"rtol": 64 * torch.finfo(dtype).eps, "atol": torch.finfo(dtype).tiny}
    expected = torch.stack([torch.tensor(log(-z)), torch.tensor(log(z))], 1).to(dtype)
    torch.testing.assert_close(net.log_probabilities(x), expected, **close)
    jacobian = vmap(jacrev(lambda t: net.log_probabilities(t[None])[0]))(x)
    expected = torch.stack([-torch.tensor(slope(-z)), torch.tensor(slope(z))], 1).to(dtype)
    torch.testing.assert_close(jacobian, expected, **close)


def test_probit_keeps_its_left_tail() -> None:
    z = torch.tensor([-9.0, -5.0, -1.0, 0.0, 2.0])
    torch.testing.assert_close(
        LAYER_KINDS["probit"](z), torch.tensor(scipy.special.ndtr(z.numpy())), rtol=5e-6, atol=0
    )


@pytest.mark.parametrize("kind", ["probabilities", "log_probabilities"])
@pytest.mark.parametrize("p", [[[0.0]], [[1.0]], [[0.0, 1.0]], [[0.3, 0.7]], [[0.4]]])
def test_logs_of_certainties_are_finite(p: list, kind: str) -> None:
    y = torch.tensor(p, dtype=DOUBLE)
    y = y if kind == "probabilities" else y.log()
    logs = log_probabilities(y, kind)
    jacobian = jacrev(lambda y: log_probabilities(y, kind))(y)
    assert logs.isfinite().all()
    assert jacobian.isfinite().all()
    exact = torch.tensor(p, dtype=DOUBLE)
    exact = torch.cat([1 - exact, exact], 1) if exact.shape[1] == 1 else exact
    torch.testing.assert_close(logs.exp(), exact)


@settings(deadline=None, max_examples=50)
@given(st.floats(-700, -1e-12))
def test_complement_of_a_log_probability(log_p: float) -> None:
    logs = log_probabilities(torch.tensor([log_p], dtype=DOUBLE), "log_probabilities")[0]
    exact = math.log1p(-math.exp(log_p)) if log_p < -0.7 else math.log(-math.expm1(log_p))
    assert logs[0].item() == pytest.approx(exact, rel=1e-14, abs=0)
    assert logs[1].item() == log_p


# initialisation and specs


def test_initialisation() -> None:
    net = MLP(300, 400, 500, 200, hidden=["relu", "tanh"], dtype=DOUBLE, generator=generator())
    he, glorot, output = (layer.weight.detach() for layer in net.layers)
    assert he.std().item() == pytest.approx(math.sqrt(2 / 300), rel=0.02)
    assert (he.abs() > 2.5 * math.sqrt(2 / 300)).any(), "normal, not uniform"
    for weight, fans in ((glorot, 900), (output, 700)):
        assert weight.std().item() == pytest.approx(math.sqrt(2 / fans), rel=0.02)
        assert weight.abs().max().item() <= math.sqrt(6 / fans)
    assert all(not layer.bias.any() for layer in net.layers)


def test_lecun_initialisation() -> None:
    net = MLP(300, 400, 500, 2000, dtype=DOUBLE, generator=generator(), init="lecun")
    for layer, inputs in zip(net.layers, (300, 400, 500), strict=True):
        for part, rel in ((layer.weight.detach(), 0.02), (layer.bias.detach(), 0.15)):
            assert part.std().item() == pytest.approx((inputs + 1) ** -0.5, rel=rel)
            assert (part.abs() > 2 * (inputs + 1) ** -0.5).any(), "normal, not uniform"
    with refused("init", "'glorot'"):
        MLP(3, 2, init="glorot")


def test_equal_generators_give_equal_nets_and_leave_the_global_one_alone() -> None:
    before = torch.random.get_rng_state()
    one, two, other = (MLP(4, 5, 3, generator=generator(s)) for s in (3, 3, 4))
    assert torch.equal(before, torch.random.get_rng_state())
    for p, q, r in zip(one.parameters(), two.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)
        assert p.dim() == 1 or not torch.equal(p, r)


SPECS = [
    MLP(4, 3),
    MLP(4, 5, 6, 3, hidden=["relu", "probit"], output="softmax", bias=False, dtype=DOUBLE),
    MLP(4, 5, 1, output="tanh", output_form="logits"),
    BatchedMLP(3, 4, 5, 2, hidden="tanh", output="log_softmax", dtype=DOUBLE),
    BatchedMLP(1, 4, 2, bias=False),
]


@pytest.mark.parametrize("net", SPECS, ids=lambda net: type(net).__name__)
def test_spec_round_trip(net: MLP | BatchedMLP) -> None:
    spec = json.loads(json.dumps(net.spec()))
    again = type(net).from_spec(spec)
    assert again.spec() == net.spec()
    again.load_state_dict(net.state_dict())
    x = torch.randn(5, 4, dtype=next(net.parameters()).dtype)
    assert torch.equal(again(x), net(x))
    assert str(sum(p.numel() for p in net.parameters())) in repr(net)


@pytest.mark.parametrize(
    "change", [{"type": "BatchedMLP"}, {"type": "CNN"}, {"members": 3}, {"colour": "red"}]
)
def test_bad_spec(change: dict) -> None:
    with refused("spec", expected="spec|sizes"):
        MLP.from_spec({**MLP(4, 3).spec(), **change})


# tracing

TRACED = [
    pytest.param(MLP(4, 5, 3, hidden=kind, output=kind), id=f"MLP-{kind}") for kind in KINDS
] + [
    pytest.param(BatchedMLP(6, 4, 5, 3, hidden=kind, output=kind), id=f"BatchedMLP-{kind}")
    for kind in ("relu", "softmax")
]


@pytest.mark.parametrize("net", TRACED)
def test_compiles_whole(net: torch.nn.Module) -> None:
    torch.compiler.reset()
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    for n in (3, 8):
        x = torch.randn(n, 4)
        torch.testing.assert_close(compiled(x), net(x))
    if net.output_form != "values":
        logs = torch.compile(net.log_probabilities, backend="eager", fullgraph=True)
        torch.testing.assert_close(logs(x), net.log_probabilities(x))


@pytest.mark.parametrize("net", [MLP(4, 5, 3), BatchedMLP(6, 4, 5, 3)])
def test_exports_with_any_number_of_rows(net: torch.nn.Module) -> None:
    rows = ({0: torch.export.Dim("rows")},)
    program = torch.export.export(net, (torch.randn(5, 4),), dynamic_shapes=rows)
    x = torch.randn(9, 4)
    torch.testing.assert_close(program.module()(x), net(x))


@pytest.mark.parametrize("kind", KINDS)
def test_jacobians_of_rows(kind: str) -> None:
    net = MLP(4, 5, 3, hidden=kind, output=kind, dtype=DOUBLE)
    x = normal(6, 4)
    jacobians = vmap(jacrev(lambda row: net(row[None])[0]))(x)
    one_by_one = [torch.autograd.functional.jacobian(net, row[None])[0, :, 0] for row in x]
    torch.testing.assert_close(jacobians, torch.stack(one_by_one))


def test_functional_call_takes_other_weights() -> None:
    one, two = MLP(4, 5, 3), MLP(4, 5, 3)
    x = torch.randn(2, 4)
    assert torch.equal(functional_call(one, dict(two.named_parameters()), (x,)), two(x))
    assert one.layers[0].weight.shape == (5, 4)
