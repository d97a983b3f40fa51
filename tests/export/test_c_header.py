r"""C headers: they compile without warnings as C and C++, and give what the student gives."""

import ctypes
import re
import shutil
import subprocess

import numpy as np
import pytest
import torch

import limbeck as lb
from limbeck.compression.students import predictions
from limbeck.export import c_header, export
from limbeck.export.c_header import c_arguments, prefix
from limbeck.export.parts import categories_of, encoded_inputs
from limbeck.models.table_encoder import TableEncoder
from tests.export.students import NUMPY, net, rows, seeded
from tests.refusals import raises_about, refused

pd = pytest.importorskip("pandas")
from tests.tables import frames  # noqa: E402

needs_compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
STRICT = ["-O3", "-Wall", "-Wextra", "-pedantic", "-Werror", "-shared", "-fPIC"]
CTYPES = {"float": np.float32, "double": np.float64, "int": np.intc}
SOME = [
    "MLP", "MLP of all kinds", "MLP without biases", "one output", "scaled", "forest",
    "tree of classes",
]  # fmt: skip


def compiled(path, model, plus=False):
    r"""The function of a header, on arrays (n, ...) by the names of its arguments."""
    name, kinds = prefix(path.stem), c_arguments(model)
    given = ", ".join(f"const {kind} *{k}" for k, kind in kinds.items() if k != "y")
    outer, signature = 'extern "C" ' if plus else "", f"int run({given}, {kinds['y']} *y)"
    body = f"{{ {name}_predict({', '.join(kinds)}); return {name}_outputs; }}"
    source = path.with_suffix(".cc" if plus else ".c")
    source.write_text(f'#include "{path.name}"\n{outer}{signature};\n{signature} {body}\n')
    command = ["g++", "-std=c++11"] if plus else ["gcc", "-std=c99"]
    library = path.with_suffix(".cc.so" if plus else ".so")
    command += [*STRICT, source.name, "-o", library.name, "-lm"]
    done = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    function = ctypes.CDLL(str(library)).run

    def run(outputs, **arrays):
        own = [np.ascontiguousarray(arrays[k], CTYPES[v]) for k, v in kinds.items() if k != "y"]
        own = [array.reshape(len(array), -1) for array in own]
        y = np.full((len(own[0]), outputs), 7, CTYPES[kinds["y"]])
        for each in zip(*own, y, strict=True):
            assert function(*(ctypes.c_void_p(row.ctypes.data) for row in each)) == outputs
        return y

    return run


@needs_compiler
@pytest.mark.parametrize("name", SOME)
def test_nets_and_trees_give_what_torch_gives(tmp_path, name):
    make, shape = NUMPY[name]
    student = make().eval()
    path = export(student, tmp_path / "s.h", input_shape=shape)
    x = rows(student, shape, 9)
    if "forest" in name or "tree" in name:
        x[2, 1], x[3, 0] = torch.nan, torch.inf
    if name == "scaled":
        x[:, student.scale == 0] = torch.nan  # a column that is ignored may hold anything
    with torch.no_grad():
        expected = student(x).numpy()
    for plus in (False, True):
        run = compiled(path, lb.export.portable(student, shape), plus)
        y = run(expected.shape[1], x=x.numpy())
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
    wide = student.double()
    path = export(wide, tmp_path / "wide.h", input_shape=shape)
    assert "double *y" in path.read_text()


@needs_compiler
@pytest.mark.parametrize("clip", [False, True])
def test_sums_between_knots_are_those_of_all_features(tmp_path, clip):
    knots = [[-1.0, 0.0, 0.5, 2.0], [], [3.0, 4.0, 7.0]]
    numbers = [("0", None, 0.2, 1.5, 0.0), ("2", None, -1.0, 2.0, 0.0), ("3", None, 5.0, 3.0, 0.0)]
    encoder = TableEncoder(numbers, [], knots=knots, columns=4, clip=clip)
    student = lb.Preprocessed(
        lb.MLP(encoder.width, 6, 3, generator=seeded()), encoder=encoder
    ).eval()
    path = export(student, tmp_path / "s.h", input_shape=(4,))
    x = torch.randn(200, 4, generator=seeded()) * 3
    x[:12, 0] = torch.tensor([-9.0, -1.0, 0.0, 0.5, 2.0, 9.0] * 2)  # knots, and beyond all
    x[:12, 3] = torch.tensor([-9.0, 3.0, 4.0, 7.0, 9.0, 3.5] * 2)
    x[12, 3] = torch.nan
    with torch.no_grad():
        expected = student(x).numpy()
    run = compiled(path, lb.export.portable(student, (4,)))
    np.testing.assert_allclose(run(3, x=x.numpy()), expected, rtol=1e-5, atol=1e-5)
    assert np.isnan(expected[12]).all()
    text = path.read_text()
    assert f"weight1[{3 * 8}]" in text  # of the numbers alone


X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)).numpy()
QUICK = dict(inputs="data", steps=5, pool=60, progress=False, device="cpu")


def labels(rows):
    return 1 / (1 + np.exp(-np.asarray(rows)[:, :3]))


TASKS = {
    "classification": lambda rows: labels(rows) / labels(rows).sum(1, keepdims=True),
    "multilabel": labels,
    "regression": lambda rows: 1e4 + 100 * np.asarray(rows)[:, :2],
}


@needs_compiler
@pytest.mark.parametrize("student", [(5, 3), "tree", "boosted"], ids=str)
@pytest.mark.parametrize("task", TASKS)
def test_results_of_every_task(tmp_path, task, student):
    x = X + np.array([1.7e9, 0, 0, 0])  # as time stamps
    result = lb.compress(TASKS[task], x, student=student, task=task, **QUICK)
    path = result.export(tmp_path / "s.h")
    model = result.portable()
    run = compiled(path, model)
    expected = predictions(result.student, result.row_format.encode(x), task,
                           result.settings.get("student_output"))  # fmt: skip
    y = run(expected.shape[1], x=x)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    x[0, 1], x[1, 2] = np.nan, -np.inf
    y = run(expected.shape[1], x=x)
    assert np.isnan(y[:2]).all()
    np.testing.assert_allclose(y[2:], expected[2:], rtol=1e-5, atol=1e-5)


HOSTILE = '*/ #error "x" \\ ??/\n%s é \u202e'


def aged(rows):
    p = np.clip(np.asarray(rows["age"], float) / 100, 0, 1)
    return np.stack([p, 1 - p], 1)


@needs_compiler
@pytest.mark.parametrize("student", [(4,), "linear", "tree", "boosted"], ids=str)
def test_tables_with_gaps_unknown_codes_and_hostile_names(tmp_path, student):
    df = frames.frame().rename(columns={"pay in €": HOSTILE})
    table = lb.Table(df, categories=["code", "share", "street"])
    result = lb.compress(
        aged, df, student=student, table=table, task="classification", classes=[HOSTILE, "b"],
        **QUICK,
    )  # fmt: skip
    path = result.export(tmp_path / "2 bad-name;.h")
    text = path.read_text()
    assert text.count("*/") == text.count("/*")
    assert set(re.findall(r"^#(\w+)", text, re.MULTILINE)) == {
        "ifndef", "define", "include", "endif",
    }  # fmt: skip
    assert "a C compiler at random inputs" in path.with_name(path.name + ".md").read_text()
    path = path.rename(tmp_path / "s.h")
    path.write_text(text.replace("student_2_bad_name", "s"))
    other = frames.frame(9, seed=1).rename(columns={"pay in €": HOSTILE})
    other.loc[0, "street"] = "elsewhere"
    batch = table.encode(other)
    inputs = encoded_inputs(table, batch)
    for plus in (False, True):
        run = compiled(path, result.portable(), plus)
        y = run(2, **inputs)
        np.testing.assert_allclose(y, result.predict_proba(other), atol=1e-5)
    columns = categories_of(table)
    street = [column.name for column in columns].index("street")
    inputs["codes"][:, street] = 10**6  # no code: as an unknown one
    other["street"] = "elsewhere"
    np.testing.assert_allclose(run(2, **inputs), result.predict_proba(other), atol=1e-5)
    inputs["codes"][1, street] = columns[street].gone  # missing, where nothing was
    inputs["numbers"][2, 0] = np.nan  # an age
    y = run(2, **inputs)
    assert np.isnan(y).any(1).tolist() == [False, True, True] + [False] * 6


@needs_compiler
def test_the_most_probable_class_and_hostile_names_of_classes(tmp_path):
    names = [HOSTILE, "", "b\"'"]
    result = lb.compress(TASKS["classification"], X, student=(3,), classes=names, **QUICK)
    path = result.export(tmp_path / "s.h")
    shows = "int main(void) { float y[3] = {0, 2, 1};"
    shows += ' printf("%d", s_class(y)); y[0] = NAN; printf("%d", s_class(y)); return 0; }'
    (tmp_path / "m.c").write_text(f'#include <stdio.h>\n#include "s.h"\n{shows}\n')
    subprocess.run(["gcc", "m.c", "-lm", "-o", "m"], cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "m"], capture_output=True, check=True)
    assert done.stdout.decode() == "1-1"
    assert path.read_text().isascii() or "\u202e" not in path.read_text()


def test_without_a_compiler_the_card_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    export(net(), tmp_path / "s.h")
    assert "Not run: no C compiler was found." in (tmp_path / "s.h.md").read_text()


@needs_compiler
def test_a_header_that_disagrees_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setitem(c_header.KINDS, "relu", ())
    with raises_about(lb.LimbeckError, "C header", "disagrees"):
        export(net(), tmp_path / "s.h")
    monkeypatch.setitem(c_header.KINDS, "relu", ("nonsense",))
    with pytest.raises(lb.LimbeckError, match="cannot compile the header"):
        export(net(), tmp_path / "s.h")
    assert not list(tmp_path.iterdir())


def test_what_c_cannot_do_and_foreign_headers_are_refused(tmp_path):
    for name in ("layers", "mixture", "ensemble"):
        make, shape = NUMPY[name]
        with pytest.raises(lb.LimbeckError, match="no C form"):
            export(make(), tmp_path / "s.h", input_shape=shape)
    (tmp_path / "s.h").write_text("int mine;")
    with refused("path", "which limbeck did not write"):
        export(net(), tmp_path / "s.h")
    assert (tmp_path / "s.h").read_text() == "int mine;"
