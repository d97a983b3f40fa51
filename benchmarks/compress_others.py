r"""Students of the same teacher made by others: a plain PyTorch loop, and AutoGluon."""

from __future__ import annotations

import copy
import json
import math
import subprocess
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import joblib
import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn import functional as F

__all__ = ["HIDDEN", "RATE", "STEPS", "Fold", "by_autogluon", "by_hand"]

HIDDEN, STEPS, BATCH, RATE = (32, 16), 5000, 200, 0.01
r"""The net and its training, limbeck's as well."""


class Fold(NamedTuple):
    r"""A part of the rows to learn from, and the rest."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    seed: int


def by_hand(fold: Fold, targets: np.ndarray, regression: bool) -> Callable[[np.ndarray], Any]:
    r"""The same net trained on targets (n, K) in a plain PyTorch loop, with equal steps and rates.

    A tenth of the rows is held out, and the weights that do best there are returned.
    """
    torch.manual_seed(fold.seed)
    mean, deviation = fold.X.mean(0), fold.X.std(0) + 1e-12
    shift, scale = (targets.mean(0), targets.std(0)) if regression else (0.0, 1.0)
    x = torch.tensor((fold.X - mean) / deviation, dtype=torch.float32)
    t = torch.tensor((targets - shift) / scale, dtype=torch.float32)
    loss = F.mse_loss if regression else F.cross_entropy
    sizes = (x.shape[1], *HIDDEN, t.shape[1])
    layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    net = nn.Sequential(*layers[:-1])
    optimizer = torch.optim.Adam(net.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    order, many = torch.randperm(len(x)), len(x) // 10
    held, learnt = order[:many], order[many:]
    best, kept = math.inf, net.state_dict()
    for step in range(STEPS):
        some = learnt[torch.randint(len(learnt), (BATCH,))]
        optimizer.zero_grad()
        loss(net(x[some]), t[some]).backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 49:
            with torch.no_grad():
                now = float(loss(net(x[held]), t[held]))
            if now < best:
                best, kept = now, copy.deepcopy(net.state_dict())
    net.load_state_dict(kept)

    @torch.no_grad()
    def predict(X: np.ndarray) -> np.ndarray:
        y = net(torch.tensor((X - mean) / deviation, dtype=torch.float32)).numpy()
        return (y * scale + shift)[:, 0] if regression else y.argmax(1)

    return predict


def by_autogluon(
    teacher: Any, X: pd.DataFrame, y: np.ndarray, X_test: pd.DataFrame, *, regression: bool,
    width: int, seed: int, python: str, arrays: bool = False,
) -> np.ndarray:  # fmt: skip
    r"""Probabilities or values (n, K) of AutoGluon's student of the same teacher.

    It runs in another Python. Its net has two layers of this width; `arrays` is for a teacher of
    arrays, not of data frames.
    """
    script = Path(__file__).with_name("autogluon_student.py")
    about = {"regression": regression, "width": width, "seed": seed, "arrays": arrays}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        X.assign(**{"the label": y}).to_parquet(folder / "train.parquet")
        X_test.to_parquet(folder / "test.parquet")
        joblib.dump(teacher, folder / "teacher.joblib")
        (folder / "about.json").write_text(json.dumps(about), encoding="utf-8")
        subprocess.run([python, script, folder], check=True, stdout=subprocess.DEVNULL)
        with np.load(folder / "answers.npz", allow_pickle=False) as answers:
            return answers["student"]
