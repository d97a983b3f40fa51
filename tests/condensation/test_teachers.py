r"""Posterior predictive teachers: averages in blocks, and one draw at a time without a bias."""

import itertools

import numpy as np
import pytest
import torch
from torch.func import functional_call, grad

from limbeck import losses
from limbeck.arrays import Batch
from limbeck.condensation import teachers
from limbeck.condensation.densities import pair_losses
from limbeck.condensation.predict_function import (
    ClassLogs,
    OutputFamily,
    Pair,
    PairDensity,
    PredictFunction,
    paired,
)
from limbeck.condensation.sample_bag import SampleBag
from limbeck.condensation.teachers import Average, FreshDraws, OneDraw, PosteriorTeacher
from limbeck.distributions import Bernoulli, Categorical, Normal, Poisson
from limbeck.errors import InexactTeacherError, NotDifferentiableError
from limbeck.inputs import Dataset
from limbeck.posteriors.draws import Draws, Structure
from limbeck.training.objective import Objective
from tests.refusals import raises_about

DOUBLE = torch.float64
G = torch.Generator().manual_seed(0)
S, N = 40, 6
W = 2 * torch.randn(S, 2, dtype=DOUBLE, generator=G)
V = torch.randn(S, 2, 3, dtype=DOUBLE, generator=G)
X = torch.randn(N, 2, dtype=DOUBLE, generator=G)


def average_teacher(*arguments, **options):
    return PosteriorTeacher(Average(*arguments, **options))


def one_draw_teacher(*arguments):
    return PosteriorTeacher(OneDraw(*arguments))


def stored(draws):
    return Draws({"": draws[None]})


def logistic(w, x):
    return Bernoulli(logits=x @ w)


def as_probabilities(w, x):
    return Bernoulli(probs=(x @ w).sigmoid())


def softmax(draw, x):
    return Categorical(logits=x @ draw["v"])


def cases():
    vectors, matrices = stored(W), Draws({"v": V[None]})
    return {
        "logits": (logistic, vectors, lambda x: (x @ W.T).sigmoid()),
        "probs": (as_probabilities, vectors, lambda x: (x @ W.T).sigmoid()),
        "softmax": (softmax, matrices, lambda x: torch.einsum("nd,sdk->nsk", x, V).softmax(-1)),
    }


def calling(function, draws, x=X):
    return PredictFunction(function, draws.take(torch.arange(min(4, draws.count))), x)


def probabilities(direct, x):
    p = direct(x)
    return p.mean(1) if p.ndim == 3 else torch.stack([1 - p.mean(1), p.mean(1)], 1)


@pytest.mark.parametrize("blocks", [1, 6])
@pytest.mark.parametrize("name", cases())
def test_the_average_and_its_derivatives_are_those_of_the_plain_formula(name, blocks, monkeypatch):
    function, draws, direct = cases()[name]
    predict = calling(function, draws)
    each = N * predict.numbers * 8
    monkeypatch.setattr(teachers, "AT_ONCE", each * S // blocks)
    teacher = average_teacher(predict, draws)
    sizes = {len(block) for block, _ in teacher.source.blocks(N)}
    assert sizes == ({S} if blocks == 1 else {7, 5})
    view = teacher.view(Batch(X))
    t = probabilities(direct, X)
    torch.testing.assert_close(view.probabilities(), t, rtol=1e-12, atol=1e-14)
    of_one = torch.func.vmap(torch.func.jacrev(lambda x: probabilities(direct, x[None])[0]))(X)
    torch.testing.assert_close(view.derivatives("plain"), of_one, rtol=1e-10, atol=1e-12)
    fresh = teacher.view(Batch(X))
    torch.testing.assert_close(
        fresh.derivatives("log"), of_one / t[:, :, None], rtol=1e-10, atol=1e-12
    )
    cotangents = torch.randn(3, N, t.shape[1], dtype=DOUBLE, generator=G)
    torch.testing.assert_close(
        fresh.projected("log", cotangents),
        torch.einsum("kni,nid->nkd", cotangents, of_one / t[:, :, None]),
        rtol=1e-10,
        atol=1e-12,
    )


def test_blocks_hold_all_draws_once_and_bound_the_memory(monkeypatch):
    average = Average(calling(logistic, stored(W)), stored(W))
    monkeypatch.setattr(teachers, "AT_ONCE", 1000)
    found = list(average.blocks(N))
    assert sum(share for _, share in found) == pytest.approx(1)
    assert torch.equal(torch.cat([block for block, _ in found]), W)
    each = N * average.predict.numbers * 8
    assert max(len(block) for block, _ in found) * each <= 1000
    assert len(list(average.blocks(10**9))) == S  # one draw at a time is the least


def test_derivatives_stay_finite_and_right_where_a_class_underflows():
    steep = 1e4 * torch.tensor([[[1.0, 0.0], [2.0, 0.0]]], dtype=DOUBLE)
    x = torch.tensor([[-1.0, 0.0]], dtype=DOUBLE)
    draws = Draws({"": steep})
    view = average_teacher(calling(logistic, draws, x), draws).view(Batch(x))
    # p(1) is e^-10000 or e^-20000: only the first draw counts, and ∂log p = (1 − p) w there
    expected = torch.tensor([[[0.0, 0.0], [1e4, 0.0]]], dtype=DOUBLE)
    torch.testing.assert_close(view.derivatives("log"), expected, rtol=1e-12, atol=1e-12)


def bag(function, like, components=3):
    return SampleBag(function, like, components, generator=torch.Generator().manual_seed(1))


def gradient(objective, plan):
    leaves = {name: p.detach() for name, p in objective.named_parameters()}

    def mean_loss(leaves):
        return objective.total(functional_call(objective, leaves, (plan,))).mean()

    return torch.cat([g.flatten() for g in grad(mean_loss)(leaves).values()])


def plan_of(objective, drawn, signs=None):
    plan = {"inputs": torch.arange(N), "teacher": drawn}
    return plan | {"loss": [signs for _ in objective.terms]}


AFFINE = {
    "cross entropy": losses.cross_entropy(),
    "derivatives": losses.derivative_error(weight="teacher"),
    "both": losses.cross_entropy() + 0.3 * losses.derivative_error(weight="teacher"),
    "plain derivatives": losses.derivative_error(domain="plain"),
    "square error": losses.square_error(),
}


@pytest.mark.parametrize("share", [1, 4])
@pytest.mark.parametrize("loss", AFFINE.values(), ids=AFFINE)
@pytest.mark.parametrize("name", ["logits", "softmax"])
def test_the_mean_of_one_draw_gradients_is_the_batch_gradient(name, loss, share):
    function, draws, _ = cases()[name]
    predict = calling(function, draws)
    student = ClassLogs(bag(function, draws).double())
    batch = Objective(average_teacher(predict, draws), student, Dataset(X), loss)
    online = Objective(
        one_draw_teacher(predict, FreshDraws(draws), share), student, Dataset(X), loss
    )
    expected = gradient(batch, plan_of(batch, None))
    found = []
    for start in range(0, S, 8):  # each input meets each draw equally often
        for turn in range(N + 2):
            index = (torch.arange(N) + turn) % 8 + start
            found.append(gradient(online, plan_of(online, draws.take(index))))
    torch.testing.assert_close(torch.stack(found).mean(0), expected, rtol=0, atol=1e-12)


def test_equal_weights_would_be_biased_and_are_refused():
    draws, loss = stored(W), losses.derivative_error()
    predict = calling(logistic, draws)
    student = ClassLogs(bag(logistic, draws).double())
    with raises_about(InexactTeacherError, 'weight="teacher"'):
        Objective(one_draw_teacher(predict, FreshDraws(draws)), student, Dataset(X), loss)
    batch = Objective(average_teacher(predict, draws), student, Dataset(X), loss)
    online = Objective(average_teacher(predict, draws), student, Dataset(X), loss)
    online.teacher = one_draw_teacher(predict, FreshDraws(draws))  # behind its back
    found = [gradient(online, plan_of(online, draws.take(torch.full((N,), s)))) for s in range(S)]
    bias = torch.stack(found).mean(0) - gradient(batch, plan_of(batch, None))
    assert bias.abs().max() > 1e-3


@pytest.mark.parametrize("loss", [losses.logit_error(), losses.cross_entropy(temperature=2.0)])
def test_other_losses_that_one_draw_would_bias_are_refused(loss):
    draws = stored(W)
    student = ClassLogs(bag(logistic, draws).double())
    with pytest.raises(InexactTeacherError, match="one draw at a time"):
        Objective(
            one_draw_teacher(calling(logistic, draws), FreshDraws(draws)),
            student,
            Dataset(X),
            loss,
        )


def counts(w, x):
    return Poisson(log_rate=0.5 * (x @ w).tanh())


def real(w, x):
    return Normal(x @ w, 0.5 + w[0].square())


@pytest.mark.parametrize(
    ("function", "events"),
    [(counts, torch.arange(40)), (real, torch.linspace(-60, 60, 40001, dtype=DOUBLE))],
    ids=["counts", "numbers"],
)
def test_one_outcome_of_one_draw_is_unbiased_for_densities_too(function, events):
    r"""By the sum over all draws and outcomes: cross entropy and derivatives of pairs."""
    draws, x = stored(W[:5] / 2), X[:1]
    predict = calling(function, draws, x)
    own = bag(function, draws).double()
    density = PairDensity(own, OutputFamily("other"))
    loss = pair_losses(losses.cross_entropy() + losses.derivative_error(weight="teacher"))
    step = 1.0 if events.dtype == torch.int64 else (events[1] - events[0]).item()
    m = len(events)
    many = x.expand(m, 2)

    def total(teacher, pairs, weight):
        source = Dataset(pairs, weight=weight)
        source.to(torch.device("cpu"), DOUBLE, 0)
        objective = Objective(teacher, density, source, loss)
        plan = {"inputs": torch.arange(m), "teacher": None, "loss": [None, None]}
        return gradient(objective, plan) * m

    pairs = paired(Pair(many, events))
    average = average_teacher(predict, draws, pairs=True)
    weight = average.source(pairs).exp() * step
    assert weight.sum().item() == pytest.approx(1, abs=1e-10)
    expected = total(average, pairs, weight)
    found = torch.zeros_like(expected)
    for s in range(5):
        alone = average_teacher(predict, stored(draws.flat[s : s + 1]), pairs=True)
        found += total(alone, pairs, alone.source(pairs).exp() * step) / 5
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11)


def test_picked_draws_are_of_the_posterior_and_go_on_where_they_were():
    draws = stored(W)
    source = FreshDraws(draws, seed=3)
    source.next(5)
    state = {name: value.clone() for name, value in source.state_dict().items()}
    expected = source.next(7)
    assert all((row == W).all(1).any() for row in expected)
    again = FreshDraws(draws, seed=99)
    again.load_state_dict(state)
    assert torch.equal(again.next(7), expected)
    assert again.used == 12


def test_a_live_teachers_state_is_that_of_its_draws():
    draws = stored(W)
    teacher = one_draw_teacher(calling(logistic, draws), FreshDraws(draws, seed=3))
    state = {name: value.clone() for name, value in teacher.state_dict().items()}
    expected = teacher.draw(4)
    teacher.load_state_dict(state)
    assert torch.equal(teacher.draw(4), expected)
    assert not teacher.exact


def in_numpy(w, x):
    return Bernoulli(probs=1 / (1 + np.exp(-x @ w)))


def test_functions_of_numpy_teach_values_and_say_why_no_derivatives():
    draws = stored(W)
    predict = calling(in_numpy, draws)
    teacher = average_teacher(predict, draws)
    assert teacher.opaque
    expected = average_teacher(calling(logistic, draws), draws).view(Batch(X)).probabilities()
    found = teacher.view(Batch(X), teacher.prepare(Batch(X))).probabilities()
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=0)
    with raises_about(NotDifferentiableError, "predict"):
        teacher.refuse_derivatives("derivative_error()")
    online = one_draw_teacher(predict, FreshDraws(draws, seed=3))
    assert not online.exact
    own = FreshDraws(draws, seed=3).next(N)
    torch.testing.assert_close(
        online.prepare(Batch(X)).exp()[:, 1], (X * own).sum(1).sigmoid(), rtol=1e-10, atol=0
    )
    state = online.state_dict()
    first = online.prepare(Batch(X))
    online.load_state_dict(state)
    assert torch.equal(online.prepare(Batch(X)), first)


def test_dicts_of_inputs_and_draws_are_taught_alike():
    structure = Structure(("alpha", "beta"), ((3,), ()))
    flat = torch.randn(S, 4, dtype=DOUBLE, generator=G)
    parts = structure.unflatten(flat)
    draws = Draws({name: part[None] for name, part in parts.items()})
    x = {"group": torch.tensor([0, 2, 2, 1]), "dose": torch.randn(4, dtype=DOUBLE, generator=G)}

    def predict(draw, x):
        return Bernoulli(logits=draw["alpha"][x["group"]] + draw["beta"] * x["dose"])

    view = average_teacher(calling(predict, draws, x), draws).view(Batch(x))
    logits = parts["alpha"][:, x["group"]] + parts["beta"][:, None] * x["dose"]
    torch.testing.assert_close(view.probabilities()[:, 1], logits.sigmoid().mean(0))
    slope = logits.sigmoid() * (1 - logits.sigmoid()) * parts["beta"][:, None]
    torch.testing.assert_close(view.derivatives("plain")[:, 1, 0], slope.mean(0))
    for combination in itertools.islice(one_draw_answers(predict, draws, x), 3):
        assert combination.shape == (4, 2)


def one_draw_answers(predict, draws, x):
    teacher = one_draw_teacher(calling(predict, draws, x), FreshDraws(draws))
    while True:
        yield teacher.view(Batch(x), teacher.draw(4)).probabilities()
