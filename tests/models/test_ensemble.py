r"""Ensembles: averages of probabilities, their logs and log derivatives where classes underflow."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import jacrev, jvp, vmap

from limbeck.models import MLP, BatchedMLP, Ensemble
from tests.models.nets import batch_of
from tests.refusals import refused

DOUBLE = torch.float64
WEIGHTS = [None, [1.0, 3.0, 4.0]]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def mlp(*sizes: int, seed: int = 0, **keywords: object) -> MLP:
    g = torch.Generator().manual_seed(seed)
    return MLP(*sizes, dtype=DOUBLE, generator=g, **keywords)


def average(parts: list[Tensor], weights: list[float] | None) -> Tensor:
    weights = weights or [1.0] * len(parts)
    total = sum(weight * part for weight, part in zip(weights, parts, strict=True))
    return total / sum(weights)


# averages


@pytest.mark.parametrize("weights", WEIGHTS)
def test_averages_probabilities_of_mixed_kinds(weights: list[float] | None) -> None:
    nets = [
        mlp(4, 5, 3, seed=i, output=o) for i, o in enumerate(["linear", "softmax", "log_softmax"])
    ]
    ensemble, x = Ensemble(nets, weights), normal(6, 4)
    expected = average([nets[0](x).softmax(1), nets[1](x), nets[2](x).exp()], weights)
    assert ensemble.output_form == "probabilities"
    torch.testing.assert_close(ensemble(x), expected, rtol=1e-13, atol=0)
    torch.testing.assert_close(ensemble.log_probabilities(x), expected.log(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_foreign_members(weights: list[float] | None) -> None:
    linear = nn.Linear(4, 3).double()
    net = mlp(4, 3)
    models = [linear, lambda x: linear(x).square().softmax(1), net]
    ensemble = Ensemble(models, weights, output_forms=["logits", "probabilities", None])
    x = normal(6, 4)
    parts = [linear(x).softmax(1), linear(x).square().softmax(1), net(x).softmax(1)]
    expected = average(parts, weights)
    torch.testing.assert_close(ensemble(x), expected, rtol=1e-13, atol=0)
    torch.testing.assert_close(ensemble.log_probabilities(x), expected.log(), rtol=1e-12, atol=0)
    assert list(ensemble) == models
    assert ensemble[1] is models[1]
    assert ensemble[-1] is net
    assert len(ensemble) == 3


@pytest.mark.parametrize("column", [True, False])
@pytest.mark.parametrize("kind", ["logits", "probabilities", "log_probabilities"])
def test_one_output_is_class_one(kind: str, column: bool) -> None:
    form = {"logits": torch.logit, "probabilities": lambda p: p, "log_probabilities": torch.log}
    shape = (2, 1) if column else (2,)
    ps = [torch.tensor(p, dtype=DOUBLE).reshape(shape) for p in ([0.2, 0.9], [0.6, 0.5])]
    ensemble = Ensemble([lambda x, p=p: form[kind](p) for p in ps], [1, 3], output_forms=kind)
    x = torch.zeros(2, 1)
    p = average(ps, [1, 3])
    torch.testing.assert_close(ensemble(x), p)
    columns = torch.stack([1 - p.flatten(), p.flatten()], 1).log()
    torch.testing.assert_close(ensemble.log_probabilities(x), columns)


@pytest.mark.parametrize("output", ["linear", "logistic", "probit"])
def test_one_output_nets(output: str) -> None:
    nets = [mlp(4, 5, 1, seed=i, output=output) for i in range(3)]
    ensemble, x = Ensemble(nets), normal(6, 4)
    p = ensemble(x)
    assert p.shape == (6, 1)
    logs = ensemble.log_probabilities(x)
    torch.testing.assert_close(logs, torch.cat([1 - p, p], 1).log(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_regression_averages_values(weights: list[float] | None) -> None:
    nets = [mlp(4, 5, 2, seed=i, output_form="values") for i in range(3)]
    x = normal(6, 4)
    ensemble = Ensemble(nets, weights)
    assert ensemble.output_form == "values"
    torch.testing.assert_close(ensemble(x), average([net(x) for net in nets], weights))
    with refused("output_form", "'values'"):
        ensemble.log_probabilities(x)
    flat = Ensemble([lambda x: x.sum(1), lambda x: x[:, 0]], output_forms="values")
    torch.testing.assert_close(flat(x), (x.sum(1) + x[:, 0]) / 2)


def test_an_ensemble_may_be_a_member() -> None:
    nets = [mlp(4, 3, seed=i) for i in range(3)]
    nested = Ensemble([Ensemble(nets[:2]), nets[2]], [2, 1])
    x = normal(5, 4)
    torch.testing.assert_close(nested(x), Ensemble(nets)(x))
    torch.testing.assert_close(nested.log_probabilities(x), Ensemble(nets).log_probabilities(x))


def test_members_own_logs_are_used_also_of_callable_objects() -> None:
    class Far:
        output_form = "probabilities"

        def __call__(self, x: Tensor) -> Tensor:
            return self.log_probabilities(x).exp()

        def log_probabilities(self, x: Tensor) -> Tensor:
            return torch.tensor([[0.0, -1e4]]).expand(len(x), 2)

    logs = Ensemble([Far(), Far()]).log_probabilities(torch.zeros(3, 1))
    torch.testing.assert_close(logs, torch.tensor([[0.0, -1e4]]).expand(3, 2), rtol=1e-6, atol=1e-6)


def test_certain_members_keep_logs_and_derivatives_finite() -> None:
    r"""A forest's votes are exact zeros and ones, and some class may get none."""
    votes = [torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[0.0, 1.0, 0.0]])]
    ensemble = Ensemble([lambda x, v=v: v * x for v in votes], output_forms="probabilities")
    x = torch.ones(1, 1)
    logs = ensemble.log_probabilities(x)
    torch.testing.assert_close(logs.exp(), torch.tensor([[0.5, 0.5, 0.0]]))
    assert logs.isfinite().all()
    slopes = jacrev(ensemble.log_probabilities)(x).flatten()
    torch.testing.assert_close(slopes, torch.tensor([1.0, 1.0, 0.0]))


# log derivatives


def far(dtype: torch.dtype, batched: bool, weights: list[float] | None) -> Ensemble:
    r"""Three linear nets whose logits differ by 300: classes 1 and 2 underflow in float32."""
    nets = [mlp(2, 3, seed=i).to(dtype) for i in range(3)]
    for i, net in enumerate(nets):
        net.layers[0].bias.data = torch.tensor([300.0, 0.5 * i, -i], dtype=dtype)
    return Ensemble(batch_of(nets) if batched else nets, weights)


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_log_derivatives_of_classes_that_underflow(
    weights: list[float] | None, batched: bool
) -> None:
    x = torch.tensor([[0.3, -0.7], [1.1, 0.4]])
    low, high = (far(dtype, batched, weights) for dtype in (torch.float32, DOUBLE))
    assert (low(x)[:, 1:] == 0).all(), "nothing underflows"
    assert (high(x.double()) > 0).all()
    torch.testing.assert_close(
        low.log_probabilities(x).double(), high.log_probabilities(x.double()), rtol=1e-6, atol=0
    )

    def slopes(ensemble: Ensemble, x: Tensor) -> Tensor:
        return vmap(jacrev(lambda row: ensemble.log_probabilities(row[None])[0]))(x)

    assert slopes(low, x).isfinite().all()
    # float32 logs of -300 are good to 3e-5, and so are the softmax weights over members
    torch.testing.assert_close(
        slopes(low, x).double(), slopes(high, x.double()), rtol=2e-4, atol=1e-5
    )
    # and in float64 they are ∂t / t
    plain = vmap(jacrev(lambda row: high(row[None])[0]))(x.double())
    torch.testing.assert_close(slopes(high, x.double()), plain / high(x.double()).unsqueeze(2))


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000), st.floats(0.01, 100))
def test_log_derivatives_are_averages_by_responsibility(seed: int, scale: float) -> None:
    r"""∂log t_i = Σ_n w_ni ∂log t_ni with w = softmax over members of log weight + log t_ni."""
    nets = [mlp(3, 4, 3, seed=seed + i, hidden="tanh") for i in range(3)]
    for net in nets:
        net.layers[-1].weight.data *= scale
    prior = torch.tensor([0.2, 0.3, 0.5], dtype=DOUBLE)
    ensemble, x = Ensemble(nets, prior), normal(1, 3, seed=seed)
    logs = torch.stack([net.log_probabilities(x)[0] for net in nets])  # (members, classes)
    slopes = torch.stack([jacrev(net.log_probabilities)(x)[0, :, 0] for net in nets])
    w = (logs + prior.log()[:, None]).softmax(0)
    expected = torch.einsum("mi,mid->id", w, slopes)
    mine = jacrev(ensemble.log_probabilities)(x)[0, :, 0]
    torch.testing.assert_close(mine, expected, rtol=1e-10, atol=1e-10)


def test_second_derivatives() -> None:
    ensemble, x, v = Ensemble([mlp(3, 4, 2, seed=i) for i in range(2)]), normal(2, 3), normal(2, 3)
    x.requires_grad_()
    assert torch.autograd.gradgradcheck(ensemble.log_probabilities, (x,))
    product = jvp(jacrev(lambda x: ensemble.log_probabilities(x).sum()), (x,), (v,))[1]
    assert product.isfinite().all()


# batched


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize(
    ("outputs", "keywords"),
    [
        (3, {}),
        (3, {"output": "softmax"}),
        (1, {"output": "probit"}),
        (2, {"output_form": "values"}),
    ],
)
def test_batched(outputs: int, keywords: dict, weights: list[float] | None) -> None:
    nets = [mlp(4, 5, outputs, seed=i, **keywords).eval() for i in range(3)]
    plain, batched, x = Ensemble(nets, weights), Ensemble(batch_of(nets), weights), normal(6, 4)
    assert (len(batched), batched.output_form) == (3, plain.output_form)
    torch.testing.assert_close(batched(x), plain(x), rtol=1e-12, atol=1e-12)
    for mine, net in zip(batched, plain, strict=True):
        torch.testing.assert_close(mine(x), net(x))
    if plain.output_form == "probabilities":
        logs = batched.log_probabilities(x), plain.log_probabilities(x)
        torch.testing.assert_close(*logs, rtol=1e-12, atol=1e-12)


# specs, state and tracing


def ensembles() -> list[Ensemble]:
    nets = [mlp(4, 5, 3, seed=i) for i in range(3)]
    return [
        Ensemble(nets),
        Ensemble([*nets, mlp(4, 3, output="softmax")], [1, 2, 3, 2]),
        Ensemble(batch_of(nets), [1, 2, 1]),
        Ensemble([Ensemble(nets, [1, 1, 2]), nets[0]]),
    ]


@pytest.mark.parametrize("ensemble", ensembles())
def test_spec_round_trip(ensemble: Ensemble) -> None:
    spec = json.loads(json.dumps(ensemble.spec()))
    again = Ensemble.from_spec(spec)
    again.load_state_dict(ensemble.state_dict())
    assert again.spec() == spec
    x = normal(5, 4)
    assert torch.equal(again(x), ensemble(x))
    assert f"{len(ensemble)} members" in repr(ensemble)


def test_specs_are_of_limbecks_own_models() -> None:
    class Mine(MLP):
        pass

    for model in (nn.Linear(4, 3), Mine(4, 3), lambda x: x):
        kinds = None if isinstance(model, MLP) else "logits"
        with refused("models", expected="limbeck's own"):
            Ensemble([model], output_forms=kinds).spec()
    spec = Ensemble([mlp(4, 3)]).spec()
    for bad in ({}, {**spec, "type": "MLP"}, {**spec, "models": [{"type": "Linear"}]}):
        with refused("spec", expected="spec"):
            Ensemble.from_spec(bad)


@pytest.mark.parametrize("ensemble", ensembles())
def test_compiles_whole(ensemble: Ensemble) -> None:
    torch.compiler.reset()
    for function in (ensemble, ensemble.log_probabilities):
        compiled = torch.compile(function, backend="eager", fullgraph=True)
        for n in (3, 8):
            torch.testing.assert_close(compiled(normal(n, 4)), function(normal(n, 4)))


@pytest.mark.parametrize("ensemble", ensembles())
def test_jacobians_of_rows(ensemble: Ensemble) -> None:
    x = normal(6, 4)
    jacobians = vmap(jacrev(lambda row: ensemble(row[None])[0]))(x)
    expected = [torch.autograd.functional.jacobian(ensemble, row[None])[0, :, 0] for row in x]
    torch.testing.assert_close(jacobians, torch.stack(expected))


def test_weights_follow_the_ensemble() -> None:
    ensemble = Ensemble([mlp(4, 3), mlp(4, 3, seed=1)], [1, 2])
    assert ensemble.weights.dtype == DOUBLE
    assert ensemble.float().weights.dtype == torch.float32
    assert ensemble(torch.zeros(2, 4)).dtype == torch.float32
    assert "weights" in ensemble.state_dict()


# bad arguments


@pytest.mark.parametrize(
    ("models", "argument", "received", "expected"),
    [
        ([], "models", "an empty list", ""),
        (mlp(4, 3), "models", "^a MLP$", ""),
        (nn.Sequential(nn.Linear(4, 3)), "models", "a Sequential", ""),
        ([3], "models", "a int in the list", ""),
        ([BatchedMLP(2, 4, 3)], "models", "a BatchedMLP in the list", ""),
        (
            [mlp(4, 3), mlp(4, 3, output_form="values")],
            "models",
            r"members that give \['logits'",
            "'values' in all",
        ),
        ([nn.Linear(4, 3)], "output_forms", "ambiguous", ""),
        ([mlp(4, 3), lambda x: x], "output_forms", r"models\[1\], a function: it is ambiguous", ""),
    ],
)
def test_bad_models(models: object, argument, received, expected) -> None:
    with refused(argument, received, expected=expected):
        Ensemble(models)


@pytest.mark.parametrize(
    "weights",
    [[1.0], [1.0, 0.0], [1.0, -1.0], [1.0, float("nan")], [1.0, float("inf")], [[1.0, 2.0]]],
)
def test_bad_weights(weights: list) -> None:
    with refused("weights", expected="(2 positive )?finite numbers"):
        Ensemble([mlp(4, 3), mlp(4, 3)], weights)


@pytest.mark.parametrize(
    ("kinds", "received", "expected"),
    [
        ("logit", "'logit'", "did you mean 'logits'"),
        (["logits"], "^1 names$", "one name, or a list of 2"),
        ("probabilities", r"models\[0\], whose output_form is 'logits'", ""),
        (["logits", "values"], r"models\[1\], whose output_form is 'logits'", ""),
    ],
)
def test_bad_output_forms(kinds: object, received, expected) -> None:
    with refused("output_forms", received, expected=expected):
        Ensemble([mlp(4, 3), mlp(4, 3)], output_forms=kinds)


def test_bad_outputs() -> None:
    x = normal(2, 4)
    with refused("models", r"shapes \(2, 3\), \(2, 2\)"):
        Ensemble([mlp(4, 3), mlp(4, 2)])(x)
    with refused("models", "gave a tuple"):
        Ensemble([lambda x: (x, x)], output_forms="logits")(x)
    for index in (2, -3, slice(0, 1)):
        with refused("index", expected="from 0 to 1"):
            Ensemble([mlp(4, 3), mlp(4, 3)])[index]
