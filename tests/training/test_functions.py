import torch
from torch import nn

import limbeck as lb
from tests.refusals import warns_about


class Round(torch.autograd.Function):
    r"""A straight-through estimator: rounds, and pretends that it did not."""

    @staticmethod
    def forward(x):
        return x.round()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g


class Rounded(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside, self.outside = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x):
        return self.outside(Round.apply(3 * self.inside(x)))


def trained(engine):
    torch.manual_seed(0)
    student = Rounded()
    X = torch.randn(200, 3, generator=torch.Generator().manual_seed(1))
    lb.distill(
        lambda x: x.sum(1, keepdim=True), student, X, lb.losses.square_error(), steps=30,
        engine=engine, progress=False, device="cpu", teacher_output="values",
        student_output="values",
    )  # fmt: skip
    return student


def test_a_function_with_a_backward_of_its_own_keeps_it():
    with warns_about("Round", "compiled"):
        compiled = trained("compiled")
    eager = trained("eager")
    before = torch.manual_seed(0) and Rounded()
    for name, parameter in eager.named_parameters():
        torch.testing.assert_close(parameter, dict(compiled.named_parameters())[name])
    moved = eager.inside.weight - before.inside.weight
    assert moved.abs().max() > 1e-3  # it would stand still without the function's own backward
    assert torch.autograd.Function.apply.__func__.__name__ == "apply"
