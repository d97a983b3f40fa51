r"""What every autoregressive student must be: MADE and DeepNADE, over all supports and orders."""

import math

import pytest
import scipy.stats
import torch

import limbeck as lb
from limbeck.errors import CheckpointError
from limbeck.models.made import MADE
from limbeck.models.nade import DeepNADE
from limbeck.supports import Binary, Real, Spins, States
from tests.refusals import refused

SUPPORTS = [Binary(1), Binary(2, 3), Spins(7), States(3, 4), States(2, 5), States(4, 2, 2)]

BUILDERS = {
    "made": lambda size, **rest: MADE(size, (9, 9, 4), **rest),
    "made-plain": lambda size, **rest: MADE(size, 3, skip=False, **rest),
    "made-wide": lambda size, **rest: MADE(size, (5, 40, 40, 40), **rest),
    "deep": lambda size, **rest: DeepNADE(size, 5, 6, 2, 2, **rest),
    "deep-shallow": lambda size, **rest: DeepNADE(size, 4, depth=0, run=3, **rest),
    "deep-one-run": lambda size, **rest: DeepNADE(size, 4, depth=1, run=50, **rest),
}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def build(name, support, order="random", dtype=torch.float64, seed=0):
    r"""A model whose parameters, and means to centre at, are all drawn: nothing stays zero."""
    model = BUILDERS[name](
        support.size, order=order, support=support, dtype=dtype, generator=generator(seed)
    )
    source = generator(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.7 * torch.randn(parameter.shape, generator=source, dtype=dtype))
        if isinstance(model, DeepNADE):
            model.mean.copy_(torch.rand(model.mean.shape, generator=source, dtype=dtype))
    return model


def events(support, dtype=torch.float64):
    return support.enumerate(0, support.count**support.size, dtype=dtype)


every = pytest.mark.parametrize("name", BUILDERS)
supports = pytest.mark.parametrize("support", SUPPORTS, ids=repr)


@every
@supports
@pytest.mark.parametrize("order", [None, "random"])
def test_probabilities_of_all_events_sum_to_one(name, support, order):
    log_p = build(name, support, order).log_prob(events(support))
    assert log_p.shape == (support.count**support.size,)
    assert log_p.exp().sum().item() == pytest.approx(1, abs=1e-12)
    if support.size > 1:
        assert log_p.std() > 0.1  # and they are not all equal


@every
@supports
def test_a_conditional_depends_on_earlier_variables_alone(name, support):
    model = build(name, support)
    x = support.start(6, generator(), dtype=torch.float64)
    values = torch.tensor(support.values, dtype=x.dtype)

    def in_order(x):
        return model.logits(x).flatten(1, len(support.shape))[:, model.order]

    before = in_order(x)
    for place, variable in enumerate(model.order.tolist()):
        other = x.flatten(1).clone()
        code = (support.encode(other[:, variable]) + 1) % support.count
        other[:, variable] = values[code.long()]
        after = in_order(other.view_as(x))
        assert torch.equal(after[:, : place + 1], before[:, : place + 1])
        if place + 1 < support.size and name != "made-plain":  # and on all of them
            assert (after[:, place + 1 :] != before[:, place + 1 :]).any()


@every
def test_the_jacobian_of_the_logits_is_triangular(name):
    model = build(name, Binary(6), order=None)
    x = torch.rand(1, 6, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda x: model._logits(x), x)[0, :, 0]
    assert torch.equal(jacobian.triu(), torch.zeros(6, 6, dtype=torch.float64))
    below = torch.ones(6, 6).tril(-1).bool()
    if name == "made":
        assert (jacobian[below] != 0).all()


@every
@supports
def test_the_log_probability_is_the_sum_over_conditionals(name, support):
    model = build(name, support)
    x = support.start(5, generator(3), dtype=torch.float64)
    p = model.conditionals(x)
    codes = support.encode(x)
    if support.count == 2:
        own = torch.where(codes == 1, p, 1 - p)
    else:
        assert p.shape == (*x.shape, support.count)
        torch.testing.assert_close(p.sum(-1), torch.ones_like(x))
        own = p.gather(-1, codes.long().unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(own.log().flatten(1).sum(1), model.log_prob(x))


@every
@pytest.mark.parametrize("support", [Binary(2, 3), Spins(5), States(3, 3)], ids=repr)
def test_samples_have_the_probabilities_that_they_should(name, support):
    model = build(name, support, dtype=torch.float32)
    n = 20_000
    x = model.sample(n, generator(5))
    assert x.shape == (n, *support.shape)
    support.check(x)
    places = support.count ** torch.arange(support.size - 1, -1, -1)
    numbers = (support.encode(x).flatten(1).long() * places).sum(1)
    counts = torch.bincount(numbers, minlength=support.count**support.size).double()
    expected = n * model.log_prob(events(support, torch.float32)).double().exp()
    rare = expected < 5
    if rare.any():  # the test wants no small cells
        counts = torch.cat([counts[~rare], counts[rare].sum()[None]])
        expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    expected *= n / expected.sum()
    assert scipy.stats.chisquare(counts.detach(), expected.detach()).pvalue > 1e-3


@every
@supports
def test_the_probabilities_met_are_the_conditionals_of_the_sample(name, support):
    model = build(name, support)
    x, met = model.sample(7, generator(2)), model.sample_probabilities(7, generator(2))
    torch.testing.assert_close(met, model.conditionals(x))
    assert torch.equal(x, model.sample(7, generator(2)))
    if support.size > 1:
        assert not torch.equal(met, model.sample_probabilities(7, generator(3)))


@every
def test_many_samples_are_drawn_in_parts(name, monkeypatch):
    model = build(name, Binary(5))
    whole = model.sample(10, generator())
    monkeypatch.setattr("limbeck.models.autoregressive.NUMBERS", {"cpu": 3 * model._units})
    assert torch.equal(model.sample(10, generator()), whole)


@every
@pytest.mark.parametrize("support", [Binary(5), Spins(4), States(3, 4)], ids=repr)
def test_gradients_are_those_of_finite_differences(name, support):
    model = build(name, support)
    x = support.start(4, generator(1), dtype=torch.float64)
    names = [name for name, _ in model.named_parameters()]

    def log_prob(*parameters):
        return torch.func.functional_call(model, dict(zip(names, parameters, strict=True)), (x,))

    given = tuple(p.detach().clone().requires_grad_() for p in model.parameters())
    assert torch.autograd.gradcheck(log_prob, given, fast_mode=True)
    if support.count == 2:
        x = x.requires_grad_()
        assert torch.autograd.gradcheck(lambda x: model.log_prob(x, check=False), (x,))


@every
@pytest.mark.parametrize("support", [Binary(2, 3), Spins(5), States(3, 4)], ids=repr)
def test_it_is_saved_and_read_again(name, support, tmp_path):
    model = build(name, support)
    path = model.save(tmp_path / "model.safetensors")
    again = type(model).load(path)
    assert again.support == support
    assert again.spec() == model.spec()
    x = events(support)
    assert torch.equal(again.log_prob(x), model.log_prob(x))
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(CheckpointError):
        type(model).load(path)


@every
def test_equal_seeds_give_equal_models(name):
    def make(seed):
        rest = {"order": "random", "generator": generator(seed)}
        return BUILDERS[name](6, **rest).state_dict()

    one, two, other = make(1), make(1), make(2)
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert any(not torch.equal(one[key], other[key]) for key in one)


@every
def test_extreme_logits_stay_finite(name):
    model = build(name, Binary(5))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1e4)
    log_p = model.log_prob(events(Binary(5)))
    assert log_p.isfinite().all()
    assert log_p.exp().sum().item() == pytest.approx(1, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["made", "deep"])
def test_the_compiled_engine_does_what_the_eager_one_does(name):
    histories = []
    for engine in ("eager", "compiled"):
        model = build(name, Binary(2, 4), dtype=torch.float32)
        data = Binary(2, 4).start(40, generator())
        result = lb.distill(
            None, model, data, lb.losses.kl(), steps=6, batch_size=8, engine=engine, every=1,
            progress=False,
        )  # fmt: skip
        assert result.engine == engine
        histories.append(result.history["loss"])
    assert histories[0] == pytest.approx(histories[1], rel=1e-4)
    assert histories[0][0] != histories[0][-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(BUILDERS) - {"made-plain"}))  # which has too few units
def test_training_comes_near_a_known_density(name):
    support = Binary(3)
    p = torch.tensor([0.3, 0.02, 0.05, 0.13, 0.05, 0.3, 0.05, 0.1])
    rows = (1000 * p).round().long()
    data = events(support, torch.float32).repeat_interleave(rows, 0)
    model = BUILDERS[name](3, generator=generator())
    result = model.fit(data, steps=300, lr=0.03, engine="eager", progress=False)
    divergence = p @ (p.log() - model.log_prob(events(support, torch.float32)))
    assert divergence < 0.03
    assert result.history["loss"][-1] < math.log(8)


@every
@pytest.mark.parametrize(
    ("x", "received", "expected"),
    [
        (torch.full((2, 5), 0.5), "10 values such as 0.5", "0 and 1"),
        (torch.zeros(2, 4), r"\(2, 4\)", r"\(n, 5\)"),
        (torch.zeros(2, 5, dtype=torch.float64), "torch.float64", ""),
        ([0, 1], "^a list$", ""),
    ],
)
def test_what_is_no_event_is_refused(name, x, received, expected):
    model = BUILDERS[name](5, generator=generator())
    with refused("x", received, expected=expected):
        model.log_prob(x)


@every
@pytest.mark.parametrize(
    ("rest", "argument", "received"),
    [
        ({"support": Binary(4)}, "support", ""),
        ({"support": Real(5)}, "support", ""),
        ({"order": [0, 1, 2, 3, 3]}, "order", r"numbers of shape \(5,\) that are not"),
        ({"dtype": torch.float16}, "dtype", r"torch\.float16"),
    ],
)
def test_what_fits_no_model_is_refused(name, rest, argument, received):
    with refused(argument, received):
        BUILDERS[name](5, **rest)


@pytest.mark.parametrize("model", [MADE(6, (8,)), DeepNADE(6, 5, width=4, depth=1, run=2)], ids=str)
def test_a_result_with_it_is_read_back_without_an_empty_copy(model, tmp_path):
    x = torch.randint(2, (50, 6), generator=torch.Generator().manual_seed(0)).float()
    model.fit(x, steps=3, progress=False, device="cpu").save(tmp_path)
    back = lb.load(tmp_path).student
    assert type(back) is type(model)
    torch.testing.assert_close(back.log_prob(x), model.log_prob(x))
