r"""A predictor in plain NumPy: one file of weights and a short script that reads it."""

from __future__ import annotations

import copy
import importlib.util
import math
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import limbeck
from limbeck.arrays import map_tensors
from limbeck.errors import ArgumentError, LimbeckError
from limbeck.evaluation import evaluating
from limbeck.export.onnx_file import CHECKED
from limbeck.export.portable import MARK, Portable, apart, in_place, not_foreign, portable
from limbeck.models.tree import Trees

__all__ = [
    "FUNCTIONS",
    "KINDS",
    "NUMPY_TOLERANCE",
    "WEIGHTS",
    "Script",
    "numpy_files",
    "places",
    "to_numpy",
]

FUNCTIONS = {
    "relu": "def relu(z):\n    return np.maximum(z, 0)",
    "sigmoid": "def sigmoid(z):\n    return np.exp(-np.logaddexp(0, -z))",
    "log_softmax": (
        "def log_softmax(z):\n    return z - np.logaddexp.reduce(z, axis=-1, keepdims=True)"
    ),
    "softmax": (
        "def softmax(z):\n    return np.exp(z - np.logaddexp.reduce(z, axis=-1, keepdims=True))"
    ),
    "normal_cdf": "def normal_cdf(z):\n    return np.vectorize(math.erfc)(-z / 2**0.5) / 2",
}
r"""What scripts define where they need it."""

KINDS = {
    "linear": "{}",
    "relu": "relu({})",
    "tanh": "np.tanh({})",
    "logistic": "sigmoid({})",
    "probit": "normal_cdf({})",
    "softmax": "softmax({})",
    "log_softmax": "log_softmax({})",
}
r"""The layer kinds of `MLP`, as expressions."""

Writer = Callable[["Script", Any, str], None]


class Script:
    r"""The body of a function: each line changes `h`, which begins as the input.

    Arguments:
        name: What errors call the student.
        writers: By type of module, what writes its lines, given the prefix of its arrays' names.
        features: How many numbers a row has; 0 for a table.
        single: Whether features are numbers of 32 bits, as trees compare them.
    """

    def __init__(
        self, name: str, writers: dict[type, Writer], features: int = 0, single: bool = False
    ) -> None:
        self.name, self.writers, self.features, self.single = name, writers, features, single
        self.lines: list[str] = []
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}
        self.uses: set[str] = set()

    def add(self, line: str) -> None:
        r"""One more line; of the functions that it calls, the definitions come along."""
        self.lines.append(line)
        self.uses |= set(re.findall(r"\b\w+(?=\()", line)) & FUNCTIONS.keys()

    def array(self, name: str, value: Tensor | np.ndarray[Any, Any]) -> str:
        r"""Keep an array; the expression that stands for it."""
        plain = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
        self.arrays[name] = plain
        return f'W["{name}"]'

    def module(self, module: nn.Module, prefix: str = "") -> None:
        r"""The lines of a module."""
        for kind in type(module).__mro__:
            if kind in self.writers:
                self.writers[kind](self, module, prefix)
                return
        raise LimbeckError(
            f"export: {type(module).__name__} in {self.name} has no NumPy form; expected MLP, "
            "Preprocessed, Trees, Ensemble, GaussianMixture, a NADE of two states, a SampleBag of "
            "a ready-made model, simple torch layers; .onnx and .pt2 take other modules"
        )

    def dense(self, weight: str, bias: str | None, kind: str) -> None:
        r"""A linear layer and its nonlinearity."""
        z = f"h @ {weight}.T" + (f" + {bias}" if bias else "")
        self.add(f"h = {KINDS[kind].format(z)}")


NUMPY_TOLERANCE = 1e-6
r"""How far a predictor may be from torch in double precision, relative to the largest answer."""

WEIGHTS, SCRIPT = "weights.npz", "predict.py"
r"""What the files in a folder are called."""

GIVES = {
    "probabilities": "probabilities",
    "log_probabilities": "log probabilities",
    "logits": "logits",
    "values": "values",
    "log_density": "log densities",
    "means": "means",
    "outputs": "outputs",
}


def to_numpy(thing: Any, path: str | Path, input_shape: Any = None) -> Path:
    r"""Write a small student as weights (.npz) and a script that needs nothing but NumPy.

    The script is run and compared with torch before anything is written.

    Arguments:
        thing: As of `limbeck.export.export`, and so is input_shape.
        path: A folder, for weights.npz and predict.py in it; or a file name.npz, which name.py
            is put beside.
        input_shape: Of a module that does not tell, the shape of one row.
    """
    numpy_files(portable(thing, input_shape), Path(path))
    return Path(path)


def numpy_files(leaving: Portable, path: Path) -> float:
    r"""Write a student for NumPy; how far it is from torch in double precision."""
    weights, script = places(path)
    not_foreign(script)
    text, arrays = _written(leaving, weights.name)
    with tempfile.TemporaryDirectory() as folder:
        trial = Path(folder) / script.name
        _save(Path(folder) / weights.name, arrays)
        trial.write_text(text, encoding="utf-8")
        worst = _compared(leaving, trial)
    if not worst < NUMPY_TOLERANCE:
        raise LimbeckError(
            f"export: the NumPy predictor disagrees with torch by {worst:.2g}, and was not written"
        )
    with in_place(weights) as temporary:
        _save(Path(temporary), arrays)
    with in_place(script) as temporary:
        Path(temporary).write_text(text, encoding="utf-8")
    return worst


def places(path: Path) -> tuple[Path, Path]:
    r"""Where the weights and the script go."""
    if path.suffix == ".npz" and not path.is_dir():
        return path, path.with_suffix(".py")
    if path.is_file():
        raise ArgumentError("path", f"{path}, which is a file", "a folder, or a name of .npz")
    return path / WEIGHTS, path / SCRIPT


def _save(path: Path, arrays: dict[str, Any]) -> None:
    with open(path, "wb") as file:
        np.savez(file, **arrays)


def _written(leaving: Portable, weights: str) -> tuple[str, dict[str, Any]]:
    r"""The script, and the arrays that it reads."""
    from limbeck.export.numpy_densities import DENSITIES
    from limbeck.export.numpy_layers import LAYERS, READER, TABLES, beginning

    if leaving.shape is None and leaving.table is None:
        received = f"a {leaving.name} of unknown inputs"
        raise ArgumentError("student", received, "a student of one tensor, or input_shape=")
    modules = list(leaving.module.modules())
    script = Script(
        leaving.name,
        {**LAYERS, **DENSITIES, **TABLES},
        0 if leaving.shape is None else math.prod(leaving.shape),
        any(isinstance(module, Trees) for module in modules),
    )
    if leaving.table is not None:
        beginning(script, leaving.table)
    else:
        shape = tuple(leaving.shape or ())
        script.add("h = np.asarray(x, float)")
        script.add(f"if h.shape[1:] != {shape}:")
        wanted = f"({', '.join(['n', *map(str, shape)])})"
        script.add(f'    raise ValueError(f"x: expected shape {wanted}, got {{h.shape}}")')
        if leaving.task is not None:  # as `predict` of a compressed teacher does
            script.add("if not np.isfinite(h).all():")
            script.add('    raise ValueError("x: expected finite numbers, got NaN or infinity")')
    script.module(leaving.module)
    script.add("return h")
    gives, of = GIVES[leaving.form], "frame" if leaving.table is not None else "x"
    means = "columns by name: a data frame, or a dict of lists" if of == "frame" else "rows"
    modules_used = [name for name in ("json", "math") if f"{name}." in _joined(script, READER, of)]
    lines = [
        f'"""{leaving.name} in plain NumPy; {MARK}, version {limbeck.__version__}."""',
        "",
        *(f"import {name}" for name in modules_used),
        "from pathlib import Path",
        "",
        "import numpy as np",
        "",
        f"W = dict(np.load(Path(__file__).with_name({weights!r}), allow_pickle=False))",
        'W = {name: a.astype(float) if a.dtype.kind == "f" else a for name, a in W.items()}',
        'if any(np.isnan(a).any() for a in W.values() if a.dtype.kind == "f"):',
        f'    raise ValueError("{weights}: got weights that are NaN; the file is damaged")',
    ]
    if leaving.classes is not None:
        plain = (str, int, float)
        names = [each if isinstance(each, plain) else str(each) for each in leaving.classes]
        lines.append(f"CLASSES = {names!r}")
    for name in FUNCTIONS:
        if name in script.uses:
            lines += ["", "", FUNCTIONS[name]]
    if of == "frame":
        lines += ["", *READER.rstrip("\n").split("\n")]
    lines += ["", "", f"def predict({of}):", f'    """The {gives} of {means}."""']
    lines += [f"    {line}" for line in script.lines]
    if leaving.task == "classification" and leaving.classes is not None:
        lines += ["", "", f"def label({of}):", '    """The most probable class of each."""']
        lines += [f"    return [CLASSES[k] for k in predict({of}).argmax(1)]"]
    return "\n".join(lines) + "\n", script.arrays


def _joined(script: Any, reader: str, of: str) -> str:

    own = [FUNCTIONS[name] for name in script.uses]
    return "\n".join([*script.lines, *own, reader if of == "frame" else ""])


def _compared(leaving: Portable, script: Path) -> float:
    r"""Run a script, and compare it with torch in double precision."""
    spec = importlib.util.spec_from_file_location("limbeck_exported", script)
    assert spec is not None
    assert spec.loader is not None
    made: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    module = _doubled(leaving.module)
    x = map_tensors(torch.Tensor.cpu, leaving.rows(CHECKED))
    if leaving.table is not None:
        given = leaving.table.to_frame(x)
        x = leaving.table.encode(given)  # unknown categories have become known ones
    else:
        x = x.double()
        given = x.numpy()
    with evaluating(module), torch.no_grad():
        expected = module(x)
    return apart(torch.as_tensor(np.asarray(made.predict(given))), expected)


def _doubled(module: nn.Module) -> nn.Module:
    r"""A copy that computes in double precision; trees see their features in 32 bits, as ever."""
    own = copy.deepcopy(module).cpu()
    trees = [each for each in own.modules() if isinstance(each, Trees)]
    if not trees:
        return own.double()
    for each in trees:
        each.value.data, each.base = each.value.data.double(), each.base.double()
    return own
