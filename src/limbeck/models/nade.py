r"""NADE, the neural autoregressive distribution estimator: a tractable density over discrete x."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn

from limbeck.arguments import whole_number
from limbeck.errors import ArgumentError, NotDifferentiableError
from limbeck.models import rbm_path as rbm_start
from limbeck.models.autoregressive import Order, Ordered, floating
from limbeck.models.kernels import nade_op
from limbeck.models.kernels.nade_op import logits
from limbeck.models.kernels.nade_second import Direction, Products, r_products
from limbeck.storage.files import under
from limbeck.supports import Binary, Discrete

__all__ = ["NADE", "log_conditionals", "log_prob", "sample"]

NUMBERS = 2**20
r"""Activations at a time while sampling."""


def log_conditionals(codes: Tensor, w: Tensor, c: Tensor, u: Tensor, b: Tensor) -> Tensor:
    r"""log p(x_i = k | x_<i) for every state k, (n, I, q).

    Arguments:
        codes: States 0 … q−1, (n, I), in NADE's order.
        w: What each state of each variable adds to the activations, (I, q, J).
        c: The hidden units' biases, (J,).
        u: Weights out of the hidden units, (I, q, J).
        b: The states' biases, (I, q).
    """
    states = b.shape[1]
    x = _one_hot(codes, states).flatten(1)  # (n, I · q)
    z = logits(x, w.flatten(0, 1), c, u.flatten(0, 1), b.flatten(), states)
    return z.unflatten(1, b.shape).log_softmax(2)


def log_prob(codes: Tensor, w: Tensor, c: Tensor, u: Tensor, b: Tensor) -> Tensor:
    r"""log p(x), (n,), of codes (n, I)."""
    terms = log_conditionals(codes, w, c, u, b) * _one_hot(codes, b.shape[1])
    return terms.sum((1, 2), dtype=torch.float64).to(terms.dtype)


@torch.no_grad()
def sample(uniforms: Tensor, w: Tensor, c: Tensor, u: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    r"""Codes (n, I), each where its uniform number falls, and all probabilities met, (n, I, q)."""
    found = [_sample(some, w, c, u, b) for some in uniforms.split(max(1, NUMBERS // len(c)))]
    codes, probabilities = zip(*found, strict=True)
    return torch.cat(codes), torch.cat(probabilities)


def _sample(uniforms: Tensor, w: Tensor, c: Tensor, u: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    a = c.repeat(len(uniforms), 1)
    codes, probabilities = [], []
    for i, uniform in enumerate(uniforms.T):
        p = torch.addmm(b[i], a.sigmoid(), u[i].T).softmax(1)
        passed = uniform.unsqueeze(1) >= p.cumsum(1)
        code = passed.sum(1).clamp_max(b.shape[1] - 1)  # rounded sums may stay below one
        a += w[i][code]
        codes.append(code)
        probabilities.append(p)
    return torch.stack(codes, 1).to(uniforms.dtype), torch.stack(probabilities, 1)


def _one_hot(codes: Tensor, states: int) -> Tensor:
    every = torch.arange(states, dtype=codes.dtype, device=codes.device)
    return (codes.unsqueeze(2) == every).to(codes.dtype)


SMALL = 0.01
r"""The standard deviation of the weights of hidden units that are added to an RBM's."""


class NADE(Ordered):
    r"""A neural autoregressive distribution estimator with one hidden layer.

    Its conditionals are p(x_i = 1 | x_<i) = σ(b_i + Σ_j u_ij σ(c_j + Σ_{i' < i} w_i'j x_i')) over
    zeros and ones; spins −1 and +1 enter as 0 and 1. For q > 2 states every variable has q
    inputs, one for each state, and a softmax of q outputs: w and u are then (I, q, J), b is (I, q).

    With a centre m the sum is over w_i'j (x_i' − m_i'), for zeros and ones x and their means m. At
    every position c then counts the variables to come at their means instead of at zero, which a
    start at an RBM's weights needs; no choice of w and c makes a NADE without a centre do it.

    Weights start normal with standard deviations I^−½ (w) and J^−½ (u), biases at zero.

    Arguments:
        inputs: The number of variables I.
        hidden: The number of hidden units J.
        order: The variables in the order in which they are conditioned on: None as they come,
            "random" drawn from the generator, or the variables' numbers.
        support: What x may be, from `limbeck.supports`; zeros and ones by default. Events
            may have any shape of `inputs` variables: they are taken row by row.
        dtype: The parameters' type, float32 or float64.
        device: Where the parameters live.
        generator: Where the parameters are drawn from; None is torch's global one.
        centre: The means of the variables as they are in x (of spins from −1 to 1), of the shape
            of an event or (I,), such as those of data; None for none. Only for two states.

    Attributes:
        order: The number of the variable at each position, (I,). Parameters are in this order.
        mean: The centre as probabilities of the larger state, (I,), in this order; or None. It is
            no parameter, and part of the state only if it is there.

    >>> nade = NADE(784, 500, generator=torch.Generator().manual_seed(0))
    >>> nade.log_prob(nade.sample(3)).shape
    torch.Size([3])
    """

    mean: Tensor | None

    def __init__(
        self,
        inputs: int,
        hidden: int,
        order: Order = None,
        support: Discrete | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
        centre: Any = None,
    ) -> None:
        super().__init__(inputs, order, support, device, generator)
        self.hidden = whole_number("hidden", hidden, "a whole number from 1", least=1)
        dtype, place = floating(dtype), self.order.device
        each = () if self.support.count == 2 else (self.support.count,)

        def normal(scale: float) -> nn.Parameter:
            # drawn where the generator lives, so that a CPU generator gives equal nets everywhere
            lives = torch.device("cpu") if generator is None else generator.device
            shape = (self.inputs, *each, self.hidden)
            drawn = torch.randn(shape, generator=generator, dtype=dtype, device=lives)
            return nn.Parameter((scale * drawn).to(place))

        self.w, self.u = normal(self.inputs**-0.5), normal(self.hidden**-0.5)
        self.c = nn.Parameter(torch.zeros(self.hidden, dtype=dtype, device=place))
        self.b = nn.Parameter(torch.zeros(self.inputs, *each, dtype=dtype, device=place))
        self.register_buffer("mean", None if centre is None else self._centre(centre))
        nade_op.prepare_tracing()

    @classmethod
    def from_rbm(
        cls,
        rbm: Any,
        hidden: int | None = None,
        order: Order = None,
        generator: torch.Generator | None = None,
        centre: Any = "auto",
    ) -> Self:
        r"""A NADE that starts at the weights of an RBM: w = u = W, b = a and c = b + m W.

        Its conditionals are then one mean-field step in the RBM, with the centre m in the place of
        the variables to come. It starts much nearer to the RBM's density than without a centre,
        where zeros are in their place. In training it stays nearer to small RBMs; to large ones
        either comes equally near in some hundred steps. On a CPU steps on sparse x take up to twice
        as long with a centre, since fewer inputs are zero.

        Arguments:
            rbm: Anything with W (I, J), a (I,) and b (J,).
            hidden: The number of hidden units. More than the RBM's: the further ones start with
                small weights. Fewer: those whose weights have the largest norms are kept.
            order: As of `NADE`; the parameters' rows are put into it.
            generator: Where small weights and a random order are drawn from.
            centre: As of `NADE`. "auto" takes the RBM's means by short chains of its own, which
                are the same each time, if it has `start` and `advance`; none if not. Means that
                are nearly zero are taken as zero.
        """
        W, a, b = rbm_start.weights(rbm)
        if isinstance(centre, str):
            if centre != "auto":
                raise ArgumentError("centre", repr(centre), "'auto', None or means")
            centre = rbm_start.means(rbm)
        own = getattr(rbm, "support", None)
        nade = cls(
            len(W),
            W.shape[1] if hidden is None else hidden,
            order,
            own if isinstance(own, Binary) else None,
            dtype=W.dtype,
            device=W.device,
            generator=generator,
            centre=centre,
        )
        kept = W.norm(dim=0).topk(min(nade.hidden, W.shape[1])).indices.sort().values
        places = torch.arange(len(kept), device=W.device)
        with torch.no_grad():
            for weights, size in ((nade.w, nade.inputs), (nade.u, nade.hidden)):
                weights.mul_(SMALL * size**0.5)
                weights.index_copy_(1, places, W[nade.order][:, kept])
            nade.c.index_copy_(0, places, b[kept])
            nade.b.copy_(a[nade.order])
            if nade.mean is not None:
                nade.c.add_(nade.mean @ nade.w)
        return nade

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        r"""w, c, u and b."""
        return self.w, self.c, self.u, self.b

    def log_prob(self, x: Tensor, check: bool = True) -> Tensor:
        codes = self._codes(x, check)
        if self.support.count == 2:
            return nade_op.log_prob(codes, *self.parts, self.mean)
        return log_prob(codes, *self.parts)

    def conditionals(self, x: Tensor) -> Tensor:
        r"""p(x_i = 1 | x_<i), (n, *shape), for the larger of two states; of q states (…, q).

        Each stands where its variable stands in x; which ones come before, `order` says.
        """
        codes = self._codes(x, True)
        if self.support.count == 2:
            entering = codes if self.mean is None else codes - self.mean
            return self._events(nade_op.logits(entering, *self.parts).sigmoid())
        return self._events(log_conditionals(codes, *self.parts).exp())

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        r"""Independent events (n, *shape), exactly from p."""
        return self.support.decode(self._draw(n, generator)[0])

    def sample_probabilities(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        r"""The conditional probabilities that were met in drawing n events, as `conditionals`.

        They belong to the events that `sample` gives for a generator in the same state.
        """
        return self._draw(n, generator)[1]

    def score(self, x: Tensor) -> Tensor:
        r"""∂log p(x)/∂x, (n, *shape), as if x were continuous."""
        self._refuse_many("score")
        self._codes(x, True)
        found, pull = torch.func.vjp(lambda x: self.log_prob(x, check=False), x)[:2]
        return pull(torch.ones_like(found))[0]

    def r_products(
        self,
        x: Tensor,
        vx: Tensor | None = None,
        w: Tensor | None = None,
        c: Tensor | None = None,
        u: Tensor | None = None,
        b: Tensor | None = None,
    ) -> Products:
        r"""H v, with H the Hessian of Σ_n log p(x_n) with respect to x and the parameters.

        Arguments:
            x: Events (n, *shape).
            vx: The part of v for x, (n, *shape); None is zero. With only this part, what comes
                out for the parameters is (∂²L/∂θ∂x) v.
            w: The part for w, of its shape; None is zero.
            c: The part for c.
            u: The part for u.
            b: The part for b.

        Returns:
            x (n, *shape), w, c, u, b: the parts of H v; value (n,): the derivative of each log p
            along v.
        """
        self._refuse_many("r_products")
        codes, scale = self._codes(x, True), 1 / self.support.step  # of codes for x
        given = {"w": w, "c": c, "u": u, "b": b}
        for (name, part), parameter in zip(given.items(), self.parts, strict=True):
            if part is not None and part.shape != parameter.shape:
                expected = f"shape {tuple(parameter.shape)}"
                raise ArgumentError(name, f"shape {tuple(part.shape)}", expected)
        own = None if vx is None else scale * self._flat(vx, "vx")
        found = r_products(codes, *self.parts, Direction(own, **given), m=self.mean)
        return found._replace(x=self._events(scale * found.x))

    def spec(self) -> dict[str, Any]:
        centre = None
        if self.mean is not None:
            centre = self.support.decode(self._events(self.mean.unsqueeze(0))).flatten().tolist()
        return super().spec() | {"hidden": self.hidden, "centre": centre}

    def extra_repr(self) -> str:
        centred = "" if self.mean is None else ", centred"
        return f"{self.inputs}, {self.hidden}, support={self.support!r}{centred}"

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        nade_op.prepare_tracing()

    def _draw(self, n: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        r"""Codes (n, *shape) and the conditional probabilities met."""
        w, c, u, b = (each.detach() for each in self.parts)
        uniforms = self._uniforms(n, generator)
        if self.support.count == 2:
            codes, met = nade_op.sample(uniforms, w, c, u, b, self.mean)
        else:
            codes, met = sample(uniforms, w, c, u, b)
        return self._events(codes), self._events(met)

    def _refuse_many(self, what: str) -> None:
        if self.support.count > 2:
            raise NotDifferentiableError(
                f"{what}: states have no derivatives; expected a NADE over two states"
            )

    def _centre(self, centre: Any) -> Tensor:
        r"""Means of the variables as probabilities of the larger state, in order, if they are."""
        least, most = self.support.values[0], self.support.values[-1]
        shape = " or ".join(
            str(each) for each in dict.fromkeys([self.support.shape, (self.inputs,)])
        )
        expected = f"means from {least:g} to {most:g} of shape {shape}"
        if self.support.count > 2:
            raise ArgumentError("centre", f"means for {self.support!r}", "None for q > 2 states")
        try:
            given = torch.as_tensor(centre, dtype=self.b.dtype, device=self.b.device).detach()
        except (TypeError, ValueError, RuntimeError):
            raise ArgumentError("centre", f"a {type(centre).__name__}", expected) from None
        if given.shape not in (self.support.shape, (self.inputs,)):
            raise ArgumentError("centre", f"shape {tuple(given.shape)}", expected)
        outside = ~((given >= least) & (given <= most))
        if outside.any():
            received = f"{int(outside.sum()):,} values such as {given[outside][0].item():g}"
            raise ArgumentError("centre", received, expected)
        return self.support.encode(given.flatten()[self.order])

    def make_room(self, state: dict[str, Tensor]) -> None:
        r"""Have places for all that a state holds: a centre is there only if it is used."""
        if self.mean is None and "mean" in state:
            self.mean = torch.zeros_like(self.b.detach())

    def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
        r"""A state with a centre gives a NADE without one its own, as it gives it its order."""
        self.make_room(under(prefix, state))
        super()._load_from_state_dict(state, prefix, *rest)
