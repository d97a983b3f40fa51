r"""Small calls of an installed limbeck without extras: each verb, and what needs an extra.

    python -I tools/try_package.py

`tools/check_package.py` runs it in a clean environment, in an empty folder, where it leaves
`rows.npy`, the saved student `small` and the result folder `limbeck-logz`. A call that needs a
package which is not installed must be refused by a LimbeckError that names an extra with that
package.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
import warnings
from importlib import metadata, util
from pathlib import Path

import numpy as np
import torch
from sklearn.ensemble import RandomForestClassifier

import limbeck as lb
from limbeck.models import Flow
from limbeck.report import pictures

QUIET = {"steps": 30, "progress": False}


def compress(X):
    forest = RandomForestClassifier(10, random_state=0).fit(X, X[:, 0] > 0)
    small = lb.compress(forest, X, student=(8,), **QUIET)
    small.save("small")
    again = lb.load("small")
    assert np.array_equal(small.predict_proba(X), again.predict_proba(X))
    return small.report(X, X[:, 0] > 0)


def condense(X):
    draws = torch.randn(200, X.shape[1])
    predict = lambda draw, x: lb.Bernoulli(logits=x @ draw)  # noqa: E731
    result = lb.condense(draws, predict, X.astype(np.float32), **QUIET)
    mean = result.predict(X.astype(np.float32)).mean
    assert mean.shape == (len(X),)
    assert ((mean > 0) & (mean < 1)).all()
    return result


def normalize_and_log_partition():
    rbm = lb.RBM.random(8, 4)
    rbm.save("rbm.npz")
    student = lb.normalize(rbm, chains=100, burn_in=50, **QUIET).student
    settings = {"samples": 1000, "burn_in": 50, "progress": False}
    z = lb.log_partition(rbm, student, method="bridge", **settings)
    exact = float(lb.exact_log_z(rbm))
    assert abs(float(z.value) - exact) < 0.5, f"{z.value} is far from {exact}"
    return z


def features(X):
    r"""What needs an extra: the package that it needs, and a call of it."""
    command = Path(sys.executable).parent / "limbeck"
    subprocess.run([command, "logz", "rbm.npz"], check=True, stdout=subprocess.DEVNULL)
    student, rows = lb.load("small"), X.copy()
    rows[0, 0] = np.nan  # rows with gaps are tables
    names = ("draws.nc", "draws.zarr", "net.onnx", "trees.ubj", "trees.txt", "trees.cbm")
    for name in names:
        Path(name).write_bytes(b"")
    distil = {"inputs": X.astype(np.float32), "steps": 2, "progress": False}
    net = torch.nn.Linear(X.shape[1], 2)
    return {
        "accelerate": lambda: lb.distill(net, lb.MLP(4, 2), engine="accelerate", **distil),
        "catboost": lambda: lb.compress("trees.cbm", X),
        "lightgbm": lambda: lb.compress("trees.txt", X),
        "matplotlib": lambda: pictures.log_z("limbeck-logz"),
        "mlflow-skinny": lambda: lb.callbacks.MLflow("experiment"),
        "onnxruntime": lambda: lb.compress("net.onnx", X),
        "onnxscript": lambda: student.export("student.onnx"),
        "pandas": lambda: lb.compress(lambda x: x[:, 0], rows),
        "tensorboard": lambda: lb.callbacks.TensorBoard("runs"),
        "xarray": lambda: lb.as_draws("draws.nc"),
        "xgboost": lambda: lb.compress("trees.ubj", X),
        "zuko": lambda: Flow(2),
    }


def check_refusal(package, call):
    message = None
    try:
        call()
    except lb.LimbeckError as error:
        message = str(error)
    assert message is not None, f"without {package}, its feature was not refused"
    extra = re.search(r"pip install 'limbeck\[(\w+)\]'", message)
    assert extra, f"without {package}: no extra in {message}"
    line = re.compile(rf"{package}\b.*extra == ['\"]{extra[1]}['\"]")
    assert any(map(line.match, metadata.requires("limbeck") or [])), f"{package}: {message}"
    print(f"without {package}: {message}")


def main():
    warnings.simplefilter("ignore")
    assert Path(lb.__file__).is_relative_to(sys.prefix), f"{lb.__file__} is not the installed one"
    torch.manual_seed(0)
    X = np.random.default_rng(0).normal(size=(200, 4))
    np.save("rows.npy", X)
    for call in (lambda: compress(X), lambda: condense(X), normalize_and_log_partition):
        start = time.monotonic()
        print(f"{str(call()).strip().splitlines()[0]} ({time.monotonic() - start:.1f} s)")
    for package, call in features(X).items():
        if util.find_spec(package.removesuffix("-skinny")) is None:
            check_refusal(package, call)
        else:
            print(f"{package} is installed: not tried")


if __name__ == "__main__":
    main()
