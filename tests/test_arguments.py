r"""Every public argument is declared with a converter, and converters do what they say."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone

import limbeck as lb
from limbeck import arguments as arg
from tests.refusals import refused

MODULES = (
    "limbeck", "limbeck.inputs", "limbeck.losses", "limbeck.samplers", "limbeck.export",
    "limbeck.training.schedules", "limbeck.training.callbacks", "limbeck.report.pictures",
    "limbeck.report.page", "limbeck.report.records",
)  # fmt: skip
# made by limbeck itself: results, errors, and tuples that vmap sees through
RECORDS = {
    "Batch", "Bernoulli", "Callback", "Categorical", "Compressed", "Condensed", "Fidelity",
    "EvidenceComparison", "FreeEnergyCurve", "LogPartition", "Mixture", "MultivariateNormal",
    "Normal", "Poisson", "Portable", "Program", "Result", "StreamEnded", "TeacherError",
}  # fmt: skip
# called by the loop, in every step or once, and not by users; and what only classes here call
CONTRACT = {
    "answers", "at", "bind", "build", "check_target", "checked", "collect", "contains", "decode",
    "draw", "encode", "end", "expand", "features", "from_files", "from_saved", "from_spec",
    "from_tensors", "get_extra_state", "gradient", "images", "infer_output", "jump", "least_size",
    "leave_start", "load_state_dict", "logs", "make_room", "mix", "moments", "move", "next_rows",
    "of", "on_evaluation", "preactivation", "prepare", "probabilities", "probe",
    "refuse_derivatives", "rounded", "rows", "same_until", "set_extra_state", "set_moments_",
    "shipped", "signs", "start", "state_dict", "step", "sweep", "tail", "take", "to", "view",
}  # fmt: skip


def public() -> dict[str, Any]:
    r"""Functions, constructors and methods that users call, by name."""
    found: dict[str, Any] = {}
    for name in MODULES:
        module = importlib.import_module(name)
        names = getattr(module, "__all__", None) or [
            each for each, value in vars(module).items()
            if not each.startswith("_") and getattr(value, "__module__", None) == name
        ]  # fmt: skip
        for each in names:
            value = getattr(module, each)
            if inspect.isclass(value) and not issubclass(value, BaseException | Warning):
                if each not in RECORDS:
                    found[each] = value
                found |= methods(each, value)
            elif inspect.isfunction(value):
                found[f"{name.rpartition('.')[2]}.{each}"] = value
    return found


def methods(name: str, cls: type) -> dict[str, Any]:
    found = {}
    for each, value in inspect.getmembers(cls, callable):
        function = inspect.unwrap(getattr(value, "__func__", value))
        ours = (getattr(function, "__module__", None) or "").startswith("limbeck")
        if (
            ours
            and not each.startswith("_")
            and each not in CONTRACT
            and not inspect.isclass(value)
        ):
            found[f"{name}.{each}"] = getattr(value, "__func__", value)
    return found


PUBLIC = public()


def leaves_checks_to_the_function(converter: arg.Converter) -> bool:
    if isinstance(converter, arg.Either):
        return all(map(leaves_checks_to_the_function, converter.converters))
    return isinstance(converter, arg.Instance) or converter is arg.AS_GIVEN


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_argument_has_a_converter(name):
    function = PUBLIC[name]
    if inspect.isclass(function) and function.__init__ is object.__init__:
        return
    converters = arg.declared(function)
    called = function.__init__ if inspect.isclass(function) else function
    for parameter in inspect.signature(called).parameters.values():
        if parameter.name in ("self", "cls") or parameter.kind is parameter.VAR_KEYWORD:
            continue  # further names are declared where they end up
        converter = converters[parameter.name]
        assert converter is not None, f"{parameter.name} of {name} is declared by no converter"
        checked = getattr(called, "checks_arguments", "Distilled" in name)  # whose fit checks
        assert checked or leaves_checks_to_the_function(converter), f"{name} checks no argument"


def test_there_are_as_many_public_callables_as_ever():
    assert len(PUBLIC) > 150


CASES = [  # a declaration, values that it accepts with what they become, and values that it refuses
    (
        arg.Count,
        {1: 1, np.int64(3): 3},
        [0, -1, 2.7, 2.0, True, "5", None, 2**63, torch.tensor(2.7)],
    ),
    (arg.CountFromZero, {0: 0, np.uint8(7): 7}, [-1, 0.5, False, [1], np.array([1])]),
    (arg.Seed, {0: 0, 2**63 - 1: 2**63 - 1}, ["0", 2**70, -1, 1.0, None]),
    (arg.Positive, {1: 1.0, np.float32(0.5): 0.5}, [0, -1.0, np.nan, np.inf, "5", 10**400, True]),
    (arg.Fraction, {0: 0.0, 1: 1.0}, [1.01, -0.1, "0.5", 1j, object()]),
    (arg.Flag, {True: True, np.bool_(False): False}, ["no", 2, None, []]),
    (arg.PathLike, {"a": "a", Path("b"): Path("b")}, ["", b"a", 3, "a\0", "\ud800", None]),
    (arg.Device, {"cpu": torch.device("cpu")}, ["gpu", 0, None, "cuda:99"]),
    (arg.Text, {"": "", "a": "a"}, [None, 3, b"a"]),
    (arg.Count | arg.Auto | None, {"auto": "auto", 2: 2, None: None}, ["Auto", 0, [], 2.5]),
]


@pytest.mark.parametrize(("declaration", "accepted", "refusals"), CASES)
def test_converters(declaration, accepted, refusals):
    converter = arg.converter_of(declaration)
    for value, result in accepted.items():
        converted = converter("name", value)
        assert converted == result
        assert type(converted) is type(result)
    for value in refusals:
        with refused("name"):
            converter("name", value)


@pytest.mark.parametrize("value", [torch.tensor(3), np.array(3), torch.tensor(3.0)])
def test_whole_numbers_of_arrays_without_axes(value):
    assert arg.converter_of(arg.Count)("steps", value) == 3


def test_an_error_names_the_argument_what_is_expected_and_what_came():
    with refused("steps", r"^2\.7$$", expected="a whole number from 1"):
        lb.distill(lb.MLP(3, 2), lb.MLP(3, 2), torch.zeros(4, 3), steps=2.7)
    with refused("domain", "'lgo'", expected="did you mean 'log'"):
        lb.losses.derivative_error("lgo")
    with refused("covariance", "'ful'"):  # though it is not used beside inputs
        lb.condense(torch.zeros(8, 3), lambda w, x: None, torch.zeros(4, 3), covariance="ful")


def test_an_unknown_keyword_of_a_verb_is_named_with_the_nearest_one():
    with refused("batchsize", expected=r"compress \(did you mean 'batch_size'\?\); help\(limbeck"):
        lb.compress(lb.MLP(3, 2), torch.zeros(20, 3), batchsize=3)


@arg.checked_arguments
def example(n: arg.Count, *more: arg.Count, name: arg.Text = "a", other: Any = None) -> tuple:
    r"""An example."""
    return n, more, name, other


def test_the_decorator_keeps_what_a_function_is():
    assert list(inspect.signature(example).parameters) == ["n", "more", "name", "other"]
    assert example.__doc__ == "An example."
    assert pickle.loads(pickle.dumps(example)) is example
    assert example(np.int64(2), torch.tensor(3)) == (2, (3,), "a", None)
    assert example(2, name="b", other=3.5) == (2, (), "b", 3.5)
    with refused("more", "0"):
        example(1, 0)
    with pytest.raises(TypeError, match="unexpected keyword"):
        example(1, names="b")


def test_estimators_store_their_arguments_and_check_them_in_fit():
    model = lb.DistilledClassifier(steps="5")
    assert clone(model).get_params()["steps"] == "5"
    with refused("steps", "'5'"):
        model.fit(np.zeros((4, 2)), [0, 1, 0, 1])


def test_records_and_modules_are_copied_and_pickled_as_before():
    bridge = lb.Bridge(samples=np.int64(5))
    assert pickle.loads(pickle.dumps(bridge)) == bridge
    assert type(bridge.samples) is int
    net = lb.MLP(3, np.int64(2))
    assert copy.deepcopy(net).sizes == pickle.loads(pickle.dumps(net)).sizes == (3, 2)


def test_of_several_wrong_arguments_the_first_is_named():
    with refused("steps"):
        lb.distill(None, lb.MLP(2, 2), torch.zeros(3, 2), steps=0, seed=-1, device="moon")
    with refused("seed"):
        lb.distill(None, lb.MLP(2, 2), torch.zeros(3, 2), seed=-1, steps=0, device="moon")


def test_errors_pass_between_processes():
    for error in (
        lb.ArgumentError("steps", torch.ones(2), "a whole number from 1"),
        lb.TeacherError("teacher: it failed", np.arange(3), 7),
        lb.CheckpointError("a file"),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert str(again) == str(error)
    assert vars(pickle.loads(pickle.dumps(lb.ArgumentError("a", 1, "b")))) == {
        "argument": "a", "received": "1", "expected": "b",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["optimizer", "schedule", "update"])
@pytest.mark.parametrize("preset", ["auto", "thesis"])
def test_tables_are_refused_by_name_in_every_verb(name, preset):
    frame = pytest.importorskip("pandas").DataFrame({"a": [1, 2]})
    x = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
    options = {name: frame, "preset": preset, "progress": False}
    for call in (
        lambda: lb.distill(lb.MLP(2, 3, 2), lb.MLP(2, 3, 2), x, "cross_entropy", **options),
        lambda: lb.compress(lb.MLP(2, 3, 2), x, (4,), **options),
        lambda: lb.condense(x, lambda draw, x: lb.Bernoulli(logits=x @ draw), x, **options),
        lambda: lb.condense(x, lambda draw: lb.Normal(draw[0], torch.tensor(1.0)), **options),
        lambda: lb.normalize(lb.RBM.random(4, 3), seconds=1, **options),
    ):
        with refused(name):
            call()
