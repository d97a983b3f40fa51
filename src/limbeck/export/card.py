r"""Model cards: what an exported student is, how to use it, and when not to trust it."""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import Annotated, Any

import torch

from limbeck.arguments import Choice, FromZero, PathLike, Text, UserObject, checked_arguments
from limbeck.environment import environment
from limbeck.errors import shown
from limbeck.export.c_header import c_arguments, prefix
from limbeck.export.numpy_predictor import places
from limbeck.export.parts import encoded_columns
from limbeck.export.portable import CHECKS, MARK, Portable, portable
from limbeck.export.table_onnx import port
from limbeck.models.preprocessed import Preprocessed
from limbeck.text import listed, markdown, markdown_block, markdown_code, markdown_table

ANSWERS = {
    "probabilities": "probabilities, from 0 to 1",
    "log_probabilities": "natural logarithms of probabilities",
    "logits": "logits: a softmax (a sigmoid for one output) converts them to probabilities",
    "values": "values, in the units of the teacher",
    "log_density": "natural logarithms of the density",
    "outputs": "the module's own outputs",
    "means": "means of the outcome, in its units",
}

# by verb: the intended use, and reasons for doubt
OF_TEACHER = "Instead of its teacher, at inputs like those of its training.", (
    "Where the teacher is wrong, the student is wrong too.",
    "Away from its training inputs it may differ from the teacher. Compare both there first.",
)  # fmt: skip
USES: dict[str, tuple[str, tuple[str, ...]]] = {
    "compress": OF_TEACHER, "distill": OF_TEACHER,
    "condense": ("Instead of the average over all draws, at inputs like those of its training.", (
        "It is only as good as the draws: chains that had not mixed give a wrong student.",
        "Away from its training inputs it may differ from the average of all draws.",
        "It predicts each input separately. Joint predictions of several inputs, and parameters "
        "with their uncertainty, need the posterior's own draws: pseudo-draws are not draws.",
    )),
    "normalize": ("Instead of the target, where exact log probabilities or samples are needed.", (
        "Its densities only approximate the target's: "
        "`limbeck.log_partition(target, student)` measures the difference.",
    )),
}  # fmt: skip


@checked_arguments
def card(
    thing: UserObject[object], path: PathLike = "student.onnx",
    format: Annotated[str, Choice("onnx", "pt2", "c", "numpy")] = "onnx",
    worst: FromZero | None = None, *, report: UserObject[object] = None, title: Text | None = None,
) -> str:  # fmt: skip
    r"""The model card of a result or a module, as Markdown.

    Arguments:
        thing: A result, an estimator, a module, or the result of `portable`.
        path: The file or folder of the student. Default: "student.onnx".
        format: "onnx", "pt2", "c" or "numpy". Default: "onnx".
        worst: The file's largest difference from torch. Default: None, not known.
        report: The result of `result.report(...)`. Default: None.
        title: The title. Default: the student's kind.
    """
    model = thing if isinstance(thing, Portable) else portable(thing)
    verb = str(model.about.get("verb", "distill"))
    teacher = markdown(model.about.get("teacher", ""))
    what = f"A student{f' that predicts like its teacher, {teacher}' if teacher else ''}"
    what += f"{f', for {model.task}' if model.task else ''}: {markdown(model.name)}."
    if isinstance(model.student, Preprocessed):
        what += " It takes raw inputs and scales them itself."
    if model.form == "log_density":
        what = f"A density that is evaluated in closed form: {markdown(model.name)}."
    intended, doubts = USES[verb]
    count = sum(p.numel() for p in (model.student or model.module).parameters())
    settings = {k: v for k, v in model.about.items() if k not in ("verb", "doubts")}
    if settings:
        settings = {"call": f"limbeck.{verb}", **settings}
    own = list(map(markdown, model.about.get("doubts", [])))
    notes = [note for note in own if note.startswith("Note: ")]  # not on whether to trust it
    doubts = (*(note for note in own if note not in notes), *doubts)
    if model.table is not None:
        doubts += ("Categories that are not in the training data are treated as unknown.",)
    fidelity = "No report was passed to the export: run `result.report(...)` on other rows."
    if report is not None:
        text = str(report) if hasattr(report, "sentence") else shown(report)
        fidelity = markdown_block(text.strip(), "text")
    origin = markdown_table(("setting", "value"), settings.items()) if settings else "Not known."
    _, program, limit = CHECKS[format]
    checks = "Not run: no C compiler was found."
    if worst is not None:
        figure = f"at most {worst:.1g}, relative to the largest output and one; limit: {limit:g}"
        checks = f"Run with {program} at random inputs: differs from torch by {figure}."
    blocks = [
        f"# {markdown(title or f'Distilled {model.name}')}",
        f"{what} It has {count:,} parameters.",
        f"## Use\n\n{markdown_block(_use(model, Path(path), format), 'text')}",
        f"## Inputs\n\n{_inputs(model, format)}",
        f"## Outputs\n\n{_outputs(model, format)}",
        "\n\n".join(["## How it was made", origin, *notes]),
        f"## How faithful it is\n\n{fidelity}",
        f"## Checks\n\n{checks}",
        f"## Intended use\n\n{intended}",
        "## When not to trust it\n\n" + "\n".join(f"* {doubt}" for doubt in doubts),
        "## Versions\n\n" + markdown_table(("what", "version"), environment("cpu").items()),
        f"<!-- {MARK} -->",
    ]
    return "\n\n".join(blocks) + "\n"


def card_path(path: Path, format: str) -> Path:
    r"""Where the card of a file or a folder goes."""
    if format == "numpy" and path.suffix != ".npz":
        return path / "card.md"
    return path.with_name(path.name + ".md")


def _use(model: Portable, path: Path, format: str) -> str:
    table = model.table is not None
    if format == "pt2":
        load = f"import torch\n\nstudent = torch.export.load({dumps(path.name)}).module()\n"
        return f"{load}y = student({'parts' if table else 'x'})"
    if format == "numpy":
        x = '{"column": [...], ...}' if table else "x"
        script = places(path)[1]
        load = f"from {script.stem} import predict\n\n"
        if not script.stem.isidentifier():
            load = f'import runpy\n\npredict = runpy.run_path({dumps(script.name)})["predict"]\n'
        return f"{load}y = predict({x})  # needs nothing but NumPy"
    if format == "c":
        p, given = prefix(path.stem), c_arguments(model)
        call = f"{p}_predict({', '.join(given)});"
        return f"#include {dumps(path.name)}\n\n{given['y']} y[{p}_outputs];\n{call}"
    load = f"import onnxruntime\n\nsession = onnxruntime.InferenceSession({dumps(path.name)})\n"
    if not table or model.columns == "encoded":
        names = c_arguments(model)
        feeds = ", ".join(f'"{name}": {name}' for name in names if name != "y")
        return f'{load}y = session.run(["y"], {{{feeds}}})[0]'
    feeds = "feeds = {...}  # an array (n, 1) for each column, by its name\n"
    return f"{load}{feeds}answers = session.run(None, feeds)"


def _inputs(model: Portable, format: str) -> str:
    if model.table is None:
        kind = "numbers" if format == "numpy" else str(model.dtype).removeprefix("torch.")
        shape = ", ".join(["n", *map(str, model.shape or ("?",))])
        x = ("x", f"({shape})", f"{kind}; as they come")
        text = markdown_table(("name", "shape", "type"), [x])
        if model.dtype == torch.float64 and format != "numpy":
            text += "\n\nfloat32 cannot distinguish some of these numbers: do not round them."
    elif format == "c" or (format == "onnx" and model.columns == "encoded"):
        kinds = c_arguments(model).items()
        text = ", ".join(f"`{name}`: {kind}" for name, kind in kinds if name != "y")
        columns = markdown_table(("place", "column and values"), encoded_columns(model.table))
        text = f"{text}. In this order:\n\n{columns}"
    else:
        rows = [row for column in model.table.varying for row in _column(column, format)]
        text = markdown_table(("name", "shape", "values"), rows)
        if format == "pt2":
            before = "The program does not take raw columns: it takes one dict of these tensors"
            text = f"{before}, which `limbeck.Table.encode` makes of a data frame.\n\n{text}"
    if model.task is None:
        return text
    where = "" if model.table is None else " in a column where the data had no missing values"
    what = "is refused" if format == "numpy" else "makes the output for its row NaN"
    return f"{text}\n\nNaN or infinity{where} {what}; `result.predict` refuses it."


def _column(column: Any, format: str) -> list[tuple[str, str, str]]:
    r"""Rows on a column: its input, or the tensors of a program."""
    categories = getattr(column, "categories", ())
    if format != "pt2":
        values = f"{column.kind}: {listed(map(repr, categories))}" if categories else column.kind
        if format == "numpy":
            gaps = "missing: None or NaN" if column.missing else "no missing values"
            return [(str(column.name), "n values", f"{values}; {gaps}")]
        takes = port(column)
        values += ", in seconds since 1970 in UTC" * (column.kind == "date")
        kind = "string" if takes.dtype is object else takes.dtype.__name__
        gaps = "no missing values" if takes.missing is None else f"missing: {takes.missing!r}"
        return [(column.key, f"(n, 1) {kind}", f"{values}; {gaps}")]
    if categories:
        codes = listed(f"{code} is {value!r}" for code, value in enumerate(categories))
        gaps = f", {len(categories) + 1} is missing" if column.missing else ""
        text = f"the number of the category: {codes}; {len(categories)} is any other{gaps}"
        return [(column.key, "(n,) int64", text)]
    unit = "seconds since 1970 in UTC" if column.kind == "date" else "the number"
    less = f" less {column.origin!r}, subtracted in float64" if column.origin else ""
    missing = (column.mask, "(n,) bool", f"whether {column.key} is missing")
    return [(column.key, "(n,) float32", unit + less), *([missing] if column.mask else [])]


def _outputs(model: Portable, format: str) -> str:
    name = "predict" if format == "numpy" else "y"
    text = ANSWERS[model.form]
    if model.table is not None and format == "onnx" and model.columns == "named":
        name = "label" if model.task == "regression" else "label, probabilities"
        text = text if model.task == "regression" else f"the class or classes, and {text}"
    if model.classes is None:
        return f"`{name}`: {text}."
    what = "Labels" if model.task == "multilabel" else "Classes"
    classes = ", ".join(map(markdown_code, model.classes))
    return f"`{name}`: {text}.\n\n{what}, in the order of the columns: {classes}."
