r"""Values that `tools/fuzz.py` calls functions with, as expressions: right ones and wrong ones."""

from __future__ import annotations

import copy
import functools
import math
import random
import shutil
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import sparse
from sklearn.linear_model import LinearRegression
from torch import nn

import limbeck as lb
from limbeck import export, inputs, losses, samplers
from limbeck.report import page, pictures, records
from limbeck.training import callbacks, schedules

FOLDER = Path()  # of this process; see `prepare`

NASTY = [
    "None", "True", "False", "0", "-1", "3", "2.7", "1e308", "float('nan')", "float('inf')",
    "2**70", "-2**70", "10**400", "'abc'", "''", "'5'", "'auto'", "b'x'", "1j", "()", "[]", "{}",
    "set()", "[1, [2, 3]]", "[[1.0, 2.0], [3.0]]", "[None]", "['a', 'b']", "object()", "Rude()",
    "lambda: 3", "lambda x: x", "lambda *a, **k: None", "lambda *a, **k: 'text'", "int", "lb.RBM",
    "(i for i in range(3))", "iter([])", "range(3)", "np.array(3)", "np.array(2.7)",
    "np.array('a')", "np.array([1, 'a', None], dtype=object)", "np.zeros((0, 3))",
    "np.zeros((3, 0))", "np.full((4, 3), np.nan)", "np.ones((2, 2, 2, 2))", "np.ones(3)",
    "np.array(['2020-01-01'], 'M8[D]')", "torch.tensor(2.7)", "torch.tensor(3)",
    "torch.empty(0)", "torch.zeros(3, 4, dtype=torch.complex64)", "torch.ones(5, 3)",
    "torch.full((3, 2), float('inf'))", "torch.zeros(2, 3).to_sparse()",
    "torch.zeros(2, 3, device='meta')", "torch.zeros(4, dtype=torch.int64)",
    "sparse.eye(3).tocsr()", "Decimal('3')", "Fraction(1, 3)", "Path('x')", "torch.float16",
    "torch.int64", "'cuda'", "'meta'", "nn.Linear(2, 2)", "nn.Linear(3, 2)", "[nn.Linear(2, 2)]",
    "nn.Identity()", "{'a': 1}", "{1: 2}", "{'a': torch.ones(3, 2)}", r"'\0'", r"'\ud800'",
    "pd.DataFrame({'a': [1, 2], 'b': ['x', None]})", "np.ma.masked_array([1.0, 2.0], [1, 0])",
    "Exception('x')", "NotImplemented", "...", "torch.Generator()", "torch.optim.Adam",
    "'x' * 10_000", "nested(2000)", "rbm()", "net()", "rows()", "lb.Binary(4)", "(3, 4)", "(2, 0)",
    "out('there')", "torch.distributions.Normal(0.0, 1.0)",
    "lb.Normal(torch.zeros(3), torch.ones(3))",
]  # fmt: skip


class Rude:
    r"""An object of which nothing can be found out."""

    def _refuse(self, *_: object) -> Any:
        raise RuntimeError("rude")

    __repr__ = __str__ = __float__ = __index__ = __len__ = __iter__ = __array__ = _refuse
    __bool__ = __call__ = __getitem__ = _refuse


def nested(depth: int) -> list[Any]:
    r"""A list within a list within a list."""
    result: list[Any] = []
    for _ in range(depth):
        result = [result]
    return result


def rows(n: int = 12) -> torch.Tensor:
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(n))


def bits(n: int = 12, size: int = 4) -> torch.Tensor:
    return (torch.rand(n, size, generator=torch.Generator().manual_seed(n)) < 0.5).float()


def labels(n: int = 12) -> torch.Tensor:
    return torch.arange(n) % 2


def net(inputs: int = 3, outputs: int = 2) -> lb.MLP:
    return lb.MLP(inputs, 4, outputs, generator=torch.Generator().manual_seed(0))


def rbm() -> lb.RBM:
    return lb.RBM.random(4, 2, generator=torch.Generator().manual_seed(0))


def nade(kind: Any = lb.NADE) -> Any:
    return kind(4, 3, generator=torch.Generator().manual_seed(0))


def energy() -> lb.Energy:
    return lb.Energy(lambda x: -x.sum(1), lb.Spins(3))


def frame() -> pd.DataFrame:
    return pd.DataFrame({"a": rows()[:, 0].numpy(), "b": list("xyz" * 4), "c": range(12)})


@functools.cache
def forest() -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(2, max_depth=2, random_state=0).fit(
        rows().numpy(), labels().numpy()
    )


def predict(draw: torch.Tensor, x: torch.Tensor) -> lb.Bernoulli:
    r"""The prediction of one draw (3,)."""
    return lb.Bernoulli(logits=x @ draw)


def draws(n: int = 8) -> torch.Tensor:
    return torch.randn(2, n, 3, generator=torch.Generator().manual_seed(1))


QUIET = {"progress": False, "device": "cpu", "engine": "eager"}


@functools.cache
def compressed() -> lb.Compressed:
    return lb.compress(net(), rows(30), (4,), inputs="data", steps=2, **QUIET)


@functools.cache
def condensed() -> lb.Condensed:
    return lb.condense(draws(), predict, rows(), components=2, steps=2, **QUIET)


@functools.cache
def distilled() -> lb.Result:
    return lb.distill(net(), lb.MLP(3, 2), rows(), steps=2, **QUIET)


@functools.cache
def fidelity() -> lb.Fidelity:
    return compressed().report(rows(), labels(), time=False)


@functools.cache
def estimate() -> lb.LogPartition:
    return lb.log_partition(rbm(), progress=False)


@functools.cache
def classifier() -> lb.DistilledClassifier:
    model = lb.DistilledClassifier(forest(), (4,), inputs="data", steps=2, device="cpu")
    return model.fit(rows().numpy())


@functools.cache
def regressor() -> lb.DistilledRegressor:
    teacher = LinearRegression().fit(rows().numpy(), rows()[:, 0].numpy())
    model = lb.DistilledRegressor(teacher, (4,), inputs="data", steps=2, device="cpu")
    return model.fit(rows().numpy())


def fresh(estimator: Any) -> Any:
    r"""A copy, which a fit that fails may leave in any state."""
    return copy.deepcopy(estimator)


def mixture() -> lb.GaussianMixture:
    return lb.GaussianMixture(2, 3, generator=torch.Generator().manual_seed(0))


def trees() -> lb.Trees:
    return lb.Trees.from_sklearn(forest().estimators_[0])


def out(name: str) -> Path:
    r"""A path in the folder of this process."""
    return FOLDER / "out" / name


def saved(name: str, damage: int = 0) -> Path:
    r"""A file or folder that limbeck has written; with a damage other than 0, damaged by it."""
    original = FOLDER / "saved" / name
    if not damage:
        return original
    copy, rng = FOLDER / "damaged" / f"{damage}-{name}", random.Random(damage)
    if copy.exists():
        return copy
    copy.parent.mkdir(exist_ok=True)
    shutil.copytree(original, copy) if original.is_dir() else shutil.copy(original, copy)
    files = sorted(f for f in (copy.rglob("*") if copy.is_dir() else [copy]) if f.is_file())
    file = rng.choice(files)
    content = bytearray(file.read_bytes())
    kind = rng.randrange(6)
    if kind == 0:
        content = content[: rng.randrange(len(content) + 1)]
    elif kind == 1:
        content = bytearray(b"[" * 100_000)
    elif kind == 2:
        content = bytearray(rng.choice([b"", b"{}", b"[]", b"null", b"\xff\xfe", b"3", b'"a"']))
    elif kind == 3:
        file.unlink()
        return copy
    else:
        for _ in range(rng.randrange(1, 9)):
            content[rng.randrange(len(content))] = rng.randrange(256)
    file.write_bytes(content)
    return copy


def prepare(folder: Path) -> None:
    r"""Write what readers are to read."""
    global FOLDER
    FOLDER = folder
    SPACE["FOLDER"] = folder
    (folder / "out").mkdir()
    home = folder / "saved"
    home.mkdir()
    distilled().save(home / "distilled")
    compressed().save(home / "compressed")
    condensed().save(home / "condensed")
    fidelity().save(home / "fidelity.json")
    rbm().save(home / "rbm.npz")
    nade().save(home / "nade.safetensors")
    np.save(home / "draws.npy", draws().numpy())
    np.savez(home / "draws.npz", alpha=draws().numpy())
    pd.DataFrame(draws()[0].numpy(), columns=["a.1", "a.2", "b"]).to_csv(home / "draws.csv")


def files(*names: str) -> list[str]:
    r"""Expressions of whole and damaged copies."""
    return [f"saved({name!r}, {damage})" for name in names for damage in (0, 0, *range(1, 40))]


def is_nan(result: object) -> bool:
    r"""Whether a call gave a student or model with numbers that are not finite, without a word."""
    student = getattr(result, "student", result)
    if getattr(result, "failure", None) is not None or not isinstance(student, nn.Module):
        return False
    return any(not bool(p.isfinite().all()) for p in student.parameters() if not p.is_meta)


VERBS = (
    "limbeck.compress",
    "limbeck.condense",
    "limbeck.distill",
    "limbeck.normalize",
    "limbeck.steps",
)
FORCED = {
    "steps": "2", "samples": "20", "burn_in": "2", "chains": "4", "pool": "30", "epochs": "1",
    "queries_per_second": "1000.0",  # fewer take as long as they are asked to
    "iterations": "2", "restarts": "1", "progress": "False", "device": "'cpu'", "limit": "4096",
    "draws": "20", "batch_size": "4", "engine": "'eager'", "time": "False", "components": "2",
    "limbeck.compress.inputs": "'data'", "limbeck.log_partition.proposal": "nade()",
    "members": "2", "hidden": "3", "sweeps": "1", "max_steps_out": "9",
}  # fmt: skip
SLOW = {"export.export", "Result.export", "Compressed.export",
        "Condensed.export"}  # fmt: skip
READERS: dict[str, Any] = {}
LEFT_OUT = {
    *(
        f"{name}.{method}"
        for method in ("forward", "log_probabilities")
        for name in ("MLP", "BatchedMLP", "Ensemble", "Preprocessed", "Trees", "SampleBag")
    ),  # called by torch, in every step
    "MLflow", "TensorBoard",  # need further packages
    "DistilledClassifier.set_params", "DistilledRegressor.set_params",
    "export.of_result", "schedules.same_until", "page.document", "Portable.like", "Portable.rows",
    "Portable.check_inputs", "Inputs",
}  # fmt: skip
OWNERS = {
    "RBM": "rbm()", "NADE": "nade()", "MADE": "nade(lb.MADE)", "DeepNADE": "nade(lb.DeepNADE)",
    "Energy": "energy()", "MLP": "net()", "BatchedMLP": "lb.BatchedMLP(2, 3, 4, 2)",
    "Ensemble": "lb.Ensemble([net(), net()])", "GaussianMixture": "mixture()", "Trees": "trees()",
    "Preprocessed": "lb.Preprocessed(net())", "Binary": "lb.Binary(4)", "Spins": "lb.Spins(3)",
    "States": "lb.States(3, 2)", "Real": "lb.Real(3)", "Compressed": "compressed()",
    "Condensed": "condensed()", "Result": "distilled()", "Fidelity": "fidelity()",
    "LogPartition": "estimate()", "DistilledClassifier": "fresh(classifier())",
    "DistilledRegressor": "fresh(regressor())", "Bridge": "lb.Bridge(samples=20, burn_in=2)",
    "Importance": "lb.Importance(samples=20)", "AIS": "lb.AIS(samples=20, schedule=5)",
    "Exact": "lb.Exact()", "Table": "lb.Table(frame())", "Chains": "lb.Chains(rbm(), 4, burn_in=1)",
    "Normal": "lb.Normal(torch.zeros(3), torch.ones(3))",
    "Bernoulli": "lb.Bernoulli(torch.full((3,), 0.5))", "Poisson": "lb.Poisson(torch.ones(3))",
    "Categorical": "lb.Categorical(torch.full((3, 2), 0.5))",
    "MultivariateNormal": "lb.MultivariateNormal(torch.zeros(2), torch.eye(2))",
    "Mixture": "lb.Mixture(torch.ones(2) / 2, lb.Normal(torch.zeros(3, 2), torch.ones(3, 2)))",
    "SampleBag": "lb.SampleBag(predict, draws(), 2)",
    "Slice": "samplers.Slice(lambda x: -x.square().sum(1), torch.zeros(2, 3))",
    "RunningDiagnostics": "samplers.RunningDiagnostics()",
}  # fmt: skip
ROWS = ["rows()", "rows().numpy()", "rows().tolist()", "pd.DataFrame(rows().numpy())", "rows(30)"]
EVENTS = ["bits()", "bits(3)", "bits().numpy()"]
RESULT = ["distilled()", "compressed()", "condensed()", "net()", "classifier()"]
PATHS = ["out('a')", "str(out('b'))", "out('c.npz')", "out('d.onnx')", "out('e/f')"]
SOURCES = [
    "rows()",
    "inputs.Noise(3)",
    "inputs.Dataset(rows(), labels())",
    "lambda n: torch.zeros(n, 3)",
]
VALID: dict[str, list[str]] = {
    "AsGiven": ["None"], "Truth": ["True", "False"], "FilePath": PATHS, "DeviceName": ["'cpu'"],
    "Generator": ["torch.Generator().manual_seed(0)"], "dtype": ["torch.float32", "torch.float64"],
    "NoneType": ["None"], "Tensor": ["rows()", "bits()"], "Module": ["net()"],
    "Discrete": ["lb.Binary(4)", "lb.Spins(4)"],
    "Support": ["lb.Spins(3)", "lb.Real(3)"], "Table": ["lb.Table(frame())"],
    "TeacherCache": ["lb.TeacherCache(out('cache'))"], "ndarray": ["np.ones(3)"],
    "Loss": ["losses.cross_entropy()"], "Path": PATHS, "RBM": ["rbm()"], "NADE": ["nade()"],
    "RandomState": ["np.random.RandomState(0)"], "Teacher": ["lb.Teacher(net(), 'logits')"],
    "Inputs": ["inputs.Noise(3)"],
    "teacher": ["net()", "forest()", "[net(), net()]", "lambda x: np.ones((len(x), 2)) / 2"],
    "limbeck.distill.teacher": [
        "net()", "lb.Teacher(net(), 'logits')", "lambda x: x[:, :2]", "None"],
    "limbeck.steps.teacher": ["net()", "lb.Teacher(net(), 'logits')"],
    "student": ["(4,)", "'linear'", "net()", "lb.MLP(3, 2)", "'tree'"],
    "limbeck.distill.student": ["lb.MLP(3, 2)", "net()"], "limbeck.steps.student": ["net()"],
    "limbeck.condense.student": ["None", "lb.MLP(3, 1)"],
    "limbeck.normalize.student": ["None", "nade()"], "limbeck.free_energy.student": ["nade()"],
    "Compressed.load.student": ["None"], "Condensed.load.student": ["None"],
    "limbeck.load.student": ["None", "lb.MLP(3, 2)"], "X": ROWS,
    "x": ["rows()", "bits()", "rows(3).numpy()"], "y": ["labels()", "labels().numpy()", "None"],
    "limbeck.compress.X": [*ROWS, "frame()", "sparse.csr_matrix(rows().numpy())"],
    "labels": ["labels()", "None"], "inputs": SOURCES,
    "limbeck.compress.inputs": ["'data'", "'munge'"],
    "limbeck.condense.inputs": ["rows()", "None", "rows()"], "NADE.inputs": ["4"],
    "MADE.inputs": ["4"], "DeepNADE.inputs": ["4"], "Trees.inputs": ["3"], "source": SOURCES,
    "sources": ["[rows(), rows(5)]"], "Teacher.source": ["net()", "lambda x: x"],
    "loss": ["'auto'", "losses.cross_entropy()", "'square_error'"],
    "limbeck.normalize.loss": ["'kl'", "'square_error'", "'reverse_kl'"],
    "limbeck.condense.loss": ["'auto'", "losses.cross_entropy()"], "value": SOURCES,
    "schedules.as_schedule.value": ["'cosine'", "schedules.Linear()", "None"],
    "posterior": ["draws()", "draws().numpy()", "{'a': draws()}"], "predict": ["predict"],
    "limbeck.load.predict": ["None", "predict"], "Condensed.load.predict": ["predict"],
    "export.export.predict": ["None"], "export.portable.predict": ["None"],
    "predictions": ["None"], "support": ["'auto'"], "var_names": ["None"],
    "held_out": ["None", "rows(5)"], "like": ["draws()"],
    "optimizer": ["'auto'", "'sgd'", "'adam'"], "schedule": ["'cosine'", "'linear'", "None"],
    "AIS.schedule": ["5", "2"], "update": ["None", "lb.GradientUpdate()"],
    "metrics": ["None"], "callbacks": ["None", "[]", "lambda entry: None"], "weights": ["None"],
    "stack": ["None"], "classes": ["None"], "retry_on": ["(OSError,)"], "cache": ["None"],
    "target": ["rbm()", "energy()"], "proposal": ["None", "nade()"], "rbm": ["rbm()"],
    "nade": ["nade()"], "start": ["None"], "Bridge.start": ["'proposal'", "bits()"],
    "Bridge.second_start": ["'auto'", "None"], "Importance.start": ["'target'"],
    "AIS.start": ["'target'"], "Slice.start": ["torch.zeros(2, 3)"],
    "method": ["'auto'", "'bridge'", "'exact'", "lb.Exact()"], "Samples.method": ["'sample'"],
    "Samples.model": ["nade()"], "fn": ["lambda n: torch.zeros(n, 3)"],
    "Energy.fn": ["lambda x: -x.sum(1)"], "advance": ["None"], "model": ["net()"],
    "quantities": ["('values',)"], "shape": ["3", "(2, 3)"],
    "log_density": ["lambda x: -x.square().sum(1)"], "width": ["1.0", "[1.0, 2.0, 3.0]"],
    "samplers.sweep.x": ["bits(5)"], "samplers.sweep.support": ["lb.Binary(4)"],
    "loader": ["DataLoader(rows(), 4)"], "transform": ["lambda x: x + 1"], "data": EVENTS,
    "W": ["torch.randn(4, 2)"], "a": ["torch.zeros(4)"], "b": ["torch.zeros(2)"],
    "sizes": ["3", "4", "2"], "Ensemble.train_bootstrap.sizes": ["(3, 4, 2)"],
    "MLP.hidden": ["'relu'", "['tanh']"],
    "models": ["[net(), net()]", "lb.BatchedMLP(2, 3, 4, 2)"], "network": ["net()"],
    "trees": ["[]"], "estimator": ["forest()", "forest().estimators_[0]"], "thing": RESULT,
    "path": PATHS, "folder": PATHS, "df": ["frame()"], "Table.encode.df": ["frame()"],
    "saved": ["{}", "saved('distilled')"], "ax": ["None"], "pair": ["(0, 1)"],
    "series": ["torch.randn(2, 20)"], "log_weights": ["torch.randn(20)"],
    "RunningDiagnostics.update.draws": ["torch.randn(4, 2)"],
    "limbeck.as_draws.posterior": ["draws()", *files("draws.npy", "draws.npz", "draws.csv")],
    "limbeck.load.folder": files("distilled", "compressed", "condensed"),
    "Compressed.load.folder": files("compressed"), "Condensed.load.folder": files("condensed"),
    "Fidelity.load.path": files("fidelity.json"), "RBM.load.path": files("rbm.npz"),
    "NADE.load.path": files("nade.safetensors"), "TeacherCache.folder": ["out('cache')"],
    "n": ["3", "1"], "members": ["2"], "index": ["0", "1"],
    "values": ["torch.randn(12, 2)"],
    "q": ["2", "3"], "Dataset.weight": ["None"], "expected": ["bits()"], "level": ["0.9"],
    "means": ["torch.zeros(2, 3)"], "GaussianMixture.set_.weights": ["torch.ones(2) / 2"],
    "covariances": ["torch.eye(3).repeat(2, 1, 1)"], "result": ["compressed()"],
    "report": ["None", "fidelity()"], "mixture": ["mixture()"], "options": ["None", "{}"],
    "random_state": ["0", "None"], "directions": ["'random'", "torch.ones(3)"],
    "targets": ["'teacher'", "0.0"], "variables": ["0", "[0, 1]"], "groups": ["None"],
    "latency": ["None"], "kind": ["'values'", "'probabilities'"],
    "order": ["None", "'random'", "[3, 2, 1, 0]"],
    "h": ["bits(5, 2)"], "codes": ["bits()"], "centre": ["None"],
    "function": ["lambda x: np.ones((len(x), 2))"], "findings": ["['one']"],
    "folders": ["[saved('distilled')]"],
    "input_shape": ["None", "3", "(3,)"], "base": ["None"], "categorical": ["()", "[1]"],
    "names": ["None"], "settings": ["None"], "width_": ["1.0"], "lr": ["None", "0.01"],
    "teacher_layer": ["'layers.0'"], "student_layer": ["'layers.0'"],
}  # fmt: skip
SPACE: dict[str, Any] = {
    **{name: value for name, value in globals().items() if not name.startswith("_")},
    "DataLoader": torch.utils.data.DataLoader, "math": math, "Decimal": Decimal,
    "Fraction": Fraction, "callbacks": callbacks, "schedules": schedules, "losses": losses,
    "samplers": samplers, "inputs": inputs, "page": page, "pictures": pictures, "records": records,
    "export": export, "sparse": sparse,
}  # fmt: skip


def expression(name: str) -> str:
    r"""A public function, class or class method, as a call in `SPACE` names it."""
    home, _, rest = name.rpartition(".")
    if home == "limbeck" or (not home and hasattr(lb, rest)):
        return f"lb.{rest}"
    if home and hasattr(lb, home) and isinstance(getattr(lb, home), type):
        return f"lb.{name}"
    if home:
        return name
    modules = ("inputs", "losses", "samplers", "schedules", "callbacks")
    return next(f"{module}.{rest}" for module in modules if hasattr(SPACE[module], rest))
