r"""Several processes: equal students, and the steps that the mean gradient gives."""

import json
import os
import socket
import subprocess
import sys

import pytest
import torch

import limbeck as lb
from limbeck.training.processes import APART

pytest.importorskip("accelerate")

SCRIPT = """
import json
import torch
import limbeck as lb
from accelerate import PartialState

rank = int(__import__("os").environ["RANK"])
X = torch.randn(40, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
teacher = lb.MLP(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
student = lb.MLP(4, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2 + rank))
result = lb.distill(
    teacher, student, X, steps=6, batch_size=8, optimizer="sgd", lr=0.5, schedule="constant",
    engine="accelerate", device="cpu", precompute=False,
)
flat = torch.cat([p.detach().flatten() for p in student.parameters()])
print(json.dumps({"engine": result.engine, "parameters": flat.tolist(), **result.history}))
PartialState().destroy_process_group()  # or the threads behind it may outlive the interpreter
"""


def launch(count, script=SCRIPT):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    running = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env=os.environ
            | {
                "RANK": str(i),
                "LOCAL_RANK": str(i),
                "WORLD_SIZE": str(count),
                "OMP_NUM_THREADS": "1",
            }
            | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "ACCELERATE_USE_CPU": "true"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(count)
    ]
    outputs = [process.communicate(timeout=120) for process in running]
    assert all(out for out, _ in outputs), outputs
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]


def by_hand(seeds):
    r"""The same steps in one process, on the mean of the gradients at each seed's batches."""
    x = torch.randn(40, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    teacher = lb.MLP(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    student = lb.MLP(4, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    sources = [lb.inputs.Dataset(x, seed=seed) for seed in seeds]
    optimizer = torch.optim.SGD(student.parameters(), lr=0.5)
    for _ in range(6):
        optimizer.zero_grad()
        for source in sources:
            batch = source(8).x
            targets = torch.softmax(teacher(batch), 1).detach()
            loss = -(targets * torch.log_softmax(student(batch), 1)).sum(1).mean()
            (loss / len(sources)).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in student.parameters()])


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_processes_stay_equal_and_step_along_the_mean_gradient(count):
    found = launch(count)
    assert {each["engine"] for each in found} == {"accelerate"}
    students = [torch.tensor(each["parameters"], dtype=torch.float64) for each in found]
    assert all(torch.equal(students[0], other) for other in students)
    assert all(each["loss"] == found[0]["loss"] for each in found)
    expected = by_hand([APART * i for i in range(count)])
    torch.testing.assert_close(students[0], expected, rtol=1e-10, atol=1e-12)
