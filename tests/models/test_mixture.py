r"""The mixture of Gaussians as a density: against SciPy and quadrature."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import limbeck as lb
from limbeck.distributions.gaussians import KINDS
from limbeck.models.mixture import GaussianMixture
from tests.refusals import refused

DOUBLE = torch.float64


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def random_mixture(components=3, dim=2, covariance="full", seed=0, dtype=DOUBLE):
    g = generator(seed)
    mixture = GaussianMixture(components, dim, covariance, dtype=dtype, generator=g)
    with torch.no_grad():
        for p in mixture.parameters():
            p.copy_(torch.randn(p.shape, generator=g, dtype=dtype) * 0.7)
    return mixture


every_kind = pytest.mark.parametrize("covariance", KINDS)
every_dim = pytest.mark.parametrize("dim", [1, 2, 4])


def joint(mixture, x):
    r"""Weight times density of each component at x, (n, K), by SciPy."""
    found = zip(
        mixture.weights.tolist(),
        mixture.means.detach().numpy(),
        mixture.covariances.detach().numpy(),
        strict=True,
    )
    parts = [
        w * stats.multivariate_normal(m, c).pdf(x.numpy()).reshape(len(x)) for w, m, c in found
    ]
    return np.stack(parts, axis=1)


@every_kind
@every_dim
def test_the_density_is_scipys(covariance, dim):
    mixture = random_mixture(3, dim, covariance)
    x = torch.randn(20, dim, dtype=DOUBLE, generator=generator(1)) * 2
    expected = joint(mixture, x).sum(1)
    np.testing.assert_allclose(mixture.log_prob(x).detach().exp(), expected, rtol=1e-10)
    assert torch.equal(mixture(x), mixture.log_prob(x))


@every_kind
@every_dim
def test_responsibilities_are_bayes_rule(covariance, dim):
    mixture = random_mixture(3, dim, covariance)
    x = torch.randn(20, dim, dtype=DOUBLE, generator=generator(1)) * 2
    expected = joint(mixture, x) / joint(mixture, x).sum(1, keepdims=True)
    np.testing.assert_allclose(mixture.responsibilities(x).detach(), expected, rtol=1e-9)
    far = torch.full((1, dim), 1e4, dtype=DOUBLE)  # where every density underflows
    assert mixture.responsibilities(far).sum().item() == pytest.approx(1)


@every_kind
def test_covariances_are_of_their_kind(covariance):
    mixture = random_mixture(3, 4, covariance)
    s = mixture.covariances.detach()
    assert (torch.linalg.eigvalsh(s) > 0).all()
    off = s - torch.diag_embed(s.diagonal(dim1=1, dim2=2))
    assert (off.abs().max() > 0.1) == (covariance == "full")
    even = s.diagonal(dim1=1, dim2=2).std(1).max() < 1e-12
    assert even == (covariance == "spherical")


@pytest.mark.parametrize(
    ("covariance", "count"),
    [("full", 2 + 6 + 12), ("diagonal", 2 + 6 + 6), ("spherical", 2 + 6 + 2)],
)
def test_there_are_no_more_parameters_than_needed(covariance, count):
    mixture = GaussianMixture(2, 3, covariance)
    assert sum(p.numel() for p in mixture.parameters()) == count
    assert sum(p.numel() for p in GaussianMixture(3).parameters()) == 9


@every_kind
def test_it_starts_with_different_components(covariance):
    mixture = GaussianMixture(5, 2, covariance, generator=generator())
    assert torch.pdist(mixture.means).min() > 1e-3
    same = GaussianMixture(5, 2, covariance, generator=generator())
    assert torch.equal(mixture.means, same.means)


def test_of_one_variable_x_may_have_one_dimension():
    mixture = random_mixture(3, 1)
    x = torch.linspace(-3, 3, 7, dtype=DOUBLE)
    assert torch.equal(mixture.log_prob(x), mixture.log_prob(x[:, None]))
    assert mixture.sample(5).shape == (5, 1)


@pytest.mark.parametrize(
    "x", [torch.zeros(5), torch.zeros(5, 3), torch.zeros(5, 2, 1), [[0.0, 0.0]]]
)
def test_x_of_another_shape_is_refused(x):
    with refused("x", expected=r"a tensor of shape \(n, 2\)"):
        random_mixture().log_prob(x)


@every_kind
def test_far_out_log_densities_are_finite_in_float32(covariance):
    mixture = random_mixture(3, 2, covariance, dtype=torch.float32)
    x = torch.tensor([[1e6, -1e6], [0.0, 0.0]], requires_grad=True)
    found = mixture.log_prob(x)
    assert found.isfinite().all()
    assert found[0] < -1e9
    found.sum().backward()
    assert x.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in mixture.parameters())


@every_kind
def test_derivatives_are_those_of_finite_differences(covariance):
    mixture = random_mixture(2, 3, covariance)
    x = torch.randn(4, 3, dtype=DOUBLE, generator=generator(2), requires_grad=True)
    named = dict(mixture.named_parameters())

    def density(x, *values):
        state = dict(zip(named, values, strict=True))
        return torch.func.functional_call(mixture, state, (x,))

    assert torch.autograd.gradcheck(density, (x, *named.values()))


@every_kind
@every_dim
def test_samples_have_the_moments(covariance, dim):
    mixture = random_mixture(3, dim, covariance)
    n = 50_000
    x = mixture.sample(n, generator())
    assert torch.equal(x, mixture.sample(n, generator()))
    error = (mixture.variance / n).sqrt()
    assert ((x.mean(0) - mixture.mean).abs() < 5 * error).all()
    np.testing.assert_allclose(x.var(0), mixture.variance.detach(), rtol=0.1)
    weights, means, s = mixture.moments()
    if mixture.matrices:
        m = weights @ means
        own = torch.einsum("k,kij->ij", weights, s) + torch.einsum(
            "k,ki,kj->ij", weights, means - m, means - m
        )
        np.testing.assert_allclose(torch.cov(x.mT), own, atol=0.1 * own.abs().max().item())


def test_samples_pass_a_test_against_the_cumulative_distribution():
    mixture = random_mixture(3, 1, seed=4)
    x = mixture.sample(5000, generator())[:, 0]

    def cdf(values):
        return mixture.cdf(torch.as_tensor(values)).detach().numpy()

    assert stats.kstest(x.numpy(), cdf).pvalue > 0.001


@pytest.mark.parametrize("level", [0.1, 0.5, 0.95, 0.9999])
def test_intervals_leave_equal_tails(level):
    mixture = random_mixture(4, 1, seed=3)
    low, high = mixture.interval(level)
    assert mixture.cdf(low.reshape(1)).item() == pytest.approx((1 - level) / 2, rel=1e-9)
    assert 1 - mixture.cdf(high.reshape(1)).item() == pytest.approx((1 - level) / 2, rel=1e-9)


def test_the_cumulative_distribution_is_the_integral():
    mixture = random_mixture(3, 1)
    x = torch.linspace(-30, 30, 60_001, dtype=DOUBLE)
    p = mixture.log_prob(x).exp().detach()
    total = torch.cumulative_trapezoid(p, x)
    torch.testing.assert_close(mixture.cdf(x)[1:].detach(), total, rtol=0, atol=1e-6)


def test_vectors_have_no_intervals():
    mixture = random_mixture(3, 3)
    for call in (lambda: mixture.interval(0.9), lambda: mixture.cdf(torch.zeros(2, 3).double())):
        with refused("dim", "3"):
            call()


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.sampled_from(KINDS), st.integers(0, 1000))
def test_what_is_set_is_there(components, dim, covariance, seed):
    given_mixture = random_mixture(components, dim, covariance, seed)
    moments = [each.detach() for each in (given_mixture.weights, given_mixture.means)]
    found = GaussianMixture(components, dim, covariance, dtype=DOUBLE)
    found.set_(*moments, given_mixture.covariances)
    x = torch.randn(6, dim, dtype=DOUBLE, generator=generator(seed))
    torch.testing.assert_close(found.log_prob(x), given_mixture.log_prob(x), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.covariances, given_mixture.covariances, rtol=1e-9, atol=1e-12)


def test_covariances_can_be_given_in_short():
    mixture = GaussianMixture(2, 3, "diagonal", dtype=DOUBLE)
    means = np.zeros((2, 3))
    mixture.set_([0.5, 0.5], means, [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    assert mixture.covariances[1].diagonal().tolist() == pytest.approx([4, 5, 6])
    mixture.set_([0.5, 0.5], means, [2.0, 3.0])
    assert mixture.covariances[1].diagonal().tolist() == pytest.approx([3, 3, 3])


@pytest.mark.parametrize(
    ("weights", "means", "covariances", "argument", "received"),
    [
        ([0.5, 0.6], [[0, 0], [1, 1]], [1, 1], "weights", "the sum 1.1"),
        ([-0.5, 1.5], [[0, 0], [1, 1]], [1, 1], "weights", ""),
        ([1.0], [[0, 0], [1, 1]], [1, 1], "weights", r"shape \(1,\)"),
        ([0.5, 0.5], [0, 1], [1, 1], "means", r"shape \(2,\)"),
        (
            [0.5, 0.5],
            [[0, math.nan], [1, 1]],
            [1, 1],
            "means",
            "1 NaN",
        ),
        ([0.5, 0.5], "far", [1, 1], "means", "a str"),
        (
            [0.5, 0.5],
            [[0, 0], [1, 1]],
            [1, 0],
            "covariances",
            "no symmetric positive definite",
        ),
        ([0.5, 0.5], [[0, 0], [1, 1]], [1, 1, 1], "covariances", r"shape \(3,\)"),
        (
            [0.5, 0.5],
            [[0, 0], [1, 1]],
            [np.eye(2), [[1, 0.9], [0, 1]]],
            "covariances",
            "for component 1",
        ),
        (
            [0.5, 0.5],
            [[0, 0], [1, 1]],
            [np.eye(2), [[1, 0.5], [0.5, 1]]],
            "covariances",
            "that are not spherical",
        ),
    ],
)
def test_what_cannot_be_set_is_refused(weights, means, covariances, argument, received):
    covariance = "spherical" if "spherical" in received else "full"
    mixture = GaussianMixture(2, 2, covariance)
    before = [p.clone() for p in mixture.parameters()]
    with refused(argument, received):
        mixture.set_(weights, means, covariances)
    assert all(map(torch.equal, before, mixture.parameters()))


@pytest.mark.parametrize(
    ("arguments", "argument", "received", "expected"),
    [
        ((0,), "components", "^0$", ""),
        ((2.5,), "components", "^2.5$", ""),
        ((2, 0), "dim", "^0$", ""),
        ((2, 1, "tied"), "covariance", "'tied'", "'diagonal', 'full', 'spherical'"),
    ],
)
def test_there_is_no_other_mixture(arguments, argument, received, expected):
    with refused(argument, received, expected=expected):
        GaussianMixture(*arguments)
    with refused("dtype", "torch.float16"):
        GaussianMixture(2, dtype=torch.float16)


# starts


@every_kind
@pytest.mark.parametrize("dim", [1, 3])
def test_a_start_is_spread_over_samples_and_near_them(covariance, dim):
    centres = 20.0 * torch.eye(4, dim, dtype=DOUBLE) - 10 * (torch.arange(4.0)[:, None] == 3)
    if dim == 1:
        centres = torch.tensor([[-30.0], [-10.0], [10.0], [30.0]], dtype=DOUBLE)
    x = centres.repeat_interleave(100, 0) + torch.randn(400, dim, generator=generator()).double()
    mixture = GaussianMixture(4, dim, covariance, dtype=DOUBLE).start_from(x, generator=generator())
    apart = torch.cdist(mixture.means, centres).amin(0)
    assert apart.max() < 1  # each cluster has a component
    np.testing.assert_allclose(mixture.weights.detach(), 0.25, atol=1e-6)
    assert mixture.covariances.diagonal(dim1=1, dim2=2).max() < 3
    other = GaussianMixture(4, dim, covariance, dtype=DOUBLE).start_from(x, generator=generator())
    assert torch.equal(other.means, mixture.means)


def test_a_start_never_has_two_equal_components():
    x = torch.tensor([0.0] * 500 + [1.0, 2.0, 3.0])
    for seed in range(20):
        mixture = GaussianMixture(4).start_from(x, generator=generator(seed))
        assert torch.pdist(mixture.means).min() > 0.5
    with refused("x", "4 different samples"):
        GaussianMixture(5).start_from(x, generator=generator())


def test_weights_of_zero_are_as_good_as_absence():
    x = torch.randn(50, 2, generator=generator())
    weight = (torch.arange(50) < 30).float()
    far = torch.where(weight[:, None] > 0, x, 1e3)
    a = GaussianMixture(2, 2).start_from(far, weight, generator())
    b = GaussianMixture(2, 2).start_from(x[:30], None, generator())
    torch.testing.assert_close(a.means, b.means)
    torch.testing.assert_close(a.covariances, b.covariances)


# with the rest of limbeck


def test_it_is_saved_and_loaded(tmp_path):
    mixture = random_mixture(3, 2, "full", dtype=torch.float32)
    x = torch.randn(64, 2, generator=generator())
    result = lb.distill(None, mixture, x, lb.losses.kl(), steps=2, device="cpu", progress=False)
    result.save(tmp_path / "mixture")
    again = lb.load(tmp_path / "mixture").student
    assert isinstance(again, GaussianMixture)
    assert torch.equal(again.log_prob(x), mixture.log_prob(x))
    assert again.spec() == mixture.spec()


@pytest.mark.parametrize("spec", [{}, {"components": 2}, {"components": 0, "dim": 1}])
def test_other_specs_are_refused(spec):
    with refused("spec"):
        GaussianMixture.from_spec(spec)


@every_kind
def test_gradients_train_it(covariance):
    truth = GaussianMixture(2, 2, covariance).set_([0.3, 0.7], [[-3, 0], [3, 1]], [1.0, 0.5])
    x = truth.sample(2000, generator())
    student = GaussianMixture(2, 2, covariance).start_from(x, generator=generator())
    lb.distill(None, student, x, lb.losses.kl(), steps=300, lr=0.03, device="cpu", progress=False)
    fresh = truth.sample(4000, generator(1))
    gap = (truth.log_prob(fresh) - student.log_prob(fresh)).mean().item()
    assert gap < 0.01


def test_it_is_a_proposal_with_a_support():
    mixture = random_mixture(2, 3)
    assert mixture.support == lb.Real(3)
    assert mixture.output_form == "log_density"
