r"""Students by name or size: built to fit the rows, trained or fitted, or refused."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn import ensemble, linear_model, tree
from torch import nn

import limbeck as lb
from limbeck.compression.students import GROWING, Fitted, build_student, sizes
from limbeck.models import MLP, Preprocessed, Trees
from limbeck.training.result import History, Result
from tests.refusals import refused

N, D = 240, 4
GENERATOR = torch.Generator().manual_seed(3)
X = torch.randn(N, D, generator=GENERATOR) * torch.tensor([1.0, 100.0, 1e-3, 0.0]) + torch.tensor(
    [0.0, 1e3, 5.0, 2.0]
)
Z = (X - X.mean(0)) / torch.tensor([1.0, 100.0, 1e-3, 1.0])
CLASSES = torch.stack([Z[:, 0], Z[:, 1] * Z[:, 0], Z[:, 2]], 1).mul(2).softmax(1)
LABELS = torch.stack([Z[:, 0], Z[:, 0] - Z[:, 1]], 1).mul(2).sigmoid()
VALUES = torch.stack([1e3 + 50 * Z[:, 0], 1e-2 * Z[:, 1]], 1)
TARGETS = {"classification": CLASSES, "multilabel": LABELS, "regression": VALUES}


def measure(student: nn.Module, task: str) -> float:
    r"""The part of the targets that is not explained."""
    with torch.no_grad():
        y = student(X)
    if task == "classification":
        y = y if student.output_form == "probabilities" else y.softmax(1)
    elif task == "multilabel":
        y = y.sigmoid()
    wanted = TARGETS[task]
    return ((y - wanted).square().mean(0) / wanted.var(0)).max().item()


# networks


@pytest.mark.parametrize(
    ("spec", "hidden"),
    [((50, 30), (50, 30)), ([7], (7,)), (9, (9,)), (np.int64(9), (9,)), ("linear", ()), ((), ())],
)
def test_sizes_make_networks_that_scale_their_inputs(spec, hidden) -> None:
    student = build_student(spec, X, 3, "classification")
    assert isinstance(student, Preprocessed)
    assert student.network.sizes == (D, *hidden, 3)
    assert student.output_form == "logits"
    scaled = student.features(X)
    torch.testing.assert_close(scaled.mean(0), torch.zeros(D), rtol=0, atol=1e-2)
    torch.testing.assert_close(scaled.std(0, unbiased=False)[:3], torch.ones(3), rtol=1e-2, atol=0)
    assert not scaled[:, 3].any()  # constant, hence ignored


def test_images_are_taken_as_rows_are() -> None:
    one = build_student((5,), X, 3, "classification")
    image = build_student((5,), X.reshape(N, 2, 2), 3, "classification")
    torch.testing.assert_close(image(X.reshape(N, 2, 2)), one(X))


def test_equal_seeds_make_equal_networks_and_the_global_generator_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    one, two, other = (build_student((5,), X, 3, "classification", seed=s)(X) for s in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


STEPS = dict(steps=300, batch_size=40, lr=0.03, device="cpu", progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_networks_train_with_either_engine(engine) -> None:
    student = build_student((16,), X, 3, "classification")
    teacher = build_student((16,), X, 3, "classification", seed=5)
    result = lb.distill(teacher, student, X, engine=engine, **STEPS)
    assert result.engine == engine
    assert (student(X).softmax(1) - teacher(X).softmax(1)).abs().mean() < 0.02


def stored(task: str) -> lb.Stored:
    return lb.Stored(TARGETS[task], "values")


def test_labels_and_values_train_too() -> None:
    labels = build_student((16,), X, 2, "multilabel")
    loss = lb.losses.multilabel_cross_entropy()
    lb.distill(stored("multilabel"), labels, X, loss, engine="eager", **STEPS)
    assert measure(labels, "multilabel") < 0.05
    values = build_student((16,), X, 2, "regression")
    shift, scale = VALUES.mean(0), VALUES.std(0)
    teacher = lb.Stored((VALUES - shift) / scale, "values")
    lb.distill(teacher, values, X, lb.losses.square_error(), engine="eager", **STEPS)
    values.set_outputs(shift, scale)
    assert measure(values, "regression") < 0.05


# tables


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.towns = nn.Embedding(3, 2)
        nn.init.eye_(self.towns.weight)

    def forward(self, x):
        return torch.cat([x["age"][:, None] / 10, self.towns(x["town"])], 1)


TABLE = {"age": Z[:, 0] * 10 + 40, "town": torch.arange(N) % 3}


def test_an_encoder_becomes_part_of_the_network() -> None:
    encoder = Encoder()
    student = build_student((5,), TABLE, 3, "classification", encoder=encoder)
    assert student.encoder is encoder
    assert student.network.sizes == (3, 5, 3)
    torch.testing.assert_close(student(TABLE), student.network(encoder(TABLE)))


def test_trees_on_tables_take_the_table() -> None:
    student = build_student("tree", TABLE, 3, "classification", encoder=Encoder())
    wanted = torch.eye(3)[TABLE["town"]]
    found = student.fit(TABLE, wanted.numpy())
    torch.testing.assert_close(found(TABLE), wanted)
    assert found.output_form == "probabilities"


# modules of the user's own


def test_a_module_is_taken_as_it_is() -> None:
    module = nn.Sequential(nn.Linear(D, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3))
    module[1].eval()
    state = {name: t.clone() for name, t in module.state_dict().items()}
    assert build_student(module, X, 3, "classification") is module
    assert [part.training for part in module] == [True, False, True, True]
    assert all(torch.equal(t, module.state_dict()[name]) for name, t in state.items())
    assert build_student(nn.Linear(D, 1).double(), X.double(), 1, "regression").in_features == D


def test_a_module_behind_an_encoder_if_it_cannot_do_without() -> None:
    module, encoder = nn.Linear(3, 2), Encoder()
    student = build_student(module, TABLE, 2, "regression", encoder=encoder)
    assert torch.equal(student(TABLE), module(encoder(TABLE)))

    class Own(nn.Module):
        def forward(self, x):
            return torch.stack([x["age"], x["town"]], 1)

    own = Own()
    assert build_student(own, TABLE, 2, "regression", encoder=encoder) is own


class Pair(nn.Module):
    def forward(self, x):
        return x, x


@pytest.mark.parametrize(
    ("module", "received", "expected"),
    [
        (MLP(D, 2), r"shape \(4, 2\)", r"outputs \(4, 3\)"),
        (MLP(D + 1, 3), "a MLP that fails on the inputs:", ""),
        (nn.Flatten(0), r"shape \(16,\)", ""),
        (Pair(), "type tuple", ""),
    ],
    ids=["outputs", "inputs", "rows", "pair"],
)
def test_modules_that_do_not_fit_are_refused(module, received, expected) -> None:
    with refused("student", received, expected=expected):
        build_student(module, X, 3, "classification")


# fitted


@pytest.mark.parametrize("kind", ["tree", "boosted"])
@pytest.mark.parametrize("task", TARGETS)
def test_trees_by_name_are_fitted_to_soft_targets(kind, task, tmp_path) -> None:
    student = build_student(kind, X, TARGETS[task].shape[1], task, seed=7)
    assert isinstance(student, Fitted)
    found = student.fit(X, TARGETS[task].numpy())
    assert isinstance(found, Trees)
    assert measure(found, task) < 0.2
    Result(found, History(), 1, "fitted", 0.0).save(tmp_path)
    assert torch.equal(lb.load(tmp_path).student(X), found(X))


def test_trees_by_name_take_options() -> None:
    student = build_student("tree", X, 3, "classification", seed=2)
    small = replace(student, options={"max_leaf_nodes": 4})
    assert small.seed == 2
    assert small.fit(X, CLASSES.numpy()).leaves == 4


@pytest.mark.parametrize(
    ("estimator", "tasks"),
    [
        (tree.DecisionTreeRegressor(), TARGETS),
        (ensemble.RandomForestRegressor(20), TARGETS),
        (tree.DecisionTreeClassifier(min_samples_leaf=2), ["classification"]),
        (ensemble.ExtraTreesClassifier(20), ["classification"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_estimators_are_cloned_and_fitted_to_soft_targets(estimator, tasks) -> None:
    for task in tasks:
        student = build_student(estimator, X, TARGETS[task].shape[1], task, seed=1)
        found = student.fit(X, TARGETS[task].numpy())
        assert not hasattr(estimator, "n_features_in_")  # the user's own is left as it was
        assert measure(found, task) < 0.25
        assert torch.equal(found(X), student.fit(X, TARGETS[task].numpy())(X))  # by the seed


def test_a_classifier_learns_the_probabilities_themselves() -> None:
    r"""Weighted copies of a row are the row's probabilities, not its likeliest class."""
    x = torch.zeros(10, 1)
    p = torch.tensor([[0.6, 0.3, 0.1]]).expand(10, 3)
    found = Fitted("estimator", estimator=tree.DecisionTreeClassifier()).fit(x, p.numpy())
    torch.testing.assert_close(found(x), p, rtol=0, atol=1e-6)


def test_a_class_that_never_occurs_keeps_its_column() -> None:
    certain = torch.tensor([[1.0, 0.0, 0.0]]).expand(N, 3)
    found = Fitted("estimator", estimator=tree.DecisionTreeClassifier()).fit(X, certain.numpy())
    torch.testing.assert_close(found(X), certain, rtol=0, atol=1e-3)


def test_scikit_learns_boosted_models_are_refused() -> None:
    for kind in (ensemble.GradientBoostingClassifier, ensemble.HistGradientBoostingRegressor):
        with refused("student", kind.__name__):
            build_student(kind(), X, 3, "classification")


def test_a_classifier_cannot_be_fitted_to_several_labels() -> None:
    student = build_student(tree.DecisionTreeClassifier(), X, 2, "multilabel")
    with refused("student", "a DecisionTreeClassifier for multilabel"):
        student.fit(X, LABELS.numpy())


# refusals


@pytest.mark.parametrize(
    ("spec", "received", "expected"),
    [
        ("tre", "'tre'", r"\(did you mean 'tree'\?\)"),
        ((50, 0), r"\(50, 0\)", ""),
        ((50, 2.5), r"\(50, 2\.5\)", ""),
        (True, "^True$", ""),
        (None, "^None$", ""),
        (
            linear_model.LogisticRegression(),
            "LogisticRegression",
            "",
        ),
    ],
)
def test_students_that_are_none_are_refused(spec, received, expected) -> None:
    with refused("student", received, expected=expected):
        build_student(spec, X, 3, "classification")


# growing


@pytest.mark.parametrize("task", TARGETS)
@pytest.mark.parametrize("outputs", [1, 3, 500])
def test_bytes_are_those_of_the_students_tensors_and_grow(outputs, task) -> None:
    found = sizes(X, outputs, task)
    assert found.keys() == set(GROWING)
    assert list(found.values()) == sorted(found.values())
    for hidden in list(found)[:4]:
        student = build_student(hidden, X, outputs, task)
        if task == "regression":
            student.set_outputs(torch.ones(outputs), torch.ones(outputs))
        tensors = student.state_dict().values()
        assert found[hidden] == sum(t.numel() * t.element_size() for t in tensors)


def test_a_tables_encoder_counts_too() -> None:
    encoder = Encoder()
    hidden, size = next(iter(sizes(TABLE, 3, "classification", encoder=encoder).items()))
    student = build_student(hidden, TABLE, 3, "classification", encoder=encoder)
    assert size == sum(t.numel() * t.element_size() for t in student.state_dict().values())


def test_growing_stops_at_a_number_of_bytes() -> None:
    every = list(sizes(X, 3, "classification").items())
    limited = sizes(X, 3, "classification", max_bytes=every[2][1])
    assert list(limited.items()) == every[:3]
    assert every[0] == ((8,), 4 * (2 * D + 8 * (D + 1) + 3 * 9))
    with refused("max_bytes", "10"):
        sizes(X, 3, "classification", max_bytes=10)
    assert math.prod(every[-1][0]) > 1e5
