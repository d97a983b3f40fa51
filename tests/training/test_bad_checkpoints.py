r"""Checkpoints that are damaged, of other runs, or that cannot be written."""

import errno
import os
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

import limbeck as lb
from limbeck.inputs import Dataset, Noise
from limbeck.storage import checkpoints, disk, files, folders
from tests.refusals import raises_about, warns_about
from tests.training.test_checkpoint import DOUBLE, STEPS, Interrupt, X, distilled, net, same

# what is not a checkpoint of this run


@pytest.fixture
def saved(tmp_path):
    distilled(net(1), checkpoint=tmp_path)
    return tmp_path


def refuses(folder, *values, student=None, **options):
    with raises_about(lb.CheckpointError, folder, *values):
        distilled(student or net(7), checkpoint=folder, steps=2 * STEPS, **options)


def spoil_all(content):
    return os.urandom(len(content))


def spoil_header(content):
    return content[:8] + b"x" + content[9:]


SPOILS = [spoil_all, spoil_header, lambda c: c[: len(c) // 2], lambda c: c[:5], lambda c: b""]
every_spoil = pytest.mark.parametrize(
    "spoil", SPOILS, ids=["noise", "header", "half", "five bytes", "empty"]
)


@every_spoil
def test_a_file_that_is_damaged_is_refused(saved, spoil):
    (file,) = saved.glob("*.safetensors")
    content = file.read_bytes()
    file.write_bytes(spoil(content))
    refuses(saved, "checkpoint-30.safetensors")
    file.write_bytes(content)
    assert distilled(net(7), checkpoint=saved).steps == STEPS


@every_spoil
def test_if_the_last_one_is_damaged_the_one_before_is_taken(tmp_path, spoil):
    metrics = {"size": Interrupt(7)}
    with pytest.raises(KeyboardInterrupt):
        distilled(net(1), checkpoint=tmp_path, checkpoint_every=6, metrics=metrics)
    assert checkpoints.steps(tmp_path) == [28, 24]
    last = tmp_path / "checkpoint-28.safetensors"
    last.write_bytes(spoil(last.read_bytes()))
    with warns_about("checkpoint-28.safetensors", "step 24"):
        resumed = distilled(net(7), checkpoint=tmp_path, metrics=metrics)
    same(resumed, distilled(net(1), metrics={"size": Interrupt(99)}))
    assert checkpoints.steps(tmp_path) == [30, 24]


def test_a_safetensors_file_of_somebody_else_is_refused(tmp_path):
    content = safetensors.torch.save({"weight": torch.zeros(3)})
    folders.write(tmp_path, "checkpoint", {"checkpoint-3.safetensors": content})
    refuses(tmp_path, "format None", "limbeck-checkpoint-1")


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ("{", "JSON"),
        ("[" * 100_000, "JSON"),
        ("[]", "description"),
        ("{}", ".identity:"),
    ],
)
def test_a_description_that_cannot_be_read_is_refused(tmp_path, about, said):
    metadata = {"format": checkpoints.FORMAT, "about": about}
    content = safetensors.torch.save({"a": torch.zeros(3)}, metadata=metadata)
    folders.write(tmp_path, "checkpoint", {"checkpoint-3.safetensors": content})
    refuses(tmp_path, said)


def test_a_field_of_another_type_is_refused_by_name(saved):
    tensors, about = checkpoints.read(saved)[1:]
    checkpoints.write(saved, 30, tensors, about | {"done": "thirty"}, None)
    refuses(saved, ".done:", "'thirty'")


def test_a_folder_with_other_files_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("all there is")
    refuses(tmp_path, "holds something else")
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_in_place_of_a_folder_is_refused_and_left_alone(tmp_path):
    file = tmp_path / "file"
    file.write_text("all there is")
    refuses(file, "holds something else")
    assert file.read_text() == "all there is"


def test_what_a_killed_process_left_half_written_is_no_obstacle(tmp_path):
    (tmp_path / ".checkpoint-3.safetensors.0123456789ab.new").write_bytes(b"half")
    (tmp_path / ".manifest.json.lock").touch()
    same(distilled(net(1), checkpoint=tmp_path), distilled(net(1)))
    same(distilled(net(7), checkpoint=tmp_path), distilled(net(1)))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (dict(student=net(7, 4, 5, 3)), 'student was "MLP '),
        (dict(student=nn.Linear(4, 3).double(), student_output="logits"), 'is "Linear '),
        (dict(loss="square_error"), "and is 'square_error()'"),
        (dict(seed=4), "seed was 3 and is 4"),
        (dict(batch_size=8), "batch_size was 7 and is 8"),
        (dict(optimizer="sgd"), "and is 'SGD("),
        (dict(lr=0.5), "and is 'Adam(lr=0.5"),
        (dict(clip=1.0), "clip was None and is 1.0"),
        (dict(schedule="linear"), "and is 'Linear()'"),
        (dict(inputs=Noise(4)), "inputs was 'Dataset' and is 'Noise'"),
        (dict(loss="square_error", seed=5), "seed was 3 and is 5"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_with_the_difference(saved, options, said):
    refuses(saved, "another run", said, **options)


def test_a_checkpoint_of_other_data_is_refused(saved):
    with raises_about(lb.CheckpointError, 50):
        distilled(net(7), Dataset(X[:40]), checkpoint=saved)


def test_tensors_must_fit_their_places():
    places = {"a": torch.zeros(3), "b": torch.zeros(2)}
    path = Path("file")
    with raises_about(lb.CheckpointError, "file", "b"):
        files.copy_into(places, {"a": torch.ones(3)}, path)
    with raises_about(lb.CheckpointError, "file", "c"):
        files.copy_into(places, {k: torch.ones(3) for k in "abc"}, path)
    with raises_about(lb.CheckpointError, "b in file", "(3,)", "(2,)"):
        files.copy_into(places, {"a": torch.ones(3), "b": torch.ones(3)}, path)
    with raises_about(lb.CheckpointError, torch.float64, torch.float32):
        files.copy_into(places, {"a": torch.ones(3), "b": torch.ones(2, dtype=DOUBLE)}, path)
    files.copy_into(places, {"a": torch.ones(3), "b": torch.ones(2)}, path)
    assert torch.equal(places["b"], torch.ones(2))


# disks that are full, and folders that cannot be written to


def test_a_full_disk_leaves_the_earlier_checkpoint_whole(tmp_path, monkeypatch):
    def full(descriptor, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fill(student, looks=[0]):  # noqa: B006 - counts its calls
        looks[0] += 1
        if looks[0] == 5:
            monkeypatch.setattr(disk.os, "write", full)
        return 0.0

    metrics = {"fill": fill}
    with raises_about(lb.CheckpointError, tmp_path, os.strerror(errno.ENOSPC)):
        distilled(net(1), metrics=metrics, checkpoint=tmp_path, checkpoint_every=6)
    monkeypatch.undo()
    assert checkpoints.steps(tmp_path) == [18, 12]
    assert len(list(tmp_path.iterdir())) == 3
    resumed = distilled(net(7), metrics=metrics, checkpoint=tmp_path)
    same(resumed, distilled(net(1), metrics=metrics))


def test_a_disk_that_fails_to_flush_leaves_the_earlier_checkpoint_whole(saved, monkeypatch):
    before = {file.name: file.read_bytes() for file in saved.iterdir()}

    def broken(descriptor):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(disk.os, "fsync", broken)
    with pytest.raises(lb.CheckpointError, match="what it held is untouched"):
        checkpoints.write(saved, 40, {"a": torch.zeros(2)}, {}, None)
    assert {file.name: file.read_bytes() for file in saved.iterdir()} == before


def never(student):
    raise AssertionError("refused before the first step")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write")
def test_a_folder_that_is_read_only_is_refused_before_the_first_step(tmp_path):
    tmp_path.chmod(0o500)
    try:
        refuses(tmp_path, "cannot write into", metrics={"never": never})
    finally:
        tmp_path.chmod(0o700)


def test_a_folder_that_cannot_be_written_to_is_refused_before_the_first_step(tmp_path, monkeypatch):
    opened = os.open

    def denied(path, *more, **options):
        if str(path).startswith(str(tmp_path)):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return opened(path, *more, **options)

    with monkeypatch.context() as within:
        within.setattr(os, "open", denied)
        refuses(tmp_path, "Permission denied", metrics={"never": never})


@pytest.mark.skipif(os.name == "nt", reason="permissions are of another kind")
def test_files_can_be_read_by_whom_the_user_lets_read_new_ones(tmp_path):
    (tmp_path / "plain").write_text("")
    files.write_bytes(tmp_path / "ours", b"")
    modes = [(tmp_path / name).stat().st_mode for name in ("plain", "ours")]
    assert modes[0] == modes[1]


def test_a_folder_under_a_file_is_refused_before_the_first_step(tmp_path):
    (tmp_path / "file").write_text("all there is")
    refuses(tmp_path / "file" / "folder", "cannot write into", metrics={"never": never})
