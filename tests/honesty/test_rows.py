r"""The teacher is asked about rows as the user has them, and code-like columns are named.

Rows used to go through float32 on their way to the teacher: a thousand time stamps were asked
about as eight, integers came as floats. Whole numbers with gaps, which pandas stores as floats,
were asked about as 3.27; and columns of codes were taken as continuous without a word.
"""

import warnings

import numpy as np
import pytest
import torch

import limbeck as lb
from limbeck.text import markdown

pd = pytest.importorskip("pandas")

N = 300
QUICK = {"student": (8,), "steps": 20, "pool": 500, "progress": False, "device": "cpu"}
START = 1.7e9


class Recorder:
    r"""A teacher that keeps what it was asked about."""

    def __init__(self, function):
        self.function, self.seen = function, []

    def __call__(self, x):
        self.seen.append(x)
        return self.function(x)


def stamps(n=400):
    rng = np.random.default_rng(0)
    return np.stack([START + np.arange(float(n)), rng.normal(size=n)], 1)


def wave(x):
    return 3 * np.sin((np.asarray(x)[:, 0] - START) / 100)


def rows_of(recorder):
    return {tuple(row) for part in recorder.seen for row in np.asarray(part).tolist()}


@pytest.mark.parametrize("inputs", ["data", "munge", "noise", "columns", "mixture"])
def test_every_time_stamp_is_asked_about_as_itself(inputs):
    teacher = Recorder(wave)
    X = stamps()
    lb.compress(teacher, X, inputs=inputs, task="regression", **QUICK | {"pool": 700})
    assert {part.dtype for part in teacher.seen} == {np.dtype(np.float64)}
    assert {tuple(row) for row in X.tolist()} <= rows_of(teacher)
    more = {row[0] for row in rows_of(teacher)} - set(X[:, 0].tolist())
    if inputs in ("munge", "noise", "mixture"):  # generated ones are no multiples of 128 either
        assert len(more) > 50


def test_a_student_resolves_time_stamps_in_predict_and_in_every_export(tmp_path):
    X = stamps()
    result = lb.compress(
        wave, X, (16,), inputs="data", task="regression", steps=400, progress=False, device="cpu"
    )
    assert result.report(X, time=False).retention > 0.7
    values = result.predict(X)
    one_by_one = np.concatenate([result.predict(X[k : k + 1]) for k in range(20)])
    np.testing.assert_allclose(one_by_one, values[:20], atol=1e-5)
    result.save(tmp_path / "saved")
    np.testing.assert_allclose(lb.Compressed.load(tmp_path / "saved").predict(X), values, atol=1e-6)
    program = torch.export.load(result.export(tmp_path / "s.pt2")).module()
    np.testing.assert_allclose(program(torch.tensor(X)).detach()[:, 0], values, atol=1e-4)
    folder = result.export(tmp_path / "numpy")
    space = {"__file__": str(folder / "predict.py")}
    exec((folder / "predict.py").read_text(), space)
    np.testing.assert_allclose(space["predict"](X)[:, 0], values, atol=1e-4)
    assert "float64" in (tmp_path / "s.pt2.md").read_text()
    assert result.student.half().origin.dtype == torch.float64  # a cast does not lose it


def test_the_onnx_file_of_such_a_student_takes_doubles(tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    X = stamps()
    result = lb.compress(wave, X, inputs="data", task="regression", **QUICK)
    session = runtime.InferenceSession(result.export(tmp_path / "s.onnx"))
    assert session.get_inputs()[0].type == "tensor(double)"
    np.testing.assert_allclose(session.run(None, {"x": X})[0][:, 0], result.predict(X), atol=1e-4)


@pytest.mark.parametrize("student", ["tree", "boosted"])
def test_trees_split_between_time_stamps(student):
    X = stamps()
    result = lb.compress(wave, X, student, inputs="data", task="regression", progress=False)
    assert result.report(X, time=False).retention > 0.9
    if student == "tree":
        assert "x[0] <= 17000" in result.rules()


@pytest.mark.parametrize("inputs", ["munge", "noise", "columns", "mixture"])
@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool", "float16", "float32"])
def test_arrays_keep_their_type(inputs, dtype):
    rng = np.random.default_rng(1)
    X = (rng.random((N, 3)) * (2 if dtype == "bool" else 50)).astype(dtype)
    teacher = Recorder(lambda x: 2.0 * x.astype(float).sum(1) - 3)
    lb.compress(teacher, X, inputs=inputs, task="regression", **QUICK)
    assert {part.dtype for part in teacher.seen} == {np.dtype(dtype)}
    assert {tuple(row) for row in X.tolist()} <= rows_of(teacher)


def frame(n=N):
    rng = np.random.default_rng(2)
    gone = rng.random(n) < 0.1
    made = pd.DataFrame(
        {
            "whole": rng.integers(0, 50, n),
            "short": rng.integers(0, 50, n).astype("int8"),
            "single": rng.normal(size=n).astype("float32"),
            "double": rng.normal(size=n),
            "flag": rng.random(n) < 0.5,
            "category": pd.Categorical(rng.choice(list("xyz"), n), categories=list("zyxw")),
            "level": pd.Categorical(rng.choice([1, 2, 3], n), ordered=True),
            "text": rng.choice(["u", "v"], n),
            "object": pd.Series(rng.choice(["u", "v"], n), dtype=object),
            "moment": pd.Timestamp("2024-01-01")
            + pd.to_timedelta(rng.integers(0, 10**15, n), unit="ns"),
            "zoned": pd.Timestamp("2024-01-01", tz="Europe/Berlin")
            + pd.to_timedelta(rng.integers(0, 10**6, n), unit="s"),
            "Int64": pd.array(np.where(gone, None, rng.integers(0, 9, n)), dtype="Int64"),
            "boolean": pd.array(np.where(gone, None, rng.random(n) < 0.5), dtype="boolean"),
            "string": pd.array(rng.choice(["u", "v"], n), dtype="string"),
            "gaps": np.where(gone, np.nan, rng.integers(0, 30, n)),
            "stamp": START + np.arange(n) + 0.25,
            "large": rng.integers(2**40, 2**40 + 1000, n),
            "constant": 7,
            5: rng.normal(size=n),
        },
        index=1000 + rng.permutation(n),
    )
    try:
        import pyarrow
    except ImportError:
        return made
    made["arrow"] = made["whole"].astype("int64[pyarrow]")
    words = [str(value) for value in made["text"]]
    made["words"] = pd.Series(words, index=made.index, dtype=pd.ArrowDtype(pyarrow.string()))
    return made


def of_frame(x):
    return 3 * (x["double"].to_numpy() + (x["stamp"].to_numpy() - START) / N)


@pytest.mark.parametrize("inputs", ["munge", "noise", "columns"])
def test_frames_keep_columns_order_types_and_values(inputs):
    df, teacher = frame(), Recorder(of_frame)
    result = lb.compress(teacher, df, inputs=inputs, task="regression", **QUICK)
    result.report(df.head(50), time=False)
    for part in teacher.seen:
        assert list(part.columns) == list(df.columns)
        assert part.dtypes.tolist() == df.dtypes.tolist()
    every = pd.concat(teacher.seen)
    own = every[every.index >= 1000]
    own = own[~own.index.duplicated()].loc[df.index]
    pd.testing.assert_frame_equal(own, df)  # nanoseconds too


def test_rows_held_out_and_folds_see_rows_as_they_are():
    from sklearn.base import BaseEstimator, RegressorMixin

    class Fussy(RegressorMixin, BaseEstimator):
        def fit(self, X, y):
            assert X.dtypes.tolist() == frame().dtypes.tolist()
            assert (X["stamp"] % 1 == 0.25).all()
            self.n_features_in_ = X.shape[1]
            return self

        def predict(self, X):
            return of_frame(X)

    df = frame()
    teacher = Fussy().fit(df, None)
    lb.compress(
        teacher, df, labels=of_frame(df), teacher_folds=2, **QUICK | {"steps": 5, "pool": 310}
    )


def test_dropped_columns_are_left_out_of_the_report_too():
    df, teacher = frame(), Recorder(of_frame)
    table = lb.Table(df, drop=["text"])
    result = lb.compress(teacher, df, table=table, inputs="munge", task="regression", **QUICK)
    result.report(df, time=False)
    assert all("text" not in part.columns for part in teacher.seen)


class Module(torch.nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2, dtype=dtype)
        self.seen = []

    def forward(self, x):
        self.seen.append(x.detach())
        return self.layer(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("options", [{}, {"student": torch.nn.Linear(3, 2)}, {"derivatives": 1}])
def test_a_module_gets_its_own_precision_of_the_rows(dtype, options):
    X = torch.randn(N, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    options = dict(options)
    if options.pop("derivatives", None):
        options["loss"] = lb.losses.cross_entropy() + 1e-3 * lb.losses.derivative_error()
    module = Module(dtype)
    lb.compress(module, X.numpy(), inputs="munge", teacher_output="logits", **QUICK | options)
    assert {x.dtype for x in module.seen} == {dtype}
    seen = {tuple(row) for x in module.seen for row in x.reshape(-1, 3).tolist()}
    assert len({tuple(row) for row in X.to(dtype).tolist()} - seen) < 10  # most have come by


def test_a_source_of_ones_own_is_asked_about_in_double_precision():
    X, teacher = stamps(), Recorder(wave)
    lb.compress(teacher, X, inputs=lb.inputs.Dataset(X), task="regression", **QUICK)
    assert rows_of(teacher) <= {tuple(row) for row in X.tolist()}


def test_the_cache_tells_close_rows_apart(tmp_path):
    X, teacher = np.stack([START + np.arange(400.0), np.arange(400) % 2], 1), Recorder(wave)
    asked = {"inputs": "data", "task": "regression", "cache": tmp_path, "cache_key": "wave"}
    lb.compress(teacher, X, **asked, **QUICK)
    assert sum(map(len, teacher.seen)) >= len(X)
    teacher.seen.clear()
    lb.compress(teacher, X, **asked, **QUICK)
    assert sum(map(len, teacher.seen)) < 100  # nothing but the first look
    lb.compress(teacher, X + 0.5, **asked, **QUICK)
    assert sum(map(len, teacher.seen)) >= len(X)


def test_estimators_pass_rows_on_as_they_are():
    X, teacher = stamps(), Recorder(wave)
    small = lb.DistilledRegressor(teacher, (16,), inputs="data", steps=400, device="cpu").fit(X)
    assert {tuple(row) for row in X.tolist()} <= rows_of(teacher)
    assert small.score(X) > 0.7
    whole = Recorder(lambda x: 2.0 * x.sum(1))
    lb.DistilledRegressor(whole, (8,), steps=20).fit(np.arange(600).reshape(200, 3))
    assert {part.dtype.kind for part in whole.seen} == {"i"}


def test_the_command_line_passes_rows_on_as_they_are(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from limbeck.cli import app

    (tmp_path / "stamp_teacher.py").write_text(
        "import numpy as np\nseen = []\n"
        "def teacher(x):\n    seen.append(x)\n"
        "    return 3 * np.sin((x[:, 0] - 1.7e9) / 150) + x[:, 1]\n"
    )
    data = pd.DataFrame({"t": START + np.arange(400.0), "k": np.arange(400) % 7})
    data.to_csv(tmp_path / "rows.csv", index=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    command = ["compress", "stamp_teacher:teacher", "rows.csv", "--task", "regression", "--student"]
    command += ["8", "--steps", "20", "--inputs", "munge", "--pool", "500", "--no-timing"]
    done = CliRunner().invoke(
        app, [*command, "--rows", "array", "--device", "cpu", "--no-verdicts"]
    )
    assert done.exit_code == 0, done.output
    import stamp_teacher

    assert set(data["t"]) <= set(np.concatenate(stamp_teacher.seen)[:, 0])


@pytest.mark.parametrize("inputs", ["munge", "noise", "columns"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "Float64", object])
def test_whole_numbers_with_gaps_stay_whole(inputs, dtype):
    rng = np.random.default_rng(3)
    counts = pd.Series(rng.integers(0, 40, N).astype(float))
    counts[rng.random(N) < 0.2] = np.nan
    df = pd.DataFrame({"count": counts.astype(dtype), "x": rng.normal(size=N)})

    def answer(x):
        return 2.0 * x["count"].astype(float).fillna(-9).to_numpy() + x["x"].to_numpy()

    teacher = Recorder(answer)
    lb.compress(teacher, df, inputs=inputs, task="regression", **QUICK)
    every = pd.concat(teacher.seen)["count"]
    assert every.dtype == df["count"].dtype
    assert every.isna().any()
    there = every.dropna().astype(float)
    assert (there == there.round()).all()
    if dtype is object:
        assert {type(value) for value in every.dropna()} == {float}


def codes(n=1500, columns=1):
    r"""A table with columns of codes, counts and years, and a teacher that knows the codes."""
    rng = np.random.default_rng(4)
    effect = rng.permutation(np.linspace(-2, 2, 12))
    df = pd.DataFrame({"years": rng.integers(20, 60, n), "children": rng.poisson(1.5, n)})
    for k in range(columns):
        df[f"trade{k}"] = rng.integers(0, 12, n).astype(float)
        df.loc[rng.random(n) < 0.05, f"trade{k}"] = np.nan

    def teacher(x):
        z = 0.05 * (x["years"] - 40) + 0.3 * x["children"]
        for k in range(columns):
            z = z + effect[x[f"trade{k}"].fillna(0).astype(int)]
        p = (1 / (1 + np.exp(-z))).to_numpy()
        return np.stack([1 - p, p], 1)

    return df, teacher


def test_few_codes_are_followed_as_they_are():
    df, teacher = codes()
    result = lb.compress(teacher, df, inputs="data", steps=1500, progress=False)
    difference = np.abs(result.predict_proba(df) - teacher(df)).max(1)
    assert difference.mean() < 0.02  # a smooth function of the codes leaves 0.2
    assert result.notes == []


def many_codes(n=3000, count=300):
    r"""A table of one column of many codes and one number, and a teacher that knows the codes."""
    rng = np.random.default_rng(4)
    effect = rng.normal(size=1000)
    df = pd.DataFrame({"town": 7 * rng.integers(0, count, n), "age": rng.normal(size=n)})
    return df, lambda x: effect[x["town"].to_numpy() % 1000] + 0.1 * x["age"].to_numpy()


@pytest.mark.usefixtures("quick_flows")
def test_many_codes_are_tried_as_categories(tmp_path):
    df, teacher = many_codes()
    folder = tmp_path / "checkpoint"
    result = lb.compress(
        teacher, df, task="regression", checkpoint=folder, steps=800, progress=False
    )
    (note,) = result.notes
    assert note.startswith("Note: numbers of 'town' are treated as categories")
    assert [set(row) for row in result.tried][-1] == {"columns", "divergence"}
    values = teacher(df)
    assert np.square(result.predict(df) - values).mean() < 0.05 * values.var()
    assert note in str(result)
    assert note in str(result.report(df, time=False))
    again = lb.Compressed.load(result.save(tmp_path / "saved"))
    assert again.notes == result.notes
    np.testing.assert_allclose(again.predict(df), result.predict(df), rtol=1e-6)
    card = (result.export(tmp_path / "student") / "card.md").read_text()
    assert markdown(note) in card
    unseen = df.head(3).assign(town=[1, 2, 3])
    assert np.isfinite(result.predict(unseen)).all()
    own = lb.compress(teacher, df, table=lb.Table(df), task="regression", **QUICK)
    assert not any("categories" in note for note in own.notes)


@pytest.mark.usefixtures("quick_flows")
def test_amounts_stay_numbers():
    rng = np.random.default_rng(6)
    df = pd.DataFrame({"price": rng.integers(0, 400, 3000), "x": rng.normal(size=3000)})

    def smooth(x):
        return np.sin(x["price"] / 100).to_numpy() + x["x"].to_numpy()

    result = lb.compress(smooth, df, task="regression", steps=500, progress=False)
    assert result.notes == []
    assert result.row_format.table.columns[0].kind == "whole number"


def test_counts_amounts_and_pixels_are_not_called_codes():
    from sklearn.datasets import load_digits
    from sklearn.ensemble import RandomForestClassifier

    data = load_digits(as_frame=True)
    X = data.data.astype(int)
    forest = RandomForestClassifier(20, random_state=0).fit(X, data.target)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        notes = lb.compress(forest, X, inputs="data", **QUICK).notes
    assert not any("categories" in note for note in notes)
    rng = np.random.default_rng(5)
    df = pd.DataFrame({"n": rng.poisson(3, 1000), "age": rng.integers(18, 90, 1000)})

    def smooth(x):
        return (0.2 * (x["n"] - 3) ** 2 + 0.05 * x["age"]).to_numpy()

    notes = lb.compress(smooth, df, inputs="data", task="regression", **QUICK).notes
    assert not any("categories" in note for note in notes)
