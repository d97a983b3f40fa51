r"""NADE's recursion inside runs: the operator against its formula, on a CPU and interpreted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from limbeck.models.kernels import segments

SIZES = [(1, 1, 1, 1), (3, 7, 4, 3), (5, 12, 3, 4), (4, 5, 2, 9), (6, 6, 5, 1)]  # n, I, J, run


def problem(n, inputs, hidden, run, dtype=torch.float64):
    generator = torch.Generator().manual_seed(n)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=dtype)

    runs = -(-inputs // run)
    return (
        normal(n, inputs), normal(runs, n, hidden), normal(inputs, hidden),
        normal(inputs, hidden), normal(inputs),
    )  # fmt: skip


def formula(v, starts, w, u, b, run):
    wide = (v.unsqueeze(2), starts, w.unsqueeze(1), u.unsqueeze(1), b.unsqueeze(1))
    return segments.formula(*wide, run).squeeze(2)


def by_hand(v, starts, w, u, b, run):
    z = torch.empty_like(v)
    for n in range(len(v)):
        for i in range(len(w)):
            first = i // run * run
            a = starts[i // run, n] + v[n, first:i] @ w[first:i]
            z[n, i] = b[i] + u[i] @ a.sigmoid()
    return z


@pytest.mark.parametrize("sizes", SIZES)
def test_the_formula_is_what_the_text_says(sizes):
    tensors = problem(*sizes)
    torch.testing.assert_close(formula(*tensors, sizes[3]), by_hand(*tensors, sizes[3]))


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("at_once", [1, 10**6])
def test_value_and_derivatives_are_those_of_the_formula(sizes, at_once, monkeypatch):
    monkeypatch.setattr(segments, "NUMBERS", {"cpu": at_once})
    tensors, run = problem(*sizes), sizes[3]
    found, pull = torch.func.vjp(lambda *t: segments.logits(*t, run), *tensors)
    expected, expected_pull = torch.func.vjp(lambda *t: formula(*t, run), *tensors)
    torch.testing.assert_close(found, expected)
    d = torch.randn_like(found)
    for one, other in zip(pull(d), expected_pull(d), strict=True):
        torch.testing.assert_close(one, other)


def test_only_what_is_asked_for_is_differentiated():
    v, starts, w, u, b = problem(4, 6, 3, 2)
    w.requires_grad_()
    segments.logits(v, starts, w, u, b, 2).sum().backward()
    expected = torch.func.grad(lambda w: formula(v, starts, w, u, b, 2).sum())(w.detach())
    torch.testing.assert_close(w.grad, expected)


def test_kernels_of_gpus_interpreted():
    pytest.importorskip("triton")
    script = Path(__file__).parent / "interpreted_segments.py"
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
