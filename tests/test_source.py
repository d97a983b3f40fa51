r"""The source says of itself what is so: documented arguments, exported names, paths in pages."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import limbeck

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "limbeck"
FILES = sorted(SOURCE.rglob("*.py"))
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}
CLASSES = {
    node.name: node
    for tree in TREES.values()
    for node in ast.walk(tree)
    if isinstance(node, ast.ClassDef)
}
DOCUMENTED = re.compile(r"^Arguments:\n((?:    .*\n|\n)+)", re.MULTILINE)
NAMES = re.compile(r"^    (\w+):", re.MULTILINE)
PAGES = ("README.md", "CONTRIBUTING.md", "docs/design.md", "examples/README.md")
ORDER = (  # what a home may import stands above it
    ("errors",),
    ("arguments", "environment", "records", "text", "verdict"),
    ("arrays", "numpy_files"),
    ("outputs", "storage", "progress", "supports"),
    ("evaluation",),
    ("inputs", "losses", "distributions"),
    ("samplers",),
    ("teachers",),
    ("training",),
    ("models", "posteriors"),
    ("tables",),
    ("compression", "condensation", "normalization"),
    ("loading",),
    ("report", "export"),
    ("cli",),
)
HOMES = (ROOT, SOURCE, ROOT / "examples")


def named(path):
    return path.relative_to(SOURCE).as_posix()


def parameters(node):
    r"""The arguments of a function or of a class, whose own or inherited constructor tells."""
    if isinstance(node, ast.FunctionDef):
        own = node.args
        given = [*own.posonlyargs, *own.args, *own.kwonlyargs, own.vararg, own.kwarg]
        return {each.arg for each in given if each is not None}
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and part.name in ("__init__", "__new__"):
            return parameters(part)
    fields = {
        part.target.id
        for part in node.body
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
    }
    bases = (CLASSES.get(getattr(base, "id", "")) for base in node.bases)
    return fields.union(*(parameters(base) for base in bases if base is not None))


def documented(node):
    found = DOCUMENTED.search((ast.get_docstring(node) or "") + "\n")
    return set(NAMES.findall(found[1])) if found else set()


def test_documented_arguments_are_there():
    wrong, seen = [], 0
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                said = documented(node)
                seen += len(said)
                if other := said - parameters(node):
                    wrong.append(f"{named(path)}: {node.name} has no {sorted(other)}")
    assert wrong == []
    assert seen > 580  # the pattern still finds them


def bound(tree):
    r"""Names that a module has: defined, assigned or imported, wherever at its top level."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
    return found


def exported(tree):
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return ast.literal_eval(node.value)
    return []


def test_exported_names_are_there_and_once():
    for path, tree in TREES.items():
        if path != SOURCE / "__init__.py":  # whose names are those of its stub
            names = exported(tree)
            assert len(set(names)) == len(names), named(path)
            assert set(names) <= bound(tree), named(path)


def test_public_names_are_there_and_once():
    stub = ast.parse((SOURCE / "__init__.pyi").read_text("utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    names = [alias.name for node in imports for alias in node.names]
    assert sorted(names) == limbeck.__all__
    assert len(set(names)) == len(names)
    for name in names:
        assert getattr(limbeck, name) is not None


def imported(tree):
    r"""Packages and modules of limbeck that a module imports, inside functions too."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "limbeck":
            names = [node.module] if "." in node.module else [f".{a.name}" for a in node.names]
            found |= {name.split(".")[1] for name in names}
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("limbeck.")]
            found |= {name.split(".")[1] for name in names}
    return found


LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}


def test_every_package_has_its_place_in_the_order():
    homes = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in FILES}
    assert homes - {"__init__"} == set(LEVEL)


@pytest.mark.parametrize("home", [name for names in ORDER for name in names])
def test_imports_go_one_way(home):
    r"""Imports inside functions count; only the front door, `import limbeck`, is open to all."""
    below = {name for name, level in LEVEL.items() if level < LEVEL[home]} | {home}
    seen = 0
    for path, tree in TREES.items():
        if path.relative_to(SOURCE).parts[0].removesuffix(".py") == home:
            seen += 1
            assert imported(tree) & set(LEVEL) <= below, named(path)
    assert seen


@pytest.mark.parametrize("page", PAGES)
def test_paths_in_pages_lead_to_files(page):
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text("utf-8"), flags=re.S | re.M)
    paths = set(re.findall(r"`([\w./-]+(?:/|\.py|\.md|\.ipynb))`", text)) - {"site/"}
    assert paths or page == "README.md"
    for path in sorted(paths):
        assert any((home / path).exists() for home in HOMES), path
