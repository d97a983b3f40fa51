r"""Whole numbers that are none: nothing that the user gives as a number of things is rounded.

`steps=torch.tensor(2.7)` ran three steps: a tensor with one element passes for an integer in
Python, and was rounded or cut off later. All such arguments go through one check. A 0-d tensor or
array is taken if it holds a whole number exactly; anything else is refused by name.
"""

import functools

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import limbeck as lb
from limbeck import losses
from limbeck.export import export
from limbeck.inputs import Dataset, Loader, Noise, Seek
from limbeck.normalization.log_partition import exact_log_z
from tests.refusals import refused

X = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
RBM = lb.RBM(torch.zeros(4, 3), torch.zeros(4), torch.zeros(3))


def teacher(x):
    return x[:, :1] * x[:, 1:2]


def run(**options):
    student = lb.MLP(3, 8, 1, generator=torch.Generator().manual_seed(0))
    settled = dict(batch_size=10, device="cpu", progress=False)
    return lb.distill(teacher, student, X, "square_error", **settled | options)


FRACTIONS = [torch.tensor(2.7), np.array(2.7), 2.7, np.float32(2.7)]
OTHERS = [torch.tensor([3]), np.array([3]), torch.tensor(True), np.bool_(True), True, "3"]
WHOLE = [np.int32(3), np.array(3), torch.tensor(3), torch.tensor(3, dtype=torch.uint8)]


@pytest.mark.parametrize("value", FRACTIONS + OTHERS, ids=repr)
@pytest.mark.parametrize(
    "name", ["steps", "batch_size", "every", "patience", "checkpoint_every", "seed"]
)
def test_distill_refuses_what_is_no_whole_number(name, value):
    options = {"steps": 4, "held_out": X} | {name: value}
    with refused(name):
        run(**options)


@pytest.mark.parametrize("value", [*WHOLE, torch.tensor(3.0), np.array(3.0)], ids=repr)
def test_distill_takes_whole_numbers_of_any_type(value):
    result = run(steps=value, batch_size=value, every=value, patience=value, seed=value, held_out=X)
    expected = run(steps=3, batch_size=3, every=3, patience=3, seed=3, held_out=X)
    assert (result.steps, type(result.settings["seed"])) == (3, int)
    assert result.history["loss"] == pytest.approx(expected.history["loss"])
    assert result.settings == expected.settings


def posterior(**options):
    draws = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
    settled = dict(components=2, steps=4, device="cpu", progress=False)
    return lb.condense(draws, lambda w, x: lb.Bernoulli(logits=x @ w), X, **settled | options)


def smaller(**options):
    settled = dict(student=(4,), inputs="data", task="regression", steps=4, device="cpu")
    return lb.compress(teacher, X.numpy(), progress=False, **settled | options)


def normalized(**options):
    settled = dict(steps=4, chains=20, burn_in=2, batch_size=10, device="cpu", progress=False)
    return lb.normalize(RBM, **settled | options)


def estimated(**options):
    return lb.log_partition(RBM, lb.NADE(4, 3), **dict(method="bridge", samples=50) | options)


def bootstrapped(**options):
    y = torch.zeros(60, dtype=torch.long)
    settled = dict(members=2, epochs=1, device="cpu", progress=False)
    return lb.Ensemble.train_bootstrap((3, 2), X, y, **settled | options)


def mixture(**options):
    return lb.GaussianMixture(**{"components": 2} | options)


def stepping(x):
    return -x.square().sum(1) / 2


CALLS = {
    "condense": (posterior, ["components", "burn_in", "thin", "steps", "batch_size", "seed"]),
    "compress": (smaller, ["pool", "steps", "batch_size", "seed", "teacher_batch", "retries"]),
    "normalize": (normalized, ["steps", "chains", "burn_in", "sweeps", "batch_size", "seed"]),
    "log_partition": (estimated, ["samples", "burn_in", "chains", "thin", "seed"]),
    "train_bootstrap": (bootstrapped, ["members", "epochs", "batch_size", "seed"]),
    "derivative_error": (losses.derivative_error, ["projections"]),
    "Noise": (lambda **options: Noise(**{"shape": 3} | options), ["shape", "seed"]),
    "Dataset": (functools.partial(Dataset, X), ["seed"]),
    "Loader": (functools.partial(Loader, DataLoader(TensorDataset(X))), ["seed"]),
    "Seek": (functools.partial(Seek, X), ["candidates", "seed"]),
    "GaussianMixture": (mixture, ["components", "dim"]),
    "Slice": (functools.partial(lb.samplers.Slice, stepping, X), ["seed", "max_steps_out"]),
    "exact_log_z": (
        functools.partial(exact_log_z, RBM),
        ["limit", "block"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("value", [torch.tensor(2.7), np.array(2.7)], ids=repr)
@pytest.mark.parametrize(
    ("call", "name"),
    [
        pytest.param(call, name, id=f"{owner}-{name}")
        for owner, (call, names) in CALLS.items()
        for name in names
    ],
)
def test_no_number_of_the_user_is_rounded(call, name, value):
    with refused(name, r"(tensor|array).*2\.7"):
        call(**{name: value})


@pytest.mark.parametrize("name", ["condense", "compress", "normalize", "train_bootstrap"])
def test_a_whole_number_in_a_tensor_is_taken_throughout(name):
    call, names = CALLS[name]
    given = {each: torch.tensor(3) for each in names if each not in ("pool", "chains", "thin")}
    call(**given)


def test_other_numbers_of_things_are_not_cut_off_either(tmp_path):
    draws = lb.condense(
        torch.randn(200, 3, generator=torch.Generator().manual_seed(0)),
        lambda w, x: lb.Bernoulli(logits=x @ w), X,
        components=2, steps=2, device="cpu", progress=False,
    ).posterior  # fmt: skip
    with refused("index", r"numbers of torch\.float32"):
        draws.take([0.9])
    with refused("input_shape", r"\(2\.7,\)"):
        export(lb.MLP(3, 1), tmp_path / "net.pt2", input_shape=(2.7,))
