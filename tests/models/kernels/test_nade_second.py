import pytest
import torch
from torch.func import grad, jvp, vjp

from limbeck.models.kernels import nade_blocks
from limbeck.models.kernels.nade_blocks import Direction, r_logits, r_products, r_pull
from tests.models.kernels import reference


def problem(n=3, inputs=31, hidden=4, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x = (torch.rand(n, inputs, generator=generator) < 0.4).double()
    shapes = ((n, inputs), (inputs, hidden), (hidden,), (inputs, hidden), (inputs,))
    variables = (x, *(normal(*shape) for shape in shapes[1:]))
    return variables, tuple(normal(*shape) for shape in shapes), normal(n)


def hessian_times(variables, v, g):
    def gradient(*variables):
        return grad(lambda *each: (g * reference.log_prob(*each)).sum(), argnums=(0, 1, 2, 3, 4))(
            *variables
        )

    return jvp(gradient, variables, v)[1]


@pytest.mark.parametrize("inputs", [1, 2, 28, 29, 60])
def test_r_products_are_hessian_vector_products(inputs):
    variables, v, g = problem(inputs=inputs)
    found = r_products(*variables, Direction(*v), g)
    for one, other in zip(found[1:], hessian_times(variables, v, g), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(found.value, jvp(reference.log_prob, variables, v)[1])


def test_r_products_are_finite_differences_of_the_gradient():
    variables, v, g = problem(inputs=9)
    found = r_products(*variables, Direction(*v), g)
    step = 1e-6
    ahead, behind = (
        reference.gradients(g, *(a + sign * step * b for a, b in zip(variables, v, strict=True)))
        for sign in (1, -1)
    )
    for one, plus, minus in zip(found[1:], ahead, behind, strict=True):
        torch.testing.assert_close(one, (plus - minus) / (2 * step), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("given", [[0], [1], [2], [3], [4], [1, 2, 3, 4], []], ids=str)
def test_parts_that_are_none_are_zero(given):
    variables, v, g = problem()
    part = [each if place in given else None for place, each in enumerate(v)]
    full = [torch.zeros_like(each) if p is None else each for p, each in zip(part, v, strict=True)]
    found, expected = (r_products(*variables, Direction(*each), g) for each in (part, full))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)


def test_without_weights_examples_count_alike():
    variables, v, _ = problem()
    ones = torch.ones(len(variables[0]), dtype=torch.float64)
    found = r_products(*variables, Direction(*v))
    for one, other in zip(found, r_products(*variables, Direction(*v), ones), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)


def test_examples_may_be_done_in_chunks(monkeypatch):
    variables, v, g = problem(n=5)
    expected = r_products(*variables, Direction(*v), g)
    monkeypatch.setattr(nade_blocks, "R_NUMBERS", 2 * nade_blocks.BLOCK * 4)
    for one, other in zip(r_products(*variables, Direction(*v), g), expected, strict=True):
        torch.testing.assert_close(one, other)


def test_no_examples_have_no_curvature():
    (x, *parameters), (vx, *v), _ = problem()
    found = r_products(x[:0], *parameters, Direction(vx[:0], *v))
    assert found.x.shape == (0, 31)
    assert not any(each.any() for each in found[2:])


def test_the_hessian_is_symmetric():
    variables, v, g = problem()
    other = problem(seed=1)[1]

    def product(one, two):
        along = r_products(*variables, Direction(*one), g)[1:]
        return sum((a * b).sum() for a, b in zip(along, two, strict=True))

    torch.testing.assert_close(product(v, other), product(other, v))


@pytest.mark.parametrize("period", [1, 3])
def test_phases_are_derivatives_of_logits_and_their_pull_back(period):
    (x, w, c, u, _), (vx, vw, vc, vu, _), _ = problem(inputs=60)
    d, rd = vx.flip(0), x.flip(0)

    def logits(*each):
        return reference.logits(*each, period)

    def pull(d, *each):
        return vjp(logits, *each)[1](d)

    v = Direction(vx, vw, vc, vu)
    found = r_logits(x, w, c, u, v, period)
    for one, other in zip(found, jvp(logits, (x, w, c, u), (vx, vw, vc, vu)), strict=True):
        torch.testing.assert_close(one, other)
    expected = jvp(pull, (d, x, w, c, u), (rd, vx, vw, vc, vu))[1]
    for one, other in zip(r_pull(d, rd, x, w, c, u, v, period), expected, strict=True):
        torch.testing.assert_close(one, other)
