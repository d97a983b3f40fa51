r"""Options that commands share; options in TOML files and on the command line."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer import Argument, Option

from limbeck.errors import ArgumentError, choice, refuse_unreadable, require_path
from limbeck.records import read_value

# options that are not part of its settings; trust is not taken from a file
ONE_CALL = ("config", "overwrite", "debug", "help", "trust_pickle")


def parse_config(content: bytes | bytearray, path: Path) -> dict[str, Any]:
    r"""The values of a TOML file with this content."""
    with refuse_unreadable("--config", path, "a TOML file"):
        text = content.decode("utf-8")
        # the parser takes quadratic time for names of many parts, which no option has
        if max((line.split("=")[0].count(".") for line in text.splitlines()), default=0) > 16:
            raise ValueError("a name of more than 16 parts")
        return tomllib.loads(text)


def _use_config(ctx: typer.Context, path: Path | None) -> Path | None:
    r"""Take a file's options as defaults; options on the command line override them."""
    if path is None or ctx.resilient_parsing:
        return path
    require_path(path, "--config", "a TOML file", "file")
    with refuse_unreadable("--config", path, "a TOML file"):
        content = path.read_bytes()
    options = {name.replace("-", "_"): v for name, v in parse_config(content, path).items()}
    command = options.pop("command", ctx.info_name)
    if command != ctx.info_name:
        expected = f"options of {ctx.info_name}; it is for limbeck {command}"
        raise ArgumentError("--config", str(path), expected)
    known = {str(param.name) for param in ctx.command.params} - set(ONE_CALL)
    kinds = get_type_hints(ctx.command.callback)
    for name, value in options.items():
        choice(str(path), name, known)
        # the command line's own conversions would take 1.5 for 1, and true for 1
        is_path = Path in (kinds[name], *get_args(kinds[name]))
        read_value(value, str if is_path else kinds[name], f"{path}: {name}")
    ctx.default_map = {**(ctx.default_map or {}), **options}
    return path


ResultOption = partial(Option, rich_help_panel="Result")
PrintOption = partial(Option, rich_help_panel="What is printed")
TrainingOption = partial(Option, None, rich_help_panel="Training")

Debug = Annotated[bool, PrintOption("--debug", help="Show a traceback if something fails.")]
Drop = Annotated[list[str] | None, Option(help="A column to drop; can be repeated.")]
Dates = Annotated[
    list[str] | None, Option(help="A column of dates, which files hold as text; can be repeated.")
]
QueryOption = partial(Option, rich_help_panel="Slow and remote teachers")
Preset = Annotated[str, Option(help="auto, or thesis for the source text's settings.")]
Target = Annotated[str, Argument(help="An RBM's file (.npz, .mat, .safetensors), or module:name.")]


@dataclass(frozen=True)
class TeacherOptions:
    r"""A teacher and its rows; from `task` on, arguments of `lb.compress`."""

    teacher: str = Argument(help="module:name of your own code, or a model's file, such as .onnx.")
    data: Path = Argument(help="Rows: a CSV, Parquet, npy or npz file.")
    drop: Drop = None
    dates: Dates = None
    rows: str = Option("auto", help="What the teacher accepts: frame, array, or auto.")
    classes: str | None = Option(None, help="Names of the teacher's classes, such as no,yes.")
    trust_pickle: bool = Option(False, "--trust-pickle", help="Read a pickle; it may run any code.")
    task: str = Option("auto", help="auto, classification, multilabel or regression.")
    teacher_output: str = Option(
        "auto", help="The teacher's outputs: auto, logits, probabilities, values."
    )
    onnx_output: str | None = Option(None, help="The output to use if an ONNX file has several.")
    cache: Path | None = QueryOption(None, help="A folder to store the teacher's predictions in.")
    cache_key: str | None = QueryOption(None, help="Name in the cache, for a function.")
    teacher_batch: int | None = QueryOption(None, help="Rows per call of the teacher.", min=1)
    retries: int = QueryOption(3, help="Attempts after a connection error.", min=0)
    max_queries: int | None = QueryOption(None, help="Maximum number of rows to label.", min=1)
    queries_per_second: float | None = QueryOption(None, help="Maximum number of rows per second.")
    query_seconds: float | None = QueryOption(None, help="Time limit for queries, in seconds.")
    query_workers: int = QueryOption(1, help="Threads that call the teacher.", min=1)

    def passed(self) -> dict[str, Any]:
        r"""The arguments of `lb.compress`."""
        names = [field.name for field in fields(self)]
        return {name: getattr(self, name) for name in names[names.index("task") :]}


@dataclass(frozen=True)
class Common:
    r"""The options of every command that makes a result."""

    export: Path | None = Option(
        None, help="Also write the student to a file, such as student.onnx."
    )
    out: Path | None = ResultOption(
        None, "--out", "-o",
        help="The result folder. Default: limbeck-COMMAND in the current folder.",
    )  # fmt: skip
    config: Path | None = ResultOption(
        None, callback=_use_config, is_eager=True,
        help="A TOML file with options, such as RESULT/config.toml; the command line overrides it.",
    )  # fmt: skip
    overwrite: bool = ResultOption(
        False, "--overwrite", help="Replace an existing result with other settings."
    )
    require: list[str] | None = ResultOption(
        None, help="A required figure, such as agreement=0.98, rare_recall=0.9 or "
        r"'recall\[fraud]=0.9'; exit code 3 if it is not met. Can be repeated.",
    )  # fmt: skip
    verdicts: bool = ResultOption(True, help="Whether a failed verdict gives exit code 3.")
    seed: int = Option(0, help="Random seed.", min=0)
    device: str = Option("auto", help="Where to run: auto, cpu, cuda.")
    json: bool = PrintOption(False, "--json", help="Print the result as JSON.")
    quiet: bool = PrintOption(False, "--quiet", "-q", help="Print errors only, or JSON.")
    debug: Debug = False
    steps: int | None = TrainingOption(help="Number of training steps.", min=1)
    batch_size: int | None = TrainingOption(help="Inputs per step.", min=1)
    lr: float | None = TrainingOption(help="The learning rate.")
    optimizer: str | None = TrainingOption(help="A name in torch.optim, such as adam.")
    schedule: str | None = TrainingOption(help="cosine, constant, linear, logarithmic.")
    seconds: float | None = TrainingOption(help="Time limit of training, in seconds.")
    engine: str | None = TrainingOption(help="auto, eager or compiled.")
    checkpoint_seconds: float = Option(
        30.0, help="Seconds between checkpoints.", rich_help_panel="Training"
    )

    def training(self, checkpoint: Path) -> dict[str, Any]:
        r"""Arguments of the library's verbs: training options that have a value, and the like."""
        names = [field.name for field in fields(self)]
        names = ["seed", "device", *names[names.index("steps") :]]
        values = {"checkpoint": checkpoint, "progress": not self.quiet}
        values |= {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}


def to_toml(command: str, options: Mapping[str, object]) -> str:
    r"""Options as TOML; those without a value are named in comments."""

    def literal(value: object) -> str:
        if isinstance(value, list):
            return f"[{', '.join(map(literal, value))}]"
        if isinstance(value, str):  # JSON's escapes are TOML's, but for one character
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        return str(value).lower() if isinstance(value, bool) else repr(value)

    text = f"# `limbeck {command} --config` with this file repeats the run, from the same folder.\n"
    for name, value in {"command": command, **options}.items():
        left_out = f"# {name}: default"
        text += (left_out if value is None else f"{name} = {literal(value)}") + "\n"
    return text
