r"""Several processes: one student in all of them, on rows of their own, or a refusal.

What went wrong: each process ended with running statistics of its own (BatchNorm) and with the
buffers and frozen parameters it began with; processes that drew the same rows (an IterableDataset,
a loader in a fixed order, a function with its own generator, a source with its own seed) counted
each row several times; a student wrapped in DistributedDataParallel was trained past its wrapper;
processes that were launched without engine="accelerate" each trained a student without a word; and
no result said how many processes had made it.
"""

import json
import os
import socket
import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn

import limbeck as lb
from tests.refusals import refused, warns_about

pytest.importorskip("accelerate")
X = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
OPTIONS = {
    "steps": 6, "batch_size": 8, "optimizer": "sgd", "lr": 0.1, "schedule": "constant",
    "device": "cpu", "teacher_output": "logits", "student_output": "logits", "progress": False,
}  # fmt: skip


def teacher(x):
    return x[:, :3]


class Own(nn.Module):
    r"""A net with running statistics, a frozen parameter, and buffers of many kinds."""

    def __init__(self, seed=1):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.norm, self.last = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)
        self.frozen = nn.Parameter(torch.rand(3), requires_grad=False)
        self.register_buffer("mask", torch.rand(3) > 0.5)
        self.register_buffer("scale", 1 + torch.rand(3))
        self.register_buffer("causal", torch.full((2,), -torch.inf))
        self.register_buffer("unsaved", torch.rand(2), persistent=False)
        self.register_buffer("rows", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if self.training:
            self.rows += len(x)
        return self.last(torch.tanh(self.norm(self.first(x)))) * self.scale + self.frozen


CASES = """
rank = int(os.environ["RANK"])
data = torch.utils.data

class Stream(data.IterableDataset):
    def __init__(self, shard=False):
        self.shard = shard
    def __iter__(self):
        for i, row in enumerate(X):
            if not self.shard or i % 2 == rank:
                yield row

def own_generator():
    generator = torch.Generator().manual_seed(0)
    return lambda n: torch.randn(n, 4, generator=generator)

def reader():
    position = iter(range(0, 10**6, 1))
    return lambda n: torch.stack([X[next(position) % 64] for _ in range(n)])

def loader(**options):
    return data.DataLoader(data.TensorDataset(X), batch_size=8, **options)

INPUTS = {
    "same: stream": Stream,
    "same: loader of a stream": lambda: data.DataLoader(Stream(), batch_size=8),
    "same: loader in order": loader,
    "same: loader with a generator": lambda: loader(
        shuffle=True, generator=torch.Generator().manual_seed(0)),
    "same: function with a generator": own_generator,
    "same: function that reads on": reader,
    "same: data with a seed": lambda: lb.inputs.Dataset(X, seed=3),
    "same: one part of a mixture": lambda: lb.inputs.Mix([Stream(), lb.inputs.Noise(4)]),
    "different: sharded stream": lambda: Stream(shard=True),
    "different: loader that shuffles": lambda: loader(shuffle=True),
    "different: loader with a sampler": lambda: loader(sampler=data.DistributedSampler(X)),
    "different: data": lambda: X,
    "different: few rows": lambda: lb.inputs.Dataset(X[:2], replace=True),
    "different: one row only": lambda: lb.inputs.Dataset(X[:1].repeat(3, 1), replace=True),
    "different: function of n": lambda: lambda n: torch.randn(n, 4),
    "different: function of a generator": lambda: (
        lambda n, generator: torch.randn(n, 4, generator=generator)),
}

def attempt(inputs, student=None, **more):
    student = student or Own()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            options = OPTIONS | {"engine": "accelerate"} | more
            result = lb.distill(teacher, student, inputs, **options)
    except lb.ArgumentError as error:
        return {"refused": str(error)}
    state = student.state_dict() | {"unsaved": getattr(student, "unsaved", X)}
    return {
        "state": {name: tensor.tolist() for name, tensor in state.items()},
        "warned": [str(each.message) for each in caught],
        "processes": getattr(result, "processes", None), "printed": str(result),
    }

import accelerate
accelerate.PartialState(cpu=True)
told = {name: attempt(make()) for name, make in INPUTS.items()}
told["other students"] = attempt(X, Own(seed=5 + rank))
told["wrapped"] = attempt(X, nn.parallel.DistributedDataParallel(Own()))
told["synchronized"] = attempt(X, nn.Sequential(nn.Linear(4, 3), nn.SyncBatchNorm(3)).eval())
told["alone"] = attempt(X, engine="eager")
print(json.dumps(told))
torch.distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def told():
    r"""What each of two processes says of all cases."""
    script = f"exec(open({__file__!r}, encoding='utf-8').read())\n{CASES}"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env=os.environ | shared | {"MASTER_PORT": port, "RANK": str(i), "LOCAL_RANK": str(i)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    outputs = [process.communicate(timeout=240) for process in running]
    assert all(out for out, _ in outputs), outputs
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]


@pytest.mark.slow
def test_processes_that_would_draw_the_same_rows_are_refused(told):
    same = [name for name in told[0] if name.startswith("same")]
    assert len(same) == 8
    for name in same:
        for process in told:
            assert "the same rows in several processes" in process[name].get("refused", ""), name


@pytest.mark.slow
def test_processes_that_draw_rows_of_their_own_train_one_student(told):
    different = [name for name in told[0] if name.startswith("different")]
    assert len(different) == 8
    for name in different:
        assert "state" in told[0][name], told[0][name]
        assert told[0][name]["state"] == told[1][name]["state"], name


@pytest.mark.slow
def test_buffers_are_those_of_one_student_in_all_processes(told):
    r"""Running statistics are averaged; what nothing changes is as in the first process."""
    ends = [process["other students"]["state"] for process in told]
    assert ends[0] == ends[1]
    first = Own(seed=5)
    for name in ("mask", "scale", "causal", "frozen", "unsaved"):
        assert ends[0][name] == getattr(first, name).tolist(), name
    assert ends[0]["norm.running_mean"] != first.norm.running_mean.tolist()
    assert ends[0]["norm.num_batches_tracked"] == 6
    assert ends[0]["rows"] == 6 * 8


@pytest.mark.slow
def test_the_result_names_the_number_of_processes(told):
    for process in told:
        assert process["different: data"]["processes"] == 2
        assert "(accelerate, 2 processes)" in process["different: data"]["printed"]
        assert process["different: data"]["warned"] == []


@pytest.mark.slow
def test_wrapped_and_synchronized_students_are_refused_in_several_processes(told):
    for process in told:
        assert "DistributedDataParallel" in process["wrapped"]["refused"]
        assert "student.module" in process["wrapped"]["refused"]
        assert "SyncBatchNorm" in process["synchronized"]["refused"]


@pytest.mark.slow
def test_launched_processes_that_each_train_a_student_are_told(told):
    for process in told:
        (warning,) = process["alone"]["warned"]
        assert "one of 2 processes" in warning
        assert process["alone"]["processes"] == 1


@pytest.mark.parametrize("engine", ["auto", "eager", "compiled"])
def test_a_launch_of_several_without_accelerate_is_told(monkeypatch, engine):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    # it is told before anything is compiled
    monkeypatch.setattr("limbeck.training.engines.Compiled.step", lambda *_: None)
    steps = lb.steps(teacher, lb.MLP(4, 3), X, engine=engine, **OPTIONS)
    with warns_about("one of 2 processes", f"engine='{engine}'", "'accelerate'"):
        next(steps)


@pytest.mark.parametrize("size", ["1", "", "many"])
def test_a_launch_of_one_is_not_told_of_others(monkeypatch, size):
    monkeypatch.setenv("WORLD_SIZE", size)
    assert lb.distill(teacher, lb.MLP(4, 3), X, engine="eager", **OPTIONS).processes == 1


def test_accelerate_in_a_single_process_is_told_and_named(monkeypatch, tmp_path):
    from accelerate import PartialState

    monkeypatch.delenv("WORLD_SIZE", raising=False)
    try:
        with warns_about("'accelerate'", "single process") as caught:
            result = lb.distill(teacher, lb.MLP(4, 3), X, engine="accelerate", **OPTIONS)
    finally:
        PartialState._reset_state()
    assert len(caught) == 1
    assert result.processes == 1
    assert "(accelerate, 1 process)" in str(result)
    result.processes = 3
    again = lb.load(result.save(tmp_path))
    assert again.processes == 3
    assert "(accelerate, 3 processes)" in str(again)


@pytest.fixture
def group():
    r"""A process group of this process alone."""
    torch.distributed.init_process_group(
        "gloo", rank=0, world_size=1, store=torch.distributed.HashStore()
    )
    yield
    torch.distributed.destroy_process_group()


def wrappers():
    from torch.distributed.fsdp import fully_shard

    inner = lb.MLP(4, 3)
    return {
        "DistributedDataParallel": nn.parallel.DistributedDataParallel(inner),
        "the part '0', a module wrapped in DistributedDataParallel": nn.Sequential(
            nn.parallel.DistributedDataParallel(lb.MLP(4, 3)), nn.Identity()
        ),
        "FSDPModule": fully_shard(
            nn.Sequential(nn.Linear(4, 3)), mesh=torch.distributed.init_device_mesh("cpu", (1,))
        ),
    }


@pytest.mark.parametrize("engine", ["auto", "eager", "compiled", "accelerate"])
def test_a_wrapped_student_is_refused_by_every_engine(group, engine):
    for name, student in wrappers().items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with refused("student", name, expected=r"student\.module"):
                lb.distill(teacher, student, X, engine=engine, **OPTIONS)
