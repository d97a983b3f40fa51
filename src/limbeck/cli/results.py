r"""Commands on results and files: `limbeck export`, `report` and `info`."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

import limbeck as lb
from limbeck.cli import files
from limbeck.cli.command import show
from limbeck.cli.condense import predict_function
from limbeck.cli.options import Debug
from limbeck.errors import (
    ArgumentError,
    LimbeckError,
    refuse_unreadable,
    rename_argument,
    require_path,
)
from limbeck.text import listed

if TYPE_CHECKING:
    from limbeck.storage.folders import Files

DEVELOPERS = ("dev", "test", "docs", "oracles")  # extras that users do not need
ResultFolder = Annotated[Path, Argument(help="A folder that one of limbeck's commands wrote.")]


def export(
    result: ResultFolder,
    path: Path = Argument(help="A name that ends in .onnx, .pt2, .h or .npz, or a folder."),
    kind: str = Option("auto", "--format", help="auto (by the name), onnx, pt2, c or numpy."),
    predict: str | None = Option(
        None, help="For a condensed bag: module:name of the function of (draw, x)."),
    own: str | None = Option(
        None, "--student", help="For a student of your own: module:name of a module of its kind."),
    debug: Debug = False,
) -> None:  # fmt: skip
    r"""Write a result's student as ONNX, as a torch program, as C or as plain NumPy."""
    from limbeck import storage
    from limbeck.cli.folder import result_folder
    from limbeck.compression.fidelity.report import Fidelity
    from limbeck.export import export as write
    from limbeck.report.condensation import saved_agreement

    folder = result_folder(result)
    student, content = load_result(folder, predict, own), storage.read(folder).content
    fidelity = content.get("fidelity")
    about = saved_agreement(content) if fidelity is None else Fidelity.from_dict(fidelity)
    show(str(write(student, path, format=kind, report=about)))


def load_result(folder: Path, predict: str | None = None, student: str | None = None) -> Any:
    r"""A saved result with its student.

    Code of the user's own is imported by the names given here, never by those in the folder.
    """
    from limbeck.cli.folder import saved_options

    module = None if student is None else copy.deepcopy(files.load_object(student, "--student"))
    function = None if predict is None else predict_function(predict)
    options, more = saved_options(folder), ", as module:name (then {!r})"
    with (
        rename_argument("predict", "--predict", more.format(options.get("predict"))),
        rename_argument("student", "--student", more.format(options.get("student"))),
    ):
        return lb.load(folder, module, predict=function)


def report(
    result: ResultFolder,
    open_page: bool = Option(False, "--open", help="Open the page in the browser."),
    debug: Debug = False,
) -> None:
    r"""Write a report on a result: report.html, report.md and report.json."""
    from limbeck.cli.folder import result_folder
    from limbeck.report.page import write

    page = write(result_folder(result))
    show(str(page))
    if open_page:
        typer.launch(page.resolve().as_uri())


def info(
    path: Path | None = Argument(None, help="A file or a result folder. Default: limbeck itself."),
    as_json: bool = Option(False, "--json", help="Print JSON."),
    debug: Debug = False,
) -> None:
    r"""Show versions, devices and extras, or describe a file or result."""
    lines = _installation() if path is None else describe_path(path)
    width = max(map(len, lines))
    text = "\n".join(f"{name:{width}} {value}" for name, value in lines.items())
    show(json.dumps(lines, indent=1, ensure_ascii=False) if as_json else text)


def describe_path(path: Path) -> dict[str, str]:
    r"""What a path is, by name: "path", "is", and further properties."""
    require_path(path, "path", "a file, or a result's folder")
    suffix = path.suffix.lower()
    describe = _describe_folder if path.is_dir() and suffix != ".zarr" else DESCRIPTIONS.get(suffix)
    if describe is None:
        raise ArgumentError("path", str(path), f"a file that ends in {', '.join(DESCRIPTIONS)}")
    with refuse_unreadable("path", path, "a file that can be read"):
        return {"path": str(path), **describe(path)}


def _describe_folder(path: Path) -> dict[str, str]:
    from limbeck import storage
    from limbeck.cli import folder as folders

    if folders.is_unfinished(path):
        command = folders.resume_command(path)
        return {"is": f"an unfinished result of {command.split(' --')[0]}", "to continue": command}
    saved = storage.folders.read(path, "result", storage.STUDENT_FILES, "path")
    if storage.CONTENT not in saved.names:
        return _describe_student(saved)
    content = storage.read(path).content
    verdicts = [f"{v['name']}: {'held' if v['held'] else 'FAILED'}" for v in content["verdicts"]]
    models = [model for model in content["models"] if model["role"] == "student"]
    sizes = ["unknown size" if m["bytes"] is None else f"{m['bytes']:,} bytes" for m in models]
    students = [f"{model['name']}, {size}" for model, size in zip(models, sizes, strict=True)]
    return {
        "is": f"a result of limbeck {content['verb']}: {content['title']}",
        "student": ", ".join(students) or "none",
        **_describe_new_inputs(content),
        "verdicts": "; ".join(verdicts) or "none",
        "summary": content["summary"],
        "command": content["command"],
    }


def _describe_new_inputs(content: Mapping[str, Any]) -> dict[str, str]:
    r"""What is known of a condensed posterior at inputs that it was not trained on."""
    from limbeck.condensation.held_out import NewInputs

    record = content.get("new_inputs")
    return {} if record is None else dict(NewInputs.from_record(dict(record)).lines())


def _describe_student(saved: Files) -> dict[str, str]:
    r"""A saved student, without making it, which may need the user's own code."""
    from limbeck.condensation.condensed import ABOUT
    from limbeck.training import result

    tensors, about = saved.tensors(result.STUDENT, result.FORMAT)
    kind = "a module of your own" if about["spec"] is None else about["spec"]["type"]
    lines = {}
    if ABOUT in saved.names:
        condensed = saved.json(ABOUT)
        if about["spec"] is None and (bag := condensed["bag"]):
            kind = f"SampleBag of {len(tensors['free'])} pseudo-draws"
            lines["predicts by"] = (bag["predict"] or {}).get("model", "a function of your own")
        lines |= _describe_new_inputs(condensed)
    stopped = saved.json(result.ABOUT)["stop_reason"]
    return {"is": f"a student: {kind}", **lines, "stopped": stopped}


def _describe_tensors(path: Path) -> dict[str, str]:
    r"""An RBM; or else the arrays of an npz file, or the tensors of a safetensors file."""
    try:
        rbm = lb.RBM.load(path)
        return {"is": f"an RBM of {rbm.visible} × {rbm.hidden} units"}
    except LimbeckError:
        if path.suffix.lower() == ".mat":
            raise
    from limbeck.storage.files import read_tensors

    npz = path.suffix.lower() == ".npz"
    arrays = files.read_data(path, "path") if npz else read_tensors(path)[0]
    names = [f"{name} {tuple(array.shape)}" for name, array in arrays.items()]
    return {"is": "arrays" if npz else "tensors", "names": listed(names, 12)}


def _describe_model(path: Path) -> dict[str, str]:
    from limbeck.teachers.networks import open_model

    model, file = open_model(path)
    if path.suffix.lower() != ".onnx":
        return {"is": f"a {type(model).__module__.split('.')[0]} model of {file.size:,} bytes"}
    lines = {"is": f"an ONNX model of {file.size:,} bytes"}
    for side, ports in {"inputs": model.get_inputs(), "outputs": model.get_outputs()}.items():
        lines[side] = ", ".join(f"{port.name} {port.type} {port.shape}" for port in ports)
    return lines


def _describe_rows(path: Path) -> dict[str, str]:
    x: Any = files.read_rows(path, "path").x
    if not hasattr(x, "columns"):
        return {"is": f"an array of shape {x.shape} and type {x.dtype}"}
    columns = [f"{name} ({kind})" for name, kind in zip(x.columns, x.dtypes, strict=True)]
    is_ = f"a table of {len(x):,} rows and {len(columns)} columns"
    return {"is": is_, "columns": listed(columns, 12)}


PICKLE = {
    "is": "a pickle; reading it may run any code, so it is not opened",
    "to use it": "limbeck compress … --trust-pickle, if you trust who made it",
}
POSTERIORS = (".nc", ".nc4", ".cdf", ".netcdf", ".h5", ".hdf5", ".zarr")
DESCRIPTIONS: dict[str, Callable[[Path], dict[str, str]]] = {
    **dict.fromkeys((".npz", ".mat", ".safetensors"), _describe_tensors),
    **dict.fromkeys(files.MODEL_SUFFIXES, _describe_model),
    **dict.fromkeys((".csv", ".tsv", ".parquet", ".pq", ".npy"), _describe_rows),
    **dict.fromkeys(POSTERIORS, lambda path: {"is": f"a posterior: {lb.as_draws(path)!r}"}),
    **dict.fromkeys(files.PICKLE_SUFFIXES, lambda path: PICKLE),
}


def _installation() -> dict[str, str]:
    r"""Versions, devices, extras and the C++ compiler that builds kernels at first use."""
    import platform

    import torch

    from limbeck.models.kernels.nade_native import cpp_compiler

    gpus = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
    lines = {
        "limbeck": lb.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": str(torch.get_num_threads()),
        "gpu": ", ".join(gpus) if torch.cuda.is_available() else "none",
        "compiler": cpp_compiler() or "none (kernels run as plain torch)",
    }
    with suppress(metadata.PackageNotFoundError):  # run from its source, without being installed
        for line in metadata.requires("limbeck") or []:
            match = re.match(r"([\w.-]+).*extra == ['\"]([\w-]+)['\"]", line)
            if not match or match[2] in DEVELOPERS or match[1] == "limbeck":
                continue
            name, extra = match[1], f"limbeck[{match[2]}]"
            try:
                text = f"{name} {metadata.version(name)}"
            except metadata.PackageNotFoundError:
                # it may be there under another name, as xgboost-cpu is
                missing = util.find_spec(name.replace("-", "_")) is None
                text = f"without {name}" if missing else name
            lines[extra] = f"{lines[extra]}, {text}" if extra in lines else text
    return lines
