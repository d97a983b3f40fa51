r"""One row at a time: every form of a student beside compiled forms of its teacher.

The teacher is a LightGBM classifier of 200 trees, the student a net with 50 and 30 hidden units, on
40 columns: all numbers, or 30 numbers and 10 columns of strings, with gaps. Every form predicts one
row with one thread, in turn, round after round. Forms of the teacher get encoded numbers. Those of
libraries that are not installed are left out, with the reason. Microseconds are the least and the
median of the rounds, of CPU time: a call of 50 microseconds, made 50 times, is longer than a busy
machine's slice of time, and the wall clock then counts what others do. The header's are of a loop
in C.

    python benchmarks/serving.py [--out experiments/results/serving.json]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import runpy
import subprocess
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import onnxruntime
import pandas as pd
import torch
from timing import side_by_side

import limbeck as lb
from limbeck.export.parts import encoded_inputs
from limbeck.export.table_onnx import feeds

COLUMNS, ROWS, TREES, HIDDEN = 40, 4000, 200, (50, 30)
TABLES = {"40 numbers": 0, "30 numbers, 10 columns of strings": 10}
# the header in a loop over rows, which prints nanoseconds a row
LOOP = """
#include <stdio.h>
#include <time.h>
#include "student.h"
{arrays}
int main(void)
{{
    float y[student_outputs], sum = 0;
    struct timespec a, b;
    for (int round = 0; round < {rounds}; ++round) {{
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
        for (int i = 0; i < 200 * {rows}; ++i) {{
            student_predict({arguments}, y);
            sum += y[0];
        }}
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
        const double ns = 1e9 * (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec);
        printf("%.9g\\n", ns / (200 * {rows}));
    }}
    fprintf(stderr, "%g", (double)sum);
    return 0;
}}
"""


def frame(strings: int, seed: int = 0) -> pd.DataFrame:
    r"""Rows of numbers, whole numbers and strings, some with gaps."""
    g = np.random.default_rng(seed)
    columns: dict[str, Any] = {}
    for k in range(COLUMNS - strings):
        values = g.normal(size=ROWS) if k % 3 else g.integers(0, 50, ROWS)
        columns[f"number {k}"] = (
            np.where(g.random(ROWS) < 0.1, np.nan, values) if k % 5 == 0 else values
        )
    for k in range(strings):
        values = pd.Series(g.choice([f"value {j}" for j in range(5 + 3 * k)], ROWS))
        columns[f"string {k}"] = values.mask(g.random(ROWS) < 0.1) if k % 3 == 0 else values
    return pd.DataFrame(columns)


def matrix(df: pd.DataFrame, schema: pd.DataFrame) -> np.ndarray:
    r"""Columns as numbers: strings by their place among those of the schema."""
    columns = []
    for name in schema:
        if name.startswith("string"):
            known = sorted(schema[name].dropna().unique())
            columns.append(df[name].map({v: k for k, v in enumerate(known)}).to_numpy(float))
        else:
            columns.append(df[name].to_numpy(float))
    return np.column_stack(columns)


def session(file: Any) -> onnxruntime.InferenceSession:
    r"""A session of one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def header_times(result: lb.Compressed, df: pd.DataFrame, folder: Path, rounds: int) -> list[float]:
    r"""Microseconds a row of the C header, one number for each round."""
    result.export(folder / "student.h", card=False)
    table = result.row_format.table
    inputs = encoded_inputs(table, table.encode(df.iloc[:200]))
    arrays, arguments = [], []
    for name, array in inputs.items():
        kind, (rows, width) = "int" if name == "codes" else "float", array.shape
        numbers = ", ".join("NAN" if v != v else repr(v) for v in array.ravel().tolist())
        arrays.append(f"static const {kind} all_{name}[] = {{{numbers}}};")
        arguments.append(f"all_{name} + i % {rows} * {width}")
    text = LOOP.format(
        arrays="\n".join(arrays), arguments=", ".join(arguments), rows=200, rounds=rounds
    )
    (folder / "loop.c").write_text(text)
    command = ["gcc", "-O3", "-std=gnu99", "loop.c", "-o", "loop", "-lm"]
    subprocess.run(command, cwd=folder, check=True)
    done = subprocess.run([folder / "loop"], capture_output=True, text=True, check=True)
    return [float(line) / 1000 for line in done.stdout.split()]


def teacher_forms(model: Any, row: np.ndarray, folder: Path) -> dict[str, Any]:
    r"""Calls of the teacher's own compiled forms, or why there is none."""
    single = row.astype(np.float32)

    def by_onnxmltools() -> Callable[[], object]:
        from onnxmltools import convert_lightgbm
        from onnxmltools.convert.common.data_types import FloatTensorType

        kinds = [("x", FloatTensorType([None, COLUMNS]))]
        run = session(
            convert_lightgbm(model, initial_types=kinds, zipmap=False).SerializeToString()
        )
        return lambda: run.run(None, {"x": single})

    def by_lleaves() -> Callable[[], object]:
        import lleaves

        model.booster_.save_model(folder / "teacher.txt")
        compiled = lleaves.Model(model_file=str(folder / "teacher.txt"))
        compiled.compile()
        return lambda: compiled.predict(row, n_jobs=1)

    def by_treelite() -> Callable[[], object]:
        import tl2cgen
        import treelite

        forest = treelite.frontend.from_lightgbm(model.booster_)
        library = folder / "teacher.so"
        tl2cgen.export_lib(
            forest, toolchain="gcc", libpath=str(library), params={"parallel_comp": 2}
        )
        predictor = tl2cgen.Predictor(str(library), nthread=1)
        given = tl2cgen.DMatrix(single, dtype="float32")
        return lambda: predictor.predict(given)

    ways = {"onnxmltools": by_onnxmltools, "lleaves": by_lleaves, "treelite": by_treelite}
    forms: dict[str, Any] = {}
    for name, way in ways.items():
        try:
            forms[f"teacher: {name}"] = way()
        except Exception as error:  # of any library: the others are still measured
            forms[f"teacher: {name}"] = f"{type(error).__name__}: {str(error).splitlines()[:1]}"
    return forms


def measure(strings: int, folder: Path, rounds: int) -> dict[str, Any]:
    r"""Microseconds of all forms, on one table."""
    df = frame(strings)
    x = matrix(df, df)
    y = (np.nan_to_num(x[:, 1]) + np.nan_to_num(x[:, 2]) * (np.nan_to_num(x[:, 0]) > 20)) > 0
    model = lightgbm.LGBMClassifier(n_estimators=TREES, num_threads=1, verbose=-1).fit(
        x, y.astype(int)
    )
    result = lb.compress(
        lambda rows: model.predict_proba(matrix(rows, df)), df, student=HIDDEN, inputs="data",
        pool=ROWS, steps=500, task="classification", classes=["no", "yes"], table=lb.Table(df),
        device="cpu", progress=False,
    )  # fmt: skip
    table, one, given = result.row_format.table, df.iloc[3:4].copy(), x[3:4]
    named = session(result.export(folder / "named.onnx", card=False))
    encoded = session(result.export(folder / "encoded.onnx", card=False, columns="encoded"))
    script = result.export(folder / "numpy", card=False) / "predict.py"
    predict = runpy.run_path(str(script))["predict"]
    by_name, by_code = feeds(table, one), feeds(table, one, "encoded")
    lists = {
        name: [None if pd.isna(v) else v for v in column.tolist()] for name, column in one.items()
    }
    filled = np.nan_to_num(x)
    plain = lb.compress(
        lambda rows: model.predict_proba(rows), filled, student=HIDDEN, inputs="data", pool=ROWS,
        steps=500, task="classification", classes=["no", "yes"], device="cpu", progress=False,
    )  # fmt: skip
    array = filled[3:4]
    calls: dict[str, Any] = {
        "student: ONNX, encoded": lambda: encoded.run(None, by_code),
        "student: ONNX, named columns": lambda: named.run(None, by_name),
        "student: NumPy script, dict": lambda: predict(lists),
        "student: NumPy script, frame": lambda: predict(one),
        "student: predict(frame)": lambda: result.predict(one),
        "student: predict(array)": lambda: plain.predict(array),
        "teacher: predict_proba(array)": lambda: model.predict_proba(given),
    }
    calls |= teacher_forms(model, given, folder)
    absent = {name: why for name, why in calls.items() if isinstance(why, str)}
    times = side_by_side(
        {k: v for k, v in calls.items() if k not in absent}, rounds=rounds, clock=time.process_time
    )
    took = {name: [1e6 * t for t in seconds] for name, seconds in times.items()}
    took["student: C header"] = header_times(result, df, folder, rounds)
    figures = {
        name: {"least": float(f"{min(t):.3g}"), "median": float(f"{np.median(t):.3g}")}
        for name, t in sorted(took.items(), key=lambda form: min(form[1]))
    }
    return {"microseconds": figures, "left out": absent}


def main() -> None:
    r"""Measure both tables and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("experiments/results/serving.json"))
    parser.add_argument("--rounds", type=int, default=21)
    options = parser.parse_args()
    torch.set_num_threads(1)
    record: dict[str, Any] = {
        "processor": platform.processor() or platform.machine(), "threads": 1,
        "torch": torch.__version__, "onnxruntime": onnxruntime.__version__,
        "python": platform.python_version(), "date": datetime.now(UTC).date().isoformat(),
        "load": os.getloadavg()[0], "student": list(HIDDEN), "teacher": f"LightGBM, {TREES} trees",
    }  # fmt: skip
    for name, strings in TABLES.items():
        with tempfile.TemporaryDirectory() as folder:
            record[name] = measure(strings, Path(folder), options.rounds)
        print(json.dumps({name: record[name]}, indent=1), flush=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
