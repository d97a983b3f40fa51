r"""The bag: an average of few draws that stay where they belong, and can be saved."""

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import nn

import limbeck as lb
from limbeck.condensation.sample_bag import SampleBag, positive_variables
from limbeck.distributions import Bernoulli, Mixture, Normal
from limbeck.errors import CheckpointError
from limbeck.posteriors.draws import Structure
from limbeck.posteriors.read import as_draws
from tests.refusals import raises_about, refused

DOUBLE = torch.float64
G = torch.Generator().manual_seed(0)
POSTERIOR = {
    "alpha": np.random.default_rng(0).normal(size=(4, 50, 3)),
    "beta": np.random.default_rng(1).normal(2, 0.1, size=(4, 50)),
    "sigma": np.random.default_rng(2).gamma(2, 0.2, size=(4, 50)),
}
X = {"group": torch.tensor([0, 1, 2, 2]), "dose": torch.randn(4, generator=G)}


def predict(draw, x):
    return Normal(draw["alpha"][x["group"]] + draw["beta"] * x["dose"], draw["sigma"])


def logistic(w, x):
    return Bernoulli(logits=x @ w)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def rows(draws, structure):
    return structure.flatten(draws)


def test_calling_it_is_averaging_over_its_draws():
    bag = SampleBag(predict, POSTERIOR, 5, dtype=DOUBLE)
    x = X | {"dose": X["dose"].double()}
    found, y = bag(x), torch.randn(4, dtype=DOUBLE, generator=G)
    assert isinstance(found, Mixture)
    draws = bag.draws
    assert {name: part.shape[1:] for name, part in draws.items()} == {
        "alpha": (3,),
        "beta": (),
        "sigma": (),
    }
    ones = [predict({n: p[k] for n, p in draws.items()}, x) for k in range(5)]
    torch.testing.assert_close(found.mean, torch.stack([one.mean for one in ones]).mean(0))
    logs = torch.stack([one.log_prob(y) for one in ones])
    torch.testing.assert_close(found.log_prob(y), logs.exp().mean(0).log())


def test_trained_weights_weigh_the_components():
    bag = SampleBag(logistic, torch.randn(100, 2, generator=G), 3, weighted=True)
    with torch.no_grad():
        bag.logits.copy_(torch.tensor([0.0, 1.0, -2.0]))
    x = torch.randn(6, 2, generator=G)
    torch.testing.assert_close(bag.weights.sum(), torch.tensor(1.0))
    expected = (bag.weights * (x @ bag.draws.T).sigmoid()).sum(1)
    torch.testing.assert_close(bag(x).mean, expected)
    plain = SampleBag(logistic, torch.randn(100, 2, generator=G), 4)
    assert torch.equal(plain.weights, torch.full((4,), 0.25))
    assert [name for name, _ in plain.named_parameters()] == ["free"]


@pytest.mark.parametrize("scaled", [True, False])
def test_components_start_at_different_draws_of_all_chains(scaled):
    draws = as_draws(POSTERIOR)
    bag = SampleBag(predict, POSTERIOR, 8, dtype=DOUBLE, scaled=scaled, generator=generator(3))
    found, known = rows(bag.draws, bag.structure), draws.flat
    place = [(known - row).abs().sum(1).argmin().item() for row in found]
    torch.testing.assert_close(found, known[place])
    assert len(set(place)) == 8
    assert {index // 50 for index in place} == {0, 1, 2, 3}


def test_units_are_the_posteriors_deviations_or_the_draws_own():
    posterior = torch.tensor([100.0, 0.0]) + torch.tensor([1e-3, 50.0]) * torch.randn(
        900, 2, generator=G
    )
    scaled = SampleBag(logistic, posterior, 20)
    assert scaled.free.std(0).tolist() == pytest.approx([1, 1], rel=0.4)
    plain = SampleBag(logistic, posterior, 20, scaled=False)
    assert torch.equal(plain.free.data, plain.draws.data)


def test_equal_seeds_give_equal_bags():
    one, same, other = (
        SampleBag(predict, POSTERIOR, 5, generator=generator(seed)).free for seed in (0, 0, 1)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_a_normal_start_forgets_the_posterior():
    far = 1000 + torch.randn(500, 2, generator=G)
    bag = SampleBag(logistic, far, 200, start="normal", generator=generator())
    assert bag.draws.mean().abs() < 0.3
    assert bag.draws.std().item() == pytest.approx(1, rel=0.2)


def test_components_never_start_at_the_same_place():
    posterior = torch.randn(3, 2, generator=G).repeat_interleave(100, 0)  # as Metropolis repeats
    bag = SampleBag(logistic, posterior, 10)
    apart = (bag.draws[:, None] - bag.draws[None]).abs().sum(-1) + torch.eye(10)
    assert apart.min() > 1e-6


def test_variables_stay_where_they_are_said_to_be_whatever_the_parameters():
    support = {"sigma": "positive", "beta": (1.0, 3.0)}
    bag = SampleBag(predict, POSTERIOR, 5, support=support)
    with torch.no_grad():
        bag.free.mul_(10).sub_(20)
    draws = bag._draws
    assert (draws["sigma"] > 0).all()
    assert ((draws["beta"] >= 1) & (draws["beta"] <= 3)).all()
    assert (draws["alpha"] < 0).any()


def test_named_variables_with_positive_draws_alone_are_kept_positive_unasked():
    assert positive_variables(as_draws(POSTERIOR)) == {"beta": "positive", "sigma": "positive"}
    bag = SampleBag(predict, POSTERIOR, 5)
    assert not bag.supports.plain
    assert SampleBag(predict, POSTERIOR, 5, support=None).supports.plain
    assert SampleBag(logistic, 5 + torch.rand(50, 2), 5).supports.plain


def test_a_stream_gives_the_first_components():
    batches = iter([np.full((10, 2), float(k)) for k in range(100)])
    bag = SampleBag(logistic, batches, 4, scaled=False, generator=generator())
    assert len(bag.draws[:, 0].unique()) == 4  # of four different times


def test_gradients_agree_with_finite_differences():
    bag = SampleBag(predict, POSTERIOR, 3, weighted=True, dtype=DOUBLE)
    x, y = X | {"dose": X["dose"].double()}, torch.randn(4, dtype=DOUBLE, generator=G)

    def function(free, logits):
        return torch.func.functional_call(bag, {"free": free, "logits": logits}, (x,)).log_prob(y)

    arguments = [p.detach().requires_grad_() for p in (bag.free, bag.logits)]
    assert torch.autograd.gradcheck(function, arguments)


def test_inputs_of_another_floating_type_become_the_bags():
    bag = SampleBag(logistic, torch.randn(50, 2, dtype=DOUBLE, generator=G), 3)
    assert bag.free.dtype == DOUBLE
    assert bag(torch.zeros(2, 2)).mean.dtype == DOUBLE
    assert SampleBag(logistic, np.random.default_rng(0).normal(size=(50, 2)), 3).free.dtype == (
        torch.float32
    )


def test_a_saved_bag_is_read_back_with_its_supports(tmp_path):
    bag = SampleBag(predict, POSTERIOR, 5, weighted=True)
    with torch.no_grad():
        bag.free.add_(0.3)
    story = lb.Result(bag, {"loss": [1.0]}, 1, "done", 0.0)
    story.save(tmp_path)
    empty = SampleBag(predict, bag.structure, 5, weighted=True)
    assert empty.supports.plain
    again = lb.load(tmp_path, student=empty).student
    for name, part in bag._draws.items():
        assert torch.equal(again._draws[name], part)
    other = SampleBag(predict, bag.structure, 5, weighted=True)
    other.load_state_dict(bag.state_dict())
    assert torch.equal(other._draws["sigma"], bag._draws["sigma"])
    with raises_about(CheckpointError, "free"):
        lb.load(tmp_path, student=SampleBag(predict, bag.structure, 6, weighted=True))


def test_a_module_as_function_is_not_trained_along():
    class Fixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, w, x):
            return Bernoulli(logits=self.scale * (x @ w))

    bag = SampleBag(Fixed(), torch.randn(50, 2, generator=G), 3)
    assert [name for name, _ in bag.named_parameters()] == ["free"]
    assert bag(torch.zeros(1, 2)).mean == 0.5


def test_what_cannot_be_made_is_refused():
    few = torch.randn(5, 2, generator=G)
    with refused("components", "6"):
        SampleBag(logistic, few, 6)
    with refused("components", "0"):
        SampleBag(logistic, few, 0)
    with refused("predict", "a Tensor"):
        SampleBag(few, few)
    with refused("start", "'zero'"):
        SampleBag(logistic, few, 2, start="zero")
    with refused("draws['alpha']", "draws such as"):
        SampleBag(predict, POSTERIOR, 2, support={"alpha": "positive"})
    assert "2 components of a vector of 2, equal weights" in repr(SampleBag(logistic, few, 2))


def test_a_structure_alone_makes_an_empty_bag_with_supports():
    structure = Structure(("beta", "sigma"), ((2,), ()))
    bag = SampleBag(predict, structure, 4, support={"sigma": "positive"})
    assert (bag.draws["sigma"] > 0).all()


def test_an_array_is_no_support():
    for value in (np.array([1, "a", None], dtype=object), torch.zeros(3)):
        with refused("support"):
            SampleBag(logistic, torch.randn(5, 3), 2, support=value)


def test_ordered_variables_stay_ordered_and_are_read_back(tmp_path):
    draws = {"cut": torch.randn(2, 50, 3, dtype=DOUBLE, generator=G).sort(-1).values}
    bag = SampleBag(predict, draws, 4, support="ordered")
    distance = torch.cdist(bag.draws["cut"].detach(), draws["cut"].flatten(0, 1))
    assert distance.min(1).values.max() < 1e-9  # they start at draws
    with torch.no_grad():
        bag.free.mul_(5)
    assert (bag._draws["cut"].diff(dim=-1) > 0).all()
    lb.Result(bag, {"loss": [1.0]}, 1, "done", 0.0).save(tmp_path)
    empty = SampleBag(predict, bag.structure, 4, dtype=DOUBLE)
    again = lb.load(tmp_path, student=empty).student
    assert torch.equal(again._draws["cut"], bag._draws["cut"])


def test_inputs_are_arrays_or_are_refused():
    bag = lb.SampleBag(lambda w, x: lb.Normal(x @ w, torch.ones(len(x))), torch.randn(9, 3), 2)
    x = np.eye(3, dtype=np.float32)
    torch.testing.assert_close(bag(x).mean, bag(torch.eye(3)).mean)
    for call in (bag, bag.covariances):
        with refused("x", "sparse"):
            call(scipy.sparse.eye(3).tocsr())
