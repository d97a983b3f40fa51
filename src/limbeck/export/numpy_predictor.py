r"""A predictor in plain NumPy: one file of weights and a short script that reads it."""

from __future__ import annotations

import copy
import io
import json
import math
import re
import runpy
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import limbeck
from limbeck.arrays import map_tensors
from limbeck.compression.fast_path import indicators
from limbeck.errors import ArgumentError
from limbeck.evaluation import evaluating
from limbeck.export.numpy_layers import FUNCTIONS, Script, write
from limbeck.export.parts import number_features
from limbeck.export.portable import MARK, Portable, not_foreign, relative_difference
from limbeck.models.table_encoder import TableEncoder
from limbeck.models.tree import Trees

HEAD = """""{about}""

{imports}from pathlib import Path

import numpy as np

W = dict(np.load(Path(__file__).with_name({weights!r}), allow_pickle=False))
W = {{name: a.astype(float) if a.dtype.kind == "f" else a for name, a in W.items()}}
if any(np.isnan(a).any() for a in W.values() if a.dtype.kind == "f"):
    raise ValueError({weights!r} + ": got weights that are NaN; the file is damaged")"""

# the function by which scripts read a table's columns
READER = '''
NUMBERS = [column for column in COLUMNS if "categories" not in column]
ORIGIN, FILL = (np.array([column[key] for column in NUMBERS]) for key in ("origin", "fill"))
NO_GAPS = np.array([not column["mask"] for column in NUMBERS], bool)
CODES = [{value: k for k, value in enumerate(c.get("categories", ()))} for c in COLUMNS]


def read(frame):
    """Numbers (n, N), which of them are missing, and codes (n, C)."""
    row, numbers, codes = {}, [], []
    if hasattr(frame, "iloc") and len(frame) == 1:  # pandas reads a row faster than its columns
        row = dict(zip(frame.columns.tolist(), frame.iloc[0].tolist()))
    for column, known in zip(COLUMNS, CODES):
        name, date = column["name"], column["kind"] == "date"
        # a row of pandas may have whole numbers as floats, and dates in their time zone
        whole = known and type(column["categories"][0]) is int
        given = frame[name] if date or whole or name not in row else [row[name]]
        if date:
            if getattr(getattr(given, "dtype", None), "kind", "O") == "O":  # a list, of pandas' too
                given = [None if v is None or v != v else v for v in given]
                given = [getattr(v, "to_datetime64", lambda v=v: v)() for v in given]
            dates = np.asarray(given, "datetime64[us]")  # in UTC
            numbers.append(np.where(np.isnat(dates), np.nan, dates.astype("int64") / 1e6))
            continue
        values = given.tolist() if hasattr(given, "tolist") else given
        gone = [v is None or type(v).__name__ in ("NAType", "NaTType") or v != v for v in values]
        text = known and isinstance(column["categories"][0], str)
        for value, missing in zip(values, gone):
            if not missing and isinstance(value, str) != bool(text):
                kind = "strings" if text else "numbers"
                raise ValueError(f"{name}: expected {kind}, got {value!r}, of another kind")
        if not known:
            numbers.append([np.nan if missing else v for v, missing in zip(values, gone)])
            continue
        if any(gone) and not column["missing"]:
            raise ValueError(f"{name}: expected no missing values, as in the data")
        size = len(known)
        codes.append([size + 1 if m else known.get(v, size) for v, m in zip(values, gone)])
    value = np.array(numbers, float).reshape(len(numbers), len(given)).T
    codes = np.array(codes, int).reshape(len(codes), len(given)).T
    gone = np.isnan(value)
    wrong = np.isinf(value) | (gone & NO_GAPS)
    if wrong.any():
        name = NUMBERS[wrong.any(0).argmax()]["name"]
        raise ValueError(f"{name}: expected finite numbers, as the data had")
    return np.where(gone, FILL, value - ORIGIN).astype(np.float32), gone, codes
'''


@write.register
def _encoder(module: TableEncoder, script: Script, prefix: str) -> None:
    exact = ".astype(np.float32)" if script.single else ""
    script.add("numbers = h" if module.columns else "numbers, gone, codes = h")
    order = module.place.numpy(force=True)
    if not module.columns:
        order = np.array([script.numbers.index(number.key) for number in module.numbers], int)
    names = ("which", "shift", "scale", "low", "high")
    which, *features = number_features(module)
    arrays = zip(names, (order[which], *features), strict=True)
    number, shift, scale, low, high = (script.array(prefix + k, v) for k, v in arrays)
    script.add(f"f = [(numbers[:, {number}] - {shift}{exact}) / {scale}{exact}]")
    if np.isfinite(features[2:]).any():
        script.add(f"f = [np.clip(f[0], {low}{exact}, {high}{exact})]")
    if module.masks:
        masked = script.array(f"{prefix}masked", order[: len(module.masks)])
        script.add(f"f.append(gone[:, {masked}])")
    if module.indicated:
        arrays = zip(("place", "slots"), indicators(module, script.codes), strict=True)
        place, slots = (script.array(prefix + name, values) for name, values in arrays)
        script.add(f"f.append(codes[:, {place}] == {slots})")
    for k, (key, layer) in enumerate(zip(module.embedded, module.embeddings, strict=True)):
        weight: Any = layer.weight
        table = script.array(f"{prefix}{k}.embedding", weight)
        script.add(f"f.append({table}[codes[:, {script.codes.index(key)}]])")
    script.add("h = np.hstack(f)")


def numpy_files(model: Portable, path: Path) -> tuple[dict[Path, bytes], float]:
    r"""The files of a student for NumPy; its difference from torch in double precision."""
    weights, script = places(path)
    not_foreign(script)
    x = map_tensors(torch.Tensor.cpu, model.rows())
    text, arrays = _written(model, weights.name)
    content = io.BytesIO()
    np.savez(content, **arrays)
    with tempfile.TemporaryDirectory() as folder:
        trial = Path(folder) / script.name
        trial.with_name(weights.name).write_bytes(content.getvalue())
        trial.write_text(text, encoding="utf-8")
        predict = runpy.run_path(str(trial), run_name="limbeck_exported")["predict"]
    module = copy.deepcopy(model.module).cpu()
    trees = [part for part in module.modules() if isinstance(part, Trees)]
    for tree in trees:  # which see their features in 32 bits, as ever
        tree.value.data, tree.base = tree.value.data.double(), tree.base.double()
    module = module if trees else module.double()
    if model.table is None:
        rows = (x := x.double()).numpy()
    else:
        rows = model.table.to_frame(x)
        x = model.table.encode(rows)  # unknown categories have become known ones
    with evaluating(module), torch.no_grad():
        expected = module(x)
    worst = relative_difference(torch.as_tensor(np.asarray(predict(rows))), expected)
    return {weights: content.getvalue(), script: text.encode()}, worst


def places(path: Path) -> tuple[Path, Path]:
    r"""Where the weights and the script go."""
    if path.suffix == ".npz" and not path.is_dir():
        return path, path.with_suffix(".py")
    if path.is_file():
        raise ArgumentError("path", f"{path}, which is a file", "a folder, or a name of .npz")
    return path / "weights.npz", path / "predict.py"


def _written(model: Portable, weights: str) -> tuple[str, dict[str, Any]]:
    r"""The script, and the arrays that it reads."""
    table, shape = model.table, tuple(model.shape or ())
    single = any(isinstance(module, Trees) for module in model.module.modules())
    script = Script(model.name, 0 if table is not None else math.prod(shape), single)
    argument, rows, reader = "x", "rows", ""
    if table is not None:
        argument, reader = "frame", 'COLUMNS = json.loads(W["columns"].tobytes())' + READER
        rows = "columns by name: a data frame, or a dict of lists"
        columns = json.dumps([column.spec() for column in table.varying])
        script.array("columns", np.frombuffer(columns.encode(), np.uint8))
        script.numbers = [column.key for column in table.numbers]
        script.codes = [c.key for c in table.varying if c.key not in script.numbers]
        script.add("h = read(frame)")
    else:
        expected = f"({', '.join(['n', *map(str, shape)])})"
        script.add("h = np.asarray(x, float)", f"if h.shape[1:] != {shape}:")
        script.add(f'    raise ValueError(f"x: expected shape {expected}, got {{h.shape}}")')
        if model.task is not None:  # as `predict` of a compressed teacher does
            script.add("if not np.isfinite(h).all():")
            script.add('    raise ValueError("x: expected finite numbers, got NaN or infinity")')
    write(model.module, script, "")
    script.add("return h")
    answers = model.form.replace("_", " ").replace("density", "densities")
    body = "\n    ".join([f'"""The {answers} of {rows}."""', *script.lines])
    functions = {name: text for name, text in FUNCTIONS.items() if re.search(rf"\b{name}\(", body)}
    code = "\n".join([body, *functions.values(), reader])
    imports = "".join(f"import {name}\n" for name in ("json", "math") if f"{name}." in code)
    about = f"{model.name} in plain NumPy; {MARK}, version {limbeck.__version__}."
    parts = [HEAD.format(about=json.dumps(about), imports=imports, weights=weights)]
    if model.classes is not None:
        names = [c if isinstance(c, int | float) else str(c) for c in model.classes]
        parts[0] += f"\nCLASSES = {names!r}"
    parts[0] += f"\n{reader.rstrip()}" if reader else ""
    parts += [f"def {name}(z):\n    return {text}" for name, text in functions.items()]
    parts.append(f"def predict({argument}):\n    {body}")
    if model.task == "classification" and model.classes is not None:
        label = f"[CLASSES[k] for k in predict({argument}).argmax(1)]"
        about = '"""The most probable class of each."""'
        parts.append(f"def label({argument}):\n    {about}\n    return {label}")
    return "\n\n\n".join(parts) + "\n", script.arrays
