r"""What `normalize` refuses: the argument, what came, and what is accepted."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn.neural_network import BernoulliRBM

import limbeck as lb
from limbeck.models.energy import Energy
from limbeck.models.nade import NADE
from limbeck.normalization.normalize import normalize
from limbeck.supports import Binary, Real, Spins
from tests.normalization.test_normalize import QUICK, Bell, langevin, nade, rbm, ring
from tests.refusals import refused


class Broken:
    support = Binary(6)

    def log_unnormalized(self, x):
        return x.sum(1) * math.nan

    def advance(self, x, sweeps=1, generator=None):
        return x


class Matrix(Broken):
    def log_unnormalized(self, x):
        return x


class Still(Broken):
    advance = None

    def log_unnormalized(self, x):
        return x.sum(1)


REFUSED = {
    "no target": (
        dict(target=None),
        "target",
        "an object of type NoneType without log_unnorm",
        "",
    ),
    "a function": (
        dict(target=ring),
        "target",
        "without log_unnormalized and advance and support",
        "",
    ),
    "no sampler": (
        dict(target=Still()),
        "target",
        "an object of type Still without advance",
        "",
    ),
    "NaN": (dict(target=Broken()), "target", "log densities that are NaN", ""),
    "a matrix": (
        dict(target=Matrix()),
        "target",
        r"log densities \(8, 6\) of 8 events",
        "",
    ),
    "no module": (
        dict(student=3),
        "student",
        "^3$",
        "",
    ),
    "no density": (dict(student=lb.MLP(6, 2)), "student", "MLP without log_prob", ""),
    "another support": (
        dict(student=NADE(6, 3, support=Spins(6))),
        "student",
        r"one over Spins\(6\)",
        r"one over Binary\(6\).*support=target",
    ),
    "scikit-learn's": (
        dict(target=BernoulliRBM(2, n_iter=1).fit([[0, 1], [1, 0]])),
        "target",
        "type BernoulliRBM without",
        r"lb.RBM\(m.components_.T, m.intercept_visible_,",
    ),
    "another size": (dict(student=NADE(5, 3)), "student", r"one over Binary\(5\)", ""),
    "nothing to sample": (
        dict(student=Bell(False), loss="reverse_kl"),
        "student",
        "Bell without sample",
        "",
    ),
    "loss": (dict(loss="kll"), "loss", "'kll'", "did you mean 'kl'"),
    "cross entropy": (dict(loss=lb.losses.cross_entropy()), "teacher_output", "'log_density'", ""),
    "both ways": (
        dict(loss=lb.losses.kl() + lb.losses.reverse_kl()),
        "loss",
        r"kl\(\) \+ reverse_kl\(\)",
        "reverse_kl alone",
    ),
    "c without a square": (dict(c=1.0), "c", "^1.0$", ""),
    "c": (dict(loss="square_error", c=math.inf), "c", "^inf$", ""),
    "steps": (dict(steps=0), "steps", "^0$", ""),
    "scheme": (dict(scheme="some"), "scheme", "'some'", ""),
    "init": (dict(init="warm"), "init", "'warm'", ""),
    "preset": (dict(preset="text"), "preset", "'text'", ""),
    "options": (dict(learning_rate=1.0), "learning_rate", "an unknown name", ""),
    "a settled option": (dict(precompute=True), "precompute", "an unknown name", ""),
    "chains": (dict(chains=0), "chains", "^0$", ""),
    "too large a batch": (dict(chains=50), "batch_size", "^100$", "at most 50"),
    "starts": (dict(start=torch.full((2, 6), 2.0)), "start", "12 values such as 2", ""),
    "held out": (
        dict(loss="reverse_kl", held_out=torch.zeros(2, 6)),
        "held_out",
        "held-out inputs",
        "",
    ),
    "warm start of an energy": (
        dict(target=Energy(ring, Spins(6)), student=None, init="teacher"),
        "init",
        r"'teacher' for MADE over Spins\(6\) of Energy",
        "",
    ),
    "no student for the reals": (
        dict(target=Energy(ring, Real(2), advance=langevin), student=None),
        "student",
        r"None, for .* over Real\(2\)",
        r"as lb.GaussianMixture\(10, 2\)",
    ),
    "no constant for the reals": (
        dict(
            target=Energy(lambda x: x.square().sum(1), Real(2), advance=langevin),
            student=Bell(False),
            loss="square_error",
        ),
        "c",
        r"None over Real\(2\), with a student that has no sample",
        "",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_say_what_came_and_what_is_accepted(case):
    changed, argument, received, expected = REFUSED[case]
    arguments = {"target": rbm(), "student": nade(), "steps": 2, **QUICK} | changed
    with refused(argument, received, expected=expected):
        normalize(**arguments)
