r"""Result folders come back as they were written, and nothing else is read."""

import io
import json
import math

import numpy as np
import pytest
import torch

import limbeck as lb
from limbeck import storage
from limbeck.errors import ArgumentError, CheckpointError
from limbeck.storage import EMPTY, folders
from limbeck.training.result import History, Result
from tests.refusals import raises_about, refused

CONTENT = {"verb": "logz", "title": "log Z", "summary": "It is 3.", "settings": {"samples": 10}}
ARRAYS = {"draws": np.arange(6.0).reshape(2, 3), "names": np.array(["a", "b"]), "n": np.array([3])}


def test_what_is_written_comes_back(tmp_path):
    folder = storage.write(tmp_path / "new" / "folder", CONTENT, ARRAYS)
    content, arrays = storage.read(folder)
    assert content == {**EMPTY, **CONTENT, "format": storage.FORMAT}
    assert set(arrays) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(arrays[name], array)


def test_numbers_that_json_lacks_become_null(tmp_path):
    given = {
        **CONTENT,
        "seconds": np.float32(0.5),
        "exact": math.inf,
        "history": {"loss": [1, math.nan]},
    }
    found = storage.read(storage.write(tmp_path, given)).content
    assert found["seconds"] == 0.5
    assert found["exact"] is None
    assert found["history"] == {"loss": [1, None]}
    json.loads((tmp_path / "result.json").read_text(), parse_constant=pytest.fail)


def test_tensors_are_arrays_too_and_other_files_stay(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    storage.write(tmp_path, CONTENT, {"x": torch.ones(2, requires_grad=True)})
    np.testing.assert_array_equal(storage.read(tmp_path).arrays["x"], [1, 1])
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "arrays.npz", "manifest.json", "notes.txt", "result.json",
    ]  # fmt: skip


def test_a_result_without_arrays_is_one(tmp_path):
    content = storage.to_files(CONTENT, None, tmp_path)
    folders.write(tmp_path, "result", {"result.json": content["result.json"]})
    assert storage.read(tmp_path).arrays == {}


def test_a_student_stays_and_a_report_goes(tmp_path):
    result = Result(lb.MLP(2, 2), History(), 0, "made by hand", 0.0)
    result.save(tmp_path)
    storage.write(tmp_path, CONTENT)
    folders.write(tmp_path, "report", {"report.md": b"a page"}, keep=None)
    assert lb.load(tmp_path).stop_reason == "made by hand"
    storage.write(tmp_path, CONTENT | {"title": "new"})
    assert lb.load(tmp_path).stop_reason == "made by hand"
    assert not (tmp_path / "report.md").exists()
    result.save(tmp_path)  # the result told of another student
    with refused("folder", r"without result\.json"):
        storage.read(tmp_path)


@pytest.mark.parametrize(
    ("content", "arrays", "argument", "received", "expected"),
    [
        ({"verb": "compres"}, {}, "verb", "'compres'", "did you mean 'compress'"),
        ({}, {}, "verb", "^None$", ""),
        ({"verb": "logz", "history": [1]}, {}, "history", "^a list$", ""),
        ({"verb": "logz", "title": None}, {}, "title", "a NoneType", ""),
        ({"verb": "logz", "verdicts": {}}, {}, "verdicts", "^a dict$", ""),
        (CONTENT, {"x": [object()]}, "arrays['x']", "an array of object", ""),
        ({**CONTENT, "format": "other"}, {}, "folder", "format 'other'", ""),
    ],
)
def test_what_is_no_result_is_not_written(tmp_path, content, arrays, argument, received, expected):
    with refused(argument, received, expected=expected):
        storage.write(tmp_path / "r", content, arrays)
    assert not (tmp_path / "r").exists()


def test_a_failed_write_leaves_the_result_as_it_was(tmp_path):
    storage.write(tmp_path, CONTENT, ARRAYS)
    with pytest.raises(ArgumentError):
        storage.write(tmp_path, {**CONTENT, "title": "new"}, {"x": [object()]})
    content, arrays = storage.read(tmp_path)
    assert content["title"] == "log Z"
    assert set(arrays) == set(ARRAYS)


def test_a_file_is_no_folder(tmp_path):
    path = tmp_path / "file"
    path.write_text("x")
    with refused("folder", "a file"):
        storage.write(path, CONTENT)
    with refused("folder", "which is no folder"):
        storage.read(path)
    with refused("folder", "which is no folder"):
        storage.read(tmp_path / "nowhere")


def test_an_unfinished_run_is_told_from_another_folder(tmp_path):
    with refused("folder", r"without manifest\.json"):
        storage.read(tmp_path)
    folders.write(tmp_path, "unfinished", {"config.toml": b""})
    with refused("folder", "an unfinished run", expected="run the same command again to continue"):
        storage.read(tmp_path)


@pytest.mark.parametrize("text", ["{", "", "\x00"])
def test_broken_json_is_refused(tmp_path, text):
    folders.write(tmp_path, "result", {"result.json": text.encode()})
    with raises_about(CheckpointError, "result.json"):
        storage.read(tmp_path)


@pytest.mark.parametrize("text", ["[]", '{"steps": 3}', '{"format": "limbeck-result-9"}'])
def test_other_json_is_refused(tmp_path, text):
    folders.write(tmp_path, "result", {"result.json": text.encode()})
    with refused("folder", expected="'limbeck-result-1'"):
        storage.read(tmp_path)


def test_pickles_and_broken_arrays_are_refused(tmp_path):
    storage.write(tmp_path, CONTENT)
    archive = io.BytesIO()
    np.savez(archive, x=np.array([{"a": 1}], dtype=object))
    for content in (archive.getvalue(), b"PK no archive"):
        folders.write(tmp_path, "result", {"arrays.npz": content}, keep=None)
        with raises_about(CheckpointError, "arrays.npz"):
            storage.read(tmp_path)
