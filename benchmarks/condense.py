r"""Condense against thinning: predictive KL at new inputs, over posteriors of several families.

    python benchmarks/condense.py [--only NAME ...] [--out benchmarks/results/condense-cpu.json]

Each posterior has draws, a predict function, training inputs and new inputs of the same kind. All
methods represent the draws by K of them, or by K pseudo-draws; the score is the mean over new
inputs of KL(average over all draws ‖ average of the K). Random thinning and kernel thinning are
averaged over repeats. Kernel thinning is that of goodpoints (a Gaussian kernel of the parameters in
units of their deviations, the median distance as width), Stein thinning of stein_thinning; what
is not installed is left out. Intervals of ratios are bootstrapped over new inputs. With ten
components the draws are condensed once more, as a stream of batches.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import limbeck as lb
from limbeck.condensation.agreement import predictive
from limbeck.condensation.models import mlp
from limbeck.condensation.pool import Pool
from limbeck.condensation.predict_function import PredictFunction
from limbeck.distributions import average
from limbeck.posteriors.draws import Draws

WIDE = torch.float64
COMPONENTS = (3, 10, 32)
ROOT = Path(__file__).parent.parent


@dataclass
class Case:
    family: str
    draws: Tensor  # (S, dim), unconstrained
    log_density: Callable[[Tensor], Tensor]
    predict: Callable[[Tensor, Any], Any]
    inputs: Any
    new: Any


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=WIDE)


def hmc(log_density: Callable[[Tensor], Tensor], dim: int, draws: int = 3000) -> Tensor:
    seed = 0
    sampler = lb.samplers.HMC(log_density, 0.1 * normal(50, dim, seed=seed), seed=seed).burn_in(150)
    return torch.cat([sampler.step().clone() for _ in range(draws // 50)])


def covariates(n: int, dim: int, seed: int) -> Tensor:
    mixing = normal(dim, dim, seed=seed) / math.sqrt(dim) + 0.5 * torch.eye(dim, dtype=WIDE)
    return normal(n, dim, seed=seed + 1) @ mixing


def with_ones(x: Tensor) -> Tensor:
    return torch.cat([x, torch.ones(len(x), 1, dtype=WIDE)], 1)


def logistic_case(x: Tensor, y: Tensor, train: int) -> Case:
    order = torch.randperm(len(x), generator=generator(1))
    x, y = with_ones(x)[order], y[order]
    seen, labels = x[:train], y[:train]

    def log_density(w: Tensor) -> Tensor:
        z = w @ seen.T
        return (labels * z - F.softplus(z)).sum(1) - w.square().sum(1) / 8

    def predict(w: Tensor, x: Tensor) -> Any:
        return lb.Bernoulli(logits=x @ w)

    draws = hmc(log_density, x.shape[1])
    return Case("logistic", draws, log_density, predict, seen, x[train:])


def breast_cancer() -> Case:
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    return logistic_case(torch.tensor((x - x.mean(0)) / x.std(0)), torch.tensor(y, dtype=WIDE), 400)


def logistic_10() -> Case:
    x = covariates(500, 10, 3)
    p = (x @ normal(10, seed=5)).sigmoid()
    y = (torch.rand(500, generator=generator(6), dtype=WIDE) < p).to(WIDE)
    return logistic_case(x, y, 150)


def wine() -> Case:
    from sklearn.datasets import load_wine

    rows, labels = load_wine(return_X_y=True)
    order = np.random.default_rng(1).permutation(len(rows))
    x = with_ones(torch.tensor((rows - rows.mean(0)) / rows.std(0)))[order]
    y = torch.tensor(labels)[order]
    seen, known = x[:110], y[:110]

    def log_density(w: Tensor) -> Tensor:
        logits = (seen @ w.reshape(len(w), -1, 3)).log_softmax(-1)
        return logits[:, torch.arange(110), known].sum(1) - w.square().sum(1) / 8

    def predict(w: Tensor, x: Tensor) -> Any:
        return lb.Categorical(logits=x @ w.reshape(-1, 3))

    return Case("softmax", hmc(log_density, 42), log_density, predict, seen, x[110:])


def linear_case(family: str, x: Tensor, y: Tensor, train: int, shuffle: bool = True) -> Case:
    r"""A conjugate linear regression: exact draws of the weights and of log σ."""
    order = torch.randperm(len(x), generator=generator(1)) if shuffle else torch.arange(len(x))
    x, y = with_ones(x)[order], y[order]
    seen, known = x[:train], y[:train]
    dim = x.shape[1]
    precision = seen.T @ seen + 0.01 * torch.eye(dim, dtype=WIDE)
    mean = torch.linalg.solve(precision, seen.T @ known)
    shape, rate = 1 + train / 2, 1 + (known @ known - mean @ precision @ mean) / 2
    gamma = torch.tensor(np.random.default_rng(0).gamma(shape, 1, 3000)) / rate
    sigma = gamma.rsqrt()
    factor = torch.linalg.cholesky(torch.linalg.inv(precision))
    weights = mean + sigma[:, None] * (normal(3000, dim, seed=2) @ factor.T)

    def log_density(w: Tensor) -> Tensor:
        variance = (2 * w[:, -1]).exp()
        errors = (known - w[:, :-1] @ seen.T).square().sum(1) + 2
        errors = errors + 0.01 * w[:, :-1].square().sum(1)
        return -(train + dim + 2) * w[:, -1] - errors / variance / 2

    def predict(w: Tensor, x: Tensor) -> Any:
        return lb.Normal(x @ w[:-1], w[-1].exp())

    draws = torch.cat([weights, sigma.log()[:, None]], 1)
    return Case(family, draws, log_density, predict, seen, x[train:])


def diabetes() -> Case:
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    x, y = (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()
    return linear_case("linear", torch.tensor(x), torch.tensor(y), 100)


def linear_30() -> Case:
    x = covariates(300, 30, 7)
    return linear_case("linear", x, x @ normal(30, seed=8) + normal(300, seed=9), 60)


def autoregression() -> Case:
    y = torch.zeros(260, dtype=WIDE)
    noise = normal(260, seed=10)
    for t in range(4, 260):
        y[t] = 0.6 * y[t - 1] - 0.3 * y[t - 2] + 0.2 * y[t - 3] + 0.1 * y[t - 4] + noise[t]
    lags = torch.stack([y[4 - k : 260 - k] for k in range(1, 5)], 1)
    return linear_case("time series", lags, y[4:], 60, shuffle=False)


def eight_schools() -> Case:
    effect = torch.tensor([28.0, 8, -3, 7, -1, 1, 18, 12], dtype=WIDE)
    error = torch.tensor([15.0, 10, 16, 11, 9, 11, 10, 18], dtype=WIDE)

    def log_density(w: Tensor) -> Tensor:  # mean, log deviation, standardised effects
        tau = w[:, 1:2].exp()
        theta = w[:, :1] + tau * w[:, 2:]
        prior = -w[:, 0].square() / 800 - torch.log1p((tau[:, 0] / 10).square()) + w[:, 1]
        likelihood = -((effect - theta) / error).square().sum(1) / 2
        return prior + likelihood - w[:, 2:].square().sum(1) / 2

    def predict(w: Tensor, x: Tensor) -> Any:
        return lb.Normal(w[0] + w[1].exp() * w[2:][x], error[x])

    schools = torch.arange(8)
    return Case("hierarchical", hmc(log_density, 10), log_density, predict, schools, schools)


def radon() -> Case:
    groups, n = 85, 900
    group = torch.randint(groups, (n,), generator=generator(11))
    floor = (torch.rand(n, generator=generator(12)) < 0.2).to(WIDE)
    effects = 1.4 + 0.35 * normal(groups, seed=13)
    y = effects[group] - 0.65 * floor + 0.75 * normal(n, seed=14)
    size = 600
    one_hot = F.one_hot(group[:size], groups).to(WIDE)

    def log_density(w: Tensor) -> Tensor:  # mean, slope, log σ, log τ, standardised effects
        alpha = w[:, :1] + w[:, 3:4].exp() * w[:, 4:]
        gap = (y[:size] - alpha @ one_hot.T - w[:, 1:2] * floor[:size]) / w[:, 2:3].exp()
        prior = -w[:, :2].square().sum(1) / 20 - w[:, 2:4].square().sum(1) / 2
        return prior - w[:, 4:].square().sum(1) / 2 - gap.square().sum(1) / 2 - size * w[:, 2]

    def predict(w: Tensor, x: dict[str, Tensor]) -> Any:
        alpha = w[0] + w[3].exp() * w[4:][x["group"]]
        return lb.Normal(alpha + w[1] * x["floor"], w[2].exp())

    rows = {"group": group, "floor": floor}
    parts = [{k: v[:size] for k, v in rows.items()}, {k: v[size:] for k, v in rows.items()}]
    return Case("hierarchical", hmc(log_density, 89), log_density, predict, *parts)


def poisson_case(groups: bool) -> Case:
    x = 0.5 * covariates(400, 10, 15)
    weights = 0.4 * normal(10, seed=16)
    extra = 0.5 * normal(400, seed=17) if groups else 0
    y = torch.tensor(np.random.default_rng(18).poisson((x @ weights + 1 + extra).exp().numpy()))
    x, size = with_ones(x), 100
    seen, known = x[:size], y[:size].to(WIDE)
    counts = torch.distributions.NegativeBinomial

    def log_density(w: Tensor) -> Tensor:
        z = w[:, :11] @ seen.T
        if not groups:
            return (known * z - z.exp()).sum(1) - w.square().sum(1) / 2
        size_ = w[:, 11:].exp()
        logs = counts(size_, logits=z - w[:, 11:]).log_prob(known)
        return logs.sum(1) - w.square().sum(1) / 2

    def predict(w: Tensor, x: Tensor) -> Any:
        z = x @ w[:11]
        if not groups:
            return lb.Poisson(log_rate=z)
        return counts(w[11].exp(), logits=z - w[11], validate_args=False)

    draws = hmc(log_density, 12 if groups else 11)
    return Case("counts", draws, log_density, predict, seen, x[size:])


def poisson() -> Case:
    return poisson_case(False)


def negative_binomial() -> Case:
    return poisson_case(True)


def gaussian_process() -> Case:
    x = torch.rand(30, generator=generator(19), dtype=WIDE) * 6
    y = torch.sin(2 * x) + 0.3 * normal(30, seed=20)
    squares = (x[:, None] - x[None]).square()
    eye = torch.eye(30, dtype=WIDE)

    def kernel(w: Tensor, squares: Tensor) -> Tensor:  # log length, log deviation, log noise
        return (2 * w[1]).exp() * (-squares / (2 * w[0]).exp() / 2).exp()

    def one(w: Tensor) -> Tensor:
        v = w.clamp(-5, 5)  # beyond, the prior alone decides, and matrices are singular
        factor = torch.linalg.cholesky(kernel(v, squares) + ((2 * v[2]).exp() + 1e-6) * eye)
        solved = torch.linalg.solve_triangular(factor, y[:, None], upper=False)
        return -solved.square().sum() / 2 - factor.diagonal().log().sum() - w.square().sum() / 2

    log_density = torch.vmap(one)

    def predict(w: Tensor, new: Tensor) -> Any:
        gram = kernel(w, squares) + ((2 * w[2]).exp() + 1e-6) * eye
        cross = kernel(w, (new[:, 0][:, None] - x[None]).square())
        solved = torch.linalg.solve(gram, cross.T).T
        variance = (2 * w[1]).exp() - (solved * cross).sum(1) + (2 * w[2]).exp()
        return lb.Normal(solved @ y, variance.clamp_min(1e-8).sqrt())

    new = torch.rand(100, 1, generator=generator(21), dtype=WIDE) * 7 - 0.5
    return Case("GP", hmc(log_density, 3, 1500), log_density, predict, x[:, None], new)


def network() -> Case:
    from sklearn.datasets import make_moons

    rows, labels = make_moons(250, noise=0.25, random_state=0)
    x, y = torch.tensor(rows), torch.tensor(labels, dtype=WIDE)
    net, seen, known = mlp(2, 8, 1), x[:80], y[:80]
    net._net.to(WIDE)

    def one(w: Tensor) -> Tensor:
        return net(w, seen).log_prob(known).sum() - w.square().sum() / 2

    log_density = torch.vmap(one)
    return Case("Bayesian net", hmc(log_density, 33, 2000), log_density, net, seen, x[80:])


CASES = (
    breast_cancer, logistic_10, wine, diabetes, linear_30, autoregression, eight_schools, radon,
    poisson, negative_binomial, gaussian_process, network,
)  # fmt: skip


def scorer(case: Case) -> Callable[[Any], np.ndarray]:
    r"""A function of a prediction at the new inputs: KL(average ‖ prediction) at each of them."""
    function = PredictFunction(case.predict, case.draws[:8], case.new)
    classes = function.classes is not None
    stored = Draws.one_chain(case.draws)
    with torch.no_grad():
        t = predictive(function, stored, case.new)
        pool = Pool.at(case.new, t, classes, 256, generator(22))

    @torch.no_grad()
    def score(prediction: Any) -> np.ndarray:
        return pool.divergence(prediction).numpy()

    def of(candidate: Any) -> np.ndarray:
        if isinstance(candidate, Tensor):
            candidate = average(function.stacked(candidate, case.new))
        return score(candidate)

    return of


def kernel_thinning(draws: Tensor, count: int, seed: int) -> Tensor:
    from goodpoints import kt

    halvings = int(math.log2(len(draws) / count))
    size = count * 2**halvings
    points = draws[torch.linspace(0, len(draws) - 1, size).long()].numpy()
    scaled = points / points.std(0)
    some = scaled[:: max(1, len(scaled) // 500)]
    width = np.median(np.square(some[:, None] - some[None]).sum(-1))

    def kernel(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.exp(-np.square(np.atleast_2d(x) - np.atleast_2d(y)).sum(-1) / width)

    index = kt.thin(scaled, halvings, kernel, kernel, seed=seed, store_K=True)
    return torch.tensor(points[index])


def stein_thinning(case: Case, count: int) -> Tensor:
    from stein_thinning.thinning import thin

    w = case.draws[:2000].detach().requires_grad_()
    (slope,) = torch.autograd.grad(case.log_density(w).sum(), w)
    index = thin(w.detach().numpy(), slope.numpy(), count)
    return case.draws[torch.as_tensor(np.asarray(index, dtype=np.int64))]


def ratio_interval(ours: np.ndarray, theirs: np.ndarray) -> list[float]:
    index = np.random.default_rng(0).integers(len(ours), size=(2000, len(ours)))
    ratios = ours[index].mean(1) / theirs[index].mean(1)
    return [float(q) for q in np.quantile(ratios, [0.025, 0.975])]


def run(make: Callable[[], Case]) -> dict[str, Any]:
    name, case = make.__name__, make()
    score, results = scorer(case), {}
    for count in COMPONENTS:
        began = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = lb.condense(
                case.draws, case.predict, case.inputs, components=count, progress=False
            )
            ours = score(result.predict(case.new))
            seconds = time.process_time() - began
            batches = iter(case.draws.split(50))
            streamed = count == 10 and lb.condense(
                batches, case.predict, case.inputs, components=count, progress=False
            )
        rivals = {
            "random": np.mean([
                score(case.draws[torch.randint(len(case.draws), (count,), generator=generator(s))])
                for s in range(10)
            ], 0),
        }  # fmt: skip
        with suppress(ImportError):
            thinned = [score(kernel_thinning(case.draws, count, s)) for s in range(3)]
            rivals["kernel thinning"] = np.mean(thinned, 0)
        with suppress(ImportError):
            rivals["Stein thinning"] = score(stein_thinning(case, count))
        found = result.new_inputs
        entry = {
            "kl": float(ours.mean()), "seconds": round(seconds, 2), "steps": result.steps,
            "worth": found.worth, "start": found.start, "held_out": found.best,
            "verdict": result.verdict.state, "reasons": list(result.verdict.reasons),
        }  # fmt: skip
        if streamed:
            entry["streamed"] = float(score(streamed.predict(case.new)).mean())
        for rival, theirs in rivals.items():
            low, high = ratio_interval(ours, theirs)
            entry[rival] = {
                "kl": float(theirs.mean()), "ratio": float(ours.mean() / theirs.mean()),
                "interval": [low, high],
            }  # fmt: skip
        results[str(count)] = entry
        print(name, count, json.dumps(entry), flush=True)
    return {"family": case.family, "dim": case.draws.shape[1], "draws": len(case.draws),
            "new_inputs": len(case.new) if isinstance(case.new, Tensor) else len(case.new["group"]),
            "components": results}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[make.__name__ for make in CASES])
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/condense-cpu.json")
    arguments = parser.parse_args()
    known = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    for make in CASES:
        if make.__name__ in arguments.only:
            known[make.__name__] = run(make)
            arguments.out.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
