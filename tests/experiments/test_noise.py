r"""Students of noise by the teacher's first weights, in small."""

import json
import runpy
from pathlib import Path

import pytest

from reproduction import data
from tests.reproduction.digits import small

PATH = Path(__file__).parents[2] / "experiments" / "noise.py"


def test_smaller_first_weights_are_taken_and_figures_kept(monkeypatch, tmp_path, capsys):
    script = runpy.run_path(str(PATH), run_name="noise")
    monkeypatch.setattr(data, "mnist", lambda folder: small())
    arguments = ["--out", str(tmp_path), "--device", "cpu", "--quiet", "--scales", "1", "0.1",
                 "--members", "2", "--teacher-hidden", "8", "--teacher-steps", "40",
                 "--steps", "40", "--seeds", "2"]  # fmt: skip
    found = script["main"](arguments)
    assert json.loads((tmp_path / "noise.json").read_text()) == found
    one, other = found["scales"]
    assert one["teacher"] != other["teacher"]
    assert len(one["students"]) == 2
    for line, entry in zip(capsys.readouterr().out.splitlines(), found["scales"], strict=True):
        mean = sum(each["log_prob"] for each in entry["students"]) / 2
        assert float(line.split()[-1]) == pytest.approx(mean, abs=1e-4)
