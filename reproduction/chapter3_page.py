r"""Chapter 3's part of the page: tables of errors and tests of the claims, from its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reproduction.chapter3_findings import (
    MEASURES,
    Figure,
    Finding,
    figures,
    logistic,
    mixtures,
)
from reproduction.chapter3_logistic import THINNED
from reproduction.page import TITLE

__all__ = ["page", "section"]

HEAD = """\
## Chapter 3: posterior draws into compact predictive distributions

The text has figures for this chapter but no numbers; here are both, on {hardware} with torch
{torch}. Reproduce this chapter with `python -m reproduction chapter-3` ({minutes:.0f} minutes; no
data needed).
"""

DENSITY = """\
### Densities

The observations are drawn from a mixture of three Gaussians with unknown means and the prior N(0,
100·I). The posterior is sampled by slice sampling, in chains that start at 0 with a burn-in of
{burn_in:,} sweeps. The student is a mixture of three Gaussians with 9 parameters. *Batch*:
{draws:,} draws, {samples:,} samples of their average density, EM from 20 starts. *Online*:
stepwise EM with a rate that falls from 1 to 0, from 16 starts, with {batch} draws in memory, each
used once. *One chain* is as in the text: {draws:,} successive draws, {steps} steps; figures are
means over {repeats} such chains. *Parallel* has {batch} chains, which give one draw each per step;
its online student is trained for {parallel} steps.

All divergences are from the exact predictive density, which has three unknown means and is
integrated on a grid; no long chain serves as a substitute for it. The average over a chain of the
text's length has a divergence too (*one chain*; *highest* is the largest of them), and such chains
differ: *between chains* is the largest KL between two of {repeats}. *All* pools {chains} chains of
that length, {pooled:,} draws. A large R̂ shows that chains did not mix: some reach modes in which
two components are exchanged, and stay there. No student can be better than its draws.
"""

REMARKS = """\
### The text's remarks on online distillation

KL in nats, means over {repeats} repetitions with standard errors. With a tenth of the draws there
are 100 steps with 10 draws each.
"""

LOGISTIC = """\
### Logistic regression

A data set has 24 points, 12 from N((−4, 0), I) with label 0 and 12 from N((4, 0), I) with label 1.
The two weights have the prior N(0, 100·I). Figures are means over {sets} such data sets with
standard errors. |t − f| is measured on [−8, 8]² in steps of ¼, and *near* is its mean within
distance 2 of the origin; t is exact, by quadrature over the weights. Bags have {components}
pseudo-draws. The first four students follow the text's schedule: {steps:,} steps with {batch}
inputs each, and plain gradient descent with a rate that falls from 1 to 0. Batch students use the
average over {draws:,} draws. Online students use each draw once, for one input, with {batch} draws
in memory (from {batch} parallel chains). According to the text, inputs are from N(0, 100·I), but
its author's program draws them from N(0, 10·I). The latter is used here; the former is shown for
{wide} data sets.

The remaining difference between online and batch is the noise of single draws. *Independent draws*
come from {chains:,} chains with {thin} sweeps between draws, so that they are almost independent:
an extreme form of the text's thinning and parallel chains, with {chains:,} draws in memory.
*Shared draws* are those of the first online students, {batch} in memory, but each input is
predicted by all draws of its minibatch instead of one (`draws_per_input={batch}`), which has the
same mean. Both follow the text's schedule.

*limbeck* is a weighted bag trained by Adam on cross entropy + 0.1 derivative square error. A fifth
of its inputs are from N(0, I), where the surface is steep, the others from N(0, 10·I).
"""


def page(found: Mapping[str, Any]) -> str:
    r"""A page of chapter 3 alone, from its results."""
    return f"{TITLE}\n\n{section(found)}\n"


def section(found: Mapping[str, Any]) -> str:
    r"""Chapter 3, from its results."""
    minutes = found["seconds"] / 60
    head = HEAD.format(hardware=found["hardware"], torch=found["torch"], minutes=minutes)
    parts, ask = [head.rstrip()], found["settings"]
    if entries := found.get("mixtures"):
        parts += [_density_head(ask, entries), _density(entries), _shown(mixtures(entries))]
    if tried := found.get("remarks"):
        parts += [REMARKS.format(repeats=ask["repeats"]).rstrip(), _remarks(tried)]
    if entries := found.get("logistic"):
        own = figures(entries)
        head = LOGISTIC.format(
            sets=len(entries), components=ask["components"], steps=ask["bag_steps"],
            batch=ask["bag_batch"], draws=ask["draws"], wide=min(ask["wide_sets"], len(entries)),
            chains=THINNED[0], thin=THINNED[2],
        )  # fmt: skip
        parts += [head.rstrip(), _bags(own, entries), _shown(logistic(own)), *_counts(entries)]
    return "\n\n".join([*parts, *([found["note"]] if "note" in found else [])])


def _density_head(ask: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> str:
    return DENSITY.format(
        burn_in=ask["burn_in"], draws=ask["draws"], samples=ask["samples"], batch=ask["batch"],
        steps=ask["draws"] // ask["batch"] - 1, repeats=ask["repeats"], parallel=ask["steps"],
        chains=ask["chains"], pooled=entries[0]["pooled"]["draws"],
    ).rstrip()  # fmt: skip


def _density(entries: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        "| observations | R̂ | all | one chain | highest | between chains | batch, one chain "
        "| online, one chain | batch, parallel | online, parallel |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for each in entries:
        chain, students = each["chain"], each["students"]
        kinds = ("batch, text", "online, text", "batch, parallel", "online, parallel")
        numbers = [each["pooled"]["kl"], chain["mean"], chain["highest"], each["between_chains"]]
        numbers += [students[kind]["mean"] for kind in kinds]
        cells = " | ".join("–" if value is None else f"{value:.4f}" for value in numbers)
        rows.append(f"| {each['observations']:,} | {each['r_hat']:.2f} | {cells} |")
    kept = entries[0]["bytes"]
    rows += [
        "",
        f"Batch stores {kept['batch']:,} bytes of draws, online {kept['online']:,}; the student "
        f"takes {kept['student']}. {_scored(entries)}",
    ]
    return "\n".join(rows)


def _scored(entries: Sequence[Mapping[str, Any]]) -> str:
    r"""The same against all chains together, in a sentence."""
    highest = {
        way: max(max(each["students"][f"online, {way}"]["kl_pooled"]) for each in entries)
        for way in ("parallel", "text")
    }
    return (
        "Compared with all chains together instead of the exact density, online students have a KL "
        f"of at most {highest['parallel']:.4f} nats with parallel chains, and "
        f"{highest['text']:.4f} with one chain."
    )


def _remarks(tried: Sequence[Mapping[str, Any]]) -> str:
    sizes = " | ".join(f"{each['observations']:,} observations" for each in tried)
    rows = [f"| | {sizes} |", "|---|" + "---|" * len(tried)]
    for name in tried[0]["trials"]:
        cells = []
        for each in tried:
            one = each["trials"][name]
            error = "" if one["std_error"] is None else f" ± {one['std_error']:.4f}"
            cells.append(f"{one['mean']:.4f}{error}")
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _bags(own: Mapping[str, Mapping[str, Figure]], entries: Sequence[Mapping[str, Any]]) -> str:
    rows = ["| | mean | maximum | near | bytes | seconds |", "|---|---|---|---|---|---|"]
    kept = entries[0]["bytes"]
    for name, each in own.items():
        numbers = " | ".join(_with_error(each[measure]) for measure in MEASURES)
        taken = [entry["seconds"][name] for entry in entries if name in entry["seconds"]]
        seconds = f"{sum(taken) / len(taken):.2g}" if taken else ""
        size = kept["weighted bag" if name.startswith("limbeck") else "bag"]
        if name in kept or name.startswith("EP"):
            size = kept["EP" if name.startswith("EP") else name]
        rows.append(f"| {name} | {numbers} | {size:,} | {seconds} |")
    rows += [
        "",
        f"During training, batch students need {kept['MCMC']:,} bytes for all draws, online "
        f"students {kept['online']:,}. Seconds are for training, and for MCMC for sampling.",
    ]
    return "\n".join(rows)


def _counts(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    counted = [each for each in entries if "components" in each]
    if not counted:
        return []
    rows = [
        f"limbeck's bags of other sizes, means over {len(counted)} data sets:", "",
        "| components | mean | maximum | near |", "|---|---|---|---|",
    ]  # fmt: skip
    for count in counted[0]["components"]:
        own = [each["components"][count] for each in counted]
        numbers = " | ".join(f"{sum(column) / len(own):.4f}" for column in zip(*own, strict=True))
        rows.append(f"| {count} | {numbers} |")
    return ["\n".join(rows)]


def _shown(found: Sequence[Finding]) -> str:
    return "\n".join(
        f"- {each.claim}: **{'yes' if each.held else 'no'}** ({each.numbers})." for each in found
    )


def _with_error(figure: Figure) -> str:
    error = "" if figure.error is None else f" ± {figure.error:.4f}"
    return f"{figure.mean:.4f}{error}"
