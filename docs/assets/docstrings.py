r"""Docstrings as Markdown: sessions (`>>>`) become code, and stars in shapes stay stars."""

from __future__ import annotations

import re
from typing import Any

import griffe

__all__ = ["Docstrings", "as_markdown"]

SESSION = re.compile(r"^( *)>>> .*(?:\n\1(?!\s*$).+)*", re.MULTILINE)
STAR = re.compile(r"(?<![\w*`\\])\*{1,2}(?=[A-Za-z])")


class Docstrings(griffe.Extension):
    r"""Runs over every object that is read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    r"""The docstring with sessions between fences and single stars escaped."""
    parts, end = [], 0
    for found in SESSION.finditer(text):
        indent = found[1]
        session = f"{indent}```pycon\n{found[0]}\n{indent}```"
        parts += [_escaped(text[end : found.start()]), session]
        end = found.end()
    return "".join([*parts, _escaped(text[end:])])


def _escaped(text: str) -> str:
    code = re.split(r"(`[^`]*`)", text)
    code[::2] = [STAR.sub(lambda found: "\\*" * len(found[0]), part) for part in code[::2]]
    return "".join(code)
