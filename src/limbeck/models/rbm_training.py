r"""Training of RBMs: persistent tempered chains, centred gradients, and monitoring."""

from __future__ import annotations

import copy
import itertools
import math
import time

import torch
from torch import Tensor

from limbeck import arguments as arg
from limbeck.arrays import as_part
from limbeck.errors import ArgumentError, LimbeckWarning, warn
from limbeck.models.rbm import RBM, Bits, Numbers, softplus
from limbeck.progress import tracked
from limbeck.training.config import choose_device
from limbeck.training.result import History

EXACT_UNITS = 18  # on the smaller side, up to which log Z is exact at every evaluation
ANNEALED = 100  # chains, and temperatures, of an estimate of log Z while training
PARTS = 10  # of a training; after each the RBM is evaluated


class TemperedChains:
    r"""Persistent chains of an RBM at temperatures from β = 1 to 0, which exchange their states.

    At β = 0 bits are independent with log odds `base`, so that chains there forget everything at
    once; states that move from there to β = 1 let the chains there change between modes.
    """

    def __init__(
        self, rbm: RBM, x: Tensor, temperatures: int, base: Tensor, generator: torch.Generator
    ) -> None:
        self.rbm, self.base, self.generator = rbm, base, generator
        self.x = x.repeat(temperatures, 1)  # (temperatures × chains, I)
        self.betas = torch.linspace(1, 0, temperatures, device=x.device).view(-1, 1)
        self.scales = self.betas.repeat_interleave(len(x), 0)
        self.swaps = 0

    def advance(self, sweeps: int) -> Tensor:
        r"""The chains (n, I) at β = 1 after some sweeps, each with an exchange of neighbours."""
        rbm, levels = self.rbm, len(self.betas)
        bits = Bits(2 * sweeps, self.x.device, self.generator)
        difference, back = rbm.a - self.base, rbm.W.T
        for _ in range(sweeps):
            activation = torch.addmm(rbm.b, self.x, rbm.W)
            h = bits(activation * self.scales)
            score = self.x @ difference + (activation * h).sum(1)  # the factor of β in log p̃(x, h)
            h = self._exchange(h.view(levels, -1, rbm.hidden), score.view(levels, -1))
            logits = torch.addmm(difference, h.view(-1, rbm.hidden), back).mul_(self.scales)
            self.x = bits(logits.add_(self.base))
        return self.x[: len(self.x) // levels]

    def _exchange(self, h: Tensor, score: Tensor) -> Tensor:
        r"""Hidden states (levels, n, J), some exchanged with those of the next level."""
        first = self.swaps % 2 if len(h) > 2 else 0
        last = first + (len(h) - first) // 2 * 2
        one, other = slice(first, last, 2), slice(first + 1, last, 2)
        gain = (self.betas[one] - self.betas[other]) * (score[other] - score[one])
        uniform = torch.rand(gain.shape, generator=self.generator, device=gain.device)
        taken = uniform.log_() < gain
        difference = (h[other] - h[one]).mul_(taken.unsqueeze(2))
        h[one] += difference
        h[other] -= difference
        self.swaps += 1
        return h


class Centred:
    r"""The log likelihood as a function of W and of the biases of x − ⟨x⟩ and h − ⟨h⟩.

    Where units are centred, the gradients of weights and biases do not point in the same direction,
    and training does not depend on which state of a unit is called one. A step in these parameters
    is one in W, a and b, whatever the optimizer makes of the gradient.
    """

    def __init__(self, rbm: RBM, mean: Tensor) -> None:
        self.rbm, self.x = rbm, mean
        self.h = torch.zeros_like(rbm.b)  # ⟨h⟩, as a moving average
        self.steps = 0

    def gradient(self, data: Tensor, model: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        r"""By W and both biases, of data (n, I) and samples (m, I) of the model."""
        rbm = self.rbm
        h, model_h = (torch.addmm(rbm.b, x, rbm.W).sigmoid_() for x in (data, model))
        means = h.mean(0)
        self.h.lerp_(means, 0.05 if self.steps else 1.0)
        self.steps += 1
        W = (data - self.x).T @ (h - self.h)
        W.addmm_((model - self.x).T, model_h - self.h, beta=1 / len(data), alpha=-1 / len(model))
        return W, data.mean(0) - model.mean(0), means - model_h.mean(0)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        r"""A step of the optimizer, by which the biases of centred units change, on W, a and b."""
        rbm, before = self.rbm, self.rbm.W.clone()
        optimizer.step()
        change = before.sub_(rbm.W)
        rbm.a.add_(change @ self.h)
        rbm.b.add_(self.x @ change)


def annealed_log_z(
    rbm: RBM, x: Tensor | None, base: Tensor, generator: torch.Generator
) -> tuple[float, float, float]:
    r"""log Z by annealing from independent bits, and back from chains x (n, I) of the RBM, if any.

    The one is too low in expectation, and the other too high if the chains sample the RBM. It comes
    with its error, which includes half their difference, and with how far the one is above the
    other, beyond their errors.
    """
    betas = torch.linspace(0, 1, ANNEALED + 1).tolist()
    bits, difference = Bits(4 * ANNEALED + 1, base.device, generator), rbm.a - base
    independent = rbm.hidden * math.log(2) + float(softplus(base.double()).sum())
    values, errors = [], []
    starts = [bits(base.repeat(ANNEALED, 1))] + ([] if x is None else [x[:ANNEALED]])
    for sign, state in zip((1, -1), starts, strict=False):
        log_w = torch.zeros(len(state), dtype=torch.float64, device=state.device)
        for before, after in itertools.pairwise(betas[::sign]):
            activation = torch.addmm(rbm.b, state, rbm.W)
            rise = softplus(activation * after) - softplus(activation * before)
            log_w += rise.sum(1, dtype=torch.float64)
            log_w += (state @ difference).double() * (after - before)
            h = bits(activation * after)
            state = bits(torch.addmm(difference, h, rbm.W.T).mul_(after).add_(base))
        mean = log_w.logsumexp(0) - math.log(len(log_w))
        values.append(independent + sign * float(mean))
        errors.append(float((log_w - mean).exp().std()) / math.sqrt(len(log_w)))
    gap = values[0] - values[-1]
    value, error = sum(values) / len(values), math.hypot(*errors, gap) / len(values)
    return value, error, gap - 3 * math.hypot(*errors)


class Watch:
    r"""The likelihood of an RBM as it trains: its history, the best parameters, and divergence."""

    def __init__(
        self, rbm: RBM, data: Tensor, held_out: Tensor | None, base: Tensor,
        generator: torch.Generator,
    ) -> None:  # fmt: skip
        rows = torch.randperm(len(data), generator=generator, device=data.device)[:1000]
        self.rbm, self.base, self.generator = rbm, base, generator
        self.data, self.history = data[rows].float(), History()
        self.held_out = None if held_out is None else held_out.to(self.data)
        self.waited, self.seconds = 0, 0.0
        # what independent bits have, which any useful RBM exceeds on the data
        self.least = self.highest = self._independent(self.data)
        self.best = self.least if self.held_out is None else self._independent(self.held_out)
        self.parameters = copy.deepcopy(rbm.state_dict())  # the best ones

    def diverged(self, step: int, rate: float, x: Tensor | None) -> bool:
        r"""Evaluate; whether most of what had been learned is lost, or nothing is finite."""
        began = time.monotonic()
        rbm = self.rbm
        if not all(parameter.isfinite().all() for parameter in rbm.parameters()):
            return True
        log_z, error, contradiction = (
            (rbm._exact_log_z(), 0.0, 0.0) if min(rbm.visible, rbm.hidden) <= EXACT_UNITS
            else annealed_log_z(rbm, x, self.base, self.generator)
        )  # fmt: skip
        value = judged = float(rbm(self.data).mean()) - log_z
        entry = {"step": step, "lr": rate, "log_likelihood": value, "std_error": error}
        if self.held_out is not None:
            entry["held_out"] = judged = float(rbm(self.held_out).mean()) - log_z
        self.history.append(**entry)
        stale = contradiction > 0.15 * abs(self.least)  # chains no longer sample the RBM
        lost = (self.highest + self.least) / 2 - 0.25 * abs(self.least)
        self.waited += 1
        if not stale:
            self.highest = max(self.highest, value - error)
            if judged - error > self.best:
                self.best, self.waited = judged - error, 0
                self.parameters = copy.deepcopy(rbm.state_dict())
        self.seconds += time.monotonic() - began
        return stale or not lost < value + 3 * error < math.inf

    def _independent(self, rows: Tensor) -> float:
        return float((rows * self.base - softplus(self.base)).sum(1).mean())


@torch.no_grad()
@arg.checked_arguments
def train_rbm(
    data: arg.UserObject[Numbers], hidden: arg.Count, *, epochs: arg.Count | None = None,
    seconds: arg.Positive | None = None, batch_size: arg.Count = 100, lr: arg.Positive = 0.05,
    momentum: arg.Remainder = 0.5, weight_decay: arg.FromZero = 1e-4,
    sweeps: arg.Count = 1, chains: arg.Count = 50, temperatures: arg.Count = 5,
    held_out: arg.UserObject[Numbers | None] = None, patience: arg.Count = 5,
    seed: arg.Seed = 0, device: arg.Device | arg.Auto = "auto", progress: arg.Flag = True,
) -> RBM:  # fmt: skip
    r"""An RBM trained on binary data by a stochastic gradient of the log likelihood.

    The model's statistics are from persistent chains at several temperatures that exchange their
    states, and steps are Adam's. `rbm.history` has the evaluations: "step", "lr",
    "log_likelihood" (of up to 1,000 rows of the data) with the "std_error" of its log Z (0 where
    the smaller side has at most 18 units, so that the sum is exact), "held_out".
    `rbm.stop_reason` says why it stopped. The best parameters that were evaluated are returned.

    If the likelihood falls far below what it was, training continues from the best parameters at a
    quarter of the learning rate, with a warning; and if it never exceeds that of independent bits,
    there is an error.

    Arguments:
        data: Zeros and ones (n, I), as floats, integers or booleans.
        hidden: The number of hidden units J.
        epochs: Passes over the data, in which the learning rate falls to zero. Default: 20, and as
            many as make 2,000 steps for small data; with `seconds`, no limit.
        seconds: A time limit, in which the learning rate falls to zero. Default: none.
        batch_size: Examples in a step. Default: 100.
        lr: The first learning rate. Default: 0.05.
        momentum: The weight of earlier gradients. Default: 0.5.
        weight_decay: The fraction of W that is subtracted from its gradient. Default: 1e-4.
        sweeps: Sweeps of block Gibbs before each step. Default: 1.
        chains: The number of persistent chains at each temperature. Default: 50.
        temperatures: The number of temperatures of persistent chains. Default: 5.
        held_out: Other rows (m, I), on which training stops early: the best parameters on these are
            returned. Default: none.
        patience: Evaluations without an improvement on `held_out` before it stops. Default: 5.
        seed: The seed of weights, order and chains. Default: 0.
        device: The device to train on, where the RBM stays. Default: "auto", a GPU if there is one.
        progress: Whether to show a bar in a terminal. Default: True.

    >>> data = torch.tensor([[0, 0, 1, 1], [1, 1, 0, 0]]).repeat(50, 1)
    >>> rbm = train_rbm(data, 3, device="cpu")
    >>> round(rbm.history["log_likelihood"][-1], 1)  # log 1/2 is the most
    -0.7
    """
    began = time.monotonic()
    bits = binary_rows(data)
    if held_out is not None:
        held_out = binary_rows(held_out, "held_out")
        if held_out.shape[1] != bits.shape[1]:
            expected = f"shape (m, {bits.shape[1]}), as the data"
            raise ArgumentError("held_out", f"shape {tuple(held_out.shape)}", expected)
    place = choose_device(device)
    generator = torch.Generator(place).manual_seed(seed)
    n, batch_size = len(bits), min(batch_size, len(bits))
    ones = bits.sum(0, dtype=torch.float64)
    base = ((ones + 1) / (n + 1 - ones)).log().float().to(place)  # log odds
    bits = bits.to(place, torch.uint8)  # a quarter of the floats' size
    of_epoch = -(-n // batch_size)
    steps = (epochs or max(20, -(-2000 // of_epoch))) * of_epoch  # 2,000 for small data
    if seconds is not None and epochs is None:
        steps = arg.LARGEST

    rbm = RBM.random(bits.shape[1], hidden, 0.01, generator, device=place)
    rbm.a.copy_(base)
    rbm.b.zero_()
    parameters = (rbm.W, rbm.a, rbm.b)
    watch = Watch(rbm, bits, held_out, base, generator)
    centred = Centred(rbm, bits.mean(0, dtype=torch.float32))

    def new_adam() -> torch.optim.Adam:
        return torch.optim.Adam(parameters, betas=(momentum, 0.99), eps=0.01, maximize=True)

    adam, model, samples = new_adam(), None, None
    rate, order, step, evaluated, recoveries = lr, list[Tensor](), 0, 0, list[int]()
    stop_reason = "all epochs done" if seconds is None else f"time limit of {seconds:g} s reached"
    limit = math.inf if seconds is None else seconds

    for part in tracked(range(PARTS), "training", progress):
        while (done := max(step / steps, (time.monotonic() - began) / limit)) < (part + 1) / PARTS:
            if not order:
                rows = torch.randperm(n, generator=generator, device=place)
                order = list(rows.split(batch_size))
            batch = bits[order.pop()].float()
            if model is None:
                rows = torch.randint(n, (chains,), generator=generator, device=place)
                model = TemperedChains(rbm, bits[rows].float(), temperatures, base, generator)
            samples = model.advance(sweeps)
            slopes = centred.gradient(batch, samples)
            slopes[0].sub_(rbm.W, alpha=weight_decay)
            for parameter, slope in zip(parameters, slopes, strict=True):
                parameter.grad = slope
            adam.param_groups[0]["lr"] = rate * (1 - done)
            centred.step(adam)
            step += 1
        often = watch.seconds > 0.2 * (time.monotonic() - began) if seconds else False
        if part + 1 < PARTS and (step - evaluated < 100 or often):
            continue
        evaluated = step
        if watch.diverged(step, rate, samples):
            recoveries.append(step)
            rate, adam, model = rate / 4, new_adam(), None
            rbm.load_state_dict(watch.parameters)
        elif held_out is not None and watch.waited >= patience:
            stop_reason = f"the held-out log likelihood (best {watch.best:.4g}) stopped improving"
            break
    rbm.load_state_dict(watch.parameters)
    rbm.zero_grad()
    rbm.history, rbm.stop_reason = watch.history, stop_reason
    if recoveries and watch.highest <= watch.least:
        received = f"{lr:g}, with which the training diverged at step {recoveries[0]:,}"
        raise ArgumentError("lr", received, f"a lower rate, such as {min(lr / 4, 0.05):g}")
    if recoveries:
        text = (
            f"lr: with {lr:g} the training diverged at step {', '.join(map(str, recoveries))}; it "
            f"continued from the best parameters with {rate:g}: use a lower rate"
        )
        warn(text, LimbeckWarning)
    return rbm


def binary_rows(data: Numbers, argument: str = "data") -> Tensor:
    r"""Zeros and ones (n, I) of any type, as a tensor."""
    bits = as_part(data, argument).values
    if bits.dim() != 2:
        expected = "shape (n, I): one row for each example, as x.reshape(len(x), -1) gives"
        raise ArgumentError(argument, f"shape {tuple(bits.shape)}", expected)
    other = (bits != 0) & (bits != 1)
    if other.any():
        received = f"{int(other.sum()):,} values such as {bits[other][0].item():g}"
        raise ArgumentError(argument, received, "zeros and ones: binarise first, as (x > 0.5) does")
    return bits
