r"""Verdicts on log Z: what was not checked is "unchecked", and what a check was not told it asks.

Draws of the target that were never moved, chains without a second start, starts that replace those
of a check, warnings of a sampler, and densities whose integral diverges: all were "trustworthy".
"""

from __future__ import annotations

import functools
import json
import math
import sys
import warnings

import pytest
import torch
from torch.distributions import Independent, Normal, StudentT, Uniform

import limbeck as lb
import limbeck.models.energy
from limbeck import cli, storage
from limbeck.report import records
from limbeck.report.normalization import report_on
from limbeck.samplers.slice import Slice
from tests.normalization.small import (
    HALF,
    MODES,
    one_mode_student,
    random_rbm,
    student,
    two_modes,
)


def normal(x):
    r"""The energy of a standard normal; log Z = log √2π for each number."""
    return x.square().sum(1) / 2


def log_z(target, proposal, **settings):
    settings = {"samples": 2000, "burn_in": 50, "progress": False, "method": "bridge"} | settings
    return lb.log_partition(target, proposal, **settings)


# Draws that were never moved


@pytest.mark.parametrize("settings", [{}, {"second_start": None}, {"chains": 500}])
def test_draws_that_were_never_moved_are_unchecked(settings):
    # Events half a standard deviation off, taken as draws: log Z comes out wrong.
    target, proposal = lb.Energy(normal, lb.Real(2)), Normal(torch.zeros(2), 1.2 * torch.ones(2))
    shifted = torch.randn(4000, 2, generator=torch.Generator().manual_seed(1)) + 0.5
    z = log_z(target, proposal, start=shifted, burn_in=0, **settings)
    assert not z.verdict.trustworthy
    assert any("burn_in=0" in reason for reason in z.verdict.reasons)
    right = log_z(target, proposal, start=shifted)
    assert right.verdict.state == "trustworthy", right.verdict
    assert right.value == pytest.approx(math.log(2 * math.pi), abs=4 * right.std_error)


def test_no_sweeps_and_no_second_start_is_unchecked_in_every_view_of_the_result(tmp_path):
    rbm = random_rbm(scale=0.3)
    z = log_z(rbm, student(rbm, faith=1.0), burn_in=0, second_start=None)
    assert z.verdict.state == "unchecked"
    assert len(z.verdict.reasons) == 2
    assert "unchecked" in str(z).splitlines()[-1]
    assert "all checks passed" not in str(z)
    known = z.to_dict()
    assert (known["state"], known["trustworthy"]) == ("unchecked", False)
    saved = storage.read(
        storage.write(tmp_path / "z", *records.to_record(z, verb="logz", target=rbm))
    )
    assert saved.content["log_z"][0]["state"] == "unchecked"
    (entry,) = (each for each in saved.content["verdicts"] if each["name"].startswith("log Z"))
    assert not entry["held"]
    assert entry["words"].startswith("Unchecked: ")
    page = str(report_on(saved))
    assert "unchecked" in page
    assert "doubtful" not in page


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"burn_in": 1}, "burn_in=1"),
        ({"second_start": None}, "second_start=None"),
        ({"samples": 3, "burn_in": 50}, "second start"),
        ({"samples": 180, "chains": 20, "second_start": None}, "second_start=None"),
        ({"samples": 171, "chains": 19}, "19 chains"),
    ],
)
def test_a_check_that_could_not_run_is_named(settings, reason):
    rbm = random_rbm(scale=0.3)
    z = log_z(rbm, student(rbm, faith=1.0), **settings)
    assert not z.verdict.trustworthy
    assert any(reason in each for each in z.verdict.unchecked), z.verdict


def test_chains_whose_advance_moves_nothing_are_unchecked():
    rbm = random_rbm(scale=0.3)
    still = lb.Energy(lambda x: -rbm.log_unnormalized(x), rbm.support, advance=lambda x, s, g: x)
    z = log_z(still, student(rbm, faith=1.0))
    assert z.verdict.state == "unchecked"
    assert "no chain has moved" in str(z.verdict)


def test_importance_sampling_without_sweeps_of_the_target_is_unchecked():
    class Bare:
        def __init__(self, target):
            self.support, self.log_unnormalized = target.support, target.log_unnormalized

    # A hidden half of the mass would not be seen by sweeps, as there are none.
    z = log_z(Bare(two_modes()), one_mode_student(), method="importance")
    assert z.value == pytest.approx(HALF, abs=0.01)
    assert z.verdict.unchecked
    assert not z.verdict.trustworthy


def test_the_command_exits_with_three_where_log_z_is_unchecked(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rbm = lb.RBM.random(6, 3, 0.05, torch.Generator().manual_seed(0))
    rbm.save("rbm.npz")
    words = ["logz", "rbm.npz", "--method", "bridge", "--steps", "20"]
    words += ["--samples", "500", "--quiet", "--json"]
    for sweeps, code in (("1", 3), ("50", 0)):
        command = ["limbeck", *words, "--burn-in", sweeps, "--out", sweeps]
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        shown = json.loads(capsys.readouterr().out)
        assert (ended.value.code or 0) == code
        assert shown["log_z"][0]["state"] == ("unchecked" if code else "trustworthy")


# Starts that add to those of a check


@pytest.mark.parametrize("start", [torch.zeros(3, MODES), "proposal"])
def test_a_start_does_not_replace_the_probes_of_importance_sampling(start):
    z = log_z(two_modes(), one_mode_student(), method="importance", start=start)
    assert z.value == pytest.approx(HALF, abs=0.01)  # of two modes, one
    assert z.verdict.state == "doubtful"
    assert any("from far lead away" in reason for reason in z.verdict.reasons)


@pytest.mark.parametrize("start", ["proposal", torch.zeros(3, MODES)])
@pytest.mark.parametrize("second", ["proposal", torch.zeros(3, MODES)])
def test_a_second_start_does_not_replace_that_of_the_bridge(start, second):
    z = log_z(two_modes(), one_mode_student(), start=start, second_start=second)
    assert z.verdict.state == "doubtful"
    assert any("two starts disagree" in reason for reason in z.verdict.reasons)


def test_a_start_is_the_way_out_where_the_targets_own_have_no_mass():
    # A normal distribution beyond 20: none of the support's own starts is there.
    def beyond(x):
        return torch.where((x > 20).all(1), (x - 25).square().sum(1) / 2, math.inf)

    target, proposal = lb.Energy(beyond, lb.Real(2)), Normal(torch.full((2,), 25.0), 1.0)
    for settings in ({"method": "importance", "start": torch.full((1, 2), 25.0)},
                     {"second_start": torch.full((1, 2), 25.0)}):  # fmt: skip
        z = log_z(target, proposal, samples=500, **settings)
        assert z.value == pytest.approx(math.log(2 * math.pi), abs=0.1)
        assert any("no mass there" in reason for reason in z.verdict.unchecked)


# Warnings, and integrals that are infinite


def warned(**settings):
    with pytest.warns(UserWarning, match="chain"):
        return log_z(**settings)


@pytest.mark.parametrize("method", ["bridge", "importance"])
def test_a_warning_of_the_users_sampler_counts_against_the_estimate(method):
    rbm = random_rbm(scale=0.3)

    def advance(x, sweeps, generator):
        warnings.warn("some chains were not moved", stacklevel=2)
        return rbm.advance(x, sweeps, generator)

    target = lb.Energy(lambda x: -rbm.log_unnormalized(x), rbm.support, advance=advance)
    settings = {"target": target, "proposal": student(rbm, faith=1.0), "method": method}
    for _ in range(2):  # a filter that shows a warning once must not hide it from the second
        z = warned(**settings)
        assert z.verdict.state == "doubtful"
        assert [r for r in z.verdict.reasons if "some chains were not moved" in r]
        assert len(z.verdict.reasons) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert log_z(**settings).verdict.state == "doubtful"


def test_a_deprecation_says_nothing_about_the_numbers():
    rbm = random_rbm(scale=0.3)

    def advance(x, sweeps, generator):
        warnings.warn("use sweep", DeprecationWarning, stacklevel=2)
        return rbm.advance(x, sweeps, generator)

    target = lb.Energy(lambda x: -rbm.log_unnormalized(x), rbm.support, advance=advance)
    with pytest.warns(DeprecationWarning, match="use sweep"):
        assert log_z(target, student(rbm, faith=1.0)).verdict.trustworthy


def walk_of(energy):
    r"""Random-walk Metropolis, which costs little where slices have no end."""

    def advance(x, sweeps, generator):
        for _ in range(sweeps):
            y = x + 2 * torch.randn(x.shape, generator=generator)
            log_u = torch.rand(len(x), generator=generator).log()
            x = torch.where((log_u < energy(x) - energy(y))[:, None], y, x)
        return x

    return advance


def heavy(power, size=1):
    r"""The energy of 1 / (1 + r²)^(power / 2): its integral is finite for powers above the size."""

    def energy(x):
        return power / 2 * torch.log1p(x.square().sum(1))

    return lb.Energy(energy, lb.Real(size), advance=walk_of(energy))


def student_t(size=1, freedom=2.0, scale=2.0):
    return Independent(StudentT(freedom, torch.zeros(size), torch.full((size,), scale)), 1)


def test_a_warning_of_limbecks_own_sampler_counts_against_the_estimate(monkeypatch):
    # Slices of 1/√(1 + x²) have no end; steps out are few here, since they cost time.
    monkeypatch.setattr(limbeck.models.energy, "Slice", functools.partial(Slice, max_steps_out=20))
    settings = {"method": "importance", "samples": 200}
    target = lb.Energy(lambda x: torch.log1p(x[:, 0].square()) / 2, lb.Real(1))
    with pytest.warns(UserWarning, match="stepping out"):
        z = log_z(target, student_t(), **settings)
    assert any("stepping out took more than half" in reason for reason in z.verdict.doubts)
    z = log_z(lb.Energy(normal, lb.Real(1)), Normal(torch.zeros(1), 1.2), **settings)
    assert z.verdict.trustworthy, z.verdict


@pytest.mark.parametrize("method", ["bridge", "importance"])
@pytest.mark.parametrize(("power", "size"), [(1.0, 1), (0.5, 1), (2.0, 2), (0.0, 1)])
def test_a_density_whose_integral_is_infinite_has_no_trusted_log_z(power, size, method):
    settings = {"method": method, "samples": 500, "burn_in": 20}
    z = log_z(heavy(power, size), student_t(size), **settings)
    assert z.verdict.state == "doubtful"
    assert any("infinite" in reason for reason in z.verdict.reasons)


def test_a_flat_half_line_has_no_trusted_log_z():
    target = lb.Energy(lambda x: x[:, 0].clamp_min(0), lb.Real(1), advance=lambda x, s, g: x)
    z = log_z(target, student_t(), method="importance")
    assert any("infinite" in reason for reason in z.verdict.reasons)


def proper(name, x):
    return {
        "Cauchy": torch.log1p((20 * x[:, 0]).square()),  # narrow: its slices are long
        "Student t, 3 degrees": 2 * torch.log1p(x[:, 0].square() / 3),
        "normal, far and narrow": (x[:, 0] - 100).square() / 0.02,
        "uniform": torch.where((x[:, 0] > 0) & (x[:, 0] < 1), 0.0, math.inf),
    }[name]


PROPOSALS = {
    "Cauchy": (student_t(1, 1.0, 0.08), math.log(math.pi / 20)),
    "Student t, 3 degrees": (student_t(), math.log(math.sqrt(3) * math.pi / 2)),
    "normal, far and narrow": (Normal(torch.tensor([100.0]), 0.12), math.log(0.1 * 2.5066283)),
    "uniform": (Independent(Uniform(torch.zeros(1), torch.ones(1)), 1), 0.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["bridge", "importance"])
@pytest.mark.parametrize("name", PROPOSALS)
def test_a_proper_density_stays_trusted_however_heavy_its_tails(name, method):
    proposal, truth = PROPOSALS[name]
    target = lb.Energy(lambda x: proper(name, x), lb.Real(1))
    target.start = lambda n, generator: proposal.sample((n,))
    torch.manual_seed(0)  # for the starts
    z = log_z(target, proposal, method=method, samples=1000)
    assert z.verdict.trustworthy, z.verdict
    assert z.value == pytest.approx(truth, abs=4.5 * z.std_error)
