r"""Lists of teachers: averages, weights, stacks, and classes that are matched by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from torch import nn

from limbeck.compression.dispatch import as_row_teacher
from limbeck.models import MLP, Ensemble
from tests.refusals import refused

X = np.random.default_rng(0).normal(size=(60, 3))
KINDS = np.array(["ant", "bee", "cat"])[np.digitize(X[:, 0], [-0.5, 0.5])]


def forest(y=KINDS, seed: int = 0, where=slice(None)) -> RandomForestClassifier:
    return RandomForestClassifier(4, random_state=seed).fit(X[where], y[where])


def net(*sizes: int, seed: int = 0, **options) -> MLP:
    return MLP(*sizes, generator=torch.Generator().manual_seed(seed), **options)


def softmax(x: np.ndarray) -> np.ndarray:
    return np.exp(x) / np.exp(x).sum(1, keepdims=True)


def test_the_mean_of_all_kinds_of_members() -> None:
    members = [forest(), LogisticRegression().fit(X, KINDS), softmax, net(3, 4, 3)]
    teacher = as_row_teacher(members, X)
    parts = [as_row_teacher(member, X)(X) for member in members]
    np.testing.assert_allclose(teacher(X), np.mean(parts, 0))
    assert (teacher.name, teacher.task, teacher.outputs) == ("ensemble of 4", "classification", 3)
    assert teacher.classes.tolist() == ["ant", "bee", "cat"]
    weighted = as_row_teacher(tuple(members), X, weights=[1, 2, 3, 4])
    np.testing.assert_allclose(weighted(X), np.average(parts, 0, [1, 2, 3, 4]))


def test_values_are_averaged_too() -> None:
    members = [LinearRegression().fit(X, X[:, k]) for k in range(2)]
    teacher = as_row_teacher(members, X)
    assert (teacher.task, teacher.outputs) == ("regression", 1)
    np.testing.assert_allclose(teacher.predict(X), X[:, :2].mean(1))
    with refused("teacher", "members with 1 and 2 outputs"):
        as_row_teacher([members[0], LinearRegression().fit(X, X[:, :2])], X)


def test_a_member_that_has_not_seen_a_class_gives_it_nothing() -> None:
    some = forest(where=KINDS != "bee")
    teacher = as_row_teacher([some, forest()])
    p = some.predict_proba(X)
    spread = np.stack([p[:, 0], np.zeros(60), p[:, 1]], 1)
    np.testing.assert_allclose(teacher(X), (spread + forest().predict_proba(X)) / 2)
    assert teacher.classes.tolist() == ["ant", "bee", "cat"]
    halves = [forest(where=kind != KINDS) for kind in ("ant", "cat")]
    assert as_row_teacher(halves).classes.tolist() == ["ant", "bee", "cat"]
    wanted = as_row_teacher(halves, classes=["cat", "bee", "ant", "dog"])
    np.testing.assert_allclose(wanted(X)[:, [2, 1, 0]], as_row_teacher(halves)(X))
    assert (wanted(X)[:, 3] == 0).all()


def test_one_class_is_enough_for_a_member() -> None:
    only = DummyClassifier().fit(X, np.full(60, "bee"))
    found = as_row_teacher([only, forest()])(X)
    np.testing.assert_allclose(found[:, 1], (1 + forest().predict_proba(X)[:, 1]) / 2)


def test_members_that_cannot_be_matched_are_refused() -> None:
    numbers = forest(np.arange(60) % 3)
    with refused("teacher", r"\['ant', 'bee', 'cat'\] and \[0, 1, 2\]", expected="classes="):
        as_row_teacher([forest(), numbers])
    both = as_row_teacher([forest(), numbers], classes=["ant", "bee", "cat"])
    parts = forest().predict_proba(X), numbers.predict_proba(X)
    np.testing.assert_allclose(both(X), np.mean(parts, 0))
    with refused("classes", "which has 2 classes without names"):
        as_row_teacher([forest(), net(3, 2)], X)
    with refused("teacher", "members for classification and regression"):
        as_row_teacher([forest(), LinearRegression().fit(X, X[:, 0])], X)
    with refused("teacher[1]", "an object of type int"):
        as_row_teacher([forest(), 3], X)
    with refused("teacher", "an empty list"):
        as_row_teacher([], X)


@pytest.mark.parametrize("weights", [[1.0], [1, 0], [1, np.inf], "ab", [[1, 2]], 3])
def test_weights_must_be_positive_and_one_a_member(weights) -> None:
    for members in ([forest(), softmax], [net(3, 3), net(3, 3)]):
        with refused("weights", expected="2 positive finite numbers"):
            as_row_teacher(members, X, weights=weights)


def test_modules_alone_are_one_module_that_can_be_differentiated() -> None:
    nets = [net(3, 4, 3, seed=s) for s in range(3)]
    teacher = as_row_teacher(nets, X, weights=[1, 2, 3])
    assert isinstance(teacher.module, Ensemble)
    assert (teacher.kind.form, teacher.name) == ("probabilities", "ensemble of 3")
    parts = [as_row_teacher(module, X)(X) for module in nets]
    np.testing.assert_allclose(teacher(X), np.average(parts, 0, [1, 2, 3]), rtol=1e-5)
    assert as_row_teacher(nn.ModuleList(nets), X).module is not None
    plain = [nn.Linear(3, 3), nn.Linear(3, 3)]
    assert as_row_teacher(plain, X, teacher_output="logits", classes=list("abc")).module is not None
    values = [net(3, 2, seed=s, output_form="values") for s in range(2)]
    assert as_row_teacher(values, X).kind.form == "values"


def test_modules_that_torch_cannot_average_as_one_are_averaged_outside() -> None:
    labels = [nn.Linear(3, 4), nn.Linear(3, 4)]
    with torch.no_grad():
        for module in labels:
            module.bias += 3  # outside [0, 1]
    mixes = [
        (labels, {"task": "multilabel"}),
        ([net(3, 3), net(3, 3, dtype=torch.float64)], {}),
        ([net(3, 1), net(3, 2)], {}),
        ([net(3, 2), net(3, 2)], {"task": "regression"}),  # against their own word
    ]
    for members, said in mixes:
        teacher = as_row_teacher(members, X, **said)
        parts = [as_row_teacher(member, X, **said)(X) for member in members]
        np.testing.assert_allclose(teacher(X), np.mean(parts, 0), rtol=1e-5)
        assert teacher.module is None


def test_a_stack_is_a_model_of_all_answers() -> None:
    members = [forest(seed=s) for s in range(2)]
    Z = np.hstack([member.predict_proba(X) for member in members])
    final = LogisticRegression().fit(Z, KINDS)
    teacher = as_row_teacher(members, stack=final)
    assert (teacher.name, teacher.task) == ("stack of 2", "classification")
    assert teacher.classes.tolist() == ["ant", "bee", "cat"]
    np.testing.assert_allclose(teacher(X), final.predict_proba(Z), rtol=1e-12)
    called = as_row_teacher(members, X, stack=lambda z: (z[:, :3] + 3 * z[:, 3:]) / 4)
    weighted = as_row_teacher(members, weights=[1, 3])
    np.testing.assert_allclose(called(X), weighted(X))
    turned = as_row_teacher(members, X, stack=final, classes=["cat", "bee", "ant"])
    np.testing.assert_allclose(turned(X), final.predict_proba(Z)[:, ::-1], rtol=1e-12)
    values = as_row_teacher(members, X, stack=LinearRegression().fit(Z, X[:, 0]), task="regression")
    assert (values.task, values.form) == ("regression", "values")


def test_a_stack_on_modules_is_told_their_form() -> None:
    members = [nn.Linear(3, 3), forest()]
    Z = np.hstack(
        [
            as_row_teacher(m, X, teacher_output=o)(X)
            for m, o in zip(members, ("logits", "auto"), strict=True)
        ]
    )
    final = LogisticRegression().fit(Z, KINDS)
    teacher = as_row_teacher(members, X, stack=final, teacher_output="logits")
    np.testing.assert_allclose(teacher(X), final.predict_proba(Z), rtol=1e-5)  # a float32 layer


def test_a_stack_must_fit_its_members() -> None:
    members = [forest(seed=s) for s in range(2)]
    narrow = LogisticRegression().fit(np.hstack([X, X[:, :1]]), KINDS)
    with refused("stack", "a model of 4 columns"):
        as_row_teacher(members, X, stack=narrow)
    with refused("stack", "labels without probabilities"):
        as_row_teacher(members, X, stack=lambda z: z.argmax(1))
    with refused("weights", "weights beside a stack"):
        as_row_teacher(members, X, stack=softmax, weights=[1, 2])


def test_lists_in_lists() -> None:
    a, b, c = (forest(seed=s) for s in range(3))
    nested = as_row_teacher([[a, b], c])
    parts = [model.predict_proba(X) for model in (a, b, c)]
    np.testing.assert_allclose(nested(X), (parts[0] + parts[1]) / 4 + parts[2] / 2)


def test_content_and_size_are_those_of_all_members() -> None:
    a, b = forest(seed=0), forest(seed=1)
    found = [
        as_row_teacher(members, X, weights=weights).fingerprint()
        for members, weights in (([a, b], None), ([b, a], None), ([a, b], [1, 2]), ([a], None))
    ]
    assert len({*found}) == 4
    assert as_row_teacher([a, b]).fingerprint() == found[0]
    assert as_row_teacher([a, b]).bytes() == as_row_teacher(a).bytes() + as_row_teacher(b).bytes()
    opaque = as_row_teacher([a, softmax], X)
    assert (opaque.fingerprint(), opaque.bytes()) == (None, None)
    nets = [net(3, 3), net(3, 3, seed=1)]
    assert as_row_teacher(nets, X).fingerprint() == as_row_teacher(list(nets), X).fingerprint()


def test_refits_fit_all_members() -> None:
    some = KINDS != "bee"
    again = as_row_teacher([forest(), forest(seed=1)]).refit(X[some], KINDS[some])
    parts = [forest(seed=s, where=some).predict_proba(X) for s in range(2)]
    np.testing.assert_allclose(again(X)[:, [0, 2]], np.mean(parts, 0))
    assert again.classes.tolist() == ["ant", "bee", "cat"]
    for opaque in (
        as_row_teacher([forest(), softmax], X),
        as_row_teacher([forest()], X, stack=softmax),
    ):
        with refused("teacher_folds"):
            opaque.refit(X, KINDS)
