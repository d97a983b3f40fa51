r"""Files that cannot be read are refused by name, with the reason."""

from __future__ import annotations

import numpy as np
import pytest

from limbeck import environment
from limbeck.compression.dispatch import as_row_teacher
from limbeck.errors import LimbeckError
from tests.refusals import raises_about, refused

X = np.zeros((3, 2))


def test_other_endings_and_missing_files_are_refused(tmp_path) -> None:
    for name in ("model.pkl", "resnet", "model.pt"):
        with refused("teacher", name, expected="ends in .onnx, .json"):
            as_row_teacher(name, X)
    with refused("teacher", "which does not exist"):
        as_row_teacher(tmp_path / "model.onnx", X)


@pytest.mark.parametrize(
    ("ending", "library", "expected"),
    [
        ("onnx", "onnxruntime", "a model as ONNX writes it"),
        ("json", "xgboost", "a model as XGBoost writes it"),
        ("txt", "lightgbm", "a model as LightGBM writes it"),
        ("cbm", "catboost", "a model as CatBoost writes it"),
    ],
)
def test_what_is_no_model_is_refused_with_the_librarys_reason(
    ending, library, expected, tmp_path
) -> None:
    pytest.importorskip(library)
    path = tmp_path / f"model.{ending}"
    path.write_text("hello")
    with refused("teacher", "which cannot be read", expected=expected) as error:
        as_row_teacher(path, X)
    assert error.value.__cause__ is not None


def test_a_missing_library_is_named_with_its_extra(tmp_path, monkeypatch) -> None:
    def absent(name: str):
        raise ImportError(name)

    monkeypatch.setattr(environment.importlib, "import_module", absent)
    for ending, extra in (("onnx", "onnx"), ("json", "boosting"), ("cbm", "boosting")):
        path = tmp_path / f"model.{ending}"
        path.write_text("hello")
        with raises_about(LimbeckError, f"limbeck[{extra}]"):
            as_row_teacher(path, X)
