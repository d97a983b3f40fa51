r"""Appendices A and B of the source text, written out by hand and checked as mathematics."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap

from limbeck.models import MLP

SIZES = (3, 4, 4)  # inputs and hidden layers; the outputs are OUTPUTS, or one
OUTPUTS = 3


class Layer(NamedTuple):
    r"""A nonlinearity φ, its Jacobian (i, j) = ∂φ_i/∂z_j and R{Jacobian}, as in section B.4."""

    phi: Callable[[Tensor], Tensor]
    jacobian: Callable[[Tensor, Tensor], Tensor]  # of z, x
    r_jacobian: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # of z, x, R{z}, R{x}


def density(z: Tensor) -> Tensor:
    return torch.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)


def eye(x: Tensor) -> Tensor:
    return torch.eye(len(x), dtype=x.dtype)


LAYERS = {
    "linear": Layer(lambda z: z, lambda z, x: eye(x), lambda z, x, rz, rx: 0 * eye(x)),
    "relu": Layer(
        lambda z: z * (z > 0),
        lambda z, x: torch.diag((z > 0).to(z)),
        lambda z, x, rz, rx: 0 * eye(x),
    ),
    "tanh": Layer(  # not in the text
        lambda z: (z.exp() - (-z).exp()) / (z.exp() + (-z).exp()),
        lambda z, x: torch.diag(1 - x**2),
        lambda z, x, rz, rx: torch.diag(-2 * x * rx),
    ),
    "logistic": Layer(
        lambda z: 1 / (1 + torch.exp(-z)),
        lambda z, x: torch.diag(x * (1 - x)),
        lambda z, x, rz, rx: torch.diag(rx * (1 - 2 * x)),
    ),
    "probit": Layer(
        lambda z: torch.erfc(-z / math.sqrt(2)) / 2,
        lambda z, x: torch.diag(density(z)),
        lambda z, x, rz, rx: torch.diag(-z * rx),
    ),
    "softmax": Layer(
        lambda z: z.exp() / z.exp().sum(),
        lambda z, x: x[:, None] * (eye(x) - x[None, :]),
        lambda z, x, rz, rx: rx[:, None] * (eye(x) - x[None, :]) - x[:, None] * rx[None, :],
    ),
    "log_softmax": Layer(
        lambda z: z - z.exp().sum().log(),
        lambda z, x: eye(x) - x.exp()[None, :],
        lambda z, x, rz, rx: -(x.exp() * rx)[None, :].expand(len(x), -1),
    ),
}


class Output(NamedTuple):
    r"""An output function E, ∂E/∂y and R{∂E/∂y}, as in section B.5."""

    value: Callable[[Tensor, Tensor], Tensor]  # of y, t
    derivative: Callable[[Tensor, Tensor], Tensor]
    r_derivative: Callable[[Tensor, Tensor, Tensor], Tensor]  # of y, t, R{y}


OUTPUT_FUNCTIONS = {
    "square error": Output(
        lambda y, t: ((y - t) ** 2).sum() / 2,
        lambda y, t: y - t,
        lambda y, t, ry: ry,
    ),
    "cross entropy": Output(
        lambda y, t: (t * y.log()).sum(),
        lambda y, t: t / y,
        lambda y, t, ry: -t / y**2 * ry,
    ),
    "binary cross entropy": Output(
        lambda y, t: (t * y.log() + (1 - t) * (1 - y).log()).sum(),
        lambda y, t: t / y - (1 - t) / (1 - y),
        lambda y, t, ry: -(t / y**2 + (1 - t) / (1 - y) ** 2) * ry,
    ),
    "dot product": Output(
        lambda y, t: (t * y).sum(),
        lambda y, t: t,
        lambda y, t, ry: torch.zeros_like(ry),
    ),
}

POSITIVE = ("logistic", "probit", "softmax")
CASES = [
    pytest.param(hidden, output, error, id=f"{hidden}-{output}-{error}")
    for hidden in LAYERS
    for output, error in [
        *((output, "square error") for output in LAYERS),
        *((output, "dot product") for output in ("linear", "softmax", "log_softmax")),
        *((output, "cross entropy") for output in POSITIVE),
        *((output, "binary cross entropy") for output in POSITIVE[:2]),
    ]
]


class Problem:
    r"""E(f(x|θ)) of a small net, as a function of the joint vector (θ, x)."""

    def __init__(self, hidden: str, output: str, error: str) -> None:
        g = torch.Generator().manual_seed(13)
        outputs = 1 if "binary" in error else OUTPUTS
        self.net = MLP(*SIZES, outputs, hidden=hidden, output=output, dtype=torch.float64)
        for layer in self.net.layers:  # of a size at which no unit saturates
            torch.nn.init.normal_(layer.weight, std=0.5, generator=g)
            torch.nn.init.normal_(layer.bias, std=0.5, generator=g)
        self.kinds = [LAYERS[kind] for kind in (*self.net.hidden, output)]
        self.error = OUTPUT_FUNCTIONS[error]
        self.x = torch.randn(SIZES[0], dtype=torch.float64, generator=g)
        self.t = torch.rand(outputs, dtype=torch.float64, generator=g)
        self.t = self.t if outputs == 1 else self.t / self.t.sum()
        self.names = dict(self.net.named_parameters())
        self.point = torch.cat([*(p.detach().flatten() for p in self.names.values()), self.x])
        self.v = torch.randn(len(self.point), dtype=torch.float64, generator=g)

    def unpack(self, joint: Tensor) -> tuple[list[Tensor], list[Tensor], Tensor]:
        r"""Weights, biases and x of a joint vector."""
        parts = joint.split([*(p.numel() for p in self.names.values()), SIZES[0]])
        shaped = [a.view_as(p) for a, p in zip(parts[:-1], self.names.values(), strict=True)]
        return shaped[::2], shaped[1::2], parts[-1]

    def pack(self, weights: list[Tensor], biases: list[Tensor], x: Tensor) -> Tensor:
        pairs = zip(weights, biases, strict=True)
        return torch.cat([*(part.flatten() for pair in pairs for part in pair), x])

    def __call__(self, joint: Tensor) -> Tensor:
        r"""E by way of limbeck's MLP."""
        weights, biases, x = self.unpack(joint)
        values = [part for pair in zip(weights, biases, strict=True) for part in pair]
        parameters = dict(zip(self.names, values, strict=True))
        y = functional_call(self.net, parameters, (x.unsqueeze(0),)).squeeze(0)
        return self.error.value(y, self.t)

    def forward(self) -> tuple[list[Tensor], list[Tensor]]:
        r"""Forward propagation: z of layers 1 to L, x of layers 0 to L."""
        weights, biases, x = self.unpack(self.point)
        xs, zs = [x], []
        for W, b, kind in zip(weights, biases, self.kinds, strict=True):
            zs.append(torch.stack([(W[i] * xs[-1]).sum() + b[i] for i in range(len(b))]))
            xs.append(kind.phi(zs[-1]))
        return zs, xs

    def backward(self) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        r"""Backward propagation: ∂E/∂W and ∂E/∂b of layers 1 to L, ∂E/∂x of layers 0 to L."""
        weights, _, _ = self.unpack(self.point)
        zs, xs = self.forward()
        dw, db, dx = [], [], [self.error.derivative(xs[-1], self.t)]
        for layer in reversed(range(len(zs))):
            jacobian = self.kinds[layer].jacobian(zs[layer], xs[layer + 1])
            db.insert(0, torch.einsum("k,ki->i", dx[0], jacobian))
            dw.insert(0, torch.einsum("i,j->ij", db[0], xs[layer]))
            dx.insert(0, torch.einsum("k,kj->j", db[0], weights[layer]))
        return dw, db, dx

    def r_backprop(self, v: Tensor) -> Tensor:
        r"""R{backprop}: the Hessian of E at (θ, x) times v."""
        weights, _, _ = self.unpack(self.point)
        r_weights, r_biases, r_x = self.unpack(v)
        (zs, xs), (_, db, dx) = self.forward(), self.backward()
        rxs, r_jacobians = [r_x], []
        for layer, (W, rw, rb) in enumerate(zip(weights, r_weights, r_biases, strict=True)):
            z, x, kind = zs[layer], xs[layer + 1], self.kinds[layer]
            rz = (rw * xs[layer] + W * rxs[-1]).sum(1) + rb
            rxs.append(torch.einsum("ik,k->i", kind.jacobian(z, x), rz))
            r_jacobians.append(kind.r_jacobian(z, x, rz, rxs[-1]))
        rdw, rdb = [], []
        rdx = self.error.r_derivative(xs[-1], self.t, rxs[-1])
        for layer in reversed(range(len(zs))):
            jacobian = self.kinds[layer].jacobian(zs[layer], xs[layer + 1])
            rdb.insert(0, rdx @ jacobian + dx[layer + 1] @ r_jacobians[layer])
            outer = torch.einsum("i,j->ij", rdb[0], xs[layer])
            rdw.insert(0, outer + torch.einsum("i,j->ij", db[layer], rxs[layer]))
            rdx = rdb[0] @ weights[layer] + db[layer] @ r_weights[layer]
        return self.pack(rdw, rdb, rdx)


def close(a: Tensor, b: Tensor, rtol: float = 1e-10) -> None:
    # relative to the largest entry, as small entries are differences of large ones
    assert float(b.abs().max()) > 0, "nothing is tested where everything is zero"
    torch.testing.assert_close(a, b, rtol=0, atol=rtol * float(b.abs().max()))


def differences(function: Callable[[Tensor], Tensor], point: Tensor, step: float) -> Tensor:
    r"""Central finite differences along every coordinate."""
    steps = step * torch.eye(len(point), dtype=point.dtype)
    return (vmap(function)(point + steps) - vmap(function)(point - steps)) / (2 * step)


@pytest.mark.parametrize(("hidden", "output", "error"), CASES)
def test_backward_propagation(hidden: str, output: str, error: str) -> None:
    problem = Problem(hidden, output, error)
    zs, xs = problem.forward()
    assert min(float(z.abs().min()) for z in zs) > 1e-3, "too near relu's kink to differentiate"
    close(problem.net(problem.x[None])[0].detach(), xs[-1])
    dw, db, dx = problem.backward()
    by_hand = problem.pack(dw, db, dx[0])
    close(by_hand, grad(problem)(problem.point))
    close(by_hand, differences(problem, problem.point, 1e-5), rtol=1e-7)


@pytest.mark.parametrize(("hidden", "output", "error"), CASES)
def test_r_backprop(hidden: str, output: str, error: str) -> None:
    problem = Problem(hidden, output, error)
    H = hessian(problem)(problem.point)
    close(problem.r_backprop(problem.v), H @ problem.v)
    product = jvp(grad(problem), (problem.point,), (problem.v,))[1]
    close(problem.r_backprop(problem.v), product)


@pytest.mark.parametrize("kind", LAYERS)
def test_layer_derivatives(kind: str) -> None:
    r"""∂φ/∂z and R{∂φ/∂z} of one layer by itself."""
    layer = LAYERS[kind]
    z = torch.tensor([0.7, -1.3, 0.2, 1.9], dtype=torch.float64)
    rz = torch.tensor([-0.4, 0.8, 1.1, 0.3], dtype=torch.float64)
    x = layer.phi(z)
    jacobian = layer.jacobian(z, x)
    close(jacobian, differences(layer.phi, z, 1e-5).T, rtol=1e-8)
    h = 1e-5
    ahead, behind = (layer.jacobian(z + s * rz, layer.phi(z + s * rz)) for s in (h, -h))
    r_jacobian = layer.r_jacobian(z, x, rz, jacobian @ rz)
    torch.testing.assert_close(r_jacobian, (ahead - behind) / (2 * h), rtol=0, atol=1e-9)


@pytest.mark.parametrize("error", OUTPUT_FUNCTIONS)
def test_output_function_derivatives(error: str) -> None:
    function = OUTPUT_FUNCTIONS[error]
    y = torch.tensor([0.3, 0.6, 0.1], dtype=torch.float64)
    t = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    ry = torch.tensor([-0.4, 0.8, 1.1], dtype=torch.float64)
    close(function.derivative(y, t), differences(lambda a: function.value(a, t), y, 1e-6), 1e-8)
    R = jvp(lambda a: function.derivative(a, t), (y,), (ry,))[1]
    torch.testing.assert_close(function.r_derivative(y, t, ry), R)


@pytest.mark.parametrize("hidden", LAYERS)
def test_directions_in_input_space_only(hidden: str) -> None:
    r"""With v_θ = 0: R{z} = Σ w R{x} and R{∂E/∂x} = Σ R{∂E/∂b} w; and the Hessian's blocks."""
    problem = Problem(hidden, "softmax", "cross entropy")
    H, d = hessian(problem)(problem.point), SIZES[0]
    vx, vtheta = problem.v.clone(), problem.v.clone()
    vx[:-d], vtheta[-d:] = 0, 0
    weights, _, _ = problem.unpack(problem.point)
    (zs, xs), (_, _, dx) = problem.forward(), problem.backward()
    rx, rzs, r_jacobians = vx[-d:], [], []
    for W, z, x, kind in zip(weights, zs, xs[1:], problem.kinds, strict=True):
        rzs.append(W @ rx)
        rx = kind.jacobian(z, x) @ rzs[-1]
        r_jacobians.append(kind.r_jacobian(z, x, rzs[-1], rx))
    rdx = problem.error.r_derivative(xs[-1], problem.t, rx)
    for layer in reversed(range(len(zs))):
        jacobian = problem.kinds[layer].jacobian(zs[layer], xs[layer + 1])
        rdb = rdx @ jacobian + dx[layer + 1] @ r_jacobians[layer]
        rdx = rdb @ weights[layer]
    close(rdx, H[-d:, -d:] @ vx[-d:])
    close(problem.r_backprop(vx)[:-d], H[:-d, -d:] @ vx[-d:])
    close(problem.r_backprop(vtheta)[-d:], H[-d:, :-d] @ vtheta[:-d])
    close(problem.r_backprop(vx) + problem.r_backprop(vtheta), H @ problem.v)


X0 = torch.tensor([0.6, -0.9, 1.4], dtype=torch.float64)
V = torch.tensor([1.2, 0.5, -0.7], dtype=torch.float64)
A = torch.tensor([[0.3, -1.0, 0.8], [1.1, 0.4, -0.2], [0.5, 0.9, 0.7]], dtype=torch.float64)


def g1(x: Tensor) -> Tensor:
    return torch.sin(A @ x)


def g2(x: Tensor) -> Tensor:
    return x**2 * x.flip(0) + torch.exp(-x)


def R(g: Callable[[Tensor], Tensor]) -> Tensor:
    r"""R{g} by its definition, the directional derivative, without automatic differentiation."""
    h = 1e-5
    return (g(X0 + h * V) - g(X0 - h * V)) / (2 * h)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        pytest.param(lambda x: 0 * x + A[0], lambda: torch.zeros_like(X0), id="constant"),
        pytest.param(lambda x: x, lambda: V, id="identity"),
        pytest.param(lambda x: g1(x) + g2(x), lambda: R(g1) + R(g2), id="sum"),
        pytest.param(
            lambda x: g1(x) * g2(x), lambda: R(g1) * g2(X0) + g1(X0) * R(g2), id="product"
        ),
        pytest.param(lambda x: g1(g2(x)), lambda: jacrev(g1)(g2(X0)) @ R(g2), id="chain"),
    ],
)
def test_r_operator(left: Callable[[Tensor], Tensor], right: Callable[[], Tensor]) -> None:
    torch.testing.assert_close(R(left), right(), rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(jvp(left, (X0,), (V,))[1], right(), rtol=1e-8, atol=1e-9)


def test_hessian_vector_product_is_r_of_the_gradient() -> None:
    def f(x: Tensor) -> Tensor:
        return (g1(x) * g2(x)).sum()

    exact = hessian(f)(X0) @ V
    close(jvp(grad(f), (X0,), (V,))[1], exact)
    close(R(grad(f)), exact, rtol=1e-8)


@pytest.mark.parametrize("c", [-30.0, 0.5, 12.0])
def test_log_softmax_shift(c: float) -> None:
    z = torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64)
    exact = LAYERS["log_softmax"].phi(z)
    close((z - c) - (z - c).exp().sum().log(), exact, rtol=1e-13)
    close(LAYERS["softmax"].phi(z - c), exact.exp(), rtol=1e-13)
    # the text's plus signs are a slip: that expression moves by -2c
    printed, shifted = z + z.exp().sum().log(), (z - c) + (z - c).exp().sum().log()
    close(shifted, printed - 2 * c, rtol=1e-13)


@pytest.mark.parametrize("size", [1e3, 1e4, 1e6])
def test_shift_by_the_maximum_neither_overflows_nor_underflows(size: float) -> None:
    net = MLP(3, 3, output="log_softmax", bias=False, dtype=torch.float64)
    torch.nn.init.eye_(net.layers[0].weight)
    z = size * torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64)
    assert not LAYERS["log_softmax"].phi(z).isfinite().all()
    by_hand = (z - z.max()) - (z - z.max()).exp().sum().log()
    close(net(z[None])[0].detach(), by_hand, rtol=1e-15)
    close(by_hand, torch.tensor([0.0, -size, -2 * size], dtype=torch.float64), rtol=1e-15)
    jacobian = jacrev(lambda x: net(x[None])[0])(z)
    close(jacobian, LAYERS["log_softmax"].jacobian(z, by_hand), rtol=1e-15)


@pytest.mark.parametrize("hidden", LAYERS)
def test_softmax_with_cross_entropy_is_log_softmax_with_dot_product(hidden: str) -> None:
    plain = Problem(hidden, "softmax", "cross entropy")
    logs = Problem(hidden, "log_softmax", "dot product")
    logs.point, logs.t, logs.v = plain.point, plain.t, plain.v
    close(plain(plain.point).detach(), logs(plain.point).detach())
    close(grad(plain)(plain.point), grad(logs)(plain.point))
    (dw, db, dx), (dw_, db_, dx_) = plain.backward(), logs.backward()
    close(plain.pack(dw, db, dx[0]), logs.pack(dw_, db_, dx_[0]))
    close(plain.r_backprop(plain.v), logs.r_backprop(plain.v))
