r"""A torch teacher and a net need torch alone: nothing heavy is imported on the way."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import limbeck as lb

SOURCE = str(Path(lb.__file__).parents[1])
HEAVY = ("scipy", "sklearn", "pandas", "onnx", "matplotlib")

CODE = """
import sys
import torch
import limbeck as lb

X = torch.randn(300, 4)
quick = dict(steps=5, pool=300, progress=False, engine="eager", device="cpu")
if {function}:
    function, options = lambda x: x[:, :2], dict(task="regression", inputs={inputs!r}, **quick)
    result = lb.compress(function, X.numpy(), (4,), **options)
else:
    result = lb.compress(lb.MLP(4, 8, 3), X, (4,), inputs={inputs!r}, **quick)
result.predict(X)
str(result), str(result.report(X, time=False))
print(*sys.modules)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "ask",
    [{"inputs": "data", "function": False}, {"inputs": "munge", "function": True}],
    ids=["net", "function"],
)
def test_no_scikit_learn_where_none_is_needed(ask):
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(**ask)], capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = set(done.stdout.split())
    assert "limbeck.compression.compress" in found
    # a report on a regression has quantiles, whose errors SciPy computes
    assert not found & (set(HEAVY) - ({"scipy"} if ask["function"] else set()))
