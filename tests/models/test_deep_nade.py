r"""DeepNADE's own structure; what it shares with others is in test_autoregressive.py."""

import pytest
import torch

import limbeck as lb
from limbeck.models.nade import NADE, DeepNADE
from limbeck.models.rbm import RBM
from limbeck.supports import Binary, Spins, States
from tests.refusals import refused


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def events(support):
    return support.enumerate(0, support.count**support.size, dtype=torch.float64)


@pytest.mark.parametrize("support", [Binary(2, 4), Spins(7), States(3, 5)], ids=repr)
@pytest.mark.parametrize("run", [None, 1, 3, 20])
def test_from_a_nade_it_starts_with_its_density(support, run):
    nade = NADE(support.size, 4, "random", support, dtype=torch.float64, generator=generator())
    with torch.no_grad():
        for parameter in nade.parameters():
            parameter.normal_(generator=generator(parameter.numel()))
    deep = DeepNADE.from_nade(nade, width=3, run=run, generator=generator())
    x = events(support)
    torch.testing.assert_close(deep.log_prob(x), nade.log_prob(x))
    assert torch.equal(deep.order, nade.order)


def from_rbm(rbm, hidden=None, *sizes, order=None, centre="auto"):
    nade = NADE.from_rbm(rbm, hidden, order, generator(), centre)
    return DeepNADE.from_nade(nade, *sizes, generator=generator())


def test_a_centred_nade_keeps_its_centre():
    rbm = RBM.random(6, 4, 1.0, generator(), dtype=torch.float64)
    x = events(Binary(6))
    nade = NADE.from_rbm(rbm, order="random", generator=generator())
    deep = DeepNADE.from_nade(nade, generator=generator())
    assert (nade.mean > 0).any()
    torch.testing.assert_close(deep.log_prob(x), nade.log_prob(x))


def test_centring_is_a_mean_field_step():
    r"""By hand: p(x_i = 1 | x_<i) with the mean m in the place of x_i and of all after it."""
    rbm = RBM.random(6, 4, 1.0, generator(), dtype=torch.float64)
    x = Binary(6).start(3, generator(1), dtype=torch.float64)
    m = Binary(6).start(50, generator(2), dtype=torch.float64).mean(0)
    deep = from_rbm(rbm, None, None, 2, 4, centre=m)
    expected = []
    for i in range(6):
        filled = torch.cat([x[:, :i], m[i:].expand(3, -1)], 1)
        expected.append(rbm.visible_probabilities(rbm.hidden_probabilities(filled))[:, i])
    torch.testing.assert_close(deep.conditionals(x), torch.stack(expected, 1))


@pytest.mark.parametrize("seed", range(3))
def test_from_an_rbm_it_starts_nearer_than_nade(seed):
    rbm = RBM.random(9, 5, 1.2, generator(seed), dtype=torch.float64)
    deep = from_rbm(rbm, order="random")
    x = events(Binary(9))
    log_p = rbm.log_unnormalized(x).log_softmax(0)

    def divergence(model):
        return (log_p.exp() * (log_p - model.log_prob(x))).sum().item()

    assert 0 < divergence(deep) < 0.5 * divergence(NADE.from_rbm(rbm, centre=None))


@pytest.mark.parametrize("hidden", [2, 5, 8])
def test_hidden_units_may_be_fewer_or_more_than_the_rbms(hidden):
    rbm = RBM.random(6, 5, 1.0, generator())
    deep = from_rbm(rbm, hidden)
    nade = NADE.from_rbm(rbm, hidden, generator=generator())
    assert deep.hidden == hidden
    for name in ("w", "v"):
        assert torch.equal(getattr(deep, name), nade.w)
    assert torch.equal(deep.u, nade.u)


def test_chains_find_the_mean():
    rbm = RBM.random(8, 3, 1.5, generator(4), dtype=torch.float64)
    x = events(Binary(8))
    exact = rbm.log_unnormalized(x).softmax(0) @ x
    deep = from_rbm(rbm)
    torch.testing.assert_close(deep.mean, exact.detach(), atol=0.06, rtol=0)  # 5 standard errors


def test_depth_makes_it_better():
    r"""A residual net between runs fits what a centred NADE alone cannot."""
    rbm = RBM.random(9, 6, 2.0, generator(1))
    x = events(Binary(9)).float()
    log_p = rbm.log_unnormalized(x).log_softmax(0).detach()
    data = x[torch.multinomial(log_p.exp(), 20_000, replacement=True, generator=generator())]

    def divergence(depth):
        deep = from_rbm(rbm, 3, 16, depth, 3, centre=data.mean(0))
        lb.distill(None, deep, data, lb.losses.kl(), steps=250, lr=0.02, batch_size=500,
                   engine="eager", progress=False)  # fmt: skip
        return (log_p.exp() * (log_p - deep.log_prob(x))).sum().item()

    assert divergence(2) < 0.8 * divergence(0)


def test_the_mean_is_no_parameter_and_is_saved(tmp_path):
    deep = DeepNADE(5, 3, generator=generator())
    deep.mean.fill_(0.25)
    assert "mean" not in dict(deep.named_parameters())
    assert (DeepNADE.load(deep.save(tmp_path / "deep.safetensors")).mean == 0.25).all()


def test_runs_are_as_long_as_there_are_of_them():
    deep = DeepNADE(784, 4)
    assert (deep.run, deep.runs, deep.width) == (28, 28, 8)
    assert DeepNADE(10, 4, run=4).runs == 3
    assert DeepNADE(1, 4).runs == 1


def test_many_events_are_evaluated_in_parts(monkeypatch):
    deep = DeepNADE(6, 3, 4, 2, generator=generator())
    x = events(Binary(6)).float()
    whole = deep.log_prob(x).detach()
    monkeypatch.setattr("limbeck.models.nade.ROOM", {"cpu": 5 * deep.runs * 7})
    seen = []
    monkeypatch.setattr(
        deep,
        "_deep",
        lambda carried: seen.append(carried.shape[1]) or type(deep)._deep(deep, carried),
    )
    with torch.no_grad():
        torch.testing.assert_close(deep.log_prob(x), whole)
    assert seen == [5] * 12 + [4]


def test_second_derivatives_agree_with_finite_differences():
    deep = DeepNADE(5, 3, run=2, dtype=torch.float64, generator=generator())
    x = torch.randn(2, 5, dtype=torch.float64, generator=generator(), requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: deep.log_prob(x, check=False), (x,))


@pytest.mark.parametrize(
    ("rest", "argument", "received"),
    [
        ({"hidden": 0}, "hidden", "^0$"),
        ({"hidden": 3, "width": 0}, "width", "^0$"),
        ({"hidden": 3, "depth": -1}, "depth", "^-1$"),
        ({"hidden": 3, "run": 0}, "run", "^0$"),
    ],
)
def test_sizes_must_be_whole_numbers(rest, argument, received):
    with refused(argument, received):
        DeepNADE(5, **rest)
