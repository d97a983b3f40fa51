r"""What leaves knows its inputs, and inputs to check it at are such as it may meet."""

import pytest
import torch
from torch import nn

import limbeck as lb
from limbeck.condensation import models
from limbeck.export import Portable, export, portable
from tests.export.students import EVERY, classes_tree, net, scaled, seeded
from tests.refusals import refused


@pytest.mark.parametrize("name", [name for name in EVERY if "bag" not in name and name != "layers"])
def test_limbecks_own_models_tell_their_shape(name):
    make, shape = EVERY[name]
    assert portable(make()).shape == shape


def test_others_do_not():
    assert portable(nn.Linear(2, 1)).shape is None
    assert portable(nn.Linear(2, 1), 2).shape == (2,)
    with refused("student", "a Linear of unknown inputs"):
        portable(nn.Linear(2, 1)).rows(3)


def test_rows_are_the_same_each_time_and_in_the_units_of_the_data():
    leaving = portable(scaled())
    x = leaving.rows(500)
    assert torch.equal(x, leaving.rows(500))
    torch.testing.assert_close(x[:, 1].mean().item(), 3e4, rtol=0.1, atol=0)
    assert x[:, 1].std() > 5e3


def test_rows_come_to_every_leaf_of_a_tree():
    tree = classes_tree()
    x = portable(tree).rows(64)
    reached = {tuple(row) for row in tree(x).tolist()}
    leaves = {tuple(row) for row in tree.value[tree.is_leaf].tolist()}
    assert reached == leaves


def test_discrete_densities_get_events_of_their_support():
    spins = lb.NADE(4, 2, support=lb.Spins(4))
    assert set(portable(spins).rows(20).unique().tolist()) == {-1.0, 1.0}


def test_a_bare_bag_leaves_by_its_means(tmp_path):
    draws = torch.randn(30, 2, generator=seeded())
    bag = lb.SampleBag(models.logistic(), draws, 3)
    path = export(bag, tmp_path / "bag.pt2", input_shape=())  # one variable, (n,)
    x = torch.linspace(-2, 2, 5)
    found = torch.export.load(path).module()(x)
    torch.testing.assert_close(found, bag(x).mean)
    assert export(bag, tmp_path / "bag", input_shape=()).is_dir()


def test_a_saved_result_leaves_like_the_first(tmp_path):
    x = torch.randn(20, 4, generator=seeded())
    result = lb.distill(lambda x: x[:, :3].softmax(1), net(), x, steps=2, device="cpu")
    result.save(tmp_path / "saved")
    again = lb.load(tmp_path / "saved")
    for made, name in ((result, "a.npz"), (again, "b.npz")):
        made.export(tmp_path / name)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    assert isinstance(again.portable(), Portable)
