r"""The report on a student: its numbers, its file, and that errors pair."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics

from limbeck.compression.fidelity.cost import Cost
from limbeck.compression.fidelity.report import Fidelity, fidelity
from limbeck.errors import CheckpointError
from tests.refusals import raises_about, refused

RARE = ("average_precision", "rare_recall", "worst_recall", "rare_kl")


def softmax(scores):
    e = np.exp(scores - scores.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def classified(n=600, k=4, seed=0):
    r"""A teacher, a student near it, a baseline further away, and labels."""
    rng = np.random.default_rng(seed)
    scores = 2 * rng.normal(size=(n, k))
    teacher = softmax(scores)
    y = (teacher.cumsum(1) > rng.uniform(size=(n, 1))).argmax(1)
    noise = rng.normal(size=(2, n, k))
    return teacher, softmax(scores + 0.3 * noise[0]), softmax(scores + 2 * noise[1]), y


def valued(n=400, seed=0, k=1):
    rng = np.random.default_rng(seed)
    y = rng.normal(size=(n, k))
    teacher = y + 0.3 * rng.normal(size=y.shape)
    return teacher, teacher + 0.1 * rng.normal(size=y.shape), y


def test_classification_measures_every_model():
    teacher, student, baseline, y = classified()
    found = fidelity("classification", teacher, student, y, baseline=baseline)
    for model, p in (("teacher", teacher), ("student", student), ("baseline", baseline)):
        known = found.measures[model]
        accuracy = metrics.accuracy_score(y, p.argmax(1))
        error = math.sqrt(accuracy * (1 - accuracy) / 599)
        assert known["accuracy"] == pytest.approx((accuracy, error))
        assert known["log_probability"].value == pytest.approx(-metrics.log_loss(y, p))
    known = [found.measures[model]["ece"].value for model in ("teacher", "student", "baseline")]
    assert known[0] < 0.08  # its probabilities are those of the labels
    assert known[2] > 0.2
    assert "agreement" not in found.measures["teacher"]
    agreement = (teacher.argmax(1) == student.argmax(1)).mean()
    assert found.measures["student"]["agreement"].value == pytest.approx(agreement)
    assert found.rows == 600
    assert found.labelled


def test_differences_are_paired():
    teacher, student, baseline, y = classified()
    found = fidelity("classification", teacher, student, y, baseline=baseline)
    for other, p in (("teacher", teacher), ("baseline", baseline)):
        gap = (student.argmax(1) == y).astype(float) - (p.argmax(1) == y)
        expected = gap.mean(), gap.std(ddof=1) / math.sqrt(600)
        assert found.differences[other]["accuracy"] == pytest.approx(expected)
        for name, figure in found.differences[other].items():
            values = [found.measures[model][name].value for model in ("student", other)]
            assert figure.value == pytest.approx(values[0] - values[1], abs=1e-12)
    apart = np.hypot(*(found.measures[m]["accuracy"].std_error for m in ("student", "teacher")))
    assert found.differences["teacher"]["accuracy"].std_error < 0.7 * apart


def test_what_is_kept_is_a_ratio_with_an_error_that_covers():
    teacher, student, _, y = classified()
    found = fidelity("classification", teacher, student, y)
    right = [(p.argmax(1) == y).mean() for p in (student, teacher)]
    assert found.retention_by["accuracy"].value == pytest.approx(right[0] / right[1])
    assert found.retention == min(figure.value for figure in found.retention_by.values())
    assert found.retention == found.retention_by[found.main].value
    truth = _kept(*classified(200_000, seed=99))[0]
    inside = 0
    for seed in range(300):
        kept, error = _kept(*classified(500, seed=seed))
        inside += abs(kept - truth) < 1.96 * error
    assert 0.92 < inside / 300 < 0.975


def _kept(teacher, student, baseline, y):
    from limbeck.compression.fidelity.comparison import align
    from limbeck.compression.fidelity.report import RareClasses, retention

    data = align("classification", {"teacher": teacher, "student": student}, y)
    return retention(data, RareClasses())[1]["accuracy"]


def test_without_labels_faithfulness_is_all_there_is():
    teacher, student, baseline, _ = classified()
    found = fidelity("classification", teacher, student, baseline=baseline)
    assert found.retention_by["agreement"] == found.measures["student"]["agreement"]
    assert found.retention == min(figure.value for figure in found.retention_by.values())
    assert set(found.measures["student"]) == {"agreement", "kl", *RARE}
    assert found.measures["teacher"] == {}
    assert found.differences["teacher"] == {}
    assert set(found.differences["baseline"]) == {"agreement", "kl", *RARE}
    assert found.calibration == {}
    assert not found.labelled
    values, following, _ = valued()
    found = fidelity("regression", values, following)
    assert found.main == "teacher_r2"
    assert found.retention == pytest.approx(metrics.r2_score(values, following))


def test_regression_keeps_r2():
    teacher, student, y = valued()
    found = fidelity("regression", teacher[:, 0], student, y[:, 0])
    assert found.main == "r2"
    assert found.retention == pytest.approx(
        metrics.r2_score(y, student) / metrics.r2_score(y, teacher)
    )
    assert found.measures["student"]["difference"].value == pytest.approx(
        np.abs(teacher - student).mean()
    )
    assert "ece" not in found.measures["student"]


def test_no_ratio_where_it_would_mean_nothing():
    teacher, student, y = valued()
    found = fidelity("regression", -teacher, -student, y)
    assert math.isnan(found.retention)
    assert "has R² -" in found.sentence()
    constant = fidelity("regression", teacher, student, np.ones_like(y))
    assert math.isnan(constant.measures["student"]["r2"].value)
    assert constant.main == "teacher_r2"
    assert "–" in str(constant)
    wrong = fidelity("classification", [[1, 0]] * 3, [[1, 0]] * 3, [1, 1, 1])
    assert math.isnan(wrong.retention)


def test_every_label_and_every_target_is_shown_alone():
    rng = np.random.default_rng(0)
    p, s = rng.uniform(size=(2, 200, 3))
    y = (rng.uniform(size=p.shape) < p).astype(int)
    found = fidelity("multilabel", p, s, y, classes=["a", "b", "c"])
    alone = found.by_group["each label"]
    assert list(alone) == ["a", "b", "c"]
    assert alone["b"].measures["teacher"]["accuracy"].value == ((p[:, 1] > 0.5) == y[:, 1]).mean()
    mean = np.mean([part.measures["student"]["accuracy"].value for part in alone.values()])
    assert found.measures["student"]["accuracy"].value == pytest.approx(mean)
    teacher, student, y = valued(k=2)
    found = fidelity("regression", teacher, student, y, classes=["u", "v"])
    second = found.by_group["each target"]["v"].measures["student"]
    assert second["r2"].value == pytest.approx(metrics.r2_score(y[:, 1], student[:, 1]))


def test_a_subgroup_is_the_same_report_on_its_rows():
    teacher, student, baseline, y = classified()
    town = np.array(["York", "Bath", "Ely"])[np.arange(600) % 3]
    found = fidelity(
        "classification", teacher, student, y, baseline=baseline, groups={"town": town}
    )
    part = found.by_group["town"]["Bath"]
    rows = town == "Bath"
    alone = fidelity(
        "classification", teacher[rows], student[rows], y[rows], baseline=baseline[rows]
    )
    assert part.rows == 200
    for figures, others in (
        (part.measures, alone.measures),
        (part.differences, alone.differences),
    ):  # rare classes are looked at over all rows alone
        for model, known in others.items():
            shared = {name: known[name] for name in known if name not in RARE}
            assert figures[model] == shared
    same = (teacher.argmax(1) == student.argmax(1)).astype(float)
    gap = same[rows].mean() - same[~rows].mean()
    error = math.hypot(stats.sem(same[rows]), stats.sem(same[~rows]))
    assert part.differences["elsewhere"]["agreement"] == pytest.approx((gap, error))


def test_a_subgroup_where_the_student_is_worse_is_named():
    teacher, student, _, y = classified(2000)
    where = np.array(["land", "sea"])[(np.arange(2000) % 10 == 0).astype(int)]
    sea = np.flatnonzero(where == "sea")
    student[sea] = student[np.random.default_rng(0).permutation(sea)]  # mixed up
    found = fidelity("classification", teacher, student, y, groups={"where": where})
    assert found.worse == [("where", "sea")]
    assert "where = sea (accuracy" in str(found)
    assert "worse than the teacher by more than 3 standard errors" in str(found)
    found = fidelity("classification", teacher, student, groups={"where": where})
    assert found.worse == [("where", "sea")]
    assert "less faithful than elsewhere" in str(found)


def test_groups_that_are_as_good_are_hardly_ever_named():
    rng = np.random.default_rng(0)
    right = rng.uniform(size=(2, 60, 400)) < 0.8  # of teacher and student, independently
    named = 0
    for teacher, student in zip(*right, strict=True):
        p, s = (np.stack([rows, ~rows], axis=1).astype(float) for rows in (teacher, student))
        groups = {"g": np.arange(400) % 4}
        named += len(fidelity("classification", p, s, np.zeros(400), groups=groups).worse)
    assert named <= 3  # of 240


def test_small_groups_are_never_named():
    teacher = np.tile([0.9, 0.1], (40, 1))
    student = teacher.copy()
    student[:5] = [0.1, 0.9]
    groups = {"g": ["a"] * 5 + ["b"] * 35}
    found = fidelity("classification", teacher, student, np.zeros(40, int), groups=groups)
    assert found.by_group["g"]["a"].rows == 5
    assert found.worse == []


def test_the_largest_disagreements_are_listed():
    teacher, student, _, y = classified()
    names = np.array(["a", "b", "c", "d"])
    student[17] = np.eye(4)[teacher[17].argmin()]
    found = fidelity("classification", teacher, student, names[y], classes=names)
    first = found.disagreements[0]
    assert first["row"] == 17
    assert first["size"] == pytest.approx(np.abs(teacher[17] - student[17]).sum() / 2)
    np.testing.assert_allclose(first["teacher"], teacher[17])
    np.testing.assert_allclose(first["student"], student[17])
    assert first["label"] == names[y[17]]
    sizes = [each["size"] for each in found.disagreements]
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) == 20
    assert fidelity("classification", teacher, teacher).disagreements == []


def test_classes_are_crossed_and_rare_ones_pooled():
    teacher, student, *_ = classified()
    found = fidelity("classification", teacher, student)
    expected = metrics.confusion_matrix(teacher.argmax(1), student.argmax(1))
    np.testing.assert_array_equal(found.pairs["counts"], expected)
    teacher, student, *_ = classified(k=30)
    pairs = fidelity("classification", teacher, student).pairs
    assert len(pairs["classes"]) == 20
    assert pairs["classes"][-1] == "other (11)"
    assert np.sum(pairs["counts"]) == 600
    assert pairs["differ"] == (teacher.argmax(1) != student.argmax(1)).sum()
    assert pairs["differ"] > 600 - np.trace(pairs["counts"])  # some of them in one cell


def test_of_many_classes_those_are_shown_that_are_mixed_up_most():
    one = np.repeat(np.arange(30), 10 + np.arange(30))  # later classes are more frequent
    two = np.where((one < 19) & (np.arange(len(one)) % 2 == 0), (one + 1) % 19, one)
    pairs = fidelity("classification", np.eye(30)[one], np.eye(30)[two]).pairs
    assert pairs["classes"] == [*map(str, range(19)), "other (11)"]
    assert np.trace(pairs["counts"]) == (one == two).sum()
    assert pairs["counts"][-1][-1] == (one >= 19).sum()


def test_of_labels_it_is_shown_how_often_one_model_alone_says_yes():
    p, s = np.random.default_rng(7).uniform(size=(2, 200, 3))
    p[:, 0], s[:, 1] = 0.9, 0.1
    pairs = fidelity("multilabel", p, s).pairs
    for name, yes, no in (("teacher", p, s), ("student", s, p)):
        alone = ((yes > 0.5) & (no < 0.5)).mean(0)
        np.testing.assert_allclose(pairs[name], alone)


def test_a_report_survives_its_file(tmp_path):
    teacher, student, baseline, y = classified()
    found = fidelity(
        "classification", teacher, student, y,
        baseline=baseline,
        groups={"place": np.arange(600) % 2, "size": np.arange(600.0)},
        teacher_cost=Cost(1000, 4000, {1: 0.1, 1000: 0.2}),
        student_cost=Cost(10),
        names={"teacher": "Forest"},
    )  # fmt: skip
    again = Fidelity.load(found.save(tmp_path / "new" / "report.json"))
    assert again.to_dict() == found.to_dict()
    assert str(again) == str(found)
    assert again.measures == found.measures
    assert again.costs == found.costs
    assert again.by_group["place"]["1"].differences == found.by_group["place"]["1"].differences
    saved = json.loads((tmp_path / "new" / "report.json").read_text())
    assert saved["measures"]["student"]["accuracy"] == list(found.measures["student"]["accuracy"])
    assert saved["sentence"] == found.sentence()


def test_another_file_is_refused(tmp_path):
    with refused("saved", "format None"):
        Fidelity.from_dict({})
    (tmp_path / "one.json").write_text("{")
    with raises_about(CheckpointError, "one.json"):
        Fidelity.load(tmp_path / "one.json")
    with raises_about(CheckpointError, "none.json", "No such file"):
        Fidelity.load(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("field", "value", "shown"),
    [
        ("rows", "many", "saved.rows:"),
        ("costs", {"student": {"latency": {"1": "quick"}}}, "saved.costs.student.latency.1"),
        ("measures", {"student": {"accuracy": [1.0]}}, "saved.measures.student.accuracy"),
        ("main", "accurracy", "did you mean 'accuracy'"),
        ("extra", 1, "'extra'"),
    ],
)
def test_a_field_that_is_not_as_saved_is_named(tmp_path, field, value, shown):
    y = np.arange(40) % 2
    saved = fidelity("classification", np.eye(2)[y], np.eye(2)[y], y).to_dict()
    (tmp_path / "report.json").write_text(json.dumps(saved | {field: value}))
    with raises_about(CheckpointError, shown):
        Fidelity.load(tmp_path / "report.json")


@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from(["classification", "multilabel", "regression"]),
    st.integers(1, 30),
    st.integers(1, 5),
    st.integers(0, 2**16),
    st.booleans(),
    st.booleans(),
)
def test_any_predictions_make_a_report_that_prints_and_saves(task, n, k, seed, hard, labels):
    rng = np.random.default_rng(seed)
    p, s = rng.dirichlet(np.full(k, 0.5), (2, n))
    if hard:
        p, s = np.round(p), np.round(s)
    if task == "classification":
        p, s = (x + (x.sum(1, keepdims=True) == 0) / k for x in (p, s))
        p, s = p / p.sum(1, keepdims=True), s / s.sum(1, keepdims=True)
    y = {"classification": np.full(n, k - 1), "multilabel": np.round(p), "regression": p}[task]
    classes = [f"class {c}" for c in range(k)]
    if task == "classification":
        y = np.array(classes)[y]
    groups = {"it": rng.integers(0, 3, n)}
    found = fidelity(task, p, s, y if labels else None, classes=classes, groups=groups)
    assert str(found).endswith(found.sentence())
    assert str(found).endswith(".")
    assert Fidelity.from_dict(json.loads(json.dumps(found.to_dict()))).to_dict() == found.to_dict()
    assert "nan" not in str(found)


def test_equal_calls_give_equal_reports():
    given = classified(100)
    one, two = (fidelity("classification", *given[:2], given[3]) for _ in range(2))
    assert one.to_dict() == two.to_dict()
