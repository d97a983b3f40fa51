r"""Build the wheel and the sdist, check them, and try the wheel in an environment of its own.

    python tools/check_package.py
    python tools/check_package.py --folder /tmp/package --python python3.12

The environment has limbeck and what it depends on, in the versions of constraints.txt, and no
extras. It is kept in the folder, with a note of what it was made from, and made again only when
the dependencies, the constraints or the Python change; limbeck itself is installed each time.
`build` and `twine` run in the Python that runs this file: the dev extra has them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from email.parser import HeaderParser
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "limbeck"
CONSTRAINTS = ROOT / "constraints.txt"
IN_SDIST = ("pyproject.toml", "PKG-INFO", "LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff",
            "Makefile", "constraints.txt", "mkdocs.yml", "src/limbeck/py.typed", "docs/index.md",
            "tests/conftest.py", "tests/saved/expected.json", "tools/check_package.py",
            "reproduction/__main__.py")  # fmt: skip


def run(*command, **options):
    print(f"$ {shlex.join(map(str, command))}", flush=True)
    return subprocess.run([str(part) for part in command], check=True, **options)


def expect(condition, text):
    if not condition:
        raise SystemExit(f"check_package: expected {text}")


def build(folder):
    r"""The sdist, and the wheel that is built from it."""
    shutil.rmtree(folder, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT, stdout=subprocess.DEVNULL)
    run(sys.executable, "-m", "twine", "check", "--strict", *sorted(folder.iterdir()))
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


def check_sdist(path):
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in IN_SDIST:
        expect(name in names, f"{name} in {path.name}")
    expect(not any("__pycache__" in name for name in names), f"no __pycache__ in {path.name}")
    print(f"{path.name}: {len(names)} files, {path.stat().st_size:,} bytes")


def check_wheel(path):
    r"""Its metadata; it must have the files of the package, the licence, and nothing else."""
    files = (file for file in SOURCE.rglob("*") if file.is_file() and file.suffix != ".pyc")
    package = {file.relative_to(SOURCE.parent).as_posix() for file in files}
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        info = next(name for name in names if name.endswith("/METADATA"))[: -len("/METADATA")]
        metadata = HeaderParser().parsestr(archive.read(f"{info}/METADATA").decode())
        scripts = archive.read(f"{info}/entry_points.txt").decode()
    about = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
    wanted = package | {f"{info}/{name}" for name in about}
    expect("limbeck/py.typed" in names, "py.typed in the wheel")
    expect(names == wanted, f"the files of src in the wheel, not {sorted(names ^ wanted)}")
    expect("limbeck = limbeck.cli:main" in scripts, "the command limbeck in entry_points.txt")
    version = re.search(
        r'^__version__ = "(.+)"$', (SOURCE / "__init__.py").read_text(encoding="utf-8"), re.M
    )
    expect(version and metadata["Version"] == version[1], "the version of limbeck/__init__.py")
    expect(metadata["License-Expression"] == "BSD-3-Clause", "the licence in the metadata")
    extras, offered = metadata.get_all("Provides-Extra"), {"onnx", "report", "tables", "test"}
    expect(offered <= set(extras), f"the extras {offered}")
    print(f"{path.name}: {len(names)} files, {path.stat().st_size:,} bytes, extras {extras}")
    return [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]


def environment(folder, python, wheel, dependencies):
    r"""The Python of a clean environment with the wheel in it."""
    version = subprocess.check_output([python, "-c", "import sys; print(sys.version)"], text=True)
    pins = hashlib.sha256(CONSTRAINTS.read_bytes()).hexdigest()
    recipe = json.dumps({"python": version, "constraints": pins, "dependencies": dependencies})
    note, inside = folder / "recipe.json", folder / "bin" / "python"
    pip = (inside, "-m", "pip", "--disable-pip-version-check", "install", "-qq")
    if note.exists() and note.read_text(encoding="utf-8") == recipe:
        print(f"{folder} has the dependencies: limbeck is installed again")
        run(*pip, "--no-deps", "--force-reinstall", wheel)
    else:
        run(python, "-m", "venv", "--clear", folder)
        run(*pip, "--constraint", CONSTRAINTS, wheel)
        note.write_text(recipe, encoding="utf-8")
    run(inside, "-m", "pip", "--disable-pip-version-check", "check")
    return inside


def try_it(python):
    r"""The commands, the verbs and the README's first example, away from the sources."""
    names = [name for name in os.environ if not name.startswith("PYTHON")]
    variables = {name: os.environ[name] for name in names}
    with tempfile.TemporaryDirectory(prefix="limbeck package ") as folder:
        here = {"cwd": folder, "env": variables}
        command = python.parent / "limbeck"
        for arguments in (("--help",), ("--version",), ("info",)):
            run(command, *arguments, stdout=subprocess.DEVNULL, **here)
        run(python, "-I", ROOT / "tools" / "try_package.py", **here)
        shown = run(command, "info", "rows.npy", text=True, stdout=subprocess.PIPE, **here).stdout
        expect("an array of shape (200, 4)" in shown, f"a description of rows.npy, not {shown}")
        run(command, "info", "small", **here)
        run(command, "report", "limbeck-logz", **here)
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        example = Path(folder, "example.py")
        example.write_text(readme.partition("```python\n")[2].partition("```")[0], encoding="utf-8")
        print("the first example of the README:")
        run(python, example, **here)
        expect(Path(folder, "digits").is_dir(), "the folder that the example saves")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "package")
    parser.add_argument("--python", default=sys.executable, help="makes the environment")
    arguments = parser.parse_args()
    folder, start = arguments.folder.resolve(), time.monotonic()
    sdist, wheel = build(folder / "dist")
    check_sdist(sdist)
    dependencies = check_wheel(wheel)
    python = environment(folder / "environment", arguments.python, wheel, dependencies)
    try_it(python)
    print(f"the package is complete: {wheel} ({time.monotonic() - start:.0f} s)")


if __name__ == "__main__":
    main()
