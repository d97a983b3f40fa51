r"""XGBoost, LightGBM and CatBoost: estimators, their own models, their files."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from limbeck.compression.dispatch import as_row_teacher
from tests.refusals import refused

rng = np.random.default_rng(0)
X = rng.normal(size=(80, 4))
TWO = (X[:, 0] > 0).astype(int)
THREE = np.digitize(X[:, 0], [-0.5, 0.5])
NAMES = np.array(["ant", "bee", "cat"])
LABELS = (X[:, :3] > 0.2).astype(int)
VALUES = 5 + 2 * X[:, 0]


@pytest.fixture
def xgboost():
    return pytest.importorskip("xgboost")


@pytest.fixture
def lightgbm():
    return pytest.importorskip("lightgbm")


@pytest.fixture
def catboost():
    return pytest.importorskip("catboost")


def xgb(library, objective: str, y: np.ndarray, **options):
    options |= {"objective": objective, "nthread": 1}
    return library.train(options, library.DMatrix(X, label=y), 3)


def lgb(library, objective, y: np.ndarray, **options):
    options |= {"objective": objective, "verbose": -1, "num_threads": 1}
    return library.train(options, library.Dataset(X, label=y), 3)


def cat(library, kind: str, y: np.ndarray, loss: str | None = None):
    options = {"iterations": 3, "verbose": 0, "allow_writing_files": False, "thread_count": 1}
    options |= {} if loss is None else {"loss_function": loss}
    make = getattr(library, kind)
    return (make(options) if kind == "CatBoost" else make(**options)).fit(X, y)


def agrees(teacher, p: np.ndarray, task: str = "classification") -> None:
    assert teacher.task == task
    p = np.asarray(p, dtype=np.float64)
    p = np.stack([1 - p, p], 1) if p.ndim == 1 and task == "classification" else p
    np.testing.assert_allclose(teacher(X), p.reshape(len(X), -1), atol=1e-6)


# estimators


def test_estimators_follow_the_protocol(xgboost, lightgbm, catboost) -> None:
    few = {"n_estimators": 3, "n_jobs": 1}
    for model in (
        xgboost.XGBClassifier(**few).fit(X, THREE),
        lightgbm.LGBMClassifier(verbose=-1, **few).fit(X, NAMES[THREE]),
        cat(catboost, "CatBoostClassifier", NAMES[THREE]),
    ):
        teacher = as_row_teacher(model)
        agrees(teacher, model.predict_proba(X))
        assert teacher.name == type(model).__name__
        assert teacher.classes.tolist() == np.asarray(model.classes_).tolist()
        assert isinstance(teacher.fingerprint(), str)
        assert teacher.bytes() > 500
        agrees(teacher.refit(X, model.classes_[THREE]), model.predict_proba(X))
    for model in (
        xgboost.XGBRegressor(**few).fit(X, VALUES),
        xgboost.XGBRegressor(**few).fit(X, X[:, :2]),
        lightgbm.LGBMRegressor(verbose=-1, **few).fit(X, VALUES),
        cat(catboost, "CatBoostRegressor", VALUES),
    ):
        agrees(as_row_teacher(model, X), model.predict(X), "regression")


def test_estimators_of_several_labels(xgboost, catboost) -> None:
    for model in (
        xgboost.XGBClassifier(n_estimators=3, n_jobs=1).fit(X, LABELS),
        xgboost.XGBClassifier(n_estimators=3, n_jobs=1).fit(X, LABELS[:, :2]),
        cat(catboost, "CatBoostClassifier", LABELS, "MultiLogloss"),
    ):
        agrees(as_row_teacher(model), model.predict_proba(X), "multilabel")


def test_estimators_fitted_to_frames_take_arrays(xgboost, lightgbm) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=list("abcd"))
    for model in (
        xgboost.XGBClassifier(n_estimators=3, n_jobs=1).fit(frame, TWO),
        lightgbm.LGBMClassifier(verbose=-1, n_estimators=3, n_jobs=1).fit(frame, TWO),
    ):
        agrees(as_row_teacher(model), model.predict_proba(frame))
    booster = xgboost.XGBClassifier(n_estimators=3, n_jobs=1).fit(frame, TWO).get_booster()
    p = booster.predict(xgboost.DMatrix(frame))
    agrees(as_row_teacher(booster, X), p)
    np.testing.assert_allclose(as_row_teacher(booster, frame)(frame)[:, 1], p, atol=1e-6)


# their own models


def test_xgboost_boosters_say_what_they_predict(xgboost) -> None:
    rows = xgboost.DMatrix(X)
    two = xgb(xgboost, "binary:logistic", TWO)
    teacher = as_row_teacher(two, X, classes=["no", "yes"])
    agrees(teacher, two.predict(rows))
    assert teacher.name == "xgboost.Booster"
    assert set(teacher.predict(X)) == {"no", "yes"}
    raw = xgb(xgboost, "binary:logitraw", TWO)
    agrees(as_row_teacher(raw, X), 1 / (1 + np.exp(-raw.predict(rows))))
    three = xgb(xgboost, "multi:softprob", THREE, num_class=3)
    agrees(as_row_teacher(three, X), three.predict(rows))
    hard = xgb(xgboost, "multi:softmax", THREE, num_class=3)  # predicts labels, but knows more
    agrees(as_row_teacher(hard, X), three.predict(rows))
    several = xgb(xgboost, "binary:logistic", LABELS)
    agrees(as_row_teacher(several, X), several.predict(rows), "multilabel")
    for objective in ("reg:squarederror", "count:poisson"):
        values = xgb(xgboost, objective, VALUES.clip(0))
        agrees(as_row_teacher(values, X), values.predict(rows), "regression")
    found = as_row_teacher(three, X)(sparse.csr_array(X))
    np.testing.assert_allclose(found, three.predict(rows), rtol=1e-5)


def test_lightgbm_boosters_say_what_they_predict(lightgbm) -> None:
    two, three = lgb(lightgbm, "binary", TWO), lgb(lightgbm, "multiclass", THREE, num_class=3)
    values = lgb(lightgbm, "regression_l1", VALUES)
    agrees(as_row_teacher(two, X), two.predict(X))
    agrees(as_row_teacher(three, X, classes=NAMES), three.predict(X))
    agrees(as_row_teacher(values, X), values.predict(X), "regression")
    assert as_row_teacher(two, X).name == "lightgbm.Booster"


def test_catboost_models_say_what_they_predict(catboost) -> None:
    three = cat(catboost, "CatBoost", NAMES[THREE], "MultiClass")
    teacher = as_row_teacher(three, X)
    agrees(teacher, three.predict(X, prediction_type="Probability"))
    assert (teacher.name, teacher.classes.tolist()) == ("CatBoost", ["ant", "bee", "cat"])
    two = cat(catboost, "CatBoost", TWO, "Logloss")
    agrees(as_row_teacher(two, X), two.predict(X, prediction_type="Probability"))
    labels = cat(catboost, "CatBoost", LABELS, "MultiLogloss")
    agrees(
        as_row_teacher(labels, X), labels.predict(X, prediction_type="Probability"), "multilabel"
    )
    counts = cat(catboost, "CatBoostRegressor", VALUES.clip(0), "Poisson")
    own = cat(catboost, "CatBoost", VALUES.clip(0), "Poisson")
    agrees(as_row_teacher(own, X), counts.predict(X), "regression")
    with refused("teacher", "a CatBoost that is not fitted"):
        as_row_teacher(catboost.CatBoost(), X)


def test_unknown_objectives_ask_for_the_task(xgboost, lightgbm, catboost) -> None:
    def custom(p, data):
        return p - data.get_label(), np.ones_like(p)

    own = lgb(lightgbm, custom, TWO)
    with refused("task", "'auto', for a model of the objective 'cus"):
        as_row_teacher(own, X)
    agrees(as_row_teacher(own, X, task="regression"), own.predict(X), "regression")
    logits = as_row_teacher(own, X, task="classification", teacher_output="logits")
    agrees(logits, 1 / (1 + np.exp(-own.predict(X))))
    hinge = xgb(xgboost, "binary:hinge", TWO)
    with refused("task", "'binary:hinge'"):
        as_row_teacher(hinge, X)
    with refused("task", "'RMSEWithUncertainty'"):
        as_row_teacher(cat(catboost, "CatBoost", VALUES, "RMSEWithUncertainty"), X)


def test_models_of_their_own_have_content_but_cannot_be_refitted(xgboost, lightgbm) -> None:
    for one, same, other in (
        [xgb(xgboost, "binary:logistic", y) for y in (TWO, TWO, 1 - TWO)],
        [lgb(lightgbm, "binary", y) for y in (TWO, TWO, 1 - TWO)],
    ):
        found = [as_row_teacher(model, X).fingerprint() for model in (one, same, other)]
        assert found[0] == found[1] != found[2]
        assert as_row_teacher(one, X).bytes() > 500
        with refused("teacher_folds"):
            as_row_teacher(one, X).refit(X, TWO)


# their files


@pytest.mark.slow
def test_model_files(xgboost, lightgbm, catboost, tmp_path) -> None:
    three = xgb(xgboost, "multi:softprob", THREE, num_class=3)
    for name in ("model.json", "model.ubj"):
        three.save_model(tmp_path / name)
    lgb(lightgbm, "binary", TWO).save_model(tmp_path / "model.txt")
    cats = cat(catboost, "CatBoostClassifier", NAMES[THREE])
    cats.save_model(tmp_path / "model.cbm")
    expected = {
        "model.json": three.predict(xgboost.DMatrix(X)),
        "model.ubj": three.predict(xgboost.DMatrix(X)),
        "model.txt": lgb(lightgbm, "binary", TWO).predict(X),
        "model.cbm": cats.predict_proba(X),
    }
    for name, p in expected.items():
        path = tmp_path / name
        teacher = as_row_teacher(path, X)
        agrees(teacher, p)
        assert (teacher.name, teacher.bytes()) == (name, path.stat().st_size)
        copy = tmp_path / f"copy-{name}"
        copy.write_bytes(path.read_bytes())
        assert as_row_teacher(str(copy), X).fingerprint() == teacher.fingerprint()
    assert as_row_teacher(tmp_path / "model.cbm", X).classes.tolist() == ["ant", "bee", "cat"]
    other = tmp_path / "other.json"
    xgb(xgboost, "multi:softprob", THREE, num_class=3, max_depth=1).save_model(other)
    assert (
        as_row_teacher(other, X).fingerprint()
        != as_row_teacher(tmp_path / "model.json", X).fingerprint()
    )


def test_catboost_with_categories_is_fitted_anew(catboost):
    import pandas as pd
    from sklearn.base import clone

    import limbeck as lb
    from limbeck.teachers.estimators import cloned

    towns = np.random.default_rng(1).choice(["Leith", "Perth"], 300)
    df = pd.DataFrame({"town": towns, "age": np.arange(300) % 50})
    y = ((df.age > 20) ^ (df.town == "Leith")).astype(int).to_numpy()
    options = {"iterations": 10, "verbose": 0, "allow_writing_files": False, "thread_count": 1}
    model = catboost.CatBoostClassifier(cat_features=["town"], **options)
    with pytest.raises(RuntimeError):
        clone(model)  # scikit-learn refuses it
    fitted = catboost.CatBoostClassifier(cat_features=["town"], **options).fit(df, y)
    again = cloned(fitted).fit(df[:200], y[:200])  # from nothing, not from the fitted trees
    first = cloned(model).fit(df[:200], y[:200])
    np.testing.assert_allclose(again.predict_proba(df), first.predict_proba(df))
    assert fitted.tree_count_ == again.tree_count_ == 10
    quick = {"student": (4,), "inputs": "data", "steps": 5}
    small = clone(lb.DistilledClassifier(model, **quick)).fit(df, y)
    assert small.teacher_.is_fitted()
    assert not model.is_fitted()
    result = lb.compress(fitted, df, labels=y, teacher_folds=2, progress=False, **quick)
    assert len(result.problem.targets) == len(df)
