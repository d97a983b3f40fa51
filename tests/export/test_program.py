r"""Programs of torch.export: what is loaded back gives what torch gives, without limbeck."""

import json
import zipfile

import pytest
import torch
from torch import nn

import limbeck as lb
from limbeck.export import CHECKS, export
from limbeck.export.portable import exporting
from tests.export.students import EVERY, net, rows
from tests.refusals import raises_about, refused

SOME = [  # of bags only those that differ for a tracer
    name for name in EVERY if "bag: " not in name or name in ("bag: softmax", "bag: network")
]


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
def test_the_program_agrees_with_torch_at_any_batch_size(tmp_path, name):
    make, shape = EVERY[name]
    student = make().eval()
    path = export(student, tmp_path / "new" / "student.pt2", input_shape=shape, card=False)
    with exporting(name, "a program"):
        program = torch.export.load(path).module()
    for n in (1, 2, 7):
        x = rows(student, shape, n)
        with torch.no_grad():
            torch.testing.assert_close(program(x), student(x), rtol=1e-4, atol=1e-5)


def test_the_file_is_a_zip_that_says_what_it_is(tmp_path):
    path = export(net(), tmp_path / "student.pt2", card=False)
    with zipfile.ZipFile(path) as file:
        (name,) = [name for name in file.namelist() if name.endswith("limbeck.json")]
        about = json.loads(file.read(name))
    assert about["student"] == "MLP"
    assert about["shape"] == [4]
    assert about["form"] == "logits"


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else self.layer(-x)


def test_refusals(tmp_path, monkeypatch):
    path = tmp_path / "student.pt2"
    with refused("path", expected=r"a name that ends in \.pt2"):
        export(net(), tmp_path / "student.pt", "pt2", card=False)
    with refused("student", "a Linear of unknown inputs"):
        export(nn.Linear(4, 3), path, card=False)
    with refused("input_shape", "'four'"):
        export(nn.Linear(4, 3), path, input_shape="four", card=False)
    with raises_about(lb.LimbeckError, "Branching"):
        export(Branching(), path, input_shape=4, card=False)
    monkeypatch.setitem(CHECKS, "pt2", ("program", "torch.export.load", -1.0))
    with raises_about(lb.LimbeckError, "program", "disagrees"):
        export(net(), path, card=False)
    assert not list(tmp_path.iterdir())
