r"""The data that the user names: found, checked, or refused with the reason."""

import os

import numpy as np
import pytest
import torch

from limbeck.errors import LimbeckError
from limbeck.models.rbm import RBM
from limbeck.reproduction import data

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
    with pytest.raises(LimbeckError, match=r"data: got nothing; accepted: .*LIMBECK_DATA"):
        data.folder_of(None)
    with pytest.raises(LimbeckError, match="which is no folder"):
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
    ("settings", "message"),
    [
        ({"rows": (10, 10)}, r"uint8 of shape \(60000, 98\)"),
        ({"columns": 97}, r"\(60000, 98\)"),
        ({"dtype": np.int32}, "int32"),
    ],
)
def test_other_images_are_refused(tmp_path, settings, message):
    write_images(tmp_path, **settings)
    with pytest.raises(LimbeckError, match=message):
        data.binarized(tmp_path)


@pytest.mark.parametrize("content", [None, b"no archive", "names"])
def test_files_that_hold_no_images_are_refused(tmp_path, content):
    path = tmp_path / "mnist_binarized.npz"
    if content == "names":
        np.savez(path, images=np.zeros(3))
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(LimbeckError, match="x_train"):
        data.binarized(tmp_path)


def test_another_rbm_is_refused(tmp_path):
    rbm = RBM.random(784, 500, 0.1, torch.Generator().manual_seed(0))
    rbm.save(tmp_path / "rbm_cd25_500.npz")
    with pytest.raises(LimbeckError, match=r"log p̃ of the blank image is .*436\.4938"):
        data.rbm(tmp_path)
    with pytest.raises(LimbeckError):
        data.rbm(tmp_path.parent / "nowhere")


@HAVE
@pytest.mark.data
def test_the_real_ones_are_the_right_ones():
    rbm, images = data.rbm(), data.binarized()
    with torch.no_grad():
        log_p = rbm.double().log_unnormalized(images.test.double())
    assert log_p.mean().item() - 451.28 == pytest.approx(-86.354, abs=1e-3)
