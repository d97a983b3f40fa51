r"""The NumPy predictor: it needs NumPy alone, and gives what torch gives in double precision."""

import copy
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import limbeck as lb
from limbeck.compression.training import Answering
from limbeck.condensation.predict_function import Means, OutputFamily
from limbeck.export import CHECKS, export
from limbeck.export.numpy_predictor import READER
from limbeck.models.tree import Trees
from tests.export.students import NUMPY, OTHERS, named_bag, net, rows
from tests.refusals import raises_about, refused
from tests.tables import frames

ALONE = """
import json, runpy, sys
from pathlib import Path
for name in ("torch", "limbeck", "sklearn", "scipy", "pandas"):
    sys.modules[name] = None  # so that importing it fails
import numpy as np
for folder in sorted(Path(sys.argv[1]).iterdir()):
    found = runpy.run_path(str(folder / "predict.py"))
    if (folder / "x.json").exists():
        y = found["predict"](json.loads((folder / "x.json").read_text()))
        (folder / "labels.json").write_text(json.dumps(found["label"](
            json.loads((folder / "x.json").read_text()))))
    else:
        y = found["predict"](np.load(folder / "x.npy"))
    np.save(folder / "y.npy", y)
"""


def alone(folder):
    r"""Run every predictor of a folder where nothing but NumPy can be imported."""
    command = [sys.executable, "-I", "-c", ALONE, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr


def exact(module, x):
    r"""What torch gives in double precision; trees compare as they always do."""
    own = copy.deepcopy(module).eval()
    if any(isinstance(each, Trees) for each in own.modules()):
        return own(x.float()).double()
    with torch.no_grad():
        return own.double()(x.double())


def test_every_small_student_agrees_with_torch_where_only_numpy_is(tmp_path):
    expected = {}
    for number, (name, (make, shape)) in enumerate(NUMPY.items()):
        student, folder = make(), tmp_path / f"{number:02}"
        assert export(student, folder, input_shape=shape, card=False) == folder
        assert sorted(file.name for file in folder.iterdir()) == [
            "manifest.json", "predict.py", "weights.npz",
        ]  # fmt: skip
        x = rows(student, shape, 9)
        if "tree" in name or "forest" in name:
            x[2, 1] = torch.nan
        np.save(folder / "x.npy", x.double().numpy())
        expected[name, folder] = exact(student, x).detach().numpy()
    alone(tmp_path)
    for (name, folder), y in expected.items():
        np.testing.assert_allclose(np.load(folder / "y.npy"), y, rtol=1e-6, atol=1e-6, err_msg=name)


def loaded(module, folder, shape):
    export(module, folder, input_shape=shape, card=False)
    found: dict = {"__file__": str(folder / "predict.py")}
    exec((folder / "predict.py").read_text(), found)
    return found["predict"]


@pytest.mark.parametrize(
    ("form", "output"), [("logits", nn.Identity()), ("probabilities", nn.Sigmoid())], ids=str
)
def test_one_output_is_the_second_of_two_classes(tmp_path, form, output):
    student = nn.Sequential(net(sizes=(4, 6, 1)), output)
    answering = Answering(student, "classification", form)
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    y = loaded(answering, tmp_path / "s", (4,))(x.numpy())
    assert y.shape == (5, 2)
    np.testing.assert_allclose(y, exact(answering, x).detach(), rtol=1e-6)
    second = student(x) if form == "probabilities" else student(x).sigmoid()
    np.testing.assert_allclose(y[:, 1:], second.detach(), rtol=1e-5)


def test_a_column_that_is_ignored_may_hold_anything(tmp_path):
    student, shape = NUMPY["scaled"][0](), NUMPY["scaled"][1]
    (ignored,) = (student.scale == 0).nonzero()[:, 0].tolist()
    x = np.random.default_rng(0).normal(size=(3, *shape))
    predict = loaded(student, tmp_path / "s", shape)
    expected = predict(x)
    x[:, ignored] = [1e300, np.nan, -5.0]
    np.testing.assert_array_equal(predict(x), expected)


def uneven_bag():
    bag = named_bag()
    with torch.no_grad():
        bag.student.logits.copy_(torch.tensor([0.0, 2.0, -1.0]))
    return bag


MEANS = {
    "no or yes": lambda: Means(net(sizes=(4, 6, 2)), OutputFamily("Bernoulli", "logits")),
    "yes": lambda: Means(net(sizes=(4, 6, 1)), OutputFamily("Bernoulli", "logits")),
    "classes": lambda: Means(
        net(sizes=(4, 6, 3), output="log_softmax"), OutputFamily("Categorical", "log_probabilities")
    ),
    "a rate": lambda: Means(net(sizes=(4, 6, 1)), OutputFamily("Poisson")),
    "a normal density": lambda: Means(net(sizes=(4, 6, 2)), OutputFamily("Normal")),
    "a mixture": lambda: Means(net(sizes=(4, 6, 9)), OutputFamily("Normal")),
    "a bag of uneven weights": uneven_bag,
}


@pytest.mark.parametrize("name", MEANS)
def test_means_are_those_of_the_distributions(tmp_path, name):
    student = MEANS[name]()
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = loaded(student, tmp_path / "s", (4,))(x.numpy())
    np.testing.assert_allclose(y, exact(student, x).detach(), rtol=1e-6)


def test_trees_compare_single_numbers_as_in_torch(tmp_path):
    student = NUMPY["forest"][0]()
    inner = ~student.is_leaf
    edges = student.threshold[inner][:10].double().numpy()
    at = (student.feature[inner][:10] % student.inputs).tolist()
    x = np.zeros((10, student.inputs))
    x[range(10), at] = np.nextafter(edges, np.inf)  # above, but not as a float32
    y = loaded(student, tmp_path / "s", (student.inputs,))(x)
    np.testing.assert_allclose(y, exact(student, torch.tensor(x)).detach(), rtol=1e-6)


@pytest.mark.parametrize("name", [name for name in NUMPY if "bag" not in name])
def test_scripts_are_short(tmp_path, name):
    make, shape = NUMPY[name]
    export(make(), tmp_path, input_shape=shape, card=False)
    assert len((tmp_path / "predict.py").read_text().splitlines()) <= 50


def test_far_out_inputs_give_no_warnings_and_no_nan(tmp_path):
    export(net(sizes=(2, 2), output="softmax"), tmp_path / "s.npz", card=False)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["s.npz", "s.py"]
    found: dict = {"__file__": str(tmp_path / "s.py")}
    exec((tmp_path / "s.py").read_text(), found)
    y = found["predict"](np.array([[1e4, -1e4], [-1e4, 1e4]]))
    np.testing.assert_allclose(y.sum(1), 1)
    with raises_about(ValueError, "x:", "(n, 2)", "(2,)"):
        found["predict"]([1.0, 2.0])


pd = pytest.importorskip("pandas")


def frame(n=60, seed=0):
    return frames.frame(n, seed, "{}. 'Straße'").drop(columns=3)


def aged(rows):
    r"""A teacher that looks at the age alone."""
    p = np.clip(np.asarray(rows["age"], float) / 100, 0, 1)
    return np.stack([p, 1 - p], 1)


TABLE = lb.Table(frame(), categories=["code", "share", "street"])


@pytest.mark.parametrize("student", [(4,), "tree", "boosted"], ids=str)
def test_tables_take_columns_by_name_with_gaps_and_unknown_categories(tmp_path, student):
    result = lb.compress(
        aged, frame(), student=student, inputs="data", steps=5, pool=60, table=TABLE,
        classes=["old", "young"], task="classification", progress=False, device="cpu",
    )  # fmt: skip
    folder = tmp_path / "s"
    result.export(folder)
    other = frame(8, seed=1)
    given = {
        name: [None if pd.isna(value) else value for value in column.tolist()]
        for name, column in other.items()
    }
    given["street"][0] = other.loc[0, "street"] = "elsewhere"
    given["day"] = [str(day) for day in other["day"]]
    (folder / "x.json").write_text(json.dumps(given))
    alone(tmp_path)
    expected = result.predict_proba(other)  # in single precision
    p = np.load(folder / "y.npy")
    np.testing.assert_allclose(p, expected, atol=1e-5)
    labels = json.loads((folder / "labels.json").read_text())
    assert labels == result.classes[p.argmax(1)].tolist()
    found: dict = {"__file__": str(folder / "predict.py")}
    exec((folder / "predict.py").read_text(), found)
    np.testing.assert_allclose(found["predict"](other), expected, atol=1e-5)  # of a data frame
    for k in range(len(other)):  # one row of a data frame is read in another way
        one = other[k : k + 1]
        np.testing.assert_allclose(found["predict"](one), expected[k : k + 1], atol=1e-5)
    for column, value, message in (
        ("age", None, "age: expected finite numbers"),
        ("age", np.inf, "age: expected finite numbers"),
        ("age", "thirty", "age: expected numbers"),
        ("town", 3, "town: expected .*, got 3, of another kind"),
    ):
        wrong = dict(given) | {column: [value, *given[column][1:]]}
        with pytest.raises(ValueError, match=message):
            found["predict"](wrong)


def test_moments_are_read_with_their_fractions_of_seconds():
    seconds = np.array([0.25, 1.5, 2.75, 90.125])
    moments = pd.Timestamp("2024-02-29") + pd.to_timedelta(seconds, unit="s")
    df = pd.DataFrame({"moment": moments, "some": pd.Series(moments).mask([False, True] * 2)})
    table = lb.Table(df)
    script: dict = {"np": np, "COLUMNS": [c.spec() for c in table.varying]}
    exec(READER, script)
    for part in (df, df[1:2]):
        values, gone, codes = script["read"](part)
        for k, column in enumerate(table.varying):
            np.testing.assert_array_equal(values[:, k], table.encode(part)[column.key])
            np.testing.assert_array_equal(gone[:, k], part[column.name].isna())
        assert not codes.size


def test_dates_come_in_lists_of_any_kind_with_gaps():
    moments = pd.Series(pd.date_range("2024-02-29", periods=5, freq="36h"))
    df = pd.DataFrame({"moment": moments, "some": moments.mask([False, True, False, True, False])})
    table = lb.Table(df)
    script: dict = {"np": np, "COLUMNS": [c.spec() for c in table.varying]}
    exec(READER, script)
    expected = script["read"](df)
    kinds = {
        "pandas": list(df.some),  # with NaT
        "None": [None if pd.isna(v) else v for v in df.some],
        "NaN": [np.nan if pd.isna(v) else v.to_pydatetime() for v in df.some],
        "NumPy": list(df.some.to_numpy()),
        "zoned": list(df.some.dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo")),
        "objects": df.some.astype(object),
        "text": [None if pd.isna(v) else str(v) for v in df.some],
    }
    for kind, given in kinds.items():
        found = script["read"]({"moment": list(moments), "some": given})
        for part, whole in zip(found, expected, strict=True):
            np.testing.assert_array_equal(part, whole, err_msg=kind)


class Own(nn.Module):
    output_form = "logits"

    def forward(self, x):
        return x


@pytest.mark.parametrize(
    "module", [*(make for make, _ in OTHERS.values()), Own, lambda: nn.Softmax(0),
               lambda: lb.Ensemble([Own(), lambda x: x], output_forms=[None, "logits"]),
               lambda: nn.Flatten(0)],
    ids=[*OTHERS, "own", "softmax of rows", "function", "flatten"],
)  # fmt: skip
def test_what_numpy_cannot_do_is_refused(tmp_path, module):
    with pytest.raises(lb.LimbeckError, match="no NumPy form"):
        export(module(), tmp_path / "new", input_shape=4, card=False)
    assert not list(tmp_path.iterdir())


def test_nothing_foreign_is_written_over(tmp_path, monkeypatch):
    (tmp_path / "predict.py").write_text("print('mine')\n")
    with refused("path", "which limbeck did not write"):
        export(net(), tmp_path, card=False)
    assert [file.name for file in tmp_path.iterdir()] == ["predict.py"]
    (tmp_path / "predict.py").unlink()
    export(net(1), tmp_path, card=False)
    export(net(2), tmp_path, card=False)  # its own is replaced
    with np.load(tmp_path / "weights.npz") as weights:
        np.testing.assert_array_equal(weights["0.weight"], net(2).layers[0].weight.detach())
    with refused("path", "which is a file"):
        export(net(), tmp_path / "predict.py", "numpy", card=False)
    monkeypatch.setitem(CHECKS, "numpy", ("NumPy predictor", "NumPy", -1.0))
    with raises_about(lb.LimbeckError, "NumPy predictor", "disagrees"):
        export(net(), tmp_path / "new", card=False)
    assert not (tmp_path / "new").exists()
