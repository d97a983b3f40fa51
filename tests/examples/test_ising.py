r"""The Ising example, on small lattices."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import scipy.stats
import torch

from limbeck.models.energy import Energy
from limbeck.supports import Spins
from tests.refusals import refused

PATH = Path(__file__).parents[2] / "examples" / "ising.py"
ising = runpy.run_path(str(PATH), run_name="ising")
QUICK = {"size": 4, "steps": 400, "hidden": 20, "samples": 400, "burn_in": 60, "device": "cpu"}


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("temperature", [1.0, 2.3, 50.0])
def test_the_transfer_matrix_agrees_with_enumeration(size, temperature):
    x = Spins(size, size).enumerate(0, 2 ** (size * size), dtype=torch.float64)
    log = -ising["energy"](x) / temperature
    assert ising["exact_log_z"](size, temperature) == pytest.approx(log.logsumexp(0).item())
    mean = (log.softmax(0) @ ising["energy"](x)).item()
    assert ising["exact_energy"](size, temperature) == pytest.approx(mean, rel=1e-5)


def test_the_checkerboard_leaves_the_model_invariant():
    support, temperature = Spins(2, 2), 3.0
    advance = ising["checkerboard"](temperature)
    events = support.enumerate(0, 16)
    p = (-ising["energy"](events) / temperature).double().softmax(0)
    start = torch.multinomial(p, 8000, True, generator=torch.Generator().manual_seed(1))
    x = advance(events[start], 2, torch.Generator().manual_seed(2))
    number = ((x.flatten(1) + 1) / 2).long() @ torch.tensor([8, 4, 2, 1])
    found = torch.bincount(number, minlength=16)
    assert scipy.stats.chisquare(found, p * 8000).pvalue > 1e-3
    assert (number != start).any()


def test_both_samplers_come_to_the_same_energies():
    temperature, n = 2.269, 1500
    means = {}
    for name in ("sites", "checkerboard"):
        own = ising["checkerboard"](temperature) if name == "checkerboard" else None
        target = Energy(ising["energy"], Spins(4, 4), temperature, own)
        g = torch.Generator().manual_seed(3)
        x = target.advance(target.support.start(n, g), 60, g)
        energies = ising["energy"](x)
        error = (energies.std() / n**0.5).item()
        exact = ising["exact_energy"](4, temperature)
        assert abs(energies.mean().item() - exact) < 4 * error
        means[name] = energies.mean().item()
    assert len(means) == 2


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["sites", "checkerboard"])
def test_it_finds_log_z_and_draws_the_energies(sampler, tmp_path, capsys):
    figures = ising["main"](**QUICK, sampler=sampler, out=tmp_path)
    assert figures.exact_log_z == pytest.approx(ising["exact_log_z"](4, figures.temperature))
    assert abs(figures.log_z - figures.exact_log_z) < 4 * figures.std_error
    assert figures.std_error < 0.1
    assert figures.model_energy == pytest.approx(figures.exact_energy, abs=0.1)
    assert figures.student_energy == pytest.approx(figures.exact_energy, abs=0.5)
    printed = capsys.readouterr().out
    assert "log Z" in printed
    assert figures.sentence() in printed.replace("\n", " ")
    assert (tmp_path / "ising.png").read_bytes().startswith(b"\x89PNG")
    saved = json.loads((tmp_path / "ising.json").read_text())
    assert saved["log_z"] == figures.log_z
    assert len(saved["energies"]["student"]) == QUICK["samples"]


@pytest.mark.parametrize(
    ("given", "argument", "received", "expected"),
    [
        ({"size": 11}, "size", "^11$", "2 to 10"),
        ({"size": 3, "sampler": "checkerboard"}, "size", "^3$", ""),
        ({"sampler": "cluster"}, "sampler", "'cluster'", ""),
    ],
)
def test_refusals_say_what_came_and_what_is_accepted(given, argument, received, expected):
    with refused(argument, received, expected=expected):
        ising["main"](**given)


@pytest.mark.slow
def test_it_runs_as_a_script():
    found = subprocess.run(
        [sys.executable, str(PATH), "--help"], capture_output=True, text=True, check=True
    )
    assert "--size" in found.stdout
