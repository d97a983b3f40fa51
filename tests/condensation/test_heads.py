r"""Students' outputs as distributions, and pairs of inputs and outcomes as inputs of the loop."""

import pytest
import torch
from torch import nn

import limbeck as lb
from limbeck.arrays import Batch
from limbeck.condensation.densities import Outcomes, pair_losses
from limbeck.condensation.predict_function import (
    ClassLogs,
    OutputFamily,
    Pair,
    PairDensity,
    paired,
    unpair,
)
from limbeck.distributions import Bernoulli, Categorical, Mixture, Normal, Poisson
from limbeck.inputs import Noise
from limbeck.losses import cross_entropy, derivative_error, kl, square_error
from tests.refusals import refused

G = torch.Generator().manual_seed(0)
Z = torch.randn(5, 3, generator=G)
X = torch.randn(5, 2, generator=G)


def test_classifiers_outputs_are_read_by_their_form():
    torch.testing.assert_close(
        OutputFamily("Categorical", "logits").read(Z).mean, Z.softmax(1), rtol=1e-5, atol=0
    )
    p = Z.softmax(1)
    torch.testing.assert_close(OutputFamily("Categorical", "probabilities").read(p).mean, p)
    one = OutputFamily("Bernoulli", "logits").read(Z[:, :1])
    torch.testing.assert_close(one.mean, Z[:, 0].sigmoid())
    two = OutputFamily("Bernoulli", "log_probabilities").read(Z[:, :2].log_softmax(1))
    torch.testing.assert_close(two.mean, Z[:, :2].softmax(1)[:, 1])
    assert isinstance(two, Bernoulli)


def test_outputs_of_regressions_are_means_and_log_scales_or_log_rates():
    found = OutputFamily("Normal").read(Z[:, :2])
    assert torch.equal(found.loc, Z[:, 0])
    torch.testing.assert_close(found.scale, Z[:, 1].exp())
    six = torch.randn(5, 6, generator=G)
    mixture = OutputFamily("Normal").read(six)
    assert isinstance(mixture, Mixture)
    weights = six[:, :2].softmax(1)
    torch.testing.assert_close(mixture.mean, (weights * six[:, 2:4]).sum(1))
    assert torch.equal(OutputFamily("Poisson").read(Z[:, 0]).log_rate, Z[:, 0])
    own = Normal(Z[:, 0], Z[:, 1].exp())
    assert OutputFamily("MultivariateNormal").read(own) is own


@pytest.mark.parametrize(
    ("kind", "raw", "received", "expected"),
    [
        ("Normal", Z, r"shape \(5, 3\)", r"outputs \(n, 2 \(mean, log scale\)"),
        ("Poisson", Z, r"outputs of shape \(5, 3\)", r"1 \(the logarithm of the rate\)"),
        (
            "MultivariateNormal",
            Z,
            r"outputs of shape \(5, 3\)",
            "a module that gives one of limbeck's distributions",
        ),
        ("Normal", "text", r"outputs of shape \(\)", ""),
    ],
)
def test_outputs_that_say_nothing_are_refused(kind, raw, received, expected):
    with refused("student", received, expected=expected):
        OutputFamily(kind).read(raw)


def test_the_kind_is_that_of_the_innermost_distribution():
    weights = torch.zeros(5, 3)
    assert OutputFamily.of(Bernoulli(logits=Z[:, 0])).classes
    assert (
        OutputFamily.of(Mixture(logits=weights, components=Poisson(rate=Z.exp()))).kind == "Poisson"
    )
    assert OutputFamily.of(Normal(Z, Z.exp())).kind == ""  # several outcomes an input


class Student(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def test_students_of_distributions_become_students_of_tensors():
    logs = ClassLogs(Student(lambda x: Categorical(logits=x)))(Z)
    torch.testing.assert_close(logs, Z.log_softmax(1))
    student = Student(lambda x: Normal(x[:, 0], x[:, 1].exp()))
    y = torch.randn(5, generator=G)
    pairs = paired(Pair(X, y))
    expected = Normal(X[:, 0], X[:, 1].exp()).log_prob(y)
    torch.testing.assert_close(PairDensity(student, OutputFamily("Normal"))(pairs), expected)
    several = Student(lambda x: Normal(x, torch.ones_like(x)))
    found = PairDensity(several, OutputFamily(""))(paired(Pair(X, X)))
    torch.testing.assert_close(found, several(X).log_prob(X).sum(1))


def test_pairs_are_taken_apart_as_they_were_put_together():
    y, draw = torch.arange(5), torch.randn(5, 7)
    for x in (X, {"a": X, "y": Z}):
        found = unpair(paired(Pair(x, y, draw)))
        assert torch.equal(found.y, y)
        assert torch.equal(found.draw, draw)
        assert found.x is X if isinstance(x, torch.Tensor) else found.x["y"] is Z
    assert unpair(paired(Pair(X, y))).draw is None


def test_inputs_get_outcomes_and_keep_their_weights():
    class Weighted(Noise):
        def build(self, drawn):
            return Batch(drawn, weight=drawn[:, 0].abs())

    def outcomes(batch, generator):
        return paired(Pair(batch.x, torch.rand(len(batch.x), generator=generator)))

    pairs = Outcomes(outcomes, Weighted(2, seed=0))
    pairs.to(torch.device("cpu"), torch.float32, 3)
    before = pairs.probe(4)
    again = pairs.probe(4)
    assert torch.equal(before.x["y"], again.x["y"])  # without moving on
    state = pairs.state_dict()
    first = pairs(4)
    assert torch.equal(first.weight, first.x["x"][:, 0].abs())
    pairs.load_state_dict(state)
    assert torch.equal(pairs(4).x["y"], first.x["y"])
    assert not torch.equal(pairs(4).x["y"], first.x["y"])


def test_losses_on_classes_have_counterparts_on_pairs():
    found = pair_losses(cross_entropy() + 0.5 * derivative_error(weight="teacher"))
    assert [(c, term.name) for c, term in found] == [(1.0, "kl"), (0.5, "derivative_error")]
    assert all(not term.bias and term.needs == "density" for _, term in found)
    assert [term.name for _, term in pair_losses(pair_losses(kl()))] == ["kl"]
    for loss in (square_error(), cross_entropy(temperature=2.0), derivative_error()):
        with refused("loss", expected="where y is not a class"):
            pair_losses(loss)


def test_a_limbeck_net_is_a_student_of_densities():
    net = lb.MLP(2, 4, 2, output_form="values", generator=G)
    logs = PairDensity(net, OutputFamily("Normal"))(paired(Pair(X, torch.zeros(5))))
    assert logs.shape == (5,)
