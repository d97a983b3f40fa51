r"""Specs of models: typed, of the sizes of the tensors beside them, and trees without circles."""

import json
import resource

import numpy as np
import pytest
import torch

import limbeck as lb
from limbeck.condensation.sample_bag import SampleBag
from limbeck.errors import ArgumentError, CheckpointError
from limbeck.models import (
    BY_NAME,
    MADE,
    MLP,
    NADE,
    BatchedMLP,
    DeepNADE,
    Ensemble,
    GaussianMixture,
    Preprocessed,
    TableEncoder,
    Trees,
    from_spec,
)
from limbeck.models.checks import count_numbers
from limbeck.models.tree import TreeArrays
from limbeck.posteriors.draws import Structure
from limbeck.storage import files
from limbeck.supports import States
from limbeck.training.result import FORMAT, History, Result
from tests.refusals import raises_about, refused


def stump(left=(1, -1, -1), right=(2, -1, -1), feature=(0, 0, 0)):
    size = len(left)
    arrays = [np.array(links) for links in (left, right, feature)]
    value = np.eye(2)[np.arange(size) % 2]
    return TreeArrays(*arrays, np.zeros(size), np.zeros(size), value, np.ones(size))


def trees(*parts):
    return Trees(parts or [stump()], 1, "probabilities")


ENCODER = TableEncoder([("a", None, 0.0, 1.0, 0.0)], [("b", 40, True), ("c", 3, False)])
MODELS = [
    MLP(4, 5, 3),
    BatchedMLP(3, 4, 5, 2),
    Ensemble([MLP(4, 3), MLP(4, 6, 3, output="softmax")], [1, 2]),
    Ensemble(BatchedMLP(2, 4, 3)),
    GaussianMixture(3, 4),
    GaussianMixture(3, 4, "diagonal"),
    NADE(5, 3, order="random", centre=[0.5] * 5),
    NADE(5, 3, support=States(4, 5)),
    DeepNADE(5, 3),
    MADE(5, (4, 4), skip=False),
    MADE(5, (4, 4), support=States(3, 5)),
    ENCODER,
    Preprocessed(MLP(ENCODER.width, 2, output_form="values"), [0.0] * ENCODER.width, None,
                 [1.0, 2.0], [3.0, 4.0], ENCODER),
    trees(),
    trees(stump(), stump((-1,), (-1,), (0,))),
    Preprocessed(trees()),
]  # fmt: skip


def leaves(value, path=()):
    r"""Where the values of a spec are."""
    if not isinstance(value, dict | list):
        return [path]
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return [place for key, part in items for place in leaves(part, (*path, key))]


def changed(spec, path, value):
    spec = json.loads(json.dumps(spec))
    place = spec
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return spec


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_the_spec_and_the_tensors_of_a_model_give_it_back(model):
    tensors = model.state_dict()
    spec = json.loads(json.dumps(model.spec()))
    again = from_spec(spec, sum(t.numel() for t in tensors.values()))
    again.load_state_dict(tensors)
    assert again.spec() == model.spec()
    assert all(torch.equal(again.state_dict()[name], t) for name, t in tensors.items())


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
@pytest.mark.parametrize(
    "value", [None, True, -1, 0, 1.5, float("nan"), "x", [], {}, [[]], 10**30, {"type": "MLP"}]
)
def test_every_other_value_in_a_spec_is_refused_or_makes_a_model(model, value):
    spec = json.loads(json.dumps(model.spec()))
    for path in leaves(spec):
        other = changed(spec, path, value)
        made, message = None, ""
        try:
            made = from_spec(other, count_numbers(model.state_dict()))
        except ArgumentError as error:
            message = str(error)
        assert message or type(made) is type(model)
        assert "\n" not in message
        assert len(message) < 600


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_a_spec_of_more_numbers_than_the_file_has_is_refused_before_they_are_allocated(model):
    spec = json.loads(json.dumps(model.spec()))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for path in leaves(spec):
        for value in (10**9, 10**5):
            try:
                from_spec(changed(spec, path, value), count_numbers(model.state_dict()))
            except ArgumentError:
                continue
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 200_000  # KiB


def test_a_file_whose_spec_claims_too_much_is_refused(tmp_path):
    model, path = NADE(4, 3), tmp_path / "nade.safetensors"
    for name, value in {"hidden": 10**9, "inputs": 10**9, "dtype": "nn"}.items():
        files.write(path, model.state_dict(), {"spec": model.spec() | {name: value}}, FORMAT)
        with raises_about(CheckpointError, path.name, "spec"):
            NADE.load(path)


def test_only_models_and_names_of_limbecks_own_tables_are_made():
    assert set(BY_NAME) == set(lb.models.__all__)
    for spec in (None, {}, {"type": "Module"}, {"type": ["MLP"]}, "MLP", {"type": "nn.Linear"}):
        with refused("spec", expected="a spec of one of MADE, MLP"):
            from_spec(spec)
    with refused("spec.dtype", "'Tensor'"):
        MLP.from_spec(MLP(2, 1).spec() | {"dtype": "Tensor"})
    with refused("spec.bias", "'false'"):
        MLP.from_spec(MLP(2, 1).spec() | {"bias": "false"})


def test_specs_inside_each_other_end():
    spec = MLP(2, 1).spec()
    for _ in range(10_000):
        spec = {"type": "Ensemble", "models": [spec], "weights": None}
    with refused("spec", "nested too deep"):
        from_spec(spec)


# trees


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ([1, 0, 0], [2, 1, 2]),  # back to the root
        ([1, 1, -1], [2, 2, -1]),  # to itself
        ([1, -1, -1], [1, -1, -1]),  # twice to one
        ([1, -1, -1], [7, -1, -1]),  # to none
        ([-1, 2, -1], [-1, 1, -1]),  # beside the root
        ([1, -1, -1, 4, -1, 3], [2, -1, -1, 5, -1, 3]),  # a circle that no root reaches
    ],
)
def test_links_that_make_no_tree_are_refused(left, right):
    with raises_about(ArgumentError, "trees", "links"):
        trees(stump(left, right, [0] * len(left)))


def test_columns_that_are_not_there_and_arrays_of_other_lengths_are_refused():
    with refused("trees[0]", "columns from 3 to 3"):
        trees(stump(feature=(3, 0, 0)))
    with refused("trees[0]", "arrays of 3, 3, 3, 3, 3, 3, 2"):
        trees(stump()._replace(weight=np.ones(2)))
    with refused("trees[0]", "arrays of 0, 0"):
        trees(TreeArrays(*[np.zeros(0, int)] * 7))


def deep(levels):
    r"""A tree with a leaf at each level."""
    size = 2 * levels + 1
    left = np.full(size, -1)
    left[np.arange(0, size - 1, 2)] = np.arange(1, size - 1, 2)
    return stump(left, np.where(left < 0, -1, left + 1), np.zeros(size, int))


@pytest.mark.parametrize("wrap", [lambda model: model, Preprocessed], ids=["bare", "inside"])
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("left", [1, 0, 0, 3, 4]),
        ("left", [1, 1, 0, 3, 4]),
        ("left", [1, 1, 1, 3, 4]),
        ("left", [9, 1, 2, 3, 4]),
        ("left", [-1, 1, 2, 3, 4]),
        ("left", [4, 1, 2, 3, 4]),
        ("left", [0, 3, 2, 1, 4]),  # a circle that the root does not reach
        ("roots", [1]),
        ("roots", [-5]),
        ("feature", [9, 0, 0, 0, 0]),
        ("feature", [0, -1, 0, 0, 0]),
    ],
)
def test_damaged_trees_are_refused_when_they_are_loaded(tmp_path, wrap, name, values):
    model = wrap(trees(deep(2)))
    getattr(model if isinstance(model, Trees) else model.network, name)[:] = torch.tensor(values)
    with refused(name):
        from_spec(model.spec()).load_state_dict(model.state_dict())
    with raises_about(lb.LimbeckError, name):
        lb.load(Result(model, History(), 1, "", 0.0).save(tmp_path))


def test_the_depth_of_a_tree_is_counted(tmp_path):
    model = trees(deep(7))
    x = torch.tensor([[-1.0], [1.0]])
    for depth in (0, 3, 10**9):
        model.depth = depth
        again = lb.load(Result(model, History(), 1, "", 0.0).save(tmp_path)).student
        model.depth = 7
        assert again.depth == 7
        assert torch.equal(again(x), model(x))
    for change in ({"nodes": 4}, {"trees": 0}, {"outputs": 0}, {"nodes": -3}):
        with refused("spec", "trees of"):
            Trees.from_spec(model.spec() | change)


# bags of pseudo-draws


def test_the_tensors_of_a_bag_agree_with_its_structure():
    structure = Structure.from_spec({"names": ["a", "b"], "shapes": [[2], []]})
    tensors = SampleBag(lambda draw, x: draw, structure, 4, support={"a": "simplex"}).state_dict()
    bag = SampleBag.from_tensors(lambda draw, x: draw, structure, tensors)
    bag.make_room(tensors)
    bag.load_state_dict(tensors)
    assert torch.equal(bag.free, tensors["free"])
    assert [segment.size for segment in bag.supports.segments] == [2, 1]
    large = Structure.from_spec({"names": ["a"], "shapes": [[10**12]]})
    for other in (large, Structure(("a",), ((2,),))):
        with refused("free", r"shape \(4, 3\)"):
            SampleBag.from_tensors(lambda draw, x: draw, other, tensors)
    for rows in (
        [[3, 0, 1, 1]],
        [[2, 0, 0, 1]],
        [[3, 2, 0, 1]],
        [[3, 0, torch.nan, 1]],
        [[-3, 0, 0, 1]],
    ):
        with refused("supports"):
            bag.make_room({"_extra_state": torch.tensor(rows, dtype=torch.float64)})


@pytest.mark.parametrize(
    "change", [{"names": "ab"}, {"names": [1, 2]}, {"shapes": [[2], [-1]]}, {"shapes": [[2.0], []]},
               {"shapes": [2, 3]}, {"names": None}, {"names": ["a"]}, {"names": ["a", "a"]}],
)  # fmt: skip
def test_structures_of_draws_are_typed(change):
    with raises_about(ArgumentError, "structure"):
        Structure.from_spec({"names": ["a", "b"], "shapes": [[2], []]} | change)
