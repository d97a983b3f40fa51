r"""The bridge equation: its root, its error, and agreement with pymbar's BAR."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from limbeck.normalization.bridge import fit_bridge
from tests.normalization.small import generator

LOG_Z = 0.5 * math.log(2 * math.pi)


def normals(
    mean: float, scale: float, n: int, seed: int, m: int | None = None
) -> tuple[Tensor, Tensor]:
    r"""log p̃ − log q for p̃ = exp(−x²/2), q = N(mean, scale²), at samples of p and of q."""
    source = generator(seed)
    x = torch.randn(n, generator=source, dtype=torch.float64)
    y = mean + scale * torch.randn(n if m is None else m, generator=source, dtype=torch.float64)

    def ratio(x: Tensor) -> Tensor:
        return ((x - mean) / scale).square() / 2 - x.square() / 2 + math.log(scale) + LOG_Z

    return ratio(x)[:, None], ratio(y)


@pytest.mark.parametrize(
    ("mean", "scale"), [(0.5, 1.2), (3.0, 1.0), (0.0, 4.0), (6.0, 0.5), (30, 1)]
)
@pytest.mark.parametrize("m", [300, 1000])
def test_the_root_is_found_to_ten_figures_whatever_the_overlap(mean, scale, m):
    target, proposal = normals(mean, scale, 500, 0, m)
    fit = fit_bridge(target, proposal)
    assert fit.share == 500 / (500 + m)
    assert float(fit.f_proposal.mean() / fit.f_target.mean()) == pytest.approx(1, abs=1e-9)
    assert torch.allclose(fit.tilt(proposal), fit.share * fit.f_proposal)
    moved = fit_bridge(target + 1000, proposal + 1000)
    assert moved.log_z - 1000 == pytest.approx(fit.log_z, abs=1e-9)


@given(
    st.lists(st.floats(-400, 400), min_size=1, max_size=8),
    st.lists(st.floats(-400, 400), min_size=1, max_size=8),
)
def test_any_log_ratios_have_a_root_between_them(target, proposal):
    fit = fit_bridge(torch.tensor(target).double()[:, None], torch.tensor(proposal).double())
    ends = [*target, *proposal]
    slack = abs(math.log(len(target) / len(proposal))) + 1e-4
    assert min(ends) - slack <= fit.log_z <= max(ends) + slack


def test_fixed_point_iteration_goes_to_the_same_root():
    target, proposal = normals(1.5, 1.3, 400, 1, 900)
    fit = fit_bridge(target, proposal)
    share, log_r = 400 / 1300, 0.0
    for _ in range(500):
        one = proposal.exp() / (share * proposal.exp() + (1 - share) * math.exp(log_r))
        two = 1 / (share * target.exp() + (1 - share) * math.exp(log_r))
        log_r = math.log(one.mean() / two.mean())
    assert fit.log_z == pytest.approx(log_r, abs=1e-10)


@pytest.mark.parametrize(("mean", "scale"), [(0.5, 1.2), (2.0, 1.0), (0.0, 2.5)])
def test_errors_are_those_of_repeated_estimates(mean, scale):
    fits = [fit_bridge(*normals(mean, scale, 300, seed, 500)) for seed in range(600)]
    z = torch.tensor([(fit.log_z - LOG_Z) / fit.std_error for fit in fits])
    # the mean of 600 scores is known to 0.04, their standard deviation to 0.03
    assert abs(z.mean()) < 0.15
    assert z.std() == pytest.approx(1, abs=0.1)


def test_weights_and_error_take_the_effective_size_of_the_f2_series():
    # Chains that stay where they are: 50 of them, whose 20 draws are one draw each.
    target, proposal = normals(0.8, 1.3, 50, 3, 500)
    stuck = fit_bridge(target.expand(50, 20), proposal)
    once = fit_bridge(target, proposal)
    assert stuck.ess == pytest.approx(50, rel=0.25)
    assert stuck.share == pytest.approx(once.share, rel=0.25)
    assert stuck.std_error == pytest.approx(once.std_error, rel=0.25)
    naive = fit_bridge(target.expand(50, 20).reshape(1000, 1), proposal)
    assert naive.std_error < 0.75 * once.std_error


def test_error_and_degrees_of_freedom_are_welch_s():
    target, proposal = normals(0.8, 0.7, 50, 3, 80)
    chains = (0.9 * target + 0.1 * target.flip(0)).expand(50, 6) + 0.3 * torch.arange(6) % 0.7
    fit = fit_bridge(chains, proposal)
    assert fit.ess < 150  # of 300 draws
    sides = ((fit.f_proposal, 80), (fit.f_target, fit.ess))
    parts = [(float(f.var() / f.mean() ** 2) / size, size) for f, size in sides]
    variance = sum(part for part, _ in parts)
    assert fit.std_error == pytest.approx(math.sqrt(variance), rel=1e-12)
    freedom = variance**2 / sum(part**2 / (size - 1) for part, size in parts)
    assert fit.degrees == pytest.approx(freedom, rel=1e-12)
    assert min(parts) > (0.1 * variance, 0)  # both sides count


def test_an_exact_proposal_has_no_error():
    fit = fit_bridge(torch.full((10, 1), 7.25), torch.full((10,), 7.25))
    assert fit.log_z == pytest.approx(7.25, abs=1e-12)
    assert fit.std_error == pytest.approx(0, abs=1e-12)
    assert fit.overlap == pytest.approx(1)


def test_one_sample_has_no_known_error():
    fit = fit_bridge(torch.tensor([[1.0]]), torch.tensor([2.0]))
    assert fit.log_z == pytest.approx(1.5)
    assert fit.std_error == math.inf


def test_regions_without_mass_of_one_side_count_as_no_overlap():
    # p uniform on {a, b, c}, q on {b, c, d}: log Z = log 3 from what they share.
    third = math.log(1 / 3)
    target = torch.tensor([[math.inf], [-third], [-third]] * 400, dtype=torch.float64)
    proposal = torch.tensor([-math.inf, -third, -third] * 400, dtype=torch.float64)
    fit = fit_bridge(target, proposal)
    assert fit.log_z == pytest.approx(math.log(3), abs=1e-9)
    assert fit.overlap == pytest.approx(2 / 3)
    nowhere = fit_bridge(torch.full((5, 1), math.inf), torch.zeros(5))
    assert nowhere.log_z == math.inf


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("mean", "scale", "n", "m"),
    [(0.5, 1.2, 1000, 1000), (2.5, 1.0, 2000, 500), (0.0, 3.0, 400, 3000)],
)
def test_pymbar_s_bar_agrees(mean, scale, n, m, seed):
    pymbar = pytest.importorskip("pymbar")
    target, proposal = normals(mean, scale, n, seed, m)
    # From q to p: the work is the difference of their reduced energies, −(log p̃ − log q).
    forward, backward = -proposal.numpy(), target.flatten().numpy()
    bar = pymbar.bar(forward, backward, relative_tolerance=1e-13, maximum_iterations=5000)
    fit = fit_bridge(target, proposal)
    assert fit.log_z == pytest.approx(-bar["Delta_f"], abs=1e-6)
    assert fit.std_error == pytest.approx(bar["dDelta_f"], rel=0.1)
