r"""Independent runs in several processes; their results go to a file that a later run continues."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
import warnings
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch

__all__ = ["add_options", "run_all"]


def add_options(parser: ArgumentParser) -> None:
    r"""Add the options of `run_all`."""
    parser.add_argument("--workers", type=int, default=1, help="processes, each of one thread")
    parser.add_argument("--stop-after", type=float, default=None, help="begin no run after seconds")
    parser.add_argument("--fresh", action="store_true", help="discard earlier results")


def run_all(
    function: Callable[..., Any], jobs: Mapping[str, tuple[Any, ...]], file: Path, *,
    workers: int = 1, stop_after: float | None = None, fresh: bool = False, cpu_clock: bool = False,
) -> dict[str, Any]:  # fmt: skip
    r"""`function(*arguments)` of every job, by the job's name, in the order of `jobs`.

    Each result is appended to `file` as a line of JSON when it is there, and printed. Jobs that the
    file has are not run again.

    Arguments:
        function: Of a module's top level; its result can be written as JSON.
        jobs: Arguments by name.
        file: Lines of JSON. A line that is incomplete, after an interruption, is ignored.
        workers: Processes, each with one thread of torch; 1 runs in this process.
        stop_after: Seconds after which no job is begun; jobs without results are left out.
        fresh: Whether to discard what the file has.
        cpu_clock: Whether limbeck's clock is the process's CPU time, so that other work on the
            machine does not matter.
    """
    began = time.time()
    file.parent.mkdir(parents=True, exist_ok=True)
    if fresh:
        file.unlink(missing_ok=True)
    results = dict(_read(file))
    missing = {name: arguments for name, arguments in jobs.items() if name not in results}
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    deadline = None if stop_after is None else began + stop_after
    with file.open("a", encoding="utf-8") as lines:
        runs = _in_turn if workers == 1 else _in_processes
        for name, result in runs(function, missing, workers, deadline, cpu_clock):
            results[name] = result
            lines.write(json.dumps({"name": name, "result": result}) + "\n")
            lines.flush()
            done = sum(name in results for name in jobs)
            text = f"{time.time() - began:.0f} s {done}/{len(jobs)} {name}: {result}"
            print(text if len(text) < 400 else f"{text[:400]}…", flush=True)
    return {name: results[name] for name in jobs if name in results}


def _read(file: Path) -> Iterator[tuple[str, Any]]:
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        yield record["name"], record["result"]


def _prepare(cpu_clock: bool) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if cpu_clock:
        time.monotonic = time.process_time  # limbeck's clock


Runs = Iterator[tuple[str, Any]]
Jobs = dict[str, tuple[Any, ...]]


def _in_turn(
    function: Callable[..., Any], jobs: Jobs, workers: int, deadline: float | None, cpu_clock: bool
) -> Runs:
    clock, threads = time.monotonic, torch.get_num_threads()
    try:
        with warnings.catch_warnings():
            _prepare(cpu_clock)
            for name, arguments in jobs.items():
                if deadline is not None and time.time() > deadline:
                    return
                yield name, function(*arguments)
    finally:
        time.monotonic = clock
        torch.set_num_threads(threads)


def _in_processes(
    function: Callable[..., Any], jobs: Jobs, workers: int, deadline: float | None, cpu_clock: bool
) -> Runs:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _prepare, (cpu_clock,)) as pool:
        waiting, running = list(jobs.items())[::-1], dict[Any, str]()
        while waiting or running:
            if deadline is not None and time.time() > deadline:
                waiting.clear()
            while waiting and len(running) < workers:
                name, arguments = waiting.pop()
                running[pool.submit(function, *arguments)] = name
            for job in wait(running, timeout=5, return_when=FIRST_COMPLETED).done:
                yield running.pop(job), job.result()
