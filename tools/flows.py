r"""List the files of the package that run code in one small default call of each verb.

python tools/flows.py
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from sklearn.ensemble import RandomForestClassifier

import limbeck as lb

ROOT = str(Path(lb.__file__).parent)


def traced(call):
    r"""The files below the package in which a function ran."""
    files = set()

    def profile(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOT) and code.co_name != "<module>":
            files.add(code.co_filename[len(ROOT) + 1 :])

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return sorted(files)


def normalize_and_bridge():
    rbm = lb.RBM.random(25, 22)
    student = lb.normalize(rbm, steps=20, chains=50, burn_in=10, progress=False).student
    lb.log_partition(rbm, student, method="bridge", samples=200, burn_in=20, progress=False)


def main():
    warnings.simplefilter("ignore")
    for module in pkgutil.walk_packages(lb.__path__, "limbeck."):  # class bodies are no flow
        if not module.name.endswith("__main__") and "triton" not in module.name:
            importlib.import_module(module.name)
    X = np.random.default_rng(0).normal(size=(100, 4))
    forest = RandomForestClassifier(5, random_state=0).fit(X, (X[:, 0] > 0).astype(int))
    draws, inputs = torch.randn(200, 2), torch.randn(60, 2)
    flows = {
        "compress": lambda: lb.compress(forest, X, progress=False, steps=20),
        "condense": lambda: lb.condense(
            draws, lambda draw, x: lb.Bernoulli(logits=x @ draw), inputs, steps=20, progress=False
        ),
        "normalize and bridge": normalize_and_bridge,
    }
    for name, call in flows.items():
        files = traced(call)
        print(f"{name}: {len(files)} files\n    {' '.join(files)}")


if __name__ == "__main__":
    main()
