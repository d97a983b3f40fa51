r"""The documentation runs as it is written, leads where it says, and has every public name."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import limbeck

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
REFERENCE = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.md"))


def named(page):
    return page.relative_to(ROOT).as_posix()


def read(page):
    return page.read_text(encoding="utf-8")


def anchors(page):
    r"""The anchors of the headings of a page, as mkdocs and the usual viewers make them."""
    titles = re.findall(r"^#+ +(.+?) *$", FENCED.sub("", read(page)), re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", title).strip().lower() for title in titles)
    return {re.sub(r"[\s]+", "-", title) for title in plain}


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if "```python" in read(p)], ids=named)
def test_its_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", read(page), re.DOTALL):
        exec(compile(block, str(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_its_links_and_anchors_lead_somewhere(page):
    text = FENCED.sub("", read(page))
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", text):
        if "://" in target:
            continue
        found = page if not target else page.parent / target
        assert found.exists(), target
        if anchor and found.suffix == ".md":
            assert anchor in anchors(found), f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_the_tests_that_it_names_are_there(page):
    for file, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", read(page)):
        assert f"def {name}(" in read(ROOT / file), f"{file}::{name}"


@pytest.mark.parametrize(
    "module",
    [
        "limbeck",
        "limbeck.inputs",
        "limbeck.losses",
        "limbeck.samplers",
        "limbeck.training.callbacks",
    ],
)
def test_every_public_name_is_in_the_reference(module):
    home = importlib.import_module(module)
    wanted = {name for name in home.__all__ if not inspect.ismodule(getattr(home, name))}
    written = set(re.findall(rf"^::: {re.escape(module)}\.(\w+)$", REFERENCE, re.MULTILINE))
    assert wanted <= written, sorted(wanted - written)


def test_the_reference_has_no_name_that_is_not_there():
    for path in re.findall(r"^::: ([\w.]+)$", REFERENCE, re.MULTILINE):
        home, _, name = path.rpartition(".")
        assert hasattr(importlib.import_module(home), name), path
    assert len(limbeck.__all__) > 50


class Requests(HTMLParser):
    r"""What a page asks for as it opens."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag in ("script", "img", "iframe", "source"):
            self.found.append(given.get("src") or "")
        elif tag == "link" and given.get("rel") != "canonical":
            self.found.append(given.get("href") or "")


@pytest.mark.slow
def test_the_site_is_built_whole_and_asks_the_network_for_nothing(tmp_path):
    for module in ("mkdocs", "material", "mkdocstrings", "latex2mathml"):
        pytest.importorskip(module)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for source in DOCS.rglob("*.md"):
        page = (tmp_path / source.relative_to(DOCS)).with_suffix(".html")
        seen = Requests()
        seen.feed(read(page))
        assert seen.found, page
        assert not [asked for asked in seen.found if re.match(r"(https?:)?//", asked)], page
    for page in tmp_path.rglob("*.html"):  # from a subfolder or from disk, "/…" leads astray
        assert not re.search(r'(href|src)="/|"base": "/', read(page)), page
    formulas = read(tmp_path / "mathematics.html")
    assert formulas.count("<math ") > 100
    assert not re.search(r"arithmatex|\\frac|\$\$", article(formulas))
    assert ">cross entropy less entropy is a divergence<" in formulas
    models = article(read(tmp_path / "api" / "models.html"))
    assert "&gt;&gt;&gt; " in models  # sessions in docstrings are code, not quotations
    assert "<blockquote>" not in models


def article(page):
    return page[page.index("<article") : page.index("</article>")]
