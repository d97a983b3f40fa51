r"""log Z by a requested error or time: reached errors that hold, and what is said and refused."""

from __future__ import annotations

import importlib
import time
from functools import partial

import pytest
import torch

import limbeck as lb
from tests.normalization.small import RBMPath, random_rbm, student, table
from tests.refusals import refused


def spins(seed, size=10):
    couplings = torch.randn(size, size, generator=torch.Generator().manual_seed(seed)) / size**0.5
    return lb.Energy(lambda x: ((x @ couplings.to(x)) * x).sum(1), lb.Spins(size))


def estimate(target, proposal=None, **settings):
    settings = {"exact": False, "progress": False} | settings
    return lb.log_partition(target, proposal, **settings)


def test_requested_errors_are_reached_and_cover():
    scores = []
    for seed in range(10):
        target, error = spins(seed), (0.1, 0.03)[seed % 2]
        z = estimate(target, std_error=error, seed=seed)
        assert z.verdict.trustworthy, z.verdict
        assert z.method == "ais"
        assert z.diagnostics["sampling_error"] <= error
        truth = lb.exact_log_z(target, progress=False)
        scores.append((z.value - truth) / z.std_error)
        assert f"{z.samples:,} runs" in z.note
    assert max(map(abs, scores)) < 4.5
    assert sum(s**2 for s in scores) < 29.6  # 99.9% of a chi-square with 10 degrees


def test_smaller_errors_take_more_runs_or_temperatures():
    target = spins(0)
    rough, fine = (estimate(target, std_error=error) for error in (0.1, 0.01))
    assert fine.sweeps > rough.sweeps
    assert estimate(target, std_error=0.1).value == rough.value  # no clock is involved


def test_an_error_that_is_out_of_reach_is_said_and_time_is_kept():
    z = estimate(spins(1), std_error=1e-7, seconds=1.0)
    assert "was not reached" in z.note
    assert z.note in str(z)
    assert z.to_dict()["note"] == z.note
    assert z.value == pytest.approx(lb.exact_log_z(spins(1)), abs=5 * z.std_error)


def test_exact_sums_come_first_and_can_be_ruled_out():
    rbm = random_rbm()
    assert lb.log_partition(rbm, std_error=0.1, progress=False).method == "exact"
    assert estimate(rbm, std_error=0.1).method == "ais"


@pytest.mark.parametrize("method", ["bridge", "importance", "tempering"])
def test_other_methods_get_samples_by_a_pilot(method):
    rbm = random_rbm(visible=8, hidden=5)
    proposal = None if method == "tempering" else student(rbm, 0.7)
    settings = {"ladders": 20, "burn_in": 20} if method == "tempering" else {}
    z = estimate(rbm, proposal, method=method, std_error=0.06, **settings)
    assert z.std_error < 0.08
    assert z.value == pytest.approx(table(rbm)[2], abs=4.5 * z.std_error)
    assert "after a pilot run" in z.note


def test_a_proposal_is_used_where_there_is_one():
    rbm = random_rbm(visible=8, hidden=5)
    assert estimate(rbm, student(rbm, 0.7), std_error=0.1).method == "bridge"


def test_what_cannot_be_is_refused():
    rbm = random_rbm()
    for name, value in (("std_error", 0), ("std_error", "a"), ("seconds", -1.0)):
        with refused(name):
            estimate(rbm, **{name: value})
    with refused("samples", "100"):
        estimate(rbm, method="ais", samples=100, std_error=0.1)
    with refused("schedule"):
        estimate(rbm, method="ais", schedule=2, seconds=1.0)
    with refused("std_error", "0.1"):
        estimate(rbm, method=lb.AIS(samples=10), std_error=0.1)


def test_a_run_that_cannot_keep_its_time_says_so():
    def energy(x):
        time.sleep(0.3)
        return x.square().sum(1) / 2

    z = estimate(lb.Energy(energy, lb.Real(3)), seconds=0.5)
    assert "instead of 0.5 s" in z.note
    assert z.note in str(z)
    assert not z.verdict


def test_where_annealing_takes_long_a_student_is_distilled(monkeypatch):
    module = importlib.import_module("limbeck.normalization.log_partition")
    target = spins(3)
    assert estimate(target, std_error=0.05).method == "ais"  # on a CPU
    monkeypatch.setattr(module, "STUDENT_DEVICES", ("cpu",))
    monkeypatch.setattr(module, "TRIAL_SECONDS", 0.5)
    assert estimate(target, std_error=0.05).method == "ais"  # which is there within the trial
    monkeypatch.setattr(module, "STUDENT_SECONDS", 0.0)
    assert estimate(target, std_error=0.05, seconds=0.3).method == "ais"  # no time for both
    monkeypatch.setattr(module, "normalize", partial(lb.normalize, steps=300))
    z = estimate(target, std_error=0.05, seed=1)
    assert z.method == "bridge"
    assert z.verdict.trustworthy, z.verdict
    assert z.std_error <= 0.05
    assert abs(z.value - lb.exact_log_z(target)) < 4.5 * z.std_error
    starts: list[object] = []
    bridge = module.Bridge.estimate

    def record(self, *args, **kwargs):
        starts.append(self.start)
        return bridge(self, *args, **kwargs)

    monkeypatch.setattr(module.Bridge, "estimate", record)
    data = torch.ones(5, 10)  # the user's starts go along
    assert estimate(target, std_error=0.05, start=data).method == "bridge"
    assert all(torch.equal(start, data) for start in starts)
    assert starts
    rbm = random_rbm()
    assert estimate(rbm, std_error=0.05, path=RBMPath(rbm)).method == "ais"
