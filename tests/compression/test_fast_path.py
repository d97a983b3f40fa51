r"""Few rows in NumPy: the answers that torch gives, and torch itself where that is not sure."""

import copy
import pickle
import warnings

import numpy as np
import pytest
import torch
from sklearn.datasets import make_classification, make_friedman1
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from torch import nn

import limbeck as lb
from limbeck.compression.compress import compress
from limbeck.compression.fast_path import ROWS, NumpyFastPath
from limbeck.compression.rows import ArrayFormat
from limbeck.compression.students import predictions
from limbeck.models import MLP, Preprocessed
from limbeck.models.tree import TreeArrays, Trees
from tests.refusals import refused

QUICK = {
    "progress": False, "device": "cpu", "engine": "eager", "steps": 60, "pool": 300,
    "inputs": "munge",
}  # fmt: skip
X, Y = make_classification(120, 6, n_informative=4, n_classes=3, random_state=0)
X[:, 5] = 2.0  # a constant column is ignored


def three(x):
    return 1 / (1 + np.exp(-np.asarray(x)[:, :3]))


@pytest.fixture(scope="module")
def forest():
    return RandomForestClassifier(10, random_state=0).fit(X, Y)


@pytest.fixture
def net(forest):
    return compress(forest, X, (8, 5), **QUICK)


def in_torch(made, rows):
    form = made.settings.get("student_output")
    return predictions(made.student, made.row_format.encode(rows), made.task, form)


TEACHERS = {
    "classes": (X, lambda: RandomForestClassifier(5, random_state=0).fit(X, Y), {}),
    "labels": (X, lambda: three, {"task": "multilabel"}),
    "values": (X, lambda: lambda x: 1e4 + 100 * np.asarray(x)[:, 0], {}),
    "many values": (X, lambda: lambda x: np.asarray(x)[:, :4] ** 2, {"task": "regression"}),
}
STUDENTS = {
    "net": (8, 5), "linear": "linear", "tree": "tree", "boosted": "boosted",
    "forest": RandomForestRegressor(3, max_leaf_nodes=5, random_state=0),
}  # fmt: skip


@pytest.mark.parametrize("student", STUDENTS)
@pytest.mark.parametrize("task", TEACHERS)
def test_as_in_torch(task, student):
    rows, teacher, options = TEACHERS[task]
    made = compress(teacher(), rows, STUDENTS[student], **QUICK, **options)
    few = NumpyFastPath(
        made.student, ArrayFormat((6,)), made.task, made.settings.get("student_output")
    )
    for n, kind in ((1, np.float64), (2, np.float32)):
        asked = rows[:n].astype(kind)
        found = few(asked)
        assert found is not None
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, in_torch(made, asked), rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(found, made._predictions(asked))
    np.testing.assert_array_equal(few(torch.tensor(asked)), found)  # tensors of float32 as well


@pytest.mark.parametrize("hidden", ["relu", "tanh"])
@pytest.mark.parametrize("bias", [True, False])
def test_nets_without_scaling_and_images(hidden, bias):
    generator = torch.Generator().manual_seed(0)
    bare = MLP(12, 7, 3, hidden=hidden, bias=bias, generator=generator)
    scaled = Preprocessed(bare, torch.randn(3, 4, generator=generator), torch.rand(3, 4))
    x = np.random.default_rng(0).normal(size=(5, 3, 4))
    for student in (bare, scaled):
        found = NumpyFastPath(student, ArrayFormat((3, 4)), "classification", None)(x)
        expected = predictions(student, torch.tensor(x).float(), "classification")
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["probabilities", "logits", "values", "labels", "label_logits"])
def test_trees_at_their_thresholds_and_with_pure_leaves(kind):
    value = np.array([[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]])
    tree = TreeArrays(
        left=np.array([1, -1, -1]), right=np.array([2, -1, -1]), feature=np.array([1, 0, 0]),
        threshold=np.array([0.1, 0.0, 0.0], np.float32), missing_left=np.ones(3, bool),
        value=value, weight=np.array([4.0, 2.0, 2.0]),
    )  # fmt: skip
    student = Trees([tree], 2, kind)
    task = {"values": "regression", "labels": "multilabel", "label_logits": "multilabel"}.get(kind)
    task = task or "classification"
    edge = np.float32(0.1)
    x = np.array([[9.0, edge], [9.0, np.nextafter(edge, np.float32(1))], [9.0, -1.0]], np.float32)
    found = NumpyFastPath(student, ArrayFormat((2,)), task, None)(x)
    # numbers up to the threshold are on one side
    np.testing.assert_allclose(found[0], found[2], rtol=1e-6)
    assert (found[0] != found[1]).all()
    np.testing.assert_allclose(found, predictions(student, torch.tensor(x), task), rtol=1e-5)
    if task != "regression":
        assert (found > 0).all()  # so that there are logarithms


@pytest.mark.parametrize("form", ["probabilities", "logits"])
def test_labels_that_are_probabilities_are_left_as_they_are(form):
    net = MLP(6, 4, 3, generator=torch.Generator().manual_seed(0))
    x = X[:3].astype(np.float32)
    found = NumpyFastPath(net, ArrayFormat((6,)), "multilabel", form)(x)
    raw = net(torch.tensor(x)).detach().double()
    expected = raw if form == "probabilities" else raw.sigmoid()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_student_that_is_trained_on_stays_in_step(net):
    before = net.predict_proba(X[:1])
    with torch.no_grad():
        for parameter in net.student.parameters():
            parameter.add_(0.1)
    after = net.predict_proba(X[:1])
    assert abs(after - before).max() > 1e-3
    np.testing.assert_allclose(after, in_torch(net, X[:1]), atol=1e-6)


CHANGES = {
    "another student": lambda made: setattr(made, "student", copy.deepcopy(made.student).double()),
    "another type": lambda made: made.student.double(),
    "another layer": lambda made: made.student.network.layers.__setitem__(
        0, nn.Linear(made.student.encoder.width, 8)
    ),
    "another parameter": lambda made: setattr(
        made.student.network.layers[0],
        "weight",
        nn.Parameter(torch.ones(8, made.student.encoder.width)),
    ),
    "other numbers": lambda made: setattr(
        made.student.network.layers[0].weight, "data", torch.ones(8, made.student.encoder.width)
    ),
    "another scale": lambda made: setattr(made.student.encoder, "scale", torch.full((5,), 3.0)),
    "other knots": lambda made: made.student.encoder.lower.add_(0.5),
    "a hook": lambda made: made.student.network.register_forward_hook(lambda m, i, o: 3 * o),
    "other units": lambda made: made.student.network.layers[-1].register_forward_pre_hook(
        lambda m, i: (i[0] + 1,)
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_parts_that_are_replaced_are_noticed(net, change):
    before = net.predict_proba(X[:1])
    CHANGES[change](net)
    after = net.predict_proba(X[:1])
    np.testing.assert_allclose(after, in_torch(net, X[:1]), atol=1e-6)
    if change not in ("another student", "another type"):
        assert abs(after - before).max() > 1e-4


def test_trees_that_are_filled_again_are_noticed(forest):
    one = compress(forest, X, "tree", **QUICK)
    assert one.predict_proba(X[:1]) is not None
    state = one.student.state_dict()
    flipped = {name: t.clone() for name, t in state.items()}
    flipped["value"] = flipped["value"].flip(1)
    one.student.load_state_dict(flipped)
    np.testing.assert_allclose(one.predict_proba(X[:2]), in_torch(one, X[:2]), atol=1e-6)


@pytest.mark.parametrize(
    ("rows", "received"),
    [
        (X[:1, :5], r"rows of shape \(5,\)"),
        (np.zeros((0, 6)), "^no data"),
        (np.full((1, 6), np.nan), "NaN or infinite"),
        (np.full((1, 6), np.inf), "NaN or infinite"),
        (np.full((1, 6), 1e300), "beyond float32"),
        (X[0], r"shape \(6,\)"),
        (np.array([["a"] * 6]), "^strings$"),
    ],
)
def test_no_check_is_left_out(net, rows, received):
    net.predict_proba(X[:1])
    with refused("X", received):
        net.predict_proba(rows)


def test_far_away_numbers_do_not_warn(net):
    far = np.full((1, 6), 1e36)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = net.predict_proba(far), net.predict_proba(np.full((1, 6), 1e29))
    assert found[0].shape == found[1].shape == (1, 3)
    np.testing.assert_allclose(found[0], in_torch(net, far))


def test_what_is_left_to_torch(net):
    few = NumpyFastPath(net.student, ArrayFormat((6,)), "classification", "logits")
    many = np.repeat(X[:1], ROWS + 1, axis=0)
    assert few(many[:-1]) is not None
    assert few(many) is None
    assert few(X[:1].tolist()) is None
    assert few(torch.tensor(X[:1])) is None  # of float64
    assert few(X[:1].astype(int)) is None
    assert (
        NumpyFastPath(nn.Linear(6, 3), ArrayFormat((6,)), "classification", "logits")(X[:1]) is None
    )
    probit = MLP(6, 4, 3, hidden="probit")
    assert NumpyFastPath(probit, ArrayFormat((6,)), "classification", None)(X[:1]) is None
    assert NumpyFastPath(probit.double(), ArrayFormat((6,)), "classification", None)(X[:1]) is None


def test_modules_of_the_users_own_and_several_inputs_still_answer():
    x, y = make_friedman1(80, random_state=0)
    forest = RandomForestRegressor(5, random_state=0).fit(x, y)
    made = compress(forest, x, nn.Sequential(nn.Linear(10, 4), nn.ReLU(), nn.Linear(4, 1)), **QUICK)
    assert made.predict(x[:1]).shape == (1,)
    np.testing.assert_allclose(made.predict(x[:1]), made.predict(x)[:1], rtol=1e-5)


@pytest.mark.parametrize("student", [(8,), "tree"])
def test_results_are_pickled_and_copied_after_they_have_predicted(forest, student):
    made = compress(forest, X, student, labels=Y, **QUICK)
    expected = made.predict_proba(X[:2])
    for other in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
        np.testing.assert_array_equal(other.predict_proba(X[:2]), expected)
        assert other._fast.student is other.student
        assert other.problem.targets.shape == (120, 3)


def aged(rows):
    p = np.clip(np.asarray(rows["age"], float) / 100, 0, 1)
    return np.stack([p, 1 - p], 1)


@pytest.mark.parametrize("student", [(8,), "linear", "tree", "boosted"], ids=str)
def test_rows_of_tables_are_as_in_torch(student):
    from tests.tables.frames import frame

    df = frame(80)
    table = lb.Table(df, categories=["code", "share", "street"])
    made = compress(aged, df, student, table=table, task="classification", **QUICK)
    rows = frame(3, seed=5)
    rows.loc[1, "street"] = "elsewhere"
    for asked in (rows, rows[1:2]):
        found = made.predict_proba(asked)
        if len(asked) <= ROWS:
            np.testing.assert_array_equal(made._fast(asked), found)
        np.testing.assert_allclose(found, in_torch(made, asked), rtol=1e-6, atol=1e-6)
    assert made._fast({"age": [3]}) is None
    with refused("X['age']", "1 missing values"):
        made.predict(rows[1:2].assign(age=np.nan))
    with torch.no_grad():
        made.student.encoder.scale.mul_(0.5)
    assert in_torch(made, rows) is not None
    np.testing.assert_allclose(made.predict_proba(rows), in_torch(made, rows), rtol=1e-6, atol=1e-6)
    made.student.encoder.mean = made.student.encoder.mean + 3
    np.testing.assert_allclose(made.predict_proba(rows), in_torch(made, rows), rtol=1e-6, atol=1e-6)


def test_rows_without_a_length_are_left_to_others(net):
    from scipy import sparse

    expected = net.predict_proba(X[:2])
    np.testing.assert_allclose(net.predict_proba(sparse.csr_matrix(X[:2])), expected, atol=1e-6)
    with pytest.raises(lb.ArgumentError):
        net.predict_proba(np.array(3.0))
