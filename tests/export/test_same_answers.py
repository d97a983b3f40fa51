r"""The same row gets the same answer from the student and from every file of it."""

import importlib.util
import shutil

import numpy as np
import pytest
import torch

import limbeck as lb
from limbeck.export.parts import encoded_inputs
from limbeck.export.table_onnx import feeds
from tests.export.test_c_header import compiled
from tests.refusals import refused

pd = pytest.importorskip("pandas")
from tests.tables.frames import frame  # noqa: E402

needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnxscript", "onnxruntime")),
    reason="needs the extra limbeck[onnx]",
)


def three(rows):
    age = np.clip(np.asarray(rows["age"], float), 25, 60) / 50 - 1  # as trees: flat outside
    return np.exp([[1.0, -1, 0]] * age[:, None])


TEACHERS = {
    "classification": lambda rows: three(rows) / three(rows).sum(1, keepdims=True),
    "multilabel": lambda rows: three(rows) / (1 + three(rows)),
    "regression": lambda rows: 1e3 + 100 * np.asarray(rows["age"], float),
}


def session(path):
    import onnxruntime

    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def compressed(task, student, df):
    table = lb.Table(df, categories=["code", "share", "street"])
    return lb.compress(
        TEACHERS[task], df, student=student, table=table, task=task, inputs="munge", steps=5,
        pool=len(df), progress=False, device="cpu",
    )  # fmt: skip


@needs_onnx
@pytest.mark.parametrize("student", [(6, 4), "linear", "tree", "boosted"], ids=str)
@pytest.mark.parametrize("task", TEACHERS)
def test_strings_gaps_and_unknown_categories_in_every_format(tmp_path, task, student):
    df = frame(60)
    result = compressed(task, student, df)
    table = result.row_format.table
    rows = frame(9, seed=1)
    rows.loc[[0, 3], "street"] = "elsewhere"
    rows.loc[2, "code"] = 99
    rows.loc[[4, 5], "age"] = [-50, 999]
    if student == (6, 4):
        assert result.student.encoder.clip == (task != "regression")
    expected = result._predictions(rows)
    scale = np.abs(expected).max()
    name = "label" if task == "regression" else "probabilities"
    named = session(result.export(tmp_path / "named.onnx"))
    encoded = session(result.export(tmp_path / "encoded.onnx", columns="encoded"))
    inputs = feeds(table, rows, "encoded")
    found: dict = {"__file__": str(result.export(tmp_path / "numpy") / "predict.py")}
    exec((tmp_path / "numpy" / "predict.py").read_text(), found)
    answers = {
        "one by one": np.concatenate([result._predictions(rows[k : k + 1]) for k in range(9)]),
        "named": named.run([name], feeds(table, rows))[0],
        "encoded": encoded.run(["y"], inputs)[0],
        "NumPy": found["predict"](rows),
    }
    if shutil.which("gcc"):
        run = compiled(result.export(tmp_path / "s.h"), result.portable())
        answers["C"] = run(expected.shape[1], **encoded_inputs(table, table.encode(rows)))
    if student == (6, 4):
        program = torch.export.load(result.export(tmp_path / "s.pt2")).module()
        answers["torch"] = program(table.encode(rows)).detach().numpy()
    for format, y in answers.items():
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5 * scale, err_msg=format)
    # what `predict` refuses is NaN in files that cannot raise errors, and only in that row
    street = [c.name for c in table.varying if hasattr(c, "categories")].index("street")
    inputs["codes"][1, street] = len(table.varying[3].categories) + 1
    inputs["codes"][4, street], inputs["codes"][5, street] = -7, 10**9  # no codes: unknown
    inputs["numbers"][2, 0] = np.inf
    y = encoded.run(["y"], inputs)[0]
    assert np.isnan(y).all(1).tolist() == [k in (1, 2) for k in range(9)]
    rows.loc[4:5, "street"] = "elsewhere"
    np.testing.assert_allclose(y[3:], result._predictions(rows)[3:], rtol=1e-5, atol=1e-5 * scale)


@needs_onnx
def test_numbers_far_from_zero_keep_their_digits(tmp_path):
    g = np.random.default_rng(0)
    df = pd.DataFrame({"year": 2000 + 3 * g.random(80), "x": g.normal(size=80)})
    result = lb.compress(
        lambda rows: np.asarray(rows["year"]) - 2000, df, student=(6,), task="regression",
        inputs="data", steps=20, pool=80, progress=False, device="cpu",
    )  # fmt: skip
    path = result.export(tmp_path / "s.onnx", columns="encoded")
    y = session(path).run(["y"], feeds(result.row_format.table, df, "encoded"))[0]
    np.testing.assert_allclose(y[:, 0], result.predict(df), rtol=2e-6, atol=2e-6)


@needs_onnx
def test_a_module_of_the_users_own_takes_encoded_columns_too(tmp_path):
    df = frame(60)
    table = lb.Table(df, categories=["code", "share", "street"])
    module = torch.nn.Sequential(torch.nn.Linear(table.encoder().width, 3))
    result = lb.compress(
        TEACHERS["classification"], df, student=module, table=table, inputs="data", steps=3,
        task="classification", pool=60, progress=False, device="cpu",
    )  # fmt: skip
    path = result.export(tmp_path / "s.onnx", columns="encoded")
    y = session(path).run(["y"], feeds(table, df, "encoded"))[0]
    np.testing.assert_allclose(y, result.predict_proba(df), atol=1e-5)
    text = (tmp_path / "s.onnx.md").read_text()
    assert "| numbers\\[0\\] | 'age': whole number; never missing |" in text
    assert 'session.run(["y"], {"numbers": numbers, "codes": codes})' in text


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs a C compiler")
@pytest.mark.parametrize("column", ["c", "x"])
def test_tables_of_one_column(tmp_path, column):
    g = np.random.default_rng(0)
    columns = {"c": g.choice(["p", "q", 'r"\n'], 60), "x": g.normal(size=60)}
    df = pd.DataFrame({column: columns[column]})
    result = lb.compress(
        lambda rows: (np.asarray(rows[column]) == df[column][0]) * 2.0, df, student=(4,),
        task="regression", inputs="data", steps=3, pool=60, progress=False, device="cpu",
    )  # fmt: skip
    rows = pd.DataFrame({column: ["p", "r", ""] if column == "c" else [0.0, 1e30, -1e30]})
    found: dict = {"__file__": str(result.export(tmp_path / "s.npz").with_suffix(".py"))}
    exec((tmp_path / "s.py").read_text(), found)
    run = compiled(result.export(tmp_path / "s.h"), result.portable())
    table = result.row_format.table
    expected = result._predictions(rows)
    for y in (found["predict"](rows), run(1, **encoded_inputs(table, table.encode(rows)))):
        np.testing.assert_allclose(y, expected, rtol=1e-5)


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs a C compiler")
def test_numbers_that_overflow_in_a_net_are_nan_in_c_too(tmp_path):
    net = lb.MLP(2, 3, 1, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        net.layers[0].weight.copy_(torch.tensor([[1e30, -1e30], [0.0, 1.0], [1.0, 0.0]]))
    run = compiled(lb.export.export(net, tmp_path / "s.h"), lb.export.portable(net))
    x = np.array([[1e30, 1e30], [0.5, -0.5]], np.float32)
    expected = net(torch.from_numpy(x)).detach().numpy()
    assert np.isnan(expected[0])
    np.testing.assert_allclose(run(1, x=x), expected, rtol=1e-5)


def test_encoded_columns_are_for_tables_as_onnx(tmp_path):
    result = compressed("regression", (3,), frame(40))
    with refused("columns", "'encoded'"):
        result.export(tmp_path / "s.npz", columns="encoded")
    with refused("columns", "'coded'"):
        result.export(tmp_path / "s.onnx", columns="coded")
    with refused("columns", "'encoded'"):
        lb.export.export(lb.MLP(2, 3), tmp_path / "s.onnx", columns="encoded")
