r"""Derivatives of torch teachers: exact, kept on disk, and asked for once."""

from collections import Counter

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

import limbeck as lb
from limbeck.compression.compress import compress
from limbeck.compression.dispatch import as_row_teacher
from limbeck.teachers import networks as derivatives
from limbeck.teachers.cache import TeacherCache
from limbeck.teachers.networks import Derivatives
from tests.refusals import raises_about, refused
from tests.teachers.stand_in import label_rows

X = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
QUICK = {
    "progress": False, "device": "cpu", "engine": "eager", "steps": 30, "pool": 80,
    "teacher_output": "logits", "seed": 3,
}  # fmt: skip
MATCHED = lb.losses.cross_entropy() + 0.1 * lb.losses.derivative_error(domain="log")


class Counted(nn.Module):
    r"""A linear map that counts the rows it has seen, outside of what it is."""

    rows = Counter()

    def __init__(self, outputs=3):
        super().__init__()
        self.map = nn.Linear(4, outputs)
        generator = torch.Generator().manual_seed(0)
        for parameter in self.parameters():
            nn.init.normal_(parameter, generator=generator)

    def forward(self, x):
        self.rows["seen"] += len(x)
        return self.map(x)


def softmax(scores):
    e = np.exp(scores - scores.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def test_of_log_probabilities_and_of_probabilities():
    net = Counted()
    predictor = as_row_teacher(net, X, teacher_output="logits")
    weight = net.map.weight.detach().double().numpy()
    p = predictor(X)
    logs = weight - (p @ weight)[:, None, :]  # ∂ log p_k = w_k − Σ p w
    found = Derivatives(predictor, "log", 4)(X).reshape(40, 3, 4)
    np.testing.assert_allclose(found, logs, atol=1e-5)
    found = Derivatives(predictor, "plain", 4)(X).reshape(40, 3, 4)
    np.testing.assert_allclose(found, p[:, :, None] * logs, atol=1e-5)


def test_of_values_and_of_labels():
    net = Counted(2)
    weight = net.map.weight.detach().double().numpy()
    values = Derivatives(as_row_teacher(net, X, task="regression"), "plain", 4)(X)
    np.testing.assert_allclose(values.reshape(40, 2, 4), np.tile(weight, (40, 1, 1)), atol=1e-6)
    labels = as_row_teacher(net, X, task="multilabel", teacher_output="logits")
    p = labels(X)
    found = Derivatives(labels, "plain", 4)(X).reshape(40, 2, 4)
    np.testing.assert_allclose(found, (p * (1 - p))[:, :, None] * weight, atol=1e-5)


def test_they_are_kept_beside_the_answers_by_domain(tmp_path):
    net = Counted()
    predictor = as_row_teacher(net, X, teacher_output="logits")
    values = label_rows(predictor, X, cache=tmp_path, progress=False)
    for domain in ("log", "plain"):
        asked = Derivatives(predictor, domain, 4)
        before = net.rows["seen"]
        first = label_rows(asked, X, cache=tmp_path, progress=False)
        assert net.rows["seen"] > before
        before = net.rows["seen"]
        again = label_rows(asked, X[::-1], cache=TeacherCache(tmp_path), progress=False)
        assert net.rows["seen"] == before
        np.testing.assert_array_equal(again, first[::-1])
        np.testing.assert_allclose(first, asked(X), atol=1e-6)
    np.testing.assert_array_equal(label_rows(predictor, X, cache=tmp_path, progress=False), values)
    with torch.no_grad():
        net.map.weight.add_(1.0)  # another teacher now
    before = net.rows["seen"]
    label_rows(Derivatives(predictor, "log", 4), X, cache=tmp_path, progress=False)
    assert net.rows["seen"] > before


@pytest.mark.parametrize(
    ("loss", "options"),
    [
        (MATCHED, {}),
        (lb.losses.derivative_error(domain="log", projections=2), {}),
        (lb.losses.square_error() + lb.losses.derivative_error(domain="plain"),
         {"task": "regression", "teacher_output": "values"}),
    ],
    ids=["log", "projections", "values"],
)  # fmt: skip
def test_a_second_run_asks_nothing_and_gives_the_same_student(tmp_path, loss, options):
    net = Counted()
    asked = QUICK | {"inputs": "munge", "loss": loss, "cache": tmp_path} | options
    one = compress(net, X, (6,), **asked)
    before = net.rows["seen"]
    two = compress(net, X, (6,), **asked)
    looked_at = net.rows["seen"] - before
    assert looked_at <= len(X)  # what its outputs are, at a few rows
    np.testing.assert_array_equal(one._predictions(X), two._predictions(X))
    assert one.history["loss"][-1] < one.history["loss"][0]


def test_the_cache_changes_nothing_of_what_is_learnt(tmp_path):
    asked = QUICK | {"inputs": "data", "loss": MATCHED}
    with_cache = compress(Counted(), X, (6,), cache=tmp_path, **asked)
    without = compress(Counted(), X, (6,), **asked)
    np.testing.assert_allclose(with_cache.predict_proba(X), without.predict_proba(X), atol=1e-4)
    values = compress(Counted(), X, (6,), **asked | {"loss": "cross_entropy"})
    assert abs(values.predict_proba(X) - without.predict_proba(X)).max() > 1e-3


def test_a_source_of_the_users_own_is_asked_by_the_loop(tmp_path):
    source = lb.inputs.Noise((4,))
    made = compress(Counted(), X, (6,), inputs=source, loss=MATCHED, cache=tmp_path, **QUICK)
    assert made.steps == 30


def test_too_many_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(derivatives, "MOST", 8 * 12 * 50)
    with refused("pool", "80 inputs"):
        compress(Counted(), X, (6,), inputs="munge", loss=MATCHED, cache=tmp_path, **QUICK)


def test_modules_without_derivatives_are_refused(tmp_path):
    class Steps(Counted):
        def forward(self, x):
            return super().forward(x).detach().round()

    for cache in (None, tmp_path):
        with pytest.raises(lb.LimbeckError, match="derivatives"):
            compress(Steps(), X, (6,), inputs="data", loss=MATCHED, cache=cache, **QUICK)


def test_estimators_are_refused_by_name():
    teacher = LogisticRegression().fit(X, X[:, 0] > 0)
    options = {name: value for name, value in QUICK.items() if name != "teacher_output"}
    with raises_about(lb.NotDifferentiableError, "teacher", "LogisticRegression"):
        compress(teacher, X, (6,), inputs="data", loss=MATCHED, **options)


def test_labels_and_tables_have_none():
    pandas = pytest.importorskip("pandas")
    asked = QUICK | {"inputs": "data", "loss": MATCHED}
    with refused("loss", expected="label_weight=0"):
        compress(Counted(), X, (6,), labels=np.zeros(40, int), label_weight=0.5, **asked)
    frame = pandas.DataFrame(X, columns=list("abcd"))
    with refused("loss", expected="a table"):
        compress(Counted(), frame, (6,), **asked)
    made = compress(Counted(), frame, (6,), **asked | {"loss": "auto"})
    assert made.predict_proba(frame).shape == (40, 3)
