r"""What users name: `module:name` and paths, and clear errors about what is not there."""

from pathlib import Path

import numpy as np
import pytest

from limbeck.cli.files import is_reference, load_object
from limbeck.errors import require_path
from tests.refusals import refused


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
    assert is_reference(text) == is_one


def test_the_current_folder_comes_first(here):
    Path("json_of_mine.py").write_text("value = 3\nclass Held:\n    inner = 4\n")
    assert load_object("json_of_mine:value", "teacher") == 3
    assert load_object("json_of_mine:Held.inner", "teacher") == 4


def test_a_file_anywhere_and_its_neighbours(here):
    Path("deep").mkdir()
    Path("deep/beside_it.py").write_text("value = 5\n")
    Path("deep/mine.py").write_text("from beside_it import value\n")
    assert load_object("deep/mine.py:value", "teacher") == 5


def test_a_package_by_its_dotted_name(here):
    Path("parcel").mkdir()
    Path("parcel/__init__.py").write_text("")
    Path("parcel/inner.py").write_text("value = 6\n")
    assert load_object("parcel.inner:value", "teacher") == 6
    with refused("teacher", "there is no 'parcel.outer'"):
        load_object("parcel.outer:value", "teacher")


@pytest.mark.parametrize(
    ("code", "received"),
    [
        ("1 / 0\n", r"ZeroDivisionError: division by zero at broken\.py, line 1"),
        ("import no_such_thing\n", "ModuleNotFoundError: No module named 'no_such_thing'"),
        ("x = = 3\n", r"SyntaxError: .* at broken\.py, line 1"),
        ("raise SystemExit(0)\n", "SystemExit"),
    ],
)
@pytest.mark.parametrize("name", ["broken", "broken.py"])
def test_a_module_that_fails_says_where(here, code, received, name):
    Path("broken.py").write_text(code)
    with refused("teacher", received):
        load_object(f"{name}:value", "teacher")


def test_names_that_are_not_there(here):
    for text, received, expected in (
        ("models:techer", "'models:techer', and 'techer' does", r"did you mean 'teacher'\?"),
        ("modles:teacher", "'modles:teacher', and there is no", r"did you mean 'models'\?"),
        ("none.py:teacher", "which is not a file", ""),
        ("teacher", "'teacher'", ""),
    ):
        with refused("teacher", received, expected=expected):
            load_object(text, "teacher")


def test_what_the_users_code_raises_is_not_limbecks_fault(limbeck, here):
    Path("energies.py").write_text(
        "import limbeck as lb\n\n\ndef fn(x):\n    raise RuntimeError('cold')\n\n\n"
        "cold = lb.Energy(fn, support=lb.Binary(3))\n"
    )
    found = limbeck("logz", "energies:cold")
    assert found.code == 2
    assert "energies.py, line 5: RuntimeError: cold" in found.err
    assert not Path("limbeck-logz").exists()


MISSING = {
    "compress": (("compress", "models:teacher", "trian.csv"), "train.csv"),
    "condense": (
        ("condense", "draw.npz", "--predict", "logistic", "--inputs", "x.npy"),
        "draws.npz",
    ),
    "inputs": (("condense", "draws.npz", "--predict", "logistic", "--inputs", "X1.npy"), None),
    "normalize": (("normalize", "rmb.npz"), "rbm.npz"),
    "logz": (("logz", "rbm2.npz"), "rbm.npz"),
    "info": (("info", "tets.csv"), "test.csv"),
}


@pytest.mark.parametrize("command", MISSING)
def test_what_is_not_there_and_what_was_perhaps_meant(refused, here, command):
    words, meant = MISSING[command]
    before = set(Path().iterdir())
    line = refused(*words)
    assert "which does not exist" in line
    assert (f"(did you mean {meant}?)" in line) == (meant is not None)
    assert set(Path().iterdir()) == before


@pytest.mark.parametrize(
    ("path", "kind", "received"),
    [
        (".", "file", r"^\., a folder$"),
        ("x.npy", "folder", r"^x\.npy, a file$"),
        ("nowhere/train.csv", "any", "which does not exist$"),
        ("sub/tran.csv", "any", r"which does not exist \(did you mean sub/train\.csv\?\)$"),
    ],
)
def test_what_a_path_is_instead(here, path, kind, received):
    Path("sub").mkdir()
    Path("sub/train.csv").write_text("")
    with refused("data", received):
        require_path(Path(path), "data", "another", kind)


@pytest.mark.parametrize("name", ["garbage.npz", "garbage.npy"])
def test_what_is_no_array_is_never_taken_for_a_pickle(refused, here, name):
    Path(name).write_bytes(b"hello, world")
    line = refused("compress", "models:teacher", name)
    assert "it is no npz file" in line
    assert "pickle" not in line
    if name.endswith("npz"):
        assert "it is no npz file" in refused("normalize", name)


def test_an_empty_npz_file_is_still_one(refused, here):
    np.savez("empty.npz")
    assert "with nothing" in refused("compress", "models:teacher", "empty.npz")


def test_where_a_student_cannot_go_is_said_before_the_run(refused, here):
    words = ("condense", "draws.npz", "--predict", "logistic", "--inputs", "x.npy", "--export")
    line = refused(*words, "bag.docx")
    assert line.startswith("--export: expected ")
    assert line.endswith(", got bag.docx")
    assert not Path("limbeck-condense").exists()
