r"""A missing value where the data had none: one rule wherever a student is used.

`predict` used to put the median there with a warning, an ONNX file silently, a NumPy script refused
it, and a net's ONNX file gave a finite number for NaN. Now code that can raise an error refuses it,
and files that cannot (ONNX, torch.export) answer NaN for that row and for no other.
"""

import runpy
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

import limbeck as lb
from limbeck.text import markdown
from tests.refusals import refused

pd = pytest.importorskip("pandas")

QUICK = {"inputs": "data", "steps": 30, "progress": False, "device": "cpu"}
needs_onnx = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("onnxscript", "onnxruntime")),
    reason="ONNX is not installed",
)


def teacher(x):
    z = np.asarray(x, float)[:, 0]
    p = 1 / (1 + np.exp(-z))
    return np.stack([1 - p, p], 1)


def array_rows():
    return np.random.default_rng(0).normal(size=(60, 3))


@pytest.fixture(scope="module", params=[(6,), "tree"], ids=["net", "tree"])
def of_arrays(request):
    options = QUICK if request.param != "tree" else {"inputs": "data", "progress": False}
    return lb.compress(teacher, array_rows(), request.param, **options)


def frame(n=80):
    rng = np.random.default_rng(1)
    return pd.DataFrame(
        {
            "x": rng.normal(size=n),
            "gaps": np.where(rng.random(n) < 0.2, np.nan, rng.normal(size=n)),
            "whole": rng.integers(0, 9, n),
            "town": rng.choice(["Leith", "Perth"], n),
            "word": rng.choice(["a", "b", None], n),
            "flag": rng.random(n) < 0.5,
            "code": rng.choice([0.25, 0.5, 2.0], n),
            "far": 1.7e9 + np.arange(n),
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 99, n), unit="D"),
        }
    )


def of_frame(x):
    return teacher(x[["x"]])


@pytest.fixture(scope="module", params=[(6,), "tree"], ids=["net", "tree"])
def of_tables(request):
    options = QUICK if request.param != "tree" else {"inputs": "data", "progress": False}
    table = lb.Table(frame(), categories=["code"])
    return lb.compress(of_frame, frame(), request.param, table=table, **options)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_predict_refuses_it_in_arrays_of_any_length_and_type(of_arrays, value):
    for n in (1, 3, 50):
        X = array_rows()[:n]
        X[-1, 1] = value
        for given in (X, X.astype(np.float32), torch.tensor(X), X.tolist()):
            with refused("X", "NaN|infin|finite"):
                of_arrays.predict(given)


@pytest.mark.parametrize("column", ["x", "whole", "town", "flag", "code", "far", "day"])
@pytest.mark.parametrize("n", [1, 40])
def test_predict_refuses_it_in_columns_without_gaps(of_tables, column, n):
    for gone in (None, np.nan, pd.NA):
        df = frame().head(n).copy()
        df[column] = df[column].astype(object)
        df.loc[df.index[-1], column] = gone
        if column == "day":
            df[column] = pd.to_datetime(df[column])
        with refused(f"X['{column}']", "1 missing values"):
            of_tables.predict(df)


def test_columns_with_gaps_take_them_and_unknown_categories_are_unknown(of_tables):
    df = frame().head(4)
    df.loc[0, "gaps"] = np.nan
    df.loc[1, "word"] = None
    df.loc[2, "town"] = "elsewhere"
    assert np.isfinite(of_tables.predict_proba(df)).all()
    df.loc[0, "gaps"] = np.inf
    with refused("X['gaps']", "infinity"):
        of_tables.predict(df)


@needs_onnx
def test_an_onnx_file_of_arrays_answers_nan_for_that_row_alone(of_arrays, tmp_path):
    import onnxruntime

    session = onnxruntime.InferenceSession(of_arrays.export(tmp_path / "s.onnx"))
    X = array_rows()[:4].astype(np.float32)
    X[1, 0], X[2, 2] = np.nan, np.inf
    found = session.run(None, {"x": X})[0]
    assert np.isnan(found).all(1).tolist() == [False, True, True, False]
    np.testing.assert_allclose(found[[0, 3]], of_arrays.predict_proba(X[[0, 3]]), atol=1e-5)


@needs_onnx
def test_an_onnx_file_of_a_table_answers_nan_for_that_row_alone(of_tables, tmp_path):
    import onnxruntime

    from limbeck.export.table_onnx import feeds

    session = onnxruntime.InferenceSession(of_tables.export(tmp_path / "s.onnx"))
    df = frame().head(6)
    given = feeds(of_tables.row_format.table, df)
    expected = of_tables.predict_proba(df)
    label, found = session.run(["label", "probabilities"], given)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    for row, (column, value) in enumerate(
        [("x", np.nan), ("whole", np.nan), ("far", np.nan), ("code", np.nan), ("x", np.inf)]
    ):
        given[column][row] = value
    given["town"][5] = "elsewhere"  # unknown, which is something else
    label, found = session.run(["label", "probabilities"], given)
    assert np.isnan(found).all(1).tolist() == [True] * 5 + [False]
    assert label[:5].tolist() == [-1] * 5
    assert label[5] in (0, 1)
    card = (tmp_path / "s.onnx.md").read_text()
    assert "NaN or infinity in a column where the data had no missing values" in card


@pytest.mark.slow
def test_a_program_answers_nan_for_that_row_alone(of_arrays, of_tables, tmp_path):
    program = torch.export.load(of_arrays.export(tmp_path / "s.pt2")).module()
    x = torch.tensor(array_rows()[:4], dtype=torch.float32)
    x[1, 0], x[2, 2] = torch.nan, torch.inf
    assert program(x).isnan().all(1).tolist() == [False, True, True, False]
    program = torch.export.load(of_tables.export(tmp_path / "t.pt2")).module()
    parts = of_tables.row_format.table.encode(frame().head(4))
    expected = of_tables.predict_proba(frame().head(4))
    np.testing.assert_allclose(program(parts).detach(), expected, atol=1e-5)
    parts["x"][1] = torch.nan
    parts["gaps"][2], parts["gaps__missing"][2] = torch.nan, True  # marked, as it may be
    assert program(parts).isnan().all(1).tolist() == [False, True, False, False]


def test_the_card_of_a_table_says_what_the_program_takes(of_tables, tmp_path):
    of_tables.export(tmp_path / "t.pt2")
    card = (tmp_path / "t.pt2.md").read_text()
    assert "does not take raw columns" in card
    assert "| town | (n,) int64 | the number of the category: 0 is 'Leith', 1 is 'Perth'" in card
    assert f"| {markdown('gaps__missing')} | (n,) bool | whether gaps is missing |" in card
    assert "less 17" in card  # the origin of the column that is far from zero


def test_a_numpy_script_refuses_it(of_arrays, of_tables, tmp_path):
    own = runpy.run_path(str(of_arrays.export(tmp_path / "array") / "predict.py"))
    X = array_rows()[:3]
    np.testing.assert_allclose(own["predict"](X), of_arrays.predict_proba(X), atol=1e-5)
    for value in (np.nan, np.inf):
        X[1, 1] = value
        with pytest.raises(ValueError, match="NaN or infinity"):
            own["predict"](X)
    own = runpy.run_path(str(of_tables.export(tmp_path / "table") / "predict.py"))
    df = frame().head(3)
    np.testing.assert_allclose(own["predict"](df), of_tables.predict_proba(df), atol=1e-5)
    for column in ("x", "whole", "town", "flag", "code"):
        for gone in (None, np.nan, pd.NA):
            rows = {name: df[name].tolist() for name in df}
            rows[column][1] = gone
            with pytest.raises(ValueError, match=column):
                own["predict"](rows)


def test_an_estimator_refuses_it_too():
    small = lb.DistilledClassifier(teacher, (6,), steps=30, device="cpu").fit(array_rows())
    X = array_rows()
    X[3, 1] = np.nan
    for given in (X, X[3:4]):
        with refused("X", "NaN"):
            small.predict(given)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [["a", "b"], [-1, 1], [0.5, 1.5], None])
@needs_onnx
def test_a_row_without_an_answer_has_a_label_of_its_own(classes):
    import onnxruntime

    from limbeck.compression.training import Answering
    from limbeck.export import Portable
    from limbeck.export.torch_files import onnx_file

    df = pd.DataFrame({"x": [0.5, 1.5, 2.5, 4.0]})
    table = lb.Table(df)
    student = torch.nn.Sequential(table.encoder(), torch.nn.Linear(1, 2))
    module = Answering(student, "classification")
    model = Portable(module, None, "probabilities", classes, "classification", table, student)
    (content,) = onnx_file(model, Path("student.onnx"))[0].values()
    session = onnxruntime.InferenceSession(content)
    label = session.run(["label"], {"x": np.array([[np.nan]], np.float32)})[0][0]
    none = {"a": "", -1: np.iinfo(np.int64).min, 0.5: np.nan, None: -1}
    expected = none[None if classes is None else classes[0]]
    assert label == expected or (label != label and expected != expected)


def test_a_row_whose_probabilities_overflow_has_no_class():
    g = np.random.default_rng(0)
    df = pd.DataFrame({"tiny": 1e-30 * g.normal(size=60), "x": g.normal(size=60)})
    result = lb.compress(
        lambda rows: np.stack([rows["x"] > 0, rows["x"] <= 0], 1) * 0.8 + 0.1, df, student=(4,),
        task="classification", inputs="data", steps=3, pool=60, progress=False, device="cpu",
    )  # fmt: skip
    far = df[:3].assign(tiny=[0.0, 1e30, 0.0])
    assert np.isnan(result.predict_proba(far)).any(1).tolist() == [False, True, False]
    with refused("X", r"a row \(1\)"):
        result.predict(far)
