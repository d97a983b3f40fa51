r"""DeepNADE: a NADE whose activations pass through a deep net every few variables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from limbeck.arguments import Count, CountFromZero, UserObject, checked_arguments
from limbeck.models.autoregressive import Autoregressive, Order
from limbeck.models.checks import Device, Generator
from limbeck.models.kernels import nade_op
from limbeck.models.nade import NADE
from limbeck.supports import Discrete

ROOM = {"cpu": 2**24, "cuda": 2**30}  # numbers between the layers at a time, without gradients


class DeepNADE(Autoregressive):
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
        nade_op.prepare_tracing()

    @classmethod
    def _least_size(cls, fields: Mapping[str, Any]) -> int:
        return fields["hidden"] * (3 * cls._width(fields) + 2 * fields["depth"] * fields["width"])

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

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        nade_op.prepare_tracing()
