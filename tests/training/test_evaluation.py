r"""Values and derivatives of any model, against finite differences; refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from torch import Tensor, nn

from limbeck.errors import NotDifferentiableError
from limbeck.evaluation import View, depends_on_inputs, evaluate
from limbeck.models import MLP, Ensemble
from tests.models.nets import batch_of
from tests.refusals import refused

BOTH = ("values", "derivatives")


def normal(*shape: int, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=g)


def net(*sizes: int, seed: int = 0, **kinds) -> MLP:
    g = torch.Generator().manual_seed(seed)
    return MLP(*sizes, dtype=torch.float64, generator=g, **{"hidden": "tanh", **kinds})


def image_net() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 2, 3, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(18, 3)]
    return nn.Sequential(*layers).double()


class Table(nn.Module):
    r"""Two floating parts and one of categories."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.towns, self.read = nn.Embedding(5, 2).double(), nn.Linear(6, 3).double()

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        parts = [x["pixels"].flatten(1), self.towns(x["town"]), x["age"][:, None]]
        return self.read(torch.cat(parts, 1)).tanh()


TABLE = {"age": normal(4), "town": torch.tensor([0, 3, 1, 4]), "pixels": normal(4, 1, 3, seed=1)}
X = normal(4, 2)


def differences(function, x, step: float = 1e-6) -> Tensor:
    r"""Central differences (n, I, D) of outputs (n, I), floating parts side by side."""
    parts = {"": x} if isinstance(x, Tensor) else x
    found = []
    for name, part in parts.items():
        if not part.is_floating_point():
            continue
        for d in range(part[0].numel()):
            shift = torch.zeros_like(part).reshape(len(part), -1)
            shift[:, d] = step
            shift = shift.reshape(part.shape)
            both = [part + shift, part - shift]
            above, below = (
                function(p if isinstance(x, Tensor) else {**x, name: p}).detach() for p in both
            )
            found.append((above - below).reshape(len(part), -1) / (2 * step))
    return torch.stack(found, 2)


MODELS = {
    "module": (net(2, 5, 3), X),
    "one output": (net(2, 5, 1), X),
    "function": (lambda x: torch.stack([x.prod(1), x.sin().sum(1)], 1), X),
    "function to (n,)": (lambda x: x.prod(1), X),
    "one input": (lambda x: x.exp(), normal(4)),
    "images": (image_net(), normal(4, 1, 8, 8)),
    "table": (Table(), TABLE),
    "ensemble": (Ensemble([net(2, 5, 3, seed=s) for s in range(3)]), X),
}


@pytest.mark.parametrize("name", MODELS)
def test_derivatives_are_those_of_finite_differences(name) -> None:
    model, x = MODELS[name]
    values, derivatives = evaluate(model, x, BOTH)
    raw = model(x).detach()
    torch.testing.assert_close(values, raw.reshape(4, -1))
    assert derivatives.shape[:2] == values.shape
    torch.testing.assert_close(derivatives, differences(model, x), atol=1e-8, rtol=1e-6)


FORMS = {
    "logits": net(2, 5, 3),
    "probabilities": net(2, 5, 3, output="softmax"),
    "log_probabilities": net(2, 5, 3, output="log_softmax"),
}


@pytest.mark.parametrize("wrapped", [False, True])  # in a function, which has no methods of its own
@pytest.mark.parametrize("form", FORMS)
def test_both_domains_are_the_same_whatever_the_form(form, wrapped) -> None:
    model = (lambda x: FORMS[form](x)) if wrapped else FORMS[form]
    logs = evaluate(model, X, BOTH, output=form, domain="log")
    plain = evaluate(model, X, BOTH, output=form, domain="plain")
    z = FORMS["logits"]
    torch.testing.assert_close(logs.values, z(X).log_softmax(1).detach())
    torch.testing.assert_close(plain.values, z(X).softmax(1).detach())
    expected = differences(lambda x: z(x).log_softmax(1), X)
    torch.testing.assert_close(logs.derivatives, expected, atol=1e-8, rtol=1e-6)
    torch.testing.assert_close(plain.derivatives, plain.values[:, :, None] * logs.derivatives)


@pytest.mark.parametrize("output", ["linear", "logistic", "probit"])
def test_one_output_has_the_derivatives_of_both_classes(output) -> None:
    model = net(2, 5, 1, output=output)
    form = model.output_form
    p = torch.sigmoid(model(X)) if output == "linear" else model(X)
    logs = evaluate(model, X, BOTH, output=form, domain="log")
    plain = evaluate(model, X, BOTH, output=form)
    torch.testing.assert_close(logs.values.exp(), torch.cat([1 - p, p], 1).detach())
    torch.testing.assert_close(plain.derivatives, logs.values.exp()[:, :, None] * logs.derivatives)
    expected = differences(lambda x: evaluate(model, x, output=form, domain="log").values, X)
    torch.testing.assert_close(logs.derivatives, expected, atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_classes_that_underflow_keep_their_log_derivatives(dtype, whole) -> None:
    r"""Against finite differences of the members, in float64: ∂log t = Σ w ∂log t_n."""
    members = [net(2, 4, 3, seed=s) for s in range(3)]
    for member in members:
        with torch.no_grad():
            member.layers[-1].weight.mul_(30)
            member.layers[-1].bias.copy_(torch.tensor([0.0, -2000.0, 900.0]))
    logs = torch.stack([member(X).log_softmax(1) for member in members], 1)  # (n, members, I)
    assert logs.max(1).values.min() < -1000  # exp of it is zero in float64
    each = [differences(lambda x, m=m: m(x).log_softmax(1), X) for m in members]
    expected = (logs.softmax(1)[..., None] * torch.stack(each, 1)).sum(1).detach()
    ensemble = Ensemble(batch_of(members) if whole else members).to(dtype)
    found = evaluate(ensemble, X.to(dtype), BOTH, output="probabilities", domain="log")
    assert found.values.dtype == found.derivatives.dtype == dtype
    close = {"rtol": 1e-4, "atol": 1e-2} if dtype == torch.float32 else {"rtol": 1e-5, "atol": 1e-5}
    mean = logs.logsumexp(1).detach() - np.log(3)
    torch.testing.assert_close(found.values.double(), mean, **close)
    torch.testing.assert_close(found.derivatives.double(), expected, **close)


def test_projections_and_directions_are_parts_of_the_derivatives() -> None:
    seen = View(Table(), TABLE, "logits")
    for domain in ("log", "plain"):
        derivatives = seen.derivatives(domain)  # (n, I, D), D = age, then pixels
        assert derivatives.shape == (4, 3, 4)
        for k in (1, 3):
            cotangents = normal(k, 4, 3)
            expected = torch.einsum("kni,nid->nkd", cotangents, derivatives)
            torch.testing.assert_close(seen.projected(domain, cotangents), expected)
        directions = {"age": normal(4, seed=2), "pixels": normal(4, 1, 3, seed=3)}
        flat = torch.cat([directions["age"][:, None], directions["pixels"].flatten(1)], 1)
        expected = torch.einsum("nid,nd->ni", derivatives, flat)
        torch.testing.assert_close(seen.directional(domain, directions), expected)
        only_age = seen.directional(domain, {"age": directions["age"]})
        torch.testing.assert_close(only_age, derivatives[..., 0] * directions["age"][:, None])


def test_each_thing_is_computed_once() -> None:
    calls = []

    def model(x: Tensor) -> Tensor:
        calls.append(len(x))
        return torch.cat([x, x**2], 1)

    seen = View(model, X, "logits")
    seen.derivatives("log")
    seen.log_probabilities()
    seen.derivatives("log")
    seen.projected("log", normal(2, 4, 4))
    assert len(calls) == 1
    seen.probabilities()
    seen.values()
    assert len(calls) == 2


def test_a_temperature_softens_log_probabilities() -> None:
    seen = View(FORMS["probabilities"], X, "probabilities")
    expected = (FORMS["logits"](X) / 3).log_softmax(1)
    torch.testing.assert_close(seen.log_probabilities(3.0), expected)
    torch.testing.assert_close(seen.probabilities(3.0), expected.exp())


def test_derivatives_are_each_examples_own() -> None:
    model, count = net(2, 5, 3), 4
    together = evaluate(model, X, BOTH).derivatives
    for i in range(count):
        alone = evaluate(model, X[i : i + 1], BOTH).derivatives
        torch.testing.assert_close(together[i : i + 1], alone)


# the model is left as it came


@pytest.mark.parametrize("training", [True, False])
def test_a_model_is_used_frozen_in_evaluation_mode_and_given_back_as_it_came(training) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 50), nn.Dropout(0.5), nn.BatchNorm1d(50), nn.Linear(50, 2))
    model = model.double().train(training)
    model[2].eval()  # a mixture of modes is given back as a mixture
    modes = [module.training for module in model.modules()]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x = X.clone().requires_grad_()
    first, second = (evaluate(model, x, BOTH) for _ in range(2))
    assert torch.equal(first.values, second.values)  # no dropout
    assert not first.values.requires_grad
    assert not first.derivatives.requires_grad
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert x.grad is None
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_the_mode_is_given_back_after_a_failure_too() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Dropout()).double()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        evaluate(model, X, BOTH)
    assert all(module.training for module in model.modules())


# refusals


def forest() -> RandomForestClassifier:
    return RandomForestClassifier(3, random_state=0).fit(X.numpy(), [0, 1, 0, 1])


OPAQUE = {
    "detached": lambda x: net(2, 3)(x).detach(),
    "numpy": lambda x: torch.tensor(np.sin(x.numpy())),
    "argmax": lambda x: net(2, 3)(x).argmax(1),
    "constant": lambda x: torch.zeros(len(x), 2, requires_grad=True) * 1,
    "forest": lambda x: torch.tensor(forest().predict_proba(x)),
}


@pytest.mark.parametrize("name", OPAQUE)
def test_models_without_derivatives_are_refused_where_these_are_asked(name) -> None:
    assert not depends_on_inputs(OPAQUE[name], X)
    with pytest.raises(
        NotDifferentiableError, match=r"carry no derivatives .* request values only"
    ):
        evaluate(OPAQUE[name], X, BOTH)
    found = evaluate(OPAQUE[name], X)
    assert found.derivatives is None
    torch.testing.assert_close(found.values, OPAQUE[name](X).reshape(4, -1).detach())


def test_a_model_of_categories_alone_has_no_derivatives() -> None:
    towns = {"town": TABLE["town"]}
    with pytest.raises(NotDifferentiableError):
        evaluate(lambda x: x["town"][:, None] * 2.0, towns, BOTH)
    with pytest.raises(NotDifferentiableError, match="inputs: no floating-point part"):
        View(lambda x: x["town"][:, None] * 2.0, towns, "values").derivatives("plain")


def test_a_model_that_fails_says_so_itself() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        evaluate(nn.Linear(3, 2).double(), X, ("derivatives",))
    with pytest.raises(KeyError):
        evaluate(lambda x: x["age"], {"pixels": TABLE["pixels"]}, ("derivatives",))


@pytest.mark.parametrize(
    ("options", "argument", "received", "expected"),
    [
        ({"quantities": ("value",)}, "quantities", "'value'", "did you mean 'values'"),
        (
            {"quantities": ("values", "derivative")},
            "quantities",
            "'derivative'",
            "did you mean 'derivatives'",
        ),
        (
            {"quantities": "derivativs"},
            "quantities",
            "'derivativs'",
            "did you mean 'derivatives'",
        ),
        ({"domain": "logs"}, "domain", "'logs'", "did you mean 'log'"),
        ({"output": "logit"}, "output", "'logit'", "did you mean 'logits'"),
        ({"domain": "log"}, "output", "'values'", ""),
    ],
)
def test_unknown_wishes_are_refused_with_a_suggestion(
    options, argument, received, expected
) -> None:
    with refused(argument, received, expected=expected):
        evaluate(lambda x: x, X, **options)


def test_one_ask_may_come_without_a_bracket() -> None:
    model = net(2, 3)
    found = evaluate(model, X, "derivatives")
    expected = evaluate(model, X, BOTH).derivatives
    torch.testing.assert_close(found.derivatives, expected, rtol=1e-12, atol=1e-14)


def test_a_density_is_read_from_the_method_that_gives_it() -> None:
    class Energy(nn.Module):
        def log_unnormalized(self, x: Tensor) -> Tensor:
            return -x.square().sum(1) / 2

    class Normalised(Energy):
        def log_prob(self, x: Tensor) -> Tensor:
            return self.log_unnormalized(x) - 1.8

    for model, constant in ((Energy(), 0.0), (Normalised(), 1.8)):
        seen = View(model, X, "log_density")
        expected = -X.square().sum(1) / 2 - constant
        torch.testing.assert_close(seen.raw(), expected)
        torch.testing.assert_close(seen.log_density(), expected)
        torch.testing.assert_close(seen.derivatives("density"), -X[:, None])
