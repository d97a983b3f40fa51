r"""The demo: all three verbs on data sets of scikit-learn, in two or three minutes."""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor

from limbeck import losses, storage
from limbeck.arguments import choice
from limbeck.compression.compress import compress
from limbeck.demo import condensation
from limbeck.evaluation import evaluate
from limbeck.inputs import Dataset
from limbeck.models import MLP, Ensemble
from limbeck.models.nade import NADE
from limbeck.models.rbm import RBM
from limbeck.normalization.log_partition import log_partition
from limbeck.normalization.normalize import normalize
from limbeck.report import records
from limbeck.training.distill import distill

__all__ = ["Tour", "run", "show_compression"]

Rows = list[dict[str, Any]]
TEST = 500  # images
TEACHER, STUDENT = (64, 200, 100, 10), (64, 38, 10)
HIDDEN = 16  # units of the RBM: few enough for an exact log Z beside the estimates
COMMANDS = (
    "limbeck compress models:teacher train.csv --label y --export student.onnx",
    "limbeck condense posterior.nc --predict models:predict --inputs data.csv",
    "limbeck logz rbm.npz",
)


@dataclass
class Tour:
    r"""Settings of the demo, and the results of its parts."""

    folder: Path  # for result folders, pictures and the page
    members: int  # nets in the teacher ensemble
    steps: int  # of each distillation
    seed: int
    console: Console
    progress: bool  # whether to show bars
    tables: bool  # whether to print tables
    findings: dict[str, str] = field(default_factory=dict)  # a sentence on each verb's result

    @property
    def training(self) -> dict[str, Any]:
        r"""Arguments of every training."""
        return {"seed": self.seed, "device": "cpu", "progress": self.progress}

    def generator(self) -> torch.Generator:
        r"""A new generator with the demo's seed."""
        return torch.Generator().manual_seed(self.seed)

    def show(
        self, title: str, columns: dict[str, str], rows: Rows, *text: str, rules: Sequence[int] = ()
    ) -> None:
        r"""Print a table and paragraphs; columns have format specs, "" of text."""
        if not self.tables:
            return
        table = Table(title=title, title_justify="left")
        for name, spec in columns.items():
            table.add_column(name, justify="right" if spec else "left")
        for number, row in enumerate(rows):
            cells = zip(row.values(), columns.values(), strict=True)
            texts = ("" if x is None else format(x, spec) for x, spec in cells)
            table.add_row(*texts, end_section=number in rules)
        self.console.print(table)
        for paragraph in text:
            self.console.print(paragraph, soft_wrap=paragraph is text[-1])

    def add(self, verb: str, result: object, finding: str, **options: Any) -> None:
        r"""Write a verb's result folder, with options of `limbeck.report.records.to_record`."""
        command = f"limbeck demo {verb}"
        content, arrays = records.to_record(result, verb=verb, command=command, **options)
        storage.write(self.folder / verb, content, arrays)
        self.findings[verb] = finding

    def write(self) -> str:
        r"""Write the page; a sentence on where it is, or on what it needs."""
        missing = [name for name in ("jinja2", "matplotlib") if not importlib.util.find_spec(name)]
        if missing:
            return f"A report needs {' and '.join(missing)}: pip install 'limbeck[report]'."
        from limbeck.report.page import write_tour

        folders, findings = [self.folder / verb for verb in self.findings], self.findings.values()
        page = write_tour(folders, self.folder, list(findings), commands=COMMANDS)
        return f"The report on all parts is {page}. Next: limbeck compress --help."


def run(
    part: str, members: int, steps: int, seed: int, as_json: bool, progress: bool, folder: Path
) -> None:
    r"""Run one part of the demo, or all of them, and print tables or JSON."""
    parts = {"compress": _compress, "condense": condensation.run, "normalize": _normalize}
    choice("part", part, ("all", *parts))
    console = Console(stderr=as_json)
    tour = Tour(folder, members, steps, seed, console, progress, not as_json)
    results = {name: show(tour) for name, show in parts.items() if part in ("all", name)}
    console.print(f"\n{tour.write()}", soft_wrap=True)
    if as_json:
        print(json.dumps(results, indent=1))


def _digits(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""Images (n, 64) between 0 and 1 and labels (n,), for training and for testing."""
    data = load_digits()
    order = torch.randperm(len(data.target), generator=generator)
    X = torch.as_tensor(data.data, dtype=torch.float32)[order] / 16
    y = torch.as_tensor(data.target)[order]
    return X[TEST:], y[TEST:], X[:TEST], y[:TEST]


def _compress(tour: Tour) -> Rows:
    r"""Train an ensemble of nets on digits, and distil it in several ways."""
    X, y, X_test, y_test = _digits(tour.generator())
    tenth, rows = len(X) // 10, Rows()

    def measure(name: str, model: MLP | Ensemble, images: int, seconds: float) -> None:
        logs, teacher_logs = (
            evaluate(net, X_test, output=net.output_form, domain="log").values
            for net in (model, teacher)
        )
        prediction = logs.argmax(1)
        rows.append({
            "model": name, "images": images,
            "accuracy": (prediction == y_test).float().mean().item(),
            "log_probability": logs[torch.arange(TEST), y_test].mean().item(),
            "agreement": (prediction == teacher_logs.argmax(1)).float().mean().item(),
            "parameters": sum(p.numel() for p in model.parameters()), "seconds": seconds,
        })  # fmt: skip

    members, sizes = tour.members, "-".join(map(str, TEACHER))
    tour.console.print(f"Training a teacher: {members} nets {sizes}, each on a resample …")
    start = time.perf_counter()
    teacher = Ensemble.train_bootstrap(TEACHER, X, y, members=members, epochs=30, **tour.training)
    measure("teacher", teacher, len(X), time.perf_counter() - start)
    both = losses.cross_entropy() + 1e-2 * losses.derivative_error()
    ways = {
        "CE": losses.cross_entropy(), "DSE": losses.derivative_error(), "CE + DSE": both,
        "labels alone": losses.label_cross_entropy(),
    }  # fmt: skip
    for images in (len(X), tenth):
        inputs = Dataset(X[:images], y[:images])
        for name, loss in ways.items():
            tour.console.print(f"Distilling from {images} images: {name} …")
            student = MLP(*STUDENT, generator=tour.generator())
            options = {"steps": tour.steps, "batch_size": 100, "lr": 3e-3, **tour.training}
            result = distill(teacher, student, inputs, loss, **options)
            measure(name, student, images, result.seconds)
    finding = show_compression(tour, rows)
    tour.console.print(f"The same in one call, with a report: lb.compress, from {tenth} images …")
    options = {"inputs": "data", "loss": both, "steps": tour.steps, **tour.training}
    small = compress(teacher, X[:tenth], STUDENT[1:-1], **options)
    tour.add("compress", small, finding, X=X_test, y=y_test, labels=y[:tenth])
    return rows


def show_compression(tour: Tour, rows: Rows) -> str:
    r"""Print the table, and return a one-sentence summary."""
    values, both, labels = (rows[k]["agreement"] for k in (5, 7, 8))
    ratio = rows[0]["parameters"] // rows[7]["parameters"]
    finding = (
        f"From {rows[7]['images']} images without labels, a net {ratio} times smaller than its "
        f"teacher agrees with it on {both:.1%} of the test images if it matches predictions and "
        f"derivatives, and on {values:.1%} if it matches predictions alone; trained on the labels "
        f"of those images, on {labels:.1%}."
    )
    note = (
        "CE matches the teacher's predictions, DSE their derivatives with respect to the pixels; "
        "'labels alone' is the same net without a teacher; log p is that of the right class.\n"
    )
    columns = {
        "model": "", "images": ",", "accuracy": ".1%", "log p": ".3f", "agreement": ".1%",
        "parameters": ",", "seconds": ".1f",
    }  # fmt: skip
    title = "An ensemble on 8×8 digits, compressed (500 test images)"
    tour.show(title, columns, rows, note, finding, rules=(0, 4))
    return finding


def _normalize(tour: Tour) -> dict[str, Any]:
    r"""Train a small RBM on digits, distil it into a NADE, and estimate its log Z in four ways."""
    X, _, X_test, _ = _digits(tour.generator())
    bits, bits_test = (X > 0.5).float(), (X_test > 0.5).float()
    say, training = tour.console.print, tour.training
    say(f"\nTraining an RBM with {HIDDEN} hidden units on {len(bits):,} binary images …")
    rbm = RBM.fit(bits, HIDDEN, sweeps=5, persistent=True, epochs=30, **training)
    say("Distilling it into a NADE that starts at its weights …")
    student = NADE(64, 2 * HIDDEN, generator=tour.generator())
    options = {"chains": 1000, "burn_in": 500, "init": "teacher", **training}
    result = normalize(rbm, student, steps=tour.steps, **options)
    say("Estimating log Z …")
    options = {"samples": 5000, "seed": tour.seed, "progress": tour.progress}
    estimates = [
        log_partition(rbm, method="exact", progress=tour.progress),
        log_partition(rbm, student, method="bridge", burn_in=500, **options),
        log_partition(rbm, student, method="importance", **options),
        log_partition(rbm, method="ais", schedule=300, **options),
    ]
    exact, bridge = estimates[0].value, estimates[1]
    with torch.no_grad():
        test = {
            "rbm": rbm.log_unnormalized(bits_test).mean().item() - exact,
            "nade": student.log_prob(bits_test).mean().item(),
        }
    low, high = bridge.interval()
    finding = (
        f"A NADE distilled in {result.seconds:.0f} s gives test images a log probability of "
        f"{test['nade']:.2f} (the RBM itself {test['rbm']:.2f}, with its exact log Z); by bridge "
        f"sampling with it, log Z is {bridge.value:.3f} ± {bridge.std_error:.3f}, and the exact "
        f"{exact:.3f} lies {'inside' if low <= exact <= high else 'outside'} its 95% interval."
    )
    if tour.tables:
        generator = tour.generator()
        chains = rbm.advance(rbm.start(8, generator), 2000, generator)
        say(f"\nSamples of the RBM, after 2,000 sweeps each:\n{_picture(chains)}", highlight=False)
        images = _picture(student.sample(8, generator))
        say(f"Samples of the NADE, exact and without chains:\n{images}", highlight=False)
    columns = {
        "method": "", "log Z": ".3f", "s.e.": ".3f", "95% interval": "s", "verdict": "",
        "seconds": ".1f",
    }  # fmt: skip
    rows = Rows()
    for z in estimates:
        interval = "{:.3f} … {:.3f}".format(*z.interval()) if z.std_error else ""
        cells = (z.method, z.value, z.std_error or None, interval, z.verdict.state, z.seconds)
        rows.append(dict(zip(columns, cells, strict=True)))
    tour.show("log Z of an RBM on 8×8 digits", columns, rows, finding)
    log_z = {z.method: z for z in estimates[1:]}
    tour.add("normalize", result, finding, target=rbm, data=bits_test, log_z=log_z, exact=exact)
    return {
        "estimates": [z.to_dict() for z in estimates], "test_log_probability": test,
        "distillation_seconds": result.seconds,
    }  # fmt: skip


def _picture(x: Tensor) -> str:
    r"""8×8 binary images (n, 64) side by side, two rows of pixels to a line."""
    pixels = x.reshape(-1, 8, 8).to(torch.int64)
    codes = (2 * pixels[:, ::2] + pixels[:, 1::2]).transpose(0, 1).tolist()  # (4, n, 8)
    lines = ("  ".join("".join(" ▄▀█"[c] for c in image) for image in line) for line in codes)
    return "\n".join(lines) + "\n"
