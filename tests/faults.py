r"""Disks that fail, processes that die and files that rot, for tests of what is written.

`python -m tests.faults` runs the long form: every crash point of every writer, 1,000
damaged files, 100 processes that are killed, and a full disk.
"""

from __future__ import annotations

import argparse
import errno
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import limbeck as lb
from limbeck.storage import disk

OPERATIONS = ("open", "write", "fsync", "replace", "unlink", "makedirs", "rmdir")


class Killed(BaseException):
    r"""In place of SIGKILL: nothing handles it, and nothing is done after it."""


class FaultyDisk:
    r"""Stands for `os` in `limbeck.storage.disk`; one operation fails, or is the last one.

    Arguments:
        at: The number of the operation, from 1. Default: none fails.
        kill: Whether the process dies there; else the operation raises an OSError.
    """

    def __init__(self, at: int | None = None, kill: bool = False) -> None:
        self.at, self.kill, self.count = at, kill, 0
        self.lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        function = getattr(os, name)
        return partial(self._operate, name, function) if name in OPERATIONS else function

    def _operate(self, name: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if name == "open" and not args[1] & os.O_CREAT:
            return function(*args, **options)
        with self.lock:
            self.count += 1
            number = self.count
        dead = self.at is not None and self.kill and number > self.at
        if number == self.at or dead:
            if name == "write" and number == self.at:  # half of it arrives
                function(args[0], args[1][: len(args[1]) // 2])
            if self.kill:
                raise Killed
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return None if name == "fsync" else function(*args, **options)  # disks are slow


@contextmanager
def faulty_disk(at: int | None = None, kill: bool = False) -> Iterator[FaultyDisk]:
    r"""Within, limbeck writes to a `FaultyDisk`."""
    faulty: Any = FaultyDisk(at, kill)
    disk.os = faulty
    try:
        yield faulty
    finally:
        disk.os = os


class Writer(NamedTuple):
    r"""A way to save something into a new folder, and what two versions of it are."""

    save: Callable[[Path, int], object]  # version 0 or 1
    load: Callable[[Path], object]  # what was saved, to be compared by ==


def saved_versions(writer: Writer, place: Path) -> list[object]:
    r"""Both versions, saved into folders "0" and "1", as they are loaded."""
    with faulty_disk():
        for version in (0, 1):
            writer.save(place / str(version) / "x", version)
    versions = [writer.load(place / str(version) / "x") for version in (0, 1)]
    assert versions[0] != versions[1]
    return versions


def crash_points(writer: Writer, place: Path, before: bool = True) -> int:
    r"""Let every operation of a save fail, and die at every one; the number of operations.

    After each, the folder must load as the old version or the new one, and another save succeed.

    Arguments:
        writer: The writer.
        place: An empty folder.
        before: Whether another version was saved there before. Default: True.
    """
    versions = saved_versions(writer, place)
    for kill in (False, True):
        for at in itertools.count(1):
            folder = place / f"{kill}-{at}" / "x"
            if before:
                shutil.copytree(place / "0", folder.parent)
            with faulty_disk(at, kill) as faulty, suppress(Killed, OSError, lb.LimbeckError):
                writer.save(folder, 1)
            if faulty.count < at:
                break
            try:
                found = writer.load(folder)
            except lb.LimbeckError:
                assert not before, f"operation {at} destroyed what was there"
            else:
                assert found in (versions if before else versions[1:]), f"operation {at}"
            with faulty_disk():
                writer.save(folder, 1)
            assert writer.load(folder) == versions[1]
            left = [path for path in folder.parent.rglob("*") if disk.is_own(path.name)]
            assert not left, f"operation {at} has left {left}"
    return at - 1


def flip(content: bytes, draw: random.Random) -> bytes:
    r"""One byte is another."""
    at = draw.randrange(len(content))
    return content[:at] + bytes([content[at] ^ draw.randrange(1, 256)]) + content[at + 1 :]


def truncate(content: bytes, draw: random.Random) -> bytes:
    r"""The end is missing."""
    return content[: draw.randrange(len(content))]


def zero(content: bytes, draw: random.Random) -> bytes:
    r"""64 bytes are zero, as where a block was never written."""
    at = draw.randrange(max(1, len(content) - 64))
    return content[:at] + bytes(min(64, len(content) - at)) + content[at + 64 :]


def append(content: bytes, draw: random.Random) -> bytes:
    r"""There is more than was written."""
    return content + draw.randbytes(draw.randrange(1, 100))


DAMAGES = (flip, truncate, zero, append)


def damage(path: Path, draw: random.Random, others: list[bytes]) -> str:
    r"""Damage a file, or swap it with another one; the name of the damage."""
    content = path.read_bytes()
    kinds = [*DAMAGES, *(lambda content, draw, other=other: other for other in others)]
    kind = draw.choice(kinds)
    path.write_bytes(kind(content, draw))
    return getattr(kind, "__name__", "swap")


def damages(writer: Writer, place: Path, draws: int, seed: int = 0) -> int:
    r"""Damage every file, again and again; it must load as it was or be refused by name."""
    draw, refused = random.Random(seed), 0
    with faulty_disk():
        writer.save(place / "x", 0)
    whole = writer.load(place / "x")
    files = sorted(path for path in place.rglob("*") if path.is_file())
    contents = {path: path.read_bytes() for path in files}
    for number in range(draws):
        path = files[number % len(files)]
        kind = damage(path, draw, [c for p, c in contents.items() if p != path])
        try:
            assert writer.load(place / "x") == whole, f"{path.name}: {kind}"
        except lb.CheckpointError as error:
            names = [each.name for each in files]
            assert any(name in str(error) for name in names), str(error)  # noqa: PT017
            refused += 1
        path.write_bytes(contents[path])
    return refused


LOOP = """
import sys
from pathlib import Path
from tests.storage.writers import WRITERS
writer, version = WRITERS[sys.argv[1]], 0
while True:
    writer.save(Path(sys.argv[2]), version)
    print(version, flush=True)
    version = 1 - version
"""


def killed(name: str, writer: Writer, place: Path, draw: random.Random) -> None:
    r"""Kill a process that saves two versions in turn, at any moment; one of them is left."""
    versions = saved_versions(writer, place)
    folder = place / "saved" / "x"
    source = str(Path(lb.__file__).parents[1])
    process = subprocess.Popen(
        [sys.executable, "-c", LOOP, name, str(folder)], stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[1], env=os.environ | {"PYTHONPATH": source},
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()  # one was saved
    time.sleep(draw.random() * 0.2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert writer.load(folder) in versions
    writer.save(folder, 1)
    assert writer.load(folder) == versions[1]
    assert not [path for path in folder.parent.rglob("*") if disk.is_own(path.name)]


def full_disk(writer: Writer, place: Path) -> int | None:
    r"""Save onto a real disk with less and less room; the number of saves that failed.

    The old version must be left whole. None where no small disk can be mounted.
    """
    versions = saved_versions(writer, place / "copies")
    disk_place, failures = place / "disk", 0
    disk_place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk_place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        return None
    try:
        for room in range(0, 80_000, 4096):
            folder, filler = disk_place / "x", disk_place / "filler"
            writer.save(folder, 0)
            filler.write_bytes(bytes(max(0, shutil.disk_usage(disk_place).free - room)))
            try:
                writer.save(folder, 1)
            except (lb.LimbeckError, OSError):
                failures += 1
                assert writer.load(folder) == versions[0], f"{room} bytes of room"
            else:
                assert writer.load(folder) == versions[1]
            filler.unlink()
    finally:
        subprocess.run(["umount", str(disk_place)], check=True)
    return failures


def main() -> None:
    from tests.storage.writers import CHECKED, WRITERS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--damages", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=100)
    options = parser.parse_args()
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for title, writer in WRITERS.items():
            counts = [crash_points(writer, root / f"{title}-{b}", b) for b in (False, True)]
            print(f"{title}: {counts[0]} and {counts[1]} operations, each failed and died at")
        share = -(-options.damages // len(CHECKED))
        for title in CHECKED:
            refused = damages(WRITERS[title], root / f"{title}-damaged", share)
            print(f"{title}: damaged {share} times, refused {refused} times, else equal")
        for number in range(options.kills):
            title = draw.choice(list(WRITERS))
            killed(title, WRITERS[title], root / f"killed-{number}", draw)
        print(f"{options.kills} processes killed; nothing was lost")
        for title in CHECKED:
            failures = full_disk(WRITERS[title], root / f"{title}-full")
            text = (
                "no small disk can be mounted here"
                if failures is None
                else (f"a full disk refused {failures} of 20 saves; the old version was whole")
            )
            print(f"{title}: {text}")


if __name__ == "__main__":
    main()
