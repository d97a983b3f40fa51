r"""The page: whole, self-contained, described; of every verb, and of several at once."""

import json
import re
import sys
from html.parser import HTMLParser

import pytest

from limbeck import storage
from limbeck.report import page
from limbeck.report.blocks import minus, sort_value
from tests.refusals import refused
from tests.report import making

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Checked(HTMLParser):
    r"""What a page consists of; an end without a beginning fails."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.links, self.headings, self.text = [], [], [], [], []
        self.tables = self.pictures = self.named = 0
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        self.ids += [found["id"]] if "id" in found else []
        self.links += [value for name, value in attrs if name in ("href", "src", "xlink:href")]
        self.headings += [int(tag[1])] if re.fullmatch("h[1-6]", tag) else []
        self.tables += tag == "table"
        self.pictures += tag == "svg"
        self.named += tag == "svg" and found.get("role") == "img" and "aria-labelledby" in found

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    @property
    def said(self):
        return " ".join(" ".join(self.text).split())


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("results")
    return {name: storage.write(root / name, *making.to_record(name)) for name in making.NAMES}


@pytest.fixture(scope="module")
def pages(folders):
    return {
        name: page.write(folder).read_text(encoding="utf-8") for name, folder in folders.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", making.NAMES)
def test_a_page_is_whole_and_needs_nothing_else(name, pages):
    found = Checked(pages[name])
    assert len(found.ids) == len(set(found.ids))
    inside = [link for link in found.links if link.startswith("#")]
    assert {link[1:] for link in inside} <= set(found.ids)
    outside = {link for link in found.links if not link.startswith(("#", "data:"))}
    assert outside == {"report.json", "report.md"}
    assert "@import" not in pages[name]
    assert found.pictures == found.named > 0
    assert found.headings[0] == 1
    assert found.headings.count(1) == 1
    assert all(b <= a + 1 for a, b in zip(found.headings, found.headings[1:], strict=False))


@pytest.mark.parametrize("name", making.NAMES)
def test_it_tells_what_the_result_says(name, pages, folders):
    content = storage.read(folders[name]).content
    said = Checked(pages[name]).said
    assert content["title"] in said
    assert minus(content["summary"]) in said
    assert content["command"] in said
    for each in content["verdicts"]:
        assert minus(each["words"]) in said
    for each in content["circumstances"].values():
        assert str(each) in said
    for each in content["models"]:
        assert each["name"] in said
    assert ("Read before relying" in said) == any(not e["held"] for e in content["verdicts"])


@pytest.mark.parametrize("name", making.NAMES)
def test_the_same_is_there_for_programs_and_as_text(name, pages, folders):
    content = storage.read(folders[name]).content
    found = json.loads((folders[name] / "report.json").read_text(encoding="utf-8"))
    (only,) = found["results"]
    assert {key: only[key] for key in content} == content
    assert len(only["pictures"]) == Checked(pages[name]).pictures
    for stat in only["headline"]:
        assert minus(stat["value"]) in Checked(pages[name]).said
    assert all(len(row) == len(t["columns"]) for t in only["tables"] for row in t["rows"])
    text = (folders[name] / "report.md").read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert text.count("*Picture:*") == len(only["pictures"])


def test_a_page_is_the_same_each_time(folders):
    first = page.write(folders["condense"]).read_bytes()
    assert page.write(folders["condense"]).read_bytes() == first


def test_sections_by_verb(pages):
    parts = {
        "compress": ("Calibration", "Where they disagree", "Subgroups", "labels alone", "seed 3"),
        "condense": ("Compact weights", "effective size", "What both predict"),
        "normalize": ("Samples", "Features", "Log probabilities", "heavy tail", "log Z"),
        "logz": ("95% interval", "doubtful", "Diagnostics"),
    }
    for name, words in parts.items():
        said = Checked(pages[name]).said
        for each in words:
            assert each in said, (name, each)


def test_figures_on_top_have_their_errors_and_reasons_are_given(pages, folders):
    headline = json.loads((folders["logz"] / "report.json").read_text("utf-8"))["results"][0]
    (bridge,) = (s for s in headline["headline"] if s["label"].startswith("log Z, bridge"))
    value, error = bridge["value"].split(" ± ")
    assert f"<dd>{minus(value)} <small>± {error}</small></dd>" in pages["logz"]
    said = Checked(pages["logz"]).said
    for entry in storage.read(folders["logz"]).content["log_z"]:
        for reason in entry["reasons"]:
            assert minus(reason) in said


def test_what_users_call_things_stays_words(pages):
    assert "town <b>" not in pages["table"]
    said = Checked(pages["table"]).said
    assert "town <b>" in said
    assert "Bath & Wells" in said
    assert "$x$" in said


def test_the_numbers_and_the_text_are_beside_the_page(folders, pages):
    told = json.loads((folders["compress"] / "report.json").read_text(encoding="utf-8"))
    assert [each["verb"] for each in told["results"]] == ["compress"]
    assert (folders["compress"] / "report.md").exists()


def test_what_is_no_result_has_no_page(tmp_path):
    with refused("folder", "which is no folder"):
        page.write(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_a_result_that_lacks_something_is_named(tmp_path):
    content, arrays = making.to_record("compress")
    broken = {**content, "fidelity": {**content["fidelity"]}}
    del broken["fidelity"]["measures"]
    storage.write(tmp_path, broken, arrays)
    with refused("folder", r"compress with missing content .*saved.measures"):
        page.write(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_the_least_that_is_a_result_has_a_page(tmp_path):
    for verb in storage.VERBS:
        storage.write(tmp_path, {"verb": verb})
        found = Checked(page.write(tmp_path).read_text(encoding="utf-8"))
        assert f"A result of limbeck {verb}" in found.said


def test_without_matplotlib_it_has_no_pictures_and_says_so(folders, tmp_path, monkeypatch):
    storage.write(tmp_path, *making.to_record("normalize"))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    found = Checked(page.write(tmp_path).read_text(encoding="utf-8"))
    assert found.pictures == 0
    assert "limbeck[report]" in found.said
    assert found.tables > 3


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("−1.5", -1.5), ("+0.25", 0.25), ("1e-05", 1e-5), ("2.0× more", 2.0), ("12 ms", 0.012),
        ("98.67 ± 0.11%", 98.67), ("1 … 2", 1.0), ("–", None), ("", None), ("3a", None),
        ("4: 95%, 1: 5%", None), ("v1.2", None), ("2026-01-31", None),
    ],
)  # fmt: skip
def test_cells_are_sorted_by_the_number_they_begin_with(cell, value):
    assert sort_value(cell) == (None if value is None else pytest.approx(value))


def test_negative_numbers_have_a_minus_and_nothing_else_changes():
    assert minus("-1.5 (the RBM itself -.5)") == "−1.5 (the RBM itself −.5)"
    for text in ("2026-11-16", "1e-08", "a-1", "--steps -x", "3-4", "MLP(4, 3)"):
        assert minus(text) == text
    assert sort_value(minus("-1,200 ± 3")) == sort_value("-1,200 ± 3") == -1200


def test_a_command_breaks_between_words_and_not_at_hyphens(tmp_path):
    content, arrays = making.to_record("logz")
    content["command"] = "limbeck report x-1 & y"
    text = page.write(storage.write(tmp_path / "r", content, arrays)).read_text(encoding="utf-8")
    assert "<code>limbeck report <span>x-1</span> &amp; y</code>" in text
