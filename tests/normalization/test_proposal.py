r"""Proposals: students, distributions and objects of the user's own, all with one face."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributions import Bernoulli, Categorical, Independent, MixtureSameFamily, Normal

from limbeck.models.nade import NADE
from limbeck.normalization.densities import Proposal
from tests.normalization.small import generator
from tests.refusals import refused


def test_a_batch_of_distributions_is_one_of_independent_variables():
    logits = torch.tensor([0.3, -1.0, 2.0])
    loose, tied = Proposal(Bernoulli(logits=logits)), Independent(Bernoulli(logits=logits), 1)
    x = loose.sample(5, generator())
    assert x.shape == (5, 3)
    torch.testing.assert_close(loose.log_prob(x), tied.log_prob(x))
    torch.testing.assert_close(Proposal(tied).log_prob(x), tied.log_prob(x))


def test_equal_generators_give_equal_samples_and_leave_torch_s_own_alone():
    mixture = MixtureSameFamily(
        Categorical(torch.ones(2)), Independent(Normal(torch.zeros(2, 3), 1.0), 1)
    )
    for model in (NADE(4, 3, generator=generator()), Bernoulli(torch.full((4,), 0.5)), mixture):
        proposal, before = Proposal(model), torch.get_rng_state()
        one, two = (proposal.sample(20, generator(7)) for _ in range(2))
        assert torch.equal(one, two)
        assert not torch.equal(one, proposal.sample(20, generator(8)))
        assert torch.equal(before, torch.get_rng_state())
        assert proposal.log_prob(one).shape == (20,)
        assert not proposal.log_prob(one).requires_grad


def test_events_are_cast_to_the_model_s_own_type():
    nade = NADE(4, 3, dtype=torch.float64, generator=generator())
    x = torch.ones(2, 4)
    assert Proposal(nade).log_prob(x).dtype == torch.float64


class Own(nn.Module):
    def __init__(self, samples, logs):
        super().__init__()
        self.samples, self.logs = samples, logs

    def sample(self, n):
        return self.samples(n)

    def log_prob(self, x):
        return self.logs(x)


@pytest.mark.parametrize("samples", [lambda n: torch.zeros(n + 1, 3), lambda n: [0.0] * n])
def test_samples_of_another_number_are_refused(samples):
    with refused("proposal", ".* for 4 samples"):
        Proposal(Own(samples, None)).sample(4, generator())


@pytest.mark.parametrize("logs", [lambda x: x, lambda x: x.sum(), lambda x: [0.0] * len(x)])
def test_log_densities_of_another_shape_are_refused(logs):
    with refused("proposal", "log densities .* of 4 events"):
        Proposal(Own(None, logs)).log_prob(torch.zeros(4, 3))


@pytest.mark.parametrize("model", [None, 3, nn.Linear(2, 2), "nade"])
def test_what_is_no_density_is_refused(model):
    with refused("proposal", "a .* without log_prob"):
        Proposal(model)
