r"""Free-energy curves against exact sums: values, errors, tables and plots."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import limbeck as lb
from tests.refusals import refused

T = [1.2, 2.0, 4.0]


def lattice(x):
    return -(x * (x.roll(1, 1) + x.roll(1, 2))).sum((1, 2)) - 0.2 * x.sum((1, 2))


def exact(energies, temperature):
    log_w = -energies.double() / temperature
    weight = log_w.softmax(0)
    mean = weight @ energies.double()
    variance = weight @ (energies.double() - mean).square()
    return float(log_w.logsumexp(0)), float(mean), float(variance) / temperature**2


def scores(curve, truth):
    found = [(v - t) / e for (v, e), t in zip(curve.columns().values(), truth, strict=True)]
    return np.array(found)


def test_curves_of_a_lattice_are_those_of_the_sum_over_all_events():
    support = lb.Spins(3, 3)
    energies = lattice(support.enumerate(0, 2**9))
    truth = np.array([exact(energies, t) for t in T]).T
    found = []
    for seed in range(8):  # the target's own temperature must not matter
        target = lb.Energy(lattice, support, temperature=0.5 + seed)
        curve = lb.free_energy_curve(target, T, samples=1500, ladders=25, seed=seed, progress=False)
        assert curve.verdict.trustworthy, curve.verdict
        found.append(scores(curve, truth))
    found = np.array(found)
    assert np.abs(found).max() < 5  # of 72, by Student's t with 24 degrees of freedom
    assert 0.4 < np.sqrt((found**2).mean()) < 1.6


def test_curves_of_an_rbm_are_those_of_its_weights_over_the_temperature():
    rbm = lb.RBM.random(6, 4, 1.0, torch.Generator().manual_seed(0))
    curve = lb.free_energy_curve(rbm, T, samples=1000, progress=False)
    for k, t in enumerate(T):
        colder = lb.RBM(rbm.W / t, rbm.a / t, rbm.b / t)
        truth = lb.exact_log_z(colder, progress=False)
        assert curve.log_z[k] == pytest.approx(truth, abs=4 * curve.log_z_error[k])


def test_curves_of_a_normal_density():
    target = lb.Energy(lambda x: x.square().sum(1) / 2, lb.Real(3))
    curve = lb.free_energy_curve(target, T, samples=1500, progress=False)
    for k, t in enumerate(T):
        for (value, error), truth in zip(
            curve.columns().values(), (1.5 * math.log(2 * math.pi * t), 1.5 * t, 1.5), strict=True
        ):
            assert value[k] == pytest.approx(truth, abs=4.5 * error[k])


def test_it_prints_a_table_and_draws(tmp_path):
    pytest.importorskip("matplotlib")
    target = lb.Energy(lambda x: x.sum(1), lb.Binary(4))
    curve = lb.free_energy_curve(target, torch.tensor([2.0, 1.0]), samples=200, progress=False)
    text = str(curve)
    assert "heat capacity" in text
    assert "2 temperatures from 1 to 2" in text
    assert curve.free_energy.tolist() == pytest.approx([-2 * curve.log_z[0], -curve.log_z[1]])
    figure = curve.plot(str(tmp_path / "curve.png"))
    assert len(figure.axes) == 3
    assert (tmp_path / "curve.png").stat().st_size > 1000
    assert curve.to_dict()["log_z"] == curve.log_z.tolist()


@pytest.mark.parametrize(
    "wrong", [[], 2.0, [0.0], [1.0, -1.0], [math.nan], ["a"], torch.tensor(2.0)]
)
def test_temperatures_that_are_none_are_refused(wrong):
    with refused("temperatures"):
        lb.free_energy_curve(lb.Energy(lambda x: x.sum(1), lb.Binary(4)), wrong)


def test_one_temperature_is_named_as_one():
    target = lb.Energy(lattice, lb.Spins(3, 3))
    curve = lb.free_energy_curve(target, [2.0], samples=200, ladders=4, progress=False)
    assert "at the temperature 2" in curve.sentence()
    assert "1 temperatures" not in str(curve)
