r"""`export`: results of every verb leave in every format, by the name of the path."""

import importlib.util

import numpy as np
import pytest
import torch
from torch import nn

import limbeck as lb
from limbeck.export import FORMATS, export
from tests.export.students import nade, net, seeded
from tests.refusals import refused

needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnxscript", "onnxruntime")),
    reason="needs the extra limbeck[onnx]",
)
X = torch.randn(60, 4, generator=seeded())
QUICK = dict(steps=3, device="cpu", progress=False)


def compressed(task):
    def teacher(rows):
        first = np.asarray(rows)[:, :1]
        return first * 3 if task == "regression" else 1 / (1 + np.exp([[1, -1]] * first))

    names = None if task == "regression" else ["no", "yes"]
    return lb.compress(
        teacher, X.numpy(), student=(3,), task=task, inputs="data", pool=60, classes=names, **QUICK
    )


def condensed():
    posterior = torch.randn(40, 5, generator=seeded())
    return lb.condense(posterior, lb.condensation.models.logistic(), X, components=2, **QUICK)


def density():
    posterior = torch.randn(1, 40, 1, generator=seeded())
    predict = lambda draw: lb.Normal(draw[0], draw.new_ones(()))  # noqa: E731
    return lb.condense(posterior[0], predict, components=2, restarts=1, samples=200, **QUICK)


def normalized():
    rbm = lb.RBM(0.1 * torch.randn(5, 3, generator=seeded()), torch.zeros(5), torch.zeros(3))
    return lb.normalize(rbm, nade(), chains=20, burn_in=2, batch_size=10, **QUICK)


RESULTS = {
    "distill": lambda: lb.distill(lambda x: x[:, :3].softmax(1), net(), X, **QUICK),
    "classes": lambda: compressed("classification"),
    "values": lambda: compressed("regression"),
    "condense": condensed,
    "density": density,
    "normalize": normalized,
}


def answers(result, x):
    r"""What the result itself says."""
    with torch.no_grad():
        if isinstance(result, lb.Compressed):
            found = result._predictions(x.numpy())
            return torch.as_tensor(found)
        if getattr(result, "head", None) is not None:
            return result.predict(x).mean
        return result.student(x)


def run(path, format, x):
    if format == "pt2":
        return torch.export.load(path).module()(x)
    if format == "onnx":
        import onnxruntime

        return onnxruntime.InferenceSession(str(path)).run(None, {"x": x.numpy()})[0]
    made: dict = {"__file__": str(path / "predict.py")}
    exec((path / "predict.py").read_text(), made)
    return made["predict"](x.numpy())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch about itself
@pytest.mark.parametrize("verb", RESULTS)
def test_every_verbs_result_leaves_in_every_format(tmp_path, verb):
    result = RESULTS[verb]()
    shape = result.portable().shape
    x = X if verb != "normalize" else lb.Binary(5).start(60, seeded())
    x = x[:7, : shape[0]]
    expected = answers(result, x)
    for format in FORMATS:
        if format == "c":  # has its own tests, of the students that it can write
            continue
        if format == "onnx" and (importlib.util.find_spec("onnxruntime") is None):
            continue
        path = result.export(tmp_path, format)
        found = torch.as_tensor(run(path, format, x)).double()
        torch.testing.assert_close(found, expected.double(), rtol=1e-4, atol=1e-5, msg=format)
    names = {"predict.py", "weights.npz", "card.md", "student.pt2", "student.pt2.md"}
    assert names <= {file.name for file in tmp_path.iterdir()}


def test_the_path_says_which(tmp_path):
    assert export(net(), tmp_path / "a.pt2").is_file()
    assert export(net(), tmp_path / "b.npz").is_file()
    assert export(net(), tmp_path / "c").is_dir()
    assert export(net(), tmp_path / "c", "pt2", card=False) == tmp_path / "c" / "student.pt2"
    assert sorted(str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*.*")) == [
        "a.pt2", "a.pt2.md", "b.npz", "b.npz.md", "b.py", "c/card.md",
        "c/manifest.json", "c/predict.py", "c/student.pt2", "c/weights.npz",
    ]  # fmt: skip


def test_estimators_leave_too(tmp_path):
    made = lb.DistilledClassifier(student=(3,), steps=3, device="cpu")
    made.fit(X.numpy(), (X[:, 0] > 0).numpy())
    path = export(made, tmp_path / "s.npz")
    found: dict = {"__file__": str(path.with_suffix(".py"))}
    exec(path.with_suffix(".py").read_text(), found)
    p = found["predict"](X.numpy())
    np.testing.assert_allclose(p, made.predict_proba(X.numpy()), atol=1e-5)
    assert found["label"](X.numpy()) == made.classes_[p.argmax(1)].tolist()


def test_what_is_not_understood_is_refused(tmp_path):
    for name in ("student.pt", "student.onnx.zip", "v1.2"):
        with refused("path", expected=r"\.onnx, \.pt2, \.h or \.npz, or a"):
            export(net(), tmp_path / name)
    with refused("format", "'onxx'", expected="did you mean 'onnx'"):
        export(net(), tmp_path / "s.onnx", "onxx")
    with refused("path", expected=r"ends in \.pt2"):
        export(net(), tmp_path / "s.onnx", "pt2")
    with refused("student", "a dict"):
        export({}, tmp_path / "s.pt2")
    with refused("student", "unknown inputs"):
        export(nn.Linear(2, 1), tmp_path / "s")
    (tmp_path / "s.pt2.md").write_text("my notes")
    with refused("path", r"s\.pt2\.md is, which limbeck did not write"):
        export(net(), tmp_path / "s.pt2")
    assert [file.name for file in tmp_path.iterdir()] == ["s.pt2.md"]


def test_a_folder_that_cannot_be_written_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(lb.LimbeckError, match=r"export: .*cannot be written"):
        export(net(), tmp_path / "file" / "s.pt2")


def test_a_name_that_says_another_format_is_refused(tmp_path):
    for format, name in (("numpy", "a.onnx"), ("onnx", "a.pt2"), ("pt2", "a.npz")):
        with refused("path", f"the format {format}"):
            export(lb.MLP(3, 2), tmp_path / name, format)
    assert not list(tmp_path.iterdir())
