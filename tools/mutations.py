r"""Mutation testing: insert random small faults into the mathematics and count those detected.

    python tools/mutations.py --number 200 --workers 2 --out mutations.json

Each fault changes one operator, comparison, sign, constant or function name of one line. The test
files that name something of the changed module are run, until one test fails.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).parent.parent
PACKAGES = ("losses", "distributions", "samplers", "models", "normalization", "condensation")
SINGLE = ("evaluation.py", "outputs.py", "supports.py", "inputs/combined.py",
          "training/objective.py", "training/update.py", "training/schedules.py",
          "training/loop.py")  # fmt: skip
OPERATORS = {ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*")}
COMPARISONS = {ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">")}
NAMES = {"exp": "expm1", "log": "log1p", "sum": "mean", "mean": "sum", "max": "min", "min": "max",
         "sin": "cos", "sqrt": "abs", "logsumexp": "amax", "softplus": "relu", "cumsum": "flip",
         "var": "std", "std": "var", "sigmoid": "tanh", "square": "abs"}  # fmt: skip


def sites(path):
    r"""Every (start, end, replacement) of a file, in characters of its text."""
    text = path.read_text(encoding="utf-8")
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    raw = text.encode()

    def at(line, column):
        return starts[line - 1] + column

    def between(left, right, old, new):
        begin, end = at(left.end_lineno, left.end_col_offset), at(right.lineno, right.col_offset)
        place = raw[begin:end].find(old.encode())
        if place >= 0 and raw[begin:end].count(old.encode()) == 1:
            yield begin + place, begin + place + len(old), new

    strings = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert | ast.arguments):
            strings.update(id(inner) for inner in ast.walk(node))
        if id(node) in strings:
            continue
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            if any(
                isinstance(n, ast.Constant | ast.JoinedStr)
                and not isinstance(getattr(n, "value", 0), int | float)
                for n in (node.left, node.right)
            ):
                continue  # text
            yield from between(node.left, node.right, *OPERATORS[type(node.op)])
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
            yield from between(node.left, node.comparators[0], *COMPARISONS[type(node.ops[0])])
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            yield at(node.lineno, node.col_offset), at(node.lineno, node.col_offset) + 1, ""
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in NAMES:
                end = at(node.func.end_lineno, node.func.end_col_offset)
                yield end - len(node.func.attr), end, NAMES[node.func.attr]
        elif isinstance(node, ast.Constant) and type(node.value) is float and node.value:
            begin, end = at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset)
            yield begin, end, repr(2 * node.value)


def tests_of(path):
    r"""The test files that name the module or what it exports, those of its own folder first."""
    relative = path.relative_to(ROOT / "src" / "limbeck")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = ast.ClassDef | ast.FunctionDef
    names = {n.name for n in tree.body if isinstance(n, kinds) and not n.name.startswith("_")}
    pattern = re.compile(rf"\b({'|'.join(sorted({*names, relative.stem}))})\b")
    package = relative.parts[0].removesuffix(".py")
    hits = []
    for test in sorted((ROOT / "tests").rglob("test_*.py")):
        number = len(pattern.findall(test.read_text(encoding="utf-8")))
        own = package in test.relative_to(ROOT).parts
        if number >= (1 if own else 3) and "cli" not in test.parts and "report" not in test.parts:
            hits.append((not own, -number, str(test.relative_to(ROOT))))
    if not hits:  # a module of private functions: all of its package's tests
        hits = [
            (0, 0, str(t.relative_to(ROOT))) for t in (ROOT / "tests" / package).rglob("test_*.py")
        ]
    return [name for *_, name in sorted(hits)[:12]]


def judge(mutant, trees, seconds, selected):
    path, (begin, end, new) = mutant
    tree = trees.get()
    target = tree / path.relative_to(ROOT)
    raw = path.read_bytes()
    line = raw[:begin].count(b"\n") + 1
    record = {"file": str(path.relative_to(ROOT)), "line": line,
              "old": raw[begin:end].decode(), "new": new}  # fmt: skip
    try:
        target.write_bytes(raw[:begin] + new.encode() + raw[end:])
        tests = tests_of(path)
        options = [
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:benchmark",
            "--tb=line",
            *selected,
        ]
        environment = os.environ | {"PYTHONPATH": f"{tree}/src", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "pytest", *options, *tests]
        began = time.monotonic()
        try:
            done = subprocess.run(
                command, cwd=tree, env=environment, capture_output=True, text=True, timeout=seconds
            )
            record["noticed"] = "yes" if done.returncode in (1, 2) else "no"
            record["returncode"] = done.returncode
            record["tail"] = done.stdout[-300:]
        except subprocess.TimeoutExpired:
            record["noticed"] = "time"
        record["seconds"] = round(time.monotonic() - began, 1)
        record["tests"] = len(tests)
    finally:
        target.write_bytes(raw)
        trees.put(tree)
    return record


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=180.0, help="of each mutant's tests")
    parser.add_argument("--without", default="", help="tests to leave out, as in pytest's -k")
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    source = ROOT / "src" / "limbeck"
    files = [source / name for name in SINGLE]
    files += [path for package in PACKAGES for path in sorted((source / package).rglob("*.py"))]
    every = [
        (path, site) for path in files if path.exists() and "triton" not in path.name
        for site in sites(path)
    ]  # fmt: skip
    mutants = random.Random(chosen.seed).sample(every, chosen.number)
    trees: Queue[Path] = Queue()
    folder = Path(tempfile.mkdtemp())
    skipped = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".mypy_cache", "data", "carry")
    for k in range(chosen.workers):
        shutil.copytree(ROOT, folder / str(k), ignore=skipped, symlinks=True)
        trees.put(folder / str(k))
    records = []
    selected = ["-k", f"not ({chosen.without})"] if chosen.without else []
    with ThreadPoolExecutor(chosen.workers) as pool:
        for record in pool.map(lambda m: judge(m, trees, chosen.seconds, selected), mutants):
            records.append(record)
            chosen.out.write_text(json.dumps({"sites": len(every), "mutants": records}, indent=1))
    shutil.rmtree(folder, ignore_errors=True)
    counts = {k: sum(r["noticed"] == k for r in records) for k in ("yes", "no", "time")}
    print(f"{len(every)} sites, {len(records)} mutants: {counts}")


if __name__ == "__main__":
    main()
