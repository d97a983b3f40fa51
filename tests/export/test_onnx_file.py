r"""ONNX: a file gives what torch gives, at any batch size, or is not left behind."""

import importlib.util

import numpy as np
import pytest
import torch
from torch import nn

import limbeck as lb
from limbeck import export
from limbeck.export import CHECKS
from tests.export.students import EVERY, net, rows
from tests.refusals import raises_about, refused

needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnxscript", "onnxruntime")),
    reason="needs the extra limbeck[onnx]",
)
X = torch.randn(40, 4, generator=torch.Generator().manual_seed(1))


def distilled(student, inputs=X, **options):
    settings = dict(steps=4, batch_size=5, device="cpu") | options
    return lb.distill(lambda x: x.flatten(1)[:, :3].softmax(1), student, inputs, **settings)


def run(path, x):
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]


# trees, scaled nets and NADE are exported by their own tests and by those of results
SOME = ["MLP of all kinds", "bag of the user's own", "mixture", "deep NADE of states", "MADE"]


@pytest.mark.slow
@needs_onnx
@pytest.mark.parametrize("name", SOME)
def test_the_file_agrees_with_torch_at_any_batch_size(tmp_path, name):
    make, shape = EVERY[name]
    student = make().eval()
    path = tmp_path / "new" / "student.onnx"
    assert export.export(student, path, input_shape=shape, card=False) == path
    assert [file.name for file in path.parent.iterdir()] == ["student.onnx"]  # weights included
    for n in (1, 2, 7):
        x = rows(student, shape, n)
        with torch.no_grad():
            np.testing.assert_allclose(run(path, x), student(x), rtol=1e-4, atol=1e-5)


@needs_onnx
@pytest.mark.parametrize(("student", "most"), [((8,), 14), ("tree", 6)])
def test_nets_and_trees_are_written_in_few_nodes_without_torchs_exporter(
    tmp_path, monkeypatch, student, most
):
    import onnx

    def refuse(*args, **options):
        raise RuntimeError("not needed")

    monkeypatch.setattr(torch.onnx, "export", refuse)
    rows = X.numpy()
    result = lb.compress(
        lambda x: np.stack([x[:, 0] > 0, x[:, 0] <= 0], 1) * 0.8 + 0.1, rows, student, steps=5,
        teacher_output="probabilities", inputs="data", device="cpu", progress=False,
    )  # fmt: skip
    result.export(tmp_path / "student.onnx")
    nodes = onnx.load(tmp_path / "student.onnx").graph.node
    assert sum(node.op_type != "Constant" for node in nodes) <= most
    answers = run(tmp_path / "student.onnx", X[:5])
    np.testing.assert_allclose(answers, result.predict_proba(rows[:5]), rtol=1e-4, atol=1e-5)


def picture():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))


@needs_onnx
def test_a_module_of_the_users_own_and_every_layer_keeps_its_mode(tmp_path):
    student = picture()
    student[1].eval()
    result = distilled(student, X.reshape(10, 1, 4, 4), student_output="logits")
    modes = [module.training for module in student.modules()]
    assert modes.count(False) == 1
    path = result.export(tmp_path / "student.onnx")
    assert [module.training for module in student.modules()] == modes
    x = torch.randn(3, 1, 4, 4)
    with torch.no_grad():
        np.testing.assert_allclose(run(path, x), student.eval()(x), rtol=1e-4, atol=1e-5)


def test_another_ending_is_refused(tmp_path):
    with refused("path", expected=r"a name that ends in \.onnx"):
        export.export(net(), tmp_path / "student.pt", "onnx")


def test_a_student_of_several_tensors_is_refused(tmp_path):
    with refused("student", "unknown inputs"):
        export.export(nn.Linear(4, 3), tmp_path / "student.onnx")


def test_without_the_extra_the_error_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with raises_about(lb.LimbeckError, "limbeck[onnx]"):
        distilled(net()).export(tmp_path / "student.onnx")


@needs_onnx
def test_a_file_that_disagrees_leaves_the_old_one_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "student.onnx"
    path.write_text("an old one")
    monkeypatch.setitem(CHECKS, "onnx", ("ONNX file", "onnxruntime", -1.0))
    with raises_about(lb.LimbeckError, "disagrees"):
        export.export(net(), path)
    assert [file.name for file in tmp_path.iterdir()] == ["student.onnx"]
    assert path.read_text() == "an old one"


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else self.layer(-x)


class Fixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x.reshape(len(x), -1))


@needs_onnx
@pytest.mark.parametrize(
    ("kind", "message"),
    [(Branching, "export: torch cannot write Branching as ONNX"), (Fixed, "rows must stay free")],
    ids=["branching", "fixed"],
)
def test_a_student_that_cannot_be_exported_is_refused_with_the_reason(tmp_path, kind, message):
    result = distilled(kind(), student_output="logits")
    with pytest.raises(lb.LimbeckError, match=message):
        result.export(tmp_path / "student.onnx")
    assert not list(tmp_path.iterdir())
    assert result.student.training
