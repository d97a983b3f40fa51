r"""Export: an ONNX file gives what torch gives, at any batch size, or is not left behind."""

import importlib.util

import numpy as np
import pytest
import torch
from torch import nn

import limbeck as lb
from limbeck import export

needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnxscript", "onnxruntime")),
    reason="needs the extra limbeck[onnx]",
)
X = torch.randn(40, 4, generator=torch.Generator().manual_seed(1))


def net(seed, **options):
    return lb.MLP(4, 6, 3, generator=torch.Generator().manual_seed(seed), **options)


def distilled(student, inputs=X, **options):
    settings = dict(steps=4, batch_size=5, device="cpu") | options
    return lb.distill(lambda x: x.flatten(1)[:, :3].softmax(1), student, inputs, **settings)


def run(path, x):
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]


def picture():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))


STUDENTS = {
    "MLP": (lambda: net(1), X, "auto"),
    "probabilities": (lambda: net(1, output="softmax"), X, "auto"),
    "ensemble": (lambda: lb.Ensemble([net(1), net(2)]), X, "auto"),
    "module of the user's own": (picture, X.reshape(10, 1, 4, 4), "logits"),
}


@needs_onnx
@pytest.mark.parametrize("name", STUDENTS)
def test_the_file_agrees_with_torch_at_any_batch_size(tmp_path, name):
    make, inputs, form = STUDENTS[name]
    result = distilled(make(), inputs, student_output=form)
    path = tmp_path / "new" / "student.onnx"
    assert result.export(path) == path
    assert [file.name for file in path.parent.iterdir()] == ["student.onnx"]  # weights included
    student = result.student.eval()
    for n in (1, 2, 7):
        x = torch.randn(n, *inputs.shape[1:])
        with torch.no_grad():
            np.testing.assert_allclose(run(path, x), student(x), rtol=1e-4, atol=1e-6)


@needs_onnx
def test_every_layer_keeps_its_mode(tmp_path):
    student = picture()
    student[1].eval()
    result = distilled(student, X.reshape(10, 1, 4, 4), student_output="logits")
    modes = [module.training for module in student.modules()]
    assert modes.count(False) == 1
    result.export(tmp_path / "student.onnx")
    assert [module.training for module in student.modules()] == modes


@pytest.mark.parametrize("name", ["student.pt", "student", "student.onnx.zip"])
def test_another_ending_is_refused(tmp_path, name):
    with pytest.raises(lb.ArgumentError, match=r"path: got .*a name that ends in \.onnx"):
        distilled(net(1)).export(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_student_of_several_tensors_is_refused(tmp_path):
    shapes = {"age": [], "pixels": [8, 8]}
    with pytest.raises(lb.ArgumentError, match="a student of one tensor, for ONNX"):
        export.to_onnx(net(1), tmp_path / "student.onnx", shapes)


def test_without_the_extra_the_error_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(lb.LimbeckError, match=r"pip install 'limbeck\[onnx\]'"):
        distilled(net(1)).export(tmp_path / "student.onnx")


@needs_onnx
def test_a_file_that_disagrees_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(export, "TOLERANCE", -1.0)
    with pytest.raises(lb.LimbeckError, match=r"disagrees with torch by .*, and was removed"):
        distilled(net(1)).export(tmp_path / "student.onnx")
    assert not list(tmp_path.iterdir())


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else self.layer(-x)


@needs_onnx
def test_a_student_that_cannot_be_exported_is_refused_with_the_reason(tmp_path):
    result = distilled(Branching(), student_output="logits")
    with pytest.raises(lb.LimbeckError, match="export: torch cannot write Branching as ONNX"):
        result.export(tmp_path / "student.onnx")
    assert not list(tmp_path.iterdir())
    assert result.student.training
