r"""`python -m reproduction`: what it lacks is said in one line."""

import pytest

from reproduction.__main__ import main


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["chapter-9"], "'chapter-4'"),
        (["chapter-4"], "LIMBECK_DATA"),
        (["chapter-4", "--data", "EMPTY"], "rbm_cd25_500.npz"),
        (["chapter-2"], "LIMBECK_DATA"),
        (["chapter-2", "--data", "EMPTY"], "train-images-idx3-ubyte"),
        (["chapter-2", "--hidden", "5"], "chapter-2, which takes seeds, cells"),
        (["chapter-4", "--cells", "mnist-*"], "['mnist-*']"),
        (["chapter-2", "--cells", "mnist-a"], "did you mean 'mnist-all-ce'?"),
    ],
)
def test_reproduction_says_what_it_lacks(arguments, expected, monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("LIMBECK_DATA", raising=False)
    arguments = [str(tmp_path) if each == "EMPTY" else each for each in arguments]
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 2
    assert expected in capsys.readouterr().err
