r"""What models cost. No test here looks at the real clock."""

import gc

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sklearn.datasets import load_iris
from sklearn.ensemble import (
    RandomForestClassifier,
)
from sklearn.tree import DecisionTreeClassifier
from torch import nn

from limbeck.compression.dispatch import as_row_teacher
from limbeck.compression.fidelity.cost import (
    Cost,
    bytes_on_disk,
    cost,
    latencies,
    parameters,
)
from limbeck.models import MLP
from tests.refusals import refused

X, Y = load_iris(return_X_y=True)


class Clock:
    r"""A clock that moves only when something takes its time."""

    now = 0.0

    def __call__(self):
        return self.now

    def model(self, seconds, log=None, name=""):
        def call(batch):
            self.now += seconds(batch) if callable(seconds) else seconds
            if log is not None:
                log.append(name)

        return call


class Holder(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("thresholds", torch.zeros(7))


def test_parameters_of_modules_are_their_own():
    assert parameters(MLP(784, 50, 30, 10)) == 785 * 50 + 51 * 30 + 31 * 10
    assert parameters(Holder()) == 7  # a module of fitted trees has buffers alone


def test_parameters_of_other_models_are_unknown():
    assert parameters(RandomForestClassifier(5, random_state=0).fit(X, Y)) is None
    assert parameters(np.sum) is None
    assert parameters(as_row_teacher(MLP(4, 5, 3), X[:9].astype(np.float32))) == 5 * 5 + 6 * 3


def test_bytes_of_a_module_are_those_of_its_file(tmp_path):
    net = MLP(4, 5, 3)
    save_file(net.state_dict(), tmp_path / "net.safetensors")
    assert bytes_on_disk(net) == (tmp_path / "net.safetensors").stat().st_size
    tied = nn.ModuleList([linear := nn.Linear(3, 3), linear])
    assert bytes_on_disk(tied) > 12 * 4


def test_bytes_of_estimators_are_their_size_when_pickled():
    small = DecisionTreeClassifier(max_depth=1).fit(X, Y)
    forest = RandomForestClassifier(10, random_state=0).fit(X, Y)
    size = {model: bytes_on_disk(as_row_teacher(model, X)) for model in (small, forest)}
    assert size[forest] > 10 * size[small] > 5000
    forest.note = lambda: 0  # which does not pickle
    assert bytes_on_disk(as_row_teacher(forest, X)) is None


def test_a_function_has_no_size_and_a_teacher_knows_its_own():
    class Remote:
        def bytes(self):
            return 12345

    assert bytes_on_disk(np.sum) is None
    assert bytes_on_disk(lambda x: x) is None
    assert bytes_on_disk(Remote()) == 12345


def test_a_cost_is_put_together():
    found = cost(MLP(2, 3), {1: 0.5})
    assert found == Cost(9, bytes_on_disk(MLP(2, 3)), {1: 0.5})


def test_latencies_are_medians_and_models_take_turns():
    clock, log = Clock(), []
    calls = {
        "teacher": clock.model(0.1, log, "t"),
        "student": clock.model(lambda batch: 0.001 * len(batch), log, "s"),
    }
    found = latencies(calls, X, (1, 4), clock=clock)
    assert found["teacher"] == pytest.approx({1: 0.1, 4: 0.1})
    assert found["student"] == pytest.approx({1: 0.001, 4: 0.004})
    text = "".join(log)
    assert text.startswith("ts" + "t" + "s" * 50 + "t")


def test_the_first_call_counts_only_if_it_is_too_long_to_repeat():
    clock, waits = Clock(), iter([3.0, *[0.02] * 100])
    found = latencies({"": clock.model(lambda _: next(waits))}, X, (1,), clock=clock)
    assert found[""][1] == pytest.approx(0.02)
    waits = iter([30.0])
    found = latencies({"": clock.model(lambda _: next(waits))}, X, (1,), clock=clock)
    assert found[""][1] == pytest.approx(30)


def test_time_is_bounded():
    for seconds in (1e-5, 0.003, 0.2, 0.49):
        clock = Clock()
        latencies({"a": clock.model(seconds), "b": clock.model(seconds)}, X, (1,), clock=clock)
        assert clock.now <= 2 * (0.5 + 12 * seconds)
    frozen = latencies({"a": lambda batch: None}, X, (1,), clock=Clock())
    assert frozen["a"][1] > 0


def test_a_busy_while_does_not_move_the_median():
    clock = Clock()
    call = clock.model(lambda _: 0.5 if 1.0 < clock.now < 1.02 else 0.01)
    clock.now = 0.8
    assert latencies({"": call}, X, (1,), clock=clock)[""][1] == pytest.approx(0.01)


@pytest.mark.parametrize("rows", [3, 2000])
@pytest.mark.parametrize("kind", ["array", "tensor", "dict", "list", "sparse", "frame"])
def test_batches_have_the_size_asked_for_in_the_kind_that_came(rows, kind):
    values = np.arange(2.0 * rows).reshape(rows, 2)
    if kind == "frame":
        given = pytest.importorskip("pandas").DataFrame(values, columns=["a", "b"])
    elif kind == "sparse":
        given = pytest.importorskip("scipy.sparse").csr_array(values)
    else:
        given = {
            "array": values,
            "tensor": torch.from_numpy(values),
            "dict": {"a": torch.from_numpy(values[:, 0]), "b": torch.from_numpy(values)},
            "list": values.tolist(),
        }[kind]
    seen = []
    latencies({"": seen.append}, given, (1, 1000), clock=Clock())
    expected = values[np.arange(1000) % rows]
    for batch in (seen[0], seen[-1]):
        if kind == "frame":
            assert list(batch.columns) == ["a", "b"]
            assert batch.index.is_unique
        if kind == "dict":
            assert isinstance(batch["a"], torch.Tensor)
            batch = batch["b"]
        if kind == "sparse":
            batch = batch.toarray()
        np.testing.assert_array_equal(np.asarray(batch), expected[: len(np.asarray(batch))])
    assert len(expected) == 1000


def test_nothing_to_time_with_is_refused_and_the_collector_comes_back():
    with refused("X", "no rows"):
        latencies({"": np.sum}, X[:0])
    with pytest.raises(ZeroDivisionError):
        latencies({"": lambda batch: 1 / 0}, X)
    assert gc.isenabled()
