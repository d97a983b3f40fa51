r"""Run by test_segments.py in a process of its own, where Triton interprets its kernels."""

import torch

from limbeck.models.kernels import nade_triton, segments


def formula(v, starts, w, u, b, run):
    wide = (v.unsqueeze(2), starts, w.unsqueeze(1), u.unsqueeze(1), b.unsqueeze(1))
    return segments.formula(*wide, run).squeeze(2)


def main() -> None:
    torch.manual_seed(0)
    for n, inputs, hidden, run, rows in ((1, 1, 1, 1, 9), (5, 37, 70, 8, 99), (9, 12, 9, 4, 4)):
        nade_triton.ROWS = rows
        v, starts = torch.randn(n, inputs), torch.randn(-(-inputs // run), n, hidden)
        w, u, b = torch.randn(inputs, hidden), torch.randn(inputs, hidden), torch.randn(inputs)
        expected, pull = torch.func.vjp(lambda *t: formula(*t, run), v, starts, w, u, b)  # noqa: B023
        found = nade_triton.run_logits(v, starts, w, u, b, run)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
        d = torch.randn(n, inputs)
        for one, other in zip(
            nade_triton.run_gradients(d, v, starts, w, u, run), pull(d)[1:4], strict=True
        ):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


if __name__ == "__main__":
    main()
