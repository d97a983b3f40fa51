r"""AUC, classes, quantiles, and weights of rows: against scikit-learn, resampling, repetition."""

import json
import math

import numpy as np
import pytest
from sklearn import metrics

from limbeck.cli.requirements import check_requirements, parse_requirements
from limbeck.compression.fidelity import measures as m
from limbeck.compression.fidelity.report import Fidelity, fidelity
from limbeck.report.compression import _verdicts
from tests.compression.fidelity.test_report import RARE, classified, valued
from tests.refusals import refused


def verdict(report, text):
    model = {"name": "MLP", "role": "student", "parameters": 7, "bytes": 99}
    content = {"verb": "compress", "models": [model], "fidelity": report.to_dict()}
    return check_requirements(parse_requirements([text], "compress"), content)[0]


@pytest.mark.parametrize("k", [2, 4])
def test_auc_is_that_of_scikit_learn_and_its_error_that_of_resampling(k):
    teacher, student, _, y = classified(300, k)
    student = student.round(2) if k == 2 else student  # with ties
    found = fidelity("classification", teacher, student, y)

    def auc(rows):
        scores = student[rows, 1] if k == 2 else student[rows]
        return metrics.roc_auc_score(y[rows], scores, multi_class="ovr")

    figure = found.measures["student"]["auc"]
    assert figure.value == pytest.approx(auc(np.arange(300)))
    rng = np.random.default_rng(0)
    draws = [auc(rng.integers(0, 300, 300)) for _ in range(200)]
    assert figure.std_error == pytest.approx(np.std(draws), rel=0.2)
    assert verdict(found, f"auc={figure.value - 0.01}")["held"]
    assert not verdict(found, f"auc={figure.value + 0.01}")["held"]
    unlabelled = verdict(fidelity("classification", teacher, student), "auc=0.1")
    assert "could not be computed" in unlabelled["words"]


def test_auc_needs_two_classes():
    teacher, student, _, _ = classified(50, 2)
    found = fidelity("classification", teacher, student, np.zeros(50, int))
    assert math.isnan(found.measures["student"]["auc"].value)
    assert "could not be computed" in verdict(found, "auc=0.1")["words"]


def test_recall_and_divergence_of_every_class():
    teacher, student, _, y = classified()
    found = fidelity("classification", teacher, student, y)
    known = metrics.recall_score(y, student.argmax(1), average=None)
    for k in range(4):
        part, rows = found.by_class[str(k)], y == k
        assert part.rows == rows.sum()
        recall = part.measures["student"]["recall"]
        assert recall.value == pytest.approx(known[k])
        assert recall.std_error == pytest.approx(
            math.sqrt(known[k] * (1 - known[k]) / (rows.sum() - 1))
        )
        gap = part.differences["teacher"]["recall"].value
        assert gap == pytest.approx(known[k] - (teacher.argmax(1) == y)[rows].mean())
        divergence = part.measures["student"]["kl"].value
        assert divergence == pytest.approx(m.kl(teacher[rows], student[rows]).mean())
        assert verdict(found, f"recall[{k}]={known[k] - 0.01}")["held"]
        assert not verdict(found, f"recall[{k}]={known[k] + 0.01}")["held"]
    assert "the test rows have no such class" in verdict(found, "recall[9]=0.1")["words"]
    rarest = found.by_class[str(found.rarest.name)].measures["student"]["kl"].value
    assert found.measures["student"]["rare_kl"].value == pytest.approx(rarest)
    assert "rare_kl" not in found.retention_by
    again = Fidelity.from_dict(json.loads(json.dumps(found.to_dict())))
    assert again.by_class == found.by_class
    assert "recall by class" in str(again)


def test_quantiles_of_the_error_are_in_the_teachers_deviations():
    teacher, student, y = valued(300)
    student[7] += 1
    found = fidelity("regression", 100 * teacher, 100 * student, 100 * y)
    errors = np.abs(student - teacher)[:, 0] / teacher.std()
    known = found.measures["student"]
    for name, level in (("50", 0.5), ("90", 0.9), ("99", 0.99), ("max", 1.0)):
        figure = known[f"difference_{name}"]
        quantile = np.quantile(errors, level, method="inverted_cdf")
        assert figure.value == pytest.approx(quantile)
        draws = np.random.default_rng(0).choice(errors, (20000, 300))
        spread = np.quantile(draws, level, axis=1, method="inverted_cdf").std()
        assert figure.std_error == pytest.approx(spread, rel=0.1)
        assert verdict(found, f"difference_{name}={quantile + 0.01}")["held"]
        assert not verdict(found, f"difference_{name}={quantile - 0.01}")["held"]
    constant = fidelity("regression", np.ones(9), np.arange(9))
    assert math.isnan(constant.measures["student"]["difference_50"].value)


def test_a_lost_average_precision_is_said():
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], [2000, 60])
    p = np.clip(0.05 + 0.3 * y + 0.1 * rng.random(2060), 0, 1)
    worse = np.clip(p - 0.25 * y * (rng.random(2060) < 0.5), 0, 1)  # nothing is above one half
    teacher, student = (np.stack([1 - q, q], 1) for q in (p, worse))
    found = fidelity("classification", teacher, student, y)
    share = found.retention_by["average_precision"].value
    one, two = (metrics.average_precision_score(y, q) for q in (worse, p))
    assert share == pytest.approx(one / two)
    assert share < 0.9
    (quality,) = _verdicts(found)
    assert not quality["held"]
    assert f"only {share:.1%} of the teacher's average precision of class 1" in quality["words"]
    assert not verdict(found, "average_precision_retention=0.9")["held"]
    assert verdict(found, "average_precision_retention=0.1")["held"]


def repeated(counts, *arrays):
    return [None if a is None else np.repeat(a, counts, axis=0) for a in arrays]


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("task", ["classification", "regression", "multilabel"])
def test_a_weight_of_two_is_a_row_twice_and_one_of_zero_is_none(task, labelled):
    teacher, student, _, y = classified()
    if task == "regression":
        teacher, student, y = valued(600, k=2)
    if task == "multilabel":
        y = np.eye(4)[y]
    y = y if labelled else None
    counts = np.random.default_rng(0).integers(0, 4, 600)
    one = fidelity(task, teacher, student, y, sample_weight=7.0 * counts)
    two = fidelity(task, *repeated(counts, teacher, student, y), classes=one.classes)
    skipped = {"ece"}  # its bins have as many rows each
    if task != "regression" and one.rarest.name != two.rarest.name:  # the one of fewest rows
        skipped |= set(RARE)
    for model, known in two.measures.items():
        for name, figure in ((name, known[name]) for name in known if name not in skipped):
            tolerance = 0.05 if name.startswith("difference_") else 1e-9
            assert one.measures[model][name].value == pytest.approx(figure.value, rel=tolerance)
            # rows that come twice are no further evidence
            assert one.measures[model][name].std_error > 0.5 * figure.std_error
    for name, part in two.by_class.items():
        recall = one.by_class[name].measures["student"]["recall"].value
        assert recall == pytest.approx(part.measures["student"]["recall"].value)


def test_equal_weights_change_nothing():
    teacher, student, _, y = classified()
    plain, equal = (
        fidelity("classification", teacher, student, y, groups={"k": y}, sample_weight=weight)
        for weight in (None, np.full(600, 3.0))
    )
    for model, known in plain.measures.items():
        for name, figure in known.items():
            assert equal.measures[model][name] == pytest.approx(figure), name


@pytest.mark.parametrize(
    ("weights", "received"),
    [
        ([1.0] * 599, r"\(599,\)"), ([-1.0] + [1.0] * 599, "-1 in row 0"), ([0] * 600, "zeros"),
        ([1.0] * 599 + [np.nan], "nan in row 599"), (["a"] * 600, "U1"), (3, "3"),
    ],
)  # fmt: skip
def test_bad_weights_are_refused(weights, received):
    teacher, student, _, y = classified()
    with refused("sample_weight", received):
        fidelity("classification", teacher, student, y, sample_weight=weights)
