r"""Words stay words in Markdown, and tables have as many cells as columns."""

import re

from limbeck.report.blocks import (
    Code,
    Document,
    Stat,
    TableBlock,
    markdown,
)

TABLE = TableBlock("T", ["name", "x|y"], [["a|b", "1"], ["*c*\nd", "2"]])


def told(*blocks):
    content = {"verb": "logz", "summary": "S."}
    sections = {"One": list(blocks), "Empty": []}
    return markdown(Document(content, "Title", [Stat("3", "of 4")], sections))


def test_tables_have_whole_rows():
    lines = [line for line in told(TABLE).splitlines() if line.startswith("|")]
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in lines] == [3, 3, 3, 3]
    assert lines[1] == "| :-- | --: |"
    assert lines[3] == r"| \*c\* d | 2 |"


def test_sections_have_headings_and_empty_ones_are_left_out():
    text = told("Some <words>.", [{"name": "n", "held": False, "words": "why"}])
    assert "# Title\n" in text
    assert "\n## One\n" in text
    assert "Empty" not in text
    assert "Some &lt;words&gt;." in text
    assert "- ✗ **n**: why" in text
    assert "- **3** of 4" in text


def test_commands_stay_as_they_are():
    text = told(Code("limbeck a_b `c` *"))
    assert "```\nlimbeck a_b `c` *\n```" in text
    assert "````\n```\n````" in told(Code("```"))
