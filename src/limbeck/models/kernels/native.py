r"""C++ sources of limbeck's own, compiled on the user's machine when they are first wanted."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

__all__ = ["library", "log"]

FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-fno-math-errno", "-fno-trapping-math")
TUNED: tuple[list[str], ...] = (
    ["-march=native", "-fopenmp"],
    ["-mcpu=native", "-fopenmp"],
    ["-march=native"],
    [],
)
r"""What is tried in turn beside: compilers and processors do not all know all of these."""

log = logging.getLogger("limbeck")


@functools.cache
def library(name: str) -> ctypes.CDLL | None:
    r"""The library made of a source beside this file, or None where it cannot be made.

    It takes a second or two once, and is kept in the user's cache folder. Without a compiler, or
    with LIMBECK_NATIVE=0 in the environment, there is none, and the callers do without.
    """
    if os.environ.get("LIMBECK_NATIVE", "1") == "0" or os.name != "posix":
        return None
    compiler = next(filter(None, map(shutil.which, _compilers())), None)
    if compiler is None:
        log.debug("native kernels: no C++ compiler")
        return None
    source = Path(__file__).with_name(name)
    try:
        known = hashlib.sha256("\n".join(_circumstances(compiler)).encode())
        known.update(source.read_bytes())
        made = _folder() / f"{source.stem}-{known.hexdigest()[:24]}.so"
        if not made.exists():
            _compile(compiler, source, made)
        return ctypes.CDLL(str(made))
    except (OSError, subprocess.SubprocessError) as error:
        log.debug("native kernels: %s", error)
        return None


def _compilers() -> Sequence[str]:
    return [*os.environ.get("CXX", "").split()[:1], "c++", "g++", "clang++"]


def _circumstances(compiler: str) -> list[str]:
    r"""All that the machine code depends on: it must not reach another processor's machine."""
    ran = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=60)
    processor = platform.processor()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        first = (line for line in lines if line.startswith(("flags", "Features", "model name")))
        processor = "\n".join(sorted(set(first)))
    return [compiler, ran.stdout, platform.machine(), processor, torch.__version__, str(FLAGS)]


def _folder() -> Path:
    r"""Where libraries are kept: nobody else may write there, since they are run."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get("LIMBECK_CACHE") or Path(home) / "limbeck")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = folder.stat()
        if found.st_uid == os.getuid() and not found.st_mode & 0o022 and os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="limbeck-"))


def _compile(compiler: str, source: Path, made: Path) -> None:
    r"""Compile under another name, then rename: other processes may be at it as well."""
    handle, temporary = tempfile.mkstemp(dir=made.parent, suffix=".so")
    os.close(handle)
    try:
        for tuned in TUNED:
            command = [compiler, *FLAGS, *tuned, str(source), "-o", temporary]
            ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
            if ran.returncode == 0:
                os.replace(temporary, made)
                return
        raise OSError(f"{source.name} did not compile: {ran.stderr[-500:]}")
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
