r"""A weight file with NaN in it loaded without a word, and `predict` gave class 0 for every row."""

import importlib.util
import json

import numpy as np
import pytest
import torch
from torch import nn

import limbeck as lb
from limbeck.storage import files, folders
from tests.refusals import raises_about

X = np.random.default_rng(0).normal(size=(60, 3)).astype("float32")


def labels(rows):
    p = 1 / (1 + np.exp(-np.asarray(rows)[:, 0]))
    return np.stack([1 - p, p], 1)


def damage(path, value, name=None):
    r"""Save a file again with another last number of one tensor, as a diverged training would."""
    tensors, metadata = files.read_tensors(path)
    name = name or next(key for key, tensor in tensors.items() if tensor.is_floating_point())
    tensors[name].view(-1)[-1] = value
    about, kind = json.loads(metadata["about"]), metadata["format"]
    if (path.parent / folders.MANIFEST).exists():
        content = {path.name: files.encode(tensors, about, kind)}
        folders.write(path.parent, "result", content, keep=None)
    else:
        files.write(path, tensors, about, kind)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_compressed_net_with_such_weights_is_refused(tmp_path, value):
    result = lb.compress(labels, X, student=(4,), steps=5, progress=False)
    result.save(tmp_path)
    name = next(n for n, _ in result.student.named_parameters())
    damage(tmp_path / "student.safetensors", value, name)
    with pytest.raises(lb.LimbeckError, match="not finite"):
        lb.load(tmp_path)


def test_an_intact_tree_loads_although_its_leaves_have_infinite_thresholds(tmp_path):
    result = lb.compress(labels, X, student="tree", progress=False)
    result.save(tmp_path)
    expected = result.predict_proba(X)
    np.testing.assert_allclose(lb.load(tmp_path).predict_proba(X), expected)


@pytest.mark.parametrize("name", ["value", "threshold", "base"])
def test_a_tree_with_nan_is_refused(tmp_path, name):
    result = lb.compress(labels, X, student="tree", progress=False)
    result.save(tmp_path)
    own = next(key for key in result.student.state_dict() if key.endswith(name))
    damage(tmp_path / "student.safetensors", float("nan"), own)
    with pytest.raises(lb.LimbeckError, match="not finite"):
        lb.load(tmp_path)


def test_a_density_with_nan_is_refused(tmp_path):
    path = lb.NADE(4, hidden=3).save(tmp_path / "nade.safetensors")
    damage(path, float("nan"))
    with pytest.raises(lb.LimbeckError, match="not finite"):
        lb.NADE.load(path)


def test_an_rbm_with_nan_is_refused(tmp_path):
    path = lb.RBM.random(4, 3).save(tmp_path / "rbm.safetensors")
    damage(path, float("nan"), "b")
    with pytest.raises(lb.LimbeckError):
        lb.RBM.load(path)


def test_a_module_of_the_users_own_with_nan_is_refused(tmp_path):
    student = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    teacher = nn.Linear(3, 2)
    result = lb.distill(teacher, student, X, "square_error", steps=3, progress=False)
    result.save(tmp_path)
    damage(tmp_path / "student.safetensors", float("nan"), "1.running_var")
    with raises_about(lb.LimbeckError, "1.running_var"):
        lb.load(tmp_path, nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))


def test_a_condensed_bag_with_nan_is_refused(tmp_path):
    draws = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))

    def predict(draw, x):
        return lb.Bernoulli(logits=x @ draw)

    result = lb.condense(draws, predict, X, components=2, steps=5, progress=False)
    result.save(tmp_path)
    damage(tmp_path / "student.safetensors", float("nan"))
    with pytest.raises(lb.LimbeckError, match="not finite"):
        lb.load(tmp_path, predict=predict)


def test_a_checkpoint_with_nan_is_not_taken_up(tmp_path):
    def run(steps):
        torch.manual_seed(0)
        return lb.distill(
            nn.Linear(3, 2),
            nn.Linear(3, 2),
            X,
            "square_error",
            steps=steps,
            schedule="constant",
            checkpoint=tmp_path,
            progress=False,
        )

    run(3)
    damage(tmp_path / "checkpoint-3.safetensors", float("nan"), "student.weight")
    with pytest.raises(lb.LimbeckError, match="not finite"):
        run(6)


def test_a_numpy_predictor_with_nan_is_refused_by_its_own_script(tmp_path):
    result = lb.compress(labels, X, student=(4,), steps=5, progress=False)
    result.export(tmp_path / "plain", format="numpy")
    with np.load(tmp_path / "plain/weights.npz") as file:
        arrays = dict(file)
    name = next(key for key, array in arrays.items() if array.dtype.kind == "f")
    arrays[name].reshape(-1)[-1] = np.nan
    np.savez(tmp_path / "plain/weights.npz", **arrays)
    spec = importlib.util.spec_from_file_location("damaged", tmp_path / "plain/predict.py")
    with pytest.raises(ValueError, match="NaN"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
