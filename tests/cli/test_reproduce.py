r"""`limbeck reproduce`: what it lacks is said in one line."""


def test_reproduction_says_what_it_lacks(limbeck, monkeypatch, tmp_path):
    monkeypatch.delenv("LIMBECK_DATA", raising=False)
    for arguments, said in (
        (("reproduce", "chapter-9"), "'chapter-4'"),
        (("reproduce", "chapter-4"), "LIMBECK_DATA"),
        (("reproduce", "chapter-4", "--data", str(tmp_path)), "rbm_cd25_500.npz"),
        (("reproduce", "chapter-2"), "LIMBECK_DATA"),
        (("reproduce", "chapter-2", "--data", str(tmp_path)), "train-images-idx3-ubyte"),
        (("reproduce", "chapter-2", "--hidden", "5"), "chapter-2, which takes seeds, cells"),
        (("reproduce", "chapter-4", "--cells", "mnist-*"), "cells: got ['mnist-*']"),
        (("reproduce", "chapter-2", "--cells", "mnist-a"), "did you mean 'mnist-all-ce'?"),
    ):
        found = limbeck(*arguments, "--out", tmp_path / "out")
        assert found.code == 2
        assert said in found.err


def test_nothing_is_left_where_nothing_could_be_done(limbeck, tmp_path):
    found = limbeck("reproduce", "chapter-4", "--data", tmp_path, "--out", tmp_path / "out")
    assert found.code == 2
    assert not (tmp_path / "out").exists()
