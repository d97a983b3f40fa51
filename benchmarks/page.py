r"""Make docs/benchmarks.md from the results under benchmarks/results.

python benchmarks/page.py
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from page_compress import compress_table
from page_lines import heading, lines, short
from page_posteriors import condense_table, evidence_rivals_table, evidence_table
from page_tables import serving_table, tables_table

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "benchmarks.md"

UNITS = {"microseconds": "µs", "milliseconds": "ms", "seconds": "s", "megabytes": "MB"}

HEAD = """\
# Benchmarks

Timings are ratios measured side by side in one process: all candidates take turns in every round,
and the median of the rounds' ratios is reported. `python benchmarks/page.py` makes this page from
the files under `benchmarks/results`.
"""

STEP = """\
## One step of the loop

`make bench` runs these. The student is 784-50-30-10, the batch size 20, the optimizer ADADELTA,
and the teacher's targets are computed before training. *CE* is cross entropy, *DSE* the derivative
square error; *the usual loop* is zero_grad, backward, step in plain PyTorch. A step of limbeck is
one complete iteration of its loop: draw, teacher, loss, gradient, check for non-finite numbers,
optimizer, bookkeeping.
"""

NADE = """\
## NADE

`python benchmarks/nade.py`: NADE(784, 500) with batch size 20. *Usual* is a direct implementation
in PyTorch: a cumulative sum over inputs with autograd, and a Python loop over pixels for sampling.
On a GPU, a whole iteration is that of the source text: advance 2,000 chains, use 20 of them,
compute value and gradient, take a step of ADADELTA.
"""

LOG_Z = """\
## log Z of CD25(500)

`python benchmarks/log_z.py --data DIR`: seconds until three standard errors fall to the given
size, in one run. *AIS* anneals all chains together on the 2008 schedule; *existing student* is
bridge sampling with an existing NADE; *with distillation* includes the time to train it. Estimates
that are not marked trustworthy do not count.
"""

COMPRESS = """\
## Compressing

`python benchmarks/compress.py`: a forest of 300 trees, and boosted trees of 300 iterations, are
compressed into a net (32, 16), a tree of 64 leaves and a small boosted forest, with the same
settings for all data sets. Figures are accuracies, or R² for the last two data sets: means over
the folds of a repeated cross-validation. *Retention* is the student's measure divided by the
teacher's; *agreement* is the student's measure with the teacher's predictions as labels; *labels
only* is the same student trained without a teacher. *Faster* is at batch size 1, in torch and as
an ONNX file; *smaller* is in bytes. *By hand* is the same net trained in a plain PyTorch loop on
the teacher's predictions at the training rows; *AutoGluon* (`--autogluon PYTHON`) is its own
distillation of the same teacher into a net with about as many weights. Both hold out rows and
choose the weights that do best on them, AutoGluon by the true labels.
"""

REAL_TABLES = """\
## Real tables

`python benchmarks/tables.py`: tables that come with packages, at most 20,000 rows of each, and one
teacher a table; `compress` with its defaults. Figures are means over the test rows of the folds.
*Fidelity* is agreement with the teacher, or R² to it; *distance* is KL, or 1 − R². *Labels* is a
small LightGBM of the true labels alone, in a file no larger than the student, *soft labels* one of
the teacher's outputs. *Loss* is the log loss on true labels, or 1 − R²; its difference from the
teacher's has an error over test rows. *AP retained* is the student's average precision of the
rarest class divided by the teacher's. CPU seconds are those of `compress`. Where the teacher is a
LightGBM, the model of the labels is the same algorithm on the same rows, and may follow the same
noise. Defaults were chosen while looking at the first of the folds: in part at its test rows. Two
rules came after other folds had shown the need of them: that numbers beyond the range of the rows
count as its ends (diamonds rare), and that a net which is near at rows but not at mixtures of them
gives way to a nearer forest (DoctorContacts).
"""

SERVING = """\
## One row at a time

`python benchmarks/serving.py`: every form of a student (50, 30) beside compiled forms of its
teacher, on 40 columns, with one thread. Figures are CPU time, medians of rounds; those of the
header are of a loop in C. Forms of the teacher get encoded numbers.
"""

PREDICT = """\
## Condensing: predictions

`python benchmarks/predict.py`: the source text's logistic regression with 24 points. Predictions
for 1,000 inputs from N(0, 10·I) are computed from all posterior draws, from bags of pseudo-draws,
and from EP's Gaussian with vectorised quadrature or MacKay's approximation. *Bag* is its closed
form (a matrix product, sigmoids and a second product); *as a distribution* is the call of
limbeck's student, which returns a distribution object. Errors are those of p(y = 1), compared with
exact quadrature over the weights.
"""

MEMORY = """\
## Condensing: memory

`python benchmarks/memory.py`: the peak resident memory of a separate Python process, in millions
of bytes, and the part of it that was allocated after importing torch and limbeck (half of that is
torch too, which loads some parts at first use). Chains run while their draws are distilled; the
posteriors of several gigabytes are generators.
"""

SLICE = """\
## The slice sampler

`python benchmarks/slice.py`: chain-sweeps per second on the posterior of the same 24 points. One
sweep updates both weights, with stepping out. BlackJAX's coordinate-wise sampler is compiled and
runs with the same widths on the same posterior.
"""

CONDENSE = """\
## Condensing: predictions at new inputs

`python benchmarks/condense.py`: posteriors of eleven models are represented by a few components,
and the score is the mean of KL(average over all draws ‖ average of the components) at inputs that
no method has seen. Columns *KL / …* are ratios to random thinning (mean of ten), kernel thinning
(goodpoints, mean of three) and Stein thinning, with bootstrap intervals over inputs; below 1
limbeck is nearer. *Streamed* is the same posterior as an iterator of batches, which gives the same
bag; this column was measured after the others, so that rounding may differ. Below are the verdicts
by what they were to find: students that are trustworthy above 0.01 nats are misses, doubtful ones
up to there false alarms.
"""

EVIDENCE = """\
## Evidence

`python benchmarks/evidence.py`: `lb.log_evidence` with its defaults, from 2,000 exact draws of
posteriors whose evidence is known by quadrature; fresh draws for each repeat. *Gaussian bridge*
is a bridge with one Gaussian fitted to half of the draws, *Student t* importance sampling with a
fitted one; of both, the rms error over the same repeats. Regressions are those of posteriordb.
Seconds are CPU seconds.
"""

EVIDENCE_RIVALS = """\
### Beside other libraries

`python benchmarks/evidence_rivals.py`, from the same draws and repeats as above, as real numbers:
*harmonic* 1.3 learns its spline flow (its own settings, standardized, 50 epochs) from half of the
draws; *morphZ* 0.4 has 5,000 samples and groups of two and of three parameters, of which the
estimate with the smaller error by its own account counts. harmonic evaluates the density at the
draws alone; morphZ calls it for one point at a time. Seconds are medians of CPU seconds, without
the 5 to 15 that harmonic compiles in the first repeat. Five times its epochs, at three times the
seconds, took two of its errors on the shells of d = 2 from 0.44 to 0.15 and 0.30. Between two rms
errors of five repeats, a factor below 2.2 may be chance.

In the second table all methods sample by themselves: *dynesty* 3.1 by random walks with 500 live
points, *nautilus* 1.0 with 1,000, from the posterior's prior or a wide box with the same
normalizer; limbeck by 100 chains of HMC that begin at draws of that prior. These chains do not
pass between the modes of the shells and of the mixture model, and a few that begin far out, on the
shells and eight schools, never move: limbeck says so and calls these estimates doubtful. Nested
sampling finds the modes by itself, and evaluates the density at least 15 times less often, which
counts where that is expensive. Here it is cheap: dynesty has it of one point at a time, nautilus
and limbeck of many, limbeck's gradients included. nautilus reports no standard error; 1 / √n_eff
is taken. It is about as accurate as limbeck, on the shells more so, at two to seven times the CPU
seconds. dynesty's error falls with more live points, at a cost in proportion.
"""

PARTS = {
    "step": STEP,
    "nade": NADE,
    "log_z": LOG_Z,
    "compress": COMPRESS,
    "predict": PREDICT,
    "memory": MEMORY,
    "slice": SLICE,
    "condense": CONDENSE,
    "evidence": EVIDENCE,
    "evidence_rivals": EVIDENCE_RIVALS,
}


def table(path: Path) -> str:
    r"""The figures of one run as a section."""
    machine, *figures = (json.loads(line) for line in path.read_text().splitlines())
    rows = [
        heading(machine),
        "",
        "| figure | limbeck | usual | ratio | target |",
        "|---|---|---|---|---|",
    ]
    for figure in figures:
        took, unit = next((figure[unit], short) for unit, short in UNITS.items() if unit in figure)
        usual = f"{figure['usual']:.4g} {unit}" if "usual" in figure else ""
        ratio = f"{figure['ratio']:.2f}" if "ratio" in figure else ""
        target = figure.get("must", "")
        rows.append(f"| {figure['figure']} | {took:.4g} {unit} | {usual} | {ratio} | {target} |")
    return "\n".join([*rows, *(["", machine["note"]] if "note" in machine else [])])


def log_z_table(path: Path) -> str:
    r"""Seconds to each error, then every estimate behind them."""
    machine, *figures = (json.loads(line) for line in path.read_text().splitlines())
    rows = [
        f"### {machine['device']}, torch {machine['torch']}",
        "",
        "| three standard errors | AIS | existing student | with distillation | AIS / existing |",
        "|---|---|---|---|---|",
    ]
    for figure in figures:
        if "AIS" in figure:
            error = figure["figure"].rpartition(" ")[2]
            times = " | ".join(f"{figure[way]:.3g} s" for way in ("AIS", "bridge", "cold"))
            rows.append(f"| {error} | {times} | {figure['ratio']:.0f} |")
    rows += ["", "| method | | log Z | 3 s.e. | seconds | trustworthy |", "|---|" + "---|" * 5]
    for figure in figures:
        if "way" in figure:
            trusted = "yes" if figure["trustworthy"] else "**no**: " + "; ".join(figure["reasons"])
            rows.append(
                f"| {figure['way']} | {figure['what']} | {float(figure['log_z']):.3f} "
                f"| {figure['three_errors']:.3f} | {figure['seconds']:.3g} | {trusted} |"
            )
    return "\n".join(rows)


def predict_table(path: Path) -> str:
    r"""Time and error of every method of prediction."""
    return small_table(
        path,
        ("method", "time", "faster", "mean error", "largest error", "target"),
        lambda each: [
            each["figure"], f"{short(each['microseconds'])} µs", f"{short(each['ratio'])}×",
            f"{each['mean_error']:.4f}", f"{each['highest_error']:.4f}", each["must"],
        ],
    )  # fmt: skip


def memory_table(path: Path) -> str:
    r"""The peaks of every distillation."""
    return small_table(
        path,
        ("distillation", "peak", "after imports", "peak of the shorter chain", "ratio", "target"),
        lambda each: [
            each["figure"], f"{each['megabytes']:.0f} MB", f"{each['above_import']:.0f} MB",
            f"{each['usual']:.0f} MB" if "usual" in each else "",
            f"{each['ratio']:.3f}" if "ratio" in each else "", each["must"],
        ],
    )  # fmt: skip


def slice_table(path: Path) -> str:
    r"""Chain-sweeps per second by the number of chains."""
    rate = "chain_sweeps_a_second"
    return small_table(
        path,
        ("", "limbeck", "BlackJAX", "ratio", "evaluations per update", "target"),
        lambda each: [
            each["figure"], f"{each[f'limbeck_{rate}']:,.0f}",
            f"{each[f'blackjax_{rate}']:,.0f}" if "ratio" in each else "",
            f"{each['ratio']:.2f}" if "ratio" in each else "",
            f"{each['evaluations_an_update']:.2f}", each["must"],
        ],
    )  # fmt: skip


def small_table(
    path: Path, columns: tuple[str, ...], cells: Callable[[dict[str, Any]], list[str]]
) -> str:
    r"""One row for each figure that has a target."""
    machine, *figures = (json.loads(line) for line in path.read_text().splitlines())
    rows = [heading(machine), ""]
    rows += lines(columns, (cells(each) for each in figures if "must" in each))
    return "\n".join([*rows, *(["", machine["note"]] if "note" in machine else [])])


TABLES = {
    "log_z": log_z_table,
    "compress": compress_table,
    "predict": predict_table,
    "memory": memory_table,
    "slice": slice_table,
    "condense": condense_table,
    "evidence": evidence_table,
    "evidence_rivals": evidence_rivals_table,
}


def main() -> None:
    r"""Write the page."""
    sections = []
    for part, head in PARTS.items():
        if part == "predict":  # after what is compressed
            results = HERE.parent / "experiments" / "results"
            sections += [REAL_TABLES, tables_table(results / "tables" / "full")]
            sections += [SERVING, serving_table(results / "serving.json")]
        if files := sorted((HERE / "results").glob(f"{part}-*.json*")):
            sections += [head, *map(TABLES.get(part, table), files)]
    text = "\n\n".join(part.rstrip() for part in (HEAD, *sections))
    PAGE.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
