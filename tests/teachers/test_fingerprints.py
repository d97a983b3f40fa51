r"""Fingerprints: equal content, equal letters, in any process; other content, others."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.preprocessing import FunctionTransformer
from torch import nn

from limbeck.models import MLP, Ensemble
from limbeck.teachers.fingerprints import (
    digest,  # fmt: skip
    module_bytes,  # fmt: skip
    object_bytes,  # fmt: skip
    of_files,  # fmt: skip
    of_module,  # fmt: skip
    of_object,  # fmt: skip
)

FOREST = """
import numpy as np
from sklearn.ensemble import RandomForestClassifier
X = np.random.default_rng(0).normal(size=(50, 3))
def forest(seed):
    return RandomForestClassifier(8, random_state=seed).fit(X, np.where(X[:, 0] > 0, "a", "b"))
"""


def test_parts_do_not_run_into_each_other() -> None:
    assert digest("a", "b") == digest(b"a", "b")
    assert len({digest("ab"), digest("a", "b"), digest("b", "a"), digest("ab", "")}) == 4


@pytest.mark.slow
def test_a_forest_is_the_same_in_another_process_and_after_it_was_written_and_read() -> None:
    here: dict = {}
    exec(FOREST, here)
    script = FOREST + (
        "from limbeck.teachers.fingerprints import of_object\nprint(of_object(forest(0)))"
    )
    there = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    forest = here["forest"](0)
    forest.predict_proba(here["X"])
    assert of_object(forest) == there.stdout.strip()
    assert of_object(forest) == of_object(pickle.loads(pickle.dumps(forest)))
    assert of_object(forest) != of_object(here["forest"](1))
    assert object_bytes(forest) == len(pickle.dumps(forest, protocol=5))


def test_what_cannot_be_written_has_no_content() -> None:
    opaque = FunctionTransformer(lambda x: x)
    assert (of_object(opaque), object_bytes(opaque)) == (None, None)
    assert of_object(RandomForestClassifier()) is not None


class Scaled(nn.Module):
    def __init__(self, factor, function=torch.tanh) -> None:
        super().__init__()
        self.factor, self.function = factor, function
        self.layer = nn.Linear(2, 2)
        nn.init.ones_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def forward(self, x):
        return self.function(self.layer(x)) * self.factor


def test_a_module_is_its_tensors_and_its_settings() -> None:
    base = of_module(Scaled(2.0))
    assert of_module(Scaled(2.0)) == base
    moved = Scaled(2.0)
    with torch.no_grad():
        moved.layer.bias[0] += 1e-6
    others = [Scaled(3.0), Scaled(2.0, torch.relu), Scaled(torch.tensor(2.0)), moved]
    others += [Scaled(2.0).double(), nn.Sequential(Scaled(2.0))]
    assert len({base, *map(of_module, others)}) == 1 + len(others)
    assert None not in map(of_module, others)
    assert of_module(Scaled(torch.tensor(2.0))) != of_module(Scaled(torch.tensor(3.0)))


def test_modes_and_hooks_are_not_content_but_compiled_modules_are_what_they_wrap() -> None:
    module = Scaled(2.0)
    base = of_module(module)
    module.eval()
    module.register_forward_hook(lambda *_: None)
    assert of_module(module) == base
    assert of_module(torch.compile(module, backend="eager")) == base


def test_functions_on_the_spot_make_a_module_opaque() -> None:
    assert of_module(Scaled(2.0, lambda x: x)) is None
    assert of_module(Ensemble([lambda x: x, lambda x: -x], output_forms="logits")) is None
    assert of_module(Ensemble([MLP(2, 3), MLP(2, 3)])) is not None
    assert of_module(torch.jit.script(nn.Linear(2, 2))) is None


def test_half_precision_shared_and_empty_tensors() -> None:
    module = nn.Module()
    module.a = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    module.b = module.a
    module.register_buffer("empty", torch.zeros(0))
    assert of_module(module) is not None
    assert module_bytes(module) > 2 * 2 * 3


def test_files_are_their_content(tmp_path) -> None:
    one, same, other = (tmp_path / name for name in ("one", "same", "other"))
    for path, text in ((one, "x"), (same, "x"), (other, "y")):
        path.write_text(text)
    assert of_files([one]) == of_files([same]) != of_files([other])
    assert of_files([one, same]) != of_files([one])


@pytest.mark.parametrize("value", [np.arange(3), {"b": 1, "a": {2, 3}}])
def test_plain_values_have_content(value) -> None:
    assert of_object(value) == of_object(pickle.loads(pickle.dumps(value)))
