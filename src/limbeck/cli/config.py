r"""Options in TOML files: read before the command line's own, written with every result."""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from limbeck.cli.errors import state
from limbeck.errors import ArgumentError

__all__ = ["Config", "asked", "line", "read", "written"]

COMMAND = "command"
r"""The key that says whose options a file holds."""

APART = ("config", "overwrite", "debug", "help")
r"""Options that are about one call, and not part of what it asks for."""


def read(path: Path) -> dict[str, Any]:
    r"""The content of a TOML file."""
    if not path.is_file():
        raise ArgumentError("--config", f"{path}, {state(path)}", "a TOML file")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ArgumentError("--config", f"{path}, unreadable: {error}", "a TOML file") from error


def _taken(ctx: typer.Context, path: Path | None) -> Path | None:
    r"""Take a file's options as defaults, which what is given on the command line wins over."""
    if path is None or ctx.resilient_parsing:
        return path
    found = {name.replace("-", "_"): value for name, value in read(path).items()}
    command = found.pop(COMMAND, ctx.info_name)
    if command != ctx.info_name:
        expected = f"options of {ctx.info_name}; it is for limbeck {command}"
        raise ArgumentError("--config", str(path), expected)
    known = {str(param.name) for param in ctx.command.params} - set(APART)
    for name, value in found.items():
        if name not in known:
            error = ArgumentError.unknown(f"{path}", name, known)
            raise error
        if isinstance(value, dict):
            raise ArgumentError(f"{path}: {name}", "a table", "a value")
    ctx.default_map = {**(ctx.default_map or {}), **found}
    return path


Config = typer.Option(
    "--config",
    callback=_taken,
    is_eager=True,
    help="A TOML file with options, such as RESULT/config.toml; those given here win.",
    rich_help_panel="Result",
)


def asked(ctx: typer.Context) -> dict[str, Any]:
    r"""Every option of a call with its value, by name, as TOML can hold it."""
    return {
        str(param.name): _plain(ctx.params[param.name])
        for param in ctx.command.params
        if param.name in ctx.params and param.name not in APART
    }


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value


def written(command: str, options: Mapping[str, Any]) -> str:
    r"""Options as TOML; those that limbeck is to choose are named in comments.

    >>> print(written("logz", {"target": "rbm.npz", "seed": 0, "chains": None}))
    # `limbeck logz --config` with this file repeats the run, from the same folder.
    command = "logz"
    target = "rbm.npz"
    seed = 0
    # chains: left to limbeck
    """
    lines = [
        f"# `limbeck {command} --config` with this file repeats the run, from the same folder."
    ]
    for name, value in {COMMAND: command, **options}.items():
        lines.append(f"# {name}: left to limbeck" if value is None else f"{name} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):  # JSON's escapes are TOML's, but for one character
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)


def line(ctx: typer.Context) -> str:
    r"""The command line that repeats a call: all that differs from the defaults."""
    words, given = ["limbeck", str(ctx.info_name)], []
    for param in ctx.command.params:
        value = ctx.params.get(str(param.name))
        if param.name in APART or value is None or value == param.default:
            continue
        if param.param_type_name == "argument":
            words += [str(each) for each in (value if isinstance(value, list | tuple) else [value])]
            continue
        name = next(opt for opt in param.opts if opt.startswith("--"))
        if isinstance(value, bool):
            off = next(iter(param.secondary_opts), None)
            given += [name] if value else [off] if off else []
        else:
            several = value if isinstance(value, list | tuple) else [value]
            given += [part for each in several for part in (name, str(each))]
    return shlex.join(words + given)
