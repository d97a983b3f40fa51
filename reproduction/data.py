r"""The source text's data, read from a folder that the user names."""

from __future__ import annotations

import gzip
import hashlib
import os
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from limbeck.errors import ArgumentError
from limbeck.models.rbm import RBM

__all__ = ["VARIABLE", "Digits", "Images", "binarized", "folder_of", "mnist", "rbm", "read_idx"]

VARIABLE = "LIMBECK_DATA"
r"""The environment variable that names the folder, where no option does."""

BLANK, NEAR = 436.4938, 2e-3
r"""log p̃ of CD25(500) at the blank image, by which the right file is known."""


DIGEST = "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"
r"""SHA-256 of MNIST's file of train images, unpacked: other sets of images have the same shape."""


class Digits(NamedTuple):
    r"""Grey images (n, height · width) from 0 to 1, row by row, with their labels (n,)."""

    train: Tensor
    labels: Tensor
    test: Tensor
    test_labels: Tensor
    shape: tuple[int, int] = (28, 28)


class Images(NamedTuple):
    r"""Binary images (n, 784), each column by column, to train and to test with."""

    train: Tensor
    test: Tensor


def folder_of(folder: Path | str | None) -> Path:
    r"""The folder with the data: the given one, or that of the environment."""
    given = folder if folder is not None else os.environ.get(VARIABLE)
    expected = f"a folder with the data, as --data or in the variable {VARIABLE}"
    if not given:
        raise ArgumentError("data", "nothing", expected)
    if not Path(given).is_dir():
        raise ArgumentError("data", f"{given}, which is no folder", expected)
    return Path(given)


def rbm(folder: Path | str | None = None) -> RBM:
    r"""The RBM CD25(500) of Salakhutdinov & Murray, 2008: 784 visible and 500 hidden units."""
    path = folder_of(folder) / "rbm_cd25_500.npz"
    model = RBM.load(path, dtype=torch.float64)
    found = model.log_unnormalized(torch.zeros(1, model.visible, dtype=torch.float64)).item()
    if (model.visible, model.hidden) != (784, 500) or abs(found - BLANK) > NEAR:
        received = f"{path}, whose log p̃ of the blank image is {found:.4f}"
        raise ArgumentError("data", received, f"the RBM CD25(500), where it is {BLANK}")
    return model.float()


def binarized(folder: Path | str | None = None) -> Images:
    r"""MNIST in the random binarisation of Salakhutdinov & Murray."""
    path = folder_of(folder) / "mnist_binarized.npz"
    try:
        with np.load(path, allow_pickle=False) as file:
            packed = [file["x_train"], file["x_test"]]
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        expected = "a file with packed bits x_train (60000, 98) and x_test (10000, 98)"
        raise ArgumentError("data", f"{path} ({error})", expected) from None
    for bits, rows in zip(packed, (60_000, 10_000), strict=True):
        if bits.shape != (rows, 98) or bits.dtype != np.uint8:
            received = f"{path} with {bits.dtype} of shape {bits.shape}"
            raise ArgumentError("data", received, f"uint8 of shape ({rows}, 98)")
    return Images(*(torch.from_numpy(np.unpackbits(bits, axis=1)).float() for bits in packed))


def mnist(folder: Path | str | None = None) -> Digits:
    r"""MNIST from its four IDX files, packed by gzip or not, in the folder or its folder mnist."""
    images, digest = read_idx(_idx(folder, "train-images-idx3-ubyte"))
    if digest != DIGEST:
        received = f"train images of shape {images.shape} with the SHA-256 {digest[:12]}…"
        raise ArgumentError("data", received, f"those of MNIST, whose SHA-256 is {DIGEST[:12]}…")
    rest = ("train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
    labels, test, test_labels = (read_idx(_idx(folder, name))[0] for name in rest)
    for name, found, shape in zip(
        rest, (labels, test, test_labels), ((60_000,), (10_000, 28, 28), (10_000,)), strict=True
    ):
        if found.shape != shape:
            raise ArgumentError("data", f"{name} of shape {found.shape}", f"shape {shape}")
    grey = [torch.from_numpy(part).flatten(1).float() / 255 for part in (images, test)]
    classes = [torch.from_numpy(part).long() for part in (labels, test_labels)]
    return Digits(grey[0], classes[0], grey[1], classes[1])


def read_idx(path: Path) -> tuple[np.ndarray, str]:
    r"""The bytes of an IDX file as an array of its shape, and the SHA-256 of the unpacked file."""
    expected = "an IDX file of unsigned bytes, packed by gzip or not"
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except (OSError, EOFError) as error:
        raise ArgumentError("data", f"{path} ({error})", expected) from None
    dimensions = content[3] if len(content) > 3 and content[:3] == b"\0\0\x08" else 0
    begin = 4 + 4 * dimensions
    shape = tuple(np.frombuffer(content[4:begin], ">u4").tolist()) if len(content) >= begin else ()
    if not dimensions or len(shape) != dimensions or len(content) != begin + np.prod(shape):
        raise ArgumentError("data", f"{path}, whose header and length do not fit", expected)
    found = np.frombuffer(content, np.uint8, offset=begin).reshape(shape)
    return found.copy(), hashlib.sha256(content).hexdigest()


def _idx(folder: Path | str | None, name: str) -> Path:
    base = folder_of(folder)
    for place in (base / "mnist", base):
        for file in (place / f"{name}.gz", place / name):
            if file.exists():
                return file
    raise ArgumentError("data", f"{base} without {name}", "a folder with MNIST's four IDX files")
