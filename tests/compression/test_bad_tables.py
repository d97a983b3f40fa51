r"""Tables that nothing can be learnt from, or that do not suit the teacher: one clear line."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import limbeck as lb
from limbeck.compression.estimators import DistilledClassifier
from tests.refusals import raises_about, refused, warns_about

QUICK = {"inputs": "data", "steps": 5, "progress": False, "device": "cpu"}


def half(X):
    return np.full((len(X), 2), 0.5)


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {"a": rng.normal(size=200), "town": rng.choice(["x", "y", "z"], 200), "b": np.arange(200.0)}
    )


def pipeline(frame, unknown="ignore"):
    codes = make_column_transformer(
        (OneHotEncoder(handle_unknown=unknown), ["town"]), remainder="passthrough"
    )
    forest = RandomForestClassifier(5, random_state=0)
    return make_pipeline(codes, forest).fit(frame, frame.a > 0)


def one_line(caught):
    assert "\n" not in str(caught.value)


def bad_tables(frame):
    lists = frame.assign(L=[[1, 2]] * 200)
    twice = pd.concat([frame, frame[["a"]]], axis=1)
    return {
        "one row": (frame[:1], "X", "one row"),
        "all gaps": (frame.astype(object).mask(frame.notna()), "X", "without a value"),
        "constant": (frame.assign(a=1, town="x", b=2), "X", "all constant"),
        "lists": (lists, r"X['L']", "mixed"),
        "twice": (twice, "X", "'a' twice"),
    }


@pytest.mark.parametrize("name", ["one row", "all gaps", "constant", "lists", "twice"])
def test_a_table_without_use_is_refused(frame, name):
    table, argument, received = bad_tables(frame)[name]
    with refused(argument, received) as caught:
        lb.compress(half, table, (4,), **QUICK)
    one_line(caught)
    if name != "one row":  # which has one class alone
        with refused(argument, received) as caught:
            DistilledClassifier(steps=5).fit(table, np.arange(len(table)) % 2)
        one_line(caught)


def test_an_array_of_gaps_is_refused():
    with refused("X", "without a value"):
        lb.compress(half, np.full((50, 3), np.nan), **QUICK)


def test_one_class_is_refused(frame):
    X = frame[["a", "b"]]
    with refused("teacher", "one class"):
        lb.compress(RandomForestClassifier(5).fit(X, np.zeros(200)), X, **QUICK)
    with refused("y", "one class"):
        DistilledClassifier().fit(X, np.zeros(200))


def test_one_class_among_the_test_rows_is_reported(frame):
    small = lb.compress(pipeline(frame), frame, (4,), **QUICK)
    text = str(small.report(frame, np.zeros(200, bool), time=False))
    assert "unchecked (fewer than 30 rows): class True (0)" in text


def test_categories_that_were_never_seen_are_predicted(frame):
    small = lb.compress(pipeline(frame), frame, (4,), **QUICK)
    new = frame[:5].assign(town=["q", "x", "y", "q", "z"])
    p = small.predict_proba(new)
    assert np.isfinite(p).all()
    np.testing.assert_allclose(p[1], small.predict_proba(frame[1:2].assign(town="x"))[0], rtol=1e-5)
    strict = lb.compress(pipeline(frame, "error"), frame, (4,), **QUICK)
    assert np.isfinite(strict.predict_proba(new)).all()
    with raises_about(lb.LimbeckError, "unknown categories") as caught:
        strict.report(new, time=False)  # the teacher's own refusal
    one_line(caught)


def teachers():
    forest = RandomForestClassifier(5, random_state=0)
    yield "forest", forest
    yield "pipeline", make_pipeline(forest)
    yield "list", [forest, forest]
    for library, name, options in (
        ("lightgbm", "LGBMClassifier", {"n_estimators": 3, "verbose": -1}),
        ("catboost", "CatBoostClassifier", {"iterations": 3, "verbose": 0}),
        ("xgboost", "XGBClassifier", {"n_estimators": 3}),
    ):
        yield library, (library, name, options)


@pytest.mark.parametrize("name", ["forest", "pipeline", "list", "lightgbm", "catboost", "xgboost"])
def test_columns_that_the_teacher_needs_are_named(frame, name):
    X, y = frame[["a", "b"]], (frame.a > 0).astype(int)
    model = dict(teachers())[name]
    if isinstance(model, tuple):
        library, kind, options = model
        model = getattr(pytest.importorskip(library), kind)(**options)
    models = [m.fit(X, y) for m in (model if isinstance(model, list) else [model])]
    teacher = models if isinstance(model, list) else models[0]
    with refused("X", "no column 'b'", expected="the teacher was fitted on") as caught:
        lb.compress(teacher, X[["a"]], (4,), **QUICK)
    one_line(caught)
    lb.compress(teacher, X.assign(c=1.0)[["a", "b"]], (4,), **QUICK)


@pytest.mark.parametrize("wrap", [lambda m: m, lambda m: [m, m]], ids=["one", "list"])
def test_columns_that_the_teacher_was_not_fitted_on_are_left_out(frame, wrap):
    X, y = frame[["a", "b"]], (frame.a > 0).astype(int)
    teacher = wrap(make_pipeline(RandomForestClassifier(5, random_state=0)).fit(X, y))
    wide = frame[["a", "b"]].assign(answer=y)
    result = lb.compress(teacher, wide, (4,), **QUICK)
    assert any("'answer'" in note for note in result.notes)
    changed = result.predict_proba(wide.assign(answer=1 - y))
    np.testing.assert_array_equal(changed, result.predict_proba(X))
    with refused("table", "'answer'"):
        lb.compress(teacher, wide, (4,), table=lb.Table(wide), **QUICK)
    told = lb.compress(teacher, wide, (4,), table=lb.Table(wide, drop=["answer"]), **QUICK)
    np.testing.assert_array_equal(told.predict_proba(X), result.predict_proba(X))


def test_a_function_may_use_any_column(frame):
    teacher = lb.compress(lambda X: half(X), frame, (4,), **QUICK)
    assert not any("not fitted" in note for note in teacher.notes)


def test_columns_with_spaces_are_those_of_lightgbm(frame):
    lightgbm = pytest.importorskip("lightgbm")
    X, y = frame[["a", "b"]].rename(columns={"a": "an a"}), (frame.a > 0).astype(int)
    model = lightgbm.LGBMClassifier(n_estimators=3, verbose=-1).fit(X, y)
    result = lb.compress(model, X, (4,), **QUICK)
    assert not any("not fitted" in note for note in result.notes)


def test_a_teacher_that_fails_for_another_reason_is_told_in_one_line(frame):
    def failing(X):
        raise ValueError("first\nsecond")

    with raises_about(lb.LimbeckError, "first second") as caught:
        lb.compress(failing, frame, (4,), **QUICK)
    one_line(caught)


@pytest.mark.parametrize("kind", ["numbers", "texts", "array"])
def test_a_column_that_is_the_labels_is_warned_of(frame, kind):
    labels = (frame.a > 0).astype(int).to_numpy()
    X, classes = frame.assign(answer=labels), None
    if kind == "texts":
        labels, classes = np.where(labels, "yes", "no"), ["no", "yes"]
        X = frame.assign(answer=labels)
    if kind == "array":
        X = X[["a", "b", "answer"]].to_numpy()
    column = "2" if kind == "array" else "'answer'"
    with warns_about(f"column {column}", "labels"):
        small = lb.compress(half, X, (4,), labels=labels, classes=classes, **QUICK)
    assert any("equals the labels" in note for note in small.notes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lb.compress(half, frame, (4,), labels=labels, classes=classes, **QUICK)


@pytest.mark.parametrize("n", [1, 5, 19, 199])
def test_a_student_of_few_rows_is_unchecked(n):
    X = np.random.default_rng(0).normal(size=(300, 3))
    forest = RandomForestClassifier(5, random_state=0).fit(X, X[:, 0] > 0)
    few = lb.compress(forest, X[:n], (4,), **QUICK)
    assert sum(note.startswith("Unchecked") for note in few.notes) == 1
    more = lb.compress(forest, X, (4,), **QUICK)
    assert not any(note.startswith("Unchecked") for note in more.notes)


def test_a_column_like_ids_is_warned_of(frame):
    numbers = np.random.default_rng(1).permutation(200)
    named = {"user_id": numbers, "customerID": numbers, "row": np.arange(200), "Id": numbers}
    for name, values in named.items():
        table = frame.assign(**{name: values})
        with warns_about(f"{name!r}", "like ids", f"drop=[{name!r}]"):
            result = lb.compress(half, table, (4,), **QUICK)
        assert any("like ids" in note for note in result.notes)
    others = {"paid": numbers, "number": numbers, "code_id": numbers // 2, "n": numbers / 2}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = [lb.compress(half, frame.assign(**others), (4,), **QUICK)]
        table = frame.assign(user_id=numbers)  # the user's own choice
        results.append(lb.compress(half, table, (4,), table=lb.Table(table), **QUICK))
    assert not [note for result in results for note in result.notes if "like ids" in note]
