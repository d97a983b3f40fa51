r"""Few rows are enough for every kind of inputs, and many are not too many."""

import numpy as np
import pytest
import torch

import limbeck as lb
from limbeck.compression import generators as density
from limbeck.compression.compress import compress
from limbeck.compression.generators import GENERATORS
from tests.refusals import refused

QUIET = {"progress": False, "device": "cpu", "engine": "eager"}
QUICK = QUIET | {"steps": 3, "pool": 100, "inputs": "munge"}


@pytest.mark.parametrize("inputs", ["auto", *GENERATORS])
@pytest.mark.parametrize("count", [1, 2, 5, 60])
def test_few_rows_are_enough(inputs, count, monkeypatch):
    monkeypatch.setattr(density, "FLOW_STEPS", 5)
    fewest = {"munge": 2, "flow": 20}.get(inputs, 1)
    X = np.random.default_rng(0).normal(size=(count, 3)).astype(np.float32)
    X = np.abs(X).clip(max=1) if inputs == "nade" else X  # whose rows are shades
    ask = QUICK | {"inputs": inputs}
    for student in ((4,), "tree"):
        if count < fewest:
            with pytest.raises(lb.ArgumentError, match=r"or more"):
                compress(lb.MLP(3, 4, 2), X, student, **ask)
        else:
            result = compress(lb.MLP(3, 4, 2), X, student, **ask)
            assert np.isfinite(result.predict_proba(X)).all()


def test_a_batch_is_as_large_as_there_are_rows_unless_it_is_given():
    X, teacher = torch.randn(60, 3), lb.MLP(3, 4, 2)
    assert compress(teacher, X, (4,), **QUICK).settings["batch_size"] == 120
    assert compress(teacher, X, (4,), preset="thesis", **QUICK).steps == 3
    with refused("batch_size", "130"):
        compress(teacher, X, (4,), batch_size=130, **QUICK)


def test_many_rows_are_asked_about_as_they_are_unless_inputs_are_named(monkeypatch):
    monkeypatch.setattr("limbeck.compression.compress.MIN_POOL", 50)
    monkeypatch.setattr("limbeck.compression.compress.MAX_POOL", 80)
    monkeypatch.setattr("limbeck.compression.generators.MUNGED", 30)
    X, asked = np.random.default_rng(0).normal(size=(300, 3)), []

    def teacher(rows):
        asked.append(len(rows))
        return np.stack([np.full(len(rows), 0.3), np.full(len(rows), 0.7)], 1)

    ask = QUIET | {"steps": 3, "held_out_fraction": 0.2}
    auto = compress(teacher, X, (4,), **ask)
    assert (auto.inputs, auto.tried) == ("data", [])
    munged = compress(teacher, X, (4,), inputs="munge", **ask)
    assert munged.inputs == "munge"
    (pool,) = munged.problem.pools.values()
    assert len(pool.x) >= 600
