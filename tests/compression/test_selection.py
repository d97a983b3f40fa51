r"""Nets and boosted forests at held-out rows, under budgets, and the verdict on a student."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

import limbeck as lb
from limbeck.compression import selection
from limbeck.compression.students import Forest, tree_encoder
from limbeck.models.tree_fit import fit_boosted, lightgbm
from limbeck.teachers import fingerprints
from limbeck.teachers.row_teacher import FunctionTeacher
from tests.refusals import refused

pytest.importorskip("lightgbm")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(1500, 4)).astype(np.float32)
QUICK = {"task": "regression", "progress": False, "device": "cpu", "inputs": "data"}


def stairs(x):
    r"""Steps that trees have and nets have not."""
    return np.floor(2 * x[:, 0]) + 3.0 * (x[:, 1] > 0.3) * (x[:, 2] > -0.2)


def three(x):
    return np.stack([stairs(x), x[:, 0] * x[:, 1], x[:, 3] ** 2], 1)


# boosted students


@pytest.mark.parametrize(
    ("task", "targets"),
    [
        ("regression", three(X)),
        ("classification", np.exp(three(X)) / np.exp(three(X)).sum(1, keepdims=True)),
        ("multilabel", 1 / (1 + np.exp(-three(X)))),
    ],
)
def test_lightgbm_and_scikit_learn_come_as_near(monkeypatch, task, targets):
    errors, centre = [], targets.mean(0)
    for library in (pytest.importorskip("lightgbm"), None):
        monkeypatch.setattr("limbeck.models.tree_fit.lightgbm", lambda library=library: library)
        trees = fit_boosted(X, targets, task=task, trees=40)
        assert len(trees) == 40
        y = trees(torch.tensor(X)).double()
        y = y.softmax(1) if task == "classification" else y.sigmoid() if task != "regression" else y
        errors.append(((y.numpy() - targets) ** 2).mean() / ((targets - centre) ** 2).mean())
    assert max(errors) < 0.06


def test_without_lightgbm_scikit_learn_grows_trees(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    assert lightgbm() is None
    result = lb.compress(stairs, X[:300], "boosted", **QUICK)
    assert result.engine == "scikit-learn"
    assert selection._forests(result.problem) is False


def test_rows_of_no_weight_do_not_count_and_seeds_decide():
    y, w = three(X).copy(), np.ones(len(X))
    y[::2], w[::2] = 1e3, 0
    trees = fit_boosted(X, y, task="regression", sample_weight=w)
    assert (trees(torch.tensor(X[1::2])) - torch.tensor(y[1::2])).abs().mean() < 0.5
    one, two, other = (fit_boosted(X, three(X), task="regression", seed=s) for s in (0, 0, 1))
    x = torch.tensor(X)
    assert torch.equal(one(x), two(x))
    assert not torch.equal(one(x), other(x))


@pytest.mark.parametrize("seed", range(4))
def test_few_rows_with_sure_targets_can_be_boosted(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(120, 3)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] > 0).astype(int) + (x[:, 2] > 1)
    trees = fit_boosted(x, np.eye(3)[y], seed=seed, trees=200, learning_rate=1.0)
    assert (trees(torch.tensor(x)).argmax(1).numpy() == y).mean() > 0.95


def test_a_constant_target_is_one_tree_of_one_leaf():
    trees = fit_boosted(X[:5], np.full(5, 7.0), task="regression")
    assert torch.equal(trees(torch.tensor(X[:2])), torch.full((2, 1), 7.0))


def test_many_categories_stand_in_the_order_of_their_targets():
    pd = pytest.importorskip("pandas")
    towns = [f"town {k}" for k in range(30)]
    df = pd.DataFrame({"town": RNG.choice(towns, 900), "x": RNG.normal(size=900)})

    def worth(rows):
        return rows["town"].str.slice(5).astype(float).to_numpy() * 7 % 30

    result = lb.compress(worth, df, "boosted", **QUICK)
    assert np.corrcoef(result.predict(df), worth(df))[0, 1] ** 2 > 0.999
    encoder = tree_encoder(
        result.row_format, "boosted", result.problem.x, result.problem.targets, "regression"
    )
    place = encoder.embeddings[0].weight[:30, 0].detach().numpy()
    order = [result.row_format.table.varying[0].categories.index(town) for town in towns]
    values = np.arange(30) * 7 % 30
    assert abs(np.corrcoef(place[order], values)[0, 1]) > 0.99
    assert encoder.embeddings[0].weight[30].abs().max() < 1e-6  # an unknown town: the mean


# which student


def test_the_default_is_a_forest_where_that_is_nearer():
    result = lb.compress(
        stairs,
        X,
        task="regression",
        progress=False,
        device="cpu",
        pool=1000,
        batch_size=1000,
        engine="eager",
    )
    assert isinstance(result.recipe.student, Forest)
    assert any("boosted trees" in note and "student=(50, 30)" in note for note in result.notes)
    assert 1 - ((result.predict(X) - stairs(X)) ** 2).mean() / stairs(X).var() > 0.95
    assert {"student", "divergence", "bytes"} <= result.tried[-1].keys()


def test_no_student_of_more_than_half_of_the_teachers_bytes_is_tried(monkeypatch):
    options = {"task": "regression", "progress": False, "device": "cpu", "engine": "eager"}
    options |= {"inputs": "auto", "pool": 1000}
    monkeypatch.setattr(selection, "NEAR", 0.0)
    for size, tried in ((10**9, True), (1000, False)):
        monkeypatch.setattr(FunctionTeacher, "bytes", lambda self, size=size: size)
        result = lb.compress(stairs, X, **options)
        assert any("boosted" in str(trial.get("student")) for trial in result.tried) == tried
        assert any("student" in trial for trial in result.tried) == tried
    assert result.recipe.student == (50, 30)


FEW = {"task": "regression", "progress": False, "device": "cpu", "engine": "eager", "pool": 1000}


def smooth(x):
    return np.sin(x[:, 0]) * x[:, 1] + x[:, 2]


def test_inputs_are_compared_by_small_forests():
    result = lb.compress(smooth, X[:400], (4,), steps=5, **FEW)
    tried = {trial["inputs"]: trial["divergence"] for trial in result.tried}
    assert set(tried) == {"data", "munge", "noise"}
    best = min(tried, key=tried.get)
    assert result.inputs in ("munge", best)  # a net's short run has to agree
    probe = replace(result.recipe, student=selection.PROBE)
    again = selection.attempt(result.problem, probe)
    assert again.divergence == pytest.approx(tried[result.inputs])
    assert max(tried.values()) < 0.3  # of the net, trained for 5 steps, it is above 0.9


@pytest.mark.parametrize("name", ["NEAR", "MOST_WORK"])
def test_a_larger_net_is_trained_twice_as_long_where_it_pays(monkeypatch, name):
    def nets():
        result = lb.compress(smooth, X[:800], batch_size=1000, **FEW)
        return result, [t["student"] for t in result.tried if isinstance(t.get("student"), tuple)]

    monkeypatch.setattr(selection, "NEAR", 1e-9)
    monkeypatch.setattr(selection, "MIN_GAIN", 10.0)  # it is taken in any case
    result, tried = nets()
    assert tried == [selection.DEFAULT, selection.LARGER]
    if result.recipe.student == selection.LARGER:
        assert result.steps == 2000  # a default net has 1,000
    monkeypatch.setattr(selection, name, 1.0)  # all is near, or any work is too much
    assert selection.LARGER not in nets()[1]


def test_auto_takes_what_a_budget_allows():
    settings = {"task": "regression", "progress": False, "device": "cpu", "steps": 60}
    result = lb.compress(stairs, X, "auto", inputs="data", keep=0.97, **settings)
    assert isinstance(result.recipe.student, Forest)
    kinds = {isinstance(trial["student"], str) for trial in result.tried}
    assert kinds == {True, False}
    retained = [trial["retention"] for trial in result.tried]
    assert retained[-1] >= 0.97 > max(retained[:-1])
    small = lb.compress(stairs, X, "auto", inputs="data", max_bytes=3000, **settings)
    assert sum(t.numel() * t.element_size() for t in small.student.state_dict().values()) <= 3000


def test_budgets_that_admit_nothing_and_budgets_of_a_given_student_are_refused():
    settings = {"task": "regression", "progress": False, "device": "cpu", "steps": 5}
    with refused("max_latency", "0.001"):
        lb.compress(stairs, X, "auto", inputs="data", max_latency=0.001, **settings)
    with refused("max_bytes", "10"):
        lb.compress(stairs, X, "auto", inputs="data", max_bytes=10, **settings)
    with refused("max_latency", "5.0 beside student="):
        lb.compress(stairs, X, (3,), max_latency=5, **settings)


def test_a_slow_student_is_not_taken(monkeypatch):
    slow = {"8": 10.0, "16": 10.0}
    monkeypatch.setattr(
        selection, "one_row", lambda a: slow.get(str(_width(a.result.student)), 99.0)
    )
    result = lb.compress(
        stairs, X, "auto", task="regression", inputs="data", steps=5, max_latency=50,
        progress=False, device="cpu",
    )  # fmt: skip
    latencies = {trial["student"]: trial["latency"] for trial in result.tried}
    assert latencies.pop((8,)) == latencies.pop((16,)) == 10.0
    # of nets and of forests, none that is larger than the first slow one
    assert set(latencies.values()) == {99.0}
    assert len(latencies) <= 2
    assert result.recipe.student in {(8,), (16,)}


def _width(student):
    sizes = getattr(getattr(student, "network", None), "sizes", (0, 0))
    return sizes[1] if len(sizes) == 3 else 0


# the verdict


@pytest.mark.usefixtures("quick_flows")
def test_a_poor_student_is_said_to_be_poor(tmp_path):
    settings = {"progress": False, "device": "cpu", "steps": 1, "engine": "eager"}
    result = lb.compress(stairs, X, (2,), task="regression", pool=1000, **settings)
    (note,) = [note for note in result.notes if note.startswith("Doubtful")]
    parts = selection.Attempt(result.problem, result.recipe, result).compared()
    assert len(parts) == 2  # rows, and mixtures of them
    fidelity = max(1 - ((t - p) ** 2).mean() / t.var() for t, p in parts)
    assert f"an R² of at most {fidelity:.3f}" in note
    assert note in str(result)
    assert note in str(result.report(X, time=False))
    result.save(tmp_path / "saved")
    assert note in lb.load(tmp_path / "saved").notes
    good = lb.compress(
        lambda x: x[:, 0], X, "linear", task="regression", **settings | {"steps": 400}
    )
    assert not [note for note in good.notes if note.startswith("Doubtful")]


def test_a_teacher_that_knows_the_rows_by_heart_leaves_a_student_unchecked():
    rng = np.random.default_rng(0)
    noise = {row.tobytes(): value for row, value in zip(X, rng.normal(size=len(X)), strict=True)}

    def teacher(x):
        x = np.asarray(x, X.dtype)
        return 2 * x[:, 0] + np.array([noise.get(row.tobytes(), 0.0) for row in x])

    result = lb.compress(
        teacher, X, "linear", task="regression", steps=300, progress=False, device="cpu"
    )
    rows, mixtures = selection.Attempt(result.problem, result.recipe, result).compared()
    at_rows, at_mixtures = (1 - ((t - p) ** 2).mean() / t.var() for t, p in (rows, mixtures))
    assert at_rows < 0.9 < at_mixtures
    (note,) = [note for note in result.notes if "memorised" in note]
    assert note.startswith("Unchecked")
    assert f"an R² of {at_rows:.3f} to its teacher" in note
    assert f"an R² of {at_mixtures:.3f} to it at mixtures" in note


def test_a_rare_class_that_is_ranked_badly_is_named():
    def rare(x):
        p = 1 / (1 + np.exp(6 - 3 * x[:, 1]))  # which the student does not see
        return np.stack([1 - p, p], 1)

    result = lb.compress(
        rare, X, (2,), task="classification", classes=["no", "fraud"], progress=False, device="cpu",
        steps=1, inputs="data",
    )  # fmt: skip
    assert any("'fraud'" in note and "average precision" in note for note in result.notes)


def test_a_class_too_rare_to_check_is_named():
    def rare(x):
        p = np.where(x[:, 0] > np.quantile(X[:, 0], 0.99), 0.9, 0.001)
        return np.stack([1 - p, p], 1)

    result = lb.compress(
        rare, X, (2,), task="classification", classes=["no", "fraud"], progress=False, device="cpu",
        steps=1, pool=len(X),
    )  # fmt: skip
    expected = result.problem.compared_targets[: len(result.problem.held_out), 1].sum()
    assert expected < selection.MIN_EXPECTED
    (note,) = [note for note in result.notes if note.startswith("Unchecked")]
    assert f"'fraud' ({expected:.2g})" in note
    assert "'no'" not in note
    assert note in str(result)


def test_a_student_larger_than_its_teacher_is_told():
    from sklearn.tree import DecisionTreeClassifier

    stump = DecisionTreeClassifier(max_depth=1).fit(X, X[:, 0] > 0)
    options = {"progress": False, "device": "cpu", "inputs": "data", "steps": 5}
    result = lb.compress(stump, X, **options)
    (note,) = [note for note in result.notes if "its teacher" in note]
    own, other = (
        fingerprints.module_bytes(result.student), result.problem.teacher.bytes()
    )  # fmt: skip
    assert own > other
    assert f"{own:,} bytes" in note
    assert f"{other:,}" in note
    assert not lb.compress(stump, X, (50, 30), **options).notes  # the user's own choice


@pytest.mark.usefixtures("quick_flows")
def test_a_teacher_that_memorised_its_rows_is_followed_elsewhere():
    from sklearn.ensemble import RandomForestClassifier

    rng = np.random.default_rng(3)
    x = rng.normal(size=(2000, 4))
    y = (x[:, 0] + x[:, 1] + 1.5 * rng.normal(size=2000) > 0).astype(int)
    forest = RandomForestClassifier(40, random_state=0, n_jobs=1).fit(x, y)
    result = lb.compress(forest, x, progress=False, device="cpu")
    rows, mixed = (
        selection._scores("classification", *part)[1]
        for part in selection.Attempt(result.problem, result.recipe, result).compared()
    )
    new = rng.normal(size=(2000, 4))
    agreement = (result.predict(new) == forest.predict(new)).mean()
    assert rows < selection.ENOUGH - 0.05  # the labels' noise is in the forest
    assert rows < mixed
    assert rows < agreement
