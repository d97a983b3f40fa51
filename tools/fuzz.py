r"""Calls of every public function with right and wrong arguments, and what they end in.

    python tools/fuzz.py --calls 50000 --workers 2

Arguments are drawn by hypothesis: by the converter that each parameter declares, by its name where
it takes an object of the user's, and, for one parameter or more of most calls, from a pool of wrong
values. A call may return, or raise a LimbeckError, or a TypeError of a wrong signature; anything
else is foreign, is listed with the call that repeats it, and makes the exit code 1.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import json
import multiprocessing
import os
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import fuzz_values as values  # noqa: E402
from fuzz_values import FORCED, NASTY, OWNERS, VALID  # noqa: E402

from limbeck import arguments as arg  # noqa: E402
from limbeck.errors import LimbeckError  # noqa: E402
from limbeck.training.config import Training  # noqa: E402
from tests.test_arguments import PUBLIC  # noqa: E402

SECONDS = 20  # of one call
MEMORY = 12 * 2**30  # bytes of address space of a worker
OUTCOMES = ("returned", "refused", "signature", "own", "memory", "hang", "nan", "foreign")
ARITY = r"takes (from )?\d+ .*positional arguments? but \d+ w|required positional argument"
BINDING = ("<module>", "checked", "decorate_context")  # frames of decorators
# what other modules than the arguments' own are to mend, by the function that is called
PENDING: frozenset[str] = frozenset()


class HangError(BaseException):
    r"""A call that takes too long."""


class Target(NamedTuple):
    r"""A public callable as an expression, and its parameters with their converters."""

    name: str
    expression: str
    parameters: dict[str, inspect.Parameter]
    converters: dict[str, arg.Converter | None]


class Outcome(NamedTuple):
    r"""What a call ended in, and for foreign errors where."""

    kind: str
    place: str = ""
    error: str = ""


def targets() -> list[Target]:
    r"""All public callables for which there is an expression."""
    found = []
    for name, function in sorted({**PUBLIC, **values.READERS}.items()):
        owner, _, method = name.rpartition(".")
        called = function.__init__ if inspect.isclass(function) else function
        if name in values.LEFT_OUT or called is object.__init__:
            continue
        parameters = dict(inspect.signature(called).parameters)
        first = next(iter(parameters), "")
        if first == "self" and not inspect.isclass(function):
            if owner not in OWNERS:
                continue
            expression = f"{OWNERS[owner]}.{method}"
        else:
            expression = values.expression(name)
        parameters = {n: p for n, p in parameters.items() if n not in ("self", "cls")}
        found.append(Target(name, expression, parameters, arg.declared(function)))
    return found


def right_values(target: str, name: str, converter: arg.Converter | None) -> list[str]:
    r"""Expressions that a parameter should accept."""
    known = VALID.get(f"{target}.{name}", VALID.get(name))
    if known is not None:
        return known
    if isinstance(converter, arg.Either):
        return [v for part in converter.converters for v in right_values(target, "", part)]
    if isinstance(converter, arg.Whole):
        return [str(converter.least), str(converter.least + 1), f"np.int64({converter.least + 2})"]
    if isinstance(converter, arg.Number):
        return [
            text
            for text in ("0.5", "0.25", "1", "2.0", "np.float32(0.5)")
            if accepts(converter, text)
        ]
    if isinstance(converter, arg.Choice):
        return [repr(choice) for choice in converter.names]
    if isinstance(converter, arg.Instance):
        return VALID.get(converter.cls.__name__, ["None"])
    return VALID.get(type(converter).__name__, ["None"])


def accepts(converter: arg.Converter, text: str) -> bool:
    try:
        converter("x", eval(text, values.SPACE))
    except LimbeckError:
        return False
    return True


@st.composite
def calls(draw: st.DrawFn, known: list[Target]) -> tuple[Target, str]:
    r"""A target, and a call of it as source."""
    target = draw(st.sampled_from(known))
    if target.name in values.SLOW and draw(st.integers(0, 9)):
        target = draw(st.sampled_from([each for each in known if each.name not in values.SLOW]))
    names = [n for n, p in target.parameters.items() if p.kind is not p.VAR_KEYWORD]
    names = [n for n in names if n != "argument"]  # what errors call it: for limbeck itself
    extra: list[str] = []
    if len(names) < len(target.parameters) and target.name in values.VERBS:
        extra = draw(
            st.lists(
                st.sampled_from([*sorted(field.name for field in fields(Training)), "sixe"]),
                max_size=2,
                unique=True,
            )
        )
    wrong = draw(st.sampled_from((0, 0, 1, 1, 1, 1, 2, 3)))
    both = [*names, *(n for n in extra if n not in names)]
    bad = set(draw(st.lists(st.sampled_from(both), max_size=wrong))) if both else set()
    positional, keywords = [], []
    for name in both:
        parameter = target.parameters.get(name)
        converter = target.converters.get(name) or TRAINING.get(name)
        right = right_values(target.name, name, converter)
        if name in bad:
            text = draw(st.sampled_from(NASTY))
        elif parameter is not None and parameter.default is not parameter.empty:
            if (forced := FORCED.get(f"{target.name}.{name}", FORCED.get(name))) is not None:
                text = forced
            elif draw(st.integers(0, 3)):
                continue
            else:
                text = draw(st.sampled_from(right))
        else:
            text = (
                FORCED[name] if name in FORCED and name in extra else draw(st.sampled_from(right))
            )
        if parameter is not None and parameter.kind is parameter.VAR_POSITIONAL:
            positional += [text, *draw(st.lists(st.sampled_from(right), max_size=2))]
        elif parameter is not None and parameter.kind is parameter.POSITIONAL_ONLY:
            positional.append(text)
        else:
            keywords.append(f"{name}={text}")
    if target.name.startswith("Distilled") and target.name.endswith(".report"):
        keywords.append("time=False")
    if not draw(st.integers(0, 60)) and keywords:  # a wrong signature now and then
        keywords.pop(0)
    return target, f"{target.expression}({', '.join([*positional, *keywords])})"


TRAINING = arg.declared(Training)


def run(text: str) -> Outcome:
    r"""Make a call, with a limit of its time."""

    def stop(*_: object) -> None:
        raise HangError

    began = time.monotonic()
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        with (
            warnings.catch_warnings(record=True) as caught,
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("always")
            result = eval(compile(text, "<call>", "eval"), dict(values.SPACE))
            if inspect.isgenerator(result):
                result = next(result, None)
        return Outcome("nan") if not caught and values.is_nan(result) else Outcome("returned")
    except LimbeckError:
        return Outcome("refused")
    except HangError:
        return Outcome("hang")
    except MemoryError:
        return Outcome("memory")
    except Exception as error:
        late = time.monotonic() - began > SECONDS  # a compiled step turns HangError into another
        return Outcome("hang") if late else judge(error)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def judge(error: Exception) -> Outcome:
    r"""Whose an exception is that is not limbeck's."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    within = [f for f in frames if "limbeck" in f.filename and f.name != "checked"]
    message = f"{type(error).__name__}: {str(error)[:150]}"
    if isinstance(error, TypeError) and not within and frames[-1].name in BINDING:
        return Outcome("signature")
    if isinstance(error, NameError) and frames[-1].filename == "<call>":
        raise error  # a mistake in the table of values
    arity = isinstance(error, TypeError) and re.search(ARITY, str(error))  # of such a function
    last = within[-1] if within else frames[-1]
    module = "torch/nn/modules" in frames[-1].filename and "limbeck/models" not in last.filename
    if (
        arity
        or module
        or frames[-1].filename
        in (
            "<call>",
            values.__file__,
        )
    ):  # of a function that the call passes
        return Outcome("own", error=message)
    if "can't allocate memory" in message or "Storage size calculation overflowed" in message:
        return Outcome("memory", error=message)
    place = f"{Path(last.filename).as_posix().rpartition('src/')[2]}:{last.lineno}"
    return Outcome("foreign", place, message)


def work(number: int, count: int, start: int, only: str, out: Path) -> None:
    r"""Make calls, and write what they ended in, line by line."""
    import torch

    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    known = [target for target in targets() if only in target.name]
    done = 0
    with tempfile.TemporaryDirectory() as folder, open(out, "a", encoding="utf-8") as file:
        values.prepare(Path(folder))
        while done < count:
            batch = min(count - done, 2000)

            @seed(start + 1000 * number + done)
            @settings(max_examples=batch, deadline=None, database=None, phases=[Phase.generate],
                      suppress_health_check=list(HealthCheck))  # fmt: skip
            @given(calls(known))
            def make(call: tuple[Target, str]) -> None:
                nonlocal done
                target, text = call
                print(json.dumps(["begin", target.name, text]), file=file, flush=True)
                os.chdir(folder)
                began = time.monotonic()
                outcome = run(text)
                seconds = round(time.monotonic() - began, 3)
                print(json.dumps([*outcome, target.name, text, seconds]), file=file, flush=True)
                done += 1

            make()


def records(paths: list[Path]) -> Iterator[list[Any]]:
    for path in paths:
        begun = None
        for line in path.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            if entry[0] == "begin":
                begun = entry
                continue
            begun = None
            yield entry
        if begun is not None:  # the process died within a call
            yield ["hang", "", "the process ended", begun[1], begun[2], 0]


def fuzz(
    count: int, workers: int = 2, start: int = 0, only: str = ""
) -> tuple[dict[str, Counter[str]], list[list[Any]]]:
    r"""Outcomes by callable, and the calls that did not end well."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.jsonl" for number in range(workers)]
        context = multiprocessing.get_context("spawn")
        jobs = [
            context.Process(target=work, args=(n, -(-count // workers), start, only, path))
            for n, path in enumerate(paths)
        ]
        for job in jobs:
            job.start()
        for job in jobs:
            job.join()
        table: dict[str, Counter[str]] = defaultdict(Counter)
        bad = []
        for entry in records([path for path in paths if path.exists()]):
            kind, name = entry[0], entry[3]
            if kind == "foreign" and name in PENDING:
                kind = "pending"
            table[name][kind] += 1
            if kind in ("foreign", "hang", "memory", "nan"):
                bad.append(entry)
    return table, bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=50_000, help="number of calls")
    parser.add_argument("--workers", type=int, default=2, help="number of processes")
    parser.add_argument("--seed", type=int, default=0, help="of the calls")
    parser.add_argument("--only", default="", help="callables whose names contain this")
    options = parser.parse_args()
    began = time.monotonic()
    table, bad = fuzz(options.calls, options.workers, options.seed, options.only)
    total: Counter[str] = sum(table.values(), Counter())
    print(f"{'callable':42}" + "".join(f"{kind:>10}" for kind in OUTCOMES))
    for name, counts in [*sorted(table.items()), ("all", total)]:
        print(f"{name:42}" + "".join(f"{counts[kind]:10}" for kind in OUTCOMES))
    places: dict[tuple[str, ...], list[Any]] = {}
    for entry in sorted(bad, key=lambda entry: len(entry[4])):
        places.setdefault(
            (entry[0], entry[1], entry[2].split(":")[0] if entry[1] else entry[3]), entry
        )
    for (kind, place, _), entry in sorted(places.items()):
        print(f"\n{kind} {place} {entry[2]}\n    {entry[4]}")
    foreign = sum(key[0] == "foreign" for key in places)
    print(f"\n{total.total():,} calls of {len(table)} callables, {time.monotonic() - began:,.0f} s")
    print(f"{total['foreign']:,} foreign exceptions at {foreign} places")
    return 1 if total["foreign"] or total["nan"] else 0


if __name__ == "__main__":
    sys.exit(main())
