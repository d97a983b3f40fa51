r"""Files that version 0.1 saved still load, and give what they gave."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import limbeck as lb
from tests.refusals import refused

SAVED = Path(__file__).parent / "saved"
EXPECTED = json.loads((SAVED / "expected.json").read_text(encoding="utf-8"))
ROWS = np.array(EXPECTED["rows"], np.float32)


def near(values, name):
    np.testing.assert_allclose(np.asarray(values), EXPECTED[name], rtol=1e-4, atol=1e-5)


def test_a_distilled_net():
    result = lb.load(SAVED / "distilled")
    near(result.student(torch.as_tensor(ROWS)).detach(), "distilled")
    assert result.steps == 20


def test_a_checkpoint(tmp_path):
    r"""The same run reads it and has nothing left to do; another run refuses it."""
    shutil.copytree(SAVED / "checkpoint", tmp_path / "checkpoint")
    options = {"steps": 20, "checkpoint": tmp_path / "checkpoint", "seed": 0, "progress": False}
    teacher, inputs = lb.MLP(3, 4, 2), lb.inputs.Dataset(torch.as_tensor(np.tile(ROWS, (12, 1))))
    result = lb.distill(teacher, lb.MLP(3, 2, 2), inputs, **options)
    near(result.student(torch.as_tensor(ROWS)).detach(), "distilled")
    with pytest.raises(lb.CheckpointError):
        lb.distill(teacher, lb.MLP(3, 5, 2), inputs, **options)


def test_a_compressed_forest():
    near(lb.load(SAVED / "compressed").predict_proba(ROWS), "compressed")


def test_a_compressed_tree():
    near(lb.load(SAVED / "tree").predict(ROWS), "tree")


def test_a_compressed_table():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"age": [20, 30, 40, 50, 20], "town": list("abcaa"), "z": ROWS[:, 0]})
    near(lb.load(SAVED / "table").predict_proba(frame), "table")


def test_a_mixture_and_a_bag():
    density = lb.load(SAVED / "mixture")
    near(density.student.log_prob(torch.linspace(-1, 1, 5)[:, None]).detach(), "mixture")
    bag = lb.load(SAVED / "bag", predict=lambda draw, x: lb.Bernoulli(logits=x @ draw))
    assert bag.student(torch.as_tensor(ROWS)).mean.shape == (5,)


def test_a_nade_and_an_rbm():
    events = torch.tensor(EXPECTED["events"])
    near(lb.load(SAVED / "nade").student.log_prob(events).detach(), "nade")
    near(lb.RBM.load(SAVED / "rbm.npz").log_unnormalized(events).detach(), "rbm")


def test_a_folder_of_before_manifests_is_refused():
    with refused("folder", "without manifest.json"):
        lb.load(SAVED / "before")
