r"""A report's fields, as tables and sentences."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.table import Table

from limbeck.compression.fidelity import comparison
from limbeck.compression.fidelity.comparison import MIN_CLASS_ROWS, Comparison, decisive
from limbeck.compression.fidelity.measures import MEASURES, Figure
from limbeck.text import PlainTable, compared

if TYPE_CHECKING:
    from limbeck.compression.fidelity.report import ClassCount, Fidelity

LITTLE = 0.9  # a retention below this is "only" so much
NOTHING = 0.01  # an accuracy, R² or log probability that is not worth a teacher
MAX_GROUPS, MAX_NAMED = 16, 5  # groups in a table, and groups or classes in a sentence
# words for less, more and as much
SMALLER, FASTER = ("smaller", "larger", "as large"), ("faster", "slower", "as fast")
FEWER = ("fewer", "more", "as many")


def figure_in_words(
    name: str, figure: Figure | None, *, signed: bool = False, points: str = ""
) -> str:
    r"""A measure with its error, as 98.67 ± 0.11%; a difference is signed, in points."""
    if figure is None or math.isnan(figure.value):
        return "" if signed or figure is None else "–"
    share, sign = MEASURES[name].share, "+" if signed else ""
    value, error = (100 * part if share else part for part in figure)
    # errors below 1e-12 of the value, or of 100%, are rounding
    known = max(1e-12 * abs(value), 1e-12 * share) < error < math.inf
    leading = abs(error if known else value)
    # 1e-9: what is 1 but for rounding has the digits of 1
    places = (1 if known else 3) - (math.floor(math.log10(leading) + 1e-9) if leading else 0)
    places = min(max(places, 0), 2) if share and not known else max(places, 0)
    if places > 6:  # of small units, or tiny errors
        return f"{value:{sign}.4g}" + f" ± {error:.2g}" * known
    text = f"{value:{sign},.{places}f}" + (f" ± {error:,.{places}f}" if known else "")
    return text + (points if signed else "%") * share


def short(name: str, value: float) -> str:
    r"""A measure without its error, for a sentence."""
    return percent(value) if MEASURES[name].share else f"{value:{MEASURES[name].format}}"


def percent(value: float) -> str:
    r"""A share, with as many places as keep what is below 100% below it: 98.7%, 99.996%."""
    places = 1
    while value < 1 and round(100 * value, places) >= 100 and places < 6:
        places += 1
    return f"{value:.{places}%}"


def in_units(units: dict[str, float], value: float) -> str:
    r"""A quantity in the largest unit that it exceeds, or the last."""
    unit = next((name for name, scale in units.items() if value >= scale), list(units)[-1])
    scaled = value / units[unit]
    return f"{scaled:,.0f} {unit}" if scaled >= 100 else f"{scaled:.3g} {unit}"


size_in_words = partial(in_units, {"GB": 1e9, "MB": 1e6, "kB": 1e3, "bytes": 1.0})
span = partial(in_units, {"s": 1.0, "ms": 1e-3, "µs": 1e-6})


def heading(name: str) -> str:
    r"""A model's name; long ones such as RandomForestClassifier are split into words."""
    long = any(len(word) > 17 for word in name.split())
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name) if long else name


def table(report: Fidelity) -> Table:
    r"""The measures of all models, and the difference of student and teacher."""
    models = [model for model in report.names if model in report.measures]
    rows = []
    for name in MEASURES:
        values = [report.measures[model].get(name) for model in models]
        repeated = name == "worst_recall" and report.worst == report.rarest
        if any(values) and not repeated:
            cells = [figure_in_words(name, value) for value in values]
            gap = report.differences["teacher"].get(name)
            cells.insert(2, figure_in_words(name, gap, signed=True))
            rows.append([measure_title(report, name), *cells])
    measured = len(rows)
    rows += _cost_rows(report, models)
    heads = ["", *(heading(report.names[model]) for model in models)]
    heads.insert(3, "student − teacher")
    result = PlainTable(title=f"fidelity on {_rows(report)}")
    if report.labelled:
        result.caption_justify = "left"
        differences = "differences are paired, of percentages in points"
        result.caption = f"± is a standard error; {differences}; logs are natural"
    result.add_column("", no_wrap=True)
    filled = [place for place in range(1, len(heads)) if any(row[place] for row in rows)]
    for place in filled:
        result.add_column(heads[place], justify="right", overflow="fold")
    for number, row in enumerate(rows, 1):
        result.add_row(*(row[place] for place in (0, *filled)), end_section=number == measured)
    return result


def _cost_rows(report: Fidelity, models: list[str]) -> list[list[str]]:
    costs, rows = [report.costs[model] for model in models], []
    kinds: list[tuple[str, list[Any], Callable[[float], str], tuple[str, str, str]]] = [
        ("parameters", [c.parameters for c in costs], "{:,.0f}".format, FEWER),
        ("bytes on disk", [c.bytes for c in costs], size_in_words, SMALLER),
    ]
    for size in sorted({size for cost in costs for size in cost.latency}):
        times = [cost.latency.get(size) for cost in costs]
        kinds.append((f"latency at batch {size:,}", times, span, FASTER))
    for title, values, show, words in kinds:
        if any(value is not None for value in values):
            cells = ["–" if value is None else show(value) for value in values]
            if show is size_in_words:  # the baseline has the size of the student
                cells[:2] = [cell.replace("–", "unknown") for cell in cells[:2]]
            cells.insert(2, compared(values[0], values[1], *words))
            rows.append([title, *cells])
    return rows


def group_table(report: Fidelity) -> Table:
    r"""Subgroups below one another; the worst of them, if there are many."""
    other, name = decisive(report.task, report.labelled)
    parts = groups(report)
    title = f"{MEASURES[name].title} by subgroup"
    if len(parts) > MAX_GROUPS:
        title += f" (the {MAX_GROUPS} worst of {len(parts)})"
        parts = groups(report, worst=True)[:MAX_GROUPS]
    models = ["teacher", "student"] if report.labelled else ["student"]
    numbers = ["rows", *models, f"student − {other}"]
    heads = ["column", "group", *numbers, *(["worse"] if report.worse else [])]
    result, before = PlainTable(*heads, right=numbers, title=title), None
    for column, group, part in parts:
        cells = [figure_in_words(name, part.measures[model].get(name)) for model in models]
        cells.append(figure_in_words(name, part.differences.get(other, {}).get(name), signed=True))
        cells += ["worse"] if (column, group) in report.worse else []
        result.add_row("" if column == before else column, group, f"{part.rows:,}", *cells)
        before = column
    return result


def class_table(report: Fidelity) -> Table:
    r"""The recall of each class; of many, those that lose most."""
    parts, title = list(report.by_class.items()), "recall by class"
    models = ["teacher", "student"] if report.labelled else ["student"]

    def lost(part: tuple[str, Comparison]) -> float:
        return (part[1].differences.get("teacher") or part[1].measures["student"])["recall"].value

    if len(parts) > MAX_GROUPS:
        title += f" (the {MAX_GROUPS} that lose most, of {len(parts)})"
        parts.sort(key=lost)
    gaps = ["student − teacher"] * report.labelled
    numbers = ["rows", *models, *gaps, "KL from teacher"]
    result = PlainTable("class", *numbers, right=numbers, title=title)
    for name, part in parts[:MAX_GROUPS]:
        cells = [figure_in_words("rare_recall", part.measures[m]["recall"]) for m in models]
        if report.labelled:
            gap = part.differences["teacher"]["recall"]
            cells.append(figure_in_words("rare_recall", gap, signed=True))
        divergence = figure_in_words("kl", part.measures["student"]["kl"])
        result.add_row(name, f"{part.rows:,}", *cells, divergence)
    return result


def groups(report: Fidelity, *, worst: bool = False) -> list[tuple[str, str, Comparison]]:
    r"""Columns, groups and their measures, in their order or the worst first."""
    parts = [(c, g, part) for c, groups in report.by_group.items() for g, part in groups.items()]
    if worst:
        parts.sort(key=lambda part: comparison.advantage(report.task, report.labelled, part[2]))
    return parts


def remark(report: Fidelity) -> str:
    r"""A sentence on the subgroups where the student is worse, the worst first; "" if none is."""
    if not report.worse:
        return ""
    other, name = decisive(report.task, report.labelled)
    parts = [part for part in groups(report, worst=True) if part[:2] in report.worse]
    models, texts = ["student", "teacher"] if report.labelled else ["student"], []
    for column, group, part in parts[:MAX_NAMED]:
        value = " against ".join(short(name, part.measures[m][name].value) for m in models)
        gap = figure_in_words(name, part.differences[other][name], signed=True, points=" points")
        about = f"{MEASURES[name].title} {value}: {gap}, {part.rows:,} rows"
        texts.append(f"{column} = {group} ({about})")
    more = f"; and {len(parts) - MAX_NAMED} more" if len(parts) > MAX_NAMED else ""
    what = "worse than the teacher" if report.labelled else "less faithful than elsewhere"
    return f"The student is {what} by more than 3 standard errors for {'; '.join(texts)}{more}."


def sentence(report: Fidelity) -> str:
    r"""The result in one sentence: retention, agreement and savings, as far as they are known."""
    verbs = []
    if report.main not in ("agreement", "teacher_r2") and math.isnan(report.retention):
        noun = measure_title(report, report.main)
        one, two = (_value(report, model, report.main) for model in ("student", "teacher"))
        verbs = [f"has {noun} {one} where the teacher has {two}"]
    elif report.main not in ("agreement", "teacher_r2"):
        share = ("only " if report.retention < LITTLE else "") + percent(report.retention)
        verbs = [f"keeps {share} of {retention_noun(report)}{_all_values(report)}"]
    verbs.append(_faithfulness(report, bool(verbs)))
    if savings := _savings(report):
        verbs.append(f"is {' and '.join(savings)}")
    *first, last = verbs
    text = f"{', '.join(first)} and {last}" if first else last
    notes = "; ".join(["", *rare_class_notes(report)])
    return f"The student {text}{notes}."


def measure_title(report: Fidelity, name: str) -> str:
    r"""A measure's name in a report: that of one class, with the name of the class."""
    count, measure = _class_count(report, name), MEASURES[name]
    return measure.title if count is None else f"{measure.class_title} of {count.title}"


def _class_count(report: Fidelity, name: str) -> ClassCount | None:
    of_class = report.worst if name == "worst_recall" else report.rarest
    return of_class if MEASURES[name].class_title else None


def retention_noun(report: Fidelity, name: str = "") -> str:
    r"""A measure, or the main one: "the teacher's accuracy", "… recall of class fraud"."""
    owner = "the teacher's "
    return owner + measure_title(report, name or report.main).replace(owner, "")


def _faithfulness(report: Fidelity, after_quality: bool) -> str:
    known = {name: figure.value for name, figure in report.measures["student"].items()}
    whom = "it" if after_quality else "the teacher"
    where = "" if report.labelled and after_quality else _rows(report)
    if "agreement" in known:
        if report.task == "multilabel":
            where = f"labels in {where}" if where else "labels"
        share = percent(known["agreement"]) + (f" of {where}" if where else "")
        beside = _all_values(report) if report.main == "agreement" else ""
        return f"agrees with {whom} on {share}{beside}"
    where = f" on {where}" if where else ""
    if math.isnan(known["teacher_r2"]):
        return f"differs from {whom} by {known['difference']:.3g} on average{where}"
    return f"follows {whom} with R² {short('r2', known['teacher_r2'])}{where}"


def _rows(report: Fidelity) -> str:
    return f"{report.rows:,} {'row' if report.rows == 1 else 'rows'}"


def _all_values(report: Fidelity) -> str:
    r"""The values of the main measure, and of those with a larger retention."""
    others = [name for name in report.retention_by if name not in ("agreement", report.main)]
    rest = ", ".join(f"{measure_title(report, name)} {_values(report, name)}" for name in others)
    main = "" if report.main == "agreement" else _values(report, report.main)
    values = "; ".join(filter(None, (main, rest)))
    count = len(report.retention_by)
    worst = f", the worst of {count} measures" if count > 1 else ""
    return f"{worst} ({values})" if values else worst


def _values(report: Fidelity, name: str) -> str:
    r"""The student's value against the teacher's, where it has one, and the rows of a class."""
    models = [model for model in ("student", "teacher") if name in report.measures[model]]
    text = " against ".join(_value(report, model, name) for model in models)
    count = None if name == "average_precision" else _class_count(report, name)
    return text if count is None else f"{text} on {count.rows:,} rows"


def _value(report: Fidelity, model: str, name: str) -> str:
    r"""A measure in a sentence; that of one class with its error, which is large."""
    figure, of_class = report.measures[model][name], MEASURES[name].class_title
    return figure_in_words(name, figure) if of_class else short(name, figure.value)


def _savings(report: Fidelity) -> list[str]:
    r"""How much faster, by batch size, and how much smaller."""
    teacher, student = (report.costs[model] for model in ("teacher", "student"))
    sizes = sorted(teacher.latency.keys() & student.latency.keys())
    texts = [compared(teacher.latency[size], student.latency[size], *FASTER) for size in sizes]
    savings = []
    if texts:
        (times, way), others = texts[0].split(), list(zip(texts, sizes, strict=True))[1:]
        alike = [f"{t.split()[0]} at {s:,}" for t, s in others if t.split()[1] == way]
        aside = f" ({', '.join(alike)})" if alike and times != "as" else ""
        savings = [f"{texts[0]} at batch {sizes[0]:,}{aside}"]
        savings += [f"{t} at batch {s:,}" for t, s in others if t.split()[1] != way]
    if teacher.bytes and student.bytes:
        savings.append(compared(teacher.bytes, student.bytes, *SMALLER))
    return savings


def need(report: Fidelity) -> str:
    r"""A sentence: did you need the teacher? Empty where nothing was trained on labels."""
    others = [model for model in ("baseline", "trees") if model in report.measures]
    if not others:
        return ""
    question = "Did you need the teacher?"
    if not report.labelled:
        return f"{question} Unclear without true labels of the test rows."
    names = ["r2"] if report.task == "regression" else ["accuracy", "log_probability"]
    names += [report.main] if MEASURES[report.main].class_title else []
    texts, outcomes = [], set()
    for name in names:
        gaps = {model: report.differences[model][name] for model in others}
        best = min(gaps, key=lambda model: gaps[model].value)
        value, error = gaps[best]
        # with two standard errors, of more or of less; or the most that it can be is nothing
        outcome = "more" if value > 2 * error else "less" if value < -2 * error else "unclear"
        outcomes.add("none" if outcome == "unclear" and value + 2 * error < NOTHING else outcome)
        one, two = (figure_in_words(name, report.measures[m][name]) for m in ("student", best))
        gap = figure_in_words(name, gaps[best], signed=True, points=" points")
        title = measure_title(report, name)
        texts.append(f"{title} {one} against {two} of {report.names[best]} ({gap or '–'})")
    answer = "Unclear"
    if "more" in outcomes and "less" not in outcomes:
        answer = "Yes"
    elif outcomes <= {"less", "none"}:
        answer = "No"
    return f"{question} {answer}: the student has {', '.join(texts)}."


def rare_class_notes(report: Fidelity) -> list[str]:
    r"""Rare classes that were not checked: too few rows, or a recall of 0."""
    if report.task == "regression":
        return []
    notes, rarest, recall = [], report.rarest, report.retention_by.get("rare_recall")
    if recall is not None and rarest is not None and math.isnan(recall.value):
        notes.append(f"the teacher detects none of the {rarest.rows:,} rows of {rarest.title}")
    if report.unchecked:
        names = ", ".join(f"{c.title} ({c.rows:,})" for c in report.unchecked[:MAX_NAMED])
        more = len(report.unchecked) - MAX_NAMED
        names += f" and {more:,} more" if more > 0 else ""
        notes.append(f"unchecked (fewer than {MIN_CLASS_ROWS} rows): {names}")
    return notes
