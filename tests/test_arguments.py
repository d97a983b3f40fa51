r"""Every public argument is declared with a converter, and converters do what they say."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

from limbeck import arguments as arg

MODULES = (
    "limbeck", "limbeck.inputs", "limbeck.losses", "limbeck.samplers", "limbeck.export",
    "limbeck.training.schedules", "limbeck.training.callbacks", "limbeck.report.pictures",
    "limbeck.report.page", "limbeck.report.records",
)  # fmt: skip
# made by limbeck itself: results, errors, and tuples that vmap sees through
RECORDS = {
    "Batch", "Bernoulli", "Callback", "Categorical", "Compressed", "Condensed", "Fidelity",
    "LogPartition", "Mixture", "MultivariateNormal", "Normal", "Poisson", "Portable", "Result",
    "StreamEnded", "TeacherError",
}  # fmt: skip
# called by the loop, in every step or once, and not by users; and what only classes here call
CONTRACT = {
    "answers", "at", "bind", "build", "checked", "collect", "contains", "convert", "decode",
    "draw", "encode", "end", "expand", "features", "from_saved", "from_spec", "get_extra_state",
    "gradient", "infer_output", "jump", "leave_start", "load_state_dict", "make_room", "mix",
    "move", "next_rows", "of", "on_evaluation", "own_batch", "prepare", "probabilities", "probe",
    "refuse_derivatives", "rounded", "same_until", "set_extra_state", "set_moments_", "signs",
    "start", "state_dict", "step", "sweep", "tail", "take", "to", "view",
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
    return isinstance(converter, arg.AsGiven | arg.Instance)


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
