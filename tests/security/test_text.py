r"""Markdown, tables and settings show a name as it is, whatever is in it."""

import html.parser
import json
import re
import tomllib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from limbeck.cli.options import to_toml
from limbeck.text import (
    MAX_LENGTH,
    PlainTable,
    markdown,
    markdown_block,
    markdown_code,
    markdown_table,
    shown,
    table_text,
    visible,
)
from tests.security.evil import NAMES

PIECES = [
    "`",
    "*",
    "_",
    "[x](y)",
    "<b>",
    "&amp;",
    "|",
    "\\",
    "#",
    "- ",
    "1. ",
    "~~",
    "{: #a }",
    "\n",
    "\t",
]
texts = st.one_of(
    st.sampled_from(NAMES),
    st.text(max_size=40),
    st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=8).map("".join),
)


class Seen(html.parser.HTMLParser):
    r"""The tags and the text of a page."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        assert not attributes
        self.tags.append(tag)

    def handle_data(self, data):
        self.text += data

    def handle_comment(self, data):
        raise AssertionError(data)


def common_mark(text):
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text)


def python_markdown(text):
    extensions = ["tables", "attr_list", "fenced_code", "toc", "admonition", "pymdownx.tilde"]
    return pytest.importorskip("markdown").markdown(text, extensions=extensions)


DIALECTS = (common_mark, python_markdown)


def plain(text):
    return " ".join(shown(text).split())


@pytest.mark.parametrize("dialect", DIALECTS)
@given(text=texts)
@example(text="- a")
@example(text="12) a")
@example(text="---")
@example(text="::: limbeck")
@example(text="!!! note")
@example(text='<img src=x onerror="alert(1)">')
@example(text="&#60;script&#62;")
def test_a_line_shows_the_text_and_nothing_else(dialect, text):
    seen = Seen(dialect(markdown(text)))
    assert seen.tags == (["p"] if plain(text) else [])
    assert seen.text.strip() == plain(text)


@pytest.mark.parametrize("dialect", DIALECTS)
@given(text=texts, other=texts)
def test_a_cell_stays_a_cell(dialect, text, other):
    seen = Seen(dialect(markdown_table(("name", text), [(other, "1"), (text, "2")])))
    assert seen.tags.count("tr") == 3
    assert seen.tags.count("td") == 4
    assert set(seen.tags) == {"table", "thead", "tbody", "tr", "th", "td"}
    assert seen.text.split() == f"name {plain(text)} {plain(other)} 1 {plain(text)} 2".split()


@given(text=texts)
def test_code_shows_the_text_and_nothing_else(text):
    seen = Seen(common_mark(f"Classes: {markdown_code(text)}."))
    assert set(seen.tags) <= {"p", "code"}
    assert seen.text.strip() == f"Classes: {plain(text)}."


@given(text=texts)
def test_a_block_of_code_is_closed_by_its_own_fence_only(text):
    seen = Seen(
        common_mark(f"{markdown_block(text, 'text')}\n\nAfter.").replace(
            ' class="language-text"', ""
        )
    )
    assert seen.tags == ["pre", "code", "p"]
    assert seen.text == f"{visible(text)}\n\nAfter.\n"


@given(text=texts)
def test_no_control_character_is_left(text):
    for line in (visible(text), markdown(text), shown(text)):
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", line)
        line.encode()


@given(text=texts)
def test_visible_json_is_the_same_json(text):
    record = {text: [text, "\ud800\x9b"]}
    assert json.loads(visible(json.dumps(record, ensure_ascii=False))) == record


def test_long_names_are_cut():
    assert len(shown("x" * 10**6)) == MAX_LENGTH + 1
    assert len(markdown("x" * 10**6)) == MAX_LENGTH + 1


@pytest.mark.parametrize("name", [name for name in NAMES if len(name) < 90])
def test_tables_on_a_terminal_show_names_as_they_are(name):
    table = PlainTable(name, title="t")
    table.add_row(name)
    console = Console(width=100, force_terminal=True, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table)  # with markup and emoji, as a user's own console has them
    console.file.close()
    for text in (console.export_text(), table_text(table)):
        assert text.count(visible(name).splitlines()[0]) == 2


@given(value=st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_settings_are_data_in_toml(value):
    options = {"out": value, "drop": [value, "b"], "lr": 0.5, "json": True}
    assert tomllib.loads(to_toml("compress", options)) == {"command": "compress", **options}
