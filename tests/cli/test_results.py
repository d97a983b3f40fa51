r"""`limbeck report`, `limbeck export` and `limbeck info`, on results and files."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import limbeck as lb


@pytest.fixture
def result(limbeck, here):
    words = ("compress", "models:net", "train.csv", "--drop", "y", "--student", "8", "--inputs")
    words = (*words, "data", "--steps", "40", "--no-timing", "--no-verdicts", "--out", "out")
    assert limbeck(*words).code == 0
    return Path("out")


def test_a_report_is_written(limbeck, result):
    pytest.importorskip("matplotlib")
    found = limbeck("report", result)
    assert found.code == 0, found.err
    page = Path(found.out.strip())
    assert page == result / "report.html"
    assert "limbeck compress models:net train.csv" in page.read_text()
    assert (result / "report.md").exists()
    assert (result / "report.json").exists()


def test_a_student_is_exported(limbeck, result):
    runtime = pytest.importorskip("onnxruntime")
    found = limbeck("export", result, "student.onnx")
    assert found.code == 0, found.err
    assert found.out.strip() == "student.onnx"
    session = runtime.InferenceSession("student.onnx", providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).normal(size=(5, 3)).astype("float32")
    name = session.get_inputs()[0].name
    expected = lb.load(result).predict_proba(x)
    np.testing.assert_allclose(session.run(None, {name: x})[0], expected, atol=1e-5)


def condensed(limbeck, predict, out):
    words = ("condense", "draws.npz", "--predict", predict, "--inputs", "x.npy", "--components")
    words = (*words, "3", "--steps", "20", "--engine", "eager", "--no-verdicts", "--out", out)
    found = limbeck(*words)
    assert found.code == 0, found.err
    return out


def exported(limbeck, *words):
    r"""What an exported program says of the inputs."""
    found = limbeck("export", *words, "bag.pt2")
    assert found.code == 0, found.err
    program = torch.export.load("bag.pt2").module()
    return program(torch.tensor(np.load("x.npy"))).detach()


def test_a_ready_made_bag_is_exported_as_it_is(limbeck, here):
    out = condensed(limbeck, "logistic", "out")
    expected = lb.load(out).predict(np.load("x.npy")).mean
    torch.testing.assert_close(exported(limbeck, out), expected, rtol=1e-5, atol=1e-6)
    assert limbeck("export", out, "bag.npz").code == 0
    lb.load(out).save("alone")
    assert "logistic" in limbeck("info", "alone").out


def test_a_bag_of_ones_own_function_says_what_it_needs(limbeck, refused, here):
    out = condensed(limbeck, "models:predict", "out")
    first = exported(limbeck, out, "--predict", "models:predict")
    lb.load(out, predict=sys.modules["models"].predict).save("alone")
    assert "a function of your own" in limbeck("info", "alone").out
    Path("models.py").rename("moved.py")
    del sys.modules["models"]
    line = refused("export", out, "bag.pt2")
    assert re.match("--predict: expected .*, as module:name", line)
    assert "(then 'models:predict')" in line
    torch.testing.assert_close(exported(limbeck, out, "--predict", "moved:predict"), first)
    line = refused("export", out, "bag.pt2", "--predict", "linear")
    assert re.match("--predict: expected .*, got a function that fails at the saved draws", line)
    assert "'logistic'" in refused("export", out, "bag.pt2", "--predict", "logistik")
    assert "which gave Bernoulli" in refused("export", out, "bag.pt2", "--predict", "poisson")


def test_a_function_is_for_bags_only(refused, result):
    line = refused("export", result, "bag.pt2", "--predict", "logistic")
    assert re.match("--predict: expected .*, got a function", line)
    assert "no result of condense" in line


def test_what_is_no_result_is_refused(refused, here):
    Path("empty").mkdir()
    for command in (("report",), ("export",)):
        more = ("a.npz",) if command == ("export",) else ()
        assert "which does not exist" in refused(*command, "nowhere", *more)
        assert "rbm.npz, a file" in refused(*command, "rbm.npz", *more)
        assert "without manifest.json" in refused(*command, "empty", *more)


def test_a_result_without_a_student_is_refused(limbeck, refused, here):
    assert limbeck("logz", "rbm.npz").code == 0
    assert "holds no student" in refused("export", "limbeck-logz", "a.onnx")


def test_an_ending_that_is_not_known_is_refused(refused, result):
    assert ".onnx" in refused("export", result, "student.docx")


def test_info_shows_versions_and_devices(limbeck):
    found = limbeck("info")
    assert found.code == 0
    shown = dict(line.split(maxsplit=1) for line in found.out.splitlines())
    assert shown["limbeck"] == lb.__version__
    assert shown["torch"] == torch.__version__
    assert int(shown["threads"]) == torch.get_num_threads()
    assert (shown["gpu"] == "none") == (not torch.cuda.is_available())
    assert shown["compiler"]
    assert json.loads(limbeck("info", "--json").out) == {k: v.strip() for k, v in shown.items()}


def test_info_says_what_a_file_is(limbeck, here):
    Path("model.pkl").write_bytes(b"whatever")
    for file, said in (
        ("rbm.npz", "an RBM of 6 × 3 units"),
        ("draws.npz", "beta (4, 100, 2)"),
        ("train.csv", "a table of 80 rows and 4 columns"),
        ("x.npy", "an array of shape (100, 2) and type float32"),
        ("model.pkl", "it is not opened"),
    ):
        found = limbeck("info", file)
        assert found.code == 0, found.err
        assert said in found.out


def test_info_says_what_a_result_is(limbeck, result):
    pytest.importorskip("onnxruntime")
    found = limbeck("info", result).out
    assert "a result of limbeck compress" in found
    assert "limbeck compress models:net train.csv" in found
    lb.load(result).save("alone")
    assert "a student: Preprocessed" in limbeck("info", "alone").out
    limbeck("export", result, "student.onnx")
    assert "an ONNX model" in limbeck("info", "student.onnx").out


def test_info_refuses_what_it_does_not_know(refused, here):
    Path("notes.docx").write_text("")
    assert "ends in" in refused("info", "notes.docx")
    assert "which does not exist" in refused("info", "nothing.npz")
    assert "without manifest.json" in refused("info", ".")
