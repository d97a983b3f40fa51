r"""One run at a time in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from limbeck.errors import ArgumentError, LimbeckError

__all__ = ["LOCK", "alone"]

LOCK = ".lock"
r"""The file that is locked, as long as a run works in its folder.

The system holds the lock for the process, so that one which was killed leaves none behind.
"""


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    r"""Within, no other run may work in the folder, which is made if it is not there.

    Whoever comes second is refused. A folder that is empty at the end is taken away again.
    """
    from filelock import FileLock, Timeout

    if folder.exists() and not folder.is_dir():
        raise ArgumentError("--out", f"{folder}, which is a file", "a folder, new or empty")
    lock = FileLock(folder / LOCK, thread_local=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise LimbeckError(
            f"--out: another run is at work in {folder}; wait for it, stop it, or name another "
            "folder with --out"
        ) from None
    except OSError as error:
        received = f"{folder}, which cannot be written to ({error})"
        raise ArgumentError("--out", received, "a folder that can be made here") from error
    try:
        yield
    finally:
        with suppress(OSError):  # where open files cannot be removed
            (folder / LOCK).unlink()
        lock.release()
        with suppress(OSError):  # it holds a result
            folder.rmdir()
