r"""A mixed table through compress: frames to the teacher, one exported model for all columns."""

import re

import numpy as np
import onnxruntime
import pytest
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import limbeck as lb
from limbeck.compression.compress import compress
from limbeck.compression.compressed import Compressed
from tests.refusals import refused

pandas = pytest.importorskip("pandas")

QUICK = {"progress": False, "device": "cpu", "engine": "eager", "steps": 600, "pool": 1500}


def people(n=500, seed=0):
    g = np.random.default_rng(seed)
    frame = pandas.DataFrame(
        {
            "age": g.integers(18, 80, n),
            "income": g.lognormal(10, 0.5, n),
            "town": g.choice(["Leith", "Morningside", "Portobello"], n),
            "member": g.random(n) < 0.4,
        }
    )
    frame.loc[g.random(n) < 0.2, "income"] = np.nan
    score = (frame.age > 45) * 1.5 + (frame.town == "Leith") - frame.member * 1.0
    label = np.where(score + g.normal(0, 0.3, n) > 0.7, "yes", "no")
    return frame, label


@pytest.fixture(scope="module")
def result():
    frame, label = people()
    columns = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), ["town"]),
        (SimpleImputer(), ["age", "income"]),
        remainder="passthrough",
    )
    teacher = make_pipeline(columns, RandomForestClassifier(40, min_samples_leaf=3, random_state=0))
    teacher.fit(frame, label)
    return teacher, compress(teacher, frame, (16,), inputs="munge", **QUICK)


def test_it_predicts_like_the_pipeline(result):
    teacher, student = result
    frame, label = people(300, seed=1)
    assert (student.predict(frame) == teacher.predict(frame)).mean() > 0.9
    report = student.report(frame, label, groups=["town"], time=False)
    assert set(report.by_group["town"]) >= {"Leith", "Morningside"}


def test_unseen_categories_and_columns_in_another_order(result):
    _, student = result
    frame, _ = people(50, seed=2)
    frame["town"] = "Atlantis"
    assert student.predict_proba(frame[["member", "town", "income", "age"]]).shape == (50, 2)


def test_it_is_read_back_and_exported(result, tmp_path):
    _, student = result
    frame, _ = people(40, seed=3)
    again = Compressed.load(student.save(tmp_path))
    np.testing.assert_array_equal(again.predict_proba(frame), student.predict_proba(frame))
    session = onnxruntime.InferenceSession(str(again.export(tmp_path / "student.onnx")))
    from limbeck.export.table_onnx import feeds

    label, probabilities = session.run(
        ["label", "probabilities"], feeds(again.row_format.table, frame)
    )
    p = student.predict_proba(frame)
    np.testing.assert_allclose(probabilities, p, atol=1e-5)
    clear = np.abs(p[:, 0] - p[:, 1]) > 1e-4  # elsewhere rounding may decide
    assert clear.mean() > 0.9
    assert label[clear].tolist() == student.predict(frame)[clear].tolist()


def test_a_tree_of_a_table_is_read_in_its_own_words(result):
    teacher, _ = result
    frame, _ = people()
    tree = compress(teacher, frame, "tree", inputs="munge", **QUICK)
    rules = tree.rules()
    assert "if age <= 4" in rules  # the labels turn at 45
    assert "if town is not Leith:" in rules
    assert "yes" in rules
    assert "RandomForest" in str(tree) or "Pipeline" in str(tree)
    with refused("student", expected="tree"):
        result[1].rules()


def visits(n=400, zone=None, step="D"):
    r"""Rows with dates, pandas' own numbers and flags, and gaps in all of them."""
    g = np.random.default_rng(1)
    frame = pandas.DataFrame(
        {
            "since": pandas.Timestamp("2020-01-01", tz=zone)
            + pandas.to_timedelta(g.integers(0, 2000, n), unit=step),
            "visits": pandas.array(g.integers(0, 9, n), dtype="Int64"),
            "member": pandas.array(g.random(n) < 0.5, dtype="boolean"),
        }
    )
    late = (frame.since > frame.since.median()).to_numpy()
    for name in frame:
        frame.loc[g.random(n) < 0.1, name] = pandas.NaT if name == "since" else pandas.NA
    return frame, np.where(late, "late", "early")


@pytest.mark.parametrize(
    ("zone", "step", "shown"),
    [(None, "D", r"2022-\d\d-\d\d:"), (None, "h", r"2020-\d\d-\d\d \d\d:\d\d:\d\d:"),
     ("Europe/London", "D", r"2022-\d\d-\d\d \d\d:\d\d:\d\d\+0[01]:00:")],
    ids=["days", "hours", "zone"],
)  # fmt: skip
def test_rules_have_dates_as_people_write_them(zone, step, shown):
    frame, _ = visits(zone=zone, step=step)
    middle = frame.since.median()

    def teacher(rows):
        later = (rows.since > middle).to_numpy(float)
        return np.stack([1 - later, later], 1)

    rules = compress(teacher, frame, "tree", inputs="columns", **QUICK).rules()
    (found,) = re.findall(f"if since <= ({shown})", rules)
    # it divides the rows as the teacher does
    assert ((frame.since <= pandas.Timestamp(found.rstrip(":"))) == (frame.since <= middle)).all()


def test_an_estimator_without_a_teacher_takes_dates_and_gaps_of_every_kind():
    frame, label = visits()
    student = lb.DistilledClassifier(student=(8,), inputs="munge", steps=400, pool=1500)
    student.fit(frame[:300], label[:300])
    known = frame.since[300:].notna()
    right = student.predict(frame[300:]) == label[300:]
    assert right[known].mean() > 0.9
    missing = frame[300:].assign(visits=pandas.array([pandas.NA] * 100, dtype="Int64"))
    assert np.isfinite(student.predict_proba(missing)).all()


def test_frames_without_rows_are_refused(result):
    with refused("X", "a data frame without rows"):
        result[1].predict(people()[0].head(0))


def test_groups_are_columns_of_the_frame(result):
    _, student = result
    frame, label = people(seed=1)
    with refused("groups", "'twon'", expected="did you mean 'town'"):
        student.report(frame, label, groups=["twon"])
    frame["day"] = pandas.Timestamp("2020-01-01", tz="Europe/London") + pandas.to_timedelta(
        np.arange(len(frame)), unit="D"
    )
    report = student.report(frame, label, groups=["day", "income"], time=False)
    assert list(report.by_group["day"]) == [
        "up to 2020-05-04", "2020-05-04 to 2020-09-06", "2020-09-06 to 2021-01-09",
        "above 2021-01-09",
    ]  # fmt: skip
    assert all("e+" not in name for name in report.by_group["income"])
