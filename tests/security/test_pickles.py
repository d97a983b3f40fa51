r"""No reader runs a pickle, whatever its file is called; only --trust-pickle does."""

import contextlib
import pickle
import sys
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
from limbeck.teachers.networks import FORMATS, open_model
from tests.security.evil import MARK, Evil, evil_pickle


@pytest.fixture(autouse=True)
def nothing_ran(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert not Path(MARK).exists()


def object_array():
    array = np.empty(2, dtype=object)
    array[:] = [Evil(), 1]
    return array


def evil_files(name):
    r"""Files of a name: a pickle, arrays of objects, an archive of them, a checkpoint of torch."""
    path = Path(name)
    path.write_bytes(evil_pickle())
    yield path
    with open(path, "wb") as file:
        np.save(file, object_array(), allow_pickle=True)
    yield path
    with open(path, "wb") as file:
        np.savez(file, W=object_array(), a=np.zeros(2), b=np.zeros(2), X=object_array())
    yield path
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("W.npy", evil_pickle())
        archive.writestr("data.pkl", evil_pickle())
    yield path
    torch.save({"W": torch.zeros(2), "evil": Evil()}, path)
    yield path


def limbeck(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["limbeck", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code


def test_the_pickle_runs_where_it_is_read():
    r"""So that the tests here can fail."""
    pickle.loads(evil_pickle())
    assert Path(MARK).exists()
    Path(MARK).rmdir()


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet", ".pq", ".npy", ".npz"])
def test_files_of_data(suffix):
    pytest.importorskip("pandas")
    for path in evil_files(f"data{suffix}"):
        with contextlib.suppress(LimbeckError):  # any text may be a table of one column
            read_data(path, "data")


@pytest.mark.slow
@pytest.mark.parametrize("suffix", FORMATS)
def test_files_of_models(suffix):
    library = {".onnx": "onnxruntime"}.get(suffix, FORMATS[suffix].lower())
    pytest.importorskip(library)
    for path in evil_files(f"model{suffix}"):
        with pytest.raises(LimbeckError):
            open_model(path)


@pytest.mark.parametrize("suffix", [".npz", ".mat", ".safetensors"])
def test_files_of_rbms(suffix):
    for path in evil_files(f"rbm{suffix}"):
        with pytest.raises(LimbeckError):
            lb.RBM.load(path)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".nc", ".h5", ".csv"])
def test_files_of_draws(suffix):
    if suffix in (".nc", ".h5"):
        pytest.importorskip("xarray")
    for path in evil_files(f"draws{suffix}"):
        with pytest.raises(LimbeckError):
            as_draws(path)


def test_files_of_a_result():
    student, inputs = lb.MLP(2, 2), lb.inputs.Noise((2,))
    options = {"teacher_output": "logits", "steps": 2, "device": "cpu", "progress": False}
    folder = lb.distill(lambda x: x, student, inputs, **options).save("saved")
    lb.load(folder)
    for path in sorted(Path(folder).iterdir()):
        whole = path.read_bytes()
        for _ in evil_files(path):
            with pytest.raises(LimbeckError):
                lb.load(folder)
        path.write_bytes(whole)
    storage.write("written", {"verb": "logz"}, {"a": np.zeros(2)})
    for _ in evil_files("written/arrays.npz"):
        with contextlib.suppress(LimbeckError):
            storage.read("written")


@pytest.mark.parametrize("name", ["t.pkl", "t.pickle", "t.joblib"])
def test_a_teacher_is_unpickled_only_if_it_is_trusted(name, monkeypatch, capsys):
    Path(name).write_bytes(evil_pickle())
    np.save("x.npy", np.zeros((20, 2)))
    command = ("compress", name, "x.npy", "--steps", 1)
    assert limbeck(monkeypatch, *command) == 2
    assert "--trust-pickle" in capsys.readouterr().err
    assert limbeck(monkeypatch, "info", name) == 0
    assert not Path(MARK).exists()
    assert limbeck(monkeypatch, *command, "--trust-pickle") != 0  # it gave no model
    assert Path(MARK).exists()
    Path(MARK).rmdir()


def test_trust_is_not_taken_from_a_file(monkeypatch, capsys):
    Path("t.pkl").write_bytes(evil_pickle())
    np.save("x.npy", np.zeros((20, 2)))
    Path("a.toml").write_text('teacher = "t.pkl"\ndata = "x.npy"\ntrust_pickle = true\n')
    assert limbeck(monkeypatch, "compress", "--config", "a.toml") == 2
    assert limbeck(monkeypatch, "compress", "t.pkl", "x.npy", "--config", "a.toml") == 2
    assert "trust_pickle" in capsys.readouterr().err


def test_no_code_is_imported_because_a_result_names_it(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("evil.py").write_text(f"import os\nos.mkdir({MARK!r})\nnet = None\n")
    Path("teaching.py").write_text("def teacher(x):\n    return x[:, 0]\n")
    np.save("x.npy", np.random.default_rng(0).normal(size=(80, 2)).astype("float32"))
    words = (
        "compress",
        "teaching:teacher",
        "x.npy",
        "--student",
        2,
        "--inputs",
        "data",
        "--steps",
        2,
    )
    assert limbeck(monkeypatch, *words, "--no-timing", "--no-verdicts", "--out", "out") == 0
    monkeypatch.delitem(sys.modules, "teaching")
    assert limbeck(monkeypatch, "export", "out", "s.npz") == 0
    assert "teaching" not in sys.modules
    for option in ("student", "predict", "teacher"):
        for name in ("evil:net", "evil.py:net", "out/evil.py:net"):
            Path("out/evil.py").write_text(Path("evil.py").read_text())
            Path("out/config.toml").write_text(f'command = "compress"\n{option} = "{name}"\n')
            limbeck(monkeypatch, "export", "out", "s.npz")
            limbeck(monkeypatch, "report", "out")
            limbeck(monkeypatch, "info", "out")
    limbeck(monkeypatch, "logz", "evil.npz", "--proposal", "out")
    assert "evil" not in sys.modules
