r"""Names in reports, cards, exported programs and on the terminal are text, and never run."""

import ast
import html.parser
import json
import runpy
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import limbeck as lb
from limbeck import storage
from limbeck.export import card, export
from limbeck.report import page, records
from limbeck.text import CONTROL, markdown, visible
from tests.export.students import net
from tests.refusals import refused
from tests.security.evil import MARK, NAMES, QUOTES, compressed, teacher_class

pytest.importorskip("pandas")
NOTES = ["<b>bold</b>", "- a list", "# a heading", "1. a number", "![i](https://e.example)"]
COMMAND = "limbeck compress 'a`b' ```\n</code><script>alert(2)</script>"


@pytest.fixture(autouse=True)
def nothing_ran(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert not Path(MARK).exists()


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    r"""The folder of a report on such names."""
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    small, report, frame = compressed()
    content, arrays = records.to_record(
        small, verb="compress", X=frame, report=report, command=COMMAND,
    )  # fmt: skip
    content["notes"] += NOTES
    content["settings"] |= {NAMES[0]: NAMES[7]}
    folder = storage.write(tmp_path_factory.mktemp("report"), content, arrays)
    page.write(folder)
    return folder


def tokens(text):
    from markdown_it import MarkdownIt

    parsed = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    return [part for token in parsed for part in (token, *(token.children or ()))]


def check_markdown(text):
    kinds = {"html_inline", "html_block", "link_open", "image", "s_open"}
    allowed = "<!-- limbeck wrote this file -->"
    active = [token.content for token in tokens(text) if token.type in kinds]
    assert [content.strip() for content in active if content.strip() != allowed] == []
    assert not CONTROL.search(text)


class Page(html.parser.HTMLParser):
    r"""What a page has, and what it would load."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_data(self, data):
        self.text += data


def test_a_report_shows_names_in_html(result):
    text = (result / "report.html").read_text(encoding="utf-8")
    seen = Page(text)
    assert seen.tags.count("script") == 1  # its own
    assert not {"img", "iframe", "object", "embed"} & set(seen.tags)
    assert not [name for name, _ in seen.attributes if name.startswith("on")]
    links = {value for name, value in seen.attributes if name in ("href", "src", "xlink:href")}
    local = ("#", "data:", "report.")
    assert [link for link in links if not link.startswith(local)] == []
    assert not CONTROL.search(text)
    for name in (*NAMES[:2], NAMES[6]):
        assert visible(name) in seen.text


def test_a_report_shows_names_in_markdown(result):
    text = (result / "report.md").read_text(encoding="utf-8")
    check_markdown(text)
    assert markdown(NAMES[0]) in text
    assert text.count("alert(2)") == 1  # in the block of the command
    headings = [token for token in tokens(text) if token.type == "heading_open"]
    assert headings
    assert "a heading" not in "".join(line for line in text.splitlines() if line.startswith("#"))


def test_a_report_keeps_names_in_json(result):
    text = (result / "report.json").read_text(encoding="utf-8")
    assert not CONTROL.search(text)
    classes = json.loads(text)["results"][0]["fidelity"]["classes"]
    assert classes == NAMES


@pytest.mark.parametrize("path", ["s.onnx", "s.pt2", "s.npz", "folder", "a`b <i> .npz"])
def test_cards_show_names(path):
    small, report, _ = compressed()
    kind = {".onnx": "onnx", ".pt2": "pt2"}.get(Path(path).suffix, "numpy")
    text = card(small, path, kind, report=report, title="<script>alert(3)</script>")
    check_markdown(text)
    lines = text.splitlines()
    assert lines[0] == "# &lt;script&gt;alert(3)&lt;/script&gt;"
    assert f"| {markdown(NAMES[0])} |" in text
    for k, line in enumerate(lines):  # every row of a table has the cells of its heading
        if line.startswith("| ") and lines[k - 1].startswith("|"):
            assert line.count(" | ") == lines[k - 1].count(" | "), line


def test_the_code_of_a_card_runs_whatever_the_file_is_called():
    path = Path(f'x"); import os; os.system("touch {MARK}"); ("é.npz')
    text = card(net(), path, "numpy")
    code = text.split("```text\n")[1].split("\n```")[0]
    export(net(), path, card=False)
    x = np.zeros((2, 4))
    scope = {"x": x}
    exec(code, scope)
    np.testing.assert_allclose(scope["y"], net()(torch.zeros(2, 4)).detach(), atol=1e-6)


@pytest.mark.parametrize(
    "name", ["weights", f'x"); import os; os.system("touch {MARK}"); ("', "\\'"]
)
def test_a_script_holds_names_as_data(name):
    small, _, frame = compressed()
    export(small, f"{name}.npz", card=False)
    script = Path(f"{name}.py")
    tree = ast.parse(script.read_text(encoding="utf-8"))
    imports = {
        a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names
    }
    assert imports <= {"json", "math", "numpy"}
    assert not {"os", "__import__", "system"} & {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name)
    }
    scope = runpy.run_path(str(script))
    assert scope["CLASSES"] == NAMES
    np.testing.assert_allclose(scope["predict"](frame), small.predict_proba(frame), atol=1e-5)


def test_a_script_of_a_class_of_any_name():
    class Student(lb.MLP):
        pass

    Student.__name__ = f'x"""\nimport os; os.system("touch {MARK}")\n"""\\'
    export(Student(4, 3, 2), "s.npz", input_shape=4, card=False)
    assert Student.__name__ in runpy.run_path("s.py")["__doc__"]


def table_student(name):
    import pandas

    rng = np.random.default_rng(0)
    frame = pandas.DataFrame({name: rng.normal(size=60), "b": rng.choice(["x", "y"], 60)})
    return lb.compress(
        lambda rows: np.asarray(rows[name]) ** 2, frame, student=(3,), inputs="data", steps=5,
        device="cpu", progress=False,
    ), frame  # fmt: skip


@pytest.mark.parametrize("name", [QUOTES, NAMES[4], "it's"])
def test_torch_does_not_run_the_names_of_columns(name):
    r"""Its exporter writes names into the code of its guards, which it then executes."""
    pytest.importorskip("onnxscript")
    small, frame = table_student(name)
    session = pytest.importorskip("onnxruntime").InferenceSession(export(small, "s.onnx"))
    from limbeck.export.table_onnx import feeds

    answers = session.run(None, feeds(small.row_format.table, frame))[0]
    np.testing.assert_allclose(answers[:, 0], small.predict(frame), atol=1e-4)
    with refused("table", "a column", expected="rename it"):
        export(small, "s.pt2")
    assert not Path("s.pt2").exists()


def test_a_program_takes_other_names_as_ever():
    export(table_student("petal length (cm), é")[0], "s.pt2")


def test_the_terminal_shows_names():
    small, report, _ = compressed()
    for text in (str(small), str(report), repr(small.row_format.table)):
        assert not CONTROL.search(text)
    assert "[bold]x[/bold] [/]" in repr(small.row_format.table)
    assert "[red]\\u001b[2J" in str(small)


def test_any_name_of_a_teacher_can_be_printed():
    import pandas

    frame = pandas.DataFrame({"a": range(40), "b": np.linspace(0, 1, 40)})
    teacher = teacher_class("[/red] \x1b[2J")()
    options = {"inputs": "data", "steps": 2, "device": "cpu", "progress": False}
    assert "[/red] \\u001b[2J" in str(lb.compress(teacher, frame, student=(2,), **options))


@pytest.mark.skipif(shutil.which("touch") is None, reason="needs a shell")
def test_the_attack_works_where_nothing_is_done_against_it():
    r"""So that the tests above can fail."""
    exec(f'str("{QUOTES}")')
    assert Path(MARK).exists()
    Path(MARK).unlink()


def run_command(monkeypatch, *words):
    from limbeck import cli

    monkeypatch.setattr(sys, "argv", ["limbeck", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code


def test_commands_print_names_as_they_are(result, monkeypatch, capsys):
    import pandas

    pandas.DataFrame({"\x1b[31m[bold]a": [1, 2], "\u202eb": [3, 4]}).to_csv("a.csv", index=False)
    assert run_command(monkeypatch, "info", "a.csv") == 0
    assert run_command(monkeypatch, "info", str(result)) == 0
    assert run_command(monkeypatch, "info", "\x1b[2Jnone.csv") == 2
    printed = capsys.readouterr()
    assert not CONTROL.search(printed.out + printed.err)
    assert "\\u001b[31m[bold]a" in printed.out
    assert "\\u001b[2Jnone.csv" in printed.err
    assert run_command(monkeypatch, "info", str(result), "--json") == 0
    assert json.loads(capsys.readouterr().out)["path"] == str(result)


def test_a_path_that_is_no_text_is_refused(monkeypatch, capsys):
    bad = b"\xff.csv".decode(errors="surrogateescape")
    assert run_command(monkeypatch, "compress", "models:teacher", bad) == 2
    assert "expected text in UTF-8, got '\\udcff.csv'" in capsys.readouterr().err
