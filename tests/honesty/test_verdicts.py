r"""Verdicts on log Z: what was not checked is "unchecked", and what a check was not told it asks.

Draws of the target that were never moved, chains without a second start, starts that replace those
of a check, warnings of a sampler, and densities whose integral diverges: all were "trustworthy".
"""

from __future__ import annotations

import json
import math
import sys

import pytest
import torch
from tests.generative.small import (
    HALF,
    one_mode_student,
    random_rbm,
    student,
    two_modes,
)
from torch.distributions import Normal

import limbeck as lb
from limbeck import cli, results
from limbeck.report.drawing import Drawing
from limbeck.report.sections_generative import sections


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
    assert "no check speaks against it" not in str(z)
    known = z.to_dict()
    assert (known["state"], known["trustworthy"]) == ("unchecked", False)
    saved = results.read(
        results.write(tmp_path / "z", *results.described(z, verb="logz", target=rbm))
    )
    assert saved.content["log_z"][0]["state"] == "unchecked"
    (entry,) = (each for each in saved.content["verdicts"] if each["name"].startswith("log Z"))
    assert not entry["held"]
    assert entry["words"].startswith("Unchecked: ")
    page = str(sections(Drawing(saved, "z", pictures=False)))
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
    assert "stayed where they started" in str(z.verdict)


def test_an_upper_bound_of_draws_that_were_never_moved_is_unchecked():
    rbm = random_rbm(scale=0.3)
    settings = {"method": "ais", "schedule": 20, "reverse": True, "samples": 1000}
    z = log_z(rbm, None, burn_in=0, **settings)
    assert any("burn_in=0" in reason for reason in z.verdict.unchecked)
    assert log_z(rbm, None, **settings).verdict.trustworthy


def test_importance_sampling_without_sweeps_of_the_target_is_unchecked():
    class Bare:
        def __init__(self, target):
            self.support, self.log_unnormalized = target.support, target.log_unnormalized

    # Half of the mass is missing, and without sweeps nothing can show it.
    z = log_z(Bare(two_modes()), one_mode_student(), method="importance")
    assert z.value == pytest.approx(HALF, abs=0.01)
    assert z.verdict.state == "unchecked"


def test_the_command_exits_with_three_where_log_z_is_unchecked(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rbm = lb.RBM.random(6, 3, 0.3, torch.Generator().manual_seed(0))
    rbm.save("rbm.npz")
    words = ["logz", "rbm.npz", "--method", "ais", "--temperatures", "20", "--reverse"]
    words += ["--samples", "500", "--quiet", "--json"]
    for sweeps, code in (("0", 3), ("50", 0)):
        command = ["limbeck", *words, "--burn-in", sweeps, "--out", sweeps]
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        shown = json.loads(capsys.readouterr().out)
        assert (ended.value.code or 0) == code
        assert shown["log_z"][0]["state"] == ("unchecked" if code else "trustworthy")
