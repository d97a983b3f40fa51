r"""What is made of pages when the site is built.

Formulas become MathML, which browsers draw without any script. The tests that check a statement
(`tests/losses/test_values.py::test_…`) become sentences, which is what their names are.
"""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

__all__ = ["on_config", "on_page_content"]

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
NAME = re.compile(r"(<mrow>|<msub>|<mo[^>]*>[^<]*</mo>)?(<mi>(?:log|max|min)</mi>)(?!<mo[ >])")
CHECKED = re.compile(r"<code>(tests/[\w/]+\.py::test_(\w+))</code>")
THIN = '<mspace width="0.17em" />'


def on_config(config: Any) -> Any:
    r"""Leave out the page for what is not found.

    It is shown at any depth, so that its links are absolute: they would lead astray where the site
    stands in a subfolder or is opened from disk. Servers have pages of their own.
    """
    config.theme.static_templates.discard("404.html")
    return config


def on_page_content(content: str, **_: Any) -> str:
    r"""What mkdocs calls with the HTML of each page."""
    return CHECKED.sub(_said, FORMULA.sub(_drawn, content))


def _drawn(found: re.Match[str]) -> str:
    tag, formula = found[1], html.unescape(found[2]).strip()
    drawn = convert(formula, display="block" if tag == "div" else "inline")
    return f'<{tag} class="formula">{NAME.sub(_spaced, drawn)}</{tag}>'


def _said(found: re.Match[str]) -> str:
    return f'<span class="checked" title="{found[1]}">{found[2].replace("_", " ")}</span>'


def _spaced(found: re.Match[str]) -> str:
    r"""The name of a function with the space around it that TeX would give it."""
    before = found[1] or THIN
    return found[0] if before == "<msub>" else f"{before}{found[2]}{THIN}"
