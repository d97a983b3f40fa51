r"""The demo: all three verbs on data sets of scikit-learn, in two or three minutes.

python examples/demo.py [all|compress|condense|normalize] [--json] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import html
import importlib.util
import json
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional as F

import limbeck as lb
from limbeck import storage
from limbeck.cli.folder import folder_lock
from limbeck.condensation.models import logistic
from limbeck.report import records

TEST = 500  # images
TEACHER, STUDENT = (64, 200, 100, 10), (38,)
HIDDEN = 16  # units of the RBM: few enough for an exact log Z beside the estimates
COMMANDS = (
    "limbeck compress models:teacher train.csv --label y --export student.onnx",
    "limbeck condense posterior.nc --predict models:predict --inputs data.csv",
    "limbeck logz rbm.npz",
)
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>A tour of limbeck</title>
<style>{style}</style>
</head>
<body>
<main>
<header class="head"><h1>A tour of limbeck</h1></header>
<section><h2>What came out</h2><ol>
{findings}
</ol></section>
<section><h2>To try next</h2><div class="code"><pre><code>{commands}</code></pre></div></section>
</main>
</body>
</html>
"""
Say = Callable[[object], None]  # prints a text
Training = dict[str, Any]  # arguments of every training
Part = tuple[object, dict[str, Any]]  # a result, and arguments of `records.to_record`


def digits(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""Images (n, 64) between 0 and 1 and labels (n,), for training and for testing."""
    data, generator = load_digits(), torch.Generator().manual_seed(seed)
    order = torch.randperm(len(data.target), generator=generator)
    X = torch.as_tensor(data.data, dtype=torch.float32)[order] / 16
    y = torch.as_tensor(data.target)[order]
    return X[TEST:], y[TEST:], X[:TEST], y[:TEST]


def compress_ensemble(say: Say, steps: int, training: Training, members: int) -> Part:
    r"""Train an ensemble of nets on digits, and compress it from a tenth of them."""
    X, y, X_test, y_test = digits(training["seed"])
    sizes = "-".join(map(str, TEACHER))
    say(f"Training a teacher on {len(X):,} images of digits: {members} nets {sizes} …")
    options = {"members": members, "epochs": 30, **training}
    teacher = lb.Ensemble.train_bootstrap(TEACHER, X, y, **options)
    X, y = X[: len(X) // 10], y[: len(y) // 10]
    say(f"Compressing it: predictions and derivatives at {len(X)} images, no labels …")
    loss = lb.losses.cross_entropy() + 1e-2 * lb.losses.derivative_error()
    options = {"inputs": "data", "loss": loss, "steps": steps, **training}
    small = lb.compress(teacher, X, STUDENT, **options)
    report = small.report(X_test, y_test, labels=y)
    say(f"\n{report}\n")
    return small, {"report": report, "X": X_test}


def condense_posterior(say: Say, steps: int, training: Training) -> Part:
    r"""Sample the posterior of a logistic regression, and condense it into ten draws."""
    generator = torch.Generator().manual_seed(training["seed"])
    y = torch.arange(2).repeat_interleave(12)
    sign = 2 * y - 1
    x = torch.randn(24, 2, generator=generator) + 4 * torch.stack([sign, 0 * sign], 1)

    def log_posterior(w: Tensor) -> Tensor:  # with the prior N(0, 100 I)
        return F.logsigmoid(w @ (sign[:, None] * x).T).sum(1) - w.square().sum(1) / 200

    say(f"Sampling the posterior of a logistic regression on {len(x)} points …")
    chains = lb.samplers.Slice(log_posterior, torch.zeros(100, 2), seed=training["seed"]).burn_in(
        100
    )
    draws = torch.stack([chains.step() for _ in range(100)], 1)  # (chains, draws, 2)
    say(f"Condensing {draws[..., 0].numel():,} draws into ten …")
    options = {"components": 10, "steps": max(1, steps // 3), **training}
    result = lb.condense(draws, logistic(), lb.inputs.Noise(2, scale=math.sqrt(10)), **options)
    side = torch.linspace(-8, 8, 65)
    grid = torch.cartesian_prod(side, side)
    agreement = result.report(grid)
    say(f"\n{agreement}\n")
    return result, {"agreement": agreement, "x": grid, "points": x, "labels": y}


def normalize_rbm(say: Say, steps: int, training: Training) -> Part:
    r"""Train an RBM on digits, distil it into a NADE, and estimate its log Z in three ways."""
    X, _, X_test, _ = digits(training["seed"])
    X, X_test = (X > 0.5).float(), (X_test > 0.5).float()
    say(f"Training an RBM with {HIDDEN} hidden units on {len(X):,} binary images …")
    rbm = lb.RBM.fit(X, HIDDEN, sweeps=5, epochs=30, **training)
    say("Distilling it into a NADE that starts at its weights …")
    generator = torch.Generator().manual_seed(training["seed"])
    student = lb.NADE(64, 2 * HIDDEN, generator=generator)
    options = {"chains": 1000, "burn_in": 500, "init": "teacher", **training}
    result = lb.normalize(rbm, student, steps=steps, **options)
    say("Estimating log Z …\n")
    options = {"samples": 5000, "seed": training["seed"], "progress": training["progress"]}
    estimates = {
        "bridge": lb.log_partition(rbm, student, method="bridge", burn_in=500, **options),
        "importance": lb.log_partition(rbm, student, method="importance", **options),
        "ais": lb.log_partition(rbm, method="ais", schedule=300, **options),
    }
    exact = lb.log_partition(rbm, method="exact", progress=training["progress"])
    for z in (*estimates.values(), exact):
        say(z.sentence())
    return result, {"target": rbm, "data": X_test, "log_z": estimates, "exact": exact.value}


def run(
    part: str, members: int, steps: int, seed: int, as_json: bool, progress: bool, folder: Path
) -> None:
    r"""Run one part of the demo, or all of them; write results and a page; print what came out."""
    say = partial(print, file=sys.stderr if as_json else sys.stdout, flush=True)
    training = {"seed": seed, "device": "cpu", "progress": progress}
    verbs: dict[str, Callable[..., Part]] = {
        "compress": partial(compress_ensemble, members=members),
        "condense": condense_posterior, "normalize": normalize_rbm,
    }  # fmt: skip
    contents = {}
    for verb in verbs if part == "all" else [part]:
        result, options = verbs[verb](say, steps, training)
        command = f"python examples/demo.py {verb}"
        content, arrays = records.to_record(result, verb=verb, command=command, **options)
        storage.write(folder / verb, content, arrays)
        contents[verb] = storage.read(folder / verb).content
    missing = [name for name in ("jinja2", "matplotlib") if not importlib.util.find_spec(name)]
    if missing:
        say(f"A report needs {' and '.join(missing)}: pip install 'limbeck[report]'.")
    else:
        say(f"The reports are on {write_tour(folder, contents)}. Next: limbeck compress --help.")
    if as_json:
        print(json.dumps(contents, indent=1))


def write_tour(folder: Path, contents: dict[str, dict[str, Any]]) -> Path:
    r"""Write a report on each part, and a page of their findings that leads to them."""
    from limbeck.report import blocks, page

    style = Path(page.__file__).with_name("template") / "page.css"
    findings = [
        f"<li><p>{html.escape(blocks.minus(content['summary']))}</p>"
        f'<p><a href="{verb}/{page.write(folder / verb).name}">The report on {verb}</a></p></li>'
        for verb, content in contents.items()
    ]
    text = PAGE.format(
        style=style.read_text(encoding="utf-8"), findings="\n".join(findings),
        commands="\n".join(map(html.escape, COMMANDS)),
    )  # fmt: skip
    path = folder / "report.html"
    path.write_text(text, encoding="utf-8")
    return path


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = ["all", "compress", "condense", "normalize"]
    parser.add_argument("part", nargs="?", choices=parts, default="all", help="default: all")
    parser.add_argument("--members", type=int, default=10, help="nets in the teacher ensemble")
    parser.add_argument("--steps", type=int, default=3000, help="steps of each distillation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--quiet", action="store_true", help="show no progress bars")
    parser.add_argument("--out", type=Path, default=Path("limbeck-demo"), help="for pages")
    given = parser.parse_args(arguments)
    try:
        with folder_lock(given.out):
            run(
                given.part, given.members, given.steps, given.seed, as_json=given.json,
                progress=not given.quiet, folder=given.out,
            )  # fmt: skip
    except lb.LimbeckError as error:
        raise SystemExit(f"demo: {error}") from None


if __name__ == "__main__":
    main()
