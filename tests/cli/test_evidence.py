r"""`limbeck evidence` on files of draws."""

import json
from pathlib import Path

import numpy as np
import pytest

CODE = """
import torch
from torch.distributions import Gamma, Normal


def log_density(draw):
    return Normal(0.0, 1.0).log_prob(draw["mu"]) + Gamma(3.0, 1.0).log_prob(draw["s"])
"""


@pytest.fixture
def files(here):
    g = np.random.default_rng(0)
    Path("posterior_code.py").write_text(CODE)
    np.savez("draws.npz", mu=g.normal(size=(4, 200)), s=g.gamma(3.0, 1.0, (4, 200)))


COMMAND = ("evidence", "posterior_code.py:log_density", "draws.npz", "--sweeps", "2", "--student",
           "gaussian")  # fmt: skip


def test_supports_and_requirements(limbeck, files):
    words = (*COMMAND, "--support", "s=positive", "--require", "std_error=0.2", "--no-verdicts")
    done = limbeck(*words)
    assert done.code == 0, done.err
    (z,) = json.loads(Path("limbeck-evidence/result.json").read_text())["log_z"]
    assert abs(z["value"]) < 5 * z["std_error"]
    assert limbeck(*words, "--require", "std_error=1e-9", "--out", "other").code == 3
    assert limbeck("report", "limbeck-evidence").code == 0


def test_wrong_supports(limbeck, files):
    for text in ("s", "s=", "=positive", "s=posative", "s=3:1"):
        done = limbeck(*COMMAND, "--support", text)
        assert (done.code, "support" in done.err) == (2, True), done.err


def test_probes_of_a_file(limbeck, files):
    Path("two_modes.py").write_text(
        "import torch\n\ndef log_density(x):\n    centres = torch.tensor([-8.0, 8.0]).to(x)\n"
        "    return (-(x - centres).square() / 2).logsumexp(1)\n"
    )
    np.save("one_mode.npy", np.random.default_rng(0).normal(-8.0, 1.0, (2000, 1)))
    np.save("point.npy", np.array([[8.5]]))
    words = ("evidence", "two_modes.py:log_density", "one_mode.npy", "--student", "gaussian",
             "--sweeps", "2")  # fmt: skip
    assert limbeck(*words).code == 0
    done = limbeck(*words, "--probe", "point.npy", "--out", "probed")
    assert done.code == 3
    assert "probe 0" in done.out + done.err
    done = limbeck(*words, "--probe", "none.npy", "--out", "missing")
    assert (done.code, "probe" in done.err) == (2, True)
