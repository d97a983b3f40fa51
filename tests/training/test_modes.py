r"""Evaluation mode lasts as long as it is asked for, and leaves nothing behind."""

import pytest
import torch
from torch import nn

from limbeck.evaluation import evaluating


class Merging(nn.Linear):
    r"""A layer that rewrites its weights when it is put into another mode."""

    def train(self, mode=True):
        self.weight.data.add_(1.0)
        return super().train(mode)


def net():
    found = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(0.5), Merging(2, 2)))
    found[0].training = False  # frozen, as users do
    return found


def modes(model):
    return [layer.training for layer in model.modules()]


@pytest.mark.parametrize("fails", [False, True])
def test_every_layer_is_back_in_its_own_mode(fails):
    model = net()
    before, weights = modes(model), model[1][1].weight.clone()
    with pytest.raises(KeyError) if fails else evaluating(nn.Identity()), evaluating(model):
        assert not any(modes(model))
        model[0].training = True  # which whoever looks may do
        if fails:
            raise KeyError
    assert modes(model) == before
    assert True in before
    assert False in before
    torch.testing.assert_close(model[1][1].weight, weights, rtol=0, atol=0)


def test_dropout_is_off_only_meanwhile():
    model, x = nn.Dropout(0.5), torch.ones(1000)
    with evaluating(model):
        assert torch.equal(model(x), x)
    assert not torch.equal(model(x), x)


def test_what_is_no_module_has_no_mode():
    with evaluating(torch.relu):
        assert torch.relu(torch.tensor(-1.0)) == 0
