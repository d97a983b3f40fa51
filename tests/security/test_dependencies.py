r"""The page on dependencies names each of them; SECURITY.md is linked and shipped."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEVELOPERS = {"docs", "test", "oracles", "dev"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def declared():
    r"""Packages with the extras that need them; "always" of those that all need."""
    project, packages = PROJECT["project"], {}
    groups = {"always": project["dependencies"], **project["optional-dependencies"]}
    for extra, lines in groups.items():
        for line in lines:
            packages.setdefault(re.match(r"[\w.-]+", line)[0], set()).add(extra)
    return {name: extras for name, extras in packages.items() if extras - DEVELOPERS}


def listed():
    text = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return {row[0]: row for row in rows[2:]}


def test_the_table_names_every_dependency_and_its_extras():
    assert {name: set(row[3].split(", ")) - DEVELOPERS for name, row in listed().items()} == {
        name: extras - DEVELOPERS for name, extras in declared().items()
    }


def test_every_dependency_has_a_licence_and_a_reason():
    for name, row in listed().items():
        assert len(row) == 4, name
        assert all(cell.strip() for cell in row), name


def test_the_page_on_security_is_linked_and_shipped():
    assert "(SECURITY.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert "security.md" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert "/SECURITY.md" in PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
