r"""`module:name`: found in the current folder, and clear about what is not there."""

from pathlib import Path

import pytest

from limbeck.cli import references
from limbeck.errors import ArgumentError


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("models:teacher", True),
        ("package.models:net.head", True),
        ("folder/models.py:net", True),
        ("C:\\models.py:net", True),
        ("rbm.npz", False),
        ("C:\\rbm.npz", False),
        ("models:", False),
        (":teacher", False),
        ("models:3", False),
    ],
)
def test_what_is_a_reference(text, is_one):
    assert references.is_reference(text) == is_one


def test_the_current_folder_comes_first(here):
    Path("json_of_mine.py").write_text("value = 3\nclass Held:\n    inner = 4\n")
    assert references.load("json_of_mine:value", "teacher") == 3
    assert references.load("json_of_mine:Held.inner", "teacher") == 4


def test_a_file_anywhere_and_its_neighbours(here):
    Path("deep").mkdir()
    Path("deep/beside_it.py").write_text("value = 5\n")
    Path("deep/mine.py").write_text("from beside_it import value\n")
    assert references.load("deep/mine.py:value", "teacher") == 5


def test_a_package_by_its_dotted_name(here):
    Path("parcel").mkdir()
    Path("parcel/__init__.py").write_text("")
    Path("parcel/inner.py").write_text("value = 6\n")
    assert references.load("parcel.inner:value", "teacher") == 6
    with pytest.raises(ArgumentError, match=r"there is no 'parcel.outer'"):
        references.load("parcel.outer:value", "teacher")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("1 / 0\n", r"ZeroDivisionError: division by zero at broken\.py, line 1"),
        ("import no_such_thing\n", r"ModuleNotFoundError: No module named 'no_such_thing'"),
        ("x = = 3\n", r"SyntaxError: .* at broken\.py, line 1"),
        ("raise SystemExit(0)\n", r"SystemExit"),
    ],
)
@pytest.mark.parametrize("name", ["broken", "broken.py"])
def test_a_module_that_fails_says_where(here, code, said, name):
    Path("broken.py").write_text(code)
    with pytest.raises(ArgumentError, match=said):
        references.load(f"{name}:value", "teacher")


def test_names_that_are_not_there(here):
    for text, said in (
        ("models:techer", r"did you mean 'teacher'\?"),
        ("modles:teacher", r"did you mean 'models'\?"),
        ("none.py:teacher", "which is no file"),
        ("teacher", "module:name"),
    ):
        with pytest.raises(ArgumentError, match=said):
            references.load(text, "teacher")


def test_what_the_users_code_raises_is_not_limbecks_fault(limbeck, here):
    Path("energies.py").write_text(
        "import limbeck as lb\n\n\ndef fn(x):\n    raise RuntimeError('cold')\n\n\n"
        "cold = lb.Energy(fn, support=lb.Binary(3))\n"
    )
    found = limbeck("logz", "energies:cold")
    assert found.code == 2
    assert "energies.py, line 5: RuntimeError: cold" in found.err
    assert not Path("limbeck-logz").exists()
