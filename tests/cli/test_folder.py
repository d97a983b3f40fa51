r"""Result folders: whose they are, and what is never touched."""

from pathlib import Path

import pytest
import torch

from limbeck import storage
from limbeck.cli.folder import CONFIG, DIGESTS, Folder, is_unfinished, result_folder
from limbeck.storage import checkpoints, folders
from tests.refusals import refused

OPTIONS = {"target": "rbm.npz", "steps": 3, "seed": None, "json": False}


@pytest.fixture
def folder(here):
    return Folder(Path("out"), "logz", OPTIONS)


def finished(folder):
    return folder.finish(storage.to_files({"verb": "logz"}, {}, folder.path))


def test_it_is_marked_until_it_is_finished(folder):
    assert is_unfinished(folder.work)
    assert not folder.resumes
    assert list(folders.read(folder.work, "unfinished", (DIGESTS,)).json(DIGESTS)) == ["rbm.npz"]
    assert finished(folder) == Path("out")
    assert not is_unfinished(Path("out"))
    assert result_folder(Path("out")) == Path("out")
    assert not (Path("out") / DIGESTS).exists()


def test_what_cannot_be_gone_on_with_is_taken_away(folder):
    folder.abandon()
    assert not Path("out").exists()


def test_what_can_be_gone_on_with_stays(folder):
    checkpoints.write(folder.checkpoint / "loop", 3, {"w": torch.zeros(2)}, {}, None)
    folder.abandon()
    assert folder.saved_steps == 3
    assert Folder(Path("out"), "logz", OPTIONS).resumes


def test_how_it_is_shown_makes_no_difference(folder):
    assert Folder(Path("out"), "logz", {**OPTIONS, "json": True, "quiet": True}).resumes
    with refused("--out", "steps was 3 and is 4"):
        Folder(Path("out"), "logz", {**OPTIONS, "steps": 4})
    with refused("--out", "it is of limbeck logz"):
        Folder(Path("out"), "normalize", OPTIONS)


def test_a_result_of_other_settings_is_replaced_only_if_asked(folder):
    finished(folder)
    other = {**OPTIONS, "steps": 4}
    with refused("--out", expected="--overwrite"):
        Folder(Path("out"), "logz", other)
    again = Folder(Path("out"), "logz", other, overwrite=True)
    assert "steps = 3" in (Path("out") / CONFIG).read_text()
    finished(again)
    assert "steps = 4" in (Path("out") / CONFIG).read_text()
    assert not again.work.exists()


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_not_limbecks_is_never_touched(here, overwrite):
    Path("mine").mkdir()
    Path("mine/result.json").write_text("my own")
    Path("mine/config.toml").write_text("my own too")
    with refused("--out", "holds other things"):
        Folder(Path("mine"), "logz", OPTIONS, overwrite)
    assert Path("mine/result.json").read_text() == "my own"
