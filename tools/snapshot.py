r"""Record seeded outputs of every public entry point, or compare them with a record.

    python tools/snapshot.py record tools/snapshot.json     # before a change of structure
    python tools/snapshot.py compare tools/snapshot.json    # after it

A change that moves code without changing behaviour leaves every number as it was, to rounding.
Only public names are used here, so the script outlives the modules behind them.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import math
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import limbeck as lb

RELATIVE, ABSOLUTE = 1e-4, 1e-6
CASES: dict[str, Callable[[], Any]] = {}


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    r"""Register a function whose return value is recorded."""
    CASES[function.__name__] = function
    return function


def summary(value: Any) -> Any:
    r"""Arrays as their shape, mean, spread and first numbers; containers item by item."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "fiub":
            return [str(each) for each in value.reshape(-1)[:8]]
        flat = value.astype(np.float64).reshape(-1)
        moments = [float(flat.mean()), float(flat.std())] if flat.size else []
        return {"shape": list(value.shape), "moments": moments, "first": flat[:8].tolist()}
    if isinstance(value, dict):
        return {str(key): summary(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [summary(each) for each in value]
    if isinstance(value, np.generic):
        return value.item()
    return value


def differences(name: str, old: Any, new: Any) -> Iterator[str]:
    r"""Where two records differ by more than rounding."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            if key not in old or key not in new:
                yield f"{name}.{key}: {'new' if key in new else 'gone'}"
            else:
                yield from differences(f"{name}.{key}", old[key], new[key])
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (a, b) in enumerate(zip(old, new, strict=True)):
            yield from differences(f"{name}[{i}]", a, b)
    elif isinstance(old, float) and isinstance(new, int | float):
        same = old == new or (math.isnan(old) and math.isnan(new))
        if not same and not math.isclose(old, new, rel_tol=RELATIVE, abs_tol=ABSOLUTE):
            yield f"{name}: {old!r} was recorded, now {new!r}"
    elif old != new:
        yield f"{name}: {old!r} was recorded, now {new!r}"


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rows(n: int = 40, columns: int = 3, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, columns, generator=generator(seed))


def net(*sizes: int, seed: int = 0) -> lb.MLP:
    torch.manual_seed(seed)
    return lb.MLP(*sizes)


def numbers(result: Any) -> dict[str, Any]:
    r"""What a run of the loop gives, without seconds."""
    weights = torch.cat([p.reshape(-1) for p in result.student.parameters()])
    return {
        "history": {name: list(values) for name, values in result.history.items()},
        "steps": result.steps,
        "weights": weights,
    }


def run(student: Any, inputs: Any, loss: Any, teacher: Any = None, **options: Any) -> Any:
    teacher = net(3, 5, 2, seed=1) if teacher is None else teacher
    options = {"steps": 6, "every": 2, "batch_size": 8, "engine": "eager"} | options
    return numbers(lb.distill(teacher, student, inputs, loss, progress=False, **options))


# ---------------------------------------------------------------- losses, inputs, training


@case
def losses() -> Any:
    made = {
        "cross_entropy": lb.losses.cross_entropy(),
        "cross_entropy_hot": lb.losses.cross_entropy(temperature=3.0),
        "square_error": lb.losses.square_error(),
        "logit_error": lb.losses.logit_error(),
        "derivative_log": lb.losses.derivative_error(),
        "derivative_teacher": lb.losses.derivative_error(weight="teacher"),
        "derivative_plain": lb.losses.derivative_error(domain="plain"),
        "derivative_projected": lb.losses.derivative_error(projections=1),
        "directional": lb.losses.directional_error(torch.eye(3)[:2]),
        "label_cross_entropy": lb.losses.label_cross_entropy(),
        "sum": lb.losses.cross_entropy() + 0.1 * lb.losses.derivative_error(),
    }
    found = {}
    labels = (rows()[:, 0] > 0).long()
    for name, loss in made.items():
        found[name] = run(net(3, 4, 2), lb.inputs.Dataset(rows(), labels), loss)
    values = {"teacher_output": "values", "student_output": "values"}
    found["label_square_error"] = run(
        net(3, 4, 2), lb.inputs.Dataset(rows(), rows()[:, :2]), "label_square_error", **values
    )
    found["multilabel"] = run(
        net(3, 4, 2), rows(), "multilabel_cross_entropy", lambda x: x[:, :2].sigmoid(), **values
    )
    modules = net(3, 4, 2).named_modules()
    layers = [name for name, module in modules if isinstance(module, nn.Linear)]
    torch.manual_seed(2)
    hinted = lb.losses.cross_entropy() + lb.losses.hints(layers[0], layers[0])
    found["hints"] = run(net(3, 4, 2), rows(), hinted)
    real = lb.Energy(lambda x: 0.5 * x.square().sum(1), support=lb.Real(2))
    mixture = lb.GaussianMixture(2, dim=2).start_from(rows(50, 2), generator=generator())
    for name in ("kl", "log_density_error", "score_matching", "reverse_kl"):
        if name != "reverse_kl":
            found[name] = run(copy.deepcopy(mixture), rows(40, 2), name, real)
    return found


@case
def inputs() -> Any:
    x = rows()
    made = {
        "dataset": lb.inputs.Dataset(x),
        "replaced": lb.inputs.Dataset(x, replace=True),
        "noise": lb.inputs.Noise(3, scale=2.0),
        "munge": lb.inputs.Munge(x),
        "augment": lb.inputs.Augment(x, lambda x, generator: x + 1),
        "function": lb.inputs.Function(lambda n, generator: torch.randn(n, 3, generator=generator)),
        "samples": lb.inputs.Samples(torch.distributions.Normal(torch.zeros(3), torch.ones(3))),
        "mix": lb.inputs.Mix([lb.inputs.Dataset(x), lb.inputs.Noise(3)], weights=[0.5, 0.5]),
        "seek": lb.inputs.Seek(lb.inputs.Dataset(x)),
    }
    return {name: run(net(3, 4, 2), source, "cross_entropy") for name, source in made.items()}


@case
def training() -> Any:
    found = {}
    for optimizer in ("adam", "sgd", "adadelta", "adamw", "rmsprop"):
        found[optimizer] = run(net(3, 4, 2), rows(), "auto", optimizer=optimizer)
    for schedule in ("constant", "cosine", "linear"):
        found[schedule] = run(net(3, 4, 2), rows(), "auto", schedule=schedule)
    found["clip"] = run(net(3, 4, 2), rows(), "auto", clip=0.01)
    found["thesis"] = run(net(3, 4, 2), rows(), "auto", preset="thesis")
    found["held_out"] = run(
        net(3, 4, 2), rows(), "auto", steps=40, held_out=rows(seed=5), patience=2, lr=0.5
    )
    found["steps"] = [
        [step.number, float(step.loss)]
        for step in lb.steps(net(3, 5, 2, seed=1), net(3, 4, 2), rows(), steps=4, engine="eager")
    ]
    seen = lb.evaluate(net(3, 4, 2), rows(4), ("values", "derivatives"), output="logits")
    found["evaluate"] = [seen.values, seen.derivatives]
    return found


@case
def resumed() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        options = {"schedule": "constant", "checkpoint": folder, "checkpoint_every": 2}
        run(net(3, 4, 2), rows(), "auto", steps=4, **options)
        return run(net(3, 4, 2), rows(), "auto", steps=8, **options)


# ---------------------------------------------------------------- models


@case
def models() -> Any:
    bits = (rows(20, 6) > 0).float()
    real = rows(20, 2)
    torch.manual_seed(0)
    found: dict[str, Any] = {}
    for name, model in {
        "nade": lb.NADE(6, hidden=4, generator=generator()),
        "deep_nade": lb.DeepNADE(6, hidden=4, generator=generator()),
        "made": lb.MADE(6, hidden=(8,), generator=generator()),
    }.items():
        found[name] = [model.log_prob(bits), model.sample(5, generator=generator())]
    rbm = lb.RBM.random(6, 4, generator=generator())
    found["rbm"] = [rbm.log_unnormalized(bits), rbm.advance(bits, 3, generator=generator())]
    found["rbm_fit"] = lb.RBM.fit(bits, hidden=3, epochs=2, progress=False).W
    spins = lb.Energy(lambda x: -(x[:, 1:] * x[:, :-1]).sum(1), support=lb.Spins(6))
    found["energy"] = [
        spins.log_unnormalized(2 * bits - 1),
        spins.advance(2 * bits - 1, 2, generator=generator()),
    ]
    mixture = lb.GaussianMixture(2, dim=2)
    mixture.fit(real)
    found["mixture"] = [mixture.log_prob(real), mixture.sample(5, generator=generator())]
    members = [net(3, 4, 2, seed=s) for s in range(3)]
    found["ensemble"] = lb.Ensemble(members)(rows(5))
    labels = (rows()[:, 0] > 0).long()
    trained = lb.Ensemble.train_bootstrap((3, 4, 2), rows(), labels, members=2, epochs=2)
    found["bootstrap"] = trained(rows(5))
    from sklearn.ensemble import RandomForestRegressor

    forest = RandomForestRegressor(3, random_state=0).fit(rows().numpy(), rows()[:, 0].numpy())
    found["trees"] = lb.Trees.from_sklearn(forest)(rows(5))
    return found


# ---------------------------------------------------------------- compress


def frame() -> Any:
    import pandas as pd

    x = rows(120).numpy()
    return pd.DataFrame(
        {
            "a": x[:, 0].astype("float64"),
            "b": np.where(x[:, 1] > 1, np.nan, x[:, 1]),
            "c": pd.Categorical(np.where(x[:, 2] > 0, "yes", "no")),
            "d": (x[:, 0] * 3).round().astype(int),
        }
    )


@case
def compress() -> Any:
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    x = rows(120).numpy()
    y = (x[:, 0] + x[:, 1] > 0).astype(int) + (x[:, 2] > 1)
    forest = RandomForestClassifier(10, random_state=0).fit(x, y)
    options: dict[str, Any] = {"steps": 30, "progress": False, "pool": 300, "engine": "eager"}
    found = {}
    for student in ((8,), "linear", "tree", "boosted"):
        small = lb.compress(forest, x, student=student, inputs="munge", **options)
        found[str(student)] = small.predict_proba(x[:20])
    labelled = lb.compress(forest, x, student=(8,), labels=y, inputs="munge", **options)
    found["labels"] = labelled.predict_proba(x[:20])
    folds = lb.compress(
        forest, x, student=(8,), labels=y, teacher_folds=3, inputs="data", **options
    )
    found["folds"] = folds.predict_proba(x[:20])
    regressor = RandomForestRegressor(10, random_state=0).fit(x, x[:, 0])
    found["regression"] = lb.compress(regressor, x, student=(8,), **options).predict(x[:20])
    torch_teacher = lb.compress(net(3, 5, 2, seed=1), x, student=(8,), inputs="munge", **options)
    found["torch"] = torch_teacher.predict_proba(x[:20])
    for generated in ("data", "noise", "columns", "mixture", "auto"):
        small = lb.compress(forest, x, student=(8,), inputs=generated, **options)
        found[f"inputs_{generated}"] = small.predict_proba(x[:20])
    return found


@case
def tables() -> Any:
    data = frame()

    def teacher(given: Any) -> Any:
        p = 1 / (1 + np.exp(-(given["a"].to_numpy() + (given["c"].to_numpy() == "yes"))))
        return np.stack([1 - p, p], 1)

    small = lb.compress(
        teacher, data, student=(8,), steps=30, pool=300, progress=False, engine="eager"
    )
    return [small.predict_proba(data[:20]), lb.Table(data).encode(data[:5])]


@case
def fidelity() -> Any:
    from sklearn.ensemble import RandomForestClassifier

    x = rows(200).numpy()
    y = (x[:, 0] + x[:, 1] > 0).astype(int)
    forest = RandomForestClassifier(10, random_state=0).fit(x[:100], y[:100])
    small = lb.compress(
        forest, x[:100], student=(8,), inputs="munge", steps=60, pool=400, progress=False,
        engine="eager",
    )  # fmt: skip
    report = small.report(x[100:], y[100:])
    return without_times(report.to_dict())


def without_times(value: Any) -> Any:
    r"""A record without what a clock measured."""
    if isinstance(value, dict):
        return {
            key: without_times(each)
            for key, each in value.items()
            if not any(word in key for word in ("second", "latency", "sentence", "time"))
        }
    return [without_times(each) for each in value] if isinstance(value, list) else value


@case
def estimators() -> Any:
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    x = rows(120).numpy()
    y = np.where(x[:, 0] > 0, "up", "down")
    options: dict[str, Any] = {"student": (8,), "steps": 30, "inputs": "munge", "pool": 300}
    classifier = lb.DistilledClassifier(RandomForestClassifier(5, random_state=0), **options)
    regressor = lb.DistilledRegressor(RandomForestRegressor(5, random_state=0), **options)
    return [
        classifier.fit(x, y).predict_proba(x[:10]),
        regressor.fit(x, x[:, 0]).predict(x[:10]),
    ]


# ---------------------------------------------------------------- condense


def predict(draw: torch.Tensor, x: torch.Tensor) -> Any:
    return lb.Bernoulli(logits=x @ draw)


@case
def condense() -> Any:
    draws = rows(200, 3, seed=3)
    options: dict[str, Any] = {"steps": 30, "progress": False}
    bag = lb.condense(draws, predict, rows(), components=3, **options)
    found = {"bag": bag.predict(rows(10)).mean}

    def stream() -> Iterator[torch.Tensor]:
        source = generator(4)
        while True:
            yield torch.randn(20, 3, generator=source)

    online = lb.condense(stream(), predict, rows(), components=3, **options)
    found["online"] = online.predict(rows(10)).mean
    density = lb.condense(
        rows(200, 2, seed=6).abs() + 0.1,
        lambda draw: lb.Normal(draw[0], draw[1]),
        components=2,
        samples=500,
        progress=False,
    )
    found["density"] = density.student.log_prob(rows(10, 1))
    found["normal"] = lb.condense(
        rows(200, 3, seed=3), lambda draw, x: lb.Normal(x @ draw, 1.0), rows(), components=3,
        **options,
    ).predict(rows(10)).mean  # fmt: skip
    net_student = lb.condense(draws, predict, rows(), student=net(3, 6, 1), **options)
    found["net"] = net_student.predict(rows(10)).mean
    return found


@case
def distributions() -> Any:
    p = torch.tensor([0.2, 0.7])
    made = {
        "bernoulli": (lb.Bernoulli(logits=p), torch.tensor([0.0, 1.0])),
        "categorical": (lb.Categorical(logits=rows(2)), torch.tensor([0, 2])),
        "normal": (lb.Normal(p, p + 1), p),
        "poisson": (lb.Poisson(p + 1), torch.tensor([0.0, 3.0])),
    }
    return {name: [d.mean, d.log_prob(y)] for name, (d, y) in made.items()}


@case
def posteriors() -> Any:
    data = {"w": rows(60, 2).reshape(2, 30, 2).numpy(), "s": rows(60, 1).reshape(2, 30).numpy()}
    draws = lb.as_draws(data)
    return [len(draws), summary(draws.take([0, 59]))]


@case
def samplers() -> Any:
    chains = lb.samplers.Slice(lambda x: -0.5 * x.square().sum(1), rows(4, 2), seed=0)
    states = torch.stack([chains.step() for _ in range(20)])  # (draw, chain, dim)
    series = states.transpose(0, 1)
    return [
        states[-1],
        lb.samplers.effective_size(series[..., 0]),
        lb.samplers.r_hat(series[..., 0]),
        lb.samplers.pareto_k(rows(200, 1, seed=8).reshape(-1)),
    ]


# ---------------------------------------------------------------- normalize


@case
def normalize() -> Any:
    rbm = lb.RBM.random(8, 4, generator=generator())
    bits = (rows(10, 8) > 0).float()
    options: dict[str, Any] = {"steps": 20, "chains": 40, "burn_in": 10, "progress": False}
    found = {}
    for loss in ("kl", "square_error", "reverse_kl"):
        student = lb.NADE(8, hidden=5, generator=generator(1))
        result = lb.normalize(rbm, student, loss, engine="eager", **options)
        found[loss] = result.student.log_prob(bits)
    found["made"] = lb.normalize(rbm, engine="eager", **options).student.log_prob(bits)
    return found


@case
def log_z() -> Any:
    rbm = lb.RBM.random(8, 4, generator=generator())
    nade = lb.normalize(
        rbm, steps=50, chains=100, burn_in=20, engine="eager", progress=False
    ).student
    found: dict[str, Any] = {"exact": float(lb.exact_log_z(rbm))}
    for method, options in {
        "bridge": {"samples": 400, "burn_in": 50},
        "importance": {"samples": 400},
        "ais": {"samples": 50, "schedule": 100},
    }.items():
        z = lb.log_partition(rbm, nade, method=method, progress=False, **options)
        found[method] = [
            z.value, z.std_error, list(z.interval(0.95)), z.verdict.trustworthy,
        ]  # fmt: skip
    bound = lb.free_energy(rbm, nade, samples=100)
    found["free_energy"] = [float(bound), bound.std_error]
    energy = lb.Energy(lambda x: 0.5 * x.square().sum(1), support=lb.Real(2))
    normal = torch.distributions.MultivariateNormal(torch.zeros(2), 2 * torch.eye(2))
    z = lb.log_partition(energy, normal, method="importance", samples=500, progress=False)
    found["continuous"] = [z.value, z.std_error]
    return found


# ---------------------------------------------------------------- exports and files


@case
def exports() -> Any:
    import onnxruntime

    x = rows(60).numpy()
    small = lb.compress(
        lambda r: np.stack([1 - (p := 1 / (1 + np.exp(-r[:, 0]))), p], 1),
        x, student=(4,), inputs="data", steps=10, progress=False, engine="eager",
    )  # fmt: skip
    found = {"torch": small.predict_proba(x[:5])}
    with tempfile.TemporaryDirectory() as folder:
        path = small.export(Path(folder) / "s.onnx")
        session = onnxruntime.InferenceSession(str(path))
        found["onnx"] = session.run(None, {session.get_inputs()[0].name: x[:5]})[0]
        path = small.export(Path(folder) / "s.pt2")
        found["pt2"] = torch.export.load(path).module()(torch.tensor(x[:5]))
        small.export(Path(folder) / "plain", format="numpy")
        space: dict[str, Any] = {"__file__": str(Path(folder) / "plain/predict.py")}
        exec((Path(folder) / "plain/predict.py").read_text(), space)
        found["numpy"] = space["predict"](x[:5])
        small.save(Path(folder) / "saved")
        found["saved"] = lb.load(Path(folder) / "saved").predict_proba(x[:5])
    return found


def public_names() -> dict[str, list[str]]:
    r"""The public API as a list."""
    spaces = {"limbeck": lb}
    for name in ("inputs", "losses", "samplers", "callbacks", "schedules"):
        if hasattr(lb, name):
            spaces[f"limbeck.{name}"] = getattr(lb, name)
    return {name: sorted(space.__all__) for name, space in spaces.items()}


def record(only: list[str] | None = None) -> dict[str, Any]:
    r"""All cases, one after another; what one raises is recorded in its place."""
    found: dict[str, Any] = {"public": public_names()}
    for name, function in CASES.items():
        if only and name not in only:
            continue
        torch.manual_seed(0)
        np.random.seed(0)
        with warnings.catch_warnings(), contextlib.redirect_stderr(None):
            warnings.simplefilter("ignore")
            found[name] = json.loads(json.dumps(summary(function())))
        print(f"{name}: recorded", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=["record", "compare"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", nargs="*")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = record(given.only)
    if given.action == "record":
        given.file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        return 0
    old = json.loads(given.file.read_text(encoding="utf-8"))
    if given.only:
        old = {name: old[name] for name in ("public", *given.only)}
    lines = list(differences("", old, found))
    print("\n".join(lines) or "all agree")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
