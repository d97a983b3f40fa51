r"""MADE's own structure; what it shares with others is in test_autoregressive.py."""

import math

import pytest
import torch

from limbeck.models.made import MADE
from limbeck.supports import Binary, Spins, States
from tests.refusals import refused


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("support", [Binary(7), States(3, 7)], ids=repr)
def test_it_starts_at_the_uniform_distribution(support):
    made = MADE(7, (8, 8), support=support, generator=generator())
    x = support.start(5, generator())
    torch.testing.assert_close(made.log_prob(x), torch.full((5,), -support.log_count))


@pytest.mark.parametrize(("inputs", "width"), [(784, 1000), (5, 3), (5, 4), (30, 7), (2, 6)])
def test_degrees_are_spread_evenly(inputs, width):
    made = MADE(inputs, width)
    degrees = made._degrees(0)
    assert degrees.min() == 1
    assert degrees.max() <= inputs - 1
    counts = torch.bincount(degrees, minlength=inputs)[1:]
    assert counts.max() - counts.min() <= 1
    assert (degrees.diff() >= 0).all()  # masks are staircases
    for i, reach in enumerate(made._reaches(0)):
        assert reach == (degrees <= i).sum()


def test_masks_are_no_buffers():
    made = MADE(20, (30, 30), generator=generator())
    assert [name for name, _ in made.named_buffers()] == ["order"]
    names = {"type", "inputs", "order", "support", "dtype", "hidden", "skip", "activation"}
    assert set(made.spec()) == names


@pytest.mark.parametrize("hidden", [(8,), (8, 8)])
def test_hyperbolic_tangents_give_a_density_that_is_sampled_and_saved(hidden, tmp_path):
    made = MADE(5, hidden, support=Spins(5), activation="tanh", generator=generator())
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator()))
    events = Spins(5).enumerate(0, 32)
    p = made.log_prob(events).detach().exp()
    assert p.sum().item() == pytest.approx(1, abs=1e-5)
    x = made.sample(20_000, generator())
    counts = torch.stack([(x == event).all(1).sum() for event in events])
    assert ((counts - 20_000 * p).abs() < 5 * (20_000 * p).sqrt() + 1).all()
    again = MADE.load(made.save(tmp_path / "made.safetensors"))
    torch.testing.assert_close(again.log_prob(events).exp(), p, atol=1e-6, rtol=1e-5)


def test_a_spec_of_before_has_the_activation_of_before():
    spec = MADE(5, (8,), generator=generator()).spec()
    del spec["activation"]
    assert MADE.from_spec(spec).activation == "gelu"


def test_masked_weights_start_at_zero_and_have_no_gradient():
    made = MADE(6, (8, 8), generator=generator())
    with torch.no_grad():
        made.out.normal_(generator=generator())
    made.log_prob(Binary(6).start(9, generator())).sum().backward()
    for layer, weights in enumerate(made.weights):
        outside = ~made._mask(layer)
        assert outside.any()
        assert (weights[outside] == 0).all()
        assert (weights.grad[outside] == 0).all()
        assert (weights.grad[~outside] != 0).any()
    assert (made.direct.grad.triu() == 0).all()


def test_layers_of_equal_width_add_to_what_is_there():
    made = MADE(5, (6, 6), skip=False, dtype=torch.float64, generator=generator())
    with torch.no_grad():
        made.weights[1].zero_()
        made.out.normal_(generator=generator())
    shallow = MADE(5, 6, skip=False, dtype=torch.float64)
    state = made.state_dict()
    shallow.load_state_dict({name: state[name] for name in shallow.state_dict()})
    x = Binary(5).enumerate(0, 32, dtype=torch.float64)
    torch.testing.assert_close(made.log_prob(x), shallow.log_prob(x))
    narrowing = MADE(5, (6, 4), dtype=torch.float64, generator=generator())
    with torch.no_grad():
        narrowing.weights[1].zero_()
        narrowing.out.normal_(generator=generator())
    # nothing is added to a layer of another width: what is left does not look at x
    assert narrowing.log_prob(x).std() < 1e-12


def test_direct_connections_can_be_left_out():
    assert MADE(4, 5, skip=False).direct is None
    made = MADE(2, 1, dtype=torch.float64)
    with torch.no_grad():
        made.direct[1, 0] = 3.0
    expected = math.log(0.5) + math.log(1 / (1 + math.exp(-3)))
    assert made.log_prob(torch.ones(1, 2, dtype=torch.float64)).item() == pytest.approx(expected)


@pytest.mark.parametrize("hidden", [(), 0, (4, 0), 2.5, "8", (3, True)])
def test_hidden_layers_must_have_units(hidden):
    with refused("hidden"):
        MADE(4, hidden)
