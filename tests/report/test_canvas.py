r"""Figures and files."""

import sys

import pytest

from limbeck.errors import LimbeckError
from reproduction.canvas import canvas, save
from tests.refusals import raises_about

matplotlib = pytest.importorskip("matplotlib")


def test_the_users_own_settings_stay_as_they_are():
    before = dict(matplotlib.rcParams)
    with canvas(2, 3, (2.0, 1.0)) as (figure, axes):
        assert axes.shape == (2, 3)
        assert tuple(figure.get_size_inches()) == (6.0, 2.0)
        assert not axes[0, 0].spines["top"].get_visible()
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("ending", [".png", ".svg", ".pdf"])
def test_files_say_what_they_show(tmp_path, ending):
    with canvas() as (figure, axes):
        axes[0, 0].plot([1, 2], [3, 4])
        path = save(figure, tmp_path / "new" / f"picture{ending}", "a rising line")
    content = path.read_bytes()
    assert b"a rising line" in content or ending == ".pdf"
    assert len(content) > 1000


def test_equal_pictures_are_equal_files(tmp_path):
    def draw(name):
        with canvas() as (figure, axes):
            axes[0, 0].plot([1, 2], [3, 4])
            return save(figure, tmp_path / name, "a line").read_bytes()

    assert draw("one.svg") == draw("two.svg")
    assert draw("one.png") == draw("two.png")


def test_without_matplotlib_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with raises_about(LimbeckError, "limbeck[plots]"), canvas():
        pass
