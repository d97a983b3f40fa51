r"""The source text's data, read from a folder that the user names."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from limbeck.errors import ArgumentError
from limbeck.models.rbm import RBM

__all__ = ["VARIABLE", "Images", "binarized", "folder_of", "rbm"]

VARIABLE = "LIMBECK_DATA"
r"""The environment variable that names the folder, where no option does."""

BLANK, NEAR = 436.4938, 2e-3
r"""log p̃ of CD25(500) at the blank image, by which the right file is known."""


class Images(NamedTuple):
    r"""Binary images (n, 784), each column by column, to train and to test with."""

    train: Tensor
    test: Tensor


def folder_of(folder: Path | str | None) -> Path:
    r"""The folder with the data: the given one, or that of the environment."""
    given = folder if folder is not None else os.environ.get(VARIABLE)
    accepted = f"a folder with the data, as --data or in the variable {VARIABLE}"
    if not given:
        raise ArgumentError("data", "nothing", accepted)
    if not Path(given).is_dir():
        raise ArgumentError("data", f"{given}, which is no folder", accepted)
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
        accepted = "a file with packed bits x_train (60000, 98) and x_test (10000, 98)"
        raise ArgumentError("data", f"{path} ({error})", accepted) from None
    for bits, rows in zip(packed, (60_000, 10_000), strict=True):
        if bits.shape != (rows, 98) or bits.dtype != np.uint8:
            received = f"{path} with {bits.dtype} of shape {bits.shape}"
            raise ArgumentError("data", received, f"uint8 of shape ({rows}, 98)")
    return Images(*(torch.from_numpy(np.unpackbits(bits, axis=1)).float() for bits in packed))
