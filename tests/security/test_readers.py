r"""Files that claim or expand to more than they hold, or lead elsewhere, are refused."""

import io
import json
import struct
import sys
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import limbeck as lb
from limbeck import cli, storage
from limbeck.cli.files import read_data
from limbeck.errors import LimbeckError
from limbeck.posteriors.read import as_draws
from limbeck.teachers.networks import open_model
from tests.security.evil import evil_pickle

SECRET = "the content of a file elsewhere"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    r"""A folder inside another, which has a file that is none of limbeck's business."""
    (tmp_path / "here").mkdir()
    (tmp_path / "secret.txt").write_text(SECRET)
    monkeypatch.chdir(tmp_path / "here")
    yield
    assert (tmp_path / "secret.txt").read_text() == SECRET
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "secret.txt"]


def saved(folder="saved"):
    student, inputs = lb.MLP(2, 2), lb.inputs.Noise((2,))
    options = {"teacher_output": "logits", "steps": 2, "device": "cpu", "progress": False}
    return Path(lb.distill(lambda x: x, student, inputs, **options).save(folder))


def limbeck(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["limbeck", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code


def npy_header(shape, dtype="<f8"):
    file = io.BytesIO()
    about = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, about)
    return file.getvalue()


def archive(path, members, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", method) as file:
        for name, content in members.items():
            file.writestr(name, content)


HUGE = [(2**40,), (2**62,), (2**31, 2**31, 4), (10**12, 10**12)]


@pytest.mark.parametrize("shape", HUGE)
def test_an_array_that_claims_more_than_its_file_holds(shape):
    Path("a.npy").write_bytes(npy_header(shape) + bytes(64))
    archive("a.npz", {"W.npy": npy_header(shape), "a.npy": npy_header(shape), "b.npy": b""})
    for read in (lambda p: read_data(p, "data"), as_draws):
        for path in (Path("a.npy"), Path("a.npz")):
            with pytest.raises(LimbeckError):
                read(path)
    with pytest.raises(LimbeckError):
        lb.RBM.load("a.npz")


@pytest.fixture(scope="module")
def bomb(tmp_path_factory):
    r"""One gigabyte of zeros in one megabyte."""
    count, path = 2**27, tmp_path_factory.mktemp("bomb") / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        with file.open("W.npy", "w", force_zip64=True) as member:
            member.write(npy_header((count // 2**10, 2**10)))
            for _ in range(2**7):
                member.write(bytes(8 * count // 2**7))
        for name in ("a", "b"):
            file.writestr(f"{name}.npy", npy_header((1,)) + bytes(8))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("reader", ["data", "draws", "rbm"])
def test_an_archive_that_expands_without_end(reader, bomb):
    read = {"data": lambda p: read_data(p, "data"), "draws": as_draws, "rbm": lb.RBM.load}[reader]
    tracemalloc.start()
    try:
        with pytest.raises(LimbeckError):
            read(bomb)
        assert tracemalloc.get_traced_memory()[1] < 3e8
    finally:
        tracemalloc.stop()


def test_a_member_that_is_no_array_is_refused():
    archive("a.npz", {"W.npy": evil_pickle(), "data.pkl": evil_pickle()})
    with pytest.raises(LimbeckError):
        read_data(Path("a.npz"), "data")
    storage.write("written", {"verb": "logz"}, {"a": np.zeros(2)})
    Path("a.npz").replace("written/arrays.npz")
    with pytest.raises(LimbeckError):
        storage.read("written")


@pytest.mark.parametrize("name", ["../secret.txt", "/etc/x.npy", "..\\x.npy", "a/../../x.npy"])
def test_names_in_an_archive_are_not_paths(name):
    file = io.BytesIO()
    np.save(file, np.zeros((4, 50, 2)))
    archive("a.npz", {name: file.getvalue()}, zipfile.ZIP_STORED)
    try:
        read_data(Path("a.npz"), "data")
        as_draws("a.npz")
    except LimbeckError:
        pass


def safetensors(header, content=b""):
    return struct.pack("<Q", len(header)) + header + content


HEADERS = {
    "longer than the file": struct.pack("<Q", 2**63) + b"{}",
    "a huge tensor": safetensors(
        json.dumps({"w": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
    ),
    "deep": safetensors(b'{"a":' + b"[" * 10**5 + b"]" * 10**5 + b"}"),
    "offsets of others": safetensors(
        json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}).encode(), bytes(4)
    ),
    "not JSON": safetensors(b"\xff" * 16),
    "empty": b"",
}


@pytest.mark.parametrize("name", HEADERS)
def test_headers_of_weights(name):
    folder = saved()
    (folder / "student.safetensors").write_bytes(HEADERS[name])
    Path("rbm.safetensors").write_bytes(HEADERS[name])
    with pytest.raises(LimbeckError):
        lb.load(folder)
    with pytest.raises(LimbeckError):
        lb.RBM.load("rbm.safetensors")


JSON = {
    "deep": "[" * 10**5 + "]" * 10**5,
    "a long number": "1" * 10**5,
    "a list": "[]",
    "a name twice": '{"a": 1, "a": 2}',
    "infinite": '{"history": {"loss": [1e999]}, "steps": NaN}',
}


@pytest.mark.parametrize("name", JSON)
def test_json_of_a_result(name):
    folder = saved()
    for path in sorted(folder.glob("*.json")):
        whole = path.read_text()
        path.write_text(JSON[name])
        with pytest.raises(LimbeckError):
            lb.load(folder)
        path.write_text(whole)


def test_a_deep_configuration_is_refused(monkeypatch, capsys):
    Path("a.toml").write_text("seed = " + "[" * 10**5 + "]" * 10**5)
    assert limbeck(monkeypatch, "compress", "a:b", "x.npy", "--config", "a.toml") == 2
    assert "fault of limbeck" not in capsys.readouterr().err


def test_links_in_a_result_folder_are_refused():
    folder = saved()
    elsewhere = saved("elsewhere")
    lb.load(folder)
    for path in sorted(folder.iterdir()):
        whole = path.read_bytes()
        path.unlink()
        path.symlink_to((elsewhere / path.name).resolve())
        with pytest.raises(LimbeckError):
            lb.load(folder)
        path.unlink()
        path.write_bytes(whole)
    lb.load(folder)


def onnx_model(location, weights=None):
    r"""An ONNX file whose weights are in another file."""
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    tensor = onnx.TensorProto(name="w", data_type=kind, dims=[2, 2], data_location=1)
    for key, value in {"location": location, "offset": "0", "length": "16"}.items():
        tensor.external_data.add(key=key, value=value)
    x, y = (helper.make_tensor_value_info(name, kind, ["n", 2]) for name in "xy")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", [x], [y], [tensor])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    Path("model.onnx").write_bytes(model.SerializeToString())


def test_a_model_reads_weights_beside_it():
    pytest.importorskip("onnxruntime")
    onnx_model("weights.bin")
    np.eye(2, dtype="float32").tofile("weights.bin")
    session = open_model("model.onnx")[0]
    np.testing.assert_array_equal(session.run(None, {"x": np.ones((1, 2), "float32")})[0], [[1, 1]])


@pytest.mark.parametrize("way", ["parent", "absolute", "link"])
def test_a_model_does_not_read_outside_its_folder(way):
    pytest.importorskip("onnxruntime")
    outside = Path("..", "secret.txt")
    locations = {"parent": str(outside), "absolute": str(outside.resolve()), "link": "weights.bin"}
    if way == "link":
        Path("weights.bin").symlink_to(outside.resolve())
    onnx_model(locations[way])
    with pytest.raises(LimbeckError):
        open_model("model.onnx")


def teacher_files():
    Path("teaching_here.py").write_text("def teacher(x):\n    return x[:, 0]\n")
    np.save("x.npy", np.random.default_rng(0).normal(size=(80, 2)).astype("float32"))
    words = ("compress", "teaching_here:teacher", "x.npy", "--student", "2", "--inputs", "data")
    return (*words, "--steps", "2", "--no-timing", "--no-verdicts", "--out", "out")


def test_out_that_leads_to_a_folder_of_others_is_left_alone(monkeypatch):
    command = teacher_files()
    Path("mine").mkdir()
    Path("mine/thesis.txt").write_text("years of work")
    Path("out").symlink_to("mine")
    for more in ((), ("--overwrite",)):
        assert limbeck(monkeypatch, *command, *more) == 2
    assert [path.name for path in Path("mine").iterdir()] == ["thesis.txt"]


def test_overwriting_removes_links_and_not_what_they_lead_to(monkeypatch):
    command = teacher_files()
    assert limbeck(monkeypatch, *command) == 0
    Path("mine").mkdir()
    Path("mine/thesis.txt").write_text("years of work")
    for path in sorted(Path("out").iterdir()):
        if path.is_file() and path.name not in ("config.toml", "result.json", "manifest.json"):
            path.unlink()
            path.symlink_to(Path("mine/thesis.txt").resolve())
    Path("out/extra").symlink_to(Path("mine").resolve())
    limbeck(monkeypatch, *command, "--overwrite", "--seed", "1")
    assert Path("mine/thesis.txt").read_text() == "years of work"


def test_weights_are_not_unpickled_by_torch(monkeypatch):
    def load(*args, **options):
        raise AssertionError("torch.load")

    monkeypatch.setattr(torch, "load", load)
    lb.load(saved())
