r"""The operator's derivatives of every kind against those of the definition."""

import pytest
import torch
from torch.func import grad, hessian, jacrev, jvp, vjp, vmap

from limbeck.models.kernels import nade_native, nade_op
from tests.models.kernels import reference
from tests.models.kernels.reference import operator_log_prob

nade_op.prepare_tracing()
ALL = (0, 1, 2, 3, 4)


def problem(n=3, inputs=33, hidden=4, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=dtype)

    x = (torch.rand(n, inputs, generator=generator) < 0.4).to(dtype) + 0.1 * normal(n, inputs)
    parameters = (normal(inputs, hidden), normal(hidden), normal(inputs, hidden), normal(inputs))
    return (x, *parameters), normal(n)


@pytest.fixture(params=["runs", "native"], autouse=True)
def kernels(request, monkeypatch):
    if request.param == "native" and not nade_native.available():
        pytest.skip("no C++ compiler")
    monkeypatch.setattr(nade_op, "WORTH_NATIVE", 0 if request.param == "native" else float("inf"))


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11)


def total(function, g):
    return lambda *variables: (g * function(*variables)).sum()


def squared_scores(function, x):
    r"""What score matching differentiates."""

    def loss(parameters):
        value, pull = vjp(lambda x: function(x, *parameters), x)
        return pull(torch.ones_like(value))[0].square().sum()

    return loss


def test_value():
    variables, _ = problem()
    close(operator_log_prob(*variables), reference.log_prob(*variables))
    m = torch.linspace(0, 1, variables[0].shape[1], dtype=variables[0].dtype)
    close(operator_log_prob(*variables, m), reference.log_prob(*variables, m))


def test_terms_are_summed_in_double_precision():
    variables, _ = problem(n=2, inputs=3000, hidden=1, dtype=torch.float32)
    exact = reference.log_prob(*(each.double() for each in variables))
    error = (operator_log_prob(*variables).double() - exact).abs() / exact.abs()
    assert error.max() < 2e-7


def test_an_empty_batch_has_an_empty_value_and_zero_gradients():
    (x, *parameters), _ = problem()
    assert operator_log_prob(x[:0], *parameters).shape == (0,)
    found = grad(lambda p: operator_log_prob(x[:0], *p).sum())(tuple(parameters))
    assert all(torch.equal(each, torch.zeros_like(each)) for each in found)


def test_autograd_agrees_with_finite_differences():
    variables, _ = problem(n=2, inputs=6, hidden=3)
    variables = [each.requires_grad_() for each in variables]
    assert torch.autograd.gradcheck(operator_log_prob, variables)
    assert torch.autograd.gradgradcheck(operator_log_prob, variables)


@pytest.mark.parametrize("which", [*ALL, (1, 2, 3, 4), ALL], ids=str)
def test_gradients_under_torch_func(which):
    variables, g = problem()
    found = grad(total(operator_log_prob, g), argnums=which)(*variables)
    close(found, grad(total(reference.log_prob, g), argnums=which)(*variables))


def test_a_derivative_with_respect_to_x_can_be_trained_on():
    (x, *parameters), _ = problem()
    found, expected = (
        grad(squared_scores(function, x))(tuple(parameters))
        for function in (operator_log_prob, reference.log_prob)
    )
    close(found, expected)


def test_third_derivatives():
    (x, *parameters), _ = problem(inputs=5)

    def steepness(function):
        return grad(
            lambda p: sum(each.square().sum() for each in grad(squared_scores(function, x))(p))
        )

    for one, other in zip(
        steepness(operator_log_prob)(tuple(parameters)),
        steepness(reference.log_prob)(tuple(parameters)),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


def test_forward_mode_and_forward_over_reverse():
    variables, g = problem()
    tangents = tuple(torch.roll(each, 1, 0) for each in variables)
    for function in (lambda f: f, lambda f: grad(total(f, g), argnums=ALL)):
        found, expected = (
            jvp(function(kind), variables, tangents)[1]
            for kind in (operator_log_prob, reference.log_prob)
        )
        close(found, expected)


def test_vmap():
    (x, *parameters), _ = problem()
    parameters = tuple(parameters)

    def one(function):
        return lambda p, row: function(row.unsqueeze(0), *p)[0]

    for transform in (
        lambda f: vmap(f, in_dims=(None, 0)),
        lambda f: vmap(grad(f), in_dims=(None, 0)),
    ):
        found, expected = (
            transform(one(kind))(parameters, x) for kind in (operator_log_prob, reference.log_prob)
        )
        close(found, expected)
    close(
        jacrev(operator_log_prob, 3)(x, *parameters),
        jacrev(reference.log_prob, 3)(x, *parameters),
    )
    few = [x[:2, :4], *(each[:4] for each in parameters)]
    close(
        hessian(lambda x: operator_log_prob(x, *few[1:]).sum())(few[0]),
        hessian(lambda x: reference.log_prob(x, *few[1:]).sum())(few[0]),
    )


def test_logits_of_whole_variables_have_derivatives():
    (x, w, c, u, _), _ = problem(inputs=6)
    found, expected = (
        grad(lambda *each, f=f: f(*each).square().sum(), argnums=(0, 1, 2, 3))(x, w, c, u)
        for f in (
            lambda *each: reference.operator_logits(*each, 3),
            lambda *each: reference.logits(*each, 3),
        )
    )
    close(found, expected)


@pytest.mark.parametrize(
    "transform", [grad, lambda f: lambda x: jvp(grad(f), (x,), (x.flip(0),))[1]]
)
def test_higher_derivatives_by_blocks_of_rows(transform, monkeypatch):
    (x, *parameters), _ = problem(n=7)
    monkeypatch.setitem(nade_op.TOGETHER, "cpu", 3 * 33 * 4)  # three rows at a time
    found, expected = (
        transform(lambda x, f=f: squared_scores(f, x)(tuple(parameters)))(x)
        for f in (operator_log_prob, reference.log_prob)
    )
    close(found, expected)


def test_automatic_half_precision_is_left_out():
    variables, _ = problem(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = operator_log_prob(*variables)
    assert torch.equal(found, operator_log_prob(*variables))


def test_compiled_steps_equal_eager_ones():
    (x, *parameters), g = problem()
    parameters = tuple(parameters)

    def everything(x, parameters):
        first = grad(lambda p: (g * operator_log_prob(x, *p)).mean())(parameters)
        second = grad(squared_scores(operator_log_prob, x))(parameters)
        return first, second, grad(lambda x: operator_log_prob(x, *parameters).sum())(x)

    torch._dynamo.reset()
    compiled = torch.compile(everything, fullgraph=True, backend="aot_eager")
    close(compiled(x, parameters), everything(x, parameters))


@pytest.mark.slow
def test_compiled_values_have_derivatives():
    variables, g = problem()
    variables = [each.requires_grad_() for each in variables]
    torch._dynamo.reset()
    found = torch.compile(operator_log_prob, fullgraph=True)(*variables)
    close(torch.autograd.grad((g * found).sum(), variables), reference.gradients(g, *variables))


def test_an_operator_that_would_be_inlined_refuses():
    variables, _ = problem()
    inlined = type(nade_op.logits)(
        nade_op.logits.__code__, nade_op.__dict__, "unprepared", None, None
    )
    torch._dynamo.reset()
    with pytest.raises(Exception, match="prepare_tracing"):
        torch.compile(inlined, fullgraph=True)(*variables)
