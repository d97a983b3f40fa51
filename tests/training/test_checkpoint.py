r"""Checkpoints: an interrupted run ends bit for bit where an uninterrupted one ends."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import limbeck as lb
from limbeck.inputs import Dataset, Mix, Munge, Noise
from limbeck.storage import checkpoints
from tests.refusals import warns_about

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
