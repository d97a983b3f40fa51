r"""`limbeck info`: what is installed here, or what a file is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from limbeck.cli.errors import Debug

__all__ = ["info", "surroundings"]

TOOLS = ("dev", "test", "docs", "browser")
r"""Extras for those who work on limbeck itself."""


def info(
    path: Annotated[
        Path | None, typer.Argument(help="A file or a result's folder; none tells of limbeck.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    debug: Annotated[bool, Debug] = False,
) -> None:
    r"""Show versions, devices and extras; or say what a file or result is."""
    from limbeck.cli.identifying import identified

    found = surroundings() if path is None else identified(path)
    if json:
        from json import dumps

        typer.echo(dumps(found, indent=1, ensure_ascii=False))
        return
    width = max(map(len, found))
    for name, value in found.items():
        typer.echo(f"{name:{width}} {value}")


def surroundings() -> dict[str, Any]:
    r"""Versions, devices, extras and the compiler."""
    import platform

    import torch

    import limbeck

    cuda = torch.cuda.is_available()
    gpus = ", ".join(torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count()))
    found = {
        "limbeck": limbeck.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": str(torch.get_num_threads()),
        "gpu": gpus if cuda else "none",
        "compiler": _compiler(),
    }
    return found | {f"limbeck[{extra}]": _versions(names) for extra, names in _extras().items()}


def _extras() -> dict[str, list[str]]:
    r"""The packages of each extra."""
    import re
    from importlib import metadata

    found: dict[str, list[str]] = {}
    try:
        wanted = metadata.requires("limbeck") or []
    except metadata.PackageNotFoundError:  # run from its source, without being installed
        return found
    for line in wanted:
        match = re.match(r"([\w.-]+).*extra == ['\"]([\w-]+)['\"]", line)
        if match and match[2] not in TOOLS and match[1] != "limbeck":
            found.setdefault(match[2], []).append(match[1])
    return found


def _versions(names: list[str]) -> str:
    r"""Versions of an extra's packages, or what is missing."""
    from importlib import metadata, util

    told: list[str] = []
    missing: list[str] = []
    for name in names:
        try:
            told.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            # it may be there under another name, as xgboost-cpu is
            (told if util.find_spec(name.replace("-", "_")) else missing).append(name)
    return f"without {', '.join(missing)}" if missing else ", ".join(told)


def _compiler() -> str:
    r"""The C++ compiler that kernels are built with at first use."""
    import shutil

    from limbeck.models.kernels.native import _compilers

    found = next(filter(None, map(shutil.which, _compilers())), None)
    return found or "none (kernels run as plain torch)"
