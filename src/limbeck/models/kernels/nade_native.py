r"""NADE on a CPU by C++ kernels, which are compiled at first use."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from limbeck.models.checks import Maybe, Pair

FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-fno-math-errno", "-fno-trapping-math")
# further flags to try in turn: not all compilers and processors know all of these
TUNED = ("-march=native -fopenmp", "-mcpu=native -fopenmp", "-march=native", "")

log = logging.getLogger("limbeck")


@functools.cache
def library(name: str) -> ctypes.CDLL | None:
    r"""The library compiled from a source beside this file, cached; None without a compiler."""
    if os.environ.get("LIMBECK_NATIVE", "1") == "0" or os.name != "posix":
        return None
    if (compiler := cpp_compiler()) is None:
        log.debug("native kernels: no C++ compiler")
        return None
    source = Path(__file__).with_name(name)
    try:
        digest = hashlib.sha256(_environment(compiler).encode() + source.read_bytes())
        compiled = _folder() / f"{source.stem}-{digest.hexdigest()[:24]}.so"
        if not compiled.exists() or not _is_private(compiled):
            _compile(compiler, source, compiled)
        return ctypes.CDLL(str(compiled))
    except (OSError, subprocess.SubprocessError) as error:
        log.debug("native kernels: %s", error)
        return None


def cpp_compiler() -> str | None:
    r"""The path of the C++ compiler that builds kernels, if there is one."""
    names = [*os.environ.get("CXX", "").split()[:1], "c++", "g++", "clang++"]
    return next(filter(None, map(shutil.which, names)), None)


def _environment(compiler: str) -> str:
    r"""All that the machine code depends on: another processor must not run it."""
    ran = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=60)
    processor = platform.processor()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        features = (line for line in lines if line.startswith(("flags", "Features", "model name")))
        processor = "\n".join(sorted(set(features)))
    parts = (compiler, ran.stdout, platform.machine(), processor, torch.__version__, str(FLAGS))
    return "\n".join(parts)


def _folder() -> Path:
    r"""The folder of libraries: since they are run, nobody else may write there."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get("LIMBECK_CACHE") or Path(home) / "limbeck")
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        own = folder.lstat().st_uid == os.getuid()  # a link of another user leads where he likes
        folder = folder.resolve()
        modes = [parent.stat().st_mode for parent in folder.parents]
        movable = any(mode & stat.S_IWOTH and not mode & stat.S_ISVTX for mode in modes)
        if own and not movable and _is_private(folder) and os.access(folder, os.W_OK):
            return folder
    temporary = tempfile.mkdtemp(prefix="limbeck-")
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    return Path(temporary)


def _is_private(path: Path) -> bool:
    r"""Whether a file or folder, and no link to one, is this user's and nobody else may write."""
    status = path.lstat()
    own = status.st_uid == os.getuid() and not stat.S_ISLNK(status.st_mode)
    return own and not status.st_mode & 0o022


def _compile(compiler: str, source: Path, compiled: Path) -> None:
    r"""Compile under another name, then rename: other processes may do the same."""
    with tempfile.TemporaryDirectory(dir=compiled.parent) as folder:
        temporary = Path(folder) / compiled.name
        for tuned in TUNED:
            command = [compiler, *FLAGS, *tuned.split(), str(source), "-o", str(temporary)]
            ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
            if ran.returncode == 0:
                temporary.chmod(0o700)
                temporary.replace(compiled)
                return
        raise OSError(f"{source.name} did not compile: {ran.stderr[-500:]}")


NAMES = {torch.float32: "float", torch.float64: "double"}
GROUP = 64  # rows that pass over a tile of hidden units before the next tile
CHUNK = 256  # rows whose lists of changes are kept at a time
ROWS = 8  # rows that are sampled in step, as in the source


@functools.cache
def available() -> bool:
    r"""Whether the kernels compile here, and are right on a small example."""
    from limbeck.models.kernels.nade_op import nade_formula

    if library("nade.cpp") is None:
        return False
    generator = torch.Generator().manual_seed(0)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        d, w, u = torch.randn(3, 5, 5, generator=generator, dtype=dtype)
        x, c = (w > 0).to(dtype), u[0]
        native = (logits(x, w, c, u), *pull(d, x, w, c, u, wants_x=True))
        z, pull_back = torch.func.vjp(nade_formula, x, w, c, u)[:2]
        pairs = zip(native, (z, *pull_back(d)), strict=True)
        if not all(torch.allclose(one, two, rtol=tolerance, atol=tolerance) for one, two in pairs):
            log.warning("native kernels: they give other numbers here, and are not used")
            return False
    return True


def logits(x: Tensor, w: Tensor, c: Tensor, u: Tensor, period: int = 1) -> Tensor:
    r"""The logits (n, I) of a NADE but for biases; `period` inputs stand for one variable."""
    x, w, c, u = (tensor.contiguous() for tensor in (x, w, c, u))
    (n, inputs), (tiles, width), threads = x.shape, _tiles(w), torch.get_num_threads()
    z, group = torch.empty_like(x), max(min(GROUP, -(-n // threads)), 1)
    packed = w.new_empty(tiles * (2 * inputs + 1) * width)  # working memory
    lists = torch.empty(threads * group * (2 * inputs + 1), dtype=torch.int32)
    _call("logits", x, w, period, x, w, c, u, packed, z, lists, group, threads)
    return z


def pull(
    d: Tensor, x: Tensor, w: Tensor, c: Tensor, u: Tensor, period: int = 1, wants_x: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""The pull-back of d (n, I): to x, (0,) if not wanted, and to w, c and u."""
    d, x, w, c, u = (tensor.contiguous() for tensor in (d, x, w, c, u))
    (n, inputs), (tiles, width), threads = x.shape, _tiles(w), torch.get_num_threads()
    parts, states = -(-threads // tiles), 2 * inputs + 1
    gw, gc, gu = (torch.empty_like(parameter) for parameter in (w, c, u))
    sizes = (tiles * states * width, (tiles * parts * states + threads * inputs) * width)
    packed, sums = map(w.new_empty, sizes)
    lists = torch.empty(max(min(n, CHUNK), threads) * states, dtype=torch.int32)
    shared = (period, x, w, c, u, packed, d)
    _call("pull", x, w, *shared, gw, gc, gu, sums, lists, CHUNK, parts, threads)
    gx = torch.empty_like(x) if wants_x else x.new_empty(0)
    if wants_x:
        _call("pull_inputs", x, w, *shared, gx, sums, lists, threads)
    return gx, gw, gc, gu


def sample(uniforms: Tensor, w: Tensor, c: Tensor, u: Tensor, b: Tensor, m: Maybe = None) -> Pair:
    r"""x (n, I), with x_i = 1 where uniforms_i < p(x_i = 1 | x_<i), and these probabilities."""
    uniforms, w, c, u, b = (tensor.contiguous() for tensor in (uniforms, w, c, u, b))
    m = None if m is None else m.contiguous()
    (tiles, width), threads = _tiles(w), torch.get_num_threads()
    x, probabilities = torch.empty_like(uniforms), torch.empty_like(uniforms)
    rows = w.new_empty(threads * tiles * (2 * ROWS + 2) * width)
    _call("sample", uniforms, w, uniforms, w, c, u, b, m, x, probabilities, rows, threads)
    return x, probabilities


def _tiles(w: Tensor) -> tuple[int, int]:
    r"""The number of tiles of hidden units, and hidden units in a tile."""
    width = int(_function("width", w.dtype)())
    return -(-w.shape[1] // width), width


@functools.cache
def _function(name: str, dtype: torch.dtype) -> Any:
    function = getattr(library("nade.cpp"), f"nade_{name}_{NAMES[dtype]}")
    function.restype = ctypes.c_int64 if name == "width" else None
    return function


def _call(name: str, x: Tensor, w: Tensor, *arguments: Tensor | int | None) -> None:
    r"""Call a function of the library with the sizes n, I and J, then the arguments."""

    def converted(argument: Tensor | int | None) -> ctypes.c_int64 | ctypes.c_void_p:
        if isinstance(argument, int):
            return ctypes.c_int64(argument)
        return ctypes.c_void_p(None if argument is None else argument.data_ptr())

    _function(name, x.dtype)(*map(converted, (len(x), *w.shape, *arguments)))
