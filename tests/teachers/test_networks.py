r"""Torch modules on arrays: their form, their mode, their types, and what identifies them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import Tensor, nn

from limbeck.compression.dispatch import as_row_teacher
from limbeck.models import MLP, Ensemble
from limbeck.teachers import networks as network_teacher
from tests.refusals import refused

X = np.random.default_rng(0).normal(size=(40, 3))


def net(*sizes: int, seed: int = 0, **options) -> MLP:
    return MLP(*sizes, generator=torch.Generator().manual_seed(seed), **options)


def plain(outputs: int, seed: int = 0, *rest: nn.Module) -> nn.Module:
    module = nn.Sequential(nn.Linear(3, outputs), *rest)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(3 * torch.randn(parameter.shape, generator=generator))
    return module


def expected(module: nn.Module) -> Tensor:
    with torch.no_grad():
        return module(torch.as_tensor(X, dtype=torch.float32)).double()


@pytest.mark.parametrize(
    ("teacher", "said", "form"),
    [
        (net(3, 5, 4), {}, "logits"),
        (net(3, 5, 4, output="softmax"), {}, "probabilities"),
        (net(3, 5, 4, output="log_softmax"), {}, "log_probabilities"),
        (plain(4), {"teacher_output": "logits"}, "logits"),
        (plain(4), {"task": "classification"}, "logits"),
        (plain(4, 0, nn.Softmax(1)), {}, "probabilities"),
        (plain(4, 0, nn.LogSoftmax(1)), {}, "log_probabilities"),
    ],
)
def test_classifiers_of_every_form(teacher, said, form) -> None:
    predictor = as_row_teacher(teacher, X, **said)
    assert predictor.module is teacher
    assert (predictor.task, predictor.kind.form, predictor.outputs) == ("classification", form, 4)
    raw = expected(teacher)
    p = {"logits": raw.softmax(1), "probabilities": raw, "log_probabilities": raw.exp()}[form]
    np.testing.assert_allclose(predictor(X), p.numpy(), rtol=1e-5)


def test_ensembles_values_labels_and_single_outputs() -> None:
    both = Ensemble([net(3, 4), net(3, 4, seed=1)])
    assert as_row_teacher(both, X).kind.form == "probabilities"
    np.testing.assert_allclose(as_row_teacher(both, X)(X), expected(both).numpy(), rtol=1e-6)
    values = as_row_teacher(net(3, 5, 2, output_form="values"), X)
    assert (values.task, values.form, values.kind.form) == ("regression", "values", "values")
    said = as_row_teacher(
        net(3, 5, 1), X, task="regression"
    )  # though its form is logits by default
    assert (said.kind.form, said.outputs, said.predict(X).shape) == ("values", 1, (40,))
    labels = as_row_teacher(plain(4), X, task="multilabel")
    np.testing.assert_allclose(labels(X), expected(labels.module).sigmoid().numpy(), rtol=1e-5)
    one = as_row_teacher(plain(1), X, task="classification")
    p = expected(one.module).sigmoid().numpy()
    np.testing.assert_allclose(one(X), np.hstack([1 - p, p]), rtol=1e-4, atol=1e-7)


def test_what_cannot_be_told_is_asked() -> None:
    with refused("task", expected='teacher_output="logits"'):
        as_row_teacher(plain(4), X)
    with refused("teacher_output", expected='"probabilities"'):
        as_row_teacher(plain(1, 0, nn.Sigmoid()), X, task="classification")
    with refused("teacher_output", "'values' with task='classification'"):
        as_row_teacher(net(3, 2, output_form="values"), X, task="classification")
    with refused("X", "None"):
        as_row_teacher(net(3, 2))


def test_outputs_of_another_kind_are_refused() -> None:
    class Pair(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x, x

    with refused("teacher", "outputs of type tuple"):
        as_row_teacher(Pair(), X)
    with refused("teacher", r"shape \(16, 3, 2\)"):
        as_row_teacher(nn.Sequential(nn.Linear(3, 6), nn.Unflatten(1, (3, 2))), X)


def test_it_is_evaluated_in_evaluation_mode_and_left_in_its_own() -> None:
    module = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 3))
    module[1].eval()
    modes = [part.training for part in module.modules()]
    before = {name: value.clone() for name, value in module.state_dict().items()}
    predictor = as_row_teacher(module, X, teacher_output="logits")
    np.testing.assert_array_equal(predictor(X), predictor(X))
    assert [part.training for part in module.modules()] == modes == [True, True, False, True, True]
    torch.testing.assert_close(module.state_dict(), before, rtol=0, atol=0)

    def fails(*_: object) -> None:
        raise OSError("full")

    module[3].register_forward_pre_hook(fails)
    with pytest.raises(OSError, match="full"):
        predictor(X)
    assert [part.training for part in module.modules()] == modes


def test_blocks_do_not_show(monkeypatch) -> None:
    predictor = as_row_teacher(net(3, 5, 4, dtype=torch.float64), X)
    whole = predictor(X)
    monkeypatch.setattr(network_teacher, "BLOCK", 7)
    np.testing.assert_allclose(predictor(X), whole, rtol=1e-12)


def test_rows_of_every_kind_become_tensors_of_the_modules_type() -> None:
    pandas = pytest.importorskip("pandas")
    predictor = as_row_teacher(net(3, 4, dtype=torch.float64), X)
    for rows in (X.tolist(), torch.as_tensor(X), pandas.DataFrame(X), sparse.csr_array(X)):
        np.testing.assert_allclose(predictor(rows), predictor(X), rtol=1e-12, atol=1e-14)
    whole = np.arange(12).reshape(4, 3)
    found, expected = predictor(whole), predictor(whole.astype(float))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)
    with refused("X", "columns of type object, for a torch teacher"):
        predictor(pandas.DataFrame({"a": ["x"], "b": [1], "c": [2]}).astype(object))


def test_codes_stay_whole_where_they_are_looked_up() -> None:
    class Mixed(nn.Module):
        output_form = "logits"

        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, 3, dtype=torch.float64)

        def forward(self, x: dict[str, Tensor]) -> Tensor:
            return self.table(x["code"]) * x["size"][:, None]

    module, x = Mixed(), {"code": np.array([0, 4, 2]), "size": np.array([1.0, 2.0, 0.5])}
    code = torch.as_tensor(x["code"])
    scores = module.table.weight.detach()[code] * torch.as_tensor(x["size"])[:, None]
    np.testing.assert_allclose(as_row_teacher(module, x)(x), scores.softmax(1).numpy())


def test_content_and_size() -> None:
    one, same, other = (as_row_teacher(net(3, 5, 4, seed=s), X) for s in (0, 0, 1))
    assert one.fingerprint() == same.fingerprint() != other.fingerprint()
    assert one.fingerprint() != as_row_teacher(net(3, 5, 4), X, classes=list("abcd")).fingerprint()
    assert 4 * 44 < one.bytes() < 4 * 44 + 1000
    assert one.name == "MLP"
    with refused("teacher_folds", "MLP"):
        one.refit(X, X[:, 0] > 0)
