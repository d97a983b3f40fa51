r"""What a user's function may give, and what is said of everything else."""

import numpy as np
import pytest
import torch

from limbeck.distributions import (
    Bernoulli,
    Categorical,
    Mixture,
    MultivariateNormal,
    Normal,
    Poisson,
    as_distribution,
    check,
)
from tests.refusals import refused

Z = torch.zeros(4)
EYE = torch.eye(2).expand(4, 2, 2)

GOOD = [
    Bernoulli(logits=Z),
    Bernoulli(probs=torch.tensor([0.0, 1.0, 0.5, 1.0 + 1e-6])),
    Bernoulli(probs=np.array([0.1, 0.2, 0.3, 0.4])),
    Bernoulli(logits=np.zeros(4, dtype=np.float32)),
    Categorical(logits=torch.zeros(4, 3)),
    Categorical(logits=torch.tensor([[0.0, -torch.inf]] * 4)),
    Categorical(probs=torch.full((4, 3), 1 / 3)),
    Normal(Z, 1.0),
    Normal(Z, Z + 0.1),
    Normal(torch.zeros(4, 2), torch.ones(2)),
    Poisson(rate=Z),
    Poisson(log_rate=Z - 100),
    MultivariateNormal(torch.zeros(4, 2), torch.eye(2)),
    Mixture([0.5, 0.5], Normal(torch.zeros(4, 2), [1.0, 2.0])),
    Mixture(logits=torch.zeros(4, 2), components=Poisson(rate=torch.ones(4, 2))),
    Mixture(torch.full((4, 3), 1 / 3), Normal(torch.zeros(3), torch.ones(3))),
]


@pytest.mark.parametrize("one", GOOD, ids=lambda one: type(one).__name__)
def test_what_is_as_it_should_be_passes(one):
    found = check(one, 4)
    assert type(found) is type(one)
    assert found.batch_shape[0] == 4
    assert found.mean.isfinite().all()
    assert found.sample().shape[0] == 4


def test_a_density_without_inputs_passes():
    found = check(Mixture([0.2, 0.8], Normal([0.0, 1.0], 2.0)), None, "density")
    assert found.log_prob(0.5).shape == ()
    assert check(MultivariateNormal([0.0, 1.0], np.eye(2)), None).event == 1


def test_arrays_become_tensors_of_the_wanted_type():
    like = torch.zeros(0, dtype=torch.float64)
    assert check(Normal(np.zeros(4), 1), 4, like=like).scale.dtype == torch.float64
    assert as_distribution(Poisson(rate=torch.tensor([1, 2]))).rate.dtype == torch.float32
    frozen = np.zeros(4)
    frozen.flags.writeable = False
    assert check(Normal(frozen, 1.0), 4).loc.shape == (4,)


@pytest.mark.parametrize(
    ("one", "received"),
    [
        (Z, "a Tensor as its result"),
        (None, "a NoneType as its result"),
        (Bernoulli(), "a Bernoulli with nothing"),
        (Bernoulli(Z, Z), "a Bernoulli with probs and logits"),
        (Normal(Z), "a Normal with loc"),
        (Mixture([0.5, 0.5]), "a Mixture with weights"),
        (Mixture([0.5, 0.5], Z), "a Mixture of a Tensor"),
        (Mixture([0.5, 0.5], Normal(Z)), "a Normal with loc"),
        (Bernoulli(probs="half"), "a Bernoulli whose parameters are no numbers"),
        (Bernoulli(probs=Z - 0.1), "probs of a Bernoulli between -0.1 and -0.1"),
        (Bernoulli(probs=Z + 1.2), "probs of a Bernoulli between 1.2 and 1.2"),
        (Bernoulli(logits=Z / 0), "logits of a Bernoulli with 4 that are NaN or infinite"),
        (Bernoulli(logits=Z + torch.inf), "logits of a Bernoulli with 4 that are NaN or inf"),
        (Categorical(probs=torch.ones(4, 3) / 2), "probs of a Categorical with the sum 1.5"),
        (Categorical(logits=torch.full((4, 3), torch.nan)), "logits of a Categorical with 12"),
        (Normal(Z, 0.0), "scale of a Normal between 0 and 0"),
        (Normal(Z, -Z - 1), "scale of a Normal between -1 and -1"),
        (Normal(Z / 0, 1.0), "loc of a Normal with 4 that are NaN or infinite"),
        (Poisson(rate=Z - 1), "rate of a Poisson between -1 and -1"),
        (
            MultivariateNormal(torch.zeros(4, 2), -EYE),
            r"scale_tril of a .* between -1 and -?0",
        ),
        (
            MultivariateNormal(torch.zeros(4, 2), EYE + 1),
            r"scale_tril of a .* between 1 and 2",
        ),
        (Mixture([0.5, 0.6], Normal(torch.zeros(4, 2), 1.0)), "weights of a Mixture with the sum"),
        (Mixture([0.5, 0.5], Normal(torch.zeros(4, 2), -1.0)), "scale of a Normal between -1"),
        (Bernoulli(logits=torch.zeros(3)), r"batch shape \(3,\) for 4 inputs"),
        (Bernoulli(logits=torch.tensor(0.0)), r"batch shape \(\) for 4 inputs"),
        (Normal(torch.zeros(4, 2, 2), 1.0), r"batch shape \(4, 2, 2\) for 4 inputs"),
        (Normal(torch.zeros(4, 1), Z + 1), r"parameters of the shapes \(4, 1\) and \(4,\)"),
        (Normal(Z, torch.ones(3)), r"loc \(4,\), scale \(3,\), which do not fit each other"),
    ],
)
def test_what_is_not_is_refused(one, received):
    with refused("predict", received):
        check(one, 4)


def test_a_batch_is_refused_where_one_density_is_expected():
    with refused("density", r".*shape \(4,\) of no inputs"):
        check(Normal(Z, 1.0), None, "density")
