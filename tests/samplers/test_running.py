r"""R-hat and effective sizes on the fly: against those of the whole series, and known ones."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from limbeck.samplers import diagnostics
from limbeck.samplers.diagnostics import RunningDiagnostics, effective_size, r_hat
from tests.refusals import refused
from tests.samplers.test_diagnostics import autoregressive


def fed(series: Tensor, blocks: int = 64, **options) -> RunningDiagnostics:
    r"""What is known after a series (chains, draws) or (chains, draws, dim)."""
    running = RunningDiagnostics(**options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diagnostics, "BLOCKS", blocks)
        for draws in series.reshape(*series.shape[:2], -1).unbind(1):
            running.update(draws)
    return running


@given(st.integers(1, 5), st.integers(4, 300), st.sampled_from([4, 8, 64]), st.floats(-1e6, 1e6))
def test_r_hat_is_that_of_the_whole_blocks(chains, draws, blocks, offset):
    series = offset + autoregressive(0.5, chains, draws, seed=draws)
    running = fed(series, blocks=blocks)
    assert running.count == draws
    length = 1
    while draws >= blocks * length:
        length *= 2
    half = draws // length // 2 * length
    whole = draws // length * length
    kept = torch.cat([series[:, :half], series[:, whole - half : whole]], 1)
    assert float(running.r_hat) == pytest.approx(r_hat(kept), rel=1e-6)
    if whole == draws and half * 2 == draws:
        assert float(running.r_hat) == pytest.approx(r_hat(series), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("phi", [-0.5, 0.0, 0.5, 0.9])
@pytest.mark.parametrize("chains", [1, 2, 4, 20, 200])
def test_the_size_of_an_autoregressive_series_is_the_known_one(phi, chains):
    # Ten series side by side, as coordinates: an error of 14% each (20% of a single chain).
    n = 40_000
    series = autoregressive(phi, 10 * chains, n // chains).reshape(10, chains, -1)
    found = fed(series.permute(1, 2, 0)).ess
    known = n * (1 - phi) / (1 + phi)
    assert float(found.log().mean().exp()) == pytest.approx(known, rel=0.15)
    assert ((found > 0.5 * known) & (found < 2 * known)).all()
    for one, whole in zip(found, series, strict=True):
        assert float(one) == pytest.approx(effective_size(whole), rel=0.6)


@pytest.mark.parametrize(("phi", "draws"), [(0.8, 1), (0.8, 2), (0.8, 5), (-0.6, 3), (0.95, 100)])
def test_many_short_chains_have_the_exact_size_of_their_finite_length(phi, draws):
    time = 1 + 2 * sum((1 - t / draws) * phi**t for t in range(1, draws))
    chains = 5000
    found = fed(autoregressive(phi, chains, draws)).ess
    assert float(found) == pytest.approx(chains * draws / time, rel=0.08)


def test_the_size_gives_the_error_of_the_mean():
    # 300 repetitions, as coordinates: the spread of their means against what each one says.
    series = autoregressive(0.7, 300 * 4, 1600).reshape(300, 4, 1600).permute(1, 2, 0)
    claimed = (series.flatten(0, 1).var(0) / fed(series).ess).mean()
    assert float(claimed) == pytest.approx(float(series.mean((0, 1)).var()), rel=0.2)


def test_short_series_of_few_chains_have_no_size_yet():
    for draws in (1, 30, 100):
        assert fed(autoregressive(0.5, 2, draws)).ess.isnan().all()
    assert fed(autoregressive(0.5, 2, 1000)).ess.isfinite().all()
    assert fed(autoregressive(0.5, 2, 3)).r_hat.isnan().all()


def test_chains_too_slow_for_their_batches_are_found_out():
    # 10 τ a chain, batches of a third of τ: those alone would say 3.8 times too much.
    series = autoregressive(0.99, 60 * 4, 2000).reshape(60, 4, 2000).permute(1, 2, 0)
    found = fed(series).ess / (8000 * 0.01 / 1.99)
    assert float(found.log().mean().exp()) < 1.8


def test_memory_does_not_grow_and_no_draw_is_kept():
    running = RunningDiagnostics()
    generator = torch.Generator().manual_seed(0)
    running.update(torch.randn(3, 2, generator=generator))
    size = sum(tensor.numel() for tensor in running.state_dict().values())
    assert size == 2 * 64 * 3 * 2 + 3
    for _ in range(5000):
        running.update(torch.randn(3, 2, generator=generator))
    assert sum(tensor.numel() for tensor in running.state_dict().values()) == size
    assert running.count == 5001


@pytest.mark.parametrize("chains", [2, 5, 150])
def test_chains_that_disagree_are_worth_about_their_number(chains):
    apart = torch.arange(float(chains))[:, None] + 0.01 * autoregressive(0.0, chains, 1000)
    running = fed(apart)
    assert 0.9 * (chains - 1) < float(running.ess) < 1.6 * chains
    assert float(running.r_hat) > 5


def test_chains_that_agree_are_not_taken_for_others():
    series = autoregressive(0.6, 4 * 500, 640).reshape(500, 4, 640).permute(1, 2, 0)
    running = fed(series)
    assert (running.ess > 0.3 * 4 * 640 * 0.4 / 1.6).all()
    assert (running.r_hat < 1.05).float().mean() > 0.95


def test_drift_is_seen_by_halves():
    drifting = autoregressive(0.0, 4, 1000) + torch.linspace(0, 4, 1000)
    assert float(fed(drifting).r_hat) > 1.3


def test_one_stuck_chain_is_told_by_its_number():
    series = autoregressive(0.3, 6, 640, seed=3).reshape(6, 640, 1).repeat(1, 1, 2)
    series[:, :, 1] = autoregressive(0.3, 6, 640, seed=4)
    assert fed(series).reasons() == []
    series[4, 200:] = torch.tensor([3.0, -0.1])
    running = fed(series, names=["alpha", "beta"])
    stuck, disagree = running.reasons()[:2]
    assert stuck == "1 of 6 chains have not moved in 320 draws: 4"
    assert disagree.startswith("R̂ of alpha is 1.")
    assert "after 640 draws" in disagree
    assert disagree.endswith("chain 4 is furthest from the others")
    assert "R̂ of coordinate 0" in fed(series).reasons()[1]


def test_draws_that_are_worth_little_are_told():
    reason = fed(autoregressive(0.99, 4, 2000)).reasons()[-1]
    assert reason.startswith("the draws of coordinate 0 are worth ")
    assert reason.endswith(" independent ones")


def test_constants_and_stuck_chains_have_limits():
    constant = fed(torch.full((3, 640), 3.3))
    assert float(constant.r_hat) == 1
    assert float(constant.ess) == 3 * 640
    stuck = fed(torch.tensor([0.1, 1.7])[:, None].expand(2, 640))
    assert float(stuck.r_hat) == math.inf
    assert float(stuck.ess) == pytest.approx(1 + math.sqrt(2), rel=0.01)
    assert stuck.reasons()[0] == "2 of 2 chains have not moved in 320 draws: 0, 1"


def test_an_antithetic_series_is_never_worth_more_than_n_log_n():
    alternating = torch.tensor([1.0, -1.0]).repeat(3, 640)
    n = alternating.numel()
    assert float(fed(alternating).ess) == pytest.approx(n * math.log10(n))


@pytest.mark.parametrize(("share", "size"), [(0.05, 1e4), (0.05, 10.0), (0.1, -5.0)])
@pytest.mark.parametrize("count", [200, 1000, 3000])
def test_a_late_jump_is_a_reason_and_rough_draws_are_none(count, share, size):
    g = torch.Generator().manual_seed(count)
    tails = torch.distributions.StudentT(3.0)
    for k in range(5):
        torch.manual_seed(100 * k + count)
        series = autoregressive(0.9, 4, count, k) if k % 2 else tails.sample((4, count))
        series = torch.stack([series, torch.randn(4, count, generator=g)], 2).double()
        assert not any("far from those before" in reason for reason in fed(series).reasons())
        series[:, int((1 - share) * count) :, 1] += size
        (reason,) = (r for r in fed(series).reasons() if "far from those before" in r)
        assert reason.endswith(": coordinate 1")


def test_far_from_zero_nothing_is_lost():
    series = autoregressive(0.5, 4, 1280)
    near, far = fed(series), fed(1e8 + series)
    torch.testing.assert_close(far.r_hat, near.r_hat, rtol=1e-5, atol=0)
    torch.testing.assert_close(far.ess, near.ess, rtol=1e-4, atol=0)


def test_a_resumed_run_is_the_uninterrupted_one():
    series = autoregressive(0.5, 3, 777)
    whole, again = fed(series), RunningDiagnostics()
    again.load_state_dict(fed(series[:, :500]).state_dict())
    for draws in series[:, 500:, None].unbind(1):
        again.update(draws)
    assert torch.equal(again.r_hat, whole.r_hat)
    assert torch.equal(again.ess, whole.ess)
    assert again.count == 777
    fresh = RunningDiagnostics()
    fresh.load_state_dict(RunningDiagnostics().state_dict())
    fresh.update(torch.zeros(2, 2))
    assert fresh.count == 1


@pytest.mark.parametrize(
    ("draws", "received", "expected"),
    [
        (torch.zeros(3), r"shape \(3,\)", r"shape \(chains, dim\)"),
        (torch.zeros(0, 2), r"shape \(0, 2\)", ""),
        (
            torch.tensor([[0.0], [math.nan]]),
            "NaN or infinite values, the first in row 1",
            "",
        ),
        ("draws", "a str", ""),
    ],
)
def test_draws_that_are_none_are_refused(draws, received, expected):
    with refused("draws", received, expected=expected):
        RunningDiagnostics().update(draws)


def test_other_bad_arguments_are_refused():
    running = RunningDiagnostics(names=["a", "b"])
    with refused("draws", "none yet"):
        running.ess  # noqa: B018
    with refused("names", "2 names"):
        running.update(torch.zeros(4, 3))
    running.update(torch.zeros(4, 2))
    with refused("draws", r"shape \(5, 2\)"):
        running.update(torch.zeros(5, 2))
