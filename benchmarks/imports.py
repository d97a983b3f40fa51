r"""How long importing takes: torch alone, limbeck, and what each of its names brings in.

    python benchmarks/imports.py [rounds] [names]

Every figure is processor time of a fresh interpreter beyond that of `import torch`, the median of
some rounds. Names are sorted by what their first use costs; without any, the verbs are taken.
"""

import statistics
import subprocess
import sys

CODE = """
import sys, time
began = time.process_time()
import torch
first = time.process_time()
{}
last = time.process_time()
heavy = [name for name in ("scipy", "sklearn", "pandas", "rich") if name in sys.modules]
print(first - began, last - first, *heavy)
"""

VERBS = ["MLP", "distill", "compress", "condense", "normalize", "DistilledClassifier"]

LIMIT = 0.3
r"""Seconds that `import limbeck` may take beyond `import torch`."""


def measured(statement, rounds):
    found, heavy = [], ()
    for _ in range(rounds):
        done = subprocess.run(
            [sys.executable, "-c", CODE.format(statement)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        torch_seconds, seconds, *heavy = done.stdout.split()
        found.append((float(torch_seconds), float(seconds)))
    return [statistics.median(column) for column in zip(*found, strict=True)], heavy


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    (torch_seconds, seconds), _ = measured("import limbeck", rounds)
    verdict = "within" if seconds <= LIMIT else "NOT within"
    print(f"import torch    {torch_seconds:6.3f} s")
    print(f"import limbeck  {seconds:6.3f} s more; {verdict} {LIMIT} s")
    names = sys.argv[2:] or VERBS
    costs = {name: measured(f"from limbeck import {name}", rounds) for name in names}
    print("\nfrom limbeck import …, seconds beyond torch, and what came along:")
    for name, ((_, cost), heavy) in sorted(costs.items(), key=lambda each: -each[1][0][1]):
        print(f"{name:25} {cost:6.3f}  {' '.join(heavy)}")


if __name__ == "__main__":
    main()
