r"""A folder with what people have: tables, arrays, an RBM, draws, and code of their own."""

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

import limbeck as lb
from limbeck import cli

CODE = """
import numpy as np
import torch

import limbeck as lb

SLOPES = np.array([[1.0, -1.0], [0.5, 2.0], [-1.0, 0.0]])


def teacher(X):
    scores = np.asarray(X, dtype=float) @ SLOPES
    odds = np.exp(scores - scores.max(1, keepdims=True))
    return odds / odds.sum(1, keepdims=True)


def predict(draw, x):
    return lb.Bernoulli(logits=x @ draw["beta"] + draw["alpha"])


def density(draw):
    return lb.Normal(draw["alpha"], torch.ones(()))


net = lb.MLP(3, 8, 2, generator=torch.Generator().manual_seed(1))
small = lb.MLP(3, 4, 2, generator=torch.Generator().manual_seed(2))
inputs = lb.inputs.Noise((2,))
ising = lb.Energy(lambda x: -(x[:, :-1] * x[:, 1:]).sum(1), support=lb.Binary(5))
number = 3


def failing(X):
    raise ValueError("no such luck")
"""


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def here(tmp_path, monkeypatch, quick_baselines):
    r"""The current folder, with files; modules that are imported from it are forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "models", raising=False)  # another test's, in this process
    Path("models.py").write_text(CODE)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 3))
    y = np.where(X[:, 0] > X[:, 1], "up", "down")
    rows = [f"{a:.6f},{b:.6f},{c:.6f},{word}" for (a, b, c), word in zip(X, y, strict=True)]
    Path("train.csv").write_text("\n".join(["a,b,c,y", *rows[:80]]) + "\n")
    Path("test.csv").write_text("\n".join(["a,b,c,y", *rows[80:]]) + "\n")
    np.savez("both.npz", X=X.astype("float32"), y=(y == "up").astype(int))
    np.save("x.npy", rng.normal(size=(100, 2)).astype("float32"))
    np.savez("draws.npz", beta=rng.normal(size=(4, 100, 2)), alpha=rng.normal(size=(4, 100)))
    lb.RBM.random(6, 3, generator=torch.Generator().manual_seed(0)).save("rbm.npz")
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", None)):
            del sys.modules[name]


@pytest.fixture
def limbeck(monkeypatch, capsys):
    r"""Run the command line, and see how it went."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["limbeck", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return Outcome(ended.value.code, said.out, said.err)

    return run


@pytest.fixture
def refused(limbeck):
    r"""Run the command line, and give the one line with which it refuses."""

    def run(*words):
        found = limbeck(*words)
        assert found.code == 2, found.err
        assert not found.out
        (line,) = found.err.splitlines()
        assert line.startswith("limbeck: ")
        return line.removeprefix("limbeck: ")

    return run
