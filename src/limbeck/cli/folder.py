r"""A result's folder: it appears whole, or is marked as unfinished and can be gone on with."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from limbeck.cli import config
from limbeck.cli.errors import state
from limbeck.errors import ArgumentError, LimbeckError

__all__ = [
    "CHECKPOINT",
    "CONFIG",
    "LOCK",
    "STUDENT",
    "UNFINISHED",
    "Folder",
    "alone",
    "free",
    "refuse_foreign",
    "result_folder",
]

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


CONFIG, STUDENT, CHECKPOINT, RESULT = "config.toml", "student", "checkpoint", "result.json"
UNFINISHED = "UNFINISHED"
PAGES = ("report.html", "report.json", "report.md")

SHOWING = ("out", "json", "quiet", "require", "verdicts", "export", "checkpoint_seconds")
r"""Options that change nothing about a result."""


class Folder:
    r"""Where a command writes.

    The work is done in the folder itself, or beside it if a finished result is there, which stays
    until the new one is whole.

    Arguments:
        path: The folder that the user named.
        command: The name of the command.
        options: Every option, by name.
        overwrite: Whether a result of other settings may be replaced.
    """

    def __init__(
        self, path: Path, command: str, options: Mapping[str, Any], overwrite: bool = False
    ) -> None:
        self.path, self.command, self.options = path, command, dict(options)
        self.again = _is_result(path)
        self.work = path.with_name(f"{path.name}.unfinished") if self.again else path
        if self.again and not overwrite:
            self._refuse_other(path, "a result")
        self.resumes = _marked(self.work)
        if self.resumes and overwrite:
            _empty(self.work)
            self.resumes = False
        if self.resumes:
            self._refuse_other(self.work, "an unfinished run")
            self._same_files()
        else:
            self._begin()

    @property
    def checkpoint(self) -> Path:
        r"""Where everything is kept that an unfinished run goes on with."""
        return self.work / CHECKPOINT

    @property
    def saved_steps(self) -> int:
        r"""How many steps checkpoints hold."""
        from limbeck.storage import files

        return sum(files.read(each)[1]["done"] for each in self.checkpoint.rglob(files.FILE))

    def finish(self) -> Path:
        r"""Declare the result whole."""
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        if self.again:
            for name in PAGES:  # they show the result that was there
                (self.path / name).unlink(missing_ok=True)
            for entry in sorted(self.work.iterdir(), key=lambda each: each.name == RESULT):
                place = self.path / entry.name
                if entry.name != UNFINISHED:
                    if place.is_dir():
                        shutil.rmtree(place)
                    entry.replace(place)
            shutil.rmtree(self.work)
        else:
            (self.work / UNFINISHED).unlink()
        return self.path

    @property
    def kept(self) -> bool:
        r"""Whether there is anything to go on with."""
        return any(each.is_file() for each in self.checkpoint.rglob("*"))

    def abandon(self) -> None:
        r"""Take away what cannot be gone on with."""
        if not self.kept:
            with contextlib.suppress(OSError):
                _empty(self.work)
                self.work.rmdir()  # a lock in it is taken away by its owner

    def _begin(self) -> None:
        from limbeck.storage.files import write_text

        refuse_foreign(self.work)
        try:
            self.work.mkdir(parents=True, exist_ok=True)
            write_text(self.work / UNFINISHED, json.dumps(self._files(), indent=1) + "\n")
            write_text(self.work / CONFIG, config.written(self.command, self.options))
        except (OSError, LimbeckError) as error:
            received = f"{self.work}, which cannot be written to ({error})"
            raise ArgumentError("--out", received, "a folder that can be made here") from error

    def _refuse_other(self, place: Path, what: str) -> None:
        r"""Refuse a folder whose settings are others."""
        if found := _differences(place, self.command, self.options):
            received = f"{place}, which holds {what} of other settings: {'; '.join(found)}"
            raise ArgumentError("--out", received, "another folder, or --overwrite to replace it")

    def _files(self) -> dict[str, str]:
        r"""Digests of the files that options name."""
        found = {}
        for value in _deciding(self.options).values():
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, str) and Path(each).is_file():
                    with open(each, "rb") as file:
                        found[each] = hashlib.file_digest(file, "sha256").hexdigest()
        return found

    def _same_files(self) -> None:
        saved = json.loads((self.work / UNFINISHED).read_text(encoding="utf-8"))
        changed = [name for name, digest in self._files().items() if saved.get(name) != digest]
        if changed:
            received = f"{self.work}, an unfinished run, since which {changed[0]} has changed"
            raise ArgumentError("--out", received, "another folder, or --overwrite to begin anew")


def refuse_foreign(path: Path) -> None:
    r"""Refuse a folder with anything in it that limbeck has not written."""
    if not path.exists() or _is_result(path) or _marked(path):
        return
    if not path.is_dir() or any(each.name != LOCK for each in path.iterdir()):
        what = "is a file" if not path.is_dir() else "holds other things than a result"
        expected = "a new or empty folder, or one that the same command wrote"
        raise ArgumentError("--out", f"{path}, which {what}", expected)


def _empty(folder: Path) -> None:
    r"""Take everything out of a folder but its lock, which may be held."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != LOCK:
            entry.unlink()


def free(command: str, options: Mapping[str, Any]) -> Path:
    r"""The folder of a command that names none: one with the same settings, or the next new one."""
    for number in itertools.count(1):
        path = Path(f"limbeck-{command}" + (f"-{number}" if number > 1 else ""))
        ours = _is_result(path) or _marked(path)
        if not path.exists() or (ours and not _differences(path, command, options)):
            return path
    raise AssertionError


def _differences(place: Path, command: str, options: Mapping[str, Any]) -> list[str]:
    r"""What is different about the settings of a folder, in words."""
    from limbeck.storage.files import differences

    saved = config.read(place / CONFIG)
    if (other := saved.pop(config.COMMAND, None)) != command:
        return [f"it is of limbeck {other}"]
    return differences(_deciding(saved), _deciding(options))


def _is_result(path: Path) -> bool:
    return (path / RESULT).exists() and (path / CONFIG).exists() and not _marked(path)


def _marked(path: Path) -> bool:
    return (path / UNFINISHED).exists() and (path / CONFIG).exists()


def _deciding(options: Mapping[str, Any]) -> dict[str, Any]:
    r"""What decides about a result, without what is left to limbeck."""
    return {name: v for name, v in options.items() if name not in SHOWING and v is not None}


def result_folder(path: Path) -> Path:
    r"""A finished result's folder, or an error that says what is wrong with the path."""
    expected = "a folder that one of limbeck's commands wrote"
    if not path.is_dir():
        raise ArgumentError("result", f"{path}, {state(path, 'folder')}", expected)
    if _marked(path):
        again = f"limbeck {config.read(path / CONFIG).get(config.COMMAND)} --config {path / CONFIG}"
        raise ArgumentError("result", f"{path}, whose run is not over", f"{expected}; {again}")
    if not (path / RESULT).exists():
        raise ArgumentError("result", f"{path}, without {RESULT}", expected)
    return path
