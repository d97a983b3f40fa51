r"""The data that the user names: found, checked, or refused with the reason."""

import gzip
import hashlib
import os
import struct

import numpy as np
import pytest
import torch

from limbeck.errors import LimbeckError
from limbeck.models.rbm import RBM
from reproduction import data
from tests.refusals import raises_about, refused

HAVE = pytest.mark.skipif(data.VARIABLE not in os.environ, reason=f"{data.VARIABLE} is not set")


@pytest.fixture(autouse=True)
def no_environment(request, monkeypatch):
    if "data" not in request.keywords:
        monkeypatch.delenv(data.VARIABLE, raising=False)


def write_images(folder, rows=(60_000, 10_000), columns=98, dtype=np.uint8):
    rng = np.random.default_rng(0)
    bits = [rng.integers(0, 256, (n, columns)).astype(dtype) for n in rows]
    np.savez(folder / "mnist_binarized.npz", x_train=bits[0], x_test=bits[1])
    return bits


def test_a_folder_must_be_named(tmp_path):
    with refused("data", "^nothing$", expected="LIMBECK_DATA"):
        data.folder_of(None)
    with refused("data", "which is no folder"):
        data.folder_of(tmp_path / "absent")


def test_the_environment_names_it_where_no_option_does(tmp_path, monkeypatch):
    monkeypatch.setenv(data.VARIABLE, str(tmp_path))
    assert data.folder_of(None) == tmp_path
    (tmp_path / "other").mkdir()
    assert data.folder_of(tmp_path / "other") == tmp_path / "other"


def test_images_are_unpacked_bit_by_bit(tmp_path):
    train, test = write_images(tmp_path)
    found = data.binarized(tmp_path)
    assert found.train.shape == (60_000, 784)
    assert found.test.shape == (10_000, 784)
    first = [int(bit) for byte in test[0] for bit in f"{byte:08b}"]
    assert found.test[0].tolist() == first
    assert set(found.train[:10].unique().tolist()) == {0.0, 1.0}
    assert int(found.train[-1, :8].sum()) == int(train[-1, 0]).bit_count()


@pytest.mark.parametrize(
    ("settings", "received", "expected"),
    [
        ({"rows": (10, 10)}, "", r"uint8 of shape \(60000, 98\)"),
        ({"columns": 97}, "", r"\(60000, 98\)"),
        ({"dtype": np.int32}, "int32", ""),
    ],
)
def test_other_images_are_refused(tmp_path, settings, received, expected):
    write_images(tmp_path, **settings)
    with refused("data", received, expected=expected):
        data.binarized(tmp_path)


@pytest.mark.parametrize("content", [None, b"no archive", "names"])
def test_files_that_hold_no_images_are_refused(tmp_path, content):
    path = tmp_path / "mnist_binarized.npz"
    if content == "names":
        np.savez(path, images=np.zeros(3))
    elif content is not None:
        path.write_bytes(content)
    with raises_about(LimbeckError, "x_train"):
        data.binarized(tmp_path)


def test_another_rbm_is_refused(tmp_path):
    rbm = RBM.random(784, 500, 0.1, torch.Generator().manual_seed(0))
    rbm.save(tmp_path / "rbm_cd25_500.npz")
    with refused("data", "log p̃ of the blank image is", expected=r"436\.4938"):
        data.rbm(tmp_path)
    with pytest.raises(LimbeckError):
        data.rbm(tmp_path.parent / "nowhere")


def idx(array, kind=8):
    return struct.pack(f">HBB{array.ndim}I", 0, kind, array.ndim, *array.shape) + array.tobytes()


@pytest.mark.parametrize("packed", [False, True])
def test_idx_files_are_read_packed_or_not(tmp_path, packed):
    array = np.random.default_rng(0).integers(0, 256, (3, 4, 5)).astype(np.uint8)
    content = idx(array)
    (tmp_path / "file").write_bytes(gzip.compress(content) if packed else content)
    found, digest = data.read_idx(tmp_path / "file")
    assert np.array_equal(found, array)
    assert digest == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no IDX file",
        idx(np.zeros((3, 4), np.uint8))[:-1],
        idx(np.zeros((3, 4), np.uint8)) + b"\0",
        idx(np.zeros((3, 4), np.uint8), kind=13),
        gzip.compress(idx(np.zeros(9, np.uint8)))[:-4],
    ],
    ids=["empty", "words", "short", "long", "floats", "cut off"],  # gzip writes the time
)
def test_what_is_no_idx_file_is_refused(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    with refused("data", str(tmp_path / "file"), expected="an IDX file"):
        data.read_idx(tmp_path / "file")


def write_mnist(folder, images=(60, 28, 28), labels=60, test=10):
    rng = np.random.default_rng(0)
    for name, shape in (
        ("train-images-idx3-ubyte.gz", images),
        ("train-labels-idx1-ubyte", (labels,)),
        ("t10k-images-idx3-ubyte.gz", (test, 28, 28)),
        ("t10k-labels-idx1-ubyte", (test,)),
    ):
        content = idx(rng.integers(0, 10, shape).astype(np.uint8))
        (folder / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    return hashlib.sha256(gzip.decompress((folder / "train-images-idx3-ubyte.gz").read_bytes()))


def test_images_of_another_set_are_refused(tmp_path, monkeypatch):
    with refused("data", "without train-images-idx3-ubyte"):
        data.mnist(tmp_path)
    (tmp_path / "mnist").mkdir()
    digest = write_mnist(tmp_path / "mnist").hexdigest()
    with raises_about(LimbeckError, digest[:12]):
        data.mnist(tmp_path)
    monkeypatch.setattr(data, "DIGEST", digest)
    with refused("data", r"train-labels-idx1-ubyte of shape \(60,\)"):
        data.mnist(tmp_path)


@HAVE
@pytest.mark.data
def test_mnist_is_mnist():
    digits = data.mnist()
    assert digits.train.shape == (60_000, 784)
    assert digits.test.shape == (10_000, 784)
    assert digits.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert digits.test_labels.bincount().tolist() == [
        980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009,
    ]  # fmt: skip
    assert (digits.train.min(), digits.train.max()) == (0, 1)
    image = digits.train[0].reshape(digits.shape)  # a five, written row by row
    assert image[:5].sum() == 0 < image[5, 12:24].sum()


@HAVE
@pytest.mark.data
def test_the_real_ones_are_the_right_ones():
    rbm, images = data.rbm(), data.binarized()
    with torch.no_grad():
        log_p = rbm.double().log_unnormalized(images.test.double())
    assert log_p.mean().item() - 451.28 == pytest.approx(-86.354, abs=1e-3)
