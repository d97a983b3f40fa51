r"""NADE, the neural autoregressive distribution estimator of discrete x, and DeepNADE."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from limbeck.arguments import Count, CountFromZero, UserObject, checked_arguments
from limbeck.arrays import as_numbers
from limbeck.errors import ArgumentError, shown
from limbeck.models.autoregressive import Autoregressive, Order
from limbeck.models.checks import Device, Generator
from limbeck.models.kernels import nade_native, nade_op
from limbeck.models.rbm import RBM
from limbeck.supports import Binary, Discrete

Centre = np.ndarray | Tensor | list[float] | None
SMALL = 0.01  # the deviation of the weights of hidden units that are added to an RBM's
ROOM = {"cpu": 2**24, "cuda": 2**30}  # numbers between the layers at a time, without gradients


class Recursive(Autoregressive):
    r"""The base of models by NADE's operators, which torch's compiler must know of before."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        nade_op.prepare_tracing()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        nade_op.prepare_tracing()

    @classmethod
    def _least_size(cls, fields: Mapping[str, Any]) -> int:
        deep = fields.get("depth", 0) * fields.get("width", 0)  # of a DeepNADE
        return 2 * fields["hidden"] * (cls._width(fields) + deep)


class NADE(Recursive):
    r"""A neural autoregressive distribution estimator with one hidden layer.

    Its conditionals are p(x_i = 1 | x_<i) = σ(b_i + Σ_j u_ij σ(c_j + Σ_{i' < i} w_i'j x_i')) over
    zeros and ones; spins −1 and +1 enter as 0 and 1. For q > 2 states every variable has q
    inputs, one for each state, and a softmax of q outputs: w and u are then (I, q, J), b is (I, q).
    With a centre m, the sum is over w_i'j (x_i' − m_i').

    Arguments:
        inputs: The number of variables I.
        hidden: The number of hidden units J.
        order: The order of conditioning: "random" or the variables' numbers. Default: as given.
        support: The support of x, from `limbeck.supports`, of any shape. Default: zeros and ones.
        dtype: The parameters' type, float32 or float64. Default: torch's.
        device: The parameters' device. Default: torch's.
        generator: Draws the parameters. Default: torch's global one.
        centre: The means of two-state variables as they are in x, of the shape of an event or (I,).
            Default: None.

    Attributes:
        order: The number of the variable at each position, (I,). Parameters are in this order.
        mean: The centre as probabilities of the larger state, (I,), in this order, or None.

    >>> nade = NADE(784, 500, generator=torch.Generator().manual_seed(0))
    >>> nade.log_prob(nade.sample(3)).shape
    torch.Size([3])
    """

    fields: ClassVar[Mapping[str, Any]] = {
        **Autoregressive.fields, "hidden": int, "centre": list[float] | None,
    }  # fmt: skip
    optional: ClassVar[Sequence[str]] = ("centre",)
    mean: Tensor | None

    @checked_arguments
    def __init__(
        self, inputs: Count, hidden: Count, order: UserObject[Order] = None,
        support: Discrete | None = None, dtype: torch.dtype | None = None, device: Device = None,
        generator: Generator = None, centre: UserObject[Centre] = None,
    ) -> None:  # fmt: skip
        super().__init__(inputs, order, support, dtype, device, generator)
        self.hidden = hidden
        shape = (self.inputs, *self._states, self.hidden)
        self.w = self._normal(generator, self.inputs**-0.5, *shape)
        self.u = self._normal(generator, self.hidden**-0.5, *shape)
        self.c, self.b = self._zeros(self.hidden), self._zeros(self.inputs, *self._states)
        self.register_buffer("mean", None if centre is None else self._centre(centre))
        self._units = self.hidden if self._states else 1  # kernels of two states bound their memory

    @classmethod
    @checked_arguments
    def from_rbm(
        cls, rbm: UserObject[RBM], hidden: Count | None = None, order: UserObject[Order] = None,
        generator: Generator = None, centre: UserObject[Centre | str] = "auto",
    ) -> Self:  # fmt: skip
        r"""A NADE that starts at the weights of an RBM: w = u = W, b = a and c = b + m W.

        Its conditionals are then one mean-field step in the RBM, with the centre m instead of the
        later variables. On a CPU, steps on sparse x take up to twice as long as without m.

        Arguments:
            rbm: Anything with W (I, J), a (I,) and b (J,).
            hidden: The number of hidden units: additional ones start with small weights; of fewer,
                those with the largest norms are taken. Default: as many as the RBM has.
            order: As in `NADE`. Default: the given order.
            generator: Draws small weights and a random order. Default: torch's global one.
            centre: As in `NADE`; "auto" estimates the RBM's means by short chains. Default: "auto".
        """
        try:
            checked = RBM(rbm.W, rbm.a, rbm.b)
        except (AttributeError, ArgumentError) as error:
            expected = "an RBM with W (I, J), a (I,) and b (J,), all finite"
            raise ArgumentError("rbm", f"a {type(rbm).__name__} ({error})", expected) from error
        W, a, b = (parameter.detach() for parameter in checked.parameters())
        if isinstance(centre, str):
            if centre != "auto":
                raise ArgumentError("centre", shown(centre), "'auto', None or means")
            centre = _means(rbm)
        support = getattr(rbm, "support", None)
        nade = cls(
            len(W), W.shape[1] if hidden is None else hidden, order,
            support if isinstance(support, Binary) else None,
            dtype=W.dtype, device=W.device, generator=generator, centre=centre,
        )  # fmt: skip
        chosen = W.norm(dim=0).topk(min(nade.hidden, W.shape[1])).indices.sort().values
        places = torch.arange(len(chosen), device=W.device)
        with torch.no_grad():
            for weights, size in ((nade.w, nade.inputs), (nade.u, nade.hidden)):
                weights.mul_(SMALL * size**0.5)
                weights.index_copy_(1, places, W[nade.order][:, chosen])
            nade.c.index_copy_(0, places, b[chosen])
            nade.b.copy_(a[nade.order])
            if nade.mean is not None:
                nade.c.add_(nade.mean @ nade.w)
        return nade

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        r"""w, c, u and b."""
        return self.w, self.c, self.u, self.b

    def _logits(self, codes: Tensor) -> Tensor:
        x = self._features(codes)
        return nade_op.logits(x if self.mean is None else x - self.mean, *self.parts)

    def _draw(self, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        w, c, u, b = (parameter.detach() for parameter in self.parts)
        if not self._states:
            native = nade_native if nade_op.use_native(uniforms, w) else None
            if (kernels := nade_op.gpu_kernels(uniforms) or native) is not None:
                return kernels.sample(uniforms, w, c, u, b, self.mean)
        mean = torch.zeros_like(b) if self.mean is None else self.mean
        return self._draw_run(uniforms, c.repeat(len(uniforms), 1), w, u, b, mean)

    def spec(self) -> dict[str, Any]:
        if self.mean is None:
            return super().spec() | {"centre": None}
        centre = self.support.decode(self._events(self.mean.unsqueeze(0)))
        return super().spec() | {"centre": centre.flatten().tolist()}

    def extra_repr(self) -> str:
        return super().extra_repr() + ("" if self.mean is None else ", centred")

    def _centre(self, centre: Centre) -> Tensor:
        r"""Means of the variables as probabilities of the larger state, in order."""
        low, high = self.support.values[0], self.support.values[-1]
        shapes = dict.fromkeys([self.support.shape, (self.inputs,)])
        expected = f"means from {low:g} to {high:g} of shape {' or '.join(map(str, shapes))}"
        if self.support.count > 2:
            raise ArgumentError("centre", f"means for {self.support!r}", "None for q > 2 states")
        means = as_numbers(centre, "centre").to(self.b)
        if means.shape not in shapes:
            raise ArgumentError("centre", f"shape {tuple(means.shape)}", expected)
        outside = ~((means >= low) & (means <= high))
        if outside.any():
            received = f"{int(outside.sum()):,} values such as {means[outside][0].item():g}"
            raise ArgumentError("centre", received, expected)
        return self.support.encode(means.flatten()[self.order])

    def make_room(self, tensors: dict[str, Tensor]) -> None:
        if self.mean is None and "mean" in tensors:
            self.mean = torch.zeros_like(self.b.detach())


# chains for an RBM's means, sweeps before the first record, records, sweeps between records
CHAINS, BURN_IN, RECORDS, THIN = 100, 500, 50, 10
RARE = 0.05  # means below this become zero: more inputs stay zero, which is faster on a CPU


@torch.no_grad()
def _means(rbm: Any) -> Tensor | None:
    r"""The means of an RBM's bits by short chains with a fixed seed; None if it has no chains."""
    if not (hasattr(rbm, "advance") and hasattr(rbm, "start")):
        return None
    generator = torch.Generator(torch.as_tensor(rbm.W).device).manual_seed(0)
    x: Tensor = rbm.start(CHAINS, generator)
    total = torch.zeros_like(x[0])
    for sweeps in (BURN_IN, *[THIN] * (RECORDS - 1)):
        x = rbm.advance(x, sweeps, generator)
        total = total + x.mean(0)
    means = total / RECORDS
    return means.where((means >= RARE) | (means < 0), 0)


class DeepNADE(Recursive):
    r"""A neural autoregressive distribution estimator with a residual net between runs.

    The variables are cut into K runs of B. At the start of run k, NADE's activations of all that
    came before go through `depth` residual layers, shared by the runs but for their biases:

        s ← c_k + Σ_{i before run k} w_i (x_i − m_i);   s ← s + gelu(σ(s) A + e_k) A′, …

    Inside the run they go on as in NADE, with weights v: p(x_i = 1 | x_<i) is
    σ(b_i + Σ_j u_ij σ(s_j + Σ_i' v_i'j (x_i' − m_i'))), over the i' < i of the run. A′ starts at
    zero, so that a model which starts at a NADE starts with its density.

    Arguments:
        inputs: The number of variables I.
        hidden: The number of hidden units J.
        width: The number of units of each residual layer. Default: 2 J.
        depth: The number of residual layers. Default: 2.
        run: The number of variables B in a run. Default: about the square root of I.
        order: As in `NADE`, like `support`, `dtype`, `device` and `generator`.

    >>> model = DeepNADE(784, 100, generator=torch.Generator().manual_seed(0))
    >>> model.log_prob(model.sample(3)).shape
    torch.Size([3])
    """

    fields: ClassVar[Mapping[str, Any]] = {
        **Autoregressive.fields, "hidden": int, "width": int, "depth": int, "run": int,
    }  # fmt: skip

    @checked_arguments
    def __init__(
        self, inputs: Count, hidden: Count, width: Count | None = None, depth: CountFromZero = 2,
        run: Count | None = None, order: UserObject[Order] = None, support: Discrete | None = None,
        dtype: torch.dtype | None = None, device: Device = None, generator: Generator = None,
    ) -> None:  # fmt: skip
        super().__init__(inputs, order, support, dtype, device, generator)
        self.hidden, self.depth = hidden, depth
        self.width = 2 * hidden if width is None else width
        self.run = math.isqrt(self.inputs - 1) + 1 if run is None else run
        self.runs = -(-self.inputs // self.run)
        shape, scale = (self.inputs, *self._states, self.hidden), self.hidden**-0.5
        self.w = self._normal(generator, self.inputs**-0.5, *shape)
        self.v = nn.Parameter(self.w.detach().clone())
        self.u = self._normal(generator, scale, *shape)
        self.c, self.b = self._zeros(self.runs, self.hidden), self._zeros(*shape[:-1])
        self.enter, self.bias, self.leave = (nn.ParameterList() for _ in range(3))
        for _ in range(self.depth):
            self.enter.append(self._normal(generator, scale, self.hidden, self.width))
            self.bias.append(self._zeros(self.runs, self.width))
            self.leave.append(self._zeros(self.width, self.hidden))
        self.mean = nn.Buffer(torch.zeros_like(self.b))
        self._units = 4 * self.hidden + self.width

    @classmethod
    @checked_arguments
    def from_nade(
        cls, nade: NADE, width: Count | None = None, depth: CountFromZero = 2,
        run: Count | None = None, generator: Generator = None,
    ) -> Self:  # fmt: skip
        r"""A DeepNADE that starts at a NADE.

        Arguments:
            nade: A NADE, whose density it starts with: of an RBM, `NADE.from_rbm(rbm)`.
            width: As in `DeepNADE`, like `depth` and `run`.
            generator: Draws the residual layers' weights. Default: torch's global one.
        """
        model = cls(
            nade.inputs, nade.hidden, width, depth, run, nade.order, nade.support,
            dtype=nade.w.dtype, device=nade.w.device, generator=generator,
        )  # fmt: skip
        with torch.no_grad():
            for name in ("w", "u", "b", "c"):
                getattr(model, name).copy_(getattr(nade, name))  # c for every run
            model.v.copy_(nade.w)
            if nade.mean is not None:
                model.mean.copy_(nade.mean)
        return model

    def _logits(self, codes: Tensor) -> Tensor:
        if not torch.compiler.is_compiling() and not torch.is_grad_enabled():
            room = ROOM.get(codes.device.type, ROOM["cpu"])
            max_rows = max(1, room // (self.runs * (self.width + self.hidden)))
            if len(codes) > max_rows:
                return torch.cat([self._logits(part) for part in codes.split(max_rows)])
        y = self._features(codes) - self.mean
        starts = self._deep(nade_op.carried(y, self.w, self.run))
        return nade_op.run_logits(y, starts, self.v, self.u, self.b, self.run)

    def _draw(self, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        carried, draws = self.c.new_zeros(len(uniforms), self.hidden), []
        for k, i in enumerate(range(0, self.inputs, self.run)):
            span = slice(i, i + self.run)
            a = self._deep(carried.unsqueeze(0), slice(k, k + 1))[0]
            run = (self.v[span], self.u[span], self.b[span], self.mean[span])
            draws.append(self._draw_run(uniforms[:, span], a, *run))
            y = (self._features(draws[-1][0]) - self.mean[span]).flatten(1)
            carried.addmm_(y, self.w[span].reshape(-1, self.hidden))
        codes, probabilities = (torch.cat(parts, 1) for parts in zip(*draws, strict=True))
        return codes, probabilities

    def _deep(self, carried: Tensor, runs: slice = slice(None)) -> Tensor:
        r"""The activations at the start of some runs, from what is carried there, (k, n, J)."""
        s = carried + self.c[runs].unsqueeze(1)
        for enter, bias, leave in zip(self.enter, self.bias, self.leave, strict=True):
            s = s + F.gelu(s.sigmoid() @ enter + bias[runs].unsqueeze(1)) @ leave
        return s
