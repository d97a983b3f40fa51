r"""Run by test_triton.py in a process of its own, where Triton interprets its kernels."""

import torch

from limbeck.models.kernels import nade_op, nade_triton


def check_runs() -> None:
    torch.manual_seed(0)
    for n, inputs, hidden, run, rows in ((1, 1, 1, 1, 9), (5, 37, 70, 8, 99), (9, 12, 9, 4, 4)):
        nade_triton.ROWS = nade_triton.GRADIENT_ROWS = rows  # more rows are taken in parts
        v, starts = torch.randn(n, inputs), torch.randn(-(-inputs // run), n, hidden)
        w, u = torch.randn(2, inputs, hidden)
        expected, pull = torch.func.vjp(lambda *t: nade_op.formula(*t, run), v, starts, w, u)  # noqa: B023
        found = nade_triton.logits(v, starts, w, u, run)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
        d = torch.randn(n, inputs)
        for one, other in zip(
            nade_triton.gradients(d, v, starts, w, u, run), pull(d)[1:], strict=True
        ):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def check_samples() -> None:
    torch.manual_seed(0)
    for n, inputs, hidden in ((1, 1, 1), (3, 16, 5), (5, 37, 70)):
        w, u = torch.randn(2, inputs, hidden)
        c, b, uniforms = torch.randn(hidden), torch.randn(inputs), torch.rand(n, inputs)
        for m in (None, torch.rand(inputs)):
            x, probabilities = nade_triton.sample(uniforms, w, c, u, b, m)
            assert torch.equal(x, (uniforms < probabilities).float())
            z = nade_op.nade_formula(x if m is None else x - m, w, c, u) + b
            torch.testing.assert_close(probabilities, z.sigmoid(), atol=1e-5, rtol=1e-4)


def check_bits() -> None:
    logits = torch.tensor([-4.0, -1.0, 0.0, 0.5, 3.0]).repeat_interleave(40_000)
    seeds = torch.tensor([[3], [4]])
    one, again, other = (nade_triton.bits_(logits.clone(), seeds[k]) for k in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert set(one.tolist()) == {0.0, 1.0}
    for bits in (one, other):
        p = logits.reshape(5, -1)[:, 0].sigmoid()
        error = (p * (1 - p) / 40_000).sqrt()
        assert ((bits.reshape(5, -1).mean(1) - p).abs() < 4.5 * error).all()
    each = one.reshape(5, -1)[
        2
    ]  # neighbours, and places a stream apart, know nothing of each other
    for lag in (1, 2, 512, 2048):
        assert abs(torch.corrcoef(torch.stack([each[lag:], each[:-lag]]))[0, 1]) < 4.5 / 190
    sure = torch.tensor([50.0, -50.0])
    assert nade_triton.bits_(sure, seeds[0]).tolist() == [1.0, 0.0]


if __name__ == "__main__":
    check_runs()
    check_samples()
    check_bits()
