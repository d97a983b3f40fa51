r"""compress with what careless users bring: handled, or refused in words that help."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.compose import make_column_transformer
from sklearn.datasets import make_classification, make_friedman1
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import limbeck as lb
from limbeck.compression.compress import compress
from limbeck.teachers.query import TeacherError
from tests.refusals import raises_about, refused

QUICK = {
    "progress": False, "device": "cpu", "engine": "eager", "steps": 100, "pool": 400,
    "inputs": "munge", "lr": 0.02,
}  # fmt: skip
X, Y = make_classification(120, 6, random_state=0)


@pytest.fixture(scope="module")
def forest():
    return RandomForestClassifier(10, random_state=0).fit(X, Y)


def agreement(student, teacher, X):
    return (student.predict(X) == teacher.predict(X)).mean()


# labels


def test_none_at_all_and_none_known_are_the_same(forest):
    without = compress(forest, X, (8,), **QUICK)
    unknown = compress(forest, X, (8,), labels=[None] * len(X), **QUICK)
    assert agreement(without, forest, X) > 0.9
    np.testing.assert_array_equal(without.predict_proba(X), unknown.predict_proba(X))


@pytest.mark.parametrize(
    ("labels", "received", "expected"),
    [
        (Y[:5], "^5 labels$", "one for each of 120 rows"),
        (np.full(120, 7), "^7$", "the teacher's classes: 0, 1"),
        (np.full(120, "cat"), "'cat'", "the teacher's classes: 0, 1"),
    ],
)
def test_labels_that_do_not_fit(forest, labels, received, expected):
    with refused("labels", received, expected=expected):
        compress(forest, X, (8,), labels=labels, **QUICK)


def test_infinite_labels():
    x, y = make_friedman1(60, random_state=0)
    forest = RandomForestRegressor(5, random_state=0).fit(x, y)
    with refused("labels", "infinite values"):
        compress(forest, x, (8,), labels=np.where(y > 15, np.inf, y), **QUICK)


def test_folds_need_labels(forest):
    with refused("labels", "None"):
        compress(forest, X, (8,), teacher_folds=3, **QUICK)


def test_labels_of_one_class_pull_towards_it(forest):
    without = compress(forest, X, (8,), **QUICK)
    pulled = compress(
        forest, X, (8,), labels=np.ones(120, int), label_weight=1.0, **QUICK | {"inputs": "data"}
    )
    assert pulled.predict_proba(X)[:, 1].min() > 0.5 > without.predict_proba(X)[:, 1].min()


def test_a_teacher_of_one_class(forest):
    single = RandomForestClassifier(5).fit(X, np.zeros(120))
    with refused("teacher", "a classifier of one class"):
        compress(single, X, (8,), **QUICK)


# rows


@pytest.mark.parametrize("inputs", ["data", "munge", "noise", "columns"])
def test_constant_columns(forest, inputs):
    constant = X.copy()
    constant[:, 2] = 3.0
    made = compress(forest, constant, (8,), **QUICK | {"inputs": inputs})
    assert agreement(made, forest, constant) > 0.85
    # what never changed cannot matter, wherever it goes
    elsewhere = constant.copy()
    elsewhere[:, 2] = 1e6
    np.testing.assert_array_equal(made.predict_proba(constant), made.predict_proba(elsewhere))


@pytest.mark.parametrize("inputs", ["data", "munge", "noise", "columns"])
def test_rows_that_are_all_the_same(forest, inputs):
    same = np.ones((50, 6))
    made = compress(forest, same, (8,), **QUICK | {"inputs": inputs})
    np.testing.assert_allclose(
        made.predict_proba(same[:1]), forest.predict_proba(same[:1]), atol=0.05
    )


def test_teachers_that_always_say_the_same():
    made = compress(lambda x: np.tile([0.3, 0.7], (len(x), 1)), X, (8,), **QUICK)
    np.testing.assert_allclose(made.predict_proba(X), [[0.3, 0.7]] * 120, atol=0.2)
    made = compress(lambda x: np.full(len(x), 5.0), X, (8,), **QUICK)
    np.testing.assert_allclose(made.predict(X), 5.0, atol=0.5)


def with_one(value):
    changed = X.copy()
    changed[3, 2] = value
    return changed


@pytest.mark.parametrize(
    ("rows", "received"),
    [
        (with_one(np.inf), "infinite values, the first in row 3"),
        (with_one(1e39), "beyond float32"),
        (X[:, 0], r"shape \(120,\)"),
        (X[:0], "no data"),
        (X[:1], "^1 row$"),
        (X.astype(str), "strings"),
        (X.astype(complex), "complex"),
    ],
)
def test_rows_that_cannot_be_learnt_from(forest, rows, received):
    with refused("X", received):
        compress(forest, rows, (8,), **QUICK)


@pytest.fixture(scope="module")
def student(forest):
    return compress(forest, X, (8,), **QUICK)


@pytest.mark.parametrize(
    ("rows", "received", "expected"),
    [
        (with_one(np.inf), "infinite values, the first in row 3", ""),
        (with_one(np.nan), "NaN or infinite values, the first in row 3", ""),
        (X[:, :3], r"rows of shape \(3,\)", r"rows of shape \(6,\)"),
    ],
)
def test_rows_that_cannot_be_predicted(student, rows, received, expected):
    with refused("X", received, expected=expected):
        student.predict(rows)


@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.coo_matrix, sparse.csc_array])
def test_sparse_rows_are_as_good_as_dense_ones(forest, student, kind):
    made = compress(forest, kind(X), (8,), **QUICK)
    np.testing.assert_array_equal(made.predict_proba(kind(X)), student.predict_proba(X))
    np.testing.assert_array_equal(student.predict_proba(kind(X)), student.predict_proba(X))
    report = made.report(kind(X), Y, time=False)
    assert report.measures["student"]["agreement"].value > 0.9


def test_sparse_rows_that_no_memory_would_hold(forest):
    huge = sparse.csr_matrix(([1.0], ([0], [0])), shape=(10**6, 10**6))
    with refused("X", "sparse matrix of 1,000,000 × 1,000,000"):
        compress(forest, huge, (8,), **QUICK)


# tables


@pytest.fixture(scope="module")
def table():
    frame = pd.DataFrame({"a": X[:, 0], "c": np.where(X[:, 1] > 0, "u", "v"), "one": 1.0})
    columns = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), ["c"]), remainder="passthrough"
    )
    teacher = make_pipeline(columns, LogisticRegression()).fit(frame, Y)
    return frame, teacher, compress(teacher, frame, (8,), **QUICK)


def test_categories_that_were_never_seen(table):
    frame, _, student = table
    known, unseen = (student.predict_proba(frame.assign(c=c)) for c in ("u", "zebra"))
    np.testing.assert_allclose(unseen.sum(1), 1)
    assert not np.allclose(known, unseen)
    np.testing.assert_array_equal(unseen, student.predict_proba(frame.assign(c="yak")))


@pytest.mark.parametrize(
    ("change", "argument", "received"),
    [
        (lambda frame: frame[["a"]], "X", "no column 'c'"),
        (lambda frame: frame.assign(a=np.inf), "X['a']", "infinity, the first in row 0"),
        (lambda frame: frame.to_numpy(), "X", "a ndarray"),
    ],
)
def test_frames_that_do_not_fit(table, change, argument, received):
    frame, _, student = table
    with refused(argument, received):
        student.predict(change(frame))


def test_infinity_in_a_frame_to_learn_from(table):
    frame, teacher, _ = table
    with refused("X['a']", "infinity, the first in row 0"):
        compress(teacher, frame.assign(a=np.inf), (8,), **QUICK)


# teachers


class Changing:
    r"""A forest that behaves for some rows, and then does not."""

    def __init__(self, forest, change, good=150):
        self.forest, self.change, self.good, self.seen = forest, change, good, 0

    def __call__(self, x):
        answer = self.forest.predict_proba(x)
        self.seen += len(x)
        return answer if self.seen <= self.good else self.change(answer)


@pytest.mark.parametrize(
    ("change", "received"),
    [
        (lambda p: p[:-1], r"outputs of shape \(\d+, 2\) for \d+ rows"),
        (lambda p: np.hstack([p, p]) / 2, r"outputs of shape \(\d+, 4\) for \d+ rows"),
        (lambda p: p + 0.3, "outputs between 0.3 and 1.3"),
        (lambda p: p * np.nan, "NaN or infinite"),
        (lambda p: None, "an output of type NoneType"),
        (lambda p: np.full(p.shape, "yes"), "outputs of type <U3"),
    ],
)
def test_teachers_that_answer_nonsense_in_the_middle(forest, change, received):
    with refused("teacher", received):
        compress(Changing(forest, change), X, (8,), **QUICK)


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p[:-1],
        lambda p: p[:, :-1],
        lambda p: p[:1],
        lambda p: None,
        lambda p: np.full(p.shape, "yes"),
    ],
    ids=["a row short", "a column short", "one row", "None", "words"],
)
def test_later_answers_of_another_shape_or_type(change):
    rows, calls = np.random.default_rng(0).normal(size=(300, 2)), []

    def teacher(X):
        calls.append(len(X))
        p = np.exp(np.stack([X[:, 0], X[:, 1], X.sum(1)], 1))
        p /= p.sum(1, keepdims=True)
        return p if len(calls) <= 2 else change(p)

    options = QUICK | {"inputs": "data", "pool": 300, "steps": 5}
    with refused("teacher"):
        compress(teacher, rows, (8,), teacher_batch=50, **options)
    assert len(calls) == 3


def fail(answer):
    raise RuntimeError("the server said 500")


def test_a_teacher_that_raises_in_the_middle(forest, tmp_path):
    with raises_about(TeacherError, "the server said 500", "cache=") as found:
        compress(Changing(forest, fail), X, (8,), **QUICK)
    assert isinstance(found.value, lb.LimbeckError)
    assert isinstance(found.value.__cause__, RuntimeError)

    kept = {"cache": tmp_path, "cache_key": "remote"}
    with raises_about(TeacherError, "cache") as found:
        compress(Changing(forest, fail, 250), X, (8,), **kept, **QUICK)
    answered = found.value.cached
    assert answered > 0
    again = Changing(forest, fail, 10**6)
    made = compress(again, X, (8,), **kept, **QUICK)
    looked_at = 16  # rows at which a function's outputs are looked at first
    generated = QUICK["pool"] - len(X)  # it failed among these, after the rows themselves
    assert again.seen == generated - answered + looked_at
    assert agreement(made, forest, X) > 0.9


def test_a_teacher_that_raises_at_once_is_named_with_its_own_words():
    with raises_about(TeacherError, "first rows of X", "the server said 500") as found:
        compress(fail, X, (8,), **QUICK)
    assert isinstance(found.value.__cause__, RuntimeError)


def test_a_teacher_for_other_rows(forest):
    with raises_about(TeacherError, "3 features", "RandomForestClassifier") as found:
        compress(forest, X[:, :3], (8,), **QUICK)
    assert isinstance(found.value.__cause__, ValueError)


@pytest.mark.parametrize(
    ("teacher", "received"),
    [
        (None, "an object of type NoneType"),
        (RandomForestClassifier(), "not fitted"),
        (RidgeClassifier().fit(X, Y), "no predict_proba"),
    ],
)
def test_what_is_no_teacher(teacher, received):
    with refused("teacher", received):
        compress(teacher, X, (8,), **QUICK)


@pytest.mark.parametrize("student", [(8,), "tree"])
def test_derivatives_of_a_forest(forest, student):
    loss = lb.losses.cross_entropy() + 1e-3 * lb.losses.derivative_error()
    with raises_about(lb.NotDifferentiableError, "noise", "surrogate"):
        compress(forest, X, student, loss=loss, **QUICK)


def test_derivatives_of_a_surrogate(forest):
    surrogate = compress(forest, X, (16,), **QUICK).student
    loss = lb.losses.cross_entropy() + 1e-3 * lb.losses.derivative_error()
    made = compress(surrogate, X, (8,), loss=loss, **QUICK)
    assert agreement(made, forest, X) > 0.85


# in the user's words


@pytest.mark.parametrize(
    ("change", "argument", "received", "expected"),
    [
        ({"labels": Y[:5]}, "labels", "^5 labels$", "one for each of 120 rows"),
        ({"labels": ["cat"] * 120}, "labels", "'cat'", "the teacher's classes: 0, 1"),
        ({"labels": Y, "teacher_folds": 1}, "teacher_folds", "^1$", ""),
        ({"stepz": 3}, "stepz", "an unknown name", "did you mean 'steps'"),
        (
            {"max_bytes": 10_000},
            "X",
            "120 rows, too few to hold some out",
            "20 or more",
        ),
    ],
)
def test_arguments_are_called_as_the_user_calls_them(forest, change, argument, received, expected):
    student = "auto" if "max_bytes" in change else (8,)
    with refused(argument, received, expected=expected):
        compress(forest, X, student, **QUICK | change)


def test_bad_labels_are_refused_before_the_teacher_is_asked(forest):
    asked = []

    def teacher(rows):
        asked.append(len(rows))
        return forest.predict_proba(rows)

    with refused("labels", "7"):
        compress(teacher, X, (8,), labels=np.full(120, 7), **QUICK)
    assert sum(asked) <= 16  # what it gives, at a few rows


def test_tables_are_called_x(forest):
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1]})
    teacher = RandomForestClassifier(5, random_state=0).fit(frame, Y)
    with refused("X['a']", "infinity"):
        compress(teacher, frame.assign(a=np.inf), (8,), **QUICK)
    made = compress(teacher, frame, (8,), **QUICK)
    with refused("X", "no column 'b'"):
        made.predict(frame[["a"]])


def test_a_teacher_that_cannot_be_fitted_again(forest):
    with refused("teacher_folds", "predict_proba"):
        compress(forest.predict_proba, X, (8,), labels=Y, teacher_folds=2, **QUICK)


@pytest.mark.parametrize("student", ["tre", (50, 0), 2.5, object()])
def test_a_bad_student_costs_no_query(student):
    queried = []

    def teacher(rows):
        queried.append(len(rows))
        return np.zeros((len(rows), 2))

    with refused("student"):
        lb.compress(teacher, np.random.default_rng(0).normal(size=(300, 3)), student)
    assert not queried


def test_labels_of_the_wrong_length_are_refused_before_anything_is_computed(monkeypatch):
    calls = []

    def teacher(x):
        calls.append(len(x))
        return np.stack([np.full(len(x), 0.3), np.full(len(x), 0.7)], 1)

    x = np.random.default_rng(0).normal(size=(60, 3))
    result = lb.compress(
        teacher, x, (2,), inputs="data", steps=2, task="classification", progress=False,
    )  # fmt: skip
    calls.clear()
    with refused("labels", "59 labels", expected="each of 60 rows"):
        result.report(x[:20], labels=np.arange(59) % 2)
    assert not calls
    monkeypatch.setattr(type(result), "on_labels", lambda *_: pytest.fail("trained"))
    with refused("y", r"shape \(19,\)"):
        result.report(x[:20], np.arange(19) % 2, labels=np.arange(60) % 2)
    with refused("sample_weight"):
        result.report(x[:20], labels=np.arange(60) % 2, sample_weight=np.ones(21))
