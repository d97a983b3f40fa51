r"""A mixed table through compress: frames to the teacher, one exported model for all columns."""

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

pandas = pytest.importorskip("pandas")

QUICK = {"progress": False, "device": "cpu", "engine": "eager", "steps": 600, "size": 1500}


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
    from limbeck.compression.tables.export import feeds

    label, probabilities = session.run(["label", "probabilities"], feeds(again.kind.table, frame))
    assert label.tolist() == student.predict(frame).tolist()
    np.testing.assert_allclose(probabilities, student.predict_proba(frame), atol=1e-5)


def test_a_tree_of_a_table_is_read_in_its_own_words(result):
    teacher, _ = result
    frame, _ = people()
    tree = compress(teacher, frame, "tree", inputs="munge", **QUICK)
    rules = tree.rules()
    assert "if age <= 4" in rules  # the labels turn at 45
    assert "if town is not Leith:" in rules
    assert "yes" in rules
    assert "RandomForest" in str(tree) or "Pipeline" in str(tree)
    with pytest.raises(lb.ArgumentError, match="tree"):
        result[1].rules()
