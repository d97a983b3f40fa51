r"""Results: saved, read back, printed."""

import json

import pytest
import safetensors.torch
import torch
from torch import nn

import limbeck as lb
from limbeck import storage
from limbeck.storage import files, folders
from limbeck.training.result import ABOUT, STUDENT, History
from tests.models.nets import batch_of
from tests.refusals import raises_about, refused

X = torch.randn(40, 4, generator=torch.Generator().manual_seed(1))


def net(seed, *sizes, **options):
    generator = torch.Generator().manual_seed(seed)
    return lb.MLP(*(sizes or (4, 6, 3)), generator=generator, **options)


class Own(nn.Module):
    r"""A module of the user's own, with tied weights and a buffer."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.last = nn.Linear(4, 3)
        self.register_buffer("scale", torch.rand(3))

    def forward(self, x):
        return self.last(self.second(self.first(x).relu())) * self.scale


def distilled(student, inputs=X, **options):
    settings = dict(steps=6, batch_size=5, device="cpu", student_output="logits") | options
    return lb.distill(lambda x: x[:, :3].softmax(1), student, inputs, **settings)


STUDENTS = {
    "MLP": lambda s: net(s),
    "MLP in double precision": lambda s: net(s, dtype=torch.float64, hidden="tanh"),
    "list of MLPs": lambda s: lb.Ensemble([net(s), net(s + 1, 4, 5, 3)], [1, 3]),
    "ensemble": lambda s: lb.Ensemble(batch_of([net(s), net(s + 1)])),
}


@pytest.mark.parametrize("name", STUDENTS)
def test_limbecks_own_models_are_read_back_without_a_student(tmp_path, name):
    student = STUDENTS[name](1)
    inputs = X.to(next(student.parameters()).dtype)
    result = distilled(student, inputs, student_output="auto")
    assert result.save(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    back = lb.load(tmp_path / "a" / "b")
    assert type(back.student) is type(student)
    assert back.student is not student
    torch.testing.assert_close(back.student.state_dict(), student.state_dict(), rtol=0, atol=0)
    assert torch.equal(back.student(inputs), student(inputs))


def test_the_story_is_read_back_with_the_student(tmp_path):
    result = distilled(net(1), loss=lb.losses.cross_entropy() + lb.losses.square_error())
    result.save(tmp_path)
    back = lb.load(tmp_path)
    for name in ("steps", "stop_reason", "seconds", "engine", "settings"):
        assert getattr(back, name) == getattr(result, name)
    assert dict(back.history) == dict(result.history)
    assert back.failure is None
    assert str(back) == str(result)


@pytest.mark.parametrize("whole", [True, False])
def test_a_users_module_is_read_back_into_an_empty_copy(tmp_path, whole):
    student = Own(1) if whole else lb.Ensemble([Own(1), net(2)], output_forms=["logits", None])
    empty = Own(5) if whole else lb.Ensemble([Own(5), net(6)], output_forms=["logits", None])
    distilled(student, student_output="logits" if whole else "auto").save(tmp_path)
    with refused("student", "None"):
        lb.load(tmp_path)
    assert not torch.equal(empty(X), student(X))
    back = lb.load(tmp_path, student=empty)
    assert back.student is empty
    assert torch.equal(empty(X), student(X))


class MLP(nn.Module):
    r"""A module of the user's own that has a name, and a method, of one of limbeck's."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x)

    def spec(self):
        return object()


def test_a_users_module_is_not_taken_for_the_model_of_the_same_name(tmp_path):
    distilled(MLP()).save(tmp_path)
    with refused("student", expected="an empty copy"):
        lb.load(tmp_path)
    assert type(lb.load(tmp_path, MLP()).student) is MLP


@pytest.mark.parametrize(
    ("student", "said"),
    [
        (nn.Linear(4, 3), "lacks bias, weight"),
        (net(1, 4, 7, 3), r"layers.0.weight in .* is \(6, 4\).* and here \(7, 4\)"),
        (net(1, 4, 6, 3, bias=False), "holds layers.0.bias, layers.1.bias, for which there is no"),
        (net(1, 4, 6, 3, dtype=torch.float64), "of torch.float32, and here .* of torch.float64"),
    ],
)
def test_a_copy_that_does_not_fit_is_refused(tmp_path, student, said):
    distilled(net(1)).save(tmp_path)
    with pytest.raises(lb.CheckpointError, match=said):
        lb.load(tmp_path, student=student)


def test_a_folder_without_a_student_is_refused(tmp_path):
    with refused("folder", r"without manifest\.json"):
        lb.load(tmp_path)
    storage.write(tmp_path, {"verb": "logz"})
    with refused("folder", "which holds no student"):
        lb.load(tmp_path)


FIELDS = {"steps": 1, "stop_reason": "", "seconds": 1.5, "engine": "", "processes": 1}
FIELDS |= {"compile_seconds": 0, "settings": {}, "history": {}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "JSON"),
        ("{", "JSON"),
        ("[" * 10**5, "JSON"),
        ("1" * 10**4, "JSON"),
        ("[]", "a list"),
        (json.dumps(FIELDS | {"surprise": 1}), "got 'surprise'"),
        (json.dumps(FIELDS | {"steps": True}), ".steps: "),
        (json.dumps(FIELDS | {"history": {"a": ["b"]}}), ".a[0]: "),
        (json.dumps(FIELDS | {"settings": [1]}), ".settings: "),
    ],
)
def test_a_training_record_that_cannot_be_read_is_refused(tmp_path, text, said):
    distilled(net(1)).save(tmp_path)
    folders.write(tmp_path, "result", {ABOUT: text.encode()}, keep=None)
    with raises_about(lb.CheckpointError, "training.json", said):
        lb.load(tmp_path)


def test_a_student_of_somebody_else_is_refused(tmp_path):
    distilled(net(1)).save(tmp_path)
    content = safetensors.torch.save({"weight": torch.zeros(3)})
    folders.write(tmp_path, "result", {STUDENT: content}, keep=None)
    with raises_about(lb.CheckpointError, STUDENT):
        lb.load(tmp_path)


@pytest.mark.parametrize("spec", [{"type": "Popen", "args": ["true"]}, {"type": "__doc__"}, 3])
def test_a_description_cannot_make_anything_but_limbecks_models(tmp_path, spec):
    distilled(net(1)).save(tmp_path)
    content = files.encode({"a": torch.zeros(1)}, {"spec": spec}, "limbeck-student-1")
    folders.write(tmp_path, "result", {STUDENT: content}, keep=None)
    with refused("student", expected="an empty copy"):
        lb.load(tmp_path)


@pytest.mark.parametrize("dtype", ["Tensor", "nn", "complex64", 3])
def test_a_description_names_types_of_a_table_only(dtype):
    for model in (net(1), lb.NADE(3, 2), lb.GaussianMixture(2, 3)):
        with refused("spec.dtype"):
            type(model).from_spec(model.spec() | {"dtype": dtype})


def test_saving_again_replaces_what_was_there(tmp_path):
    distilled(net(1)).save(tmp_path)
    result = distilled(net(2))
    result.save(tmp_path)
    assert torch.equal(lb.load(tmp_path).student(X), result.student(X))
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(
        [STUDENT, ABOUT, "manifest.json"]
    )


@pytest.mark.parametrize("show", [str, repr])
def test_a_result_prints_as_a_table_that_ends_with_one_sentence(show):
    result = distilled(net(1), steps=1200, batch_size=1, every=600)
    text = show(result)
    loss = result.history["loss"]
    expected = f"In 1,200 steps and {result.seconds:.1f} s the loss went from {loss[0]:.4g} to"
    assert text.splitlines()[-1] == f"{expected} {loss[1]:.4g}."
    for part in ("MLP, 51 parameters", "cross_entropy", "1,200 (eager)", "all 1,200 steps done"):
        assert part in text


def test_a_result_without_looks_says_so():
    result = lb.Result(net(1), History(), 0, "nothing to do", 0.0)
    assert str(result).endswith("In 0 steps and 0.0 s nothing was measured.")
