r"""Small results of every verb, made once, for the tests of result folders and of reports."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier

import limbeck as lb
from limbeck.compression import training
from limbeck.report import records
from limbeck.storage import Saved, check_content

COMMAND = "limbeck compress models:forest train.csv --label 'y' --seed 3"
GAP = 3.0  # between the two classes of the posterior's data


@cache
def digits():
    X, y = load_digits(return_X_y=True)
    return (X / 16).astype("float32"), y


@cache
def compressed():
    X, y = digits()
    forest = RandomForestClassifier(10, max_depth=6, random_state=0).fit(X[:300], y[:300])
    small = lb.compress(
        forest, X[:300], student=(16,), inputs="data", steps=60, seed=3, progress=False
    )
    halves = np.where(np.arange(200) % 2, "odd", "even")
    with pytest.MonkeyPatch.context() as patch:  # a short training on labels alone
        patch.setattr(training, "default_steps", lambda *_: 20)
        report = small.report(
            X[300:500], y[300:500], labels=y[:300], groups={"place": halves}, time=False
        )
    return small, report


@cache
def measured():
    r"""A regression on a table of words and numbers."""
    import pandas

    rng = np.random.default_rng(0)
    frame = pandas.DataFrame({
        "town <b>": rng.choice(["York", "Bath & Wells", "$x$"], 160),
        "size": rng.normal(size=160),
    })  # fmt: skip

    def price(rows):
        return rows["size"].to_numpy() ** 2 + (rows["town <b>"] == "York").to_numpy()

    small = lb.compress(price, frame[:120], student=(8,), inputs="data", steps=40, progress=False)
    report = small.report(frame[120:], price(frame[120:]), groups="town <b>", time=False)
    return small, report, frame[120:]


def predict(weights, x):
    return lb.Bernoulli(logits=x @ weights)


@cache
def condensed():
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(4, 100, 2, generator=generator) + torch.tensor([2.0, 0.5])
    inputs = lb.inputs.Noise((2,), 3.0)
    small = lb.condense(draws, predict, inputs, components=4, steps=60, pool=500, progress=False)
    return small, draws.reshape(-1, 2), 3 * torch.randn(60, 2, generator=generator)


@cache
def density():
    means = torch.tensor([-3.0, 2.0]) + 0.2 * torch.randn(
        80, 2, generator=torch.Generator().manual_seed(1)
    )

    def mixture(draw):
        return lb.Mixture(components=lb.Normal(draw, torch.ones(2)), logits=torch.zeros(2))

    small = lb.condense(means, mixture, components=2, samples=500, restarts=1, progress=False)
    return small, means


@cache
def normalized():
    r"""An RBM of 9 units, whose sums over all events are quick, and its NADE."""
    rbm = lb.RBM.random(9, 4, 1.0, torch.Generator().manual_seed(0))
    nade = lb.NADE(9, hidden=6, generator=torch.Generator().manual_seed(1))
    result = lb.normalize(rbm, nade, steps=60, chains=100, burn_in=20, device="cpu", progress=False)
    return result, rbm


@cache
def estimates():
    result, rbm = normalized()
    options = {"bridge": {"burn_in": 20}, "ais": {"schedule": 50}, "importance": {}}
    return {
        method: lb.log_partition(
            rbm, result.student, method=method, samples=200, progress=False, **o
        )
        for method, o in options.items()
    }


@cache
def images():
    r"""An RBM of 8 × 8 bits with a student, and estimates of log Z that are not all good."""
    X, _ = digits()
    bits = (X > 0.5).astype("float32")
    rbm = lb.RBM.fit(bits[:300], hidden=5, epochs=2, progress=False)
    result = lb.normalize(rbm, steps=40, chains=100, burn_in=20, device="cpu", progress=False)
    poor = lb.NADE(64, hidden=4, generator=torch.Generator().manual_seed(0))
    found = {
        "bridge": lb.log_partition(
            rbm, result.student, method="bridge", samples=200, burn_in=50, progress=False
        ),
        "importance, poor student": lb.log_partition(
            rbm, poor, method="importance", samples=200, progress=False
        ),
    }
    return result, rbm, found, bits[300:420]


def ring(x):
    return ((x.square().sum(-1).sqrt() - 2) / 0.5).square() / 2


def wander(x, sweeps=1, generator=None):
    r"""Metropolis steps, which leave the ring invariant."""
    for _ in range(sweeps):
        moved = x + torch.randn(x.shape, generator=generator, dtype=x.dtype)
        taken = torch.rand(len(x), generator=generator, dtype=x.dtype).log() < ring(x) - ring(moved)
        x = torch.where(taken[:, None], moved, x)
    return x


@cache
def continuous():
    r"""A ring in the plane, and a mixture of Gaussians."""
    target = lb.Energy(ring, support=lb.Real(2), advance=wander)
    student = lb.GaussianMixture(4, dim=2)
    student.set_(
        [0.25] * 4, [[2.0, 0], [0, 2.0], [-2.0, 0], [0, -2.0]], torch.eye(2).repeat(4, 1, 1).numpy()
    )
    result = lb.normalize(
        target, student, steps=20, chains=40, burn_in=5, batch_size=20, device="cpu", progress=False
    )
    return result, target


@cache
def to_record(name: str):
    r"""Content and arrays of one of these."""
    if name == "compress":
        small, report = compressed()
        content, arrays = records.to_record(
            small, verb="compress", command=COMMAND, report=report, X=digits()[0][300:500]
        )
        words = "agreement is 0.5, below the 0.98 that was required"
        unmet = {"name": "required agreement", "held": False, "words": words}
        return content | {"verdicts": [*content["verdicts"], unmet]}, arrays
    if name == "table":
        small, report, rows = measured()
        return records.to_record(small, verb="compress", report=report, X=rows)
    if name == "condense":
        small, _, x = condensed()
        points = x[:20] + GAP
        labels = (points[:, 0] > GAP).int()
        return records.to_record(
            small, verb="condense", command="limbeck condense", x=x, points=points, labels=labels
        )
    if name == "density":
        return records.to_record(density()[0], verb="condense")
    if name == "normalize":
        result, rbm, found, bits = images()
        return records.to_record(
            result, verb="normalize", target=rbm, log_z=found, data=bits, sweeps=20,
            exact=lb.exact_log_z(rbm, progress=False),
        )  # fmt: skip
    if name == "ring":
        result, target = continuous()
        return records.to_record(result, verb="normalize", target=target, sweeps=2)
    result, rbm = normalized()
    return records.to_record(
        estimates(), verb="logz", command="limbeck logz", target=rbm, proposal=result.student,
        exact=lb.exact_log_z(rbm, progress=False),
    )  # fmt: skip


NAMES = ("compress", "table", "condense", "density", "normalize", "ring", "logz")


def saved(name: str) -> Saved:
    r"""One of these as it comes back from a folder, without one."""
    content, arrays = to_record(name)
    from limbeck.compression.fidelity.report import plain

    return Saved(check_content(plain(content), name), dict(arrays))


def kl(rbm, student) -> float:
    r"""KL(p ‖ q) by the sum over all events."""
    x = rbm.support.enumerate(0, 2**rbm.support.size)
    with torch.no_grad():
        p = rbm.log_unnormalized(x).double()
        p = p - p.logsumexp(0)
        gap = p - student.log_prob(x).double()
    return math.fsum((p.exp() * gap).tolist())
