r"""A result folder: it is complete, or marked as unfinished and can be resumed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from limbeck.cli.options import parse_config, to_toml
from limbeck.errors import ArgumentError, LimbeckError, require_path
from limbeck.records import encode
from limbeck.storage import checkpoints, disk, folders
from limbeck.storage.files import differences

CONFIG, DIGESTS, RESULT = "config.toml", "digests.json", "result.json"
CHECKPOINT = "checkpoint"  # the folder that an unfinished run needs to continue
# options that change nothing about a result
PRINTING = ("out", "json", "quiet", "require", "verdicts", "export", "checkpoint_seconds")


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    r"""Lock a folder, which is made if needed, and removed at the end if it is empty."""
    with ExitStack() as stack:
        stack.callback(disk.remove_empty, folder)  # it stays if it holds a result
        try:
            disk.make_folder(folder)
            stack.enter_context(disk.lock(folder / "run", 0))
        except TimeoutError:
            message = f"--out: another run is using {folder}; wait for it, stop it, or choose"
            raise LimbeckError(f"{message} another folder with --out") from None
        except OSError as error:
            raise _not_writable(folder, error) from error
        yield


def _not_writable(folder: Path, error: Exception) -> ArgumentError:
    received = f"{folder}, which cannot be written to ({error})"
    return ArgumentError("--out", received, "a folder that can be created here")


class Folder:
    r"""Where a command writes: the folder, or beside a result, until the new one is complete."""

    def __init__(
        self, path: Path, command: str, options: Mapping[str, Any], overwrite: bool = False
    ) -> None:
        self.path, self.command, self.options = path, command, dict(options)
        replaces = _holds(path) == "result"
        self.work = path.with_name(f"{path.name}.unfinished") if replaces else path
        self.checkpoint = self.work / CHECKPOINT
        self.config = to_toml(command, options).encode()
        if replaces and not overwrite:
            self._refuse_other(path, "a result")
        refuse_other_content(self.work)
        try:
            folders.settle(self.work)
        except OSError as error:
            raise _not_writable(self.work, error) from error
        self.resumes = is_unfinished(self.work) and not overwrite
        digests = {}  # of the files that options name
        for value in _settings(self.options).values():
            for name in value if isinstance(value, list) else [value]:
                if isinstance(name, str) and Path(name).is_file():
                    with open(name, "rb") as file:
                        digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
        if self.resumes:
            self._refuse_other(self.work, "an unfinished run")
            saved = folders.read(self.work, "unfinished", (DIGESTS,)).json(DIGESTS)
            if changed := [name for name in digests if saved.get(name) != digests[name]]:
                received = f"{self.work}, an unfinished run, since which {changed[0]} has changed"
                expected = "another folder, or --overwrite to start again"
                raise ArgumentError("--out", received, expected)
            return
        try:
            disk.remove_tree(self.checkpoint)  # first: no other run must continue from it
            content = {CONFIG: self.config, DIGESTS: encode(digests)}
            folders.write(self.work, "unfinished", content)
        except (OSError, LimbeckError) as error:
            raise _not_writable(self.work, error) from error

    @property
    def saved_steps(self) -> int:
        r"""The number of steps that checkpoints hold."""
        saved = (checkpoints.steps(p.parent) for p in self.checkpoint.rglob(folders.MANIFEST))
        return sum(steps[0] for steps in saved if steps)

    def finish(self, content: Mapping[str, Any]) -> Path:
        r"""Write the complete result, in one operation, and remove what only its run needed."""
        folders.write(self.path, "result", {**content, CONFIG: self.config})
        with suppress(OSError, LimbeckError):  # the result is complete; the next run tries again
            for folder in (self.path, self.work):
                disk.remove_tree(folder / CHECKPOINT)
            if self.work != self.path:
                folders.remove(self.work)
        return self.path

    def abandon(self) -> None:
        r"""Remove what cannot be resumed."""
        if not self.saved_steps and is_unfinished(self.work):
            with suppress(OSError, LimbeckError):
                disk.remove_tree(self.checkpoint)
                folders.remove(self.work)  # a lock in it is removed by its owner

    def _refuse_other(self, place: Path, what: str) -> None:
        r"""Refuse a folder of another command or of other settings."""
        saved = saved_options(place)
        other = saved.pop("command", None)
        different = differences(_settings(saved), _settings(self.options))
        if other != self.command:
            different = [f"it is of limbeck {other}"]
        if different:
            received = f"{place}, which holds {what} of other settings: {'; '.join(different)}"
            raise ArgumentError("--out", received, "another folder, or --overwrite to replace it")


def refuse_other_content(path: Path) -> None:
    r"""Refuse a folder with anything in it that limbeck's commands have not written."""
    manifest = folders.read_manifest(path) if path.is_dir() else None
    if manifest is not None and (manifest.kind == "unfinished" or _holds(path)):
        return  # one without its options is being removed
    if path.exists() and (not path.is_dir() or folders.entries(path)):
        what = "is a file" if not path.is_dir() else "holds other things than a result"
        expected = "a new or empty folder, or one that the same command wrote"
        raise ArgumentError("--out", f"{path}, which {what}", expected)


def _holds(path: Path) -> str:
    r"""What a command wrote into a folder: "result" or "unfinished"; "" for anything else."""
    manifest = folders.read_manifest(path) if path.is_dir() else None
    ours = manifest is not None and CONFIG in manifest.files
    return manifest.kind if manifest is not None and ours else ""


def is_unfinished(path: Path) -> bool:
    r"""Whether a folder holds an unfinished run."""
    return _holds(path) == "unfinished"


def resume_command(path: Path) -> str:
    r"""The command that resumes an unfinished run."""
    return f"limbeck {saved_options(path).get('command')} --config {path / CONFIG}"


def saved_options(folder: Path) -> dict[str, Any]:
    r"""The options of a result or of an unfinished run, if a command wrote it."""
    saved = folders.read(folder, _holds(folder) or "result", (CONFIG,))
    return parse_config(saved.content.get(CONFIG, bytearray()), folder / CONFIG)


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
    if RESULT not in folders.read(path, "result", (), "result").names:
        raise ArgumentError("result", f"{path}, without {RESULT}", expected)
    return path
