r"""Compress: an ensemble of nets on scikit-learn's digits, made a hundred times smaller."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console
from sklearn.datasets import load_digits
from torch import Tensor

from limbeck import losses
from limbeck.compression.compress import compress
from limbeck.demo.tour import Tour, print_table
from limbeck.evaluation import evaluate
from limbeck.inputs import Dataset
from limbeck.losses.base import Loss
from limbeck.models import MLP, Ensemble
from limbeck.training.distill import distill

__all__ = ["Row", "digits", "run"]

TEST = 500
STUDENT = (64, 38, 10)
TEACHER = (64, 200, 100, 10)
Net = MLP | Ensemble
BOTH = losses.cross_entropy() + 1e-2 * losses.derivative_error()


@dataclass
class Row:
    r"""One model of the table: how good, how faithful, how small, how long it took."""

    model: str
    images: int
    accuracy: float
    log_probability: float
    agreement: float
    parameters: int
    seconds: float


def digits(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""Images (n, 64) between 0 and 1 and labels (n,), for training and for testing."""
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(seed))
    X = torch.as_tensor(data.data, dtype=torch.float32)[order] / 16
    y = torch.as_tensor(data.target)[order]
    return X[TEST:], y[TEST:], X[:TEST], y[:TEST]


def measure(
    name: str, model: Net, teacher: Net, X: Tensor, y: Tensor, images: int, seconds: float
) -> Row:
    r"""A model's row, on test images."""
    logs, taught = (
        evaluate(net, X, output=net.output_form, domain="log").values for net in (model, teacher)
    )
    guess = logs.argmax(1)
    return Row(
        name,
        images,
        (guess == y).float().mean().item(),
        logs[torch.arange(len(y)), y].mean().item(),
        (guess == taught.argmax(1)).float().mean().item(),
        sum(p.numel() for p in model.parameters()),
        seconds,
    )


def run(tour: Tour, members: int) -> list[dict[str, Any]]:
    r"""Train the teacher, and distil it in several ways."""
    X, y, X_test, y_test = digits(tour.seed)
    few = len(X) // 10
    sizes = "-".join(map(str, TEACHER))
    tour.console.print(f"Training a teacher: {members} nets {sizes}, each on a resample …")
    start = time.perf_counter()
    teacher = Ensemble.train_bootstrap(TEACHER, X, y, members=members, epochs=30, **tour.training)
    seconds = time.perf_counter() - start
    rows = [measure("teacher", teacher, teacher, X_test, y_test, len(X), seconds)]
    ways: list[tuple[str, Loss]] = [
        ("CE", losses.cross_entropy()),
        ("DSE", losses.derivative_error()),
        ("CE + DSE", BOTH),
        ("labels alone", losses.label_cross_entropy()),
    ]
    for images in (len(X), few):
        for name, loss in ways:
            tour.console.print(f"Distilling from {images} images: {name} …")
            student = MLP(*STUDENT, generator=torch.Generator().manual_seed(tour.seed))
            inputs = Dataset(X[:images], y[:images])
            result = distill(
                teacher, student, inputs, loss, steps=tour.steps, batch_size=100, lr=3e-3,
                **tour.training,
            )  # fmt: skip
            rows.append(measure(name, student, teacher, X_test, y_test, images, result.seconds))
    if tour.tables:
        show(rows, tour.console)
    tour.console.print(f"The same by one call, with a report: lb.compress, from {few} images …")
    small = compress(
        teacher, X[:few], STUDENT[1:-1], inputs="data", loss=BOTH, steps=tour.steps,
        **tour.training,
    )  # fmt: skip
    tour.add("compress", small, finding(rows), X=X_test, y=y_test, labels=y[:few])
    return [asdict(row) for row in rows]


def show(rows: list[Row], console: Console) -> None:
    r"""Print the table and the finding."""
    cells = [
        (
            row.model, f"{row.images:,}", f"{row.accuracy:.1%}", f"{row.log_probability:.3f}",
            f"{row.agreement:.1%}", f"{row.parameters:,}", f"{row.seconds:.1f}",
        )
        for row in rows
    ]  # fmt: skip
    title = "An ensemble on 8×8 digits, compressed (500 test images)"
    columns = ("model", "images", "accuracy", "log p", "agreement", "parameters", "seconds")
    print_table(console, title, columns, cells, left=("model",), sections=(0, 4))
    console.print(
        "CE matches the teacher's predictions, DSE their derivatives with respect to the pixels; "
        "'labels alone' is the same net without a teacher; log p is that of the right class.\n"
    )
    console.print(finding(rows), soft_wrap=True)


def finding(rows: list[Row]) -> str:
    r"""The one sentence to tell a colleague."""
    teacher, values, both, alone = rows[0], rows[5], rows[7], rows[8]
    ratio = teacher.parameters // both.parameters
    return (
        f"From {both.images} images without labels, a net {ratio} times smaller than its teacher "
        f"agrees with it on {both.agreement:.1%} of the test images if it matches predictions and "
        f"derivatives, and on {values.agreement:.1%} if it matches predictions alone; trained on "
        f"the labels of those images, on {alone.agreement:.1%}."
    )
