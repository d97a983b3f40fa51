r"""The operations that change the disk, and the lock of a file or folder; nothing else writes."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

Content: TypeAlias = bytes  # of a file, where a class has a property of that name

# Until it is complete, a file has a pending name with the token of its writer: files of a folder
# end in .new, single ones in .tmp.
PENDING = re.compile(r"\.(?P<name>.+)\.(?P<token>[0-9a-f]{12})\.(?P<kind>new|tmp)")
LOCK = re.compile(r"\..+\.lock")
LOCK_SECONDS = 10.0  # for which a writer waits for another


def pending_name(name: str, token: str, kind: str = "new") -> str:
    r"""The name of a file before it takes its place."""
    return f".{name}.{token}.{kind}"


def is_own(name: str) -> bool:
    r"""Whether a name is that of a pending file or of a lock."""
    return (PENDING.fullmatch(name) or LOCK.fullmatch(name)) is not None


def read(path: Path, size: int | None = None) -> bytearray:
    r"""The content of a file that is no link, pipe or device; at most `size` bytes of it."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # a pipe may have no writer
    with os.fdopen(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "no regular file")
        try:
            content = bytearray(about.st_size if size is None else min(size, about.st_size))
        except MemoryError:
            raise OSError(errno.ENOMEM, f"{about.st_size:,} bytes are too many") from None
        del content[file.readinto(content) :]
    return content


def create(path: Path, content: bytes, start: int | None = None) -> None:
    r"""Write a new file, or a file's end from byte `start` on; wait until it is on the disk."""
    mode = os.O_EXCL if start is None else getattr(os, "O_NOFOLLOW", 0)
    flags = mode | os.O_CREAT | os.O_WRONLY | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags, 0o666)  # less the umask
    try:
        os.ftruncate(descriptor, start or 0)
        os.lseek(descriptor, start or 0, os.SEEK_SET)
        view = memoryview(content)
        while view.nbytes:
            view = view[os.write(descriptor, view[: 2**26]) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_folder(folder: Path) -> None:
    r"""Wait until the names in a folder are on the disk, where the system can do that."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def replace(source: Path, path: Path) -> None:
    r"""Give a file another name, at once, in place of what has that name."""
    os.replace(source, path)


def remove(path: Path) -> None:
    r"""Remove a file, or a folder with all that is in it, if it is there."""
    if path.is_dir() and not path.is_symlink():
        for entry in list(os.scandir(path)):
            remove(Path(entry.path))
        os.rmdir(path)
    else:
        with suppress(FileNotFoundError):
            os.unlink(path)


def make_folder(folder: Path) -> None:
    r"""Make a folder and those that it is in, if needed."""
    if not folder.is_dir():
        os.makedirs(folder, exist_ok=True)


def remove_empty(folder: Path) -> None:
    r"""Remove a folder if there is nothing in it."""
    with suppress(OSError):
        os.rmdir(folder)


def remove_tree(path: Path) -> None:
    r"""Remove a folder with all that is in it; it is gone at once, or still whole."""
    if path.is_dir():
        gone = path.parent / pending_name(path.name, secrets.token_hex(6))
        os.replace(path, gone)
        remove(gone)


def remove_pending(folder: Path, kind: str = "new", name: str | None = None) -> None:
    r"""Remove what killed processes have left, of one file or of all; the lock must be held."""
    for entry in list(os.scandir(folder)):
        match = PENDING.fullmatch(entry.name)
        if match is not None and match["kind"] == kind and name in (None, match["name"]):
            with suppress(OSError):
                remove(Path(entry.path))


def write_file(path: Path, content: bytes) -> None:
    r"""Write a file, completely or not at all; it replaces another of that name."""
    make_folder(path.parent)
    pending = path.parent / pending_name(path.name, secrets.token_hex(6), "tmp")
    try:
        create(pending, content)
        replace(pending, path)
    except BaseException:
        with suppress(OSError):
            remove(pending)
        raise


@contextmanager
def lock(path: Path, seconds: float | None = None) -> Iterator[None]:
    r"""Lock a path against other processes and threads; a killed process holds no lock.

    It raises a TimeoutError if another holds it for so many seconds, by default `LOCK_SECONDS`.
    """
    import fcntl

    file = path.with_name(f".{path.name}.lock")
    deadline = time.monotonic() + (LOCK_SECONDS if seconds is None else seconds)
    while True:
        descriptor = os.open(file, os.O_CREAT | os.O_RDWR | getattr(os, "O_NOFOLLOW", 0), 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.lstat(file)):
                break
        except (BlockingIOError, FileNotFoundError):  # held, or removed by its last holder
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        if time.monotonic() >= deadline:
            raise TimeoutError(f"{path} is locked by another process")
        time.sleep(0.01)
    try:
        yield
    finally:
        try:
            with suppress(OSError):
                os.unlink(file)
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # also where a child process has inherited it
            os.close(descriptor)
