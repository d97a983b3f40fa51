r"""A student as one C header: C99 or C++, which needs nothing but <math.h>."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import limbeck
from limbeck.compression.fast_path import indicators
from limbeck.errors import LimbeckError
from limbeck.evaluation import evaluating
from limbeck.export.parts import (
    NumberFeatures,
    categories_of,
    encoded_columns,
    encoded_inputs,
    is_wide,
    parts_of,
)
from limbeck.export.portable import MARK, Portable, not_foreign, relative_difference
from limbeck.models.table_encoder import TableEncoder
from limbeck.models.tree import SURE, Trees
from limbeck.text import visible

COMPILERS = ("cc", "gcc", "clang")
VECTOR = 4  # weights are padded to multiples of it, which any processor multiplies at once
EACH = "for (int j = 0; j < {n}; ++j) "
KINDS = {  # layer kinds of `MLP`: what becomes of the {n} numbers {h}; {f} ends names of functions
    "linear": (),
    "relu": (EACH + "{h}[j] = {h}[j] < 0 ? 0 : {h}[j];",),  # NaN stays NaN
    "tanh": (EACH + "{h}[j] = tanh{f}({h}[j]);",),
    "logistic": (EACH + "{h}[j] = 1 / (1 + exp{f}(-{h}[j]));",),
    "probit": (EACH + "{h}[j] = erfc{f}({h}[j] * -0.70710678118654752{f}) / 2;",),
    "softmax": (
        "{real} top = {h}[0], sum = 0;", EACH + "top = {h}[j] > top ? {h}[j] : top;",
        EACH + "sum += {h}[j] = exp{f}({h}[j] - top);", EACH + "{h}[j] /= sum;",
    ),
    "log_softmax": (
        "{real} top = {h}[0], sum = 0;", EACH + "top = {h}[j] > top ? {h}[j] : top;",
        EACH + "sum += exp{f}({h}[j] - top);", EACH + "{h}[j] -= top + log{f}(sum);",
    ),
    "exp": (EACH + "{h}[j] = exp{f}({h}[j]);",),
    "log_odds": (
        EACH + f"{{h}}[j] = {{h}}[j] < {SURE} ? {SURE} : {{h}}[j] > 1 - {SURE} ? 1 - {SURE} : "
        "{h}[j];", EACH + "{h}[j] = log{f}({h}[j]) - log{f}(1 - {h}[j]);",
    ),
}  # fmt: skip


def c_file(model: Portable, path: Path) -> tuple[dict[Path, bytes], float | None]:
    r"""A student as a C header; its difference from torch, None if there is no compiler."""
    not_foreign(path)
    header = _Header(model, p := prefix(path.stem))
    text = header.text()
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        return {path: text.encode()}, None
    call = f"void run({header.signature}) {{ {p}_predict({', '.join(header.given)}, y); }}\n"
    kinds = {"float": np.float32, "double": np.float64, "int": np.intc}
    x, table = model.rows(), model.table
    batch = {"x": x.flatten(1).cpu().numpy()} if table is None else encoded_inputs(table, x)
    inputs = [np.ascontiguousarray(batch[k], kinds[kind]) for k, kind in header.given.items()]
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "student.c", Path(folder) / "student.so"
        source.write_text(text + "\n" + call, encoding="utf-8")
        command = [compiler, "-O1", "-std=c99", "-shared", "-fPIC", str(source), "-o", str(library)]
        done = subprocess.run([*command, "-lm"], capture_output=True, text=True, check=False)
        if done.returncode:
            reason = (done.stderr.strip() or "no reason").splitlines()[0]
            raise LimbeckError(f"export: {compiler} cannot compile the header ({reason})")
        function = ctypes.CDLL(str(library)).run
    y = np.full((len(inputs[0]), header.outputs), np.nan, kinds[header.real])
    for row in range(len(y)):
        function(*(ctypes.c_void_p(array[row].ctypes.data) for array in (*inputs, y)))
    with evaluating(model.module), torch.no_grad():
        expected = model.module(x).reshape(len(y), -1)
    return {path: text.encode()}, relative_difference(torch.as_tensor(y), expected.cpu())


def prefix(stem: str) -> str:
    r"""The beginning of all names in the header of a file.

    >>> prefix("my student-2"), prefix("2*/ int")
    ('my_student_2', 'student_2_int')
    """
    name = re.sub(r"[\W_]+", "_", stem, flags=re.ASCII).strip("_")
    return name if name[:1].isalpha() else f"student_{name}".rstrip("_")


def remark(text: object) -> str:
    r"""Text within a comment, which cannot end it.

    >>> remark("*/ #include")
    '%2a/ #include'
    """
    line = visible(" ".join(str(text).split()))
    return re.sub(r"[*?\\]", lambda sign: f"%{ord(sign[0]):02x}", line)


def c_arguments(model: Portable) -> dict[str, str]:
    r"""The arguments of a header's function, with their types; y is for the answers."""
    real, table = "double" if model.like().dtype == torch.float64 else "float", model.table
    if table is None:
        return {"x": "double" if model.dtype == torch.float64 else "float", "y": real}
    number = "double" if real == "double" or is_wide(table) else "float"
    given = {"numbers": number} if table.numbers else {}
    return given | ({"codes": "int"} if categories_of(table) else {}) | {"y": real}


class _Header:
    r"""The text of a header: arrays of numbers, and the lines of the function that uses them."""

    def __init__(self, model: Portable, prefix: str) -> None:
        parts = parts_of(model.module)
        if parts is None or (model.table is None) != (parts.encoder is None):
            expected = "an MLP or Trees, alone or in Preprocessed; .onnx and .pt2 take others"
            raise LimbeckError(f"export: {model.name} has no C form; expected {expected}")
        self.model, self.parts, self.prefix = model, parts, prefix
        self.outputs = parts.outputs + parts.both  # the length of y
        self.arrays: list[str] = []
        self.lines: list[str] = []
        *given, (_, self.real) = c_arguments(model).items()
        self.given, self.f = dict(given), "f" if self.real == "float" else ""
        self.knots = 0 if isinstance(self.parts.network, Trees) else self.parts.knots
        inputs = (f"const {kind} *{name}" for name, kind in given)
        self.signature = ", ".join([*inputs, f"{self.real} *y"])

    def array(self, name: str, values: Any, kind: str | None = None) -> str:
        r"""Add an array; its name."""
        flat = np.asarray(values).ravel()
        kind = kind or ("int" if flat.dtype.kind in "iu" else self.real)
        limits = np.finfo(np.float64 if kind == "double" else np.float32)
        numbers = list(map(str, flat.tolist()))
        if kind != "int":
            digits, end = (17, "") if kind == "double" else (9, "f")
            texts = (f"{v:.{digits}g}" for v in flat.clip(limits.min, limits.max).tolist())
            numbers = [t + ("" if re.search("[.e]", t) else ".0") + end for t in texts]
        rows = (", ".join(numbers[k : k + 8]) for k in range(0, len(numbers), 8))
        name = f"{self.prefix}_{name}"
        self.arrays.append(f"static const {kind} {name}[{len(flat)}] = {{\n    "
                           + ",\n    ".join(rows) + "\n};")  # fmt: skip
        return name

    def each(self, n: int, line: str) -> None:
        r"""Add a line that is run for j from 0 to n - 1."""
        if n:
            self.lines.append(EACH.format(n=n) + line)

    def vector(self, kind: str, name: str, n: int, expression: str) -> None:
        r"""Add an array of n numbers, each given by an expression in j."""
        self.lines.append(f"{kind} {name}[{n}];")
        self.each(n, f"{name}[j] = {expression};")

    def apply(self, kind: str, h: str, n: int) -> None:
        r"""Add the lines of a layer's kind."""
        lines = [line.format(h=h, n=n, f=self.f, real=self.real) for line in KINDS[kind]]
        self.lines += lines if len(lines) < 2 else ["{", *(f"    {line}" for line in lines), "}"]

    def text(self) -> str:
        r"""The whole header."""
        model, p, real = self.model, self.prefix, self.real
        trees = isinstance(self.parts.network, Trees)
        if self.parts.task is not None:
            self.lines.append("int bad = 0;")
        self._inputs()
        if self.parts.task is not None:
            self.lines += ["if (bad) {", "    " + EACH.format(n=self.outputs) + "y[j] = NAN;"]
            self.lines += ["    return;", "}"]
        h, n = self._trees() if trees else self._net()
        if self.parts.scales_outputs:
            scale = self.array("out_scale", self.parts.out_scale)
            shift = self.array("out_shift", self.parts.out_shift)
            self.each(n, f"{h}[j] = {h}[j] * {scale}[j] + {shift}[j];")
        self.apply(self.parts.answer, h, n)
        both = [f"y[0] = 1 - {h}[0];", f"y[1] = {h}[0];"]
        self.lines += both if self.parts.both else [EACH.format(n=n) + f"y[j] = {h}[j];"]
        function = f"static inline void {p}_predict({self.signature})"
        answers = model.form.replace("_", " ").replace("density", "densities")
        lines = [
            f"{model.name}; {MARK}, version {limbeck.__version__}.",
            "C99 or C++, with <math.h>; not with -ffast-math, since it has to notice NaN.", "",
            function, "", f"y: {answers}",
            *(f"y[{k}]: {remark(repr(name))}" for k, name in enumerate(model.classes or ())),
        ]  # fmt: skip
        if model.table is None:
            numbers = int(np.prod(model.shape or (1,)))
            lines.append(f"x: {numbers} numbers as they come; for NaN or infinity, y is NaN")
        else:
            lines += [f"{name}: {remark(text)}" for name, text in encoded_columns(model.table)]
        about = "\n".join(f" * {line}".rstrip() for line in lines)
        body = "\n".join(f"    {line}" for line in self.lines)
        blocks = [
            f"/*\n{about}\n */", f"#ifndef {p}_H\n#define {p}_H\n\n#include <math.h>",
            f"enum {{ {p}_outputs = {self.outputs} }};", *self.arrays,
            f"{function}\n{{\n{body}\n}}",
        ]  # fmt: skip
        if model.task == "classification":
            blocks.append(
                "/* The place of the most probable class in y; -1 if y is NaN. */\n"
                f"static inline int {p}_class(const {real} *y)\n{{\n    int best = 0;\n"
                f"    {EACH.format(n=self.outputs)}best = y[j] > y[best] ? j : best;\n"
                "    return y[0] == y[0] ? best : -1;\n}"
            )
        return "\n\n".join([*blocks, "#endif"]) + "\n"

    def _inputs(self) -> None:
        r"""The lines from inputs to numbers v in the precision of the student, and features f."""
        table, encoder, features = self.model.table, self.parts.encoder, self.parts.features
        n, given, origin = int(np.prod(self.model.shape or (1,))), "x[j]", self.parts.origin
        if table is not None and encoder is not None:
            n, columns = len(encoder.numbers), {c.key: k for k, c in enumerate(table.numbers)}
            place = [columns[number.key] for number in encoder.numbers]
            given = f"numbers[{self.array('place', place)}[j]]" if n else ""
            origin = np.array([table.numbers[k].origin for k in place])
        masks, check = 0 if encoder is None else len(encoder.masks), self.parts.task is not None
        if n:
            less = origin is not None and origin.any()
            given += f" - {self.array('origin', origin, 'double')}[j]" if less else ""
            self.vector(self.real, "v", n, f"({self.real})({given})")
        if masks:
            fill = self.array("fill", encoder.fill[:masks].tolist())  # type: ignore[union-attr]
            self.vector("int", "gone", masks, "v[j] != v[j]")
            self.each(masks, f"v[j] = gone[j] ? {fill}[j] : v[j];")
        value = "x[j]" if table is None else "v[j]"
        self.each(n if check else 0, f"bad |= !({value} - {value} == 0);")
        trees = encoder is not None and isinstance(self.parts.network, Trees)
        if self.knots:  # the first layer adds these up by itself
            assert features is not None
            features = NumberFeatures(*(part[: -self.knots] for part in features))
        wide = n if features is None else len(features.which)
        if width := encoder.width if encoder is not None and trees else wide + masks:
            self.lines.append(f"{self.real} f[{width}];")
        if features is None:
            self.each(n, "f[j] = v[j];")
        elif wide:
            names = ("shift", "scale", *(("low", "high") if features.clips else ()))
            shift, scale, *ends = (self.array(name, getattr(features, name)) for name in names)
            ordered = np.array_equal(features.which, np.arange(wide))
            at = "j" if ordered else f"{self.array('which', features.which)}[j]"
            self.each(wide, f"f[j] = (v[{at}] - {shift}[j]) / {scale}[j];")
            for end, sign in zip(ends, "<>", strict=False):
                self.each(wide, f"f[j] = f[j] {sign} {end}[j] ? {end}[j] : f[j];")
        self.each(masks, f"f[{wide} + j] = ({self.real})gone[j];")
        if encoder is not None and encoder.categories:
            self._codes(encoder, wide + masks)

    def _codes(self, encoder: TableEncoder, first: int) -> None:
        r"""The lines to codes c within bounds; for trees, and to the features f from `first` on."""
        categories, n = encoder.categories, len(encoder.categories)
        sizes = self.array("sizes", [category.size for category in categories])
        known = f"codes[j] >= 0 && codes[j] < {sizes}[j] + 2"
        self.vector("int", "c", n, f"{known} ? codes[j] : {sizes}[j]")  # another code is unknown
        gaps = self.array("gaps", [int(category.missing) for category in categories])
        if self.parts.task is not None:
            self.each(n, f"bad |= c[j] > {sizes}[j] && !{gaps}[j];")
        if isinstance(self.parts.network, Trees):
            keys = [category.key for category in categories]
            place, code = indicators(encoder, keys)
            if len(code):
                at, slot = self.array("indicated", place), self.array("slots", code)
                self.each(len(code), f"f[{first} + j] = c[{at}[j]] == {slot}[j];")
            first += len(code)
            for k, (key, embedding) in enumerate(self.parts.embeddings):
                value, n = self.array(f"place{k}", embedding), embedding.shape[1]
                self.each(n, f"f[{first} + j] = {value}[c[{keys.index(key)}] * {n} + j];")
                first += n

    def _net(self) -> tuple[str, int]:
        r"""The lines of a net; the name and number of its outputs."""
        x = "f"
        for number, (weight, bias, kind, tables) in enumerate(self.parts.layers, start=1):
            n, h = weight.shape[1], f"h{number}"
            width = -(-n // VECTOR) * VECTOR
            padding = ((0, 0), (0, width - n))
            b = self.array(f"bias{number}", np.pad(bias, padding[1:]))
            self.vector(self.real, h, width, f"{b}[j]")
            if self.knots and number == 1:
                weight = self._between_knots(weight, np.pad(weight, padding), h)
            if len(weight):
                w = self.array(f"weight{number}", np.pad(weight, padding))
                self.lines.append(f"for (int i = 0; i < {len(weight)}; ++i)")
                self.each(width, f"{h}[j] += {x}[i] * {w}[i * {width} + j];")
            if tables:
                starts = np.cumsum([0, *map(len, tables)])[:-1]
                start = self.array("start", starts)
                rows = np.pad(np.concatenate(tables), padding)
                row = f"{self.array('category', rows)}[({start}[i] + c[i]) * {width} + j]"
                self.lines.append(f"for (int i = 0; i < {len(tables)}; ++i)")
                self.each(width, f"{h}[j] += {row};")
            self.apply(kind, h, n)
            x = h
        return x, n

    def _between_knots(self, weight: Any, padded: Any, h: str) -> Any:
        r"""The lines that add to h what features between knots do; the weights of all others.

        Of a number's features those below its place are 1 and those above are 0: it takes two rows
        of the sums of its weights, however many knots it has.
        """
        features: Any = self.parts.features
        first, end = len(features.which) - self.knots, len(features.which)
        which, width = features.which[first:], padded.shape[1]
        starts = np.flatnonzero(np.diff(which, prepend=which[0] - 1))
        groups = np.split(padded[first:end], starts[1:])
        rows = [np.pad(np.cumsum(group, 0), ((1, 0), (0, 0))) for group in groups]
        start, total = self.array("knot_start", [*starts, len(which)]), len(starts)
        lower = self.array("knot", features.shift[first:])
        distance = self.array("knot_distance", features.scale[first:])
        column = self.array("knot_column", which[starts])
        sums = self.array("knot_sum", np.vstack(rows))
        self.lines += [
            f"for (int i = 0; i < {total}; ++i) {{",
            f"    const {self.real} z = v[{column}[i]];",
            f"    int k = {start}[i];",
            f"    for (int l = {start}[i] + 1; l < {start}[i + 1]; ++l) k += z > {lower}[l];",
            f"    {self.real} t = (z - {lower}[k]) / {distance}[k];",
            "    t = t < 0 ? 0 : t > 1 ? 1 : t;",
            f"    const {self.real} *a = {sums} + (k + i) * {width};",
            f"    {EACH.format(n=width)}{h}[j] += a[j] + t * (a[{width} + j] - a[j]);",
            "}",
        ]  # fmt: skip
        return np.delete(weight, slice(first, end), 0)

    def _trees(self) -> tuple[str, int]:
        r"""The lines of trees: a step down each, by each of its levels; and their outputs."""
        trees: Any = self.parts.network
        leaf, n = trees.is_leaf.cpu().numpy(), trees.value.shape[1]
        below = np.where(leaf, -np.cumsum(leaf), trees.left.cpu().numpy())  # a leaf: -1, -2, ...
        column = trees.feature.cpu().numpy() % trees.inputs
        right = (trees.feature.cpu().numpy() >= trees.inputs).astype(int)  # where NaN goes
        left, feature = self.array("left", below), self.array("feature", column)
        nan = self.array("nan_right", right) if right.any() else ""
        cuts = np.where(leaf, 0, trees.threshold.cpu().numpy())
        threshold = self.array("threshold", cuts, "float")
        value = self.array("value", trees.value.detach().cpu().numpy()[leaf])
        roots, base = (self.array(k, getattr(trees, k).cpu().numpy()) for k in ("roots", "base"))
        aside = f" || (z != z && {nan}[node])" if nan else ""
        self.lines += [
            f"{self.real} h[{n}];", EACH.format(n=n) + f"h[j] = {base}[j];",
            f"for (int i = 0; i < {len(trees)}; ++i) {{",
            f"    int node = {roots}[i];",
            f"    while ({left}[node] >= 0) {{",
            f"        const float z = (float)f[{feature}[node]];",
            f"        node = {left}[node] + (z > {threshold}[node]{aside});",
            "    }",
            f"    {EACH.format(n=n)}h[j] += {value}[(-1 - {left}[node]) * {n} + j];",
            "}",
        ]  # fmt: skip
        if trees.kind == "labels":
            self.apply("log_odds", "h", n)
        return "h", n
