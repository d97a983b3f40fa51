r"""Bayesian dark knowledge on the reproduction page: its section and its picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from reproduction import canvas, plots

__all__ = ["PAPER", "figure", "picture", "section"]

REACH = 6.0
COLUMNS = 4
PAPER = {
    "1,000 draws": 0.007,
    "student 2-10-2": 0.031,
    "student 2-100-2": 0.014,
    "student 2-10-10-2": 0.009,
}
r"""KL reported by Korattikara et al., on other data of the same kind and with other priors."""

TOY = """\
## Bayesian dark knowledge

Korattikara, Rathod, Murphy and Welling (2015) distil a chain of Bayesian nets into one net while
the chain runs, as chapter 3 does with simpler models. This section repeats it with `lb.condense`
(`python experiments/dark_knowledge.py`; {hardware}, of which {threads} was used;
{toy_seconds:.0f} s and {digits_seconds:.0f} s on a busy machine).

**A toy problem.** There are two classes in the plane, with ten points each, and a 2-10-2 ReLU net
with normal priors (standard deviation {scale:g}) on its {dim} weights and biases. The sampler is
{chain}, with {chains} parallel chains and {rows} points per gradient. Students are trained on one
minibatch of draws at a time, {steps:,} of them, at inputs from the square [−6, 6]². The divergence
is from the average over {reference:,} draws of {way}, on a grid over that square (the divergence
between two halves of these draws is {halves:.1e}); means over {seeds} seeds with standard errors.
The paper used other data, other priors and nets without biases, so its numbers are only roughly
comparable.
"""

DIGITS = """\
**{data}.** The nets are {sizes} with a prior standard deviation of {scale:g}, and there are
{chains} SGLD chains with {rows} images per gradient. The average is over {draws:,} draws, half of
them from before the student's training and half from after it. The student has the same size and
is trained online, at training images with noise and at mixtures of neighbouring images
(`lb.inputs.Munge`). The plain net maximises the posterior density. Means over {seeds} {splits}
with standard errors. The chains have not converged: R̂ of the worst weight is up to {r_hat:.2f},
because the weights of nets mix slowly. The student learns the average over these chains, however
far it is from the posterior.
"""


def section(found: dict[str, Any]) -> str:
    r"""The section's text and tables."""
    toy, digits = found["toy"], found["digits"]
    ask, own = toy["settings"], digits["settings"]
    plain = next(row for row in toy["rows"] if row["name"] == "plain net")
    head = TOY.format(
        hardware=toy["hardware"], threads=toy["threads"], toy_seconds=toy["seconds"],
        digits_seconds=digits["seconds"], dim=plain["parameters"], chain=toy["chain"],
        halves=toy["reference_halves"], way=toy["reference"], seeds=toy["seeds"],
        **{name: ask[name] for name in ("scale", "chains", "rows", "steps", "reference")},
    )  # fmt: skip
    rows = [
        f"| | numbers | KL from {toy['reference']} | KL from {toy['chain']}'s average | paper |",
        "|---|---|---|---|---|",
    ]
    for row in toy["rows"]:
        paper = PAPER.get(row["name"])
        rows.append(
            f"| {row['name']} | {row['parameters']:,} | {figure(row['kl'], 4)} "
            f"| {figure(row['to_chain'], 4)} | {'' if paper is None else f'{paper:g}'} |"
        )
    sizes = "-".join(map(str, (64 if digits["data"] == "digits" else 784, *own["hidden"], 10)))
    splits = "splits and seeds" if digits["data"] == "digits" else "seeds"
    name = "Digits" if digits["data"] == "digits" else digits["data"]
    text = DIGITS.format(
        data=name, sizes=sizes, seeds=digits["seeds"], r_hat=max(digits["r_hat"]), splits=splits,
        **{key: own[key] for key in ("scale", "chains", "rows", "draws")},
    )  # fmt: skip
    more = [
        "| | numbers | error, % | log probability | KL from the average |",
        "|---|---|---|---|---|",
    ]
    more += [
        f"| {row['name']} | {row['parameters']:,} | {figure(row['error'], 2)} "
        f"| {figure(row['log_prob'], 4)} | {figure(row['kl'], 4)} |"
        for row in digits["rows"]
    ]
    return "\n\n".join([head.rstrip(), "\n".join(rows), text.rstrip(), "\n".join(more)])


def picture(found: dict[str, Any], folder: Path) -> dict[str, str]:
    r"""Draw what each predicts in the plane; its description, by the file's name."""
    toy = found["toy"]
    side = np.linspace(-REACH, REACH, toy["settings"]["side"])
    kl = {row["name"]: row["kl"]["values"][0] for row in toy["rows"]}
    left_out = ("100 draws", f"{toy['settings']['reference']:,} draws")  # like the reference
    names = [name for name in kl if name not in left_out]
    names = [toy["reference"], *names]
    lines = -(-len(names) // COLUMNS)
    with canvas.canvas(lines, COLUMNS, (2.6, 2.6)) as (drawn, axes):
        for place, name in zip(axes.flat, names, strict=False):
            plots.surface(place, side, toy["surfaces"][name].split())
            plots.classes(place, toy["data"]["x"], toy["data"]["y"])
            place.set_title(f"{name}, KL {kl[name]:.4f}" if name in kl else name)
        for place in axes.flat[len(names) :]:
            place.set_axis_off()
        said = "; ".join(f"{name} {kl[name]:.4f}" for name in names[1:])
        alt = (
            f"Predicted probabilities in the plane by {toy['reference']} and by others, whose "
            f"divergence from it is, for one seed: {said}."
        )
        canvas.save(drawn, folder / "surfaces.png", alt, dpi=110)
    return {"surfaces.png": alt}


def figure(entry: dict[str, Any], digits: int) -> str:
    r"""A mean over seeds with its standard error, if there is one."""
    error = "" if entry["error"] is None else f" ± {entry['error']:.{digits}f}"
    return f"{entry['mean']:.{digits}f}{error}"
