r"""Mutation testing: insert random small faults into the mathematics and count those detected.

    python tools/mutations.py --number 200 --workers 2 --out mutations.json

First every test runs once under coverage, which records the tests of each line and their seconds.
Each fault then changes one operator, comparison, sign, constant or function name, and the tests
that execute its statement run, quick ones first, until one fails. `--tree` judges another checkout.
`--sources losses supports.py --tests losses models` judges a part of the mathematics by a part of
the tests, within minutes. Needs the package coverage.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

TREE = Path(__file__).parent.parent
WITHOUT = {"cli", "report", "browser", "examples", "experiments", "reproduction", "oracles"}
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


class Recorder:
    r"""A pytest plugin: each test is a context of coverage, with its outcome and its seconds."""

    def __init__(self, coverage):
        self.coverage, self.seconds = coverage, {}

    def pytest_runtest_logstart(self, nodeid, location):
        self.coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report):
        if report.when == "call" and report.passed:
            self.seconds[report.nodeid] = report.duration


def record(out, tests):
    r"""Run test files: {file: {line: [test]}}, and {test: seconds} of those that pass."""
    import coverage
    import pytest

    measured = coverage.Coverage(data_file=None, source=["src/limbeck"], config_file=False)
    recorder = Recorder(measured)
    measured.start()
    options = ["-q", "-p", "no:cacheprovider", "--tb=no", "-m", "not slow and not browser"]
    pytest.main([*options, *tests], plugins=[recorder])
    measured.stop()
    data = measured.get_data()
    lines = {
        str(Path(name).relative_to(Path.cwd())): data.contexts_by_lineno(name)
        for name in data.measured_files()
    }
    out.write_text(json.dumps({"lines": lines, "seconds": recorder.seconds}))


def run(tree, arguments, timeout=None):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([f"{tree}/src", os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *arguments], cwd=tree, env=environment, capture_output=True, text=True,
        timeout=timeout,
    )  # fmt: skip


def measure(tree, folder, workers, only):
    r"""The tests of each line of the tree, and the seconds of each test."""
    tests = [
        str(path.relative_to(tree)) for path in sorted((tree / "tests").rglob("test_*.py"))
        if not WITHOUT & set(path.parts) and path.parent.name != "tests"
        and (not only or only & {*path.relative_to(tree).parts})
    ]  # fmt: skip
    random.Random(0).shuffle(tests)
    parts = [tests[k :: 4 * workers] for k in range(4 * workers)]
    outputs = [folder / f"{k}.json" for k in range(len(parts))]
    with ThreadPoolExecutor(workers) as pool:
        list(
            pool.map(
                lambda k: run(
                    tree, [__file__, "--record", str(outputs[k]), "--out", "-", *parts[k]]
                ),
                range(len(parts)),
            )
        )
    lines, seconds = defaultdict(lambda: defaultdict(set)), {}
    for output in outputs:
        if not output.exists():
            continue
        part = json.loads(output.read_text())
        seconds.update(part["seconds"])
        for name, of_line in part["lines"].items():
            for line, contexts in of_line.items():
                lines[name][int(line)].update(contexts)
    return lines, seconds


def statement(path, line):
    r"""The lines of the innermost statement without a body of its own that holds `line`."""
    spans = [
        (node.end_lineno - node.lineno, node.lineno, node.end_lineno)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.stmt) and node.lineno <= line <= node.end_lineno
    ]
    size, first, last = min(spans)
    return range(first, last + 1) if size < 30 else range(line, line + 1)


def judge(mutant, trees, root, lines, seconds, limit):
    path, (begin, end, new) = mutant
    name = str(path.relative_to(root))
    raw = path.read_bytes()
    line = raw[:begin].count(b"\n") + 1
    judged = {"file": name, "line": line, "old": raw[begin:end].decode(), "new": new}
    covering = set().union(*(lines[name].get(k, ()) for k in statement(path, line)))
    tests = sorted((seconds[t], t) for t in covering if t in seconds)
    if not tests and "" in covering:  # executed at import: any test of the file
        every = set().union(*lines[name].values())
        tests = sorted((seconds[t], t) for t in every if t in seconds)
    chosen, total = [], 0.0
    for cost, test in tests:
        total += cost
        if chosen and (total > 0.6 * limit or len(chosen) >= 1000):
            break
        chosen.append(test)
    judged |= {"tests": len(chosen), "covering": len(tests)}
    if not chosen:
        return judged | {"noticed": "no", "seconds": 0.0}
    tree = trees.get()
    target = tree / name
    began = time.monotonic()
    try:
        target.write_bytes(raw[:begin] + new.encode() + raw[end:])
        options = ["-x", "-q", "-p", "no:cacheprovider", "--tb=line"]
        done = run(tree, ["-m", "pytest", *options, *chosen], timeout=limit)
        judged["noticed"] = "no" if done.returncode == 0 else "yes"
        judged |= {"returncode": done.returncode, "tail": done.stdout[-200:]}
    except subprocess.TimeoutExpired:
        judged["noticed"] = "time"
    finally:
        target.write_bytes(raw)
        trees.put(tree)
    return judged | {"seconds": round(time.monotonic() - began, 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=120.0, help="of each fault's tests")
    parser.add_argument(
        "--limit", type=float, default=float("inf"), help="seconds of the whole run"
    )
    parser.add_argument("--tree", type=Path, default=TREE)
    parser.add_argument("--sources", nargs="+", help="only these packages and files")
    parser.add_argument("--tests", nargs="+", default=[], help="only these folders and files")
    parser.add_argument("--record", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("files", nargs="*", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.record:
        return record(given.record, given.files)
    began = time.monotonic()
    root = given.tree.resolve()
    source = root / "src" / "limbeck"
    files = [source / name for name in SINGLE]
    files += [path for package in PACKAGES for path in sorted((source / package).rglob("*.py"))]
    if given.sources:
        chosen = [source / name for name in given.sources]
        files = [path for path in files if any(path.is_relative_to(each) for each in chosen)]
    every = [
        (path, site) for path in files if path.exists() and "triton" not in path.name
        for site in sites(path)
    ]  # fmt: skip
    mutants = random.Random(given.seed).sample(every, given.number)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        skipped = shutil.ignore_patterns(
            ".git", ".venv", "__pycache__", ".*_cache", "data", "carry"
        )
        trees: Queue[Path] = Queue()
        for k in range(given.workers):
            shutil.copytree(root, folder / str(k), ignore=skipped, symlinks=True)
            trees.put(folder / str(k))
        lines, seconds = measure(folder / "0", folder, given.workers, set(given.tests))
        print(f"{len(seconds)} tests in {time.monotonic() - began:.0f} s", flush=True)
        judged = []

        def one(mutant):
            if time.monotonic() - began > given.limit:
                return
            judged.append(judge(mutant, trees, root, lines, seconds, given.seconds))
            given.out.write_text(json.dumps({"sites": len(every), "mutants": judged}, indent=1))

        with ThreadPoolExecutor(given.workers) as pool:
            list(pool.map(one, mutants))
    counts = {k: sum(r["noticed"] == k for r in judged) for k in ("yes", "no", "time")}
    print(f"{len(every)} sites, {len(judged)} faults judged: {counts}")


if __name__ == "__main__":
    main()
