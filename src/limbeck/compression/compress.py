r"""`compress`: any teacher and rows without labels in; a small student out."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import nn

from limbeck import arguments as arg
from limbeck.arrays import X, as_dict, as_weights, rows
from limbeck.compression import selection
from limbeck.compression import training as trainer
from limbeck.compression.compressed import Compressed
from limbeck.compression.dispatch import as_row_teacher
from limbeck.compression.fidelity.cost import bytes_on_disk
from limbeck.compression.rows import ArrayFormat, Rows, TableFormat, read_rows
from limbeck.compression.selection import DEFAULT
from limbeck.compression.students import hidden_sizes, is_net, predictions
from limbeck.compression.training import Problem, Recipe, is_auto
from limbeck.errors import ArgumentError, shown, warn
from limbeck.inputs.base import Inputs
from limbeck.losses.base import Loss
from limbeck.outputs import FORMS
from limbeck.tables.reading import id_columns
from limbeck.tables.table import Table
from limbeck.teachers.cache import TeacherCache, as_cache
from limbeck.teachers.folds import as_labels, mix_labels
from limbeck.teachers.keys import distinct, row_keys, select
from limbeck.teachers.query import Query, TeacherError
from limbeck.teachers.row_teacher import TASKS
from limbeck.text import listed
from limbeck.training.config import Training
from limbeck.training.distill import as_loss
from limbeck.training.result import Result

MIN_POOL, MAX_POOL = 10_000, 50_000  # inputs that a teacher labels by default
MIN_LABELLED = 100  # rows that a student is trained on if others have no targets


@arg.checked_arguments
def compress(
    teacher: arg.UserObject[object],
    X: arg.UserObject[object],
    student: arg.UserObject[object] = None,
    *,
    labels: arg.UserObject[object] = None,
    label_weight: arg.Fraction = 0.0,
    sample_weight: arg.UserObject[ArrayLike | None] = None,
    loss: arg.UserObject[str | Loss] = "auto",
    inputs: arg.UserObject[str | Inputs] = "auto",
    pool: arg.Count | None = None,
    steps: arg.Count | None = None,
    task: Annotated[str, arg.Choice(*TASKS, "auto")] = "auto",
    teacher_output: Annotated[str, arg.Choice(*FORMS[:4], "auto")] = "auto",
    onnx_output: arg.Text | None = None,
    weights: arg.UserObject[ArrayLike | None] = None,
    stack: arg.UserObject[object] = None,
    classes: arg.UserObject[Sequence[Any] | np.ndarray | None] = None,
    table: Table | None = None,
    teacher_folds: Annotated[int, arg.Whole(2)] | None = None,
    cache: arg.PathLike | TeacherCache | None = None,
    cache_key: arg.Text | None = None,
    teacher_batch: arg.Count | None = None,
    retries: arg.CountFromZero = 3,
    retry_on: arg.UserObject[tuple[type[Exception], ...]] = (OSError,),
    max_queries: arg.Count | None = None,
    queries_per_second: arg.Positive | None = None,
    query_seconds: arg.Positive | None = None,
    query_workers: arg.Count = 1,
    held_out_fraction: arg.Remainder = 0.1,
    keep: arg.Share = 0.99,
    max_bytes: arg.Count | None = None,
    max_latency: arg.Positive | None = None,
    seed: arg.Seed = 0,
    progress: arg.Flag = True,
    **options: Any,
) -> Compressed:
    r"""Train one small model to predict like a cumbersome one; no labels are needed.

    The teacher labels the rows of X, as they are, and further inputs made of them, in the same
    types. A torch teacher is queried by the loop, at fresh inputs each step; any other one labels
    its inputs before training, each of them once.

    Arguments:
        teacher: A torch module, an estimator of scikit-learn, XGBoost, LightGBM or CatBoost, a
            list of these, the path of an ONNX or booster file, or a function of arrays.
        X: Rows: an array, a tensor, a data frame, a sparse matrix, a torch Dataset. Columns of a
            frame that the teacher was not fitted on are left out, with a note.
        student: Hidden sizes; "auto" for the smallest net or boosted forest that keeps enough;
            "linear", "tree" or "boosted"; a tree or forest of scikit-learn; or a module, which is
            trained in place. Default: a net (50, 30); or boosted trees or a larger student, where
            they are nearer to the teacher at held-out rows, unless `inputs` or `steps` is passed.
        labels: True labels of the rows, for the report and, with a `label_weight`, to mix with the
            targets; missing ones are None or NaN. Default: None.
        label_weight: Their share in the targets, from 0 to 1. Default: 0, the report alone.
        sample_weight: Weights of the rows in the loss, from 0; rows of weight 0 are left out.
            Generated inputs ("munge", "noise") have the weight of the row that they start from,
            others the mean weight. Default: None, equal ones.
        loss: From `limbeck.losses`, or a name. Derivatives can be matched where the teacher is a
            torch module. Default: cross entropy, or square error for regression.
        inputs: The source of inputs: a name (see `limbeck.compression.generators`) or a source of
            `limbeck.inputs`. Default: "auto", the best of a few at held-out rows and near them.
        pool: Number of inputs that the teacher labels before training. Default: ten for each row,
            from 10,000 to 50,000; or twice the rows, if that is more and `inputs` is a generator.
        steps: Steps of the training. Default: by the number of inputs.
        task: "classification", "multilabel" or "regression". Default: "auto", the teacher's own.
        teacher_output: Form of a torch teacher's outputs: "logits", …. Default: inferred.
        onnx_output: Name of the output to learn, for an ONNX file with several. Default: inferred.
        weights: Weights of the members, for a list of teachers. Default: equal ones.
        stack: A model of the members' answers, for a list of teachers. Default: None.
        classes: Names of the classes, where the teacher does not know them. Default: None.
        table: The schema of a data frame, a `limbeck.Table`. Default: read off X.
        teacher_folds: Folds in which copies of a teacher that was fitted to these rows and labels
            are fitted anew, to label rows that they have not seen. Default: None.
        cache: A folder that keeps the teacher's answers for the next time. A torch teacher too is
            then queried before training. Default: None.
        cache_key: A name for a teacher whose content cannot be read. Default: a hash of it.
        teacher_batch: Inputs in a call of the teacher. Default: as many as a few seconds allow.
        retries: Further attempts after an error of the teacher's connection. Default: 3.
        retry_on: These errors. Default: OSError, with ConnectionError and TimeoutError among it.
        max_queries: Number of inputs, beside those in the cache, that the teacher may label: rows
            of X first, in random order, then generated ones. With a limit, inputs are not compared.
            Default: None, any number.
        queries_per_second: The most inputs a second. Default: None, as fast as it goes.
        query_seconds: Time after which the teacher is not called any more. Default: None.
        query_workers: Threads that call the teacher at the same time, if it is safe to do so; a
            torch module is called by one. Default: 1.
        held_out_fraction: Fraction of the rows to compare students on, if there is a choice.
            Default: 0.1.
        keep: For student="auto": the fraction of the teacher's measure to keep. Default: 0.99.
        max_bytes: For student="auto": the largest student. Default: None, any size.
        max_latency: For student="auto": the microseconds that `predict` may take for one row on
            this machine, in NumPy or else in torch. Default: None, any time.
        seed: Seeds everything. Default: 0.
        progress: Whether to show bars, if a terminal is there. Default: True.
        options: Further arguments of `limbeck.distill`: optimizer, batch_size, device, ….
    """
    default, student = student is None, DEFAULT if student is None else student
    if not is_auto(student) and (max_bytes or max_latency):
        name, value = ("max_bytes", max_bytes) if max_bytes else ("max_latency", max_latency)
        raise ArgumentError(name, f"{value} beside student={shown(student)}", 'student="auto"')
    if not is_auto(student) and is_net(student):
        hidden_sizes(student)  # which refuses others, before the teacher is queried
    decided = ("steps", "held_out", "precompute", "seed")
    training = Training.from_options(options, decided, compress, seed=seed, progress=progress)
    notes = list[str]()
    if unused := _unused_columns(teacher, X):
        names = listed(map(repr, unused))
        if table is not None and set(unused) & {column.name for column in table.columns}:
            received = f"a table with {names}, on which the teacher was not fitted"
            raise ArgumentError("table", received, "columns that the teacher knows, by drop=")
        notes = [f"Note: the teacher was not fitted on {names} of X; the student leaves that out."]
        X = X[[column for column in X.columns if column not in unused]]  # type: ignore[attr-defined, index]
    data = read_rows(X, table)
    labels, n = data.labels if labels is None else labels, rows(data.x)
    array = None if labels is None else as_labels(labels, n)
    examples = select(data.given, np.arange(min(100, n)))
    query = Query(
        as_cache(cache), cache_key, teacher_batch, retries, retry_on, progress,
        max_queries=max_queries, queries_per_second=queries_per_second,
        query_seconds=query_seconds, query_workers=query_workers,
    )  # fmt: skip
    as_teacher = partial(
        as_row_teacher, teacher, examples, task=task, teacher_output=teacher_output,
        onnx_output=onnx_output, weights=weights, stack=stack, classes=classes,
    )  # fmt: skip
    model = query.open(as_teacher, examples)
    if query.limited and not isinstance(inputs, str):
        received = "a limit, with inputs of your own, which the teacher labels in each step"
        raise ArgumentError("max_queries", received, "inputs by name, such as 'munge'")
    if isinstance(data.format, ArrayFormat):  # other teachers are trees, mostly
        data.format.knots = model.module is None
    if isinstance(student, nn.Module):
        _refuse_own_teacher(student, teacher)
    row_weights, doubts = as_weights(sample_weight, n), _id_notes(data) if table is None else []
    if array is not None:
        mix_labels(np.zeros((n, model.outputs)), array, 1.0, model.classes)  # refuses unusable ones
        doubts += _label_columns(data.given, array)
    elif teacher_folds is not None:
        raise ArgumentError("labels", None, "the labels of the rows, which teacher_folds needs")
    for text in doubts:
        warn(text)
    compared = is_auto(student) or (is_auto(inputs) and not query.limited)
    split = partial(_split, data, held_out_fraction if compared else 0.0, training.seed)
    mixed = label_weight > 0 or teacher_folds is not None
    default_loss = trainer.default_loss(model.task)
    problem = Problem(
        model, data, *split(row_weights), query=query,
        loss=default_loss if is_auto(loss) else as_loss(loss, None, None, "", None),  # type: ignore[arg-type]
        labels=array if mixed else None, label_weight=label_weight, row_weights=row_weights,
        folds=teacher_folds, seed=training.seed,
        # inputs of the user's own source never come again
        caches=(cache is not None or query.limited) and isinstance(inputs, str),
        generates=isinstance(inputs, str) and inputs != "data" and not query.limited,
    )  # fmt: skip
    _refuse_derivatives(problem)
    if isinstance(inputs, str) and not problem.live and teacher_folds is None:
        problem = _label_rows(problem, split)
    size = rows(problem.x)
    if pool is None:
        generated = isinstance(inputs, str) and inputs not in ("auto", "data")
        pool = max(size, min(MAX_POOL, max(MIN_POOL, 10 * size)), 2 * size if generated else 0)
    if (left := query.queries_left) is not None:
        pool = min(pool, size + left)
    # a module is trained in place at last; what is tried before are copies of it as it is now
    try:
        recipe = Recipe(copy.deepcopy(student), inputs, pool, steps, training)
    except TypeError as error:  # a generator, a lock
        raise ArgumentError("student", shown(student), f"one that is copied ({error})") from None
    search = partial(
        selection.search, student=student, columns=table is None,
        default=default and steps is None, keep=keep, max_bytes=max_bytes, max_latency=max_latency,
    )  # fmt: skip
    try:
        best, tried, choices = search(problem, recipe)
    except TeacherError:
        if query.usage.stop_reason is None or teacher_folds is not None:
            raise
        problem = replace(problem, caches=True, generates=False)  # all of whose rows are labelled
        best, tried, choices = search(problem, replace(recipe, inputs="data"))
    if query.usage.failure is not None:
        warn(str(query.usage.failure))
    problem, result = best.problem, best.result
    notes += choices + doubts
    before, after = bytes_on_disk(model), bytes_on_disk(result.student) or 0
    if (default or is_auto(student)) and before is not None and after > before:
        notes.append(
            f"Note: the student takes {after:,} bytes, its teacher {before:,}; a smaller student "
            "such as (8,) may do, or the teacher itself."
        )
    notes += _query_notes(problem, n) + _value_notes(problem, result) + selection.verdict(best)
    return Compressed.of(result, problem, best.recipe, labels=labels, tried=tried, notes=notes)


def _label_rows(problem: Problem, split: Callable[[np.ndarray], Any]) -> Problem:
    r"""Let the teacher label the user's rows; rows that it has not labelled get the weight 0."""
    weights, query, n = problem.row_weights, problem.query, rows(problem.data.x)
    every = np.ones(n) if weights is None else weights
    used = np.flatnonzero(every)
    given = select(problem.data.given, used)
    targets, known, error = query.label_some(problem.teacher, given, problem.seed)
    least = max(2, min(MIN_LABELLED, len(used) // 2))
    if error is not None and known.sum() < least:
        message = f"{error}; a student needs {least} labelled rows or more"
        raise TeacherError(message, error.rows, error.cached) from error.__cause__
    query.remember(problem.teacher, select(given, np.flatnonzero(known)), targets[known])
    if error is None:
        return problem
    left = np.zeros(n)
    left[used[known]] = every[used[known]] / every[used[known]].mean()
    index, held_out = split(left)
    return replace(problem, index=index, held_out=held_out, row_weights=left)


def _query_notes(problem: Problem, n: int) -> list[str]:
    r"""A note on how many of n rows, and of other inputs, a teacher has labelled within limits."""
    query, usage = problem.query, problem.query.usage
    if not query.limited:
        return []
    labelled = len(problem.index) + len(problem.held_out)
    pools, size = problem.pools.values(), rows(problem.x)
    generated = max((rows(pool.x) - size for pool in pools), default=0)
    limits = {"max_queries": query.max_queries, "query_seconds": query.query_seconds}
    words = ", ".join(f"{name}={limit:,}" for name, limit in limits.items() if limit is not None)
    share = f"all {n:,}" if labelled == n else f"{labelled:,} of {n:,}"
    text = f"Note: the student learned from {share} rows of X and {generated:,} generated inputs, "
    return [f"{text}which the teacher labelled ({usage.stop_reason or words})."]


def _value_notes(problem: Problem, result: Result) -> list[str]:
    r"""Notes on a regression's student that breaks what holds for its teacher at every row."""
    if problem.teacher.task != "regression" or problem.live:
        return []
    teacher = problem.targets
    student = predictions(result.student, problem.x, "regression", "values")
    below = (student < 0).any(1) & bool((teacher > 0).all())
    crossed = (np.diff(student) < 0).any(1) & bool((np.diff(teacher) >= 0).all())
    texts = {
        "negative, where the teacher's are positive, as counts are": below,
        "not in ascending order, where the teacher's are, as quantiles are": crossed,
    }
    return [
        f"Note: at {broken.sum():,} of {len(student):,} rows of X values of the student are {text}."
        for text, broken in texts.items()
        if broken.any()
    ]


def _unused_columns(teacher: object, given: Any) -> list[Any]:
    r"""The columns of a frame that no teacher was fitted on; a frame that lacks some is refused."""
    if not (hasattr(given, "columns") and hasattr(given, "dtypes")):
        return []
    members = list(teacher) if isinstance(teacher, list | tuple) else [teacher]
    columns = {_plain_name(column): column for column in given.columns}
    unused = set(columns)
    for member in members:
        names = getattr(member, "feature_names_in_", getattr(member, "feature_names_", None))
        fitted = [] if names is None or isinstance(member, type) else list(map(_plain_name, names))
        absent = [name for name in fitted if name not in columns]
        if 0 < len(absent) < len(fitted):
            received = f"no column {listed(map(repr, absent))}"
            raise ArgumentError("X", received, "all columns that the teacher was fitted on")
        if absent or not fitted:  # names of which none is known are a library's own
            unused = set()
        unused -= set(fitted)
    return [column for name, column in columns.items() if name in unused]


def _plain_name(name: object) -> str:
    return str(name).replace(" ", "_")  # as LightGBM stores them


def _id_notes(data: Rows) -> list[str]:
    r"""A note on columns like ids, if there are some."""
    framed = isinstance(data.format, TableFormat) and data.format.array is None
    names = id_columns(data.format.table.varying, data.given) if framed else []  # type: ignore[union-attr]
    if not names:
        return []
    text = (
        f"X: in {listed(map(repr, names))} each row has another whole number, like ids, which say "
        f"nothing about new rows; table=limbeck.Table(X, drop={names!r}) leaves that out, for the "
        "teacher too, and table=limbeck.Table(X) takes all columns without this warning"
    )
    return [text]


def _label_columns(given: Any, labels: np.ndarray) -> list[str]:
    r"""A note on each column that is the labels."""
    columns: dict[Any, Any] = {}
    if labels.ndim == 1 and len(set(labels.tolist())) > 1:
        if hasattr(given, "columns"):
            columns = {name: given[name].to_numpy() for name in given.columns}
        elif isinstance(given, np.ndarray) and given.ndim == 2:
            columns = dict(enumerate(given.T))
    notes, texts = list[str](), labels.astype(str)
    for name, column in columns.items():
        numeric = column.dtype.kind in "biuf" and labels.dtype.kind in "biuf"
        if (column == labels if numeric else column.astype(str) == texts).all():
            notes.append(
                f"X: column {name!r} equals the labels: the teacher may have seen the answer, and "
                "so may the student; leave it out if it is not there at predict time"
            )
    return notes


def _refuse_own_teacher(student: nn.Module, teacher: object) -> None:
    r"""Refuse a student that shares parameters with its teacher, which would change with it."""
    members = list(teacher) if isinstance(teacher, list | tuple) else [teacher]
    for member in list(members):
        if inspect.isfunction(member):  # with what it takes from around it
            seen = inspect.getclosurevars(member)
            members += [*seen.nonlocals.values(), *seen.globals.values()]
        members.append(getattr(member, "__self__", None))
    modules = [member for member in members if isinstance(member, nn.Module)]
    own = {id(parameter) for parameter in student.parameters()}
    if any(id(parameter) in own for module in modules for parameter in module.parameters()):
        received = "a module that shares parameters with the teacher, which would change with it"
        raise ArgumentError("student", received, "another module; copy.deepcopy(teacher) will do")


def _split(
    data: Rows, fraction: float, seed: int, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    r"""The numbers of the rows to learn from and, if they are enough, of rows held out."""
    used = np.arange(rows(data.x)) if weights is None else np.flatnonzero(weights)
    size = min(trainer.MAX_HELD_OUT, round(fraction * len(used)))
    size = size if size >= trainer.MIN_HELD_OUT else 0
    order = used[torch.randperm(len(used), generator=torch.Generator().manual_seed(seed)).numpy()]
    if size:
        first, place = distinct(row_keys(data.given)[order])  # of equal rows where the first one is
        # copies stay together: a student knows those that it has learned
        if len(first) < len(order) and not _equal_by_chance(select(data.x, order[first])):
            order, place = order[together := np.argsort(place, kind="stable")], place[together]
            size = int(np.searchsorted(place, place[size - 1], side="right"))
            size = size if size < len(order) else 0
    return np.sort(order[size:]), np.sort(order[:size])


def _equal_by_chance(distinct: X) -> bool:
    r"""Whether columns have so few values that rows would be equal if columns were independent.

    Then new rows will be equal to some of these, too. The rows are different ones.
    """
    n = rows(distinct)
    pairs = math.log(max(1, n * (n - 1) / 2))
    for part in as_dict(distinct).values():
        for column in part.reshape(n, -1).unbind(1):
            counts = column.unique(return_counts=True)[1]
            if 2 * len(counts) > n:
                return False
            pairs += math.log(float((counts / n).square().sum()))
    return pairs > 0


def _refuse_derivatives(problem: Problem) -> None:
    r"""Refuse a loss on derivatives that do not exist."""
    matches = any("derivatives" in term.requires for _, term in problem.loss)
    if matches and not problem.differentiable:
        if problem.teacher.module is None:
            problem.teacher.refuse_derivatives(repr(problem.loss))
        received = f"{problem.loss!r}, which matches derivatives"
        expected = (
            "a loss on values: there are no derivatives with respect to a table, nor of labels "
            "that are mixed in (label_weight=0 leaves them out)"
        )
        raise ArgumentError("loss", received, expected)
