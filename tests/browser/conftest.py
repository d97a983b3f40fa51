r"""A real browser, the pages it opens, and a folder for what it sees."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from limbeck import storage
from limbeck.report import page
from tests.report import making

EXECUTABLES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser():
    r"""Chromium: the one that LIMBECK_CHROMIUM names, the system's, or Playwright's own."""
    playwright = pytest.importorskip("playwright.sync_api")
    named = os.environ.get("LIMBECK_CHROMIUM")
    path = named or next((p for p in map(shutil.which, EXECUTABLES) if p), None)
    with playwright.sync_playwright() as running:
        if path is None and not Path(running.chromium.executable_path).exists():
            pytest.skip("no Chromium: install one, or run `playwright install chromium`")
        opened = running.chromium.launch(executable_path=path)
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def artifacts():
    r"""Where screenshots go."""
    folder = Path(os.environ.get("LIMBECK_ARTIFACTS", "test-artifacts"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    r"""The reports on small results of all verbs."""
    root = tmp_path_factory.mktemp("reports")
    folders = {name: root / name for name in making.NAMES}
    found = {}
    for name, folder in folders.items():
        found[name] = page.write(storage.write(folder, *making.to_record(name)))
    return found


@pytest.fixture
def opened(browser, pages):
    r"""A function that opens a report from disk; whatever goes wrong meanwhile is an error."""
    contexts, wrong = [], []

    def open_page(name, *, width=1100, scheme="light"):
        context = browser.new_context(
            viewport={"width": width, "height": 844}, color_scheme=scheme, offline=True
        )
        contexts.append(context)
        sheet = context.new_page()
        address = pages[name].resolve().as_uri()
        sheet.on("console", lambda said: wrong.append(f"{said.type}: {said.text}"))
        sheet.on("pageerror", lambda error: wrong.append(str(error)))
        sheet.on("requestfailed", lambda request: wrong.append(request.url[:200]))
        sheet.on("request", lambda r: _only(r.url, address, wrong))
        sheet.goto(address, wait_until="load")
        return sheet

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []


def _only(url, address, wrong):
    if url.split("#")[0] != address and not url.startswith("data:"):
        wrong.append(f"asked for {url[:200]}")
