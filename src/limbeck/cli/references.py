r"""The user's own code, as `module:name` or `file.py:name`."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from limbeck.errors import ArgumentError

__all__ = ["LOADED", "is_reference", "load"]

LOADED: set[str] = set()
r"""Files of the user's own that were imported here; what they raise is not limbeck's fault."""

FORM = re.compile(r"(?P<module>.+):(?P<name>[^\W\d]\w*(\.[^\W\d]\w*)*)")


def is_reference(text: str) -> bool:
    r"""Whether a string names something in a module.

    >>> is_reference("models:teacher"), is_reference("rbm.npz"), is_reference("a/b.py:net.head")
    (True, False, True)
    """
    return FORM.fullmatch(text) is not None


def load(text: str, argument: str) -> Any:
    r"""What `module:name` names; the current folder is searched first.

    Arguments:
        text: A module as Python imports it, or the path of a .py file; a colon; a name in it.
        argument: What the command calls it.
    """
    match = FORM.fullmatch(text)
    if match is None:
        raise ArgumentError(argument, repr(text), "module:name, such as models:teacher")
    module = _imported(match["module"], text, argument)
    found: Any = module
    for part in match["name"].split("."):
        if not hasattr(found, part):
            public = [name for name in dir(found) if not name.startswith("_")]
            error = ArgumentError.unknown(argument, part, public)
            expected = f"a name in it: {error.expected}" if public else "a name in it; it has none"
            raise ArgumentError(argument, f"{text!r}, and {part!r} is not there", expected)
        found = getattr(found, part)
    return found


def _imported(name: str, text: str, argument: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = _from_file(Path(name), argument) if name.endswith(".py") else _by_name(name)
    except ArgumentError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (name + ".").startswith(error.name + "."):
            expected = f"a module in {here} or installed{_near(error.name)}"
            raise ArgumentError(argument, f"{text!r}, and there is no {name!r}", expected) from None
        raise _broken(text, argument, error) from error
    except (Exception, SystemExit) as error:  # whatever the user's module may raise
        raise _broken(text, argument, error) from error
    if origin := getattr(module, "__file__", None):
        LOADED.add(str(Path(origin).resolve()))
    return module


def _by_name(name: str) -> ModuleType:
    importlib.invalidate_caches()
    return importlib.import_module(name)


def _from_file(path: Path, argument: str) -> ModuleType:
    if not path.is_file():
        raise ArgumentError(argument, f"{path}, which is no file", "a Python file that is there")
    folder = str(path.parent.resolve())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # so that what it defines can be found again
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module


def _near(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, [path.stem for path in Path.cwd().glob("*.py")], n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _broken(text: str, argument: str, error: BaseException) -> ArgumentError:
    r"""A module that fails when it is imported: what it raised, and where."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and frame.filename != __file__
    ]
    place = f" at {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    if isinstance(error, SyntaxError):
        place = f" at {Path(error.filename or '?').name}, line {error.lineno}"
    words = " ".join(str(error).split())
    received = f"{text!r}, whose import fails ({type(error).__name__}: {words}{place})"
    return ArgumentError(argument, received, "a module that can be imported; --debug shows more")
