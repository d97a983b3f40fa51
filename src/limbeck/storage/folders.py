r"""Folders that change as a whole: replacing the manifest commits its files (docs/design.md)."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

import limbeck
from limbeck.errors import ArgumentError, CheckpointError
from limbeck.records import MAX_BYTES, check, damaged, decode, encode
from limbeck.storage import disk, files

R = TypeVar("R")
MANIFEST, FORMAT = "manifest.json", "limbeck-folder-1"
KINDS = {
    "result": "a result", "checkpoint": "checkpoints", "unfinished": "an unfinished run",
    "report": "a report", "export": "an exported student",
}  # fmt: skip


@dataclass(frozen=True)
class FileRecord:
    r"""What a file of a folder must be."""

    sha256: str
    bytes: int


@dataclass(frozen=True)
class Manifest:
    r"""The content of `manifest.json`."""

    format: str
    kind: str
    token: str  # of the pending names of files that have not yet taken their own
    limbeck: str  # the version that wrote it
    files: dict[str, FileRecord]
    obsolete: dict[str, FileRecord]  # to be removed, if still there


@dataclass(frozen=True)
class Files:
    r"""Files of a folder, all of the same commit."""

    folder: Path
    names: frozenset[str]  # of all files in the manifest
    content: dict[str, bytearray]  # of those that were read

    def path(self, name: str) -> Path:
        return self.folder / name

    def json(self, name: str) -> Any:
        r"""The value of a JSON file."""
        return decode(self.content[name], self.path(name))

    def fields(self, name: str, hints: Mapping[str, Any]) -> dict[str, Any]:
        r"""The fields of a JSON file, which must be those of the hints."""
        if name not in self.names:
            expected = f"a folder with {name}, as `save` writes it"
            raise ArgumentError("folder", f"{self.folder}, without {name}", expected)
        return check(hints, self.json(name), self.path(name))

    def tensors(self, name: str, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        r"""The tensors and the description of a safetensors file."""
        return files.decode(self.content[name], self.path(name), kind)


def write(
    folder: str | Path, kind: str, content: Mapping[str, bytes], keep: Collection[str] | None = ()
) -> Path:
    r"""Write the files of a folder; all become visible in one operation, or none of them.

    Arguments:
        folder: The folder, made if needed. Files that no manifest names are left alone.
        kind: What it holds, a name in `KINDS`; a folder of another kind is refused, but a result
            may take the place of an unfinished run.
        content: The new files by name.
        keep: Names of present files to keep. All others are removed. None adds the new files to
            all that the folder has, whatever its kind. Default: none.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ArgumentError("folder", f"{folder}, a file", "a folder, new or there already")
    for name in content:
        _check_name(name, folder)
    try:
        disk.make_folder(folder)
        with disk.lock(folder / MANIFEST):
            old = read_manifest(folder)
            if old is not None:
                if keep is None:
                    kind = old.kind
                elif kind != old.kind and (old.kind, kind) != ("unfinished", "result"):
                    received = f"{folder}, which holds {KINDS[old.kind]}"
                    raise ArgumentError("folder", received, f"a new folder for {KINDS[kind]}")
                _settle(folder, old)
            _settle(folder, _write_pending(folder, kind, content, old, keep), own=True)
    except OSError as error:
        reason = f"cannot write into {folder} ({error}); what it held is untouched"
        if isinstance(error, TimeoutError):
            reason = f"another process is writing to {folder}; try again"
        raise CheckpointError(f"folder: {reason}") from error
    return folder


def _write_pending(
    folder: Path, kind: str, content: Mapping[str, bytes], old: Manifest | None,
    keep: Collection[str] | None,
) -> Manifest:  # fmt: skip
    r"""Write new files under pending names, and commit them by replacing the manifest."""
    token, present = secrets.token_hex(6), {} if old is None else old.files
    keep = set(present if keep is None else keep) - content.keys()
    entries = {name: entry for name, entry in present.items() if name in keep}
    try:
        with ThreadPoolExecutor(1) as pool:  # digests of large files are computed meanwhile
            large = sum(map(len, content.values())) > 2**22
            records = (pool.map if large else map)(_record, content.values())
            for name, part in content.items():
                disk.create(folder / disk.pending_name(name, token), part)
            entries |= zip(content, records, strict=True)
        obsolete = {n: e for n, e in present.items() if n not in entries}
        new = Manifest(FORMAT, kind, token, limbeck.__version__, entries, obsolete)
        pending = folder / disk.pending_name(MANIFEST, token)
        disk.create(pending, encode(new))
        disk.replace(pending, folder / MANIFEST)
    except BaseException:
        with suppress(OSError, CheckpointError):
            now = read_manifest(folder)
            if now is None or now.token != token:  # an interruption may come after the commit
                disk.remove_pending(folder)
        raise
    return new


def _settle(folder: Path, manifest: Manifest, own: bool = False) -> None:
    r"""Complete a commit: files take their own names, obsolete and pending ones are removed."""
    present = set(os.listdir(folder))
    for name in manifest.files:
        if (pending := disk.pending_name(name, manifest.token)) in present:
            present.remove(pending)
            try:
                disk.replace(folder / pending, folder / name)
            except OSError as error:
                reason = f"is complete, but {name} could not take its name ({error})"
                raise CheckpointError(f"folder: {folder} {reason}; save it again") from error
    for name, entry in manifest.obsolete.items():
        # a later writer checks that it is not another file that the user has put there since
        with suppress(OSError):
            path, most = folder / name, entry.bytes + 1
            if own or (name in present and _record(disk.read(path, most)) == entry):
                disk.remove(path)
    if any(name.endswith(".new") for name in present):
        disk.remove_pending(folder)


def remove(folder: str | Path) -> None:
    r"""Remove a folder of limbeck's with the files in its manifest; others stay."""
    folder = Path(folder)
    if (old := read_manifest(folder)) is not None:
        write(folder, old.kind, {})
        if not any((folder / name).exists() for name in old.files):  # else a later try needs it
            disk.remove(folder / MANIFEST)
    disk.remove_empty(folder)


def settle(folder: Path) -> Manifest | None:
    r"""Complete what a killed process has left in a folder, made if needed; its manifest."""
    disk.make_folder(folder)
    with disk.lock(folder / MANIFEST):
        manifest = read_manifest(folder)
        if manifest is None:
            disk.remove_pending(folder)
        else:
            _settle(folder, manifest)
    return manifest


def read_manifest(folder: Path) -> Manifest | None:
    r"""The manifest of a folder, or None if there is none; a damaged one is refused."""
    path = folder / MANIFEST
    try:
        content = disk.read(path, MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise damaged(path, f"cannot be read ({error})") from error
    value = decode(content, path)
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        form = value.get("format") if isinstance(value, dict) else type(value).__name__
        raise CheckpointError(f"folder: {path} has the format {form!r}; expected {FORMAT!r}")
    manifest: Manifest = check(Manifest, value, path)
    if manifest.kind not in KINDS:
        raise damaged(path, f"has {manifest.kind!r} as kind; expected {', '.join(KINDS)}")
    if not manifest.token.isalnum():
        raise damaged(path, f"has {manifest.token[:40]!r} as token; expected digits")
    for name, entry in {**manifest.files, **manifest.obsolete}.items():
        _check_name(name, path)
        if entry.bytes < 0:
            raise damaged(path, f"has {entry.bytes} as files.{name}.bytes; expected 0 or more")
    return manifest


def read(
    folder: str | Path, kind: str, names: Collection[str], argument: str = "folder",
    every: bool = True,
) -> Files:  # fmt: skip
    r"""Read files of a folder, checked, and all of the same commit.

    Arguments:
        folder: The folder.
        kind: What it must hold.
        names: The files to read; those that the manifest does not have are left out.
        argument: What errors call the folder. Default: "folder".
        every: Whether all files of the manifest must be there, with their sizes. Default: True.
    """
    folder, expected = Path(folder), f"a folder with {KINDS[kind]}, as limbeck writes it"
    if not folder.is_dir():
        raise ArgumentError(argument, f"{folder}, which is no folder", expected)
    for attempt in range(5):
        manifest = read_manifest(folder)
        if manifest is None:
            raise ArgumentError(argument, f"{folder}, without {MANIFEST}", expected)
        if manifest.kind != kind:
            expected += f", not {KINDS[manifest.kind]}"
            if manifest.kind == "unfinished":
                expected += "; run the same command again to continue"
            raise ArgumentError(argument, f"{folder}, which holds {KINDS[manifest.kind]}", expected)
        try:
            for name, entry in manifest.files.items():  # before anything is read
                if every or name in names:
                    size = _at(folder, manifest, name, os.lstat).st_size
                    if size != entry.bytes:
                        what = f"has {size:,} bytes; {MANIFEST} says {entry.bytes:,}"
                        raise damaged(folder / name, what)
            content = {n: _read_checked(folder, manifest, n) for n in manifest.files if n in names}
            return Files(folder, frozenset(manifest.files), content)
        except CheckpointError:
            again = read_manifest(folder)
            if attempt == 4 or again is None or again.token == manifest.token:
                raise  # else a writer has replaced files meanwhile
    raise AssertionError


def _at(folder: Path, manifest: Manifest, name: str, use: Callable[[Path], R]) -> R:
    r"""What a function makes of a file, which has its pending name or, by now, its own."""
    path = folder / name
    try:
        try:
            return use(folder / disk.pending_name(name, manifest.token))
        except FileNotFoundError:
            return use(path)
    except OSError as error:
        reason = f"which {MANIFEST} names, cannot be read ({error.strerror or error})"
        raise damaged(f"{path},", reason) from error


def _read_checked(folder: Path, manifest: Manifest, name: str) -> bytearray:
    entry = manifest.files[name]
    content = _at(folder, manifest, name, lambda path: disk.read(path, entry.bytes))
    if _record(content) != entry:
        raise damaged(folder / name, f"has another content than {MANIFEST} says")
    return content


def _record(content: bytes | bytearray) -> FileRecord:
    return FileRecord(hashlib.sha256(content).hexdigest(), len(content))


def _check_name(name: str, path: Path) -> None:
    r"""Refuse names that leave the folder, and those of limbeck's own use."""
    special = not name or name.startswith(".") or name == MANIFEST or len(name) > 200
    if special or not name.isprintable() or set(name) & set("/\\:"):
        raise CheckpointError(f"folder: {path} names a file {name[:40]!r}; expected a plain name")


def entries(folder: Path) -> list[str]:
    r"""The names in a folder, but for pending files and locks."""
    return [name for name in os.listdir(folder) if not disk.is_own(name)]
