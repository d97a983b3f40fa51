r"""Checkpoints: an interrupted run ends bit for bit where an uninterrupted one ends."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

import limbeck as lb
from limbeck.inputs import Dataset, Mix, Munge, Noise
from limbeck.storage import checkpoints, disk, files, folders
from tests.refusals import raises_about, warns_about

DOUBLE = torch.float64
X = torch.randn(50, 4, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))
CE, DE, HINTS = lb.losses.cross_entropy, lb.losses.derivative_error, lb.losses.hints
STEPS = 30


def net(seed, *sizes):
    generator = torch.Generator().manual_seed(seed)
    return lb.MLP(*(sizes or (4, 6, 3)), hidden="tanh", dtype=DOUBLE, generator=generator)


def distilled(student, inputs=None, **options):
    settings = dict(steps=STEPS, batch_size=7, every=4, device="cpu", engine="eager", seed=3)
    inputs = Dataset(X) if inputs is None else inputs
    return lb.distill(net(2), student, inputs, **settings | options)


CASES = {
    "dataset, adam": lambda: dict(inputs=Dataset(X), optimizer="adam"),
    "dataset drawn with replacement": lambda: dict(inputs=Dataset(X, replace=True)),
    "noise, adadelta": lambda: dict(inputs=Noise(4), preset="thesis"),
    "mixture, momentum": lambda: dict(
        inputs=Mix([Dataset(X), Noise(4)], [3, 1]),
        update=lb.GradientUpdate("sgd", "linear", momentum=0.9),
    ),
    "munge, clipping": lambda: dict(inputs=Munge(X), clip=0.5),
    "stored projections": lambda: dict(loss=CE() + DE(projections=1), precompute=True),
    "live projections": lambda: dict(loss=DE(projections=2, weight="teacher"), precompute=False),
    "hints": lambda: dict(loss=CE() + HINTS("layers.0", "layers.0")),
    "held-out loss, patience": lambda: dict(held_out=X[:9] + 1, patience=7, lr=0.3),
    "rprop": lambda: dict(optimizer="rprop", schedule="constant"),
}
every_case = pytest.mark.parametrize("case", CASES)


class Interrupt:
    r"""A metric during which the user presses Ctrl-C, once."""

    def __init__(self, looks):
        self.left = looks

    def __call__(self, student):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return student.layers[0].weight.norm().item()


def same(one, other):
    torch.testing.assert_close(
        one.student.state_dict(), other.student.state_dict(), rtol=0, atol=0, equal_nan=True
    )
    assert dict(one.history) == dict(other.history)
    assert (one.steps, one.stop_reason) == (other.steps, other.stop_reason)


@every_case
@pytest.mark.parametrize("looks", [1, 4, 8])
def test_interrupted_at_a_look_and_resumed_it_ends_as_if_never_interrupted(tmp_path, case, looks):
    whole = distilled(net(1), metrics={"size": Interrupt(99)}, **CASES[case]())
    metrics, options = {"size": Interrupt(looks)}, dict(checkpoint=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        distilled(net(1), metrics=metrics, **options, **CASES[case]())
    resumed = distilled(net(7), metrics=metrics, **options, **CASES[case]())
    same(resumed, whole)


@every_case
def test_broken_off_between_any_two_steps_it_ends_as_if_never_interrupted(tmp_path, case):
    whole = distilled(net(1), **CASES[case]())
    for stop in (1, 8, 13, 14, 25):
        settings = dict(CASES[case](), checkpoint=tmp_path)
        inputs = settings.pop("inputs", Dataset(X))
        for step in lb.steps(
            net(2), net(stop if stop > 1 else 1), inputs, steps=STEPS, batch_size=7, every=4,
            device="cpu", engine="eager", seed=3, **settings,
        ):  # fmt: skip
            if step.number >= stop:
                break
        del step
    same(distilled(net(7), checkpoint=tmp_path, **CASES[case]()), whole)


def test_out_of_time_it_goes_on_when_there_is_more_time(tmp_path):
    whole = distilled(net(1))
    for sitting in range(1, 4):
        part = distilled(net(sitting), seconds=1e-9, checkpoint=tmp_path)
        assert part.steps == 1
        assert part.stop_reason.startswith("time limit")
    same(distilled(net(7), seconds=3600.0, checkpoint=tmp_path), whole)


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[2])
import test_checkpoint as case

def die(student, left=[5]):
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return 0.0

case.distilled(case.net(1), metrics={"die": die}, checkpoint=sys.argv[1], checkpoint_every=3)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_killed_it_goes_on_from_the_last_checkpoint(tmp_path):
    folder = tmp_path / "run"
    source = str(Path(lb.__file__).parents[1])
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, folder, Path(__file__).parent],
        env=os.environ | {"PYTHONPATH": source}, check=False,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL
    assert checkpoints.read(folder).about["done"] == 18  # it died at the look of step 20
    metrics = {"die": lambda student: 0.0}
    resumed = distilled(net(7), metrics=metrics, checkpoint=folder)
    same(resumed, distilled(net(1), metrics=metrics))


def test_a_step_that_was_torn_is_not_saved(tmp_path):
    class Torn(Dataset):
        calls = 0

        def draw(self, n):
            rows = super().draw(n)  # the generator has moved on when the user presses Ctrl-C
            Torn.calls += 1
            if Torn.calls == 14:  # one for the probe, twelve for steps, and this one
                raise KeyboardInterrupt
            return rows

    Torn.__name__ = "Dataset"
    with pytest.raises(KeyboardInterrupt):
        distilled(net(1), Torn(X), checkpoint=tmp_path, checkpoint_every=5)
    assert checkpoints.read(tmp_path).about["done"] == 10
    same(distilled(net(7), checkpoint=tmp_path), distilled(net(1)))


def test_a_finished_run_gives_its_student_at_once(tmp_path):
    finished = distilled(net(1), checkpoint=tmp_path)
    calls = []
    again = distilled(net(7), checkpoint=tmp_path, metrics={"never": calls.append})
    same(again, finished)
    assert not calls
    assert again.seconds == finished.seconds


def test_a_run_that_ended_on_a_plateau_gives_its_best_student_at_once(tmp_path):
    options = dict(optimizer="sgd", lr=30.0, schedule="constant", held_out=X[:9] + 1, patience=3)
    finished = distilled(net(1), checkpoint=tmp_path, steps=400, **options)
    assert finished.stop_reason.startswith("plateau")
    same(distilled(net(7), checkpoint=tmp_path, steps=400, **options), finished)


@pytest.mark.parametrize("before", [1, 2, 3])
def test_interrupted_after_its_best_look_a_run_still_gives_its_best_student(tmp_path, before):
    options = dict(optimizer="sgd", lr=30.0, schedule="constant", held_out=X[:9] + 1, patience=3)
    options |= dict(steps=400, metrics={"size": Interrupt(10**6)})
    whole = distilled(net(1), **options)
    options["metrics"] = {"size": Interrupt(len(whole.history["step"]) + 1 - before)}
    with pytest.raises(KeyboardInterrupt):
        distilled(net(1), checkpoint=tmp_path, **options)
    same(distilled(net(7), checkpoint=tmp_path, **options), whole)


def poisoned(x):
    return torch.where(x[:, :1] == 30.0, torch.nan, x[:, :3])


@pytest.mark.parametrize("steps", [STEPS, 2 * STEPS])
def test_a_run_that_failed_says_so_again(tmp_path, steps):
    data = X.clone()
    data[40, 0] = 30.0
    options = dict(
        loss=CE(), batch_size=7, seed=3, device="cpu", teacher_output="logits", precompute=False,
        checkpoint=tmp_path, checkpoint_every=1,
    )  # fmt: skip
    with warns_about("cross_entropy"):
        failed = lb.distill(poisoned, net(1), data, steps=STEPS, **options)
    same(lb.distill(poisoned, net(7), data, steps=steps, **options), failed)
    assert 0 < failed.steps < STEPS


@pytest.mark.parametrize("schedule", ["constant", "robbins-monro"])
def test_more_steps_than_the_saved_run_had_go_on(tmp_path, schedule):
    options = dict(schedule=schedule, every=5)
    distilled(net(1), checkpoint=tmp_path, **options)
    longer = distilled(net(7), checkpoint=tmp_path, steps=2 * STEPS, **options)
    same(longer, distilled(net(1), steps=2 * STEPS, **options))


def test_fewer_steps_than_an_interrupted_run_did_are_done(tmp_path):
    options = dict(checkpoint=tmp_path, schedule="constant")
    with pytest.raises(KeyboardInterrupt):
        distilled(net(1), metrics={"size": Interrupt(6)}, **options)
    result = distilled(net(7), metrics={"size": Interrupt(0)}, steps=20, **options)
    assert result.steps == 24
    assert result.stop_reason == "all 20 steps done"
    assert len(result.history["size"]) == 6


def test_a_folder_holds_the_last_two_checkpoints_with_nothing_pickled(tmp_path):
    folder = tmp_path / "new" / "folder"
    distilled(net(1), checkpoint=folder, checkpoint_every=9)
    assert sorted(file.name for file in folder.iterdir()) == [
        "checkpoint-27.safetensors", "checkpoint-30.safetensors", "manifest.json",
    ]  # fmt: skip
    content = (folder / "checkpoint-30.safetensors").read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    assert 8 + size + max(ends) == len(content)  # a header of JSON, and then numbers alone
    assert header["__metadata__"]["format"] == "limbeck-checkpoint-1"
    about = json.loads(header["__metadata__"]["about"])
    assert (about["done"], about["stop_reason"]) == (STEPS, "all 30 steps done")


@pytest.mark.parametrize("every", [1, 5, 11])
def test_checkpoints_are_written_every_so_many_steps(tmp_path, monkeypatch, every):
    written = []
    monkeypatch.setattr(checkpoints, "write", lambda _, step, *more: written.append(step))
    distilled(net(1), checkpoint=tmp_path, checkpoint_every=every)
    assert written == sorted({*range(every, STEPS + 1, every), STEPS})


def test_checkpoints_are_written_every_so_many_seconds(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(checkpoints, "write", lambda _, step, *more: written.append(step))
    distilled(net(1), checkpoint=tmp_path, checkpoint_seconds=1e-9)
    assert written == list(range(1, STEPS + 1))


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


def test_a_checkpoint_of_before_manifests_is_refused(tmp_path):
    safetensors.torch.save_file({"a": torch.zeros(3)}, tmp_path / "checkpoint.safetensors")
    refuses(tmp_path, "version 0.1")


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
        refuses(tmp_path, "cannot write into .*Permission denied", metrics={"never": never})


@pytest.mark.skipif(os.name == "nt", reason="permissions are of another kind")
def test_files_can_be_read_by_whom_the_user_lets_read_new_ones(tmp_path):
    (tmp_path / "plain").write_text("")
    files.write_bytes(tmp_path / "ours", b"")
    modes = [(tmp_path / name).stat().st_mode for name in ("plain", "ours")]
    assert modes[0] == modes[1]


def test_a_folder_under_a_file_is_refused_before_the_first_step(tmp_path):
    (tmp_path / "file").write_text("all there is")
    refuses(tmp_path / "file" / "folder", "cannot write into", metrics={"never": never})
