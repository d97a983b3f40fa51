r"""A result folder: it is complete, or marked as unfinished and can be resumed."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from limbeck.cli.files import require_path
from limbeck.cli.options import read_config, to_toml
from limbeck.errors import ArgumentError, LimbeckError

LOCK = ".lock"  # the system holds it for the process, so that a killed one leaves none behind
CONFIG, STUDENT, RESULT, UNFINISHED = "config.toml", "student", "result.json", "UNFINISHED"
# options that change nothing about a result
PRINTING = ("out", "json", "quiet", "require", "verdicts", "export", "checkpoint_seconds")


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    r"""Lock a folder, which is made if needed, and removed at the end if it is empty."""
    from filelock import FileLock, Timeout

    if folder.exists() and not folder.is_dir():
        raise ArgumentError("--out", f"{folder}, which is a file", "a folder, new or empty")
    lock = FileLock(folder / LOCK, thread_local=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        message = f"--out: another run is using {folder}; wait for it, stop it, or choose"
        raise LimbeckError(f"{message} another folder with --out") from None
    except OSError as error:
        raise _not_writable(folder, error) from error
    try:
        yield
    finally:
        with suppress(OSError):  # where open files cannot be removed
            (folder / LOCK).unlink()
        lock.release()
        with suppress(OSError):  # it holds a result
            folder.rmdir()


def _not_writable(folder: Path, error: Exception) -> ArgumentError:
    received = f"{folder}, which cannot be written to ({error})"
    return ArgumentError("--out", received, "a folder that can be created here")


class Folder:
    r"""Where a command writes: the folder, or beside a result, until the new one is complete."""

    def __init__(
        self, path: Path, command: str, options: Mapping[str, Any], overwrite: bool = False
    ) -> None:
        self.path, self.command, self.options = path, command, dict(options)
        self.replaces = _is_result(path)
        self.work = path.with_name(f"{path.name}.unfinished") if self.replaces else path
        self.checkpoint = self.work / "checkpoint"  # what an unfinished run needs to continue
        if self.replaces and not overwrite:
            self._refuse_other(path, "a result")
        if overwrite and is_unfinished(self.work):
            _clear(self.work)
        self.resumes = is_unfinished(self.work)
        digests = {}  # of the files that options name
        for value in _settings(self.options).values():
            for name in value if isinstance(value, list) else [value]:
                if isinstance(name, str) and Path(name).is_file():
                    with open(name, "rb") as file:
                        digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
        if self.resumes:
            self._refuse_other(self.work, "an unfinished run")
            saved = json.loads((self.work / UNFINISHED).read_text(encoding="utf-8"))
            if changed := [name for name in digests if saved.get(name) != digests[name]]:
                received = f"{self.work}, an unfinished run, since which {changed[0]} has changed"
                expected = "another folder, or --overwrite to start again"
                raise ArgumentError("--out", received, expected)
            return
        from limbeck.storage.files import write_text

        refuse_other_content(self.work)
        try:
            self.work.mkdir(parents=True, exist_ok=True)
            write_text(self.work / UNFINISHED, json.dumps(digests, indent=1) + "\n")
            write_text(self.work / CONFIG, to_toml(command, options))
        except (OSError, LimbeckError) as error:
            raise _not_writable(self.work, error) from error

    @property
    def saved_steps(self) -> int:
        r"""The number of steps that checkpoints hold."""
        from limbeck.storage import files

        return sum(files.read(path)[1]["done"] for path in self.checkpoint.rglob(files.FILE))

    @property
    def has_checkpoint(self) -> bool:
        r"""Whether the run can be resumed."""
        return any(path.is_file() for path in self.checkpoint.rglob("*"))

    def finish(self) -> Path:
        r"""Remove the mark, or move the new result over the old one."""
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        if self.replaces:
            for name in ("report.html", "report.json", "report.md"):  # of the old result
                (self.path / name).unlink(missing_ok=True)
            for entry in sorted(self.work.iterdir(), key=lambda path: path.name == RESULT):
                place = self.path / entry.name
                if entry.name != UNFINISHED:
                    if place.is_dir():
                        shutil.rmtree(place)
                    entry.replace(place)
            shutil.rmtree(self.work)
        else:
            (self.work / UNFINISHED).unlink()
        return self.path

    def abandon(self) -> None:
        r"""Remove what cannot be resumed."""
        if not self.has_checkpoint:
            with suppress(OSError):
                _clear(self.work)
                self.work.rmdir()  # a lock in it is removed by its owner

    def _refuse_other(self, place: Path, what: str) -> None:
        r"""Refuse a folder whose settings are others."""
        if different := _differences(place, self.command, self.options):
            received = f"{place}, which holds {what} of other settings: {'; '.join(different)}"
            raise ArgumentError("--out", received, "another folder, or --overwrite to replace it")


def refuse_other_content(path: Path) -> None:
    r"""Refuse a folder with anything in it that limbeck has not written."""
    if not path.exists() or _is_result(path) or is_unfinished(path):
        return
    if not path.is_dir() or any(entry.name != LOCK for entry in path.iterdir()):
        what = "is a file" if not path.is_dir() else "holds other things than a result"
        expected = "a new or empty folder, or one that the same command wrote"
        raise ArgumentError("--out", f"{path}, which {what}", expected)


def _clear(folder: Path) -> None:
    r"""Remove everything from a folder but its lock, which may be held."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != LOCK:
            entry.unlink()


def default_folder(command: str, options: Mapping[str, Any]) -> Path:
    r"""The folder of a command that names none: one with the same settings, or the next new one."""
    for number in itertools.count(1):
        path = Path(f"limbeck-{command}" + (f"-{number}" if number > 1 else ""))
        ours = _is_result(path) or is_unfinished(path)
        if not path.exists() or (ours and not _differences(path, command, options)):
            return path
    raise AssertionError


def _differences(place: Path, command: str, options: Mapping[str, Any]) -> list[str]:
    r"""The differences between the settings of a folder and the given ones, as text."""
    from limbeck.storage.files import differences

    saved = read_config(place / CONFIG)
    if (other := saved.pop("command", None)) != command:
        return [f"it is of limbeck {other}"]
    return differences(_settings(saved), _settings(options))


def _is_result(path: Path) -> bool:
    return (path / RESULT).exists() and (path / CONFIG).exists() and not is_unfinished(path)


def is_unfinished(path: Path) -> bool:
    r"""Whether a folder holds an unfinished run."""
    return (path / UNFINISHED).exists() and (path / CONFIG).exists()


def resume_command(path: Path) -> str:
    r"""The command that resumes an unfinished run."""
    return f"limbeck {read_config(path / CONFIG).get('command')} --config {path / CONFIG}"


def _settings(options: Mapping[str, Any]) -> dict[str, Any]:
    r"""The options that a result depends on and that have a value."""
    return {name: v for name, v in options.items() if name not in PRINTING and v is not None}


def result_folder(path: Path) -> Path:
    r"""A finished result's folder, or an error that says what is wrong with the path."""
    expected = "a folder that one of limbeck's commands wrote"
    require_path(path, "result", expected, "folder")
    if is_unfinished(path):
        again = f"{expected}; {resume_command(path)}"
        raise ArgumentError("result", f"{path}, whose run is unfinished", again)
    if not (path / RESULT).exists():
        raise ArgumentError("result", f"{path}, without {RESULT}", expected)
    return path
