r"""Batch EM: it climbs, it stops at the truth, and it is scikit-learn's from the same start."""

import math
import warnings

import numpy as np
import pytest
import torch
from sklearn import mixture as sklearn_mixture

from limbeck.distributions.gaussians import (
    KINDS,
    Moments,
    Statistics,
    expected_statistics,
    has_matrices,
    maximised,
)
from limbeck.models import mixture_em
from limbeck.models.mixture import GaussianMixture
from limbeck.models.mixture_em import fit_em
from tests.refusals import refused

DOUBLE = torch.float64
every_kind = pytest.mark.parametrize("covariance", KINDS)
every_dim = pytest.mark.parametrize("dim", [1, 3])


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def clusters(dim, n=300, seed=0, offset=0.0):
    r"""Three overlapping clusters of different shapes."""
    g = generator(seed)
    parts = []
    for _ in range(3):
        turn = torch.randn(dim, dim, generator=g, dtype=DOUBLE)
        centre = 2 * torch.randn(dim, generator=g, dtype=DOUBLE)
        parts.append(torch.randn(n, dim, generator=g, dtype=DOUBLE) @ turn + centre)
    return torch.cat(parts) + offset


def fresh(x, covariance, components=3, seed=1, dtype=DOUBLE):
    mixture = GaussianMixture(components, x.shape[1], covariance, dtype=dtype)
    return mixture.start_from(x, generator=generator(seed))


def moments(mixture):
    found = (mixture.weights, mixture.means, mixture.covariances)
    return [each.detach().numpy() for each in found]


@every_kind
@every_dim
def test_a_start_is_the_same_in_other_units(covariance, dim):
    x = clusters(dim)
    units = 2.0 ** torch.tensor([9, 0, -3], dtype=DOUBLE)[:dim]
    if covariance == "spherical":  # one variance, in one unit
        units = units[:1].expand(dim)
    one, other = fresh(x, covariance), fresh(x * units, covariance)
    torch.testing.assert_close(other.weights, one.weights)
    torch.testing.assert_close(other.means, one.means * units)
    torch.testing.assert_close(other.covariances, one.covariances * units * units[:, None])


@every_kind
@every_dim
def test_the_likelihood_never_falls(covariance, dim):
    x = clusters(dim)
    mixture = fresh(x, covariance)
    before = mixture.log_prob(x).mean().item()
    result = fit_em(mixture, x, restarts=0, iterations=200, progress=False)
    history = np.array(result.log_likelihood)
    assert history[0] == pytest.approx(before, rel=1e-12)
    assert history[-1] == pytest.approx(mixture.log_prob(x).mean().item(), rel=1e-12)
    assert np.diff(history).min() > -1e-12
    assert history[-1] > history[0] + 1e-3
    assert len(history) == result.iterations + 1


@every_kind
@every_dim
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_it_is_scikit_learns_from_the_same_start(covariance, dim, offset):
    x = clusters(dim, offset=offset)
    mixture = fresh(x, covariance)
    weights, means, covariances = moments(mixture)
    precisions = np.linalg.inv(covariances)
    kind = {"full": "full", "diagonal": "diag", "spherical": "spherical"}[covariance]
    if kind != "full":
        precisions = np.diagonal(precisions, axis1=1, axis2=2)
    if kind == "spherical":
        precisions = precisions[:, 0]
    other = sklearn_mixture.GaussianMixture(
        3,
        covariance_type=kind,
        tol=0,
        reg_covar=0,
        max_iter=15,
        weights_init=weights,
        means_init=means,
        precisions_init=precisions,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it has not converged in 15 iterations
        other.fit(x.numpy())
    result = fit_em(mixture, x, restarts=0, iterations=15, tolerance=0, progress=False)
    assert result.iterations == 15
    weights, means, covariances = moments(mixture)
    np.testing.assert_allclose(weights, other.weights_, rtol=0, atol=1e-6)
    np.testing.assert_allclose(means, other.means_, rtol=0, atol=1e-6)
    theirs = np.linalg.inv(
        other.precisions_
        if kind == "full"
        else np.stack([np.diag(np.broadcast_to(p, dim)) for p in other.precisions_])
    )
    np.testing.assert_allclose(covariances, theirs, rtol=0, atol=1e-6)
    assert result.log_likelihood[-1] == pytest.approx(other.score(x.numpy()), abs=1e-7)


@every_kind
def test_the_truth_is_a_fixed_point_for_many_samples(covariance):
    truth = GaussianMixture(2, 2, covariance, dtype=DOUBLE)
    truth.set_([0.3, 0.7], [[-2.0, 0.0], [2.0, 1.0]], [1.0, 0.5])
    n = 200_000
    x = truth.sample(n, generator())
    student = GaussianMixture(2, 2, covariance, dtype=DOUBLE)
    student.load_state_dict(truth.state_dict())
    result = fit_em(student, x, restarts=0, iterations=1, progress=False)
    apart = max(np.abs(a - b).max() for a, b in zip(moments(student), moments(truth), strict=True))
    assert 0 < apart < 5 * 2 / math.sqrt(n)
    # twice the gain of likelihood over the truth is about χ² of as many degrees as parameters
    gain = 2 * n * (result.log_likelihood[-1] - result.log_likelihood[0])
    assert 0 < gain < 40


@every_kind
def test_restarts_find_what_was_there(covariance):
    truth = GaussianMixture(4, 2, covariance, dtype=DOUBLE)
    truth.set_([0.1, 0.2, 0.3, 0.4], [[-6, 0], [0, 6], [6, 0], [0, -6]], [1.0, 0.5, 2.0, 1.0])
    x = truth.sample(2000, generator())
    student = GaussianMixture(4, 2, covariance, dtype=DOUBLE)
    options = {"restarts": 5, "tolerance": 1e-6, "progress": False}
    result = student.fit(x, generator=generator(), **options)
    assert result.converged
    assert result.trustworthy
    assert result.verdict.startswith("EM converged to ")
    assert len(result.starts) == 5
    assert max(result.starts) == result.log_likelihood[-1]
    order = student.weights.argsort()
    np.testing.assert_allclose(student.weights[order].detach(), truth.weights.detach(), atol=0.03)
    np.testing.assert_allclose(student.means[order].detach(), truth.means.detach(), atol=0.3)


def test_equal_seeds_give_equal_fits():
    x = clusters(2)
    fits = []
    for seed in (3, 3, 4):
        mixture = GaussianMixture(3, 2, dtype=DOUBLE, generator=generator())
        fit_em(mixture, x, generator=generator(seed), iterations=5, restarts=1, progress=False)
        fits.append(mixture.means.detach())
    assert torch.equal(fits[0], fits[1])
    assert not torch.equal(fits[0], fits[2])


@every_kind
def test_weights_are_repetitions(covariance):
    x = clusters(2, n=40)
    times = torch.randint(0, 4, (len(x),), generator=generator(2))
    repeated, start = x.repeat_interleave(times, 0), fresh(x, covariance).state_dict()
    found = []
    for data, weights in ((x, times), (x, times * 0.01), (repeated, None)):
        mixture = GaussianMixture(3, 2, covariance, dtype=DOUBLE)
        mixture.load_state_dict(start)
        result = fit_em(mixture, data, weights, restarts=0, iterations=20, progress=False)
        found.append((*moments(mixture), np.array(result.log_likelihood)))
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


@every_kind
def test_blocks_change_nothing(covariance, monkeypatch):
    x = clusters(3)
    one, other = fresh(x, covariance), fresh(x, covariance)
    fit_em(one, x, restarts=0, iterations=5, progress=False)
    monkeypatch.setattr(mixture_em, "BLOCK", 9 * 50)
    fit_em(other, x, restarts=0, iterations=5, progress=False)
    for a, b in zip(moments(one), moments(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_float32_samples_far_from_zero_lose_nothing():
    x = clusters(2)
    near, far = fresh(x, "full"), GaussianMixture(3, 2)
    fit_em(near, x, restarts=0, iterations=30, progress=False)
    shifted = (x + 4096.0).float()
    far.start_from(shifted, generator=generator(1))
    fit_em(far, shifted, restarts=0, iterations=30, progress=False)
    np.testing.assert_allclose(
        far.covariances.detach(), near.covariances.detach(), rtol=0.02, atol=0.01
    )


# what goes wrong


@every_kind
@every_dim
def test_a_component_that_sits_on_equal_samples_stops_at_the_floor(covariance, dim):
    x = torch.cat([clusters(dim), torch.full((30, dim), 50.0, dtype=DOUBLE)])
    mixture = GaussianMixture(2, dim, covariance, dtype=DOUBLE)
    result = fit_em(mixture, x, generator=generator(), floor=1e-4, restarts=3, progress=False)
    least = 1e-4 * (x - x.mean(0)).square().mean(0)
    least = least.mean() if covariance == "spherical" else least
    variances = mixture.covariances.diagonal(dim1=1, dim2=2).detach()
    k = mixture.means[:, 0].argmax()
    torch.testing.assert_close(variances[k], least.expand(dim), rtol=1e-6, atol=0)
    assert mixture.log_prob(x).isfinite().all()
    assert not result.trustworthy
    assert f"component {int(k)} has collapsed: its variance is at the floor" in result.verdict


def test_the_floor_holds_in_every_direction():
    x = torch.randn(500, 2, generator=generator(), dtype=DOUBLE)
    x = torch.stack([x[:, 0], x[:, 0] + 1e-6 * x[:, 1]], 1)  # nearly a line
    mixture = GaussianMixture(1, 2, dtype=DOUBLE)
    history = fit_em(mixture, x, floor=1e-3, progress=False, generator=generator()).log_likelihood
    spread = x.std(0, unbiased=False)
    scaled = mixture.covariances[0].detach() / torch.outer(spread, spread)
    torch.testing.assert_close(torch.linalg.eigvalsh(scaled)[0].item(), 1e-3)
    assert np.diff(history).min() > -1e-12


def test_starts_without_collapse_are_preferred():
    g = generator(2)
    x = torch.cat([torch.randn(20, generator=g), torch.full((2,), 0.5)])
    mixture = GaussianMixture(3, dtype=DOUBLE)
    result = fit_em(mixture, x, generator=g, restarts=10, tolerance=1e-6, progress=False)
    assert result.trustworthy
    assert result.log_likelihood[-1] < max(result.starts) - 0.1  # a collapsed one is likelier


def test_a_component_that_dies_out_is_told():
    x = clusters(1)
    mixture = GaussianMixture(2, dtype=DOUBLE).set_([0.5, 0.5], [0.0, 1e4], [4.0, 1.0])
    result = fit_em(mixture, x, restarts=0, progress=False)
    assert any("component 1 has died out" in reason for reason in result.reasons)
    assert all(p.isfinite().all() for p in mixture.parameters())
    assert mixture.log_prob(x).mean().item() == pytest.approx(result.log_likelihood[-1])


def test_no_convergence_is_told():
    x = clusters(1)
    result = fit_em(fresh(x, "full"), x, restarts=0, iterations=3, progress=False)
    assert not result.converged
    assert "iteration 3, the last, still gained" in str(result)


@pytest.mark.parametrize(
    ("x", "options", "argument", "received", "expected"),
    [
        (torch.zeros(5, 3), {}, "x", r"shape \(5, 3\)", r"a tensor of shape \(n, 2\)"),
        (torch.zeros(1, 2), {}, "x", "1 samples", "at least as many as the 2 comp"),
        (torch.zeros(9, 2), {}, "x", "samples whose variable 0 never changes", ""),
        (torch.full((9, 2), 0.1), {}, "x", "samples whose variable 0 never changes", ""),
        (
            torch.full((9, 2), math.nan),
            {},
            "x",
            "18 NaN or infinite values",
            "",
        ),
        ("data.csv", {}, "x", "^a str$", ""),
        (torch.randn(9, 2), {"weights": torch.ones(8)}, "weights", r"shape \(8,\)", ""),
        (
            torch.randn(9, 2),
            {"weights": -torch.ones(9)},
            "weights",
            "-1 in row 0",
            "",
        ),
        (torch.randn(9, 2), {"weights": torch.zeros(9)}, "weights", "zeros alone", ""),
        (torch.randn(9, 2), {"floor": 0}, "floor", "^0$", "a number between 0 and 1"),
        (torch.randn(9, 2), {"iterations": 0}, "iterations", "^0$", ""),
        (torch.randn(9, 2), {"restarts": -1}, "restarts", "^-1$", ""),
        (torch.randn(9, 2), {"tolerance": -1}, "tolerance", "^-1$", ""),
    ],
)
def test_what_cannot_be_fitted_is_refused(x, options, argument, received, expected):
    mixture = GaussianMixture(2, 2)
    before = mixture.means.clone()
    with refused(argument, received, expected=expected):
        fit_em(mixture, x, progress=False, **options)
    assert torch.equal(mixture.means, before)


def test_arrays_and_lists_are_taken():
    mixture = GaussianMixture(2)
    x = [0.0, 0.1, 0.2, 5.0, 5.1, 5.2]
    fit_em(mixture, x, generator=generator(), progress=False)
    assert sorted(mixture.means.flatten().tolist()) == pytest.approx([0.1, 5.1], abs=1e-3)
    fit_em(mixture, np.array(x), generator=generator(), progress=False)
    assert sorted(mixture.means.flatten().tolist()) == pytest.approx([0.1, 5.1], abs=1e-3)


def test_a_full_covariance_is_raised_only_in_directions_below_the_floor():
    angle, least = 0.7, torch.tensor([0.04, 0.09], dtype=torch.float64)
    turn = torch.tensor(
        [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]],
        dtype=torch.float64,
    )
    units = least.sqrt()  # variances are compared in these units
    variances = torch.tensor([9.0, 0.01], dtype=torch.float64)
    covariance = (turn * variances) @ turn.mT * units.unsqueeze(1) * units
    before = Moments(torch.ones(1), torch.zeros(1, 2), torch.eye(2).unsqueeze(0))
    statistics = Statistics(torch.ones(1), torch.zeros(1, 2), covariance.unsqueeze(0))
    result = maximised(statistics, Moments(*(t.double() for t in before)), "full", least)
    raised = (turn * variances.clamp_min(1)) @ turn.mT * units.unsqueeze(1) * units
    torch.testing.assert_close(result.covariances[0], raised)


@every_kind
@every_dim
def test_the_m_step_gives_back_the_moments_of_expected_statistics(covariance, dim):
    weights = torch.tensor([0.2, 0.5, 0.3], dtype=DOUBLE)
    means = torch.randn(3, dim, generator=generator(1), dtype=DOUBLE) * 3
    matrices = has_matrices(covariance, dim)
    root = torch.randn(3, dim, dim, generator=generator(2), dtype=DOUBLE)
    full = root @ root.mT + torch.eye(dim, dtype=DOUBLE)
    variances = full.diagonal(dim1=-2, dim2=-1)
    if covariance == "spherical":
        variances = variances[:, :1].expand(3, dim)
    moments = Moments(weights, means, full if matrices else variances)
    before = Moments(*(torch.zeros_like(part) for part in moments))
    least = torch.full((dim,), 1e-6, dtype=DOUBLE)
    found = maximised(expected_statistics(moments, matrices), before, covariance, least)
    for part, known in zip(found, moments, strict=True):
        torch.testing.assert_close(part, known)
