r"""Make docs/reproduction.md and its pictures from the results under experiments/results.

python experiments/page.py
"""

from __future__ import annotations

import json
import runpy
import statistics
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the root, for `reproduction`
from reproduction import chapter2_output, chapter2_page, chapter3_page, chapter3_pictures, page
from reproduction.chapter2 import CELLS
from reproduction.chapter2_page import MEASURES, SHARES
from reproduction.chapter4_pictures import pictures
from reproduction.thesis import AIS_2008, LOG_Z
from reproduction.thesis import CHAPTER_2 as PRINTED

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
CHAPTER_2 = HERE / "results" / "chapter-2.json"
BEST_STUDENT = HERE / "results" / "best-student.json"
NOISE = HERE / "results" / "noise.json"
NOISE_HE = HERE / "results" / "noise-he.json"
CHAPTER_3 = HERE / "results" / "chapter-3.json"
CHAPTER_4 = HERE / "results" / "chapter-4.json"
DARK_KNOWLEDGE = HERE / "results" / "dark-knowledge.json"
COVERAGE = HERE / "results" / "coverage.json"
STUDENTS = HERE / "results" / "students.json"

PROMISE = """\
## Do the error bars hold?

Of 95% intervals, about 95 in 100 should contain the true value. This is checked on {models} small
RBMs whose log Z is known exactly, with couplings from weak to strong and students from poor to
good (independent bits, NADEs after 30 and 300 steps, a NADE with noise on its weights, one with
the RBM's own weights), with {samples:,} samples of each kind. z is the error divided by the
standard error; its standard deviation should be one. The thresholds of the verdicts were chosen on
other RBMs of the same kind. Reproduce it with `python experiments/coverage.py` ({seconds:.0f} s on
{cores} cores).
"""

BEST = """\
### The best student

The best result for a net of the size of the text's student, with all of limbeck's options (`python
experiments/best_student.py --data DIR`). Its inputs are rotated, shifted, stretched and bent
copies of the images; *pool* in the table is the number of copies that the teacher labels before
training. Adam uses a cosine schedule. Settings were chosen by log probability on 10,000 training
images that no student of the search was trained on (the teacher was), among {searched} trials;
then {seeds} seeds were trained and measured once on the test set, on {hardware}. The teacher
reaches {accuracy:.2f}% and {log_prob:.4f}. Where labels are used, part of the loss uses the true
labels of the images for their copies. The teacher was not trained on copies, so labels add
information there.
"""


FAR = """\
### Why noise differs

Noise is far from all images, and there a teacher's predictions depend mostly on its initial
weights: the images vary in few directions, and training hardly changes the weights in the others.
The table shows smaller teachers ({members} nets {hidden}, {teacher_steps:,} steps) whose initial
weights are a fraction of He's, and students trained for {steps:,} steps with cross entropy on
noise, means over {seeds} seeds (`python experiments/noise.py --data DIR`):
"""

STARTS = """\
The text does not say how its nets were initialised. Its published code draws normal weights and
biases with variance 1 / (inputs + 1), about 0.7 times He's weights; the tables above do the same.
With He's weights (`python -m reproduction chapter-2 --init he`), students trained on noise are
worse. For cross entropy, the remaining gap is one and a half to two standard deviations of our
seeds. For derivatives with a tenth of the images, the gap in log probability is not explained. All
our seeds share one teacher, and so do the text's single runs. Students trained on noise with
derivatives do not converge: the curves above vary by 0.2 nats and more between evaluations, and
the tables show only the last one.
"""

NEARER = """\
## Students closer to the RBM

These students start at the RBM's weights and are trained by Adam on batches of {batch} for a given
time ({hardware}; `python experiments/students.py --data DIR --expected --bridge`). Their targets
are the RBM's p(x_i | h) instead of x_i, which gives gradients with the same mean and less noise.
The upper bound is log Z + KL(p ‖ q), the lower one log Z − KL(q ‖ p); bridge sampling uses
{samples:,} + {samples:,} samples. *deep* is a `DeepNADE`: a NADE whose hidden units feed a net
with two layers of 1,000 units (*deep-small*: one layer of 500).
"""


def students() -> str:
    r"""How close students come to the RBM in a given time."""
    found = json.loads(STUDENTS.read_text(encoding="utf-8"))
    settings = found["settings"]
    head = NEARER.format(
        batch=settings["batch"], samples=settings["samples"], hardware=found["hardware"]
    )
    rows = [
        head,
        "| student | parameters | seconds | steps | upper bound | lower bound | log Z | 3 s.e. |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in found["students"]:
        upper, lower = (f"{each[side][0]:.3f} ± {each[side][1]:.3f}" for side in ("upper", "lower"))
        rows.append(
            f"| {each['student']} | {each['parameters']:,} | {each['seconds']:.0f} "
            f"| {each['steps']:,} | {upper} | {lower} | {each['log_z']:.3f} "
            f"| {each['three_errors']:.3f} |"
        )
    return "\n".join(rows)


def coverage() -> str:
    r"""How often intervals contain the true value, for each method."""
    found = json.loads(COVERAGE.read_text(encoding="utf-8"))
    cores = found["hardware"]["cores"]
    head = PROMISE.format(
        models=found["models"], samples=found["samples"], seconds=found["seconds"], cores=cores
    )
    rows = [
        head,
        "| method | marked trustworthy | covered, all | covered, trusted | sd of z, all "
        "| sd of z, trusted | largest z, trusted |",
        "|---|---|---|---|---|---|---|",
    ]
    for way, line in found["summary"].items():
        rows.append(
            f"| {way} | {line['trustworthy']:.1%} | {line['coverage_all']:.1%} "
            f"| {line['coverage_trusted']:.1%} | {line['z_sd_all']:.2f} "
            f"| {line['z_sd_trusted']:.2f} | {line['z_largest_trusted']:.1f} |"
        )
    return "\n".join(rows)


def chapter2() -> list[str]:
    r"""Chapter 2 with its pictures, if it was run."""
    if not CHAPTER_2.exists():
        return []
    found = json.loads(CHAPTER_2.read_text(encoding="utf-8"))
    folder = DOCS / "pictures" / "chapter-2"
    said = chapter2_output.pictures(found, folder)
    return [chapter2_page.section(found), *shown(said, folder), *noise(), *best_student()]


def chapter3() -> list[str]:
    r"""Chapter 3 with its pictures, if it was run."""
    if not CHAPTER_3.exists():
        return []
    found = json.loads(CHAPTER_3.read_text(encoding="utf-8"))
    folder = DOCS / "pictures" / "chapter-3"
    return [chapter3_page.section(found), *shown(chapter3_pictures.pictures(found, folder), folder)]


def noise() -> list[str]:
    r"""How students trained on noise depend on the teacher's initial weights, if it was run."""
    if not NOISE.exists():
        return []
    found = json.loads(NOISE.read_text(encoding="utf-8"))
    ask = found["settings"]
    hidden = "-".join(str(size) for size in (784, *ask["teacher_hidden"], 10))
    rows = [
        "| initial weights | teacher: accuracy | log probability | students: accuracy "
        "| log probability |",
        "|---|---|---|---|---|",
    ]
    for each in found["scales"]:
        taught, students = each["teacher"], each["students"]
        accuracy, log_prob = (
            statistics.mean(one[name] for one in students) for name in ("accuracy", "log_prob")
        )
        rows.append(
            f"| × {each['scale']:g} | {taught['accuracy']:.2f} | {taught['log_prob']:.4f} "
            f"| {accuracy:.2f} | {log_prob:.4f} |"
        )
    return [FAR.format(**ask | {"hidden": hidden}).rstrip(), "\n".join(rows), *starts()]


def starts() -> list[str]:
    r"""Full-size students trained on noise, by the initialisation of the nets, if both were run."""
    if not NOISE_HE.exists():
        return []
    found = [json.loads(path.read_text(encoding="utf-8")) for path in (CHAPTER_2, NOISE_HE)]
    rows = [
        "| images | loss | measure | text | as published | He's weights |",
        "|---|---|---|---|---|---|",
    ]
    for cell in CELLS.values():
        if cell.generator != "noise":
            continue
        for measure, words in MEASURES.items():
            cells = [
                spread([run[measure][0] for run in each["runs"] if run["cell"] == cell.name])
                for each in found
            ]
            text = f"{getattr(PRINTED[cell.name], measure).value:g}"
            row = (SHARES[cell.share], cell.loss.upper(), words, text, *cells)
            rows.append(f"| {' | '.join(row)} |")
    return [STARTS.rstrip(), "\n".join(rows)]


def spread(values: list[float]) -> str:
    r"""The mean over seeds, and their range."""
    return f"{statistics.mean(values):.4g} ({min(values):.4g} to {max(values):.4g})"


def best_student() -> list[str]:
    r"""The best small net, if the search was run."""
    if not BEST_STUDENT.exists():
        return []
    found = json.loads(BEST_STUDENT.read_text(encoding="utf-8"))
    teacher, final = found["teacher"], found.get("final", [])
    head = BEST.format(
        searched=sum(entry["phase"] == "search" for entry in found["trained"]),
        seeds=len(final[0]["test"]["accuracy"]) if final else 0, hardware=found["hardware"],
        accuracy=teacher["accuracy"][0], log_prob=teacher["log_prob"][0],
    )  # fmt: skip
    rows = [
        "| images | labels | accuracy | lowest | highest | log probability | steps | settings |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in final:
        test, mean, error = each["test"], each["mean"], each["std_error"]
        settings = ", ".join(
            f"{name} {format(value, ',' if isinstance(value, int) else 'g')}"
            for name, value in each["config"].items()
        )
        rows.append(
            f"| {SHARES[each['share']]} | {'used' if each['labels'] else 'none'} "
            f"| {mean['accuracy']:.2f} ± {error['accuracy'] or 0:.2f} "
            f"| {min(test['accuracy']):.2f} | {max(test['accuracy']):.2f} "
            f"| {mean['log_prob']:.4f} ± {error['log_prob'] or 0:.4f} "
            f"| {each['steps']:,} | {settings}; {each['weights']} weights |"
        )
    return [head.rstrip(), "\n".join(rows), *([found["note"]] if "note" in found else [])]


def chapter4() -> list[str]:
    r"""Chapter 4 with its pictures."""
    found = json.loads(CHAPTER_4.read_text(encoding="utf-8"))
    folder = DOCS / "pictures" / "chapter-4"
    said = pictures(found, folder, reference=("AIS, 2008", LOG_Z, *AIS_2008))
    return [page.section(CHAPTER_4).rstrip(), *shown(said, folder)]


def dark_knowledge() -> list[str]:
    r"""Bayesian dark knowledge, if it was run."""
    if not DARK_KNOWLEDGE.exists():
        return []
    found = json.loads(DARK_KNOWLEDGE.read_text(encoding="utf-8"))
    page = runpy.run_path(str(HERE / "dark_knowledge_page.py"))
    folder = DOCS / "pictures" / "dark-knowledge"
    return [page["section"](found), *shown(page["picture"](found, folder), folder)[1:]]


def shown(said: dict[str, str], folder: Path) -> list[str]:
    r"""Markdown for the pictures of a folder, from file names and descriptions."""
    where = folder.relative_to(DOCS).as_posix()
    return ["### Pictures", *(f"![{words}]({where}/{name})" for name, words in said.items())]


def main() -> None:
    r"""Write the page and draw the pictures."""
    chapters = [*chapter2(), *chapter3(), *chapter4()]
    parts = [page.TITLE, *chapters, students(), coverage(), *dark_knowledge()]
    text = "\n\n".join(parts) + "\n"
    (DOCS / "reproduction.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
