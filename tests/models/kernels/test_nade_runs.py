r"""NADE's recursion inside runs: the operator against its formula."""

import pytest
import torch

from limbeck.models.kernels import nade_op

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
    return nade_op.formula(v, starts, w, u, run) + b


def wide_formula(v, starts, w, u, b, run):
    wide = (v.unsqueeze(2), starts, w.unsqueeze(1), u.unsqueeze(1))
    return nade_op.formula(*wide, run).squeeze(2) + b


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
    expected = by_hand(*tensors, sizes[3])
    torch.testing.assert_close(formula(*tensors, sizes[3]), expected)
    torch.testing.assert_close(wide_formula(*tensors, sizes[3]), expected)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("at_once", [1, 10**6])
def test_value_and_derivatives_are_those_of_the_formula(sizes, at_once, monkeypatch):
    monkeypatch.setattr(nade_op, "NUMBERS", {"cpu": at_once})
    tensors, run = problem(*sizes), sizes[3]
    found, pull = torch.func.vjp(lambda *t: nade_op.run_logits(*t, run), *tensors)
    expected, expected_pull = torch.func.vjp(lambda *t: formula(*t, run), *tensors)
    torch.testing.assert_close(found, expected)
    d = torch.randn_like(found)
    for one, other in zip(pull(d), expected_pull(d), strict=True):
        torch.testing.assert_close(one, other)


def test_only_what_is_asked_for_is_differentiated():
    v, starts, w, u, b = problem(4, 6, 3, 2)
    w.requires_grad_()
    nade_op.run_logits(v, starts, w, u, b, 2).sum().backward()
    expected = torch.func.grad(lambda w: formula(v, starts, w, u, b, 2).sum())(w.detach())
    torch.testing.assert_close(w.grad, expected)


@pytest.mark.parametrize(("inputs", "run"), [(1, 1), (12, 4), (13, 4), (5, 9)])
@pytest.mark.parametrize("states", [None, 3])
def test_what_is_carried_into_runs(inputs, run, states):
    shape = () if states is None else (states,)
    v = torch.randn(2, inputs, *shape, dtype=torch.float64)
    w = torch.randn(inputs, *shape, 5, dtype=torch.float64)
    for k, sums in enumerate(nade_op.carried(v, w, run)):
        expected = v[:, : k * run].flatten(1) @ w[: k * run].reshape(-1, 5)
        torch.testing.assert_close(sums, expected)
