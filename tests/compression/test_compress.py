r"""compress, end to end: what comes out, and what is refused."""

import copy
import json

import numpy as np
import onnxruntime
import pytest
import torch
from sklearn.datasets import load_breast_cancer, make_classification, make_friedman1
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from torch import nn

import limbeck as lb
from limbeck.compression.compress import compress
from limbeck.compression.compressed import Compressed
from limbeck.compression.students import predictions
from tests.refusals import raises_about, refused

QUIET = {"progress": False, "device": "cpu", "engine": "eager"}
QUICK = QUIET | {"steps": 400, "pool": 1500, "inputs": "munge"}


@pytest.fixture(scope="module")
def cancer():
    X, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    X, y = X[order], y[order]
    forest = RandomForestClassifier(30, random_state=0).fit(X[:400], y[:400])
    return forest, X[:400], y[:400], X[400:], y[400:]


@pytest.fixture(scope="module")
def small(cancer):
    return compress(cancer[0], cancer[1], (16,), **QUICK)


def test_a_forest_becomes_a_net_that_predicts_like_it(cancer, small):
    forest, _, _, X, y = cancer
    assert small.task == "classification"
    assert small.classes.tolist() == [0, 1]
    assert (small.predict(X) == forest.predict(X)).mean() > 0.93
    assert abs((small.predict(X) == y).mean() - forest.score(X, y)) < 0.05
    np.testing.assert_allclose(small.predict_proba(X).sum(1), 1)
    divergence = np.abs(small.predict_proba(X) - forest.predict_proba(X)).mean()
    assert divergence < 0.06


def test_equal_seeds_give_equal_students(cancer):
    one, two = (compress(cancer[0], cancer[1][:100], (4,), **QUICK | {"steps": 50}) for _ in "ab")
    for p, q in zip(one.student.parameters(), two.student.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.slow
def test_a_report_stands_beside_the_teacher_and_the_same_student_on_labels(cancer, small):
    _, _, y, X_test, y_test = cancer
    report = small.report(X_test, y_test, labels=y, time=False)
    assert report.measures["student"]["accuracy"].value == pytest.approx(
        (small.predict(X_test) == y_test).mean()
    )
    assert "baseline" in report.measures
    assert 0.9 < report.retention <= 1.1
    assert "keeps" in str(report)
    assert json.loads(json.dumps(report.to_dict()))


@pytest.mark.usefixtures("quick_baselines", "quick_flows")
@pytest.mark.parametrize("inputs", ["munge", "auto"])
def test_a_module_is_trained_in_place(cancer, inputs):
    forest, X, y, X_test, _ = cancer
    own = nn.Sequential(nn.BatchNorm1d(X.shape[1]), nn.Linear(X.shape[1], 2))
    before = copy.deepcopy(own)
    result = compress(forest, X, own, **QUICK | {"inputs": inputs, "lr": 0.02})
    assert result.student is own
    assert (result.predict(X_test) == forest.predict(X_test)).mean() > 0.85
    assert not torch.equal(own[1].weight, before[1].weight)
    # the same student on labels starts from the module as it was, and leaves it alone
    trained = copy.deepcopy(own.state_dict())
    result.report(X_test, labels=y, time=False)
    assert all(torch.equal(own.state_dict()[name], value) for name, value in trained.items())


def test_a_student_that_is_its_own_teacher_is_refused():
    teacher, X = nn.Linear(3, 2), np.random.default_rng(0).normal(size=(60, 3)).astype("f")

    def wrapped(x):
        return teacher(torch.as_tensor(x)).detach().numpy()

    for given in (teacher, [teacher, nn.Linear(3, 2)], wrapped):
        with refused("student", "shares parameters with the teacher"):
            compress(given, X, teacher, task="regression", **QUICK)
        with refused("student", "shares parameters with the teacher"):
            compress(given, X, nn.Sequential(teacher), task="regression", **QUICK)


def test_the_student_on_labels_is_announced_and_trained_once(cancer, capsys):
    forest, X, y, X_test, _ = cancer
    result = compress(forest, X, "tree", **QUICK | {"pool": 500, "progress": True})
    assert "labels alone" not in capsys.readouterr().err
    first = result.report(X_test, labels=y, time=False).measures["baseline"]
    assert capsys.readouterr().err.count("training the same student on the labels alone") == 1
    assert result.report(X_test, labels=list(y), time=False).measures["baseline"] == first
    assert "labels alone" not in capsys.readouterr().err
    result.report(X_test, labels=1 - y, time=False)
    assert "training the same student" in capsys.readouterr().err


def test_it_is_read_back_without_its_teacher(cancer, small, tmp_path):
    small.save(tmp_path)
    again = lb.load(tmp_path)
    assert isinstance(again, Compressed)
    np.testing.assert_array_equal(again.predict_proba(cancer[3]), small.predict_proba(cancer[3]))
    assert again.predict(cancer[3]).tolist() == small.predict(cancer[3]).tolist()
    with refused("report", "without its teacher"):
        again.report(cancer[3])


def test_it_is_exported(cancer, small, tmp_path):
    path = small.export(tmp_path / "student.onnx")
    session = onnxruntime.InferenceSession(str(path))
    found = session.run(None, {"x": cancer[3].astype(np.float32)})[0]
    np.testing.assert_allclose(found, small.predict_proba(cancer[3]), atol=1e-5)


def test_strings_are_class_names(cancer):
    _, X, y, X_test, _ = cancer
    names = np.where(y == 0, "malignant", "benign")
    model = LogisticRegression(max_iter=5000).fit(X, names)
    result = compress(model, X, "linear", **QUICK)
    assert set(result.predict(X_test)) <= {"malignant", "benign"}
    assert (result.predict(X_test) == model.predict(X_test)).mean() > 0.9


def test_regression_in_its_own_units():
    X, y = make_friedman1(600, noise=0.1, random_state=0)
    y = 1e6 + 1e4 * y
    forest = RandomForestRegressor(30, random_state=0).fit(X[:400], y[:400])
    result = compress(forest, X[:400], (20,), **QUICK | {"steps": 1500})
    assert result.task == "regression"
    teacher, student = forest.predict(X[400:]), result.predict(X[400:])
    assert student.shape == (200,)
    assert 1 - ((teacher - student) ** 2).mean() / teacher.var() > 0.85
    assert result.report(X[400:], y[400:], time=False).retention > 0.85


def test_several_labels_at_once():
    X, y = make_classification(400, 8, n_informative=6, random_state=0)
    Y = np.stack([y, X[:, 0] > 0], 1).astype(int)
    forest = KNeighborsClassifier(15).fit(X, Y)
    result = compress(forest, X, (20,), **QUICK)
    assert result.task == "multilabel"
    assert result.predict_proba(X).shape == (400, 2)
    assert (result.predict(X) == forest.predict(X)).mean() > 0.9


def test_a_torch_teacher_is_asked_by_the_loop_and_its_derivatives_are_matched(cancer):
    X = torch.tensor(cancer[1][:, :5], dtype=torch.float32)
    X = (X - X.mean(0)) / X.std(0)
    torch.manual_seed(0)
    teacher = lb.MLP(5, 30, 3)
    loss = lb.losses.cross_entropy() + 0.1 * lb.losses.derivative_error()
    result = compress(teacher, X, (20,), loss=loss, **QUICK)
    assert "derivative_error" in result.history
    assert (result.predict(X) == teacher(X).argmax(1).numpy()).mean() > 0.9


def test_a_torch_regression_in_its_own_units(cancer):
    X = torch.tensor(cancer[1][:, :5], dtype=torch.float32)
    X = (X - X.mean(0)) / X.std(0)

    class Sum(nn.Module):
        def forward(self, x):
            return 1000 + 50 * x.sum(1, keepdim=True).tanh()

    result = compress(Sum(), X, (20,), task="regression", **QUICK | {"steps": 1500})
    teacher, student = Sum()(X)[:, 0].numpy(), result.predict(X)
    assert 1 - ((teacher - student) ** 2).mean() / teacher.var() > 0.95


def test_a_torch_teacher_of_another_precision():
    X, teacher = torch.randn(200, 3), lb.MLP(3, 8, 2, generator=torch.Generator().manual_seed(0))
    ask = QUICK | {"loss": lb.losses.cross_entropy() + 0.1 * lb.losses.derivative_error()}
    result = compress(teacher.double(), X, (20,), **ask)
    assert next(teacher.parameters()).dtype == torch.float64
    assert (result.predict(X) == teacher(X.double()).argmax(1).numpy()).mean() > 0.9


def test_derivatives_of_a_forest_are_refused_with_a_way_out(cancer):
    with raises_about(lb.NotDifferentiableError, "noise", "surrogate"):
        compress(cancer[0], cancer[1], loss=lb.losses.derivative_error(), **QUICK)


@pytest.mark.parametrize("student", ["tree", "boosted"])
def test_trees_are_fitted_saved_and_exported(cancer, student, tmp_path):
    forest, X, _, X_test, _ = cancer
    result = compress(forest, X, student, **QUICK)
    assert (result.predict(X_test) == forest.predict(X_test)).mean() > 0.9
    again = Compressed.load(result.save(tmp_path))
    np.testing.assert_array_equal(again.predict_proba(X_test), result.predict_proba(X_test))
    path = result.export(tmp_path / "tree.onnx")
    found = onnxruntime.InferenceSession(str(path)).run(None, {"x": X_test.astype(np.float32)})[0]
    np.testing.assert_allclose(found, result.predict_proba(X_test), atol=1e-5)


def test_a_module_that_gives_probabilities_is_taken_at_its_word(cancer, tmp_path):
    forest, X, _, X_test, _ = cancer
    torch.manual_seed(0)
    layers = nn.BatchNorm1d(30), nn.Linear(30, 2), nn.Softmax(1)
    result = compress(forest, X, nn.Sequential(*layers), lr=0.02, **QUICK)
    with torch.no_grad():
        said = result.student.eval()(torch.tensor(X_test, dtype=torch.float32)).numpy()
    np.testing.assert_allclose(result.predict_proba(X_test), said, atol=1e-6)
    path = result.export(tmp_path / "student.onnx")
    found = onnxruntime.InferenceSession(str(path)).run(None, {"x": X_test.astype(np.float32)})[0]
    np.testing.assert_allclose(found, said, atol=1e-5)


def test_a_constant_teacher_has_a_constant_student():
    X = np.random.default_rng(0).normal(size=(100, 3))
    result = compress(lambda x: np.full(len(x), 5.0), X, (4,), task="regression", **QUICK)
    np.testing.assert_allclose(result.predict(X), 5.0)


def test_a_tree_of_inputs_of_ones_own(cancer):
    source = lb.inputs.Munge(cancer[1].astype(np.float32), swap=0.3)
    result = compress(cancer[0], cancer[1], "tree", **QUICK | {"inputs": source})
    assert (result.predict(cancer[3]) == cancer[0].predict(cancer[3])).mean() > 0.9


def test_inputs_are_chosen_where_students_are_measured(cancer):
    result = compress(cancer[0], cancer[1], (16,), **QUICK | {"inputs": "auto", "steps": 300})
    tried = {entry["inputs"]: entry["divergence"] for entry in result.tried}
    assert set(tried) == {"data", "munge", "noise"}
    assert result.inputs in ("munge", min(tried, key=tried.get))


def test_a_student_grows_until_it_keeps_enough(cancer):
    forest, X, *_ = cancer
    result = compress(forest, X, "auto", keep=0.9, **QUICK)
    assert result.tried[-1]["retention"] >= 0.9
    assert all(entry["retention"] < 0.9 for entry in result.tried[:-1])
    largest = result.tried[0]["bytes"] + 10
    limited = compress(forest, X, "auto", keep=1.0, max_bytes=largest, **QUICK)
    assert len(limited.tried) == 1


def test_callbacks_hear_of_the_student_and_not_of_short_runs(cancer):
    heard = []
    ask = QUICK | {"inputs": "auto", "steps": 20, "pool": 800, "every": 10}
    compress(cancer[0], cancer[1], (4,), callbacks=lambda entry: heard.append(entry["step"]), **ask)
    assert heard == [10, 20]


@pytest.mark.slow
@pytest.mark.parametrize(
    "choice", [{"inputs": "auto"}, {"student": "auto", "keep": 1.0, "max_bytes": 4000}]
)
def test_checkpoints_of_what_is_tried_do_not_meet(cancer, choice, tmp_path):
    forest, X, y, *_ = cancer
    ask = QUICK | {"student": (6,), "steps": 20, "pool": 300} | choice
    plain, kept = (lb.compress(forest, X, **ask, checkpoint=at) for at in (None, tmp_path / "c"))
    for a, b in zip(plain.student.parameters(), kept.student.parameters(), strict=True):
        assert torch.equal(a, b)
    again = lb.compress(forest, X, **ask, checkpoint=tmp_path / "c")  # finds itself done
    assert again.tried == kept.tried
    on_labels = [each.on_labels(y).student.parameters() for each in (plain, kept)]
    for a, b in zip(*on_labels, strict=True):
        assert torch.equal(a, b)


def test_labels_are_mixed_in(cancer):
    forest, X, y, X_test, _ = cancer
    flipped = compress(
        forest, X, (16,), labels=1 - y, label_weight=1.0, **QUICK | {"inputs": "data"}
    )
    assert (flipped.predict(X_test) == forest.predict(X_test)).mean() < 0.2
    unlabelled = np.full(len(y), np.nan)
    same = compress(forest, X, (16,), labels=unlabelled, **QUICK)
    plain = compress(forest, X, (16,), **QUICK)
    np.testing.assert_allclose(same.predict_proba(X), plain.predict_proba(X), atol=1e-6)


def test_rows_that_the_teacher_knows_by_heart_are_labelled_out_of_fold(cancer):
    _, X, y, *_ = cancer
    learner = KNeighborsClassifier(1).fit(X, y)  # says of each of its rows what it was told
    noisy = np.where(np.random.default_rng(0).random(len(y)) < 0.3, 1 - y, y)
    learner = KNeighborsClassifier(1).fit(X, noisy)
    result = compress(learner, X, (4,), labels=noisy, label_weight=0.0, teacher_folds=4, **QUICK)
    targets = result.problem.targets
    assert (targets.argmax(1) == noisy[result.problem.index]).mean() < 0.75


def test_the_cache_answers_the_second_time(cancer, tmp_path):
    forest, X, *_ = cancer
    asked = []

    def teacher(rows):
        asked.append(len(rows))
        return forest.predict_proba(rows)

    ask = QUICK | {"cache": tmp_path, "cache_key": "forest", "held_out_fraction": 0.0}
    first = compress(teacher, X, (4,), **ask)
    before = sum(asked)
    second = compress(teacher, X, (4,), **ask)
    assert sum(asked) - before <= 100  # it is only looked at
    np.testing.assert_array_equal(first.predict_proba(X), second.predict_proba(X))


def test_a_function_may_answer_with_a_frame():
    pandas = pytest.importorskip("pandas")
    X = np.random.default_rng(0).normal(size=(60, 3))

    def teacher(rows):
        p = 1 / (1 + np.exp(-rows[:, 0]))
        return pandas.DataFrame({"no": 1 - p, "yes": p})

    result = compress(teacher, X, (4,), **QUICK | {"steps": 5})  # without a warning
    assert result.task == "classification"


def test_a_source_of_ones_own(cancer):
    forest, X, *_ = cancer
    source = lb.inputs.Munge(X.astype(np.float32), swap=0.3)
    result = compress(forest, X, (8,), **QUICK | {"inputs": source, "steps": 60})
    assert result.steps == 60


@pytest.mark.parametrize(
    ("ask", "argument", "received", "expected"),
    [
        ({"inputs": "mungo"}, "inputs", "'mungo'", "did you mean 'munge'"),
        ({"pool": 0}, "pool", "^0$", ""),
        ({"steps": 0}, "steps", "^0$", ""),
        ({"keep": 99}, "keep", "^99$", ""),
        ({"held_out_fraction": 1.5}, "held_out_fraction", r"^1\.5$", ""),
        ({"label_weight": 2}, "label_weight", "^2$", ""),
        ({"optimiser": "sgd"}, "optimiser", "an unknown name", "did you mean 'optimizer'"),
        ({"teacher_folds": 3}, "labels", "^None$", ""),
        ({"labels": [1, 2]}, "labels", "^2 labels$", ""),
        ({"student": "treee"}, "student", "'treee'", ""),
        ({"loss": "cross_entropi"}, "loss", "'cross_entropi'", "did you mean 'cross_entropy'"),
    ],
)
def test_what_cannot_be_is_refused(cancer, ask, argument, received, expected):
    with refused(argument, received, expected=expected):
        compress(cancer[0], cancer[1][:60], **QUICK | {"steps": 5} | ask)


def test_predictions_leave_a_student_in_its_mode():
    student = nn.Sequential(nn.Dropout(), nn.Linear(2, 2))
    one, two = (predictions(student, torch.ones(5, 2), "classification") for _ in "ab")
    np.testing.assert_array_equal(one, two)
    assert student.training
    assert student[0].training


def test_no_input_is_labelled_twice(cancer):
    forest, X, *_ = cancer
    seen = []

    def teacher(x):
        seen.append(np.asarray(x))
        return forest.predict_proba(x)

    compress(teacher, X, task="classification", pool=10_500, steps=20, progress=False)
    every = np.concatenate(seen)
    assert len(every) > 20_000  # two kinds of inputs were tried, with 10,000 each
    assert len(every) - len(np.unique(every, axis=0)) <= 100  # those that it was tried at first
