r"""`limbeck info`: what is installed here, or what a file is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from limbeck.cli.errors import Debug, is_there
from limbeck.errors import ArgumentError, LimbeckError

__all__ = ["identified", "info", "surroundings"]

SHOWN = 12
r"""Columns and variables that are named."""


def identified(path: Path) -> dict[str, Any]:
    r"""What a path is, by name: "path", "is", and what else there is to say."""
    is_there(path, "path", "a file, or a result's folder")
    if path.is_dir() and path.suffix.lower() != ".zarr":
        return {"path": str(path), **_folder(path)}
    kind = path.suffix.lower()
    if kind not in KINDS:
        raise ArgumentError("path", str(path), f"a file that ends in {', '.join(KINDS)}")
    failures = []
    for look in KINDS[kind]:
        try:
            return {"path": str(path), **look(path)}
        except LimbeckError as error:
            failures.append(error)
    raise failures[-1]


def _folder(path: Path) -> dict[str, Any]:
    from limbeck.cli import config
    from limbeck.cli.folder import CONFIG, UNFINISHED

    if (path / UNFINISHED).exists() and (path / CONFIG).exists():
        command = config.read(path / CONFIG).get(config.COMMAND)
        again = f"limbeck {command} --config {path / CONFIG}"
        return {"is": f"an unfinished result of limbeck {command}", "to go on": again}
    if (path / "student.safetensors").exists():
        return _student(path)
    from limbeck import storage

    content = storage.read(path).content
    verdicts = "; ".join(
        f"{v['name']}: {'held' if v['held'] else 'FAILED'}" for v in content["verdicts"]
    )
    students = [m for m in content["models"] if m["role"] == "student"]
    return {
        "is": f"a result of limbeck {content['verb']}: {content['title']}",
        "student": ", ".join(f"{m['name']}, {_size(m['bytes'])}" for m in students) or "none",
        **_new_inputs(content.get("new_inputs")),
        "verdicts": verdicts or "none",
        "summary": content["summary"],
        "command": content["command"],
    }


def _size(count: int | None) -> str:
    return "unknown size" if count is None else f"{count:,} bytes"


def _new_inputs(record: dict[str, Any] | None) -> dict[str, str]:
    r"""What is known of a condensed posterior at inputs that it was not trained on."""
    if record is None:
        return {}
    from limbeck.condensation.held_out import NewInputs

    return dict(NewInputs.from_record(record).lines())


def _student(path: Path) -> dict[str, Any]:
    r"""A saved student; it is not made, which may need code of the user's own."""
    from limbeck.condensation.condensed import ABOUT
    from limbeck.storage.files import read
    from limbeck.training import result

    tensors, about = read(path / result.STUDENT, result.FORMAT)
    kind = "a module of your own" if about["spec"] is None else about["spec"]["type"]
    found, condensed = {}, {}
    if (path / ABOUT).exists():
        condensed = json.loads((path / ABOUT).read_text(encoding="utf-8"))
    if about["spec"] is None and condensed:
        bag = condensed["bag"]
        model = bag and (bag["predict"] or {}).get("model", "a function of your own")
        kind = f"SampleBag of {len(tensors['free'])} pseudo-draws" if bag else kind
        found = {"predicts by": model} if bag else {}
    story = json.loads((path / result.ABOUT).read_text(encoding="utf-8"))
    found |= _new_inputs(condensed.get("new_inputs"))
    return {"is": f"a student: {kind}", **found, "stopped": story["stop_reason"]}


def _rbm(path: Path) -> dict[str, Any]:
    from limbeck.models.rbm import RBM

    rbm = RBM.load(path)
    return {"is": f"an RBM of {rbm.visible} × {rbm.hidden} units"}


def _onnx(path: Path) -> dict[str, Any]:
    from limbeck.teachers.files import open_model

    session, file = open_model(path)
    return {
        "is": f"an ONNX model of {file.size:,} bytes",
        "inputs": _ports(session.get_inputs()),
        "outputs": _ports(session.get_outputs()),
    }


def _ports(ports: Any) -> str:
    return ", ".join(f"{port.name} {port.type} {port.shape}" for port in ports)


def _booster(path: Path) -> dict[str, Any]:
    from limbeck.teachers.files import open_model

    model, file = open_model(path)
    return {"is": f"a {type(model).__module__.split('.')[0]} model of {file.size:,} bytes"}


def _posterior(path: Path) -> dict[str, Any]:
    from limbeck.posteriors.read import as_draws

    return {"is": f"a posterior: {as_draws(path)!r}"}


def _rows(path: Path) -> dict[str, Any]:
    from limbeck.cli.reading import rows

    x = rows(path, "path").x
    if not hasattr(x, "columns"):
        return {"is": f"an array of shape {x.shape} and type {x.dtype}"}
    named = [f"{name} ({kind})" for name, kind in zip(x.columns, x.dtypes, strict=True)]
    more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
    return {
        "is": f"a table of {len(x):,} rows and {len(named)} columns",
        "columns": ", ".join(named[:SHOWN]) + more,
    }


def _npz(path: Path) -> dict[str, Any]:
    from limbeck.cli.reading import _read

    arrays = _read(path, "path")
    return {"is": "arrays", "arrays": ", ".join(f"{n} {a.shape}" for n, a in arrays.items())}


def _safetensors(path: Path) -> dict[str, Any]:
    from limbeck.storage.files import read_tensors

    tensors, about = read_tensors(path)
    names = ", ".join(f"{n} {tuple(t.shape)}" for n, t in list(tensors.items())[:SHOWN])
    return {"is": f"tensors ({about.get('format', 'no format of limbeck')})", "tensors": names}


def _pickle(path: Path) -> dict[str, Any]:
    words = "a pickle; reading it may run any code, so it is not opened"
    return {"is": words, "to use it": "limbeck compress … --trust-pickle, if you trust who made it"}


KINDS: dict[str, tuple[Callable[[Path], dict[str, Any]], ...]] = {
    ".npz": (_rbm, _npz),
    ".mat": (_rbm,),
    ".safetensors": (_rbm, _safetensors),
    ".onnx": (_onnx,),
    **dict.fromkeys((".json", ".ubj", ".txt", ".cbm"), (_booster,)),
    **dict.fromkeys((".csv", ".tsv", ".parquet", ".pq", ".npy"), (_rows,)),
    **dict.fromkeys((".nc", ".nc4", ".cdf", ".netcdf", ".h5", ".hdf5", ".zarr"), (_posterior,)),
    **dict.fromkeys((".pkl", ".pickle", ".joblib"), (_pickle,)),
}
r"""What a file of each ending may be, in the order of trying."""


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

    from limbeck.models.kernels.nade_native import _compilers

    found = next(filter(None, map(shutil.which, _compilers())), None)
    return found or "none (kernels run as plain torch)"
