r"""RBMs in files: every form there and back, and files that are none."""

from __future__ import annotations

import os
import re
import stat

import numpy as np
import pytest
import scipy.io
import torch
from safetensors.torch import save_file

from limbeck.errors import LimbeckError
from limbeck.models.rbm import RBM
from tests.models.nets import DOUBLE, generator
from tests.refusals import raises_about, refused

RNG = np.random.default_rng(0)
ARRAYS = {"W": RNG.normal(size=(4, 3)), "a": RNG.normal(size=4), "b": RNG.normal(size=3)}
MATLAB = {
    "vishid": ARRAYS["W"],
    "visbiases": ARRAYS["a"][None],
    "hidbiases": ARRAYS["b"][None],
}


def write(path, arrays: dict) -> None:
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    elif path.suffix == ".mat":
        scipy.io.savemat(path, arrays)
    else:
        save_file({k: torch.tensor(np.ascontiguousarray(v)) for k, v in arrays.items()}, path)


FORMS = [".npz", ".safetensors", ".mat"]


@pytest.mark.parametrize("suffix", FORMS)
@pytest.mark.parametrize("arrays", [ARRAYS, MATLAB], ids=["W", "vishid"])
def test_every_form_under_both_kinds_of_names(tmp_path, suffix, arrays) -> None:
    path = tmp_path / f"rbm{suffix}"
    write(path, arrays | {"epoch": np.array([7])})
    rbm = RBM.load(path)
    assert {p.dtype for p in rbm.parameters()} == {torch.float32}
    exact = RBM.load(str(path), dtype=DOUBLE)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(getattr(exact, name).detach().numpy(), array)
        np.testing.assert_array_equal(getattr(rbm, name).detach().numpy(), np.float32(array))


def test_columns_of_biases_are_taken_too(tmp_path) -> None:
    write(tmp_path / "rbm.mat", {**MATLAB, "hidbiases": MATLAB["hidbiases"].T})
    assert RBM.load(tmp_path / "rbm.mat").hidden == 3


def test_one_hidden_unit(tmp_path) -> None:
    write(tmp_path / "rbm.mat", {"W": np.ones((4, 1)), "a": np.zeros((1, 4)), "b": [[0.5]]})
    rbm = RBM.load(tmp_path / "rbm.mat")
    assert (rbm.visible, rbm.hidden, rbm.b.item()) == (4, 1, 0.5)


@pytest.mark.parametrize("suffix", FORMS[:2])
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_what_is_saved_is_loaded(tmp_path, suffix, dtype) -> None:
    rbm = RBM.random(5, 2, 1.0, generator(), dtype=dtype)
    path = tmp_path / "deep" / f"rbm{suffix.upper()}"
    assert rbm.save(path) == path
    other = RBM.load(path, dtype=dtype)
    for mine, theirs in zip(rbm.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert os.listdir(path.parent) == [path.name]
    if os.name == "posix":
        plain = tmp_path / "plain"
        plain.touch()
        assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


@pytest.mark.parametrize("suffix", FORMS[:2])
def test_a_failed_save_leaves_the_old_file(tmp_path, suffix, monkeypatch) -> None:
    path = tmp_path / f"rbm{suffix}"
    RBM.random(5, 2, 1.0, generator()).save(path)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with raises_about(LimbeckError, path, "no space left on device"):
        RBM.random(6, 2).save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]


def test_only_known_forms_are_written(tmp_path) -> None:
    with refused("path", ".*rbm.mat"):
        RBM.random(2, 2).save(tmp_path / "rbm.mat")
    (tmp_path / "file").touch()
    with raises_about(LimbeckError, tmp_path / "file"):
        RBM.random(2, 2).save(tmp_path / "file" / "rbm.npz")


# files that are none


def refuses_file(path, received: str = "", expected: str = "") -> None:
    with refused("path", f"{re.escape(str(path))}.*{received}", expected=expected):
        RBM.load(path)


@pytest.mark.parametrize("suffix", FORMS)
def test_there_is_no_such_file(tmp_path, suffix) -> None:
    refuses_file(tmp_path / f"none{suffix}", "which does not exist")
    (folder := tmp_path / f"folder{suffix}").mkdir()
    refuses_file(folder, "a folder")


def test_other_endings(tmp_path) -> None:
    (path := tmp_path / "rbm.pt").touch()
    refuses_file(path, expected=r"a name that ends in \.npz, \.safetensors, \.mat")


@pytest.mark.parametrize("suffix", FORMS)
@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 broken", b"hello " * 100, bytes(600)])
def test_rubbish(tmp_path, suffix, content) -> None:
    (path := tmp_path / f"rbm{suffix}").write_bytes(content)
    refuses_file(path, r"which (cannot be read|holds nothing)")


@pytest.mark.parametrize("suffix", FORMS)
def test_a_file_that_was_cut_short(tmp_path, suffix) -> None:
    path = tmp_path / f"rbm{suffix}"
    write(path, ARRAYS)
    path.write_bytes(path.read_bytes()[:-60])
    refuses_file(path, "which cannot be read")


@pytest.mark.parametrize("suffix", FORMS)
def test_other_models(tmp_path, suffix) -> None:
    write(path := tmp_path / f"net{suffix}", {"weight": np.zeros((2, 3)), "bias": np.zeros(3)})
    refuses_file(path, "bias, weight", "W, a and b, or vishid")


def test_a_single_array(tmp_path) -> None:
    with open(path := tmp_path / "rbm.npz", "wb") as file:
        np.save(file, np.zeros(3))
    refuses_file(path, "it is no npz file")


def test_pickles_are_not_read(tmp_path) -> None:
    class Trap:
        def __reduce__(self):
            return pytest.fail, ("a pickle was run",)

    np.savez(path := tmp_path / "rbm.npz", W=np.array([Trap()], dtype=object), a=[0], b=[0])
    refuses_file(path, "cannot be read")


def test_matlab_7_3(tmp_path) -> None:
    head = b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM"  # version 2 is HDF5
    (path := tmp_path / "rbm.mat").write_bytes(head + bytes(400))
    refuses_file(path, "versions 5 to 7, .*'-v7'")


@pytest.mark.parametrize("suffix", FORMS)
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"W": ARRAYS["W"].T}, r"whose W has shape \(3, 4\), which looks transposed"),
        ({"a": np.zeros(5)}, r"a has shape \(5,\)"),
        ({"b": np.zeros((2, 2))}, r"whose b has shape \(2, 2\)"),
        ({"W": ARRAYS["W"] * np.nan}, "whose W has 12 NaN or infinite values"),
    ],
    ids=["transposed", "length", "square", "nan"],
)
def test_arrays_that_do_not_fit(tmp_path, suffix, wrong, message) -> None:
    write(path := tmp_path / f"rbm{suffix}", ARRAYS | wrong)
    refuses_file(path, message)


def test_cells_and_texts(tmp_path) -> None:
    scipy.io.savemat(path := tmp_path / "rbm.mat", {**MATLAB, "vishid": {"a": 1}})
    refuses_file(path, "vishid is not a full matrix of real numbers")


def test_a_bad_type_is_not_the_files_fault(tmp_path) -> None:
    write(path := tmp_path / "rbm.npz", ARRAYS)
    with refused("dtype", r"torch\.float16"):
        RBM.load(path, dtype=torch.float16)
