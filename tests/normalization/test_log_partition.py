r"""`log_partition`: the choice of a method, exact sums, students made on the way, refusals."""

from __future__ import annotations

import json
import math

import pytest

import limbeck as lb
import limbeck.normalization.log_partition as summing
import limbeck.normalization.normalize as normalizing
from limbeck.errors import ArgumentError
from limbeck.models.energy import Energy
from limbeck.models.nade import NADE
from limbeck.models.rbm import RBM
from limbeck.normalization.log_partition import METHODS, log_partition
from limbeck.supports import Real, Spins
from tests.normalization.small import generator, random_rbm, student, table
from tests.refusals import refused

QUICK = {"samples": 400, "burn_in": 50, "progress": False}


def test_exact_values_have_no_error_and_are_their_own_bounds():
    rbm = random_rbm()
    z = log_partition(rbm, method="exact", progress=False)
    assert z.value == pytest.approx(table(rbm)[2], abs=1e-9)
    assert z.std_error == 0
    assert z.lower_bound == z.value == z.upper_bound
    assert z.verdict.trustworthy
    assert z.interval() == (z.value, z.value)


def test_auto_sums_what_it_can_and_bridges_the_rest():
    assert log_partition(random_rbm(), progress=False).method == "exact"
    wide = RBM.random(300, 12, 0.1, generator())
    assert log_partition(wide, progress=False).method == "exact"  # 2^12 hidden states
    spins = Energy(lambda x: -x.sum((1, 2)), Spins(3, 3))
    z = log_partition(spins, progress=False)
    assert z.method == "exact"
    assert z.value == pytest.approx(9 * math.log(2 * math.cosh(1)), abs=1e-5)
    large = RBM.random(30, 25, 0.05, generator())
    nade = NADE.from_rbm(large) if hasattr(NADE, "from_rbm") else NADE(30, 5)
    assert log_partition(large, nade, **QUICK).method == "bridge"


@pytest.mark.parametrize("method", ["bridge", "importance"])
def test_without_a_proposal_a_student_is_distilled(monkeypatch, method):
    rbm = random_rbm()
    asked = {}

    class Result:
        student = student(rbm)

    def normalize(target, **settings):
        asked.update(settings, target=target)
        return Result()

    monkeypatch.setattr(summing, "normalize", normalize)
    z = log_partition(rbm, method=method, seed=3, **QUICK)
    assert asked["target"] is rbm
    assert asked["seed"] == 3
    assert z.value == pytest.approx(table(rbm)[2], abs=5 * z.std_error)


def test_a_student_that_was_distilled_gives_log_z():
    rbm = random_rbm(scale=0.6)
    settings = {"steps": 300, "batch_size": 50, "chains": 200, "burn_in": 50, "progress": False}
    nade = normalizing.normalize(
        rbm, NADE(12, 8, generator=generator()), device="cpu", **settings
    ).student
    for method in ("bridge", "importance"):
        z = log_partition(rbm, nade, method=method, samples=2000, burn_in=100, progress=False)
        assert z.verdict.trustworthy, z.verdict
        assert z.value == pytest.approx(table(rbm)[2], abs=4 * z.std_error)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_prints_and_can_be_written(method):
    rbm = random_rbm()
    z = log_partition(rbm, student(rbm), method=method, schedule=20, **QUICK)
    assert json.loads(json.dumps(z.to_dict()))["value"] == z.value
    assert str(z).splitlines()[-1].endswith(".")
    assert z.seconds > 0


OBJECTS = {
    "bridge": lb.Bridge(samples=400, burn_in=50, kernel="mixed"),
    "importance": lb.Importance(samples=400),
    "ais": lb.AIS(samples=100, schedule=20),
    "exact": lb.Exact(),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_a_method_by_name_and_as_an_object_give_the_same(name):
    rbm, method = random_rbm(), OBJECTS[name]
    one = log_partition(rbm, student(rbm), method=method, seed=3, progress=False)
    other = log_partition(rbm, student(rbm), method=name, seed=3, progress=False, **vars(method))
    direct = method.estimate(rbm, student(rbm), seed=3, progress=False)
    for each in (one, other, direct):
        assert each.method == name
        assert (each.value, each.std_error) == (one.value, one.std_error)
        assert each.verdict == one.verdict


@pytest.mark.parametrize(
    "setting", [{"samples": 5}, {"burn_in": 5}, {"kernel": "mixed"}, {"schedule": 20}]
)
def test_settings_beside_a_method_object_are_refused(setting):
    with pytest.raises(ArgumentError) as error:
        log_partition(random_rbm(), method=lb.Exact(), **setting)
    assert [error.value.argument] == list(setting)


def test_unknown_settings_are_refused():
    with refused("kernels", expected="did you mean 'kernel'"):
        log_partition(random_rbm(), method="exact", kernels="mixed")
    with pytest.raises(ArgumentError) as error:
        log_partition(random_rbm(), method=3)
    assert error.value.argument == "method"


def test_float32_models_are_summed_in_float64():
    rbm = RBM.random(12, 8, 0.5, generator())
    z = log_partition(rbm, NADE(12, 8, generator=generator()), method="bridge", **QUICK)
    assert isinstance(z.value, float)
    exact = log_partition(rbm, method="exact", progress=False).value
    assert z.value == pytest.approx(exact, abs=5 * z.std_error)


@pytest.mark.parametrize(
    ("settings", "argument", "received"),
    [
        ({"method": "bar"}, "method", "'bar'"),
        ({"method": "bridge", "samples": 0}, "samples", "^0$"),
        ({"seed": -1, "method": "bridge"}, "seed", "^-1$"),
        (
            {"proposal": "nade", "method": "bridge"},
            "proposal",
            "a str without log_prob",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(settings, argument, received):
    with refused(argument, received):
        log_partition(random_rbm(), **{"proposal": student(random_rbm())} | settings)


def test_targets_that_are_none_are_refused():
    with refused("target", "an object of type int without"):
        log_partition(3, method="bridge")
    real = Energy(lambda x: x.square().sum(1), Real(2), advance=lambda x, s, g: x)
    with refused("target", expected="discrete support"):
        log_partition(real, method="exact")
    broken = Energy(lambda x: x.sum(1) * math.nan, Spins(30))
    with refused("target", "NaN"):
        log_partition(broken, method="importance", proposal=NADE(30, 2, support=Spins(30)))
