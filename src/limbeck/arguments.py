r"""Arguments: each is declared once, by its annotation, and converted when a function is called.

`steps: Count` is an int for a type checker; `@checked_arguments` makes it a whole number from 1, or
raises `ArgumentError` ("steps: expected a whole number from 1, got 2.7").
"""

from __future__ import annotations

import builtins
import functools
import inspect
import math
import operator
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import numpy as np
import torch
from torch import Tensor, nn

from limbeck.errors import ArgumentError, first_line, shown
from limbeck.errors import choice as choice

T = TypeVar("T")
Checked = TypeVar("Checked", bound=Callable[..., Any])
PLAIN = ("builtins", "typing")  # modules of classes that say too little: int, str, Any
LARGEST = 2**63 - 1  # that int64 holds
CLASSES = {Tensor: "a tensor", nn.Module: "a torch module", torch.Generator: "a torch.Generator"}


class Converter:
    r"""What an argument accepts, and as what the function gets it."""

    expected = ""

    def convert(self, value: Any) -> Any:
        r"""The value as the function gets it; whatever is raised for another refuses it."""
        raise NotImplementedError

    def describe(self, value: object) -> str:
        r"""What is expected in place of a value that was refused."""
        return self.expected

    def __call__(self, argument: str, value: object, expected: str | None = None) -> Any:
        r"""The converted value of an argument, or an error that names it."""
        try:
            return self.convert(value)
        except Exception:  # of the value's own methods, too
            words = self.describe(value) if expected is None else expected
        raise ArgumentError(argument, shown(value), words)


class Whole(Converter):
    r"""An integer of any integer type (not bool), or the exact one of a 0-d array or tensor."""

    def __init__(self, least: int | None = None, most: int = LARGEST) -> None:
        self.least, self.most = -LARGEST if least is None else least, most
        start = "" if least is None else f" from {least}"
        end = "" if most == LARGEST else f" to {most}"
        self.expected = f"a whole number{start}{end}"

    def convert(self, value: Any) -> int:
        if type(value) is int and self.least <= value <= self.most:  # as nearly always
            return value
        if isinstance(value, np.ndarray | Tensor):
            value = scalar(value)
            value = int(value) if isinstance(value, float) and value.is_integer() else value
        result = operator.index(value)
        if isinstance(value, bool) or not self.least <= result <= self.most:
            raise ValueError
        return result


class Number(Converter):
    r"""A finite number within bounds, as a float."""

    def __init__(
        self, least: float | None = None, most: float | None = None, *,
        above: float | None = None, below: float | None = None,
    ) -> None:  # fmt: skip
        self.bounds = (
            (operator.ge, least, "from {:g}"), (operator.gt, above, "above {:g}"),
            (operator.le, most, "up to {:g}"), (operator.lt, below, "below {:g}"),
        )  # fmt: skip
        words = [text.format(bound) for _, bound, text in self.bounds if bound is not None]
        self.expected = f"a number {' and '.join(words)}" if words else "a finite number"
        if least is not None and most is not None:
            self.expected = f"a number from {least:g} to {most:g}"
        elif above is not None and below is not None:
            self.expected = f"a number between {above:g} and {below:g}"
        self.expected = self.expected.replace("above 0", "above zero")

    def convert(self, value: Any) -> float:
        value = scalar(value) if isinstance(value, np.ndarray | Tensor) else value
        result = float(value)
        known = (holds(result, bound) for holds, bound, _ in self.bounds if bound is not None)
        other = isinstance(value, str | bytes | bool | np.bool_)  # which have a float, too
        if other or not math.isfinite(result) or not all(known):
            raise ValueError
        return result


def scalar(value: np.ndarray | Tensor) -> Any:
    r"""The number in a 0-d array or tensor."""
    if value.ndim:
        raise ValueError
    return value.item()


class Truth(Converter):
    r"""True or False, of Python's or NumPy's, or 0 or 1."""

    expected = "True or False"

    def convert(self, value: Any) -> bool:
        value = scalar(value) if isinstance(value, np.ndarray | Tensor) else value
        if isinstance(value, int | np.bool_ | np.integer) and value in (0, 1):
            return bool(value)
        raise ValueError


class Matching(Converter):
    r"""A value that passes a test, as it came."""

    def __init__(self, matches: Callable[[Any], bool], expected: str) -> None:
        self.matches, self.expected = matches, expected

    def convert(self, value: Any) -> Any:
        if self.matches(value):
            return value
        raise ValueError


AS_GIVEN = Matching(lambda value: True, "any object")  # the function that uses it checks it


class Instance(Matching):
    r"""An object of a class."""

    def __init__(self, cls: type, expected: str | None = None) -> None:
        self.cls, name = cls, cls.__name__
        article = "an" if name[0] in ("FHLMNRSX" if name.isupper() else "AEIOU") else "a"
        expected = expected or CLASSES.get(cls, f"{article} {name}")
        super().__init__(lambda value: isinstance(value, cls), expected)


class Choice(Matching):
    r"""One of a few names; the nearest one is suggested for another."""

    def __init__(self, *names: str) -> None:
        self.names, listed = names, ", ".join(map(repr, sorted(names)))
        super().__init__(lambda value: isinstance(value, str) and value in names, listed)

    def describe(self, value: object) -> str:
        return ArgumentError.unknown("", value, self.names).expected


class Listed(Converter):
    r"""Several values as a list: of a list, a tuple, an array, but not of text or a dict.

    Each is of one of the `kinds`, if any are given.
    """

    def __init__(self, *kinds: type) -> None:
        self.kinds = kinds
        self.expected = "a list of text" if kinds else "a list"

    def convert(self, value: Any) -> list[Any]:
        if isinstance(value, str | bytes | Mapping | type):
            raise ValueError
        values = list(value)
        if self.kinds and not all(isinstance(each, self.kinds) for each in values):
            raise ValueError
        return values


class FilePath(Converter):
    r"""A path as text or as a path object that a file system can have."""

    expected = "a path"

    def convert(self, value: Any) -> str | Path:
        value = value if isinstance(value, Path) else os.fspath(value)
        parts = [os.fsencode(part) for part in Path(value).parts]
        if not str(value) or any(b"\0" in part or len(part) > 255 for part in parts):
            raise ValueError
        return value


class DeviceName(Converter):
    r"""A device of this machine by its name, or a torch.device."""

    def convert(self, value: Any) -> torch.device:
        if not isinstance(value, str | torch.device):
            raise ValueError
        torch.empty(0, device=torch.device(value))
        return torch.device(value)

    def describe(self, value: Any) -> str:
        reason = ""
        try:
            torch.empty(0, device=torch.device(value))
        except Exception as error:  # of the device's own backend
            reason = first_line(error)
        return f"a device of this machine ({reason})"


class Either(Converter):
    r"""What one of several converters accepts; the first that does converts."""

    def __init__(self, *converters: Converter) -> None:
        self.converters = converters

    def convert(self, value: Any) -> Any:
        for converter in self.converters:
            with suppress(Exception):
                return converter.convert(value)
        raise ValueError

    def describe(self, value: object) -> str:
        return ", or ".join(converter.describe(value) for converter in self.converters)


Count = Annotated[int, Whole(1)]
CountFromZero = Annotated[int, Whole(0)]
Seed = Annotated[int, Whole(0)]  # whatever torch and NumPy both take
Finite = Annotated[float, Number()]
Positive = Annotated[float, Number(above=0)]
FromZero = Annotated[float, Number(0)]
Fraction = Annotated[float, Number(0, 1)]
InnerFraction = Annotated[float, Number(above=0, below=1)]  # without 0 and 1
Share = Annotated[float, Number(above=0, most=1)]  # without 0
Remainder = Annotated[float, Number(0, below=1)]  # without 1
Flag = Annotated[bool, Truth()]
Text = Annotated[str, Instance(str, "text")]
Auto = Annotated[str, Choice("auto")]
Function = Annotated[T, Matching(lambda f: callable(f) and not isinstance(f, type), "a function")]
PathLike = Annotated[str | Path, FilePath()]
Device = Annotated[str | torch.device, DeviceName()]
Items = Annotated[T, Listed()]
Dict = Annotated[T, Instance(Mapping, "a dict")]
UserObject = Annotated[T, AS_GIVEN]


def converter_of(annotation: object) -> Converter | None:
    r"""The converter that an annotation declares: its own, that of a class, or those of a union."""
    if get_origin(annotation) is Annotated:
        values, *parts = get_args(annotation)
        converter = next((part for part in parts if isinstance(part, Converter)), None)
        kinds = [kind for part in get_args(values) for kind in get_args(part) or (part,)]
        texts = str in kinds and all(kind in (str, Path, NoneType) for kind in kinds)
        return Listed(*kinds) if texts and isinstance(converter, Listed) else converter
    if get_origin(annotation) in (Union, UnionType):
        converters = [converter_of(part) for part in get_args(annotation)]
        return None if None in converters else Either(*converters)  # type: ignore[arg-type]
    if annotation is None or annotation is NoneType:
        return Instance(NoneType, "None")
    of_class = isinstance(annotation, type) and annotation.__module__ not in PLAIN
    if not of_class or getattr(annotation, "_is_protocol", False):
        return None
    return Instance(annotation)  # type: ignore[arg-type]


def declared(function: Callable[..., Any]) -> dict[str, Converter | None]:
    r"""The converter of each parameter of a function or class; None where none is declared."""
    owners = function.__mro__ if isinstance(function, type) else ()
    called = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
    function = inspect.unwrap(called)
    converters: dict[str, Converter | None] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        annotation, scope = parameter.annotation, getattr(function, "__globals__", {})
        annotation = Any if annotation is parameter.empty else annotation
        for owner in owners:  # a field is read where it stands
            if inspect.get_annotations(owner).get(name, function) is annotation:
                scope = vars(sys.modules[owner.__module__])
                break
        if isinstance(annotation, str):  # of limbeck's own source, never of a file
            # names that only a type checker imports stand for Any
            annotation = eval(annotation, {}, defaultdict(lambda: Any, vars(builtins) | scope))
        converters[name] = converter_of(annotation)
    return converters


def checked_arguments(target: Checked) -> Checked:
    r"""A function, or a class with its constructor, that converts its arguments on each call."""
    if isinstance(target, type):
        target.__init__ = _checked(target.__init__, target)  # type: ignore[misc]
        return target
    return _checked(target, target)


def _checked(function: Checked, declares: Callable[..., Any]) -> Checked:
    parameters = inspect.signature(function).parameters
    named = [name for name, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    rest = next((name for name, p in parameters.items() if p.kind is p.VAR_POSITIONAL), "")
    converters: dict[str, Converter] = {}  # resolved at the first call, when all names are there

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if not converters:
            known = {name: each for name, each in declared(declares).items() if each is not None}
            converters.update(known or {"": AS_GIVEN})
        values = list(args)
        for index, value in enumerate(args):
            name = named[index] if index < len(named) else rest
            if name in converters:
                values[index] = converters[name](name, value)
        for name in kwargs:  # in their order: of several wrong ones, the first is named
            if name in converters:
                kwargs[name] = converters[name](name, kwargs[name])
        return function(*values, **kwargs)

    checked.checks_arguments = True  # type: ignore[attr-defined]
    return checked  # type: ignore[return-value]


def integer(argument: str, value: object, expected: str, least: int | None = None) -> int:
    r"""A whole number from `least`."""
    return Whole(least)(argument, value, expected)
