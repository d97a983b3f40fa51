r"""Run by test_triton.py in a process of its own, where Triton interprets its kernels."""

import torch

from limbeck.models.kernels import nade_triton
from limbeck.models.kernels.nade_blocks import formula as without_biases


def reference(x, w, c, u, b):
    return without_biases(x, w, c, u) + b


def check_nade() -> None:
    torch.manual_seed(0)
    nade_triton.SHORT, nade_triton.LONG, nade_triton.FEW = 8, 16, 4  # many blocks of small models
    for n, inputs, hidden in ((1, 1, 1), (3, 16, 5), (5, 37, 70), (9, 33, 64)):
        x = torch.randint(2, (n, inputs)).float()
        w, u = torch.randn(2, inputs, hidden)
        c, b = torch.randn(hidden), torch.randn(inputs)
        torch.testing.assert_close(
            nade_triton.logits(x, w, c, u, b)[0], reference(x, w, c, u, b), atol=1e-4, rtol=1e-4
        )
        g = torch.randn(n, inputs)
        _, pull = torch.func.vjp(reference, x, w, c, u, b)
        carry = nade_triton.carries(x, w, c)
        found = nade_triton.gradients(g, x, w, c, u, carry, True)
        for each, wanted in zip(found, pull(g), strict=True):
            torch.testing.assert_close(each, wanted, atol=1e-4, rtol=1e-4)
        for each, wanted in zip(
            nade_triton.gradients(g, x, w, c, u, carry, False)[1:], pull(g)[1:], strict=True
        ):
            torch.testing.assert_close(each, wanted, atol=1e-4, rtol=1e-4)
        uniforms = torch.rand(n, inputs)
        x, probabilities = nade_triton.sample(uniforms, w, c, u, b)
        assert torch.equal(x, (uniforms < probabilities).float())
        wanted = reference(x, w, c, u, b).sigmoid()
        torch.testing.assert_close(probabilities, wanted, atol=1e-5, rtol=1e-4)
        m = torch.rand(inputs)
        x, probabilities = nade_triton.sample(uniforms, w, c, u, b, m)
        assert torch.equal(x, (uniforms < probabilities).float())
        wanted = reference(x - m, w, c, u, b).sigmoid()
        torch.testing.assert_close(probabilities, wanted, atol=1e-5, rtol=1e-4)
    nade_triton.ROWS, nade_triton.GRADIENT_ROWS = 6, 4  # many rows are taken in parts
    x, g = torch.randint(2, (11, 20)).float(), torch.randn(11, 20)
    w, u = torch.randn(2, 20, 9)
    c, b = torch.randn(9), torch.randn(20)
    _, pull = torch.func.vjp(reference, x, w, c, u, b)
    z, carry = nade_triton.logits(x, w, c, u, b)
    torch.testing.assert_close(z, reference(x, w, c, u, b), atol=1e-4, rtol=1e-4)
    found = nade_triton.gradients(g, x, w, c, u, carry, True)
    for each, wanted in zip(found, pull(g), strict=True):
        torch.testing.assert_close(each, wanted, atol=1e-4, rtol=1e-4)


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
    check_nade()
    check_bits()
